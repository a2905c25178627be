"""`InProcessCoordinator`: for the controllers of one process; there is one except in tests."""

from __future__ import annotations

import asyncio

from penstock.controller.errors import MembershipLostError
from penstock.controller.ownership.coordinator import Members
from penstock.model.errors import InvalidArgumentError


class InProcessCoordinator:
    """`Coordinator` in memory: a controller that is not a member of it is dead."""

    def __init__(self) -> None:
        self._members: dict[str, InProcessMembership] = {}
        self._version = 0
        self._change = asyncio.Event()

    async def join(self, name: str) -> InProcessMembership:
        """See `Coordinator.join`."""
        if name in self._members:
            raise InvalidArgumentError(f"controller {name} is already a member: names must be unique")
        joined = self._members[name] = InProcessMembership(self, name)
        self._tell()
        return joined

    def expire(self, name: str) -> None:
        """End a membership from outside, as when a controller has been silent for too long."""
        if self._members.pop(name, None) is not None:
            self._tell()

    def _tell(self) -> None:
        self._version += 1
        self._change.set()
        self._change = asyncio.Event()

    def _members_for(self, asking: InProcessMembership) -> Members:
        if self._members.get(asking.name) is not asking:
            raise MembershipLostError(f"controller {asking.name} is no longer a member: it must join again")
        return Members(self._version, frozenset(self._members))

    async def _changed(self, asking: InProcessMembership, version: int) -> Members:
        while (found := self._members_for(asking)).version == version:
            await self._change.wait()
        return found


class InProcessMembership:
    """`Membership` in an `InProcessCoordinator`."""

    def __init__(self, coordinator: InProcessCoordinator, name: str) -> None:
        self._coordinator = coordinator
        self._name = name

    @property
    def name(self) -> str:
        """See `Membership.name`."""
        return self._name

    @property
    def is_over(self) -> bool:
        """See `Membership.is_over`."""
        return self._coordinator._members.get(self._name) is not self

    async def members(self) -> Members:
        """See `Membership.members`."""
        return self._coordinator._members_for(self)

    async def changed(self, version: int) -> Members:
        """See `Membership.changed`."""
        return await self._coordinator._changed(self, version)

    async def leave(self) -> None:
        """See `Membership.leave`."""
        if not self.is_over:
            self._coordinator.expire(self._name)
