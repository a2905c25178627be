"""Readers of a group that die with an event in hand: another member gets their unprocessed events again."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from penstock.client.client import Client
from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group import ReaderGroup
from penstock.client.reading.event import Event
from penstock.model.errors import PenstockError
from penstock.model.names import segment_name, split_scoped_name
from penstock_simulation.checks.history import EventSeen, FullRead
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.events import is_at_the_end, key_of
from penstock_simulation.workloads.world import Workload, World

#: A member without heartbeats for this long is declared dead.
_READER_TIMEOUT_S = 4.0


class MortalReader(Workload):
    """Processes events one by one, and dies now and then during one. All members of a group record one pass.

    So the group's pass has every event at least once. `is_leader`: reads at the end until nothing is left.
    """

    verifies_again = False  # The group is finished.

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, stream: str, group: str, is_leader: bool
    ) -> None:
        super().__init__(world, host, name, rng)
        self._stream = stream
        self._group = group
        self._is_leader = is_leader
        self._read = f"group-{group}"
        self._life = 0

    def make_client(self) -> Client:
        """See `Workload.make_client`: members may be declared dead here."""
        settings = self.world.cluster.settings.client
        mortal = replace(settings, reader_timeout_s=_READER_TIMEOUT_S, position_interval_s=0.3)
        return self.world.cluster.client(self.host, mortal)

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        if self._is_leader:
            await self._join()

    async def run(self) -> None:
        """See `Workload.run`."""
        world = self.world
        group = await world.insist(f"join {self._group}", self._join)
        while world.is_writing:
            reader = await world.insist(f"{self.name} starts to read", partial(self._start, group))
            try:
                await self._work_until_death(reader)
            except PenstockError as error:
                if not world.is_passing(error):
                    world.problem(f"{self.name} cannot read {self._stream}: {error!r}")
            finally:
                await reader.abandon()
            world.counts["reader deaths"] += 1

    async def verify(self) -> None:
        """See `Workload.verify`."""
        world = self.world
        if not self._is_leader:
            return
        invocation = world.history.invoke(self.name, FullRead(self._stream, self._read))
        group = await world.insist(f"join {self._group}", self._join)
        reader = await world.insist(f"{self.name} starts to read", partial(self._start, group))
        while True:
            event = await world.insist(f"{self.name} reads", partial(reader.read, 0.5))
            if event is not None:
                self._done(event)
                continue
            await world.insist("store positions", reader.store_positions)
            if await world.insist("how much is unread", partial(is_at_the_end, self.client, group, self._stream)):
                break
            if world.now_s > world.give_up_s:
                world.problem(f"group {self._group} does not get to the end of {self._stream}")
                break
        await world.insist(f"{self.name} leaves", reader.close)
        world.history.ok(invocation)

    async def _join(self) -> ReaderGroup:
        return await self.client.reader_group(self._group, [self._stream])

    async def _start(self, group: ReaderGroup) -> Reader:
        self._life += 1
        return await group.reader(f"{self.name}-{self._life}")

    async def _work_until_death(self, reader: Reader) -> None:
        world, rng = self.world, self.rng
        until_s = world.now_s + rng.uniform(1.0, 12.0)
        while True:
            event = await reader.read(1.0)
            # Processing an event takes a while; positions are stored meanwhile.
            if event is not None and rng.random() < 0.1:
                await self.rest(0.5)
            if world.now_s > until_s or not world.is_writing:
                return  # It dies with an unprocessed event in hand.
            if event is not None:
                self._done(event)

    def _done(self, event: Event) -> None:
        segment = segment_name(*split_scoped_name(event.stream), event.segment_id)
        seen = EventSeen(
            self._stream, self._read, segment, event.offset, event.data, key_of(event.data), may_repeat=True
        )
        self.world.history.see(self.name, seen)
        self.world.counts["events worked off"] += 1
