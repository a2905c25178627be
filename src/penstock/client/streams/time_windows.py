"""Time windows: the bounds of a position in a stream, in the time that the stream's writers have noted.

The rules are functions over values; `StreamMarks` reads the watermarks for them, as far as they are needed. See
``docs/watermarks.md``. Source: Pravega, ``WatermarkReaderImpl``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.client.common.deadline import within
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import NoSuchSegmentError, NoSuchStreamError, SegmentTruncatedError
from penstock.model.events import EVENT_HEADER_LENGTH, EventAssembler
from penstock.model.names import MARK_STREAM_PREFIX, parse_segment_name, segment_epoch, split_scoped_name
from penstock.model.segments import MARK_ATTRIBUTE
from penstock.model.stream_cuts import StreamCut
from penstock.model.watermarks import MarkedSegment, Watermark

#: Watermarks, in bytes, that are read at once, and read ahead of a reader.
_READ_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The bounds of a reader's time, in the unit of the writers' times.

    Attributes:
        lower_bound: no event will come that a writer noted as of this time or before. None: nothing is known yet.
        upper_bound: the greatest time that a writer had noted when the next events were written. None: they are newer
            than the last watermark.
    """

    lower_bound: int | None
    upper_bound: int | None


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """A segment that is read: its keys `[key_start, key_end)`, and the position in bytes."""

    segment_id: int
    key_start: float
    key_end: float
    offset: int


def _pairs(position: Sequence[PlacedSegment], mark: Watermark) -> Iterator[tuple[PlacedSegment, MarkedSegment]]:
    """Yield pairs with common keys. A cut's segments do not overlap; only few segments of a position do."""
    cut = sorted(mark.segments, key=lambda segment: segment.key_start)
    first = 0
    for placed in sorted(position, key=lambda segment: segment.key_start):
        while first < len(cut) and cut[first].key_end <= placed.key_start:
            first += 1
        index = first
        while index < len(cut) and cut[index].key_start < placed.key_end:
            yield placed, cut[index]
            index += 1


def is_passed(position: Sequence[PlacedSegment], mark: Watermark) -> bool:
    """Return whether the position is entirely at or after the mark's cut: everything before the cut was read."""
    return all(
        (placed.segment_id, placed.offset) >= (marked.segment_id, marked.offset)
        for placed, marked in _pairs(position, mark)
    )


def is_ahead(position: Sequence[PlacedSegment], mark: Watermark) -> bool:
    """Return whether the position is entirely at or before the mark's cut, and has not passed it."""
    return not is_passed(position, mark) and all(
        (placed.segment_id, placed.offset) <= (marked.segment_id, marked.offset)
        for placed, marked in _pairs(position, mark)
    )


