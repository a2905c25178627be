"""`StreamTotals`: events and bytes appended to each stream of one container, for metrics.

A total never falls: a stream that was counted under its name keeps its total as long as the container runs. Only
so many streams are counted by name; later ones, and internal ones, are counted together.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidNameError
from penstock.model.names import parse_segment_name

#: Streams of one container that are counted by name.
STREAMS_MAX = 1000
#: Segments whose stream is remembered, so that names are not parsed again and again.
_SEGMENTS_MAX = 10_000


@dataclass(slots=True, eq=False)
class StreamTotal:
    """What was appended to a stream since its container started."""

    event_count: int = 0
    byte_count: int = 0


class StreamTotals:
    """See the module.

    Attributes:
        by_stream: totals by ``scope/stream``.
        others: the total of all streams that are not counted by name.
    """

    def __init__(self, streams_max: int = STREAMS_MAX) -> None:
        self.by_stream: dict[str, StreamTotal] = {}
        self.others: StreamTotal = StreamTotal()
        self._streams_max = streams_max
        self._by_segment: dict[int, StreamTotal] = {}

    def add(self, segment_id: int, segment: str, event_count: int, byte_count: int) -> None:
        """Add what was appended to a segment."""
        total = self._by_segment.get(segment_id)
        if total is None:
            if len(self._by_segment) >= _SEGMENTS_MAX:
                self._by_segment.clear()
            total = self._by_segment[segment_id] = self._total_of(segment)
        total.event_count += event_count
        total.byte_count += byte_count

    def _total_of(self, segment: str) -> StreamTotal:
        try:
            scope, stream, _ = parse_segment_name(segment)
        except InvalidNameError:
            return self.others
        name = f"{scope}/{stream}"
        total = self.by_stream.get(name)
        if total is None:
            if stream.startswith("_") or len(self.by_stream) >= self._streams_max:
                return self.others
            total = self.by_stream[name] = StreamTotal()
        return total
