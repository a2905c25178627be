"""`OutageLog`: logs a repeated failure as one line at its beginning, periodic counts, and one line at its end."""

from __future__ import annotations

import asyncio
import logging

#: Time between two lines about a continuing outage.
REPORT_INTERVAL_S = 60.0


class OutageLog:
    """Reports the failures of one activity. All methods run on an event loop, whose clock they use.

    The first failure of an outage is logged in full, and so is the first failure of each other error class. The rest
    are counted; the count is logged every `REPORT_INTERVAL_S` while failures continue, and at the end.

    Attributes:
        failure_count: failures of the current outage; 0 when there is none.
    """

    def __init__(self, logger: logging.Logger, what: str) -> None:
        """`what` is the plural subject of the log lines, for example "flushes to long-term storage"."""
        self.failure_count: int = 0
        self._logger = logger
        self._what = what
        self._kinds: set[type[BaseException]] = set()
        self._began_s = 0.0
        self._reported_s = 0.0

    def failed(self, message: str, error: BaseException, *, level: int = logging.WARNING) -> None:
        """Record a failure. `message` says what failed and what happens next; it is logged with the error."""
        now_s = asyncio.get_running_loop().time()
        if not self.failure_count:
            self._began_s = self._reported_s = now_s
        self.failure_count += 1
        if type(error) not in self._kinds:
            self._kinds.add(type(error))
            self._logger.log(level, "%s: %s", message, error)
        elif now_s - self._reported_s >= REPORT_INTERVAL_S:
            self._reported_s = now_s
            self._logger.log(
                level,
                "%s still fail: %d failures in %.0f s; the latest: %s: %s",
                self._what,
                self.failure_count,
                now_s - self._began_s,
                message,
                error,
            )
        else:
            self._logger.debug("%s: %s", message, error)

    def ended(self) -> None:
        """Record a success. Costs nothing when there is no outage."""
        if not self.failure_count:
            return
        self._logger.warning(
            "%s succeed again, after %d failures in %.0f s",
            self._what,
            self.failure_count,
            asyncio.get_running_loop().time() - self._began_s,
        )
        self.failure_count = 0
        self._kinds.clear()
