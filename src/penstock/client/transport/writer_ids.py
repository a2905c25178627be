"""`WriterIds`: ids of writers for single appends, each used by one append at a time.

A store keeps the state of each writer that a connection has set up, and a segment keeps the last event number of each
writer. With a new id for each append a connection would reach the store's limit of writers, and be closed by it.
"""

from __future__ import annotations

from collections import deque
from random import Random

#: Ids that wait to be used again: an eighth of the writers that a store permits for one connection.
WRITER_IDS_MAX = 1024


class WriterIds:
    """The ids of one client. An id is used again after `WRITER_IDS_MAX` others."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._idle: deque[bytes] = deque(maxlen=WRITER_IDS_MAX)

    def take(self) -> bytes:
        """Return an id that no append uses."""
        if len(self._idle) == WRITER_IDS_MAX:
            return self._idle.popleft()
        return self._rng.randbytes(16)

    def give_back(self, writer_id: bytes) -> None:
        """Permit further use of an id. Only after the reply to its append: a lost one may still be applied."""
        self._idle.append(writer_id)
