"""`IngestBudget`: how much memory all connections together may fill with what they send.

Counted is everything that comes in and is not durable yet: data of appends and other requests, what is held, frames
that have not arrived completely, and the overhead of each small append. There is no fixed share: a connection is read
as long as it holds no more than is still free. So one alone may fill half of the budget, n of them at once an (n+1)th
part each, whoever holds most is stopped first, and the sum never reaches the whole. A stopped connection goes on when
it holds less than three quarters of what is free then; both marks move with the load.

When nothing is under way that could give bytes back, what fills the budget are frames that have not arrived to their
end: then those who wait are let go on one at a time.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Contributor(Protocol):
    """A connection."""

    def review(self) -> None:
        """Look again whether to read the socket."""


class IngestBudget:
    """The budget of one process. `share_bytes_max`: of one connection, however much is free."""

    def __init__(self, bytes_max: int, share_bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._share_bytes_max = share_bytes_max
        #: Bytes of requests, which are given back when they are done, and of frames under way, which may never be.
        self.request_bytes: int = 0
        self.frame_bytes: int = 0
        #: Connections with requests under way.
        self.busy_count: int = 0
        #: The highest sum there was, for people and tests.
        self.used_bytes_highest: int = 0
        self._stopped: dict[Contributor, None] = {}
        #: Is read although it holds too much: nothing else would ever give bytes back.
        self._favoured: Contributor | None = None
        self._review_is_scheduled = False

    @property
    def used_bytes(self) -> int:
        """What is counted now."""
        return self.request_bytes + self.frame_bytes

    def add_requests(self, byte_count: int) -> None:
        """Count bytes of requests that came (positive) or are done (negative)."""
        self.request_bytes += byte_count
        self._changed(byte_count)

    def add_frames(self, byte_count: int) -> None:
        """Count memory of frames that have not arrived to their end, more (positive) or less (negative) than before."""
        self.frame_bytes += byte_count
        self._changed(byte_count)

    def _changed(self, byte_count: int) -> None:
        if byte_count > 0:
            self.used_bytes_highest = max(self.used_bytes_highest, self.used_bytes)
        elif self._stopped and not self._review_is_scheduled:
            self._review_is_scheduled = True
            asyncio.get_running_loop().call_soon(self._review)

    def lets_read(self, contributor: Contributor, held_bytes: int) -> bool:
        """Say whether a connection that holds `held_bytes` is to be read; if not, it hears when to ask again."""
        share = max(min(self._share_bytes_max, self.bytes_max - self.used_bytes), 0)
        is_stopped = contributor in self._stopped
        has_room = held_bytes * 4 <= share * 3 if is_stopped else held_bytes <= share
        is_favoured = not (has_room or self.request_bytes) and (
            self._favoured is contributor
            or (self._favoured is None and (not self._stopped or next(iter(self._stopped)) is contributor))
        )
        if is_favoured:
            self._favoured = contributor
        elif self._favoured is contributor:
            self._favoured = None
        if has_room or is_favoured:
            self._stopped.pop(contributor, None)
            return True
        self._stopped.setdefault(contributor, None)
        return False

    def forget(self, contributor: Contributor) -> None:
        """Take a connection out that has ended, and gave everything back."""
        self._stopped.pop(contributor, None)
        if self._favoured is contributor:
            self._favoured = None
        self._changed(0)

    def _review(self) -> None:
        self._review_is_scheduled = False
        for contributor in list(self._stopped):
            contributor.review()
