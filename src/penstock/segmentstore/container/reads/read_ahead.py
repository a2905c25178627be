"""`ReadAhead`: detects sequential readers of long-term storage and determines the ranges to read ahead for them.

Two consecutive reads, the second starting where the first ended, make a reader sequential. From then on a few aligned
ranges ahead of it are read into memory. A few readers per segment are remembered, for a bounded number of segments. A
new reader replaces a non-sequential one first, so that random reads do not displace sequential readers.

No I/O: the caller does the reads, if the cache has room and capacity is free.
Source: segment-store R4.18.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

#: Maximum number of readers remembered per segment.
_READERS_MAX = 4


@dataclass(slots=True)
class _Sequence:
    """A reader expected at `next_offset`; everything up to `ahead_offset` was requested."""

    next_offset: int
    ahead_offset: int
    is_sequential: bool = False


class ReadAhead:
    """The readers of one container's segments.

    `range_bytes` is the alignment; at most `count_max` ranges (0: none) are read ahead of a reader.
    """

    def __init__(self, *, range_bytes: int, count_max: int, segments_max: int) -> None:
        self.range_bytes: int = range_bytes
        self._count_max = count_max
        self._segments_max = segments_max
        self._sequences: OrderedDict[int, list[_Sequence]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of segments remembered."""
        return len(self._sequences)

    def continues(self, segment_id: int, start: int) -> bool:
        """Return whether a read at `start` continues a previous read of storage or a range read ahead."""
        return self._find(segment_id, start) is not None

    def stored(self, segment_id: int, start: int, end: int, limit: int) -> list[tuple[int, int]]:
        """Note that a reader needs `[start, end)` from storage; return the ranges below `limit` to read ahead."""
        sequence = self._find(segment_id, start)
        if sequence is None:
            self._begin(segment_id, end)
            return []
        sequence.is_sequential = True
        sequence.next_offset = end
        return self._wanted(sequence, limit)

    def _find(self, segment_id: int, start: int) -> _Sequence | None:
        for sequence in self._sequences.get(segment_id, ()):
            if sequence.next_offset <= start <= sequence.ahead_offset:
                return sequence
        return None

    def _begin(self, segment_id: int, end: int) -> None:
        sequences = self._sequences.setdefault(segment_id, [])
        self._sequences.move_to_end(segment_id)
        if len(self._sequences) > self._segments_max:
            self._sequences.popitem(last=False)
        if any(sequence.next_offset == end for sequence in sequences):
            return
        if len(sequences) == _READERS_MAX:
            del sequences[next((at for at, each in enumerate(sequences) if not each.is_sequential), 0)]
        sequences.append(_Sequence(end, end))

    def cached(self, segment_id: int, end: int, limit: int) -> list[tuple[int, int]]:
        """Note that a reader found its bytes up to `end` in memory; return the ranges to read ahead, usually none."""
        for sequence in self._sequences.get(segment_id, ()):
            if sequence.is_sequential and sequence.next_offset < end <= sequence.ahead_offset:
                # The end of the reader's current range: nothing more is read ahead until the reader has passed it.
                sequence.next_offset = min(-(-end // self.range_bytes) * self.range_bytes, sequence.ahead_offset)
                return self._wanted(sequence, limit)
        return []

    def not_read(self, segment_id: int, start: int) -> None:
        """Note that the range from `start` on was not read ahead; a reader that gets there reads it."""
        for sequence in self._sequences.get(segment_id, ()):
            if sequence.next_offset <= start < sequence.ahead_offset:
                sequence.ahead_offset = start

    def forget(self, segment_id: int) -> None:
        """Forget the readers of a segment that is gone."""
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
