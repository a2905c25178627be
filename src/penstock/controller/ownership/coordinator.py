"""`Coordinator`: which controllers are alive; the interface that ownership of their work is built on.

Implementations: `InProcessCoordinator`; one over ZooKeeper is possible (a member is an ephemeral node, its membership
the session). All pass the conformance suite. How liveness and ownership relate: ``docs/controller-ownership.md``.

Source: controller-internals 13.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Members:
    """The live controllers, by name. `version` (0 or more) grows with every change, for all members."""

    version: int
    names: frozenset[str]


class Membership(Protocol):
    """A controller's membership, from `Coordinator.join` until it leaves or is considered dead.

    An ended membership stays ended; the controller may join again under another name.
    """

    @property
    def name(self) -> str:
        """Name of the controller. Unique among all memberships ever."""

    @property
    def is_over(self) -> bool:
        """Whether the membership is known locally to have ended. It may have ended without this being known yet."""

    async def members(self) -> Members:
        """Return the live members: all that joined before this call and whose membership has not ended.

        Every controller that may still be a member is included: work whose owner is missing here has no live owner.
        Raises `MembershipLostError` when this membership has ended: a non-member must not decide who is alive.
        """

    async def changed(self, version: int) -> Members:
        """Wait until the members differ from those at `version` (-1: do not wait); return them.

        Several changes may be seen as one. Cancelling it leaves nothing behind. Raises `MembershipLostError` as soon as
        this membership has ended.
        """

    async def leave(self) -> None:
        """End the membership; the other members see it. Does nothing if it has ended."""


class Coordinator(Protocol):
    """Where controllers find each other."""

    async def join(self, name: str) -> Membership:
        """Become a member. Later reads of the members include `name`.

        Raises `InvalidArgumentError` when a member has this name.
        """
