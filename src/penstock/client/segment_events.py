"""`SegmentEvents`: one segment as chunks of whole events, read ahead."""

from __future__ import annotations

from collections.abc import Callable

from penstock.client.event import EventChunk
from penstock.client.segment_reader import SegmentReader
from penstock.client.settings import ClientSettings
from penstock.model.errors import CorruptionError
from penstock.model.events import EventAssembler, offsets_of
from penstock.model.names import parse_segment_name
from penstock.model.segments import Segments


class SegmentEvents:
    """Events of one segment from an offset on, which must be where an event starts."""

    def __init__(
        self,
        segments: Segments,
        segment: str,
        offset: int,
        settings: ClientSettings,
        on_ready: Callable[[SegmentEvents], None],
    ) -> None:
        self.segment = segment
        scope, stream, number = parse_segment_name(segment)
        self._stream = f"{scope}/{stream}"
        self._segment_id = int(number)
        self._segments = segments
        self._settings = settings
        self._on_ready = on_ready
        #: True while this stands in the reader's queue of segments with something to take.
        self.is_queued = False
        self._start(offset)

    def _start(self, offset: int) -> None:
        self._assembler = EventAssembler(self.segment, offset)
        self._reader = SegmentReader(
            self._segments, self.segment, offset, None, self._settings, on_ready=lambda: self._on_ready(self)
        )

    @property
    def offset(self) -> int:
        """Where the next event to take starts."""
        return self._assembler.offset

    @property
    def is_at_end(self) -> bool:
        """True when the segment is sealed and everything was taken."""
        return self._reader.is_at_end and not self._assembler.pending_bytes

    def take(self) -> EventChunk | None:
        """Return the next whole events, or None if there are none now.

        Raises `SegmentTruncatedError`, `NoSuchSegmentError`, or `CorruptionError` when the bytes are not events.
        """
        while True:
            block = self._reader.take()
            if block is None:
                break
            self._assembler.feed(block)
            events, start = self._assembler.take()
            if events:
                return EventChunk(self.segment, self._segment_id, self._stream, events, offsets_of(events, start))
        if self._reader.is_at_end and self._assembler.pending_bytes:
            raise CorruptionError(
                self.segment,
                self._assembler.offset,
                f"the segment is sealed, but ends {self._assembler.pending_bytes} bytes into an event",
            )
        return None

    async def restart(self, offset: int) -> None:
        """Go on reading at `offset`."""
        await self._reader.close()
        self._start(offset)

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._reader.close()
