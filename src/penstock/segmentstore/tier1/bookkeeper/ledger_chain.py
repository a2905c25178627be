"""`LedgerChain`: the writing side of one log: appends go to one ledger after the other.

A ledger follows when the present one is long, has lost a bookie, or has failed. The next one is created and recorded
while appends continue; its first entry is sent when every entry of the ledger before is answered. After a failure the
end of the ledger is fixed first, by opening it with recovery: entries up to it are acknowledged, the others are sent
again, in order. Protocol: docs/bookkeeper-log.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from penstock.model.errors import CorruptionError, LogFencedError, PenstockError
from penstock.model.errors.ledgers import LedgerError, LedgerFencedError, LedgerSilentError, NoSuchLedgerError
from penstock.model.segments import Buffer
from penstock.runtime.ledgers import LedgerWriter
from penstock.segmentstore.tier1.bookkeeper.entry_format import (
    BEAT_PARTS,
    HEADER_LENGTH,
    frame_address,
    frame_parts,
)
from penstock.segmentstore.tier1.bookkeeper.log_process import PASSING_ERRORS, BookKeeperProcess
from penstock.segmentstore.tier1.durable_log import LogAddress

_log = logging.getLogger(__name__)

#: The next ledger is created when the present one has this share of its bytes or entries.
_PREPARED_AT_PERCENT = 80


class Append(asyncio.Future[LogAddress]):
    """A frame to append, or a beat: the future of its address, and its `LedgerEntry`. One object, as there are many.

    Attributes:
        buffers: the frame; None: a beat.
        length: of the bytes of the entry.
        began_s: when it was sent; if answers were awaited then, when the last one before it came.
    """

    __slots__ = ("began_s", "buffers", "length")

    buffers: Sequence[Buffer] | None
    length: int
    began_s: float

    def parts(self) -> Sequence[Buffer]:
        """See `LedgerEntry.parts`."""
        return BEAT_PARTS if self.buffers is None else frame_parts(self.buffers)


class ChainLog(Protocol):
    """The log that a chain belongs to. See `BookKeeperLog`."""

    async def next_ledger(self) -> OpenLedger:
        """Create and record another ledger. Waits for bookies and the coordination service.

        Raises `LogFencedError` if another process owns the log.
        """

    def acknowledged(self, address: int, began_s: float, frame_count: int, length: int) -> None:
        """Note that appends up to `address` have their addresses. `began_s`: when the last of them was sent.

        `length`: bytes of the frames among them.
        """

    @property
    def sure_until_s(self) -> float:
        """When a fence may have been forgotten, on `Runtime.monotonic_s`, unless the ownership is confirmed before."""

    async def become_sure(self) -> None:
        """Check the record. Waits for the coordination service. Raises `LogFencedError`."""

    def fail(self, error: PenstockError) -> None:
        """End the log: nothing more is acknowledged."""


class OpenLedger:
    """A ledger that entries are, or will be, sent to: a `LedgerObserver`. `writer` is set after its creation."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal: int = ordinal
        self.writer: LedgerWriter | None = None
        self.sent: deque[Append] = deque()
        #: Entries and bytes sent so far, and the last confirmed entry.
        self.entry_count: int = 0
        self.sent_bytes: int = 0
        self.last_confirmed: int = -1
        #: Bytes of the bound in flight that its entries occupy.
        self.flight_bytes: int = 0
        self.chain: LedgerChain | None = None

    def confirmed(self, last_entry: int) -> None:
        """See `LedgerObserver.confirmed`."""
        if self.chain is not None:
            self.chain.confirmed(self, last_entry)

    def failed(self, error: LedgerError) -> None:
        """See `LedgerObserver.failed`."""
        if self.chain is not None:
            self.chain.failed(self, error)


