"""`SegmentQuota`: limits the unflushed bytes of one segment, so that a stuck segment does not block the others.

A segment whose storage is stuck keeps its bytes in the cache and in the log. Up to its quota this has no effect. Beyond
it, appends to that segment alone are held for a bounded time and then rejected. Deletion, truncation and sealing are
not, because they reduce the backlog. The quota does not apply to segments whose storage is merely slow: the throttle
admits appends at the rate at which storage accepts them.
"""

from __future__ import annotations

import asyncio

from penstock.model.errors import SegmentBackloggedError
from penstock.segmentstore.container.segment import Segment


class SegmentQuota:
    """The quota of each segment of one container: at most `bytes_max` not yet in long-term storage.

    Attributes:
        held_count: number of calls of `room` currently held.
    """

    def __init__(self, bytes_max: int, *, hold_s_max: float) -> None:
        self.bytes_max = bytes_max
        self._hold_s_max = hold_s_max
        self._is_closed = False
        self._waiters: dict[asyncio.Future[None], Segment] = {}

    @property
    def held_count(self) -> int:
        """See the class."""
        return len(self._waiters)

    def is_over(self, segment: Segment) -> bool:
        """Whether a stuck segment has more unflushed bytes than allowed."""
        # System segments are exempt, because they reduce the backlog. Bytes not yet durable count as well.
        return (
            segment.is_stuck
            and segment.pending.byte_count + segment.length - segment.durable_length > self.bytes_max
            and not segment.is_system
        )

    def must_wait(self, segment: Segment) -> bool:
        """Return whether an append to the segment is held now. Appends that will be rejected anyway are not."""
        return not self._is_closed and not _takes_nothing(segment) and self.is_over(segment)

    def notify(self) -> None:
        """Release the waits of segments that are no longer over their quota."""
        for waiter, segment in self._waiters.items():
            if not waiter.done() and not self.must_wait(segment):
                waiter.set_result(None)

    def close(self) -> None:
        """End all waits, now and in future: the container is stopping."""
        self._is_closed = True
        self.notify()

    async def room(self, segment: Segment) -> None:
        """Return once an append to the segment may proceed, or can be rejected for another reason.

        Raises `SegmentBackloggedError` after `hold_s_max`.
        """
        deadline_s = asyncio.get_running_loop().time() + self._hold_s_max
        while self.must_wait(segment):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = segment
            try:
                async with asyncio.timeout_at(deadline_s) as limit:
                    await waiter
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise SegmentBackloggedError(
                    segment.name,
                    byte_count=segment.pending.byte_count,
                    bytes_max=self.bytes_max,
                    held_s=self._hold_s_max,
                ) from error
            finally:
                del self._waiters[waiter]


def _takes_nothing(segment: Segment) -> bool:
    return segment.is_sealed or segment.is_deleted