class StreamMarks:
    """The watermarks of one stream, read forward in step with a reader. Use by one task at a time."""

    def __init__(self, cluster: Cluster, stream: str) -> None:
        self._cluster = cluster
        self._name = stream
        self._scope, self._stream = split_scoped_name(stream)
        self._segment = ""
        self._events: EventAssembler | None = None
        self._passed: Watermark | None = None
        self._ahead: deque[Watermark] = deque()
        self._keys: dict[int, tuple[float, float]] = {}
        # When the end of the watermarks was reached.
        self._tail_s = float("-inf")

    async def window(self, position: Mapping[int, int]) -> TimeWindow:
        """Return the window of a position (segment -> offset). Reads the watermarks up to the next one.

        At their end it checks for new ones once per `reader_time_window_refresh_s`.
        """
        what = f"read the watermarks of {self._name}"
        with within(what, self._cluster.settings.retry_time_max_s, "retry_time_max_s"):
            placed = await self._placed(position)
            if self._passed is not None and not is_passed(placed, self._passed):
                self._begin_again()
            while True:
                while self._ahead and is_passed(placed, self._ahead[0]):
                    self._passed = self._ahead.popleft()
                # Checking the last one is enough: the cuts grow.
                if self._ahead and is_ahead(placed, self._ahead[-1]):
                    break
                found = [mark for _, mark in await self.read()]
                if not found:
                    break
                self._ahead.extend(found)
        upper = next((mark.upper_bound for mark in self._ahead if is_ahead(placed, mark)), None)
        return TimeWindow(None if self._passed is None else self._passed.lower_bound, upper)

    async def read(self) -> list[tuple[int, Watermark]]:
        """Return the next watermarks, each with its offset; none if there are none, or the stream has none."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._tail_s < self._cluster.settings.reader_time_window_refresh_s:
            return []
        try:
            if not self._segment:
                self._segment = await self._find()
            found = await self._read_on()
        except (NoSuchStreamError, NoSuchSegmentError):
            # Deleted, or created again: the watermarks read so far are of another life.
            self._begin_again()
            self._segment = ""
            found = []
        if not found:
            self._tail_s = now_s
        return found

    async def _find(self) -> str:
        mark_stream = MARK_STREAM_PREFIX + self._stream
        segments = await self._cluster.controller.current_segments(self._scope, mark_stream)
        if not segments:
            raise NoSuchStreamError(f"stream {self._scope}/{mark_stream} has no segment")
        return segments[0].name

    async def _read_on(self) -> list[tuple[int, Watermark]]:
        segments = self._cluster.segments
        while True:
            info = await segments.segment_info(self._segment)
            if self._events is None or self._events.offset < info.start_offset:
                # At the beginning; or the watermarks in between were truncated, and so were their events.
                self._events = EventAssembler(self._segment, info.start_offset)
            found: list[tuple[int, Watermark]] = []
            try:
                while not found and self._events.end_offset < info.length:
                    at = self._events.end_offset
                    read = await segments.read(self._segment, at, min(_READ_BYTES, info.length - at))
                    data = read.joined()
                    if not data:
                        break
                    self._events.feed(data)
                    events, at = self._events.take()
                    for event in events:
                        found.append((at, Watermark.decode(event, segment=self._segment, offset=at)))
                        at += EVENT_HEADER_LENGTH + len(event)
                if not found:
                    self._events.check()
            except SegmentTruncatedError:
                self._events = None
                continue
            return found

    def _begin_again(self) -> None:
        """Drop all watermarks: the position moved back."""
        self._events = None
        self._passed = None
        self._ahead.clear()
        self._tail_s = float("-inf")

    async def _placed(self, position: Mapping[int, int]) -> list[PlacedSegment]:
        """Add the keys of segments that are new here: one request for each epoch in which one was created."""
        for mark in (self._passed, *self._ahead):
            if mark is not None:
                self._keys.update(
                    (each.segment_id, (each.key_start, each.key_end))
                    for each in mark.segments
                    if each.segment_id in position
                )
        self._keys = {segment: keys for segment, keys in self._keys.items() if segment in position}
        for segment in position:
            if segment not in self._keys:
                found = await self._cluster.controller.epoch_segments(self._scope, self._stream, segment_epoch(segment))
                self._keys.update(
                    (each.segment_id, (each.key_low, each.key_high)) for each in found if each.segment_id in position
                )
        return [PlacedSegment(segment, *self._keys[segment], offset) for segment, offset in position.items()]


async def latest_watermark(cluster: Cluster, stream: str) -> Watermark | None:
    """Return the newest watermark of a stream; None if it has none, or the stream does not exist.

    Read from the controller's mark, which is the last but one: 4 requests for any number of watermarks.
    """
    scope, name = split_scoped_name(stream)
    last = None
    with within(f"read the latest watermark of {stream}", cluster.settings.retry_time_max_s, "retry_time_max_s"):
        try:
            found = await cluster.controller.current_segments(scope, MARK_STREAM_PREFIX + name)
            if not found:
                return None
            segment = found[0].name
            info = await cluster.segments.segment_info(segment)
            mark = await cluster.segments.get_attribute(segment, MARK_ATTRIBUTE)
            at = mark if info.start_offset <= mark < info.length else info.start_offset
            events = EventAssembler(segment, at)
            while events.end_offset < info.length:
                read = await cluster.segments.read(segment, events.end_offset, info.length - events.end_offset)
                data = read.joined()
                if not data:
                    break
                events.feed(data)
                whole, at = events.take()
                for event in whole:
                    last = Watermark.decode(event, segment=segment, offset=at)
                    at += EVENT_HEADER_LENGTH + len(event)
            events.check()
        except (NoSuchStreamError, NoSuchSegmentError):
            return None
    return last


async def cut_at_noted_time(cluster: Cluster, stream: str, time: int) -> StreamCut | None:
    """Return a cut with no event after it that a writer noted as of `time` or before; None while there is none.

    Reads the stream's watermarks from the oldest one on.
    """
    marks = StreamMarks(cluster, stream)
    what = f"find the position of {stream} at a noted time"
    with within(what, cluster.settings.retry_time_max_s, "retry_time_max_s"):
        while found := await marks.read():
            for _, mark in found:
                if mark.lower_bound >= time:
                    return StreamCut(*split_scoped_name(stream), mark.positions)
    return None


def positions_of_stream(positions: Mapping[str, int], stream: str) -> dict[int, int]:
    """Return the positions of one stream, by segment id, from positions by full names."""
    found = {}
    for name, offset in positions.items():
        scope, its_stream, segment = parse_segment_name(name)
        if f"{scope}/{its_stream}" == stream:
            found[int(segment)] = offset
    return found
