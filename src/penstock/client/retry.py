"""Bounded exponential back-off, on the loop's clock."""

from __future__ import annotations

import asyncio
from random import Random

from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError


class Backoff:
    """The pauses of one series of attempts. It ends `retry_time_max_s` after the first failure since `reset`."""

    __slots__ = ("_attempts", "_delay_s", "_first_failure_s", "_rng", "_settings")

    def __init__(self, settings: ClientSettings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng
        self._delay_s = settings.retry_delay_initial_s
        self._first_failure_s: float | None = None
        self._attempts = 0

    def reset(self) -> None:
        """Start afresh, because something worked."""
        self._delay_s = self._settings.retry_delay_initial_s
        self._first_failure_s = None
        self._attempts = 0

    def next_delay_s(self, now_s: float) -> float | None:
        """Return how long to wait after a failure at `now_s`, or None when the time is used up."""
        if self._first_failure_s is None:
            self._first_failure_s = now_s
        self._attempts += 1
        left_s = self._first_failure_s + self._settings.retry_time_max_s - now_s
        if left_s <= 0:
            return None
        delay_s = self._delay_s * (0.5 + 0.5 * self._rng.random())
        self._delay_s = min(self._delay_s * self._settings.retry_delay_factor, self._settings.retry_delay_max_s)
        return min(delay_s, left_s)

    async def pause(self, error: PenstockError) -> None:
        """Wait before the next attempt; raises `error`, with a note on the attempts, when the time is used up."""
        delay_s = self.next_delay_s(asyncio.get_running_loop().time())
        if delay_s is None:
            error.add_note(
                f"gave up after {self._attempts} attempts in {self._settings.retry_time_max_s:g} s (retry_time_max_s)"
            )
            raise error
        await asyncio.sleep(delay_s)
