"""`OwnershipLease`: how long a container may answer from what it knows without hearing that it still owns its log.

An incarnation that was shut out cannot write any more: its log refuses. But it could read, from its memory, what was
true before. So it answers only while a look that found the log its own began at most a lease ago. Every append that
succeeds is such a look; an idle container looks a few times in each lease.

What is promised, and failure cases: docs/ownership.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.model.errors import LogClosedError, LogFencedError, OwnershipUnconfirmedError, StorageError
from penstock.segmentstore.tier1.durable_log import DurableLog

logger: logging.Logger = logging.getLogger(__name__)

#: Looks of an idle container in each lease: one may fail, and another be late, before anybody is refused.
_LOOKS_PER_LEASE = 3
_PAUSE_S_MIN = 0.001


class OwnershipLease:
    """The lease of one incarnation. `now_s` is `Runtime.monotonic_s`, as the log has it."""

    def __init__(self, container_id: int, log: DurableLog, *, lease_s: float, now_s: Callable[[], float]) -> None:
        self.lease_s = lease_s
        self._container_id = container_id
        self._log = log
        self._now_s = now_s
        self._is_ended = False

    @property
    def is_confirmed(self) -> bool:
        """Whether what the container knows may be answered now."""
        return not self._is_ended and self._now_s() - self._log.ownership_confirmed_s <= self.lease_s

    def end(self) -> None:
        """Answer nothing any more: before the log is given up, and whoever comes next is told that he need not wait."""
        self._is_ended = True

    async def wait_out_predecessor(self, opened_s: float, drift_percent: int) -> None:
        """Wait until no earlier incarnation can answer reads any more, and record that.

        To be called before anything is acknowledged. `opened_s`: when `DurableLog.open` had returned. An earlier
        one has found the log its own before that for the last time. Raises as `DurableLog.settle`.
        """
        if not self._log.may_predecessor_answer:
            return
        rest_s = opened_s + self.lease_s * (100 + drift_percent) / 100 - self._now_s()
        if rest_s > 0:
            logger.warning(
                "container %d waits %.1f s: its last incarnation was not closed, and may still answer reads",
                self._container_id,
                rest_s,
            )
            await asyncio.sleep(rest_s)
        await self._log.settle()

    def check(self) -> None:
        """Raise `OwnershipUnconfirmedError` when what the container knows may be out of date.

        To be called after an answer was made and before it is given: then it was true at a moment between.
        """
        confirmed_before_s = self._now_s() - self._log.ownership_confirmed_s
        if self._is_ended or confirmed_before_s > self.lease_s:
            raise OwnershipUnconfirmedError(
                self._container_id, confirmed_before_s=confirmed_before_s, lease_s=self.lease_s
            )

    async def keep(self) -> None:
        """Look at the log whenever nothing was appended for a while, for as long as the container runs.

        A log whose disk hangs is waited for: nobody is answered meanwhile, once the lease is over, and all goes on when
        it comes back. Raises `LogFencedError` when the log has another owner, `LogClosedError` when it has failed.
        """
        interval_s = self.lease_s / _LOOKS_PER_LEASE
        while True:
            rest_s = self._log.ownership_confirmed_s + interval_s - self._now_s()
            if rest_s > 0:
                # Never so short that the clock does not move.
                await asyncio.sleep(max(rest_s, _PAUSE_S_MIN))
                continue
            try:
                await self._log.confirm_ownership()
            except (LogFencedError, LogClosedError):
                raise
            except StorageError as error:
                logger.warning("container %d: its log does not say who owns it: %s", self._container_id, error)
                await asyncio.sleep(interval_s)
