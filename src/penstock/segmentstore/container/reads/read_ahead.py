"""`ReadAhead`: who reads long-term storage sequentially, and what such a reader will want next.

Two reads in a row, the second beginning where the first ended, make a reader sequential. From then on a few aligned
ranges ahead of it are wanted in memory. One reader per segment is remembered, of a bounded number of segments.

No I/O: the caller reads what is wanted, if it has room and means for it.
Source: segment store specification, R4.18.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class _Sequence:
    """A reader that is to come to `next_offset`; up to `ahead_offset` everything was asked for."""

    next_offset: int
    ahead_offset: int
    is_sequential: bool = False


class ReadAhead:
    """Sequences of the segments of one container.

    `range_bytes` is the alignment; at most `count_max` ranges (0: none ever) are wanted ahead of a reader.
    """

    def __init__(self, *, range_bytes: int, count_max: int, segments_max: int) -> None:
        self.range_bytes: int = range_bytes
        self._count_max = count_max
        self._segments_max = segments_max
        self._sequences: OrderedDict[int, _Sequence] = OrderedDict()

    def __len__(self) -> int:
        """Return how many segments are remembered."""
        return len(self._sequences)

    def stored(self, segment_id: int, start: int, end: int, limit: int) -> list[tuple[int, int]]:
        """Note that a reader needs `[start, end)` from storage; return the ranges below `limit` to read ahead."""
        if not self._count_max:
            return []
        sequence = self._sequences.get(segment_id)
        if sequence is None or not sequence.next_offset <= start <= sequence.ahead_offset:
            self._sequences[segment_id] = _Sequence(end, end)
            self._sequences.move_to_end(segment_id)
            if len(self._sequences) > self._segments_max:
                self._sequences.popitem(last=False)
            return []
        sequence.is_sequential = True
        sequence.next_offset = end
        return self._wanted(sequence, limit)

    def cached(self, segment_id: int, end: int, limit: int) -> list[tuple[int, int]]:
        """Note that a reader found its bytes up to `end` in memory; return the ranges to read ahead, mostly none."""
        sequence = self._sequences.get(segment_id)
        if sequence is None or not sequence.is_sequential or not sequence.next_offset < end <= sequence.ahead_offset:
            return []
        # Where the range ends that the reader is in: nothing more is wanted until it is past that.
        sequence.next_offset = min(-(-end // self.range_bytes) * self.range_bytes, sequence.ahead_offset)
        return self._wanted(sequence, limit)

    def forget(self, segment_id: int) -> None:
        """Forget a segment's reader, because what was wanted could not be read."""
        self._sequences.pop(segment_id, None)

    def _wanted(self, sequence: _Sequence, limit: int) -> list[tuple[int, int]]:
        size = self.range_bytes
        ranges: list[tuple[int, int]] = []
        start = max(sequence.ahead_offset, sequence.next_offset)
        stop = min((sequence.next_offset // size + self._count_max) * size, limit)
        while start < stop:
            end = min((start // size + 1) * size, stop)
            ranges.append((start, end))
            start = end
        sequence.ahead_offset = max(start, sequence.ahead_offset)
        return ranges
