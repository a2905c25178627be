"""`IngestBudget`: limits the memory that all connections together fill with incoming data.

It counts all incoming data that are not durable yet: data of appends and other requests, held operations, partly
received frames, and the overhead of each small append. There are no fixed shares: a connection is read while it holds
no more than is still free. So a single connection may fill half of the budget, and each of n concurrent ones an (n+1)th
part; the one with most is stopped first, and the sum never reaches the whole. A stopped connection is resumed when it
holds less than three quarters of what is free then; both limits move with the load.

When no request is in progress that could release bytes, the budget is filled by partly received frames: then waiting
connections are resumed one at a time.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Contributor(Protocol):
    """A connection."""

    def review(self) -> None:
        """Decide again whether to read the socket."""


class IngestBudget:
    """The budget of one process. `share_bytes_max`: maximum of one connection, however much is free."""

    def __init__(self, bytes_max: int, share_bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._share_bytes_max = share_bytes_max
        #: Bytes of requests, which are released when they are done, and of partial frames, which may never be.
        self.request_bytes: int = 0
        self.frame_bytes: int = 0
        #: Connections with requests in progress.
        self.busy_count: int = 0
        #: Maximum of the sum so far, for statistics and tests.
        self.used_bytes_highest: int = 0
        self._stopped: dict[Contributor, None] = {}
        #: Read although it holds too much: otherwise no bytes would be released.
        self._favoured: Contributor | None = None
        self._review_is_scheduled = False

    @property
    def used_bytes(self) -> int:
        """Bytes counted now."""
        return self.request_bytes + self.frame_bytes

    def add_requests(self, byte_count: int) -> None:
        """Count bytes of requests that arrived (positive) or are done (negative)."""
        self.request_bytes += byte_count
        self._changed(byte_count)

    def add_frames(self, byte_count: int) -> None:
        """Count memory of partly received frames, more (positive) or less (negative) than before."""
        self.frame_bytes += byte_count
        self._changed(byte_count)

    def _changed(self, byte_count: int) -> None:
        if byte_count > 0:
            self.used_bytes_highest = max(self.used_bytes_highest, self.used_bytes)
        elif self._stopped and not self._review_is_scheduled:
            self._review_is_scheduled = True
            asyncio.get_running_loop().call_soon(self._review)

    def lets_read(self, contributor: Contributor, held_bytes: int) -> bool:
        """Return whether to read a connection that holds `held_bytes`; if not, its `review` is called later."""
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
        """Remove a connection that has ended and released everything."""
        self._stopped.pop(contributor, None)
        if self._favoured is contributor:
            self._favoured = None
        self._changed(0)

    def _review(self) -> None:
        self._review_is_scheduled = False
        for contributor in list(self._stopped):
            contributor.review()
