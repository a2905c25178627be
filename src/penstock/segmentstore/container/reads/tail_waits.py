"""`TailWaits`: reads of one container that wait for bytes not yet appended, by segment and offset.

An append wakes only the waits whose offset it has passed: the offsets of a segment form a heap. A wait does not keep
its segment in memory. A segment not in memory does not change, so its waits are kept by segment id until an append, a
seal or a deletion brings the segment back into memory, and are then attached to it again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from penstock.model.errors import PenstockError

#: Ended waits that may remain in a segment's heap, in addition to as many as there are live waits.
_ENDED_MAX = 16


class ReadWaiter(ABC):
    """A read that waits once for bytes of a segment. Its methods are called during a commit and must only take note.

    Attributes:
        waits: the segment's waits while it waits; None before and after.
    """

    __slots__ = ("waits",)

    def __init__(self) -> None:
        self.waits: SegmentWaits | None = None

    @abstractmethod
    def wake(self) -> None:
        """Read again: there are bytes, or there never will be. The wait has ended."""

    @abstractmethod
    def fail(self, error: PenstockError) -> None:
        """Fail with `error`: the container is stopping. The wait has ended."""


class AwaitedSegment(Protocol):
    """The part of `Segment` that waits use."""

    id: int
    waits: SegmentWaits | None


class SegmentWaits:
    """The waits of one segment. Exists exactly while there are waits.

    Attributes:
        segment_id: the segment's id.
        segment: the segment while it is in memory, else None.
        count: number of live waits.
    """

    __slots__ = ("_by_offset", "_ended_count", "_home", "_offsets", "count", "segment", "segment_id")

    def __init__(self, home: dict[int, SegmentWaits], segment: AwaitedSegment) -> None:
        self._home = home
        self.segment_id: int = segment.id
        self.segment: AwaitedSegment | None = segment
        self.count: int = 0
        #: Each offset once, the lowest first.
        self._offsets: list[int] = []
        #: Ended waits, `_ended_count` of them, remain here until their offset is passed.
        self._by_offset: dict[int, list[ReadWaiter]] = {}
        self._ended_count = 0

    def __iter__(self) -> Iterator[tuple[int, ReadWaiter]]:
        """Yield offsets and waiters, in arbitrary order."""
        for offset, waiters in self._by_offset.items():
            for waiter in waiters:
                if waiter.waits is self:
                    yield offset, waiter

    def add(self, offset: int, waiter: ReadWaiter) -> None:
        """Add a waiter, which has not waited before, for the byte at `offset`."""
        waiter.waits = self
        self.count += 1
        waiters = self._by_offset.get(offset)
        if waiters is not None:
            waiters.append(waiter)
            return
        self._by_offset[offset] = [waiter]
        heappush(self._offsets, offset)

    def remove(self, waiter: ReadWaiter) -> None:
        """End the wait of a waiter that gives up."""
        waiter.waits = None
        self.count -= 1
        self._ended_count += 1
        self._tidy()

    def wake(self, length: int | None) -> None:
        """Wake waiters for a byte before `length`, lowest offset first; all waiters if it is None."""
        offsets = self._offsets
        due: list[ReadWaiter] = []
        while offsets and (length is None or offsets[0] < length):
            self._take(heappop(offsets), due)
        self._tidy()
        for waiter in due:
            waiter.wake()

    def take_all(self) -> list[ReadWaiter]:
        """End all waits, and return the waiters."""
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
        """Return the number of segments that reads wait for."""
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
        """Detach the waits from a segment that leaves memory, and keep them."""
        if segment.waits is not None:
            segment.waits.segment = None
            segment.waits = None

    def activated(self, segment: AwaitedSegment) -> None:
        """Attach the waits to a segment that has returned to memory."""
        waits = self._by_segment.get(segment.id)
        if waits is not None:
            waits.segment = segment
            segment.waits = waits

    def take_all(self) -> list[ReadWaiter]:
        """End all waits, and return the waiters."""
        due: list[ReadWaiter] = []
        for waits in list(self._by_segment.values()):
            due += waits.take_all()
        return due
