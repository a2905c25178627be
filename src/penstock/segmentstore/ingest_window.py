"""`IngestWindow`: how much of one connection may be under way, so that what comes waits for little else.

A client that sends as fast as it can fills whatever the server gives it: ten connections of 32 MiB are seconds of
appends, and nothing is won by them once log and storage are busy. What an append waits is what is under way before it,
divided by the rate at which that gets done. So the window is that rate, as it was lately, times the wait that is aimed
at. It follows the rate in both directions: a window that was the limit is done sooner than aimed at, and grows.

The wait that is aimed at includes two syncs of the log, the one under way and the next. A log that takes long for each
gets more to do at once, otherwise the window would shrink to nothing beside it.

Bytes that have been there for much longer than that are not counted: they wait for something else, a log that stalls or
storage that one container lacks, while the connection's other appends get done. They still count in the budget.

Pure: time comes as arguments.
"""

from __future__ import annotations

#: A round is at least this share of the wait aimed at, and at most this multiple.
_ROUND_SHARE_MIN = 0.5
_ROUND_MULTIPLE_MAX = 2.0
#: In one round the window shrinks to this share of it at most: one sync that takes long says little.
_SHRINK_SHARE_MAX = 0.5
#: However many connections there are, each may have so much under way: a few appends of a Java client.
WINDOW_BYTES_LEAST = 64 * 1024


class IngestWindow:
    """The window of one connection: between `bytes_min` and `bytes_max`, for a wait of about `wait_s`.

    Attributes:
        bytes_min: it never becomes less than this; may change, and counts from the next round on.
    """

    __slots__ = (
        "_aim_s",
        "_bytes_max",
        "_done_bytes",
        "_done_bytes_then",
        "_old_bytes",
        "_since_s",
        "_taken_bytes",
        "_taken_bytes_then",
        "_wait_s",
        "_window_bytes",
        "bytes_min",
    )

    def __init__(self, bytes_min: int, bytes_max: int, wait_s: float) -> None:
        self.bytes_min: int = min(bytes_min, bytes_max)
        self._bytes_max = bytes_max
        self._wait_s = self._aim_s = wait_s
        self._window_bytes = self.bytes_min
        #: Of these, so much has been there for longer than a round.
        self._old_bytes = 0
        self._taken_bytes = self._done_bytes = 0
        #: Since when the round runs, and what was taken and done then; it ends when all that is done. 0: none runs.
        self._since_s = 0.0
        self._taken_bytes_then = self._done_bytes_then = 0

    @property
    def round_s_max(self) -> float:
        """How long a round is at most."""
        return self._aim_s * _ROUND_MULTIPLE_MAX

    @property
    def limit_bytes(self) -> int:
        """How much may be under way."""
        return min(self._window_bytes + self._old_bytes, self._bytes_max)

    def take(self, byte_count: int, now_s: float) -> None:
        """Count bytes that came, at the time `now_s` > 0."""
        self._taken_bytes += byte_count
        if not self._since_s:
            self._begin(now_s)

    def finish(self, byte_count: int) -> None:
        """Count bytes that are done."""
        self._done_bytes += byte_count

    def is_round_over(self, now_s: float) -> bool:
        """Whether `turn` has something to say."""
        elapsed_s = now_s - self._since_s
        return self._since_s > 0 and (
            elapsed_s >= self._aim_s * _ROUND_MULTIPLE_MAX
            or (self._done_bytes >= self._taken_bytes_then and elapsed_s >= self._aim_s * _ROUND_SHARE_MIN)
        )

    def turn(self, now_s: float, sync_s: float) -> None:
        """End a round that is over and begin another. `sync_s`: how long a sync of the log takes now."""
        elapsed_s = now_s - self._since_s
        done_bytes = self._done_bytes - self._done_bytes_then
        self._old_bytes = max(self._taken_bytes_then - self._done_bytes, 0)
        self._aim_s = self._wait_s + 2 * sync_s
        if done_bytes:
            bytes_wanted = int(done_bytes / elapsed_s * self._aim_s)
            shrunk_bytes = int(self._window_bytes * _SHRINK_SHARE_MAX)
            self._window_bytes = min(max(bytes_wanted, shrunk_bytes, self.bytes_min), self._bytes_max)
        if self._done_bytes < self._taken_bytes:
            self._begin(now_s)
        else:
            self._since_s = 0.0

    def _begin(self, now_s: float) -> None:
        self._since_s = now_s
        self._taken_bytes_then = self._taken_bytes
        self._done_bytes_then = self._done_bytes
