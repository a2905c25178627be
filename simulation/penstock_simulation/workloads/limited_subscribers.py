"""Streams with a minimum and a maximum retention, by size and by time, and two subscribers that acknowledge.

One subscriber is quick; the other acknowledges rarely and is silent for long. `RetainedModel` computes what may be
truncated. At the end the maximum overtakes the silent subscriber. Once both have acknowledged everything, only the
minimum is left, and long-term storage has only the chunks that hold it.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial

from penstock.client.controller.reader_group_calls import RegisteredGroup
from penstock.model.errors import PenstockError
from penstock.model.names import segment_name
from penstock.model.policies import GroupRetention, Retention, RetentionKind, Scaling
from penstock.model.stream_cuts import StreamCut
from penstock.segmentstore.tier2.chunk_name import chunk_origin
from penstock_simulation.checks.retained import RetainedModel, chunks_too_many
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.users import UserHabits
from penstock_simulation.workloads.world import SCOPE, Workload, World

_POLICIES = {
    "kept-by-size": Retention(RetentionKind.BY_SIZE, 2_000, 8_000),
    "kept-by-time": Retention(RetentionKind.BY_TIME, 2_000, 6_000),
}
_QUICK, _SILENT = "quick", "silent"
_ROLLOVER_BYTES = 1024
_EVENT_BYTES_MAX = 400
#: Bytes that may be kept beyond a limit: cuts are recorded at event boundaries.
_SLACK_BYTES = 600
#: Time limit without faults: the controller scans each half second, and writes are slow.
_LIMIT_S = 40.0


class _LimitedStream:
    """The known state of one of the streams."""

    def __init__(self, name: str, policy: Retention, now_s: float) -> None:
        self.name = name
        self.path = f"{SCOPE}/{name}"
        self.groups = {who: f"{who}-{name}" for who in (_QUICK, _SILENT)}
        self.registered: dict[str, RegisteredGroup] = {}
        self.model = RetainedModel(policy, now_s, said=dict.fromkeys(self.groups.values(), 0))

    def cut(self, place: int) -> StreamCut:
        """Return the position as a cut. A stream of one segment is its segment 0."""
        return StreamCut(SCOPE, self.name, {0: place})


class LimitedSubscribers(Workload):
    """See the module."""

    verifies_again = False  # Everything is acknowledged.

    def __init__(self, world: World, host: Host, name: str, rng: random.Random, *, habits: UserHabits) -> None:
        super().__init__(world, host, name, rng)
        self._streams = [_LimitedStream(stream, policy, world.now_s) for stream, policy in _POLICIES.items()]

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        insist, client = self.world.insist, self.client
        for stream in self._streams:
            make = partial(
                client.create_stream, stream.path, scaling=Scaling.fixed(1), retention=stream.model.policy,
                rollover_bytes=_ROLLOVER_BYTES, exist_ok=True,
            )  # fmt: skip
            await insist(f"create {stream.path}", make)
            for group in stream.groups.values():
                join = partial(client.reader_group, group, [stream.path], retention=GroupRetention.MANUAL)
                await insist(f"create {group}", join)
                found = await insist(f"inspect {group}", partial(client._controller_client.reader_group, SCOPE, group))
                assert found is not None
                stream.registered[group] = found

    async def run(self) -> None:
        """See `Workload.run`."""
        async with asyncio.TaskGroup() as tasks:
            for stream in self._streams:
                tasks.create_task(self._write(stream))
                tasks.create_task(self._watch(stream))
                tasks.create_task(self._acknowledge(stream, _QUICK, 0.7, first_s=0.0))
                tasks.create_task(self._acknowledge(stream, _SILENT, 9.0, first_s=7.0))

    async def verify(self) -> None:
        """See `Workload.verify`."""
        for stream in self._streams:
            policy = stream.model.policy
            is_by_time = policy.kind is RetentionKind.BY_TIME
            # No more writes: with retention by time all data becomes older than the maximum.
            if not await self._come_to(stream, 0 if is_by_time else policy.max_limit + _SLACK_BYTES):
                self.world.problem(f"{stream.path}: the maximum does not overtake who is silent")
            if not await self._come_to(stream, 0 if is_by_time else policy.min_limit + _SLACK_BYTES, is_said=True):
                self.world.problem(f"{stream.path} keeps more than its minimum, and all is acknowledged")
            await self._see_chunks_go(stream)

    # -- writes and acknowledgements ----------------------------------------------------------------------------

    async def _write(self, stream: _LimitedStream) -> None:
        while self.world.is_writing:
            await self.rest(0.4)
            events = [bytes(self.rng.randrange(1, _EVENT_BYTES_MAX)) for _ in range(self.rng.randrange(1, 4))]
            try:
                await self._write_events(stream, events)
            except PenstockError as error:
                self._check_passing("writes", error)

    async def _write_events(self, stream: _LimitedStream, events: list[bytes]) -> None:
        async with self.client.event_writer(stream.path) as writer:
            await writer.write_many(events, "k")

    async def _acknowledge(self, stream: _LimitedStream, who: str, gap_s: float, *, first_s: float) -> None:
        group = stream.groups[who]
        await asyncio.sleep(first_s)
        while self.world.is_writing:
            await self.rest(gap_s)
            try:
                tail = (await self.client.tail(stream.path)).positions[0]
                said = stream.model.said[group]
                await self._publish(stream, group, self.rng.choice((tail, (tail + said) // 2)))
            except PenstockError as error:
                self._check_passing(f"acknowledges as {who}", error)

    async def _publish(self, stream: _LimitedStream, group: str, place: int) -> None:
        registered = stream.registered[group]
        stream.model.acknowledge(group, place)
        await self.client._controller_client.publish_cut(
            f"{SCOPE}/{group}", registered.id, registered.generation, stream.cut(place)
        )
        self.world.counts["cuts acknowledged below a maximum"] += 1

    # -- checks -------------------------------------------------------------------------------------------------

    async def _watch(self, stream: _LimitedStream) -> None:
        while self.world.is_writing:
            await self.rest(0.4)
            try:
                await self._inspect(stream)
            except PenstockError as error:
                self._check_passing("watches", error)

    async def _inspect(self, stream: _LimitedStream) -> int:
        """Check the present state of a stream; return its size in bytes."""
        world, model = self.world, stream.model
        head = (await self.client.head(stream.path)).positions[0]
        head_s = world.now_s
        tail = (await self.client.tail(stream.path)).positions[0]
        unread = min(model.said.values())
        before = model.head
        for wrong in model.judge(head, head_s, tail):
            world.problem(f"{stream.path} {wrong}")
        if model.head > before:
            world.counts["heads of limited streams"] += 1
            world.counts["heads beyond a subscriber"] += head > unread
        model.see_length(head_s, tail)
        asked_s = world.now_s
        for cut in (await self.client.explain_retention(stream.path)).cuts:
            model.see_cut(asked_s - cut.age_s, cut.size_bytes)
        return tail - head

    async def _come_to(self, stream: _LimitedStream, most: int, *, is_said: bool = False) -> bool:
        """Wait until a stream has at most `most` bytes. `is_said`: while both subscribers acknowledge everything.

        By size, a stream can only be truncated at recorded cuts, which may be far apart after an outage, so it gets an
        event now and then.
        """
        world = self.world
        until_s = world.now_s + _LIMIT_S
        while True:
            if stream.model.policy.kind is RetentionKind.BY_SIZE:
                await world.insist("write an event", partial(self._write_events, stream, [bytes(_EVENT_BYTES_MAX)]))
            if is_said:
                tail = await world.insist("find the tail", partial(self.client.tail, stream.path))
                for group in stream.groups.values():
                    await world.insist("acknowledge all", partial(self._publish, stream, group, tail.positions[0]))
            await asyncio.sleep(1.0)
            if await world.insist(f"inspect {stream.path}", partial(self._inspect, stream)) <= most:
                return True
            if world.now_s > until_s:
                return False

    async def _see_chunks_go(self, stream: _LimitedStream) -> None:
        """Check that the chunks of truncated data are deleted."""
        world = self.world
        while True:
            head = (await world.insist("find the head", partial(self.client.head, stream.path))).positions[0]
            starts = await self._chunks(stream)
            if not (left := chunks_too_many(starts, head)):
                world.counts["limited streams whose chunks went"] += 1
                return
            if world.now_s > world.give_up_s:
                world.problem(f"{stream.path} begins at {head}, and {len(left)} chunks are left: {left[:3]}")
                return
            await asyncio.sleep(1.0)

    async def _chunks(self, stream: _LimitedStream) -> dict[str, int]:
        """Return the chunks of a stream's segment in long-term storage, with the start offset of each."""
        found: dict[str, int] = {}
        segment = segment_name(SCOPE, stream.name, 0)
        for host in self.world.cluster.stores:
            store = self.world.cluster.store(host)
            for container in () if store is None else store.containers:
                after = ""
                while names := await host.run(container.chunks.names(limit=1000, after=after)):
                    after = names[-1]
                    for name in names:
                        origin = chunk_origin(name)
                        if origin is not None and origin.segment == segment:
                            found[name] = origin.offset
        return found

    def _check_passing(self, what: str, error: PenstockError) -> None:
        if not self.world.is_passing(error):
            self.world.problem(f"{self.name} {what}: {error!r}")
