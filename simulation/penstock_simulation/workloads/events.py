"""Event writers, readers of a group, and the final full read of a stream."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial

from penstock.client.client import Client
from penstock.client.groups.reader import Reader
from penstock.client.groups.reader_group import ReaderGroup
from penstock.client.writing.ack import AckState, when_done
from penstock.client.writing.event_writer import EventWriter
from penstock.model.errors import (
    ControllerUnavailableError,
    CorruptionError,
    InvalidArgumentError,
    MetadataConflictError,
    OutcomeUnknownError,
    PenstockError,
    SegmentTruncatedError,
)
from penstock.model.events import EventAssembler, offsets_of
from penstock.model.names import segment_name, split_scoped_name
from penstock.model.policies import Scaling
from penstock_simulation.checks.history import EventSeen, FullRead, Invocation, WriteEvent
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import Workload, World

_READ_BYTES = 16 * 1024


def make_event(stream: str, writer: str, key: str, number: int, padding: bytes) -> bytes:
    """Return an event with its key, writer and number. Unique by `writer` and `number`."""
    return f"{stream}|{writer}|{key}|{number}|".encode() + padding


def key_of(event: bytes) -> str:
    """Return the routing key stored in an event, or a text that equals no key."""
    parts = event.split(b"|", 3)
    return parts[2].decode() if len(parts) == 4 else f"not an event: {event[:40]!r}"


async def is_at_the_end(client: Client, group: ReaderGroup, stream: str) -> bool:
    """Return whether a group has read all of a stream. Segments that it does not know yet are not counted as unread."""
    if await group.unread_bytes():
        return False
    tail = await client.tail(stream)
    return tail.positions.keys() <= (await group.stream_cuts())[stream].positions.keys()


async def read_fully(workload: Workload, stream: str, *, to_whole_tail: bool = False) -> None:
    """Read a stream from its head to its tail and record that as a `FullRead`.

    A segment is read after all of its predecessors, so that the events of each key come in order. With `to_whole_tail`
    other clients may write and commit concurrently.
    """
    world, client = workload.world, workload.client
    history = world.history
    world.full_reads += 1
    read = f"full-{world.full_reads}"
    invocation = history.invoke(workload.name, FullRead(stream, read, is_settled=not to_whole_tail))
    ends: Mapping[int, int] = {}
    if to_whole_tail:
        tail = partial(client.tail, stream, whole_transactions=True)
        ends = (await world.insist(f"whole tail of {stream}", tail)).positions
    head = await world.insist(f"head of {stream}", partial(client.head, stream))
    ready = dict(head.positions)
    #: For each segment with predecessors, those that have not been read yet.
    missing: dict[int, set[int]] = {}
    while ready:
        number = min(ready)
        if not await _read_segment(workload, stream, read, number, ready.pop(number), ends.get(number)):
            return
        if number in ends:
            continue
        following = await world.insist(
            f"successors of {number} in {stream}", partial(client.successors, stream, number)
        )
        for successor, predecessors in following.items():
            left = missing.setdefault(successor, set(predecessors))
            left.discard(number)
            if not left:
                ready[successor] = 0
    history.ok(invocation)


async def _read_segment(
    workload: Workload, stream: str, read: str, number: int, start: int, end: int | None = None
) -> bool:
    """Read a segment from `start`, which may be before its head, to `end`; return whether it holds whole events."""
    world, client = workload.world, workload.client
    segment = segment_name(*split_scoped_name(stream), number)
    info = await world.insist(f"info of {segment}", partial(client._segment_client.segment_info, segment))
    offset = max(start, info.start_offset)
    assembler = EventAssembler(segment, offset)
    end = info.length if end is None else end
    while offset < end:
        length = min(_READ_BYTES, end - offset)
        data = await world.insist(f"read of {segment}", partial(client._segment_client.read, segment, offset, length))
        block = data.joined()
        if not block:
            world.problem(f"{segment}: read at {offset} came empty before the expected end {end}")
            return False
        offset += len(block)
        try:
            assembler.feed(block)
            events, first = assembler.take()
        except CorruptionError as error:
            world.problem(f"{segment}: what was read are not events: {error}")
            return False
        for event, at in zip(events, offsets_of(events, first), strict=False):
            world.history.see(workload.name, EventSeen(stream, read, segment, at, event, key_of(event)))
    if assembler.pending_bytes:
        world.problem(f"{segment}: ends {assembler.pending_bytes} bytes into an event")
    return True


async def scale_somehow(workload: Workload, stream: str) -> None:
    """Split a segment of a stream, or merge two neighbours. No other client scales the stream."""
    world, client, rng = workload.world, workload.client, workload.rng
    try:
        current = sorted(await client.segments_of(stream), key=lambda segment: segment.key_low)
        at = rng.randrange(len(current))
        pair = current[at : at + 2]
        if len(pair) == 2 and rng.random() < len(current) / 6:
            ranges = [(pair[0].key_low, pair[1].key_high)]
        else:
            pair = pair[:1]
            middle = (pair[0].key_low + pair[0].key_high) / 2
            ranges = [(pair[0].key_low, middle), (middle, pair[0].key_high)]
        await client.scale_stream(stream, seal=[segment.segment_id for segment in pair], key_ranges=ranges)
    except (InvalidArgumentError, MetadataConflictError):
        # An earlier attempt whose reply was lost did it, or a rolling commit has changed the segments.
        world.counts["stream scales refused"] += 1
    except PenstockError as error:
        if not world.is_passing(error):
            world.problem(f"{workload.name} cannot scale {stream}: {error!r}")
    else:
        world.counts["stream scales"] += 1


class StreamKeeper(Workload):
    """Creates a stream, and reads it back at the end.

    If `is_truncated`, it truncates the stream now and then; if `is_scaled`, it splits or merges segments. Not both: the
    head of a stream must be within one epoch here.
    """

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, stream: str, segment_count: int,
        rollover_bytes: int, is_truncated: bool = False, is_scaled: bool = False, scale_gap_s: float = 3.0,
    ) -> None:  # fmt: skip
        super().__init__(world, host, name, rng)
        self.stream = stream
        self._is_scaled = is_scaled
        self._scale_gap_s = scale_gap_s
        self._segment_count = segment_count
        self._rollover_bytes = rollover_bytes
        self.is_truncated = is_truncated

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        await self.client.create_stream(
            self.stream,
            scaling=Scaling.fixed(self._segment_count),
            rollover_bytes=self._rollover_bytes,
            exist_ok=True,
        )

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.is_truncated and self.world.is_writing:
            await self.rest(4.0)
            try:
                cut = await self.client.tail(self.stream)
                await self.client.truncate_stream(cut)
            except PenstockError as error:
                # Another attempt at a later cut follows. After a lost reply either head is valid.
                if not self.world.is_passing(error):
                    self.world.problem(f"{self.name} cannot truncate {self.stream}: {error!r}")
                    return
                continue
            self.world.counts["stream truncations"] += 1
        while self._is_scaled and self.world.is_writing:
            await self.rest(self._scale_gap_s)
            await scale_somehow(self, self.stream)

    async def verify(self) -> None:
        """See `Workload.verify`."""
        await read_fully(self, self.stream)


class Writer(Workload):
    """Writes keyed events through a sequence of `EventWriter`s."""

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, stream: str, keys: tuple[str, ...],
        events_per_s: float,
    ) -> None:  # fmt: skip
        super().__init__(world, host, name, rng)
        self._stream = stream
        self._keys = keys
        self._events_per_s = events_per_s
        self._number = 0

    async def run(self) -> None:
        """See `Workload.run`."""
        while self.world.is_writing:
            try:
                writer = await self.client.event_writer(self._stream)
            except ControllerUnavailableError:
                await self.rest(0.5)
                continue
            await self._write(writer)

    async def _write(self, writer: EventWriter) -> None:
        world, rng = self.world, self.rng
        until_s = world.now_s + rng.uniform(5.0, 40.0)
        try:
            while world.is_writing and world.now_s < until_s:
                for _ in range(1 if rng.random() < 0.7 else rng.randint(2, 8)):
                    key = rng.choice(self._keys)
                    self._number += 1
                    event = make_event(self._stream, self.name, key, self._number, world.padding(rng))
                    call = world.history.invoke(self.name, WriteEvent(self._stream, key, event))
                    world.counts["events"] += 1
                    try:
                        ack = await writer.write(event, key)
                    except PenstockError as error:
                        self._failed(call, error)
                        return
                    when_done(ack, partial(self._settled, call, ack))
                await self.rest(2.0 / self._events_per_s)
            await writer.flush()
        except PenstockError:
            pass  # The acknowledgement of each event has the error.
        finally:
            await writer.abandon()

    def _settled(self, call: Invocation, ack: AckState) -> None:
        if ack.error is None:
            self.world.history.ok(call)
        else:
            self._failed(call, ack.error)

    def _failed(self, call: Invocation, error: PenstockError) -> None:
        self.world.history.unknown(call, error)
        # This is the expected error where a segment was sealed and no controller returns its successors for long.
        if not self.world.is_passing(error):
            self.world.problem(f"{self.name} cannot write to {self._stream}: {error!r}")


class WriterCrowd(Writer):
    """Keeps many event writers open and writes with one of them at a time; after a fault all of them reconnect.

    Each has its own key, whose events must stay in order.
    """

    def __init__(
        self, world: World, host: Host, name: str, rng: random.Random, *, stream: str, writer_count: int,
        events_per_s: float,
    ) -> None:  # fmt: skip
        super().__init__(world, host, name, rng, stream=stream, keys=(), events_per_s=events_per_s)
        self._writer_count = writer_count
        self._writers: list[tuple[EventWriter, str]] = []

    async def run(self) -> None:
        """See `Workload.run`."""
        world, rng = self.world, self.rng
        try:
            while world.is_writing:
                await self.rest(1.0 / self._events_per_s)
                if len(self._writers) < self._writer_count:
                    try:
                        writer = await self.client.event_writer(self._stream)
                    except ControllerUnavailableError:
                        continue
                    self._writers.append((writer, f"{self.name}-{self._number}"))
                at = rng.randrange(len(self._writers))
                writer, key = self._writers[at]
                if not await self._write_one(writer, key) or rng.random() < 0.05:
                    del self._writers[at]
                    await self._leave(writer)
        finally:
            while self._writers:
                await self._leave(self._writers.pop()[0])

    async def _write_one(self, writer: EventWriter, key: str) -> bool:
        self._number += 1
        event = make_event(self._stream, self.name, key, self._number, self.world.padding(self.rng))
        call = self.world.history.invoke(self.name, WriteEvent(self._stream, key, event))
        self.world.counts["events of crowds"] += 1
        try:
            ack = await writer.write(event, key)
        except PenstockError as error:
            self._failed(call, error)
            return False
        when_done(ack, partial(self._settled, call, ack))
        return True

    async def _leave(self, writer: EventWriter) -> None:
        try:
            await writer.flush()
        except PenstockError:
            pass  # The acknowledgement of each event has the error.
        finally:
            await writer.abandon()


class GroupReader(Workload):
    """A reader of a group. All readers of a group record one pass: no reader dies, so it is exactly once.

    `is_leader`: at the end it reads until nothing is left; the group must then have read everything.
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

    async def prepare(self) -> None:
        """See `Workload.prepare`."""
        if self._is_leader:
            await self.client.reader_group(self._group, [self._stream])

    async def run(self) -> None:
        """See `Workload.run`. Leaves the group at the end, and now and then before."""
        world = self.world
        group = await world.insist(f"join {self._group}", self._join)
        while world.is_writing and self._group not in world.broken_groups:
            name = f"{self.name}-{int(world.now_s * 1e6)}"
            reader = await world.insist(f"{self.name} starts to read", partial(group.reader, name))
            until_s = min(world.stop_s, world.now_s + self.rng.uniform(5.0, 60.0))
            while world.now_s < until_s and self._group not in world.broken_groups:
                await self._take(reader, min(1.0, until_s - world.now_s + 0.01))
            await world.insist(f"{self.name} leaves", reader.close)
            world.counts["reader hand-overs"] += 1

    async def verify(self) -> None:
        """See `Workload.verify`."""
        world = self.world
        if not self._is_leader or self._group in world.broken_groups:
            return
        invocation = world.history.invoke(self.name, FullRead(self._stream, self._read))
        group = await world.insist(f"join {self._group}", self._join)
        reader = await world.insist(f"{self.name} starts to read", partial(group.reader, f"{self.name}-last"))
        while True:
            if await self._take(reader, 0.5) and self._group not in world.broken_groups:
                continue
            if self._group in world.broken_groups:
                return
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

    async def _take(self, reader: Reader, timeout_s: float) -> bool:
        world = self.world
        try:
            event = await reader.read(timeout_s)
        except (SegmentTruncatedError, OutcomeUnknownError, ControllerUnavailableError):
            return True
        except PenstockError as error:
            if not world.is_passing(error) or world.now_s > world.give_up_s:
                world.problem(f"{self.name} cannot read {self._stream}: {error!r}")
                raise
            world.broken_groups[self._group] = None
            return True
        if event is None:
            return False
        segment = segment_name(*split_scoped_name(event.stream), event.segment_id)
        seen = EventSeen(self._stream, self._read, segment, event.offset, event.data, key_of(event.data))
        world.history.see(self.name, seen)
        world.counts["events read"] += 1
        return True
