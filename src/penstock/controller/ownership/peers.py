"""`Peers`: the live controllers, as last seen by this controller."""

from __future__ import annotations

from penstock.controller.ownership.coordinator import Membership


class Peers:
    """The live controllers, as last seen by this one. Its sweeper updates it; reading it never waits.

    It may be out of date: work that must never run twice checks the membership itself.
    """

    def __init__(self) -> None:
        self._membership: Membership | None = None
        self._names: frozenset[str] = frozenset()

    def update(self, membership: Membership, names: frozenset[str]) -> None:
        """Record the members as `membership` sees them."""
        self._membership = membership
        self._names = names

    @property
    def own_name(self) -> str:
        """This controller's name; empty while it is no member, or has not seen the members yet."""
        return "" if self._membership is None or self._membership.is_over else self._membership.name

    @property
    def names(self) -> frozenset[str]:
        """The members, this controller among them if it is one."""
        return self._names
