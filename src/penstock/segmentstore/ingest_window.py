"""`IngestWindow`: bounds the bytes in flight of one connection, so that new data wait only briefly.

A client that sends as fast as it can fills whatever the server accepts: ten connections of 32 MiB are seconds of
appends, without any gain once log and storage are busy. The wait of an append is the bytes in flight before it, divided
by the rate at which they are completed. So the window is the recent rate times the target wait. It follows the rate in
both directions: a window that was the limit completes earlier than the target, and grows.

The target wait includes two syncs of the log, the current one and the next. A log with slow syncs gets more bytes at
once, otherwise the window would shrink towards nothing.

Bytes in flight for much longer than that are excluded: they wait for something else, a log that stalls or storage that
one container lacks, while the connection's other appends complete. They still count in the budget.

Pure: time is passed as an argument.
"""

from __future__ import annotations

#: A round is at least this share of the target wait, and at most this multiple.
_ROUND_SHARE_MIN = 0.5
_ROUND_MULTIPLE_MAX = 2.0
#: In one round the window shrinks to no less than this share: a single slow sync is not significant.
_SHRINK_SHARE_MAX = 0.5
#: Minimum window however many connections there are: a few appends of a Java client.
WINDOW_BYTES_LEAST = 64 * 1024


class IngestWindow:
    """The window of one connection: between `bytes_min` and `bytes_max`, for a wait of about `wait_s`.

    Attributes:
        bytes_min: minimum of the window; may change, and takes effect with the next round.
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
        #: Bytes in flight for longer than one round; excluded from the window.
        self._old_bytes = 0
        self._taken_bytes = self._done_bytes = 0
        #: Start of the round, with the bytes received and done then; it ends when all of them are done. 0: no round.
        self._since_s = 0.0
        self._taken_bytes_then = self._done_bytes_then = 0

    @property
    def round_s_max(self) -> float:
        """Maximum duration of a round."""
        return self._aim_s * _ROUND_MULTIPLE_MAX

    @property
    def limit_bytes(self) -> int:
        """Maximum bytes in flight."""
        return min(self._window_bytes + self._old_bytes, self._bytes_max)

    def take(self, byte_count: int, now_s: float) -> None:
        """Count bytes received at the time `now_s` > 0."""
        self._taken_bytes += byte_count
        if not self._since_s:
            self._begin(now_s)

    def finish(self, byte_count: int) -> None:
        """Count bytes done."""
        self._done_bytes += byte_count

    def is_round_over(self, now_s: float) -> bool:
        """Whether the round is over, so that `turn` may be called."""
        elapsed_s = now_s - self._since_s
        return self._since_s > 0 and (
            elapsed_s >= self._aim_s * _ROUND_MULTIPLE_MAX
            or (self._done_bytes >= self._taken_bytes_then and elapsed_s >= self._aim_s * _ROUND_SHARE_MIN)
        )

    def turn(self, now_s: float, sync_s: float) -> None:
        """End a round that is over and begin the next. `sync_s`: current duration of a sync of the log."""
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
