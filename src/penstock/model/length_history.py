"""`LengthHistory`: how long a segment was at which time, to report how long its unread bytes have waited."""

from __future__ import annotations

from array import array
from bisect import bisect_right

#: Lengths of the last quarter of an hour are kept as noted. An older one is removed if its neighbours are at most
#: `THINNED_S` apart, so that no wait is rounded down by more; none is kept for longer than `KEPT_S`. With a note every
#: 10 s a segment takes at most 450 notes of 16 bytes.
RECENT_S: float = 15 * 60.0
THINNED_S: float = 60.0
KEPT_S: float = 6 * 3600.0


class LengthHistory:
    """Lengths of one segment in bytes, by the time at which they were seen. Neither ever falls."""

    __slots__ = ("_lengths", "_thinned_count", "_times_s")

    def __init__(self) -> None:
        self._times_s = array("d")
        self._lengths = array("Q")
        #: The first notes, which were thinned out already.
        self._thinned_count = 0

    def __len__(self) -> int:
        return len(self._times_s)

    def note(self, now_s: float, length: int) -> None:
        """Note the present length. A length below the last one belongs to another segment: the history restarts."""
        if self._lengths and length < self._lengths[-1]:
            del self._times_s[:], self._lengths[:]
            self._thinned_count = 0
        self._times_s.append(now_s)
        self._lengths.append(length)
        self._thin(now_s)

    def _thin(self, now_s: float) -> None:
        """Remove what is too old, and old notes between two that are close to each other. The last note is recent."""
        times_s = self._times_s
        expired = bisect_right(times_s, now_s - KEPT_S)
        if expired:
            del times_s[:expired], self._lengths[:expired]
            self._thinned_count = max(self._thinned_count - expired, 0)
        while self._thinned_count < len(times_s) and times_s[self._thinned_count] <= now_s - RECENT_S:
            at = self._thinned_count
            if at and times_s[at + 1] - times_s[at - 1] <= THINNED_S:
                del times_s[at], self._lengths[at]
            else:
                self._thinned_count += 1

    def waited_s(self, now_s: float, position: int) -> tuple[float, bool]:
        """Return the age of the byte at `position`, in seconds, and whether that is a lower bound.

        0 if the segment is not longer than `position`. The time is rounded down to a note.
        """
        index = bisect_right(self._lengths, position)
        if index == len(self._lengths):
            return 0.0, False
        return max(now_s - self._times_s[index], 0.0), index == 0
