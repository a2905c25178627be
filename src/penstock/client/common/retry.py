"""Bounded exponential back-off, on the loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Final

from penstock.client.common.deadline import Deadline, current_deadline, within
from penstock.client.settings import ClientSettings
from penstock.model.errors import ConnectionLostError, ContainerNotFoundError, ControllerUnavailableError, PenstockError
from penstock.model.times import seconds_text
from penstock.runtime.pacing import GrowingDelay

#: With less time left of a call, no further attempt is made.
_ATTEMPT_S_MIN = 0.001

#: While a store does not serve a container, which may be on its way to another one, pauses are at most this long, in
#: seconds, ...
_MOVE_DELAY_S: Final = 0.2
#: ... or this share of the time since the first failure: so a caller waits little longer than the move takes.
_MOVE_DELAY_SHARE: Final = 1 / 8

#: How long, in seconds, attempts are repeated while the name of a server that was never reached cannot be resolved.
UNRESOLVED_TIME_MAX_S: Final = 5.0


class Backoff:
    """The pauses of one series of attempts.

    It ends with the deadline of the enclosing call, and no later than `retry_time_max_s` after the first failure since
    `reset`. A failed attempt counts from its own start, its waiting time included.
    """

    __slots__ = ("_attempts", "_delay", "_first_failure_s", "_rng", "_settings")

    def __init__(self, settings: ClientSettings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng
        self._delay = GrowingDelay(
            settings.retry_delay_initial_s, settings.retry_delay_max_s, settings.retry_delay_factor
        )
        self._first_failure_s: float | None = None
        self._attempts = 0

    def reset(self) -> None:
        """Start a new series after a success."""
        self._delay.reset()
        self._first_failure_s = None
        self._attempts = 0

    @contextmanager
    def attempt(self, what: str) -> Iterator[Deadline]:
        """Bound one attempt by the remaining time of the series, so that nested retries do not multiply it."""
        started_s = asyncio.get_running_loop().time()
        left_s = self._settings.retry_time_max_s
        if self._first_failure_s is not None:
            left_s = max(left_s - (started_s - self._first_failure_s), 0.0)
        with within(what, left_s, "retry_time_max_s") as deadline:
            try:
                yield deadline
            except PenstockError:
                if self._first_failure_s is None:
                    self._first_failure_s = started_s
                raise

    def count_from(self, since_s: float) -> None:
        """Count a series that begins now from `since_s`, on the loop's clock, when the failure really began.

        At least half of the time remains, so that there is an attempt whatever time the detection took.
        """
        if self._first_failure_s is None:
            now_s = asyncio.get_running_loop().time()
            self._first_failure_s = max(since_s, now_s - self._settings.retry_time_max_s / 2)

    @property
    def end_s(self) -> float | None:
        """When the series is given up, on the loop's clock; None while nothing has failed."""
        if self._first_failure_s is None:
            return None
        end_s = self._first_failure_s + self._settings.retry_time_max_s
        deadline = current_deadline()
        return end_s if deadline is None else min(end_s, deadline.at_s)

    def next_delay_s(self, now_s: float, *, is_moving: bool = False) -> float | None:
        """Return how long to wait after a failure at `now_s`, or None when the time limit has expired.

        `is_moving`: the container may be on its way to another store.
        """
        if self._first_failure_s is None:
            self._first_failure_s = now_s
        self._attempts += 1
        end_s = self.end_s
        assert end_s is not None, "there was a failure"
        left_s = end_s - now_s
        if left_s <= 0:
            return None
        longest_s = self._delay.take()
        if is_moving:
            longest_s = min(longest_s, max(_MOVE_DELAY_S, (now_s - self._first_failure_s) * _MOVE_DELAY_SHARE))
        delay_s = longest_s * (0.5 + 0.5 * self._rng.random())
        return min(delay_s, left_s)

    async def pause(self, error: PenstockError) -> None:
        """Wait before the next attempt; raises `error`, with a note on the attempts, when no time is left for one.

        A controller that was never reached is not an outage: `error` is raised immediately. For a name that was never
        resolved, `error` is raised after `UNRESOLVED_TIME_MAX_S`.
        """
        if isinstance(error, ControllerUnavailableError) and not error.was_reached:
            raise error
        now_s = asyncio.get_running_loop().time()
        delay_s = self.next_delay_s(now_s, is_moving=isinstance(error, ContainerNotFoundError))
        assert self._first_failure_s is not None
        is_unresolved = isinstance(error, ConnectionLostError) and bool(error.unresolved_host)
        if is_unresolved and now_s - self._first_failure_s >= UNRESOLVED_TIME_MAX_S:
            raise error
        if delay_s is None:
            error.add_note(self._account(now_s))
            raise error
        await asyncio.sleep(delay_s)
        deadline = current_deadline()
        if deadline is not None and deadline.left_s() < _ATTEMPT_S_MIN:
            # An attempt without time would end as one without a reply, and hide the reason of the last one.
            error.add_note(self._account(deadline.at_s))
            raise error

    def _account(self, now_s: float) -> str:
        """Describe the attempts, their number and duration, and the next action."""
        deadline = current_deadline()
        if deadline is None:
            assert self._first_failure_s is not None
            what, name, since_s = "trying", "retry_time_max_s", self._first_failure_s
        else:
            what, name, since_s = deadline.what, deadline.limit_name, deadline.started_s
        attempts = f"{self._attempts} attempt{'s' if self._attempts > 1 else ''}"
        return (
            f"gave up: {what}: {attempts} in {seconds_text(now_s - since_s)} ({name}); the next call starts with the "
            f"full time; raise {name} to outlast longer outages"
        )
