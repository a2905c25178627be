"""`TailReadBudget`: limits the memory of reads that wait for bytes beyond the end of a segment.

A client may read any offset of any segment, and a waiting read is held until there are bytes, possibly indefinitely.
One connection may hold as much as is still free, and no more than its share, so that a few cannot exhaust the budget.
Further reads are answered at once, with no bytes, which clients treat as a time-out of the wait.
"""

from __future__ import annotations

import logging

logger: logging.Logger = logging.getLogger(__name__)

#: Memory of one waiting read, with its place in the heap and in its connection. Measured: 800 bytes if each waits at
#: another segment, 390 at offsets of one segment, 260 at one offset.
TAIL_READ_BYTES = 800
#: Minimum interval between log messages about refusals.
_REPORT_INTERVAL_S = 60.0


class TailReadBudget:
    """The budget of one store. `share_bytes_max`: maximum of one connection, however much is free.

    Attributes:
        used_bytes: memory of all connections.
        refused_count: reads that were answered without bytes.
    """

    def __init__(self, bytes_max: int, share_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._share_bytes_max = share_bytes_max
        self._reported_at_s = float("-inf")
        self.used_bytes: int = 0
        self.refused_count: int = 0

    def take(self, held_count: int, now_s: float) -> bool:
        """Count one more read of a connection with `held_count` waiting ones; False: there is no room for it."""
        share_bytes = min(self._share_bytes_max, self._bytes_max - self.used_bytes)
        if (held_count + 1) * TAIL_READ_BYTES <= share_bytes:
            self.used_bytes += TAIL_READ_BYTES
            return True
        self.refused_count += 1
        if now_s >= self._reported_at_s + _REPORT_INTERVAL_S:
            self._reported_at_s = now_s
            logger.warning(
                "a read at the end of a segment is answered without bytes, the %dth: %d wait on its connection "
                "(connection.tail_read_bytes_max), all waiting reads take %d bytes (connection.tail_reads_bytes_max)",
                self.refused_count,
                held_count,
                self.used_bytes,
            )
        return False

    def give_back(self) -> None:
        """Count one read less."""
        self.used_bytes -= TAIL_READ_BYTES
