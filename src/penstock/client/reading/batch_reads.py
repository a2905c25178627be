"""`BatchReader`: the events between two cuts of a stream as byte ranges of its segments, read in any order and place.

It works without a reader group: no positions move, and events of one routing key are in order only within a range. The
ranges are plain values, so that tasks, threads or other processes may share the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.client.common.arrow import ArrowRecordBatch, import_arrow, unframe
from penstock.client.common.deadline import within
from penstock.client.common.life_cycle import LifeCycle
from penstock.client.reading.event import Event, EventBatch
from penstock.client.streams.start_positions import Start, checked_start, end_cuts, start_cuts
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.segment_extents import segment_infos
from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchSegmentError,
    PenstockError,
    PositionBeyondEndError,
    SegmentTruncatedError,
)
from penstock.model.events import EVENT_HEADER_LENGTH, EventAssembler, framed_length_at, offsets_of
from penstock.model.names import segment_name, split_scoped_name
from penstock.model.segments import SegmentInfo
from penstock.model.stream_cuts import OFFSET_FUTURE, StreamCut

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Bytes ``[start, end)`` of one segment, which hold whole events. A value: it may be pickled and read elsewhere.

    Attributes:
        stream: ``scope/stream``.
        segment_id: 64-bit segment id.
    """

    stream: str
    segment_id: int
    start: int
    end: int

    @property
    def segment(self) -> str:
        """The segment's full name."""
        return segment_name(*split_scoped_name(self.stream), self.segment_id)

    @property
    def length_bytes(self) -> int:
        """Bytes in the range, with the events' headers."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class _Plan:
    start: StreamCut | None
    end: StreamCut | None
    ranges: Sequence[BatchRange]


class BatchReader(LifeCycle):
    """See the module. Made by `Client.batch`; any number of ranges may be read at once.

    Its ranges do not change: events that come later are after its end.
    """

    def __init__(self, cluster: Cluster, stream: str, plan: _Plan) -> None:
        super().__init__(f"batch reader of {stream}", close_timeout_s=cluster.settings.close_timeout_s)
        self._cluster = cluster
        self._stream = stream
        self._plan = plan

    @property
    def ranges(self) -> Sequence[BatchRange]:
        """The ranges to read, by segment id and offset; none are empty."""
        return self._plan.ranges

    @property
    def start(self) -> StreamCut | None:
        """The cut at which it starts; None if ranges were given."""
        return self._plan.start

    @property
    def end(self) -> StreamCut | None:
        """The cut at which it ends, where a later batch begins. None if ranges were given."""
        return self._plan.end

    async def __aenter__(self) -> Self:
        return self

    async def read(self, part: BatchRange) -> AsyncIterator[EventBatch]:
        """Iterate over the events of a range in order, some hundreds of KiB at a time.

        Raises `SegmentTruncatedError` or `NoSuchSegmentError` if they no longer exist, `CorruptionError`, and
        `InvalidArgumentError` for a range that does not end at the end of an event.
        """
        async for events in self._blocks(part):
            found, at = events.take()
            if found:
                yield EventBatch(part.stream, part.segment_id, found, offsets_of(found, at))

    async def events(self, part: BatchRange) -> AsyncIterator[Event]:
        """Iterate over the events of a range one by one; see `read`."""
        async for batch in self.read(part):
            for event, offset, position in zip(batch.events, batch.offsets, batch.offsets[1:], strict=False):
                yield Event(event, batch.segment_id, offset, batch.stream, position)

    async def arrow(self, part: BatchRange) -> AsyncIterator[ArrowRecordBatch]:
        """As `read`, in Arrow: ``columns: event: binary, segment_id: int64, offset: int64``. Needs ``penstock[arrow]``.

        No Python per event.
        """
        pyarrow, numpy = import_arrow()
        # No whole event is complete before this many bytes, so a long event is assembled only once.
        wanted_bytes = EVENT_HEADER_LENGTH
        async for events in self._blocks(part):
            if events.pending_bytes < wanted_bytes:
                continue
            data, at = events.take_raw()
            found, starts, consumed = unframe(data, source=part.segment, base_offset=at)
            rest = data[consumed:]
            events.give_back(rest)
            if len(found):
                numbers = numpy.full(len(found), part.segment_id, dtype=numpy.int64)
                yield pyarrow.RecordBatch.from_arrays(
                    [found, pyarrow.array(numbers), pyarrow.array(starts + at)],
                    names=["event", "segment_id", "offset"],
                )
            wanted_bytes = framed_length_at(rest, source=part.segment, base_offset=at + consumed) or EVENT_HEADER_LENGTH

    async def read_all(self, range_count: int | None = None) -> AsyncIterator[EventBatch]:
        """Read `range_count` ranges at the same time (None: `batch_range_count_max`); iterate over events as they come.

        Events of one range are in order. Raises as `read`, for the first range that fails.
        """
        count = min(range_count or self._cluster.settings.batch_range_count_max, len(self.ranges))
        if count < 0:
            raise InvalidArgumentError(f"range_count is {range_count}: it must be above 0")
        # Each task has one batch; the tasks that wait for the queue bound the rest.
        ready: asyncio.Queue[EventBatch | Exception | None] = asyncio.Queue(count or 1)
        waiting = iter(self.ranges)

        async def work() -> None:
            try:
                for part in waiting:
                    async for batch in self.read(part):
                        await ready.put(batch)
            except Exception as error:  # noqa: BLE001  # raised by the consumer of the queue
                await ready.put(error)
            else:
                await ready.put(None)

        tasks = [asyncio.get_running_loop().create_task(work(), name=f"{self._what}: {each}") for each in range(count)]
        try:
            while count:
                item = await ready.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    count -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _blocks(self, part: BatchRange) -> AsyncIterator[EventAssembler]:
        """Feed the bytes of a range to an assembler, and yield the assembler after each block."""
        self._check_open()
        events = EventAssembler(part.segment, part.start)
        async with self._cluster.segment_reader(part.segment, part.start, part.end) as reader:
            async for block in reader:
                events.feed(block)
                yield events
                self._check_open()
        events.check()
        if events.pending_bytes or events.offset != part.end:
            raise InvalidArgumentError(
                f"{part.segment}: the range ends at byte {part.end}, inside an event: the last complete event ends at "
                f"byte {events.offset}"
            )


async def open_batch(
    cluster: Cluster,
    stream: str,
    start: Start,
    end: Start,
    range_bytes: int | None,
    ranges: Sequence[BatchRange] | None,
    owner: LifeCycle,
) -> BatchReader:
    """Determine the ranges, unless `ranges` are given. See `Client.batch`."""
    stream = "/".join(split_scoped_name(stream))
    if ranges is not None:
        others = {each.stream for each in ranges} - {stream}
        if others or start is not None or end is not None or range_bytes is not None:
            raise InvalidArgumentError(
                f"batch of {stream}: give ranges of this stream, or else start, end and range_bytes"
            )
        await _check_ends(cluster, ranges)
        plan = _Plan(None, None, tuple(ranges))
    else:
        settings = cluster.settings
        with within(f"plan a batch of {stream}", settings.retry_time_max_s, "retry_time_max_s"):
            plan = await _planned(cluster, stream, start, end, range_bytes)
    opened = BatchReader(cluster, stream, plan)
    opened.open_life(owner)
    return opened


async def _planned(cluster: Cluster, stream: str, start: Start, end: Start, range_bytes: int | None) -> _Plan:
    if range_bytes is not None and range_bytes < 1:
        raise InvalidArgumentError(f"range_bytes is {range_bytes}: it must be above 0")
    starts = await start_cuts(cluster, checked_start(start, [stream]), [stream])
    wanted_end = checked_start("latest" if end is None else end, [stream], "end")
    first, last = starts[stream], (await end_cuts(cluster, wanted_end, starts))[stream]
    ids = sorted(await cluster.controller.segments_between(first, last))
    # Segments that the last cut has not reached lie after the end.
    ids = [each for each in ids if last.positions.get(each) != OFFSET_FUTURE]
    names = [segment_name(first.scope, first.stream, each) for each in ids]
    ranges: list[BatchRange] = []
    for segment_id, name, info in zip(ids, names, await segment_infos(cluster, names), strict=True):
        begin = max(first.positions.get(segment_id, 0), 0)
        behind = last.positions.get(segment_id)
        if begin == behind:
            continue
        end_offset = _checked(name, info, begin, behind)
        borders = [begin, *await _borders(cluster, name, begin, end_offset, range_bytes), end_offset]
        ranges += [BatchRange(stream, segment_id, at, to) for at, to in pairwise(borders) if at < to]
    return _Plan(first, last, tuple(ranges))


async def _check_ends(cluster: Cluster, ranges: Sequence[BatchRange]) -> None:
    """Raise `PositionBeyondEndError` for a range that was planned before the store was restored to an earlier state."""
    ends: dict[str, int] = {}
    for each in ranges:
        ends[each.segment] = max(each.end, ends.get(each.segment, 0))
    for (name, end), info in zip(ends.items(), await segment_infos(cluster, list(ends)), strict=True):
        if isinstance(info, NoSuchSegmentError | SegmentTruncatedError):
            continue  # Raised by the read of that range.
        if isinstance(info, PenstockError):
            raise info
        if end > info.length:
            raise PositionBeyondEndError(name, position=end, end=info.length)


def _checked(name: str, info: SegmentInfo | PenstockError, begin: int, behind: int | None) -> int:
    """Return the end of the range in one segment: `behind`, or the end of the segment, which takes no more data."""
    if isinstance(info, NoSuchSegmentError | SegmentTruncatedError):
        info.add_note(f"data of {name} that the batch needs was truncated (retention, or by hand)")
    if isinstance(info, PenstockError):
        raise info
    if begin < info.start_offset:
        raise SegmentTruncatedError(name, start_offset=info.start_offset, offset=begin)
    if behind is None and not info.is_sealed:
        raise InvalidArgumentError(f"{name} is open, but the end of the batch has no position in it")
    return info.length if behind is None else behind


async def _borders(cluster: Cluster, segment: str, begin: int, end: int, range_bytes: int | None) -> list[int]:
    """Return where appends began, about `range_bytes` apart; none if that is None."""
    borders: list[int] = []
    at = begin
    while range_bytes is not None and end - at > range_bytes:
        at = await cluster.segments.locate_offset(segment, at + range_bytes)
        if at >= end:
            break
        borders.append(at)
    return borders
