"""`Peers`: the controllers that are alive, as one of them has heard last."""

from __future__ import annotations

from penstock.controller.coordinator import Membership


class Peers:
    """Who is alive, as this controller has heard last. Its watch over the others tells; asking never waits.

    It may be out of date: what must never be done twice asks the membership itself.
    """

    def __init__(self) -> None:
        self._membership: Membership | None = None
        self._names: frozenset[str] = frozenset()

    def seen(self, membership: Membership, names: frozenset[str]) -> None:
        """Take note of the members as `membership` sees them."""
        self._membership = membership
        self._names = names

    @property
    def own_name(self) -> str:
        """This controller's name; empty while it is no member, or has not heard of any other yet."""
        return "" if self._membership is None or self._membership.is_over else self._membership.name

    @property
    def names(self) -> frozenset[str]:
        """The members, this controller among them if it is one."""
        return self._names
