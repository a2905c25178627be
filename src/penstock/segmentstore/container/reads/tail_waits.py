"""`TailWaits`: the reads of one container that wait for bytes that are not there yet, by segment and offset.

An append wakes those whose offset it has passed and touches no other: offsets of one segment are in a heap. A wait does
not keep its segment in memory. Nothing happens to a segment that has left memory, so its waits stay as they are, by its
id, until an append, a seal or a deletion brings it back, and are its waits again then.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from penstock.model.errors import PenstockError

#: Ended waits that may stay in the heap of a segment, beside as many as there are waits.
_ENDED_MAX = 16


class ReadWaiter:
    """A read that waits for bytes of a segment, once. It is called in the midst of a commit, and only takes note.

    Attributes:
        waits: where it waits; None before and after.
    """

    __slots__ = ("waits",)

    def __init__(self) -> None:
        self.waits: SegmentWaits | None = None

    def wake(self) -> None:
        """Read again: there are bytes, or there will never be any. It waits no longer."""
        raise NotImplementedError

    def fail(self, error: PenstockError) -> None:
        """Give up with `error`: the container stops. It waits no longer."""
        raise NotImplementedError


class AwaitedSegment(Protocol):
    """What waits know of a segment. See `Segment`."""

    id: int
    waits: SegmentWaits | None


class SegmentWaits:
    """The waits of one segment. There is one of these exactly while there are waits.

    Attributes:
        segment_id: the segment's id.
        segment: the segment while it is in memory; of one that is not, nothing is kept but its id.
        count: how many wait.
    """

    __slots__ = ("_by_offset", "_ended_count", "_home", "_offsets", "count", "segment", "segment_id")

    def __init__(self, home: dict[int, SegmentWaits], segment: AwaitedSegment) -> None:
        self._home = home
        self.segment_id: int = segment.id
        self.segment: AwaitedSegment | None = segment
        self.count: int = 0
        #: Each offset once, the lowest first.
        self._offsets: list[int] = []
        #: Those that have ended are left here, `_ended_count` of them, until their offset is passed.
        self._by_offset: dict[int, list[ReadWaiter]] = {}
        self._ended_count = 0

    def __iter__(self) -> Iterator[tuple[int, ReadWaiter]]:
        """Yield offsets and waiters, in no order."""
        for offset, waiters in self._by_offset.items():
            for waiter in waiters:
                if waiter.waits is self:
                    yield offset, waiter

    def add(self, offset: int, waiter: ReadWaiter) -> None:
        """Let a waiter, which has not waited before, wait for the byte at `offset`."""
        waiter.waits = self
        self.count += 1
        waiters = self._by_offset.get(offset)
        if waiters is not None:
            waiters.append(waiter)
            return
        self._by_offset[offset] = [waiter]
        heappush(self._offsets, offset)

    def remove(self, waiter: ReadWaiter) -> None:
        """End the wait of one that gives up."""
        waiter.waits = None
        self.count -= 1
        self._ended_count += 1
        self._tidy()

    def wake(self, length: int | None) -> None:
        """Wake those that wait for a byte before `length`, the lowest offset first; all if it is None."""
        offsets = self._offsets
        due: list[ReadWaiter] = []
        while offsets and (length is None or offsets[0] < length):
            self._take(heappop(offsets), due)
        self._tidy()
        for waiter in due:
            waiter.wake()

    def take_all(self) -> list[ReadWaiter]:
        """End all waits, and return who waited."""
        due: list[ReadWaiter] = []
        for offset in sorted(self._offsets):
            self._take(offset, due)
        self._offsets = []
        self._tidy()
        return due

    def _take(self, offset: int, due: list[ReadWaiter]) -> None:
        for waiter in self._by_offset.pop(offset):
            if waiter.waits is self:
                waiter.waits = None
                self.count -= 1
                due.append(waiter)
            else:
                self._ended_count -= 1

    def _tidy(self) -> None:
        if not self.count:
            del self._home[self.segment_id]
            if self.segment is not None:
                self.segment.waits = None
        elif self._ended_count > self.count + _ENDED_MAX:
            left = list(self)
            self._ended_count = 0
            self._by_offset = {}
            for offset, each in left:
                self._by_offset.setdefault(offset, []).append(each)
            self._offsets = list(self._by_offset)
            heapify(self._offsets)


class TailWaits:
    """See the module."""

    def __init__(self) -> None:
        self._by_segment: dict[int, SegmentWaits] = {}

    def __len__(self) -> int:
        """Return for how many segments reads wait."""
        return len(self._by_segment)

    def __iter__(self) -> Iterator[SegmentWaits]:
        """Yield the waits of each segment."""
        yield from self._by_segment.values()

    def add(self, segment: AwaitedSegment, offset: int, waiter: ReadWaiter) -> None:
        """Let `waiter` wait until there is a byte at `offset` of the segment, or never will be."""
        waits = self._by_segment.get(segment.id)
        if waits is None:
            waits = self._by_segment[segment.id] = segment.waits = SegmentWaits(self._by_segment, segment)
        waits.add(offset, waiter)

    def deactivated(self, segment: AwaitedSegment) -> None:
        """Keep the waits of a segment that leaves memory, without it."""
        if segment.waits is not None:
            segment.waits.segment = None
            segment.waits = None

    def activated(self, segment: AwaitedSegment) -> None:
        """Give a segment that has come back into memory its waits."""
        waits = self._by_segment.get(segment.id)
        if waits is not None:
            waits.segment = segment
            segment.waits = waits

    def take_all(self) -> list[ReadWaiter]:
        """End all waits, and return who waited."""
        due: list[ReadWaiter] = []
        for waits in list(self._by_segment.values()):
            due += waits.take_all()
        return due
