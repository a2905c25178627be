"""`ReadAhead`: who reads long-term storage sequentially, and what such a reader will want next.

Two reads in a row, the second beginning where the first ended, make a reader sequential. From then on a few aligned
ranges ahead of it are wanted in memory. A few readers of each segment are remembered, of a bounded number of segments;
of those that are not sequential the last ones, so that reads here and there displace no sequential reader.

No I/O: the caller reads what is wanted, if it has room and means for it.
Source: segment store specification, R4.18.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

#: Readers of one segment that are remembered.
_READERS_MAX = 4


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
        self._sequences: OrderedDict[int, list[_Sequence]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many segments are remembered."""
        return len(self._sequences)

    def continues(self, segment_id: int, start: int) -> bool:
        """Say whether a reader that needs bytes from `start` goes on where a read of storage, or one ahead, ended."""
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
        """Note that a reader found its bytes up to `end` in memory; return the ranges to read ahead, mostly none."""
        for sequence in self._sequences.get(segment_id, ()):
            if sequence.is_sequential and sequence.next_offset < end <= sequence.ahead_offset:
                # Where the range ends that the reader is in: nothing more is wanted until it is past that.
                sequence.next_offset = min(-(-end // self.range_bytes) * self.range_bytes, sequence.ahead_offset)
                return self._wanted(sequence, limit)
        return []

    def not_read(self, segment_id: int, start: int) -> None:
        """Note that what was wanted from `start` on could not be read ahead; a reader that comes there reads it."""
        for sequence in self._sequences.get(segment_id, ()):
            if sequence.next_offset <= start < sequence.ahead_offset:
                sequence.ahead_offset = start

    def forget(self, segment_id: int) -> None:
        """Forget a segment's readers: it is gone."""
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
