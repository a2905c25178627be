"""Which chunk begins where: hints in memory that spare the walk along a segment's chunk list.

Bounded in segments and in entries. It is only a hint: the chunk's record decides, and a hint that leads nowhere is
dropped with all others of its segment. Source: segment store specification, section 8.10.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict


class ChunkStarts:
    """Start offsets of some of one segment's chunks, in order.

    A reader takes it once and may go on adding to it after the index dropped it: nobody else sees that.
    """

    __slots__ = ("_index", "_names", "_starts")

    def __init__(self, index: ChunkIndex) -> None:
        self._index: ChunkIndex | None = index
        self._starts: list[int] = []
        self._names: list[str] = []

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, start: int, name: str) -> None:
        """Remember that chunk `name` begins at segment offset `start`; nothing happens when the index is full."""
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start:
            self._names[at] = name
        elif self._index is not None and self._index.make_room(self):
            self._starts.insert(at, start)
            self._names.insert(at, name)
            self._index.chunk_count += 1

    def floor(self, offset: int) -> tuple[int, str] | None:
        """Return start and name of the last known chunk that begins at or before `offset`."""
        at = bisect_right(self._starts, offset)
        return (self._starts[at - 1], self._names[at - 1]) if at else None

    def trim(self, start: int) -> None:
        """Forget the chunks that begin before `start`."""
        at = bisect_left(self._starts, start)
        del self._starts[:at], self._names[:at]
        if self._index is not None:
            self._index.chunk_count -= at

    def detach(self) -> None:
        """Forget everything and learn nothing more: the index has dropped the segment."""
        self.trim(self._starts[-1] + 1 if self._starts else 0)
        self._index = None


class ChunkIndex:
    """`ChunkStarts` by segment; the least recently used segments go first.

    Attributes:
        chunk_count: entries of all segments, at most `chunks_max`.
    """

    def __init__(self, *, segments_max: int, chunks_max: int) -> None:
        self.chunk_count = 0
        self._segments_max = segments_max
        self._chunks_max = chunks_max
        self._segments: OrderedDict[str, ChunkStarts] = OrderedDict()

    def starts(self, segment: str) -> ChunkStarts:
        """Return what is known about `segment`, to look into and to add to."""
        found = self._segments.get(segment)
        if found is None:
            found = self._segments[segment] = ChunkStarts(self)
            if len(self._segments) > self._segments_max:
                self._segments.popitem(last=False)[1].detach()
        else:
            self._segments.move_to_end(segment)
        return found

    def make_room(self, wanted_by: ChunkStarts) -> bool:
        """Drop old segments until one more chunk fits; False when only `wanted_by` is left and is full."""
        while self.chunk_count >= self._chunks_max:
            oldest = next(iter(self._segments))
            if self._segments[oldest] is wanted_by:
                return False
            self.drop(oldest)
        return True

    def trim(self, segment: str, start: int) -> None:
        """Forget the chunks of `segment` that begin before `start`."""
        if segment in self._segments:
            self._segments[segment].trim(start)

    def drop(self, segment: str) -> None:
        """Forget a segment."""
        dropped = self._segments.pop(segment, None)
        if dropped is not None:
            dropped.detach()
