"""Waits between attempts, each longer than the one before, up to a maximum: `GrowingDelay`, `delay_after`."""

from __future__ import annotations

import asyncio
import math


class GrowingDelay:
    """Waits of one series of attempts, in seconds: `first_s`, then `factor` times the one before, at most `max_s`.

    It neither counts attempts nor knows a deadline: the caller bounds the series.

    Attributes:
        next_s: the wait that comes next.
    """

    __slots__ = ("_factor", "_first_s", "_max_s", "next_s")

    def __init__(self, first_s: float, max_s: float = math.inf, factor: float = 2) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._factor = factor
        self.next_s: float = first_s

    def take(self) -> float:
        """Return the next wait in seconds, and let the one after it grow."""
        taken_s = self.next_s
        self.next_s = min(taken_s * self._factor, self._max_s)
        return taken_s

    def reset(self) -> None:
        """Begin again with `first_s`, after a success."""
        self.next_s = self._first_s

    async def sleep(self) -> None:
        """Wait for the next delay."""
        await asyncio.sleep(self.take())


def delay_after(attempt: int, first: float, longest: float, factor: float = 2) -> float:
    """Return the wait after failed attempt number `attempt` (1, 2, ...), in the unit of `first` and `longest`."""
    delay = GrowingDelay(first, longest, factor)
    for _ in range(attempt - 1):
        delay.take()
    return delay.next_s
