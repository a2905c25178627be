"""`JobStream`: a stream in memory that jobs read from: it grows, scales, and is sealed as a test wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.model.errors import NoSuchSegmentError
from penstock.model.events import EVENT_HEADER_LENGTH, frame_events
from penstock.spark.boundaries import boundaries_at, boundary_behind
from penstock.spark.planner import Extent


class JobStream:
    """See the module. Implements `penstock.jobs.export.ExportSource`."""

    def __init__(self, segment_count: int = 2) -> None:
        self.scope, self.stream = "model", "stream"
        self.name = "model/stream"
        self.data: dict[int, bytes] = dict.fromkeys(range(segment_count), b"")
        #: successor -> the segments it replaces
        self.replaces: dict[int, list[int]] = {}
        self.written: list[bytes] = []
        self.is_closed = False
        self.own_identity: str | None = "identity-1"

    def write(self, segment: int, *events: bytes) -> None:
        """Append events to a segment."""
        self.data[segment] += frame_events(events)
        self.written += events

    def replace(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Seal segments, and let others follow."""
        for each in new:
            self.data[each] = b""
            self.replaces[each] = list(old)

    def sealed(self) -> set[int]:
        return {old for olds in self.replaces.values() for old in olds}

    def head(self) -> dict[int, int]:
        return {segment: 0 for segment in self.data if segment not in self.replaces}

    def tail(self) -> dict[int, int]:
        return {segment: len(data) for segment, data in self.data.items() if segment not in self.sealed()}

    def is_sealed(self) -> bool:
        return self.is_closed

    def identity(self) -> str | None:
        return self.own_identity

    def recreate(self, identity: str | None, segment_count: int = 2) -> None:
        """Delete the stream, and create another one of its name."""
        self.data, self.replaces = dict.fromkeys(range(segment_count), b""), {}
        self.written, self.own_identity = [], identity

    def segment_name(self, segment: int) -> str:
        return f"{self.name}/{segment}"

    def extent(self, segment: int) -> Extent:
        return Extent(0, len(self.data[segment]), segment in self.sealed())

    def extents(self, segments: Sequence[int]) -> Sequence[Extent | NoSuchSegmentError]:
        return [self.extent(segment) for segment in segments]

    def successors(self, segment: int) -> Mapping[int, Sequence[int]]:
        return {new: olds for new, olds in self.replaces.items() if segment in olds}

    def boundaries(self, segment: int, start: int, targets: Sequence[int]) -> Sequence[int]:
        return boundaries_at([self.data[segment][start:]], source=str(segment), start=start, targets=targets)

    def boundary_behind(self, segment: int, start: int, end: int, event_count: int) -> tuple[int, int]:
        blocks = [self.data[segment][start:end]]
        return boundary_behind(blocks, source=str(segment), start=start, end=end, event_count=event_count)

    def event_end(self, segment: int, start: int) -> int:
        header = self.data[segment][start : start + EVENT_HEADER_LENGTH]
        return start + EVENT_HEADER_LENGTH + int.from_bytes(header[4:], "big")

    def read(self, segment: int, start: int, end: int) -> Iterator[bytes]:
        yield self.data[segment][start:end]
