"""`InFlightLimit`: how many bytes of one segment may be on the wire if the store's acknowledgements take long.

A few blocks in flight keep a store busy that syncs to a local disk within milliseconds. A store whose log is in a
bucket acknowledges after a tenth of a second and longer: with the same few blocks it would wait for its clients most of
the time. So the limit is the recent rate of acknowledged bytes times the wait for an acknowledgement, times a factor. A
writer that was limited is faster with the higher limit, until something else limits it.

Only the waits of blocks that are sent while nothing is in flight count. The waits of others include those of the blocks
before them, and would grow with the limit itself. At full speed there are none for a long time. Then nothing is sent
until all is acknowledged, at most once in `PROBE_INTERVAL_S`: the log may have become faster, or the store another one.

Pure: time is passed as an argument.
"""

from __future__ import annotations

from collections import deque

#: The limit is this multiple of rate times wait. Waits vary: an object leaves when it is full, or after an interval.
_FACTOR = 4
#: Waits and rates that count, the latest ones: the shortest wait, the highest rate.
_SAMPLE_COUNT = 3
#: Age of the latest wait at which a new one is measured.
PROBE_INTERVAL_S = 10.0


class InFlightLimit:
    """See the module. `bytes_max`: the limit is never higher.

    Attributes:
        limit_bytes: the limit; 0 before anything was measured.
    """

    __slots__ = (
        "_alone_bytes_left",
        "_alone_sent_s",
        "_bytes_max",
        "_rates",
        "_round_bytes",
        "_round_bytes_left",
        "_round_s",
        "_waited_s",
        "_waits_s",
        "limit_bytes",
    )

    def __init__(self, bytes_max: int) -> None:
        self.limit_bytes: int = 0
        self._bytes_max = bytes_max
        self._waits_s: deque[float] = deque(maxlen=_SAMPLE_COUNT)
        self._rates: deque[float] = deque(maxlen=_SAMPLE_COUNT)
        #: When the latest wait was measured.
        self._waited_s = float("-inf")
        #: When a block was sent while nothing was in flight, and its bytes until it is acknowledged; 0: none is.
        self._alone_sent_s = 0.0
        self._alone_bytes_left = 0
        #: The round in which a rate is measured: its beginning, the bytes acknowledged in it, and those until its end:
        #: what was in flight when it began.
        self._round_s = 0.0
        self._round_bytes = self._round_bytes_left = 0

    def must_probe(self, now_s: float) -> bool:
        """Whether nothing may be sent until all is acknowledged, so that a wait can be measured again."""
        return bool(self._waits_s) and not self._alone_bytes_left and now_s - self._waited_s > PROBE_INTERVAL_S

    def sent(self, byte_count: int, now_s: float, *, in_flight_bytes: int) -> None:
        """Count a block. `in_flight_bytes`: sent before it and not acknowledged."""
        if not in_flight_bytes:
            self._alone_sent_s, self._alone_bytes_left = now_s, byte_count
            self._round_s, self._round_bytes, self._round_bytes_left = now_s, 0, byte_count

    def acknowledged(self, byte_count: int, now_s: float, *, in_flight_bytes: int) -> None:
        """Count acknowledged bytes. `in_flight_bytes`: not acknowledged after that."""
        if self._alone_bytes_left:
            self._alone_bytes_left = max(self._alone_bytes_left - byte_count, 0)
            if not self._alone_bytes_left:
                self._waits_s.append(now_s - self._alone_sent_s)
                self._waited_s = now_s
        self._round_bytes += byte_count
        self._round_bytes_left -= byte_count
        if self._round_bytes_left <= 0 and now_s > self._round_s:
            self._rates.append(self._round_bytes / (now_s - self._round_s))
            self._round_s, self._round_bytes, self._round_bytes_left = now_s, 0, in_flight_bytes
        if self._waits_s and self._rates:
            self.limit_bytes = min(int(_FACTOR * max(self._rates) * min(self._waits_s)), self._bytes_max)

    def reset(self) -> None:
        """Forget what is in flight: the connection was lost."""
        self._alone_bytes_left = self._round_bytes_left = 0