class LedgerChain:
    """See the module.

    Attributes:
        ends: last entries of ledgers that have ended, by ordinal, for the next change of the record. -1: empty.
        problem: why appends wait, for operators; empty: they do not.
    """

    def __init__(
        self, process: BookKeeperProcess, log: ChainLog, first: OpenLedger, describe: Callable[[], str]
    ) -> None:
        self.ends: dict[int, int] = {}
        self.problem: str = ""
        self._process = process
        self._settings = settings = process.settings
        self._budget = process.budget
        self._monotonic_s = process.runtime.monotonic_s
        #: From so many bytes or entries of a ledger on, rounded up, the next one is due soon.
        self._near_bytes = -(-settings.ledger_bytes * _PREPARED_AT_PERCENT // 100)
        self._near_entries = -(-settings.ledger_entries * _PREPARED_AT_PERCENT // 100)
        self._log = log
        self._describe = describe
        self._queue: deque[Append] = deque()
        self._current: OpenLedger | None = first
        first.chain = self
        self._next: OpenLedger | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._mending: asyncio.Task[None] | None = None
        #: The ledger whose end is being fixed.
        self._broken: OpenLedger | None = None
        self._is_roll_wanted = False
        self._is_over = False
        self._checking: asyncio.Task[None] | None = None
        #: When an answer came last, or an append was sent while none was awaited.
        self._now_s = 0.0
        self._unchecked = -1
        self._watched: Append | None = None
        self._watched_s = 0.0
        self._degraded_s = 0.0
        self._emptied: asyncio.Event = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether no append waits for its answer."""
        return not self._queue and (self._current is None or not self._current.sent) and self._mending is None

    @property
    def last_sent(self) -> Append | None:
        """The append that was sent last and is not answered; None if there is none."""
        return self._current.sent[-1] if self._current is not None and self._current.sent else None

    @property
    def has_ledger(self) -> bool:
        """Whether entries can be sent at present."""
        return self._current is not None and not self._is_over

    def _has_ended(self) -> bool:
        return self._is_over

    # -- appending ------------------------------------------------------------------------------------------------

    def append(self, append: Append) -> None:
        """Send an append when its turn comes: at once, for the most part."""
        ledger, length = self._current, append.length
        if (
            ledger is None
            or self._queue
            or self._is_over
            or self._is_roll_wanted
            or ledger.sent_bytes + length >= self._near_bytes
            or ledger.entry_count + 1 >= self._near_entries
            or not self._budget.take(length, ledger.flight_bytes)
        ):
            self._queue.append(append)
            self._pump()
            return
        ledger.flight_bytes += length
        if not ledger.sent:
            self._now_s = self._monotonic_s()
        self._send(ledger, append, self._now_s)

    def _pump(self) -> None:
        """Send what the ledger and the bound of bytes in flight permit."""
        ledger, queue = self._current, self._queue
        if ledger is None or ledger.writer is None or self._is_over:
            return
        if self._is_due(ledger) and self._next is not None:
            if ledger.sent:
                return  # The last answer switches.
            ledger = self._switch(ledger)
        budget = self._budget
        if queue:
            self._now_s = self._monotonic_s()
        while queue and self._current is ledger and not self._is_at_limit(ledger):
            length = queue[0].length
            if not budget.take(length, ledger.flight_bytes):
                budget.wait(self._pump)
                break
            ledger.flight_bytes += length
            append = queue.popleft()
            self._send(ledger, append, self._now_s)
            if self._is_due(ledger) and self._next is not None:
                break
        if self._current is ledger:
            self._prepare_if_near(ledger)

    def _send(self, ledger: OpenLedger, append: Append, now_s: float) -> None:
        append.began_s = now_s
        ledger.sent.append(append)
        ledger.entry_count += 1
        ledger.sent_bytes += append.length
        assert ledger.writer is not None
        try:
            ledger.writer.append(append)
        except LedgerError as error:
            self.failed(ledger, error)

    def confirmed(self, ledger: OpenLedger, last_entry: int) -> None:
        """Acknowledge entries of a ledger. See `LedgerObserver.confirmed`."""
        if ledger is not self._current or self._is_over:
            return  # It was given up. Fixing its end shows which entries it has.
        now_s = self._now_s = self._monotonic_s()
        if self._checking is not None or now_s >= self._log.sure_until_s:
            self._unchecked = last_entry
            if self._checking is None:
                self._checking = self._process.spawn(self._check(ledger))
            return
        self._acknowledge(ledger, last_entry)
        if self._queue or self._is_due(ledger):
            self._pump()

    async def _check(self, ledger: OpenLedger) -> None:
        """Acknowledge what was confirmed once the record shows that no other process has opened the log."""
        try:
            await self._log.become_sure()
        except PenstockError as error:
            self._log.fail(error)
            return
        finally:
            self._checking = None
        self.confirmed(ledger, self._unchecked)

    def _acknowledge(self, ledger: OpenLedger, last_entry: int) -> None:
        sent, length, beat_count, began_s = ledger.sent, 0, 0, 0.0
        entry = before = ledger.last_confirmed
        address = frame_address(ledger.ordinal, 0)
        while entry < last_entry and sent:
            append = sent.popleft()
            entry += 1
            length += append.length
            began_s = append.began_s
            if append.buffers is None:
                beat_count += 1
            try:
                append.set_result(LogAddress(address + entry))
            except asyncio.InvalidStateError:
                continue  # It was cancelled.
        ledger.last_confirmed = entry
        if not length:
            return
        self.problem = ""
        self._give(ledger, length)
        frame_bytes = length - HEADER_LENGTH * (entry - before)
        self._log.acknowledged(address + entry, began_s, entry - before - beat_count, frame_bytes)
        if not sent and self.is_empty:
            self._emptied.set()

    def _give(self, ledger: OpenLedger, length: int) -> None:
        """Give back room that a ledger's entries occupy; nothing if it has none any more."""
        given = min(length, ledger.flight_bytes)
        ledger.flight_bytes -= given
        if given:
            self._budget.give(given)

    # -- the next ledger ------------------------------------------------------------------------------------------

    def _is_due(self, ledger: OpenLedger) -> bool:
        settings = self._settings
        is_full = ledger.sent_bytes >= settings.ledger_bytes or ledger.entry_count >= settings.ledger_entries
        return self._is_roll_wanted or is_full

    def _is_at_limit(self, ledger: OpenLedger) -> bool:
        """Return whether the ledger takes nothing more, even if there is no other one."""
        limit = self._settings.ledger_bytes_limit
        is_at_limit = ledger.sent_bytes >= limit or ledger.entry_count >= (1 << 32) - 1
        if is_at_limit and not self.problem:
            self.problem = (
                f"ledger {ledger.writer.ledger_id if ledger.writer else 0} is full, and there is no other one"
            )
        return is_at_limit

    def _prepare_if_near(self, ledger: OpenLedger) -> None:
        is_near = (
            self._is_roll_wanted or ledger.sent_bytes >= self._near_bytes or ledger.entry_count >= self._near_entries
        )
        if is_near and self._next is None and self._preparing is None and not self._is_over:
            self._preparing = self._process.spawn(self._prepare())

    async def _prepare(self) -> None:
        """Create and record the next ledger, and continue in it when it is due."""
        try:
            prepared = await self._log.next_ledger()
        except PenstockError as error:
            self._log.fail(error)
            return
        finally:
            self._preparing = None
        if self._has_ended():
            return
        prepared.chain = self
        self._next = prepared
        if self._mending is None:
            self._pump()

    def _switch(self, ledger: OpenLedger) -> OpenLedger:
        """Continue in the next ledger. Everything of the present one is answered."""
        following = self._next
        assert following is not None
        assert not ledger.sent
        assert ledger.writer is not None
        self.ends[ledger.ordinal] = ledger.entry_count - 1
        ledger.chain = None
        self._process.close_in_background(ledger.writer)
        self._current, self._next = following, None
        self._is_roll_wanted = False
        self._degraded_s = 0.0
        return following

    def observe_bookies(self, registered: Collection[str], interval_s: float) -> None:
        """See `OpenLog.observe_bookies`."""
        settings = self._settings
        ledger = self._current
        if ledger is None or ledger.writer is None or self._is_over:
            return
        is_degraded = any(each not in registered for each in ledger.writer.bookies)
        is_small = ledger.writer.quorum != settings.quorum
        is_better = is_degraded and len(registered) >= settings.ensemble_min
        is_better = is_better or (is_small and len(registered) >= settings.ensemble)
        self._degraded_s = self._degraded_s + interval_s if is_better else 0.0
        if self._degraded_s >= settings.degraded_roll_s and not self._is_roll_wanted:
            _log.info("%s continues in another ledger, because bookies have gone or come", self._describe())
            self._is_roll_wanted = True
            self._pump()

    # -- failures -------------------------------------------------------------------------------------------------

    def watch(self, interval_s: float) -> None:
        """Give the ledger up if its oldest append has no answer for `append_stall_s`.

        Counts calls, so that time in which this process was suspended does not count.
        """
        ledger = self._current
        oldest = ledger.sent[0] if ledger is not None and ledger.sent else None
        if ledger is None or oldest is None or oldest is not self._watched:
            self._watched, self._watched_s = oldest, 0.0
            return
        self._watched_s += interval_s
        if self._watched_s >= self._settings.append_stall_s:
            self._watched = None
            self.failed(ledger, LedgerSilentError(0, f"an append has no answer for {self._watched_s:g} s"))

    def failed(self, ledger: OpenLedger, error: LedgerError) -> None:
        """Give a ledger up, or end the log, by the kind of error. See `LedgerObserver.failed`."""
        if ledger is not self._current or self._is_over:
            return
        if isinstance(error, LedgerFencedError):
            self._log.fail(fenced_error(self._describe(), error))
        elif isinstance(error, PASSING_ERRORS):
            _log.warning("%s continues in another ledger: %s", self._describe(), error)
            self.problem = str(error)
            self._current, self._broken = None, ledger
            self._mending = self._process.spawn(self._mend(ledger))
        else:
            self._log.fail(error)

    async def _mend(self, ledger: OpenLedger) -> None:
        """Fix the end of a ledger that has failed, acknowledge what it has, and continue in another one."""
        try:
            end = await self._fixed_end(ledger)
            if self._has_ended():
                return
            if end < ledger.last_confirmed:
                place = f"ledger {ledger.writer.ledger_id if ledger.writer else 0} of BookKeeper"
                raise CorruptionError(
                    place, end + 1, f"entries up to {ledger.last_confirmed} were confirmed, and it ends at {end}"
                )
            self._acknowledge(ledger, end)
            self._take_back(ledger)
            self.ends[ledger.ordinal] = end
            if end < 0:
                await asyncio.sleep(self._settings.retry_s)  # The next ledger may fail as fast as this one.
            while self._next is None:
                if self._preparing is None:
                    self._preparing = self._process.spawn(self._prepare())
                await asyncio.shield(self._preparing)
                if self._has_ended():
                    return
            self._current, self._next = self._next, None
            self._is_roll_wanted, self._degraded_s = False, 0.0
            self._mending = None
            self.problem = ""
            if self.is_empty:
                self._emptied.set()
            self._pump()
        except PenstockError as error:
            self._log.fail(error)

    async def _fixed_end(self, ledger: OpenLedger) -> int:
        """Return the final last entry of a ledger, -1 if it is empty. Waits for its bookies."""
        assert ledger.writer is not None
        await self._process.close_writer(ledger.writer)
        # The client has dropped them: a log that waits for bookies must not hold up the others.
        self._give(ledger, ledger.flight_bytes)
        while True:
            try:
                reader = await self._process.ledgers.open(ledger.writer.ledger_id, is_fencing=True)
            except NoSuchLedgerError as error:
                # Only a later owner deletes it. If there is none, the next open reports what is missing.
                raise fenced_error(self._describe(), error) from error
            except PASSING_ERRORS as error:
                self.problem = str(error)
                await asyncio.sleep(self._settings.retry_s)
                continue
            await reader.close()
            return reader.last_entry

    def _take_back(self, ledger: OpenLedger) -> None:
        """Queue again what a ledger that has ended does not have."""
        self._queue.extendleft(reversed(ledger.sent))
        ledger.sent.clear()
        ledger.chain = self._broken = None

    # -- the end --------------------------------------------------------------------------------------------------

    async def drained(self) -> None:
        """Wait until no append waits for its answer, or the chain has ended."""
        while not self.is_empty and not self._is_over:
            self._emptied.clear()
            await self._emptied.wait()

    def finish(self) -> list[LedgerWriter]:
        """End a chain that is empty: set the ends of its ledgers, and return their writers, to be closed."""
        self._is_over = True
        if self._preparing is not None:
            self._preparing.cancel()
        writers = []
        for ledger in (self._current, self._next):
            if ledger is not None and ledger.writer is not None:
                self.ends[ledger.ordinal] = ledger.entry_count - 1
                ledger.chain = None
                writers.append(ledger.writer)
        return writers

    def abandon(self, error: PenstockError) -> None:
        """End the chain: everything that has no answer fails."""
        if self._is_over:
            return
        self._is_over = True
        sent: list[Append] = []
        for ledger in (self._broken, self._current, self._next):
            if ledger is not None:
                if ledger.writer is not None and not isinstance(error, LogFencedError):
                    self._process.close_in_background(ledger.writer)
                sent += ledger.sent
                ledger.sent.clear()
                ledger.chain = None
                self._give(ledger, ledger.flight_bytes)
        waiting, self._queue = [*sent, *self._queue], deque()
        for task in (self._preparing, self._mending, self._checking):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        for append in waiting:
            if not append.done():
                append.set_exception(error)
        self._emptied.set()


def fenced_error(what: str, error: LedgerError | None = None) -> LogFencedError:
    """Return the error of a log that another incarnation has opened."""
    because = f" ({error})" if error is not None else ""
    return LogFencedError(f"{what} has been opened by another incarnation: this one must stop{because}")
