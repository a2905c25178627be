"""`OwnershipLease`: limits how long a container answers from memory without confirming that it still owns its log.

A fenced incarnation cannot write, because its log rejects writes. But it could answer reads from outdated memory. It
therefore answers only within one lease after the start of the last check that confirmed its ownership. Every successful
append is such a check; an idle container makes a few checks per lease, or one where each is billed. Then an answer may
be due after the end of the lease, and waits for the check.

Guarantees and failure cases: docs/ownership.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.model.errors import LogClosedError, LogFencedError, OwnershipUnconfirmedError, StorageError
from penstock.segmentstore.tier1.durable_log import DurableLog

logger: logging.Logger = logging.getLogger(__name__)

#: Ownership checks of an idle container per lease: one may fail, and another be late, before reads are refused.
_CHECKS_PER_LEASE = 3
#: Where each check is billed: the age, in leases, at which a container renews the confirmation if answers were due that
#: cannot wait for it.
_RENEWED_AT = 0.9
#: How long an answer waits for a check, in leases: longer than one that is answered at once, shorter than a request.
_WAIT_MAX = 0.3
_PAUSE_S_MIN = 0.001


class OwnershipLease:
    """The lease of one incarnation. `now_s` is `Runtime.monotonic_s`, the clock that the log uses."""

    def __init__(self, container_id: int, log: DurableLog, *, lease_s: float, now_s: Callable[[], float]) -> None:
        self.lease_s = lease_s
        self._container_id = container_id
        self._log = log
        self._now_s = now_s
        self._is_ended = False
        #: When the check in progress began, or the first of those that have failed; None: the last one succeeded.
        self._checking_since_s: float | None = None
        #: Set when an answer that cannot wait was due since the last confirmation.
        self._used = asyncio.Event()
        #: Completed by the next confirmation, or by the end of the incarnation.
        self._next: asyncio.Future[None] | None = None

    @property
    def is_confirmed(self) -> bool:
        """Whether the container may answer from its state now."""
        self._used.set()
        try:
            self._check()
        except OwnershipUnconfirmedError:
            return False
        return True

    @property
    def check_age_s(self) -> float:
        """For how long the log has not answered checks of the ownership; 0: it has answered the last one."""
        return 0.0 if self._checking_since_s is None else self._now_s() - self._checking_since_s

    def end(self) -> None:
        """Stop answering, before the log is released and before the next incarnation may start without a wait."""
        self._is_ended = True
        self._wake()

    async def wait_out_predecessor(self, opened_s: float, drift_percent: int) -> None:
        """Wait until no earlier incarnation can answer reads any more, and record that.

        Call it before anything is acknowledged. `opened_s`: when `DurableLog.open` returned; the last successful
        ownership check of an earlier incarnation was before that. Raises as `DurableLog.settle`.
        """
        if not self._log.may_predecessor_answer:
            return
        rest_s = opened_s + self.lease_s * (100 + drift_percent) / 100 - self._now_s()
        if rest_s > 0:
            logger.warning(
                "container %d waits %.1f s: its previous incarnation was not closed and may still answer reads",
                self._container_id,
                rest_s,
            )
            await asyncio.sleep(rest_s)
        await self._log.settle()

    def check(self) -> None:
        """Raise `OwnershipUnconfirmedError` if the container's state may be out of date.

        Call it after an answer is computed and before it is sent: then it was correct at a moment in between.
        """
        self._used.set()
        self._check()

    async def confirmed(self) -> None:
        """Like `check`, but wait for the next confirmation if the lease has ended and each check is billed.

        The lease of an idle container ends once per check, for the time that a check takes.
        """
        if self._log.is_check_billed and not self._is_ended and not self._is_valid():
            self._used.set()
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._next,), timeout=self.lease_s * _WAIT_MAX)
        self._check()

    def _is_valid(self) -> bool:
        return not self._is_ended and self._now_s() - self._log.ownership_confirmed_s <= self.lease_s

    def _check(self) -> None:
        """Every answer passes here: the simulation watches it."""
        confirmed_before_s = self._now_s() - self._log.ownership_confirmed_s
        if self._is_ended or confirmed_before_s > self.lease_s:
            raise OwnershipUnconfirmedError(
                self._container_id, confirmed_before_s=confirmed_before_s, lease_s=self.lease_s
            )

    async def keep(self) -> None:
        """Check ownership of the log whenever nothing was appended for a while, for as long as the container runs.

        Waits for a log whose disk hangs: once the lease has expired no reads are answered, until the disk recovers.
        Raises `LogFencedError` if the log has another owner, `LogClosedError` if it has failed.
        """
        is_billed = self._log.is_check_billed
        interval_s = self.lease_s * _RENEWED_AT if is_billed else self.lease_s / _CHECKS_PER_LEASE
        pause_s = self.lease_s * (1 - _RENEWED_AT) if is_billed else interval_s
        while True:
            if (rest_s := self._rest_s(interval_s)) > 0:
                self._wake()
                # Never so short that the clock does not advance.
                await asyncio.sleep(max(rest_s, _PAUSE_S_MIN))
                continue
            if is_billed and await self._is_unused():
                continue
            self._used.clear()
            if self._checking_since_s is None:
                self._checking_since_s = self._now_s()
            try:
                await self._log.confirm_ownership(is_shared=True)
                self._checking_since_s = None
            except (LogFencedError, LogClosedError):
                raise
            except StorageError as error:
                logger.warning("container %d: its owner cannot be read from its log: %s", self._container_id, error)
                await asyncio.sleep(pause_s)

    def _wake(self) -> None:
        """Let the answers continue that wait for a check."""
        if self._next is not None:
            self._next.set_result(None)
            self._next = None

    def _rest_s(self, after_s: float) -> float:
        """Return the time until the last confirmation is `after_s` old."""
        return self._log.ownership_confirmed_s + after_s - self._now_s()

    async def _is_unused(self) -> bool:
        """Wait for a request or the end of the lease. Return whether neither has come, and the lease was renewed.

        A container without requests needs no confirmation until the next answer. In the gap between the end of the
        lease and the confirmation, answers wait (`confirmed`) or are refused, and retried by their client.
        """
        if self._used.is_set() or (rest_s := self._rest_s(self.lease_s)) <= 0:
            return False
        try:
            async with asyncio.timeout(max(rest_s, _PAUSE_S_MIN)):
                await self._used.wait()
        except TimeoutError:
            return self._rest_s(self.lease_s) > 0
        # A check of another container may have renewed the lease since the wait began.
        return self._rest_s(self.lease_s * _RENEWED_AT) > 0
