"""`BookKeeperLog`: `DurableLog` of one container in BookKeeper. Protocol and failure cases: docs/bookkeeper-log.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace

from penstock.model.errors import (
    CorruptionError,
    LogClosedError,
    LogDisabledError,
    LogFencedError,
    PenstockError,
    StorageConflictError,
    StorageError,
)
from penstock.model.errors.coordination import CoordinationError
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskSpace
from penstock.segmentstore.tier1.bookkeeper.entry_format import HEADER_LENGTH
from penstock.segmentstore.tier1.bookkeeper.ledger_chain import Append, LedgerChain, OpenLedger, fenced_error
from penstock.segmentstore.tier1.bookkeeper.log_opening import ClaimedLog, claim
from penstock.segmentstore.tier1.bookkeeper.log_process import BookKeeperProcess
from penstock.segmentstore.tier1.bookkeeper.log_reader import LogReader
from penstock.segmentstore.tier1.bookkeeper.log_record import LedgerLabels, LogLedger, LogRecord, record_path
from penstock.segmentstore.tier1.bookkeeper.record_store import StoredLogRecord
from penstock.segmentstore.tier1.durable_log import InspectFrame, LogAddress, LogFrameRun
from penstock.segmentstore.tier1.once_opened_log import LogLife, OnceOpenedLog

_log = logging.getLogger(__name__)

#: Access to a member of an enumeration is a call in Python 3.11.
_OPEN = LogLife.OPEN


class BookKeeperLog(OnceOpenedLog):
    """See the module. Made by `BookKeeperLogFactory`; `process` is what the logs of this process share."""

    def __init__(self, container_id: int, process: BookKeeperProcess) -> None:
        super().__init__(container_id, process.settings.frame_length_max_bytes)
        self.on_full: Callable[[], None] = lambda: None
        self._process = process
        self._settings = process.settings
        self._stored: StoredLogRecord | None = None
        self._chain: LedgerChain | None = None
        #: What `open` has found: the ledgers before its own, and their reader.
        self._found: Sequence[LogLedger] = ()
        self._found_record: LogRecord | None = None
        #: Ordinal of the first ledger of this incarnation, and when it had claimed the log.
        self._first_ordinal = 0
        self._claimed_s = 0.0
        self._reader: LogReader | None = None
        self._outstanding_frames = 0
        #: To find it takes a sixth of an append.
        self._loop: asyncio.AbstractEventLoop
        #: The fence was found by another call than an append: the next append fails with it.
        self._is_fence_untold = False
        self._recording: asyncio.Task[None] | None = None

    # -- properties -----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """See `DurableLog.epoch`. 0 before `open`."""
        return 0 if self._stored is None else self._stored.record.epoch

    @property
    def is_check_billed(self) -> bool:
        """See `DurableLog.is_check_billed`."""
        return False

    @property
    def is_long_to_open(self) -> bool:
        """See `DurableLog.is_long_to_open`. Never: an open reads nothing of other containers."""
        return False

    @property
    def problem(self) -> str:
        """Why appends wait, for operators; empty: they do not."""
        return "" if self._chain is None or self._state is not LogLife.OPEN else self._chain.problem

    # -- opening --------------------------------------------------------------------------------------------------

    async def open(self, inspect: InspectFrame | None = None) -> None:
        """See `DurableLog.open`. A log object opens once. Cancelled: the epoch may have been raised.

        Raises `LedgerError` if bookies of an older ledger do not answer: nothing is wrong with the log, try again.
        """
        self._begin_opening()
        self._opening = self._process.spawn(self._open(inspect))
        await asyncio.shield(self._opening)

    async def _open(self, inspect: InspectFrame | None) -> None:
        try:
            async with self._process.opening(self.container_id):
                claimed = await claim(self._process, self.container_id, inspect, self._check_opening)
                self._begin(claimed)
        except BaseException as error:
            self.fail(error if isinstance(error, PenstockError) else StorageError("open was interrupted"))
            raise
        if self._state is LogLife.OPENING:
            self._state = LogLife.OPEN

    def _begin(self, claimed: ClaimedLog) -> None:
        self._stored = claimed.stored
        self._found, self._found_record = claimed.found, claimed.stored.record
        self._reader = claimed.reader
        self._may_predecessor_answer = claimed.is_unsettled
        self._confirmed_s = claimed.began_s
        self._first_ordinal = claimed.ledger.ordinal
        self._claimed_s = self._process.runtime.monotonic_s()
        self._truncation = claimed.stored.record.truncation
        self._last_address = max(self._truncation, claimed.last_address)
        self._loop = asyncio.get_running_loop()
        self._chain = LedgerChain(self._process, self, claimed.ledger, self._describe)
        self._process.members.append(self)

    # -- reading --------------------------------------------------------------------------------------------------

    async def frame_runs(self) -> AsyncGenerator[LogFrameRun, None]:
        """See `DurableLog.frame_runs`."""
        self._check_open()
        reader, record = self._reader, self._found_record
        assert reader is not None
        assert record is not None
        try:
            async with aclosing(reader.frame_runs(record, self._found)) as runs:
                async for run in runs:
                    yield run
        except CorruptionError as error:
            if not await self._has_changed():
                raise
            raise fenced_error(self._describe()) from error
        finally:
            await reader.close()

    async def _has_changed(self) -> bool:
        """Return whether another process has changed the record: then ledgers may have been deleted with reason."""
        async with self._record_lock:
            found = await self._process.records.read(self.container_id)
            assert self._stored is not None
            return found is None or found.record.nonce != self._stored.record.nonce

    # -- appending ------------------------------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], length: int) -> asyncio.Future[LogAddress]:
        """See `DurableLog.append`."""
        if self._is_fence_untold and self._failure is not None:
            self._is_fence_untold = False
            refused: asyncio.Future[LogAddress] = asyncio.get_running_loop().create_future()
            refused.set_exception(self._failure)
            return refused
        # This runs for each frame of a server, so it makes few calls.
        if self._state is not _OPEN:
            self._check_open()
        held = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        if held != length or length > self._frame_length_max:
            self._check_frame(buffers, length)
        assert self._chain is not None
        self._outstanding_bytes += length
        self._outstanding_frames += 1
        append = Append(loop=self._loop)
        append.buffers = buffers
        append.length = HEADER_LENGTH + length
        self._chain.append(append)
        return append

    def _append_beat(self) -> asyncio.Future[LogAddress]:
        assert self._chain is not None
        beat = Append(loop=self._loop)
        beat.buffers = None
        beat.length = HEADER_LENGTH
        self._chain.append(beat)
        return beat

    def acknowledged(self, address: int, began_s: float, frame_count: int, length: int) -> None:
        """See `ChainLog.acknowledged`."""
        self._last_address = address
        self._outstanding_bytes -= length
        self._outstanding_frames -= frame_count
        if began_s > self._confirmed_s:
            self._confirmed_s = began_s
        if frame_count:
            self.on_synced()

    @property
    def sure_until_s(self) -> float:
        """See `ChainLog.sure_until_s`."""
        return self._confirmed_s + self._settings.deletion_delay_s / 2

    async def become_sure(self) -> None:
        """See `ChainLog.become_sure`."""
        while True:
            try:
                await self._check_record()
            except LogFencedError:
                raise
            except StorageError as error:
                _log.info("appends of %s wait: %s", self._describe(), error)
                await asyncio.sleep(self._settings.retry_s)
            else:
                return

    def watch(self, interval_s: float) -> None:
        """See `OpenLog.watch`."""
        if self._chain is not None:
            self._chain.watch(interval_s)

    def observe_bookies(self, registered: Collection[str], interval_s: float) -> None:
        """See `OpenLog.observe_bookies`."""
        if self._chain is not None:
            self._chain.observe_bookies(registered, interval_s)

    async def next_ledger(self) -> OpenLedger:
        """See `ChainLog.next_ledger`."""
        assert self._stored is not None
        assert self._chain is not None
        chain, process = self._chain, self._process
        record = self._stored.record
        ledger = OpenLedger(record.next_ordinal)
        labels = LedgerLabels(process.records.cluster_id, self.container_id, ledger.ordinal, self.epoch, record.begins)

        def on_problem(text: str) -> None:
            if not chain.has_ledger:
                chain.problem = text

        ledger.writer = await process.create_ledger(labels, ledger, gives_up=False, on_problem=on_problem)
        ledger_id = ledger.writer.ledger_id
        try:
            await self._change(lambda record: record.with_ledger(ledger_id))
        except LogFencedError:
            process.delete_ledgers((ledger_id,))
            raise
        return ledger

    def fail(self, error: PenstockError) -> None:
        """See `OpenLog.fail`."""
        if self._state in (LogLife.FAILED, LogLife.CLOSED):
            return
        self._state = LogLife.FAILED
        self._failure = error
        self._is_fence_untold = isinstance(error, LogFencedError) and not self._outstanding_frames
        self._outstanding_bytes = self._outstanding_frames = 0
        if self in self._process.members:
            self._process.members.remove(self)
        if self._chain is not None:
            self._chain.abandon(error)

    # -- ownership and records ------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """See `DurableLog.settle`."""
        self._check_usable()
        await asyncio.shield(self._process.spawn(self._change(lambda record: replace(record, is_settled=True))))
        self._may_predecessor_answer = False

    async def confirm_ownership(self, *, is_shared: bool = False) -> None:
        """See `DurableLog.confirm_ownership`. A beat is appended; without a ledger the record is checked."""
        self._check_usable()
        assert self._chain is not None
        last = self._chain.last_sent
        try:
            if is_shared and last is not None:
                await asyncio.shield(last)
            elif self._chain.has_ledger:
                await asyncio.shield(self._append_beat())
            else:
                await self._check_record()
        except LogFencedError:
            raise
        except LogClosedError:
            self._check_usable()
            raise

    async def _check_record(self) -> None:
        began_s = self._process.runtime.monotonic_s()
        async with self._record_lock:
            assert self._stored is not None
            try:
                is_own = await self._process.records.check(self._stored)
            except CoordinationError as error:
                raise StorageError(f"{self._describe()} has no ledger, and its record is not known: {error}") from error
        if not is_own:
            self.fail(fenced_error(self._describe()))
            self._check_usable()
        self._confirmed_s = max(self._confirmed_s, began_s)

    async def truncate(self, address: LogAddress) -> None:
        """See `DurableLog.truncate`. An address beyond the last acknowledged frame means that frame.

        While the coordination service is away it has no effect yet; a later call repeats it.
        """
        self._check_usable()
        wanted = min(address, self._last_address)
        if wanted <= self._truncation:
            return
        self._truncation = wanted
        assert self._stored is not None
        assert self._chain is not None
        now_s = asyncio.get_running_loop().time()
        record = self._pruned(self._stored.record.with_ends(self._chain.ends).truncated(wanted))
        is_due = now_s - self._truncated_s >= self._settings.truncate_interval_s
        if is_due or len(record.ledgers) < len(self._stored.record.ledgers):
            if self._recording is None or self._recording.done():
                self._truncated_s = now_s
                self._recording = self._process.spawn(self._change(lambda record: record.truncated(self._truncation)))
            done, _ = await asyncio.wait((self._recording,), timeout=self._settings.change_wait_s)
            for task in done:
                task.result()

    async def _change(self, changed: Callable[[LogRecord], LogRecord]) -> None:
        """Change the record, and delete ledgers that it does not name any more.

        Returns when the change is made. Raises `LogFencedError` if another process has changed it.
        """
        process = self._process
        async with self._record_lock:
            before = self._stored
            assert before is not None
            ends = dict(self._chain.ends) if self._chain is not None else {}
            record = self._pruned(changed(before.record.with_ends(ends)))
            record = replace(record, nonce=process.runtime.random_id())
            began_s = process.runtime.monotonic_s()
            try:
                self._stored = await process.records.change(before, record)
            except StorageConflictError as error:
                fenced = fenced_error(self._describe())
                self.fail(fenced)
                raise fenced from error
            self._confirmed_s = max(self._confirmed_s, began_s)
        for ordinal in ends:
            if self._chain is not None:
                self._chain.ends.pop(ordinal, None)
        kept = {each.ledger_id for each in record.ledgers}
        process.delete_ledgers([each.ledger_id for each in before.record.ledgers if each.ledger_id not in kept])

    def _pruned(self, record: LogRecord) -> LogRecord:
        """Return a record without ledgers that may be deleted. Earlier incarnations' ledgers stay for a time."""
        waited_s = self._process.runtime.monotonic_s() - self._claimed_s
        return record.pruned(0 if waited_s >= self._settings.deletion_delay_s else self._first_ordinal)

    async def space(self) -> DiskSpace | None:
        """See `DurableLog.space`. Always None."""
        return None

    # -- the end --------------------------------------------------------------------------------------------------

    async def disable(self, cause: PenstockError | None = None) -> None:
        """See `DurableLog.disable`. Appends in flight fail. Also possible after a failed append.

        Raises `LogFencedError` if another incarnation owns the log; only that one can disable it then.
        """
        self._check_owner(has_record=self._stored is not None)
        if isinstance(self._failure, LogFencedError):
            raise self._failure
        self.fail(LogDisabledError(f"{self._describe()} was disabled"))
        reason = "by an administrator" if cause is None else str(cause)
        change = self._change(lambda record: replace(record, is_enabled=False, reason=reason))
        try:
            await asyncio.shield(self._process.spawn(change))
        finally:
            await self.close()

    async def _close(self, *, is_open: bool) -> None:
        if not is_open and self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
        chain = self._chain
        if chain is not None and is_open:
            await chain.drained()
        if self._reader is not None:
            await self._reader.close()
        if self.epoch:
            self._process.owner.give_up(self.container_id, self.epoch)
        if chain is not None and self._state is LogLife.CLOSING:
            writers = chain.finish()
            if is_open:
                await self._release()
            for writer in writers:
                await self._process.close_writer(writer)
        if self in self._process.members:
            self._process.members.remove(self)
        self._state = LogLife.CLOSED

    async def _release(self) -> None:
        """Record that this incarnation has stopped, and where the log ends."""
        change = self._change(lambda record: replace(record.truncated(self._truncation), is_released=True))
        try:
            async with asyncio.timeout(self._settings.change_wait_s):
                await self._process.spawn(change)
        except (TimeoutError, PenstockError) as error:
            _log.info("the next owner of %s waits for its lease: %r", self._describe(), error)

    # -- helpers --------------------------------------------------------------------------------------------------

    def _describe(self) -> str:
        place = f"{self._process.ledgers.place} ({record_path(self.container_id)} in {self._process.records.place})"
        return f"the log of container {self.container_id} in {place}"
