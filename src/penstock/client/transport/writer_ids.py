"""`WriterIds`: ids of writers for single appends, each used by one append at a time.

A store keeps the state of each writer that a connection has set up, and a segment keeps the last event number of each
writer. With a new id for each append a connection would reach the store's limit of writers, and be closed by it.
"""

from __future__ import annotations

from random import Random

#: Idle ids that are kept: half of the writers that a store permits for one connection.
WRITER_IDS_MAX = 4096


class WriterIds:
    """The ids of one client. The one that was given back last is used first, so that there are few."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._idle: list[bytes] = []

    def take(self) -> bytes:
        """Return an id that no append uses."""
        return self._idle.pop() if self._idle else self._rng.randbytes(16)

    def give_back(self, writer_id: bytes) -> None:
        """Permit further use of an id. Only after the reply to its append: a lost one may still be applied."""
        if len(self._idle) < WRITER_IDS_MAX:
            self._idle.append(writer_id)
