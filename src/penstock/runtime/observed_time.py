"""`ObservedTime`: the event loop's clock without the time during which the process was suspended.

A suspended process (a stop signal, a pause of its virtual machine) receives nothing, yet its clock advances. Intervals
measured by `ObservedTime` do not include such a gap: it is detected by a tick that runs much later than it was due.
"""

from __future__ import annotations

import asyncio

#: Time between two ticks.
TICK_S = 0.5
#: A tick may be late by this much, on a busy machine, before the rest of its delay counts as a gap.
LATE_S_MAX = 0.5


class ObservedTime:
    """See the module. Active only between `start` and `stop`, at a cost of `1 / TICK_S` callbacks a second."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_s: float = 0.0
        self._lost_s: float = 0.0

    @property
    def is_running(self) -> bool:
        """Whether gaps are detected now."""
        return self._timer is not None

    def start(self) -> None:
        """Start detecting gaps. No effect if already started."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._ticked_s = loop.time()
            self._timer = loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """Stop detecting gaps: until the next `start` all time counts."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def now_s(self) -> float:
        """Return the time in seconds; it is monotonic, and a gap adds `TICK_S + LATE_S_MAX` at most."""
        now_s = asyncio.get_running_loop().time()
        return now_s - self._lost_s - self._gap_s(now_s)

    def _gap_s(self, now_s: float) -> float:
        if self._timer is None:
            return 0.0
        return max(0.0, now_s - self._ticked_s - TICK_S - LATE_S_MAX)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._lost_s += self._gap_s(now_s)
        self._ticked_s = now_s
        self._timer = loop.call_later(TICK_S, self._tick)
