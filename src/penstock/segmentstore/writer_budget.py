"""`WriterBudget`: limits the memory of the writers that connections have set up.

A client sets up a writer with fifty bytes, for the lifetime of its connection, and without a limit on their number. One
connection may hold as much as is still free, and no more than its share, so that a few cannot exhaust the budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container

from penstock.model.errors import PenstockError, ProtocolError, SegmentStoreBusyError
from penstock.segmentstore.writer_state import WriterState

#: Memory of one writer of a connection. Measured: 270 bytes, 580 if its segment was unloaded meanwhile, 950 while the
#: state that its set-up depends on is not durable yet.
WRITER_BYTES = 1024
#: Minimum interval between searches for writers of deleted segments, which happen only when there is no room for more.
_CHECK_INTERVAL_S = 1.0


class WriterBudget:
    """The budget of one server. `share_bytes_max`: maximum of one connection, however much is free.

    Attributes:
        used_bytes: memory of the writers of all connections.
        refused_count: set-ups for which there was no room.
    """

    def __init__(self, bytes_max: int, share_bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.share_bytes_max = share_bytes_max
        self.used_bytes: int = 0
        self.refused_count: int = 0


class WriterSlots:
    """The part of the budget used by one connection: writers that are set up, are being set up, or wait to be.

    Attributes:
        count: number of these writers.
    """

    def __init__(self, budget: WriterBudget) -> None:
        self.budget = budget
        self.count: int = 0
        self._checked_at_s = float("-inf")

    @property
    def is_share_used_up(self) -> bool:
        """Whether this connection may hold no more, however much is free."""
        return (self.count + 1) * WRITER_BYTES > self.budget.share_bytes_max

    def take(self) -> bool:
        """Count one more writer; False: there is no room for it."""
        budget = self.budget
        if self.is_share_used_up or (self.count + 1) * WRITER_BYTES > budget.bytes_max - budget.used_bytes:
            budget.refused_count += 1
            return False
        self.count += 1
        budget.used_bytes += WRITER_BYTES
        return True

    def forget_ended(self, writers: dict[bytes, WriterState], unacknowledged: Container[WriterState]) -> bool:
        """Remove writers of deleted segments, such as transactions; return whether there were any."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._checked_at_s + _CHECK_INTERVAL_S:
            return False
        self._checked_at_s = now_s
        ended = [
            state
            for state in writers.values()
            if (state.segment.is_deleted or state.segment.is_merged)
            and not state.in_flight
            and state not in unacknowledged
        ]
        for state in ended:
            del writers[state.writer_id]
        self.give_back(len(ended))
        return bool(ended)

    def shortage(self, segment: str) -> PenstockError:
        """Return why a writer of `segment` is refused.

        `SegmentStoreBusyError`: other connections have the memory. `ProtocolError`: this connection has reached its
        maximum. It must be closed, since few of its writers may still be in use, and only those are set up again.
        """
        budget = self.budget
        if self.is_share_used_up:
            return ProtocolError(
                f"the {self.count} writers of one connection take {self.count * WRITER_BYTES} bytes, at most "
                f"{budget.share_bytes_max} are allowed (connection.writer_bytes_max)"
            )
        return SegmentStoreBusyError(
            segment,
            f"the writers of all connections take {budget.used_bytes} bytes, at most {budget.bytes_max} are allowed "
            f"(connection.writers_bytes_max), and this connection has {self.count} writers; try again later",
        )

    def give_back(self, count: int = 1) -> None:
        """Release `count` writers."""
        self.count -= count
        self.budget.used_bytes -= count * WRITER_BYTES

    def close(self) -> None:
        """Release all: the connection has ended."""
        self.give_back(self.count)
