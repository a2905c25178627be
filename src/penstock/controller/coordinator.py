"""`Coordinator`: which controllers are alive, the seam under the ownership of their work.

Implementations: `InProcessCoordinator`; one over ZooKeeper fits (a member is an ephemeral node, its membership the
session). All pass the conformance suite. How liveness and ownership go together: ``docs/controller-ownership.md``.

Source: controller internals specification, section 13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Members:
    """The controllers that are alive, by name. `version` (0 or more) grows with every change, for all who ask."""

    version: int
    names: frozenset[str]


class Membership(Protocol):
    """A controller's place among the members, from `Coordinator.join` until it leaves, or is no longer heard of.

    Once it is over it stays so: the controller may join again, under another name.
    """

    @property
    def name(self) -> str:
        """Name of the controller. No two memberships ever have the same."""

    @property
    def is_over(self) -> bool:
        """Whether it is known here to be over. It may be over and not known yet; never waits."""

    async def members(self) -> Members:
        """Return who is alive now: everybody who had joined before this was asked, unless his membership is over.

        Nobody is missing who may still take himself for a member and is one: what has no owner among them is nobody's.
        Raises `MembershipLostError` when this membership is over: who is no member may not decide who is.
        """

    async def changed(self, version: int) -> Members:
        """Wait until the members are other ones than at `version` (-1: do not wait); return them.

        Several changes may be seen as one. If cancelled, nothing is left behind. Raises `MembershipLostError` as soon
        as this membership is over.
        """

    async def leave(self) -> None:
        """End the membership; the others see it. Fine if it is over."""


class Coordinator(Protocol):
    """Where controllers learn of each other."""

    async def join(self, name: str) -> Membership:
        """Become a member. Whoever asks for the members from now on sees `name`.

        Raises `InvalidArgumentError` when a member has this name.
        """
