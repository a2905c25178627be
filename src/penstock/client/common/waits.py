"""`Waits`: logs what a client waits for once a wait is long, why, for how long still, and when it is over.

One object per client. A wait is registered where the client waits for a server: a call of the controller, a request to
a segment store, an appender with unacknowledged events. The lines are those of the logger ``penstock.client.waits``, at
WARNING, so that a program without any logging set-up prints them to standard error. See ``docs/deadlines.md``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    ConnectionLostError,
    ContainerNotFoundError,
    ControllerUnavailableError,
    OutcomeUnknownError,
    PenstockError,
    StorageFullError,
)

_log = logging.getLogger("penstock.client.waits")

DISK_FULL = "disk full on the server"
UNREACHABLE = "server unreachable, retrying"
NO_ANSWER = "no answer from the server yet"
NO_ACKNOWLEDGEMENT = "no acknowledgement from the server yet"
STARTING = "the segment's container is not running yet, retrying"
REFUSED = "the server is busy, retrying"

#: Interval between two inspections of the waits while one of them is long.
_INSPECTION_INTERVAL_S = 0.5
#: Different reasons in one report; characters of the details of a reason.
_REASON_COUNT_MAX = 3
_DETAIL_CHARACTERS_MAX = 240


class Wait:
    """One wait of a client. Make it with `Waits.begin`.

    Attributes:
        what: the call or the work that waits, as "create stream shop/orders".
        since_s: when it began, or when it last made progress, on the loop's clock.
        why: the reason, as far as it is known; one of the constants of this module.
        detail: an address, or an error's text; "": nothing is known.
        until_s: when it is given up, on the loop's clock; None: it has no bound of its own.
        on_long: called with the wait at each inspection while the wait is long; it may set the fields above.
        is_inspected: whether `on_long` was called; what it has begun then has half a second before the first report.
    """

    __slots__ = ("detail", "is_inspected", "on_long", "since_s", "until_s", "what", "why")

    def __init__(
        self, what: str, since_s: float, why: str, until_s: float | None, on_long: Callable[[Wait], None] | None
    ) -> None:
        self.what: str = what
        self.since_s: float = since_s
        self.why: str = why
        self.detail: str = ""
        self.until_s: float | None = until_s
        self.on_long: Callable[[Wait], None] | None = on_long
        self.is_inspected: bool = False

    def note(self, error: PenstockError) -> None:
        """Take the reason from the error of the last attempt."""
        self.why = reason_of(error)
        self.detail = str(error)


class Waits:
    """See the module. Use within one event loop.

    A wait is long after `wait_notice_after_s`. Then there is a line for each reason, repeated every
    `wait_notice_interval_s` and when a reason changes, and one line when no wait is long any more.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._waits: dict[Wait, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: When the first wait began of those that were reported and are not over; None: there is nothing to report.
        self._reported_since_s: float | None = None
        self._reported_reasons: set[str] = set()
        self._next_report_s = 0.0

    def begin(
        self,
        what: str,
        *,
        why: str = NO_ANSWER,
        until_s: float | None = None,
        on_long: Callable[[Wait], None] | None = None,
    ) -> Wait:
        """Register a wait; see `Wait` for the arguments."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        wait = Wait(what, now_s, why, until_s, on_long)
        self._waits[wait] = None
        if self._timer is None:
            self._timer = loop.call_later(self._settings.wait_notice_after_s, self._inspect)
        return wait

    def end(self, wait: Wait, *, is_failed: bool = False) -> None:
        """Remove a wait; fine if it is removed already. `is_failed`: its error says that it was given up."""
        self._waits.pop(wait, None)
        if self._reported_since_s is not None:
            self._end_report(is_failed=is_failed)

    @contextmanager
    def during(self, what: str, until_s: float | None) -> Iterator[Wait]:
        """Register a wait for as long as the block runs."""
        wait = self.begin(what, until_s=until_s)
        try:
            yield wait
        except BaseException:
            self.end(wait, is_failed=True)
            raise
        self.end(wait)

    def close(self) -> None:
        """Report nothing more."""
        self._waits.clear()
        self._reported_since_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- inside -------------------------------------------------------------------------------------------------

    def _long_waits(self, now_s: float) -> list[Wait]:
        # The tolerance keeps a timer that fires a little early from missing its wait.
        latest_s = now_s - self._settings.wait_notice_after_s + 0.01
        return [wait for wait in self._waits if wait.since_s <= latest_s]

    def _inspect(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        is_first: set[Wait] = set()
        for wait in self._long_waits(now_s):
            if wait.on_long is not None:
                why = wait.why
                wait.on_long(wait)
                if not wait.is_inspected and wait.why == why == NO_ACKNOWLEDGEMENT:
                    is_first.add(wait)
                wait.is_inspected = True
        waits = self._long_waits(now_s)
        if reported := [wait for wait in waits if wait not in is_first]:
            self._report(reported, now_s)
        elif not waits and self._reported_since_s is not None:
            self._end_report(is_failed=False)
        if not self._waits:
            return
        delay_s = _INSPECTION_INTERVAL_S
        if not waits:
            next_s = min(wait.since_s for wait in self._waits) + self._settings.wait_notice_after_s
            delay_s = max(next_s - now_s, delay_s)
        self._timer = loop.call_later(delay_s, self._inspect)

    def _report(self, waits: list[Wait], now_s: float) -> None:
        by_reason: dict[str, list[Wait]] = {}
        for wait in sorted(waits, key=lambda wait: wait.since_s):
            by_reason.setdefault(wait.why, []).append(wait)
        is_new = not self._reported_reasons.issuperset(by_reason)
        if self._reported_since_s is not None and not is_new and now_s < self._next_report_s:
            return
        if self._reported_since_s is None:
            self._reported_since_s = waits[0].since_s
        self._reported_since_s = min(self._reported_since_s, min(wait.since_s for wait in waits))
        if now_s >= self._next_report_s:
            self._reported_reasons.clear()
            self._next_report_s = now_s + self._settings.wait_notice_interval_s
        # A reason that comes and goes is reported once per interval.
        self._reported_reasons.update(by_reason)
        for alike in list(by_reason.values())[:_REASON_COUNT_MAX]:
            _log.warning("%s", _line(alike, now_s))

    def _end_report(self, *, is_failed: bool) -> None:
        """Report the end of the long waits if there is none left."""
        now_s = asyncio.get_running_loop().time()
        if self._long_waits(now_s):
            return
        assert self._reported_since_s is not None
        waited_s = now_s - self._reported_since_s
        self._reported_since_s = None
        self._reported_reasons.clear()
        self._next_report_s = 0.0
        if not is_failed:
            _log.warning("the wait ended after %s", _seconds(waited_s))


def reason_of(error: PenstockError) -> str:
    """Return why a failed attempt is repeated, in the words of this module's constants."""
    match error:
        case StorageFullError():
            return DISK_FULL
        case ContainerNotFoundError():
            return STARTING
        case ConnectionLostError() | ControllerUnavailableError():
            return UNREACHABLE
        case OutcomeUnknownError():
            return NO_ANSWER
        case _:
            return REFUSED


def _line(waits: list[Wait], now_s: float) -> str:
    """Return the line about waits of one reason; the first of them has waited longest."""
    wait = waits[0]
    line = f"{wait.what}: waiting for {_seconds(now_s - wait.since_s)}: {wait.why}"
    if wait.until_s is not None:
        line += f", {_seconds(max(wait.until_s - now_s, 0.0))} left"
    if wait.detail:
        detail = " ".join(wait.detail.split())
        line += f" ({detail[:_DETAIL_CHARACTERS_MAX]}{'…' if len(detail) > _DETAIL_CHARACTERS_MAX else ''})"
    if len(waits) > 1:
        line += f"; {len(waits) - 1} more wait{'' if len(waits) == 2 else 's'} for the same reason"
    return line


def _seconds(duration_s: float) -> str:
    return f"{duration_s:.0f} s"
