"""`SegmentQuota`: how much of one segment may wait for long-term storage, so that it does not hold up all others.

A segment whose storage is stuck keeps its bytes in the cache and in the log. Up to its quota nobody notices; beyond it
appends to that segment alone are held, for a bounded time, and then refused. Deletion, truncation and sealing
are not: they relieve. A segment whose storage is merely slow is no business of this: the throttle lets appends in
at the rate at which storage takes them.
"""

from __future__ import annotations

import asyncio

from penstock.model.errors import SegmentBackloggedError
from penstock.segmentstore.container.segment import Segment


class SegmentQuota:
    """The quota of each segment of one container: at most `bytes_max` that wait for long-term storage.

    Attributes:
        held_count: calls of `room` that are held now.
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
        """Whether more of the segment waits for a storage that is stuck than may."""
        # The container's own segments are what relieves. What is on its way to the log counts, too.
        return (
            segment.is_stuck
            and segment.pending.byte_count + segment.length - segment.durable_length > self.bytes_max
            and not segment.is_system
        )

    def must_wait(self, segment: Segment) -> bool:
        """Say whether an append to the segment that comes now is held. One that will be refused anyhow is not."""
        return not self._is_closed and not _takes_nothing(segment) and self.is_over(segment)

    def notify(self) -> None:
        """Let those go on for whose segments long-term storage has taken enough."""
        for waiter, segment in self._waiters.items():
            if not waiter.done() and not self.must_wait(segment):
                waiter.set_result(None)

    def close(self) -> None:
        """End all waits, now and in future: the container stops."""
        self._is_closed = True
        self.notify()

    async def room(self, segment: Segment) -> None:
        """Return once an append to the segment may go on, or can be refused for another reason.

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
