"""`StreamEvents`: the events of a stream from one cut to another, or without end, without a reader group.

No state is kept on the server, and other readers are unaffected. Events of one segment come in order, and those of a
segment after all of the segments that it replaces: hence those of one routing key come in the order written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from penstock.client.client import Client
from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.low_level import controller_of, segments_of
from penstock.client.reading.event import EventBatch
from penstock.client.transport.read_ahead import ReadAhead
from penstock.client.transport.segment_fetch import SegmentFetch
from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    NoSuchSegmentError,
    SegmentTruncatedError,
)
from penstock.model.events import EventAssembler, offsets_of
from penstock.model.names import SegmentId, segment_epoch, segment_name, split_scoped_name
from penstock.model.routing import routing_key_hash
from penstock.model.stream_cuts import OFFSET_FUTURE, StreamCut

#: Segments read ahead when they are handed out one after the other.
_OPEN_COUNT_MAX = 8

#: Called with a segment's name, the position before and after a gap of truncated events.
OnTruncated = Callable[[str, int, int], None]


class StreamEvents:
    """See the module. Iterate over `batches`, then `close`.

    Args:
        start: where to begin.
        end: where to end; None: follow the stream until it is sealed.
        key: only the segments that events of this routing key go to. Events of other keys may be among them: events
            are stored without their keys.
        on_truncated: called when events were truncated before they were read; reading resumes after them.
    """

    def __init__(
        self,
        client: Client,
        start: StreamCut,
        end: StreamCut | None,
        *,
        key: str | None = None,
        on_truncated: OnTruncated,
    ) -> None:
        self._client = client
        self._scope = start.scope
        self._stream = start.stream
        self._start = start
        self._end = end
        self._key_hash = None if key is None else routing_key_hash(key)
        self._on_truncated = on_truncated
        settings = client.settings
        self._read_ahead = ReadAhead(
            settings.reader_read_ahead_bytes_max, settings.read_bytes * settings.read_ahead_block_count
        )
        self._open_count_max = settings.reader_segment_count_max if end is None else _OPEN_COUNT_MAX
        self._queue: deque[int] = deque()
        self._open: deque[_OpenSegment] = deque()
        self._seen: set[int] = set()
        self._ended: set[int] = set()
        #: Segments to come -> the segments that they wait for.
        self._coming: dict[int, set[int]] = {}
        self._ready = asyncio.Event()

    async def batches(self) -> AsyncIterator[EventBatch]:
        """Yield the events as they come; with an `end` one segment after the other, by age and number.

        Raises `CorruptionError` when the bytes of a segment are not events, and what reading raises.
        """
        await self._plan()
        while self._queue or self._open:
            while self._queue and len(self._open) < self._open_count_max:
                self._open.append(self._opened(self._queue.popleft()))
            self._ready.clear()
            is_new = False
            for _ in range(len(self._open) if self._end is None else 1):
                source = self._open[0]
                batch = source.take()
                if batch is not None:
                    is_new = True
                    yield batch
                if source.is_at_end:
                    is_new = True
                    self._open.popleft()
                    source.close()
                    await self._follow(source.segment_id)
                elif self._end is None:
                    self._open.rotate(-1)
            if not is_new:
                await self._ready.wait()

    @property
    def cut(self) -> StreamCut | None:
        """The position after the batches that were yielded, without an `end` and a `key`.

        None while segments that replace others cannot be read yet: their keys have no position then. Empty positions:
        the stream is sealed and read.
        """
        if self._coming:
            return None
        positions = {segment: max(self._start.positions.get(segment, 0), 0) for segment in self._queue}
        positions.update({source.segment_id: source.position for source in self._open})
        return StreamCut(self._scope, self._stream, positions)

    async def close(self) -> None:
        """Stop reading ahead. Iterations end."""
        for source in self._open:
            source.close()
        self._open.clear()
        self._queue.clear()

    # -- which segments -----------------------------------------------------------------------------------------

    async def _plan(self) -> None:
        starts = [segment for segment, offset in self._start.positions.items() if offset != OFFSET_FUTURE]
        if self._end is None:
            self._add(await self._of_key(starts))
            return
        reached = {segment for segment, offset in self._end.positions.items() if offset != OFFSET_FUTURE}
        unreached = set(self._end.positions) - reached
        for segment in reached & set(starts):
            if self._end.positions[segment] < self._start.positions[segment]:
                raise InvalidArgumentError(
                    f"the end is before the start: segment {segment} would be read from "
                    f"{self._start.positions[segment]} to {self._end.positions[segment]}"
                )
        if segment_epoch(min(starts, default=0)) > segment_epoch(max(self._end.positions, default=0)):
            raise InvalidArgumentError("the end is before the start: all of its segments are older")
        between = set(await controller_of(self._client).segments_between(self._start, self._end))
        self._add(await self._of_key(sorted(between - unreached)))

    async def _of_key(self, segments: Sequence[int]) -> Sequence[int]:
        """Return those of `segments` that the routing key goes to, if one was given."""
        if self._key_hash is None:
            return segments
        ranges: dict[int, SegmentRange] = {}
        for epoch in sorted({segment_epoch(segment) for segment in segments}):
            for each in await controller_of(self._client).epoch_segments(self._scope, self._stream, epoch):
                ranges[each.segment_id] = each
        return [segment for segment in segments if segment in ranges and self._takes_key(ranges[segment])]

    def _takes_key(self, segment: SegmentRange) -> bool:
        return self._key_hash is None or segment.key_low <= self._key_hash < segment.key_high

    def _add(self, segments: Sequence[int]) -> None:
        for segment in segments:
            if segment not in self._seen:
                self._seen.add(segment)
                self._queue.append(segment)

    async def _follow(self, segment_id: int) -> None:
        """Note that a segment was read to its end, and continue with those that waited for it."""
        self._ended.add(segment_id)
        if self._end is not None:
            return  # The queue has all segments to read, the older ones first.
        following = await controller_of(self._client).successors(self._scope, self._stream, SegmentId(segment_id))
        for each in following:
            if self._takes_key(each.segment):
                self._coming.setdefault(each.segment.segment_id, set(each.predecessors))
        # Of one key there is one segment at a time; its others are not read here at all.
        is_free = self._key_hash is not None
        free = sorted(segment for segment, before in self._coming.items() if is_free or before <= self._ended)
        for segment in free:
            del self._coming[segment]
        self._add(free)

    def _opened(self, segment: int) -> _OpenSegment:
        ends: Mapping[int, int] = {} if self._end is None else self._end.positions
        return _OpenSegment(
            self._client,
            f"{self._scope}/{self._stream}",
            segment,
            max(self._start.positions.get(segment, 0), 0),
            ends.get(segment),
            self._read_ahead,
            self._ready.set,
            self._on_truncated,
        )


class _OpenSegment:
    """One segment as batches of whole events."""

    def __init__(
        self,
        client: Client,
        stream: str,
        segment_id: int,
        offset: int,
        end_offset: int | None,
        read_ahead: ReadAhead,
        on_ready: Callable[[], None],
        on_truncated: OnTruncated,
    ) -> None:
        self.segment_id = segment_id
        self._client = client
        self._stream = stream
        self._name = segment_name(*split_scoped_name(stream), segment_id)
        self._end_offset = end_offset
        self._read_ahead = read_ahead
        self._on_ready = on_ready
        self._on_truncated = on_truncated
        self._is_gone = False
        self._begin(offset)

    def _begin(self, offset: int) -> None:
        self._assembler = EventAssembler(self._name, offset)
        self._fetch = SegmentFetch(
            segments_of(self._client), self._name, offset, self._end_offset, self._client.settings,
            on_ready=self._on_ready, read_ahead=self._read_ahead, missing_bytes=lambda: self._assembler.missing_bytes,
        )  # fmt: skip

    @property
    def position(self) -> int:
        """Offset after the events that were taken."""
        return self._assembler.offset

    @property
    def is_at_end(self) -> bool:
        """True when everything was taken, or the segment is truncated away as a whole."""
        return self._is_gone or (self._fetch.is_at_end and not self._assembler.pending_bytes)

    def take(self) -> EventBatch | None:
        """Return the next whole events, or None if there are none now. Raises as `StreamEvents.batches`."""
        while not self._is_gone:
            if not self._assembler.missing_bytes:
                # The bytes after the events taken last are not an event.
                self._assembler.check()
            if self._fetch.is_taken_to_tail:
                self._assembler.check_end("the segment")
            try:
                block = self._fetch.take()
            except NoSuchSegmentError:
                self._is_gone = True
                return None
            except SegmentTruncatedError as error:
                self._skip_to(error.start_offset)
                return None
            if block is None:
                break
            before = self._assembler.pending_bytes + len(block)
            self._assembler.feed(block)
            events, start = self._assembler.take()
            self._fetch.hand_out(before - self._assembler.pending_bytes)
            if events:
                return EventBatch(self._stream, self.segment_id, events, offsets_of(events, start))
        if not self._is_gone and self._fetch.is_at_end and self._assembler.pending_bytes:
            what = "the segment is sealed" if self._end_offset is None else "the end position is reached"
            raise CorruptionError(
                self._name, self._assembler.offset, f"{what}, but {self._assembler.pending_bytes} bytes into an event"
            )
        return None

    def _skip_to(self, start_offset: int) -> None:
        self._on_truncated(self._name, self._assembler.offset, start_offset)
        self.close()
        if self._end_offset is not None and start_offset >= self._end_offset:
            self._is_gone = True
            return
        self._begin(start_offset)

    def close(self) -> None:
        """Stop reading ahead."""
        self._fetch.stop()
