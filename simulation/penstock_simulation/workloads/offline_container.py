"""One container is offline for long: streams that need nothing of it continue, and so do calls about them.

Many callers ask for streams that need the container. Others ask for healthy streams all the time, and get answers;
retention truncates those streams as before.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from penstock.controller.metadata import layout
from penstock.controller.metadata.records import ScopeRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.model.errors import PenstockError
from penstock.model.names import segment_name
from penstock.model.policies import Retention, RetentionKind, Scaling
from penstock.model.routing import container_of
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import SCOPE, Workload, World

_STREAM_COUNT = 10
_RETENTION = Retention(RetentionKind.BY_SIZE, 2_000)
_EVENT_BYTES = 400
#: How long the container is offline: longer than all that a controller waits for a single answer.
OFFLINE_S = 30.0
#: Callers that ask for streams of that container at the same time.
_CALLER_COUNT = 24
#: Time for an answer about a healthy stream.
_ANSWER_S = 12.0
#: Time in which retention truncates what is too much: it inspects each stream every half second.
_TRUNCATION_S = 20.0


class OfflineContainer(Workload):
    """See the module."""

    verifies_again = False

    def __init__(self, world: World, host: Host, name: str, rng: random.Random) -> None:
        super().__init__(world, host, name, rng)
        self._streams = [f"watched-{number}" for number in range(_STREAM_COUNT)]
        self._is_offline = False

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        for stream in self._streams:
            make = partial(
                self.client.create_stream, f"{SCOPE}/{stream}", scaling=Scaling.fixed(1), retention=_RETENTION,
                exist_ok=True,
            )  # fmt: skip
            await self.world.insist(f"create {stream}", make)
            await self.world.insist(f"write to {stream}", partial(self._write, stream))

    async def run(self) -> None:
        """See `Workload.run`."""
        controller = self.world.cluster.controller
        service = self.world.cluster.controller_service()
        changes = self.world.cluster.simulation.owner_changes
        assert service is not None
        assert changes is not None
        needs = await controller.run(self._needs())
        chosen = self._choose(needs)
        if chosen is None:
            self.world.counts["offline containers: none that is free of system tables"] += 1
            return
        sick = [stream for stream in self._streams if chosen in needs[stream]]
        healthy = [stream for stream in self._streams if chosen not in needs[stream]]
        self.world.counts["offline containers"] += 1
        changes.reassign(chosen, OFFLINE_S)
        self._is_offline = True
        async with asyncio.TaskGroup() as tasks:
            for number in range(_CALLER_COUNT):
                tasks.create_task(self._call(sick[number % len(sick)], number))
            for stream in healthy[:3]:
                tasks.create_task(self._see_truncated(stream))
            tasks.create_task(self._ask(healthy))
            await asyncio.sleep(OFFLINE_S)
            self._is_offline = False

    async def _needs(self) -> dict[str, set[int]]:
        """Return the containers that each stream needs; under the empty name those that all need."""
        service = self.world.cluster.controller_service()
        assert service is not None
        count = self.world.cluster.locator.container_count
        scope = await service._records.get(layout.SCOPES, SCOPE, ScopeRecord)
        assert scope is not None
        common = [*layout.SYSTEM_TABLES, layout.RETAINED_STREAMS, layout.MARKED_STREAMS]
        for table in (layout.streams_in_scope, layout.tags_in_scope, layout.reader_groups_in_scope):
            common.append(table(SCOPE, scope.record.id))
        needs: dict[str, set[int]] = {"": {container_of(table, count) for table in common}}
        for stream in self._streams:
            stream_id = await service._catalog.on_stream(SCOPE, stream, self._id_of)
            tables = [
                table(SCOPE, stream, stream_id)
                for table in (layout.stream_metadata, layout.epochs_with_transactions, layout.commit_order)
            ]
            tables += [segment_name(SCOPE, stream, 0), segment_name(SCOPE, f"_MARK{stream}", 0)]
            needs[stream] = {container_of(table, count) for table in tables}
        return needs

    async def _id_of(self, tables: StreamTables) -> str:
        return tables.stream_id

    def _choose(self, needs: dict[str, set[int]]) -> int | None:
        """Return a container that no system table needs, and some streams, but not all; None if there is none."""
        count = self.world.cluster.locator.container_count
        found = [
            number
            for number in range(count)
            if number not in needs[""] and 0 < sum(number in needs[stream] for stream in self._streams) < _STREAM_COUNT
        ]
        return self.rng.choice(found) if found else None

    async def _write(self, stream: str) -> None:
        async with self.client.event_writer(f"{SCOPE}/{stream}") as writer:
            await writer.write_many([bytes(_EVENT_BYTES)] * 8, "k")

    async def _call(self, stream: str, number: int) -> None:
        """Ask for a stream of the container again and again; each attempt is given up after a while."""
        while self._is_offline:
            try:
                async with asyncio.timeout(self.rng.uniform(20.0, 30.0)):
                    await self.client.update_stream(f"{SCOPE}/{stream}", tags=[str(number)])
            except (TimeoutError, PenstockError):
                await self.rest(1.0)

    async def _ask(self, healthy: list[str]) -> None:
        """Ask for healthy streams: each answer is in time."""
        world = self.world
        while self._is_offline:
            stream = self.rng.choice(healthy)
            began_s = world.now_s
            try:
                await self.client.update_stream(f"{SCOPE}/{stream}", tags=[str(round(began_s))])
            except PenstockError as error:
                if not world.is_passing(error):
                    world.problem(f"{self.name} updates {stream}: {error!r}")
            if world.now_s - began_s > _ANSWER_S:
                world.problem(
                    f"an update of {stream}, which needs nothing of the offline container, took "
                    f"{world.now_s - began_s:.1f} s"
                )
            world.counts["updates beside an offline container"] += 1
            await self.rest(0.5)

    async def _see_truncated(self, stream: str) -> None:
        """Write to a healthy stream: what was there some time ago must be truncated by then."""
        world = self.world
        while self._is_offline:
            tail = (await world.insist("find the tail", partial(self.client.tail, f"{SCOPE}/{stream}"))).positions[0]
            until_s = world.now_s + _TRUNCATION_S
            head = 0
            while head < tail and world.now_s < until_s:
                await world.insist(f"write to {stream}", partial(self._write, stream))
                await asyncio.sleep(1.0)
                head = (await world.insist("find the head", partial(self.client.head, f"{SCOPE}/{stream}"))).positions[
                    0
                ]
            if head < tail:
                world.problem(
                    f"{stream}, which needs nothing of the offline container, begins at {head}: retention has not come "
                    f"to {tail} in {_TRUNCATION_S:g} s"
                )
                return
            world.counts["truncations beside an offline container"] += 1
