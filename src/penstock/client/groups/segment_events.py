"""`SegmentEvents`: one segment as chunks of whole events, read ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.client.groups.group_state import HeldSegment, Redelivery
from penstock.client.reading.event import EventChunk
from penstock.client.settings import ClientSettings
from penstock.client.transport.read_ahead import ReadAhead
from penstock.client.transport.segment_fetch import SegmentFetch
from penstock.model.errors import CorruptionError, InvalidArgumentError, NoSuchSegmentError
from penstock.model.events import EventAssembler, offsets_of
from penstock.model.names import parse_segment_name
from penstock.model.segments import Segments


class StoredPosition:
    """The position of a segment in the group's record, in bytes, as far as its reader knows."""

    __slots__ = ("offset",)

    def __init__(self, offset: int) -> None:
        self.offset: int = offset


class SegmentEvents:
    """Events of one segment that a reader holds, from its position, which must be the start of an event.

    Attributes:
        segment: full name.
        stream: ``scope/stream``.
        turn: the number of the segment's assignment to this reader.
        stored: the position in the group's record.
        committed: the position committed by the application, for readers with manual positions.
        is_queued: it is in the reader's queue of segments with events to take.
        is_leaving: the reader is to release it: none of its events are returned any more.
        failing_since_s: since when reading it fails; None while it works. See also `failing_reads`.
        successors: its successors (segment -> all their predecessors), once requested.
    """

    def __init__(
        self,
        segments: Segments,
        segment: str,
        held: HeldSegment,
        settings: ClientSettings,
        on_ready: Callable[[SegmentEvents], None],
        read_ahead: ReadAhead,
        redelivery: Redelivery | None = None,
        end_offset: int | None = None,
    ) -> None:
        self.segment = segment
        scope, stream, number = parse_segment_name(segment)
        self.stream: str = f"{scope}/{stream}"
        self.segment_id: int = int(number)
        self.turn: int = held.turn
        self.stored: StoredPosition = StoredPosition(held.offset)
        self.committed: int = held.offset
        self.is_queued = False
        self.is_leaving = False
        self.failing_since_s: float | None = None
        self.successors: dict[str, Sequence[str]] | None = None
        self._segments = segments
        self._settings = settings
        self._on_ready = on_ready
        self._read_ahead = read_ahead
        self._redelivery = redelivery
        # The group's end in this segment, if it has one.
        self._end_offset = end_offset
        self._is_gone = False
        # Events that were taken and come next: the rest of a chunk.
        self._put_back: EventChunk | None = None
        self._start(held.offset)

    def _start(self, offset: int) -> None:
        self._assembler = EventAssembler(self.segment, offset)
        # A position after the end counts as the end: truncation may lead there.
        end_offset = None if self._end_offset is None else max(self._end_offset, offset)
        self._fetch = SegmentFetch(
            self._segments, self.segment, offset, end_offset, self._settings,
            on_ready=lambda: self._on_ready(self), read_ahead=self._read_ahead,
            missing_bytes=lambda: self._assembler.missing_bytes,
        )  # fmt: skip

    @property
    def offset(self) -> int:
        """Where the next event to take starts."""
        return self._assembler.offset if self._put_back is None else self._put_back.next_offset

    @property
    def is_at_end(self) -> bool:
        """True when everything was taken: the group ends here, or the segment is sealed, or was truncated away."""
        if self._put_back is not None:
            return False
        return self._is_gone or (self._fetch.is_at_end and not self._assembler.pending_bytes)

    @property
    def has_failed(self) -> bool:
        """Whether reading has ended with an error, which the next `take` raises once it has returned what was read."""
        return self._fetch.has_failed

    def is_reading_at(self, length: int) -> bool:
        """Whether reads work: none has failed, and bytes were read, or there are none to read up to `length`."""
        return self._fetch.is_working_at(length)

    @property
    def is_gone(self) -> bool:
        """True when the segment no longer existed: truncated away, or deleted with its stream."""
        return self._is_gone

    def take(self) -> EventChunk | None:
        """Return the next whole events, or None if there are none now.

        Raises `SegmentTruncatedError`, or `CorruptionError` if the bytes are not events. A segment that no longer
        exists is at its end.
        """
        if self._put_back is not None:
            chunk, self._put_back = self._put_back, None
            return chunk
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
            if block is None:
                break
            self.failing_since_s = None
            before = self._assembler.pending_bytes + len(block)
            self._assembler.feed(block)
            events, start = self._assembler.take()
            self._fetch.hand_out(before - self._assembler.pending_bytes)
            if events:
                return self._chunk(events, start)
        if not self._is_gone and self._fetch.is_at_end and self._assembler.pending_bytes:
            if self._end_offset == self._fetch.fetched_to:
                raise InvalidArgumentError(
                    f"{self.segment}: the group's end {self._end_offset} is inside the event that starts at "
                    f"{self._assembler.offset}: until= needs a cut between events"
                )
            raise CorruptionError(
                self.segment,
                self._assembler.offset,
                f"the segment is sealed, but ends {self._assembler.pending_bytes} bytes into an event",
            )
        return None

    def _chunk(self, events: list[bytes], start: int) -> EventChunk:
        offsets = offsets_of(events, start)
        redelivery = self._redelivery
        if redelivery is not None and start >= redelivery.until:
            redelivery = self._redelivery = None
        if redelivery is None:
            return EventChunk(self.segment, self.segment_id, self.stream, events, offsets)
        count = next((index for index, at in enumerate(offsets) if at >= redelivery.until), len(events))
        if count < len(events):
            rest = EventChunk(self.segment, self.segment_id, self.stream, events[count:], offsets[count:])
            self._put_back = rest
        return EventChunk(
            self.segment, self.segment_id, self.stream, events[:count], offsets[: count + 1], redelivery.count
        )

    def put_back(self, chunk: EventChunk) -> None:
        """Return a chunk taken last; its unused events are taken again."""
        if chunk.is_used_up:
            return
        if self._put_back is not None:
            # The remaining split events: read both again.
            self.restart(chunk.next_offset)
            return
        self._put_back = chunk

    def restart(self, offset: int) -> None:
        """Continue reading at `offset`."""
        self._fetch.stop()
        self._put_back = None
        self._is_gone = False
        self._start(offset)

    def stop(self) -> None:
        """Stop reading ahead."""
        self._fetch.stop()
