"""Clients that share many attributes of one segment: compare-and-set, linearisable for each attribute."""

from __future__ import annotations

import asyncio
import random

from penstock.model.errors import PenstockError, SegmentExistsError
from penstock.model.segments import NO_VALUE, VERSION_ABSENT
from penstock_simulation.checks.history import GetKey, KeyValue, PutKey, RemoveKey
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

#: Attributes that all clients change, and attributes that a single client changes and removes.
_SHARED_COUNT = 12
_OWN_COUNT = 12
#: Most gets that run concurrently with other calls.
_GETS_MAX = 6
#: Most clients of one segment. Their values are never equal.
_CLIENTS_MAX = 8


class AttributeClient(Workload):
    """Reads and compare-and-sets attributes. `number`: index of this client among the clients of that segment.

    A value is a moment in time, so the values of an attribute grow. In the history an attribute is the key of a table
    whose versions are its values.
    """

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, segment: str, number: int, mean_gap_s: float
    ) -> None:
        super().__init__(world, host, name, rng)
        assert number < _CLIENTS_MAX
        self._segment = segment
        self._number = number
        self._mean_gap_s = mean_gap_s
        self._meeting_interval_s = min(5.0, 14 * mean_gap_s)
        self._shared = [bytes(14) + bytes([2, at]) for at in range(_SHARED_COUNT)]
        self._own = [bytes(14) + bytes([16 + number, at]) for at in range(_OWN_COUNT)]
        #: Attributes that are no longer removed: a late change could recreate one with a value it had before.
        self._doubtful: set[bytes] = set()
        self._known: dict[bytes, int] = {}
        self._gets: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        try:
            await self.client._segment_client.create_segment(self._segment)
        except SegmentExistsError:
            pass  # Another client of the same segment has created it.

    async def run(self) -> None:
        """See `Workload.run`."""
        attribute = self._shared[0]
        while self.world.is_writing:
            # Often the previous one again, while it is being moved to the index or loaded from it.
            if self.rng.random() < 0.7:
                attribute = self.rng.choice(self._shared if self.rng.random() < 0.5 else self._own)
            if self.rng.random() < 0.15:
                await self.meet(self._meeting_interval_s)
                turn = round(self.world.now_s / self._meeting_interval_s)
                attribute = self._shared[turn % _SHARED_COUNT]  # The other clients use the same one.
            else:
                await self.rest(self._mean_gap_s)
            try:
                if attribute not in self._known or self.rng.random() < 0.4:
                    await self._get(attribute)
                elif attribute[14] >= 16 and attribute not in self._doubtful and self.rng.random() < 0.2:
                    await self._remove(attribute)
                elif self.rng.random() < 0.4:
                    await self._set_and_get(attribute)
                else:
                    await self._set(attribute)
            except PenstockError as error:
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name}: attributes of {self._segment}: {error!r}")
                    break
        if self._gets:
            await asyncio.wait(self._gets)

    async def verify(self) -> None:
        """See `Workload.verify`."""
        for attribute in [*self._shared, *self._own]:

            async def get(attribute: bytes = attribute) -> None:
                await self._get(attribute)

            await self.world.insist(f"attribute {attribute.hex()} of {self._segment}", get)

    async def _get(self, attribute: bytes, *, is_remembered: bool = True) -> None:
        history = self.world.history
        call = history.invoke(self.name, GetKey(self._segment, attribute))
        try:
            value = await self.client._segment_client.get_attribute(self._segment, attribute)
        except PenstockError as error:
            history.fail(call, error)
            raise
        if is_remembered:
            self._known[attribute] = value
        if value == NO_VALUE:
            history.ok(call)
        else:
            history.ok(call, KeyValue(str(value).encode(), value))

    async def _set(self, attribute: bytes) -> None:
        history, expected = self.world.history, self._known[attribute]
        value = int(self.world.now_s * 1e6) * _CLIENTS_MAX + self._number
        version = VERSION_ABSENT if expected == NO_VALUE else expected
        call = history.invoke(self.name, PutKey(self._segment, attribute, str(value).encode(), version))
        try:
            is_set = await self.client._segment_client.update_attribute(
                self._segment, attribute, value=value, expected=expected
            )
        except PenstockError as error:
            history.unknown(call, error)
            self._doubtful.add(attribute)
            del self._known[attribute]
            raise
        if is_set:
            self._known[attribute] = value
            history.ok(call, value)
            self.world.counts["attributes set"] += 1
        else:
            del self._known[attribute]
            history.refuse(call, "the condition did not hold")

    async def _set_and_get(self, attribute: bytes) -> None:
        """Set an attribute, and get it and others concurrently: both values are valid answers, and must persist."""
        delay_s = self.rng.choice((0.0, 0.0005, 0.002))
        self._begin_get(attribute)
        setting = asyncio.create_task(self._set(attribute))
        for one in (attribute, *self.rng.sample(self._shared, 2)):
            await asyncio.sleep(delay_s)
            self._begin_get(one)
        await setting

    def _begin_get(self, attribute: bytes) -> None:
        """Get an attribute, concurrently with other calls."""
        if len(self._gets) < _GETS_MAX:
            task = asyncio.create_task(self._try_get(attribute))
            self._gets.add(task)
            task.add_done_callback(self._gets.discard)

    async def _try_get(self, attribute: bytes) -> None:
        try:
            await self._get(attribute, is_remembered=False)
        except PenstockError as error:
            if not self.world.is_passing(error):
                self.world.problem(f"{self.name}: attributes of {self._segment}: {error!r}")

    async def _remove(self, attribute: bytes) -> None:
        history, expected = self.world.history, self._known.pop(attribute)
        if expected == NO_VALUE:
            return
        call = history.invoke(self.name, RemoveKey(self._segment, attribute, expected))
        try:
            is_removed = await self.client._segment_client.update_attribute(
                self._segment, attribute, value=NO_VALUE, expected=expected
            )
        except PenstockError as error:
            history.unknown(call, error)
            self._doubtful.add(attribute)
            raise
        if is_removed:
            history.ok(call)
            self.world.counts["attributes removed"] += 1
        else:
            history.refuse(call, "the condition did not hold")
