"""Clients of one table segment, and of attributes of a segment: conditional updates that race and lose replies."""

from __future__ import annotations

import random

from penstock.model.errors import (
    PenstockError,
    SegmentExistsError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.segments import NO_VALUE, VERSION_ABSENT, VERSION_ANY, TableRemoval, TableUpdate
from penstock_simulation.checks.history import GetKey, Invocation, KeyValue, OffsetSeen, PutKey, RemoveKey
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World


class TableClient(Workload):
    """Puts, removes and gets keys of one table, with and without conditions."""

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, table: str, key_count: int, mean_gap_s: float
    ) -> None:
        super().__init__(world, host, name, rng)
        self._table = table
        self._keys = tuple(f"key-{number}".encode() for number in range(key_count))
        self._mean_gap_s = mean_gap_s
        self._number = 0
        self._versions: dict[bytes, int] = {}

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        try:
            await self.client._segment_client.create_table(self._table)
        except SegmentExistsError:
            pass  # Another client of the same table has created it.

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await self.rest(self._mean_gap_s)
            key = self.rng.choice(self._keys)
            kind = self.rng.random()
            if kind < 0.5:
                await self._put(key)
            elif kind < 0.65:
                await self._remove(key)
            else:
                await self._get(key)

    async def verify(self) -> None:
        """See `Workload.verify`."""
        for key in self._keys:
            for attempt in range(10):
                if await self._get(key):
                    break
                if attempt == 9:
                    self.world.problem(f"{self._table}: key {key!r} cannot be read")
                await self.rest(0.5)

    def _condition(self, key: bytes) -> int:
        known = self._versions.get(key, VERSION_ABSENT)
        return self.rng.choices((known, VERSION_ANY, VERSION_ABSENT), (8, 2, 1))[0]

    async def _put(self, key: bytes) -> None:
        self._number += 1
        value = f"{self.name}-{self._number}-".encode() + self.world.padding(self.rng)
        expected = self._condition(key)
        call = self.world.history.invoke(self.name, PutKey(self._table, key, value, expected))
        try:
            (version,) = await self.client._segment_client.table_put(self._table, [TableUpdate(key, value, expected)])
        except PenstockError as error:
            self._failed(call, key, error)
        else:
            self._versions[key] = version
            self.world.history.ok(call, version)
            self.world.counts["table puts"] += 1

    async def _remove(self, key: bytes) -> None:
        expected = self._condition(key)
        if expected == VERSION_ABSENT:
            expected = VERSION_ANY
        call = self.world.history.invoke(self.name, RemoveKey(self._table, key, expected))
        try:
            await self.client._segment_client.table_remove(self._table, [TableRemoval(key, expected)])
        except PenstockError as error:
            self._failed(call, key, error)
        else:
            self._versions.pop(key, None)
            self.world.history.ok(call)

    async def _get(self, key: bytes) -> bool:
        call = self.world.history.invoke(self.name, GetKey(self._table, key))
        try:
            (entry,) = await self.client._segment_client.table_get(self._table, [key])
        except PenstockError as error:
            self._failed(call, key, error)
            return False
        if entry is None:
            self._versions.pop(key, None)
            self.world.history.ok(call)
        else:
            self._versions[key] = entry.version
            self.world.history.ok(call, KeyValue(entry.value, entry.version))
        return True

    def _failed(self, call: Invocation, key: bytes, error: PenstockError) -> None:
        history = self.world.history
        if isinstance(error, (TableKeyVersionError, TableKeyMissingError)):
            self._versions.pop(key, None)
            history.refuse(call, error)
        else:
            history.unknown(call, error)
            if not self.world.is_passing(error):
                self.world.problem(f"{self.name}: {call.call} ended with {error!r}")


class CounterClient(Workload):
    """Increments an attribute by compare-and-set: no two clients may succeed from the same value."""

    #: (segment, value) -> the client that incremented the counter from that value.
    _Taken = dict[tuple[str, int], str]

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, segment: str, taken: _Taken, mean_gap_s: float
    ) -> None:
        super().__init__(world, host, name, rng)
        self._segment = segment
        self._taken = taken
        self._mean_gap_s = mean_gap_s
        self._attribute = bytes(range(16))

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        try:
            await self.client._segment_client.create_segment(self._segment)
        except SegmentExistsError:
            pass  # Another client of the same counter has created it.

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            await (self.meet() if self.rng.random() < 0.2 else self.rest(self._mean_gap_s))
            try:
                await self._count()
            except PenstockError as error:
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: counter of {self._segment}: {error!r}")
                    return

    async def verify(self) -> None:
        """See `Workload.verify`."""
        self._saw(await self.world.insist(f"counter of {self._segment}", self._value))

    async def _value(self) -> int:
        return await self.client._segment_client.get_attribute(self._segment, self._attribute)

    async def _count(self) -> None:
        value = await self._value()
        self._saw(value)
        following = 1 if value == NO_VALUE else value + 1
        matched = await self.client._segment_client.update_attribute(
            self._segment, self._attribute, value=following, expected=value
        )
        if not matched:
            return
        other = self._taken.setdefault((self._segment, value), self.name)
        if other is not self.name:
            self.world.problem(f"{self._segment}: both {other} and {self.name} counted up from {value}")
        self._saw(following)
        self.world.counts["attribute updates"] += 1

    def _saw(self, value: int) -> None:
        self.world.history.see(self.name, OffsetSeen(f"counter of {self._segment}", max(value, 0)))
