"""`Transactions`: the transaction half of the controller.

A decision (commit or abort) is durable when it is answered; the work that follows runs in the background, serially per
stream for commits, and is repeated until it is done.

Source: controller API specification, section 9.14; controller internals specification, sections 6.1 to 6.7.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum

from penstock.controller.locks import StreamLocks
from penstock.controller.metadata.records import (
    ActiveTransaction,
    EpochRecord,
    StreamState,
    TransactionIndexEntry,
    TransactionStatus,
)
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.transaction_numbers import TransactionNumbers
from penstock.controller.retry import delay_s
from penstock.controller.segment_requests import together
from penstock.controller.tasks import BackgroundTasks
from penstock.controller.transactions.lease_timers import LeaseTimers, OpenTransaction
from penstock.controller.workflows.abort import abort, decide_abort, delete_transaction_segments
from penstock.controller.workflows.commit import commit, decide_commit
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.pending import finish_pending
from penstock.model.errors import (
    ControllerUnavailableError,
    CorruptionError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchSegmentError,
    NoSuchStreamError,
    PenstockError,
    StreamSealedError,
    TransactionError,
    UnsupportedOperationError,
)
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Scaling, ScalingKind

_logger = logging.getLogger(__name__)

#: A transaction's segments do not scale and are not rolled over early.
_NO_SCALING = Scaling(ScalingKind.FIXED)
#: Trying these again changes nothing; a person has to look.
_PERMANENT_ERRORS = (CorruptionError, NoSuchSegmentError, UnsupportedOperationError, TransactionError)

#: Version of a timer whose record may not have been written.
_VERSION_UNKNOWN = -1


class PingResult(Enum):
    """Answers to a ping."""

    OK = "ok"
    LEASE_TOO_LARGE = "lease too large"
    LIFETIME_EXCEEDED = "lifetime exceeded"
    DISCONNECTED = "disconnected"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CreatedTransaction:
    """A new transaction and the epoch whose segments it has segments beside."""

    id: TransactionId
    epoch: EpochRecord


class Transactions:
    """Transactions of all streams, as far as this controller looks after them."""

    def __init__(
        self, context: WorkflowContext, numbers: TransactionNumbers, locks: StreamLocks, tasks: BackgroundTasks
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._numbers = numbers
        self._locks = locks
        self._tasks = tasks
        self._timers = LeaseTimers(self._expired, context.settings.transactions_open_max)
        self._workflow_slots = asyncio.Semaphore(context.settings.workflow_concurrency_max)
        #: Streams with a commit task, and the transactions that it has still to see to, in the order of their posting.
        self._commits: dict[tuple[str, str], dict[TransactionId, None]] = {}
        self._is_running = True

    def stop(self) -> None:
        """Forget all timers; pings are answered DISCONNECTED from now on. Transactions stay as they are."""
        self._is_running = False
        self._timers.clear()

    @property
    def open_count(self) -> int:
        """Number of transactions with a running lease timer."""
        return len(self._timers)

    # Calls.

    async def create(self, scope: str, stream: str, lease_ms: int) -> CreatedTransaction:
        """Begin a transaction with a lease in milliseconds.

        Raises `InvalidArgumentError` for a lease out of bounds, `NoSuchStreamError`, `StreamSealedError`,
        `ControllerUnavailableError` when this controller looks after too many already.
        """
        if lease_ms < self._settings.lease_ms_min:
            raise InvalidArgumentError(f"lease value too small, min value is {self._settings.lease_ms_min}")
        if lease_ms > self._settings.lease_ms_max:
            raise InvalidArgumentError(f"lease value too large, max value is {self._settings.lease_ms_max}")
        if self._timers.is_full:
            raise ControllerUnavailableError(f"{len(self._timers)} transactions are open, the limit of this controller")
        return await self._context.catalog.on_stream(
            scope, stream, lambda tables: self._create(tables, lease_ms)
        )

    async def _create(self, tables: StreamTables, lease_ms: int) -> CreatedTransaction:
        for _ in range(self._settings.conflict_attempts_max):
            state, current = await tables.state_and_current_epoch()
            _check_takes_transactions(tables, state)
            transaction = TransactionId.of(current.reference_epoch, await self._numbers.next())
            epoch = current if current.reference_epoch == current.epoch else await tables.epoch(transaction.epoch)
            if epoch is None:
                continue
            now_ms = self._context.runtime.wall_clock_ms()
            lifetime_ms = min(
                self._settings.transaction_lifetime_leases_max * lease_ms, self._settings.transaction_lifetime_ms_max
            )
            record = ActiveTransaction(now_ms, lease_ms, now_ms + lease_ms, now_ms + lifetime_ms)
            await self._context.index.add_transaction(
                tables.scope, tables.stream, transaction, TransactionIndexEntry(self._context.host, now_ms)
            )
            opened = OpenTransaction(tables.scope, tables.stream, transaction)
            # Whatever happens to this call from here on, the timer cleans up.
            self._timers.arm(opened, _VERSION_UNKNOWN, lease_ms + self._settings.lease_slack_ms)
            try:
                version = await tables.create_transaction(transaction, record)
            except MetadataConflictError:
                self._timers.disarm(opened)
                continue  # Nobody can have this number; but if somebody has, take another one.
            self._timers.arm(opened, version, lease_ms + self._settings.lease_slack_ms)
            await self._create_segments(tables, transaction, epoch)
            return CreatedTransaction(transaction, epoch)
        raise MetadataConflictError(f"stream {tables.name}: no transaction could be created; try again")

    async def _create_segments(
        self, tables: StreamTables, transaction: TransactionId, epoch: EpochRecord
    ) -> None:
        await together(
            self._context.segments.create(
                transaction_segment_name(
                    segment_name(tables.scope, tables.stream, segment.id), transaction.high, transaction.low
                ),
                _NO_SCALING,
                0,
            )
            for segment in epoch.segments
        )
        # A seal may have begun since the state was read. Either it has seen the record, or its SEALING is seen here.
        found = await tables.transaction(transaction)
        if found is None or found.record.status is not TransactionStatus.OPEN:
            await delete_transaction_segments(self._context, tables, transaction)
            raise StreamSealedError(f"stream {tables.name} is being sealed; the new transaction was aborted")
        state = (await tables.state()).record.state
        if state in (StreamState.SEALING, StreamState.SEALED):
            if await decide_abort(self._context, tables, transaction) is TransactionStatus.ABORTING:
                await abort(self._context, tables, transaction)
            raise StreamSealedError(f"stream {tables.name} is sealed and takes no transactions")

    async def ping(self, scope: str, stream: str, transaction: TransactionId, lease_ms: int) -> PingResult:
        """Extend a transaction's lease to `lease_ms` from now; this controller looks after it from then on."""
        if not self._is_running:
            return PingResult.DISCONNECTED
        if lease_ms < 0:
            raise InvalidArgumentError(f"lease of {lease_ms} ms: use 0 or more")
        return await self._context.catalog.on_stream(
            scope, stream, lambda tables: self._ping(tables, transaction, lease_ms)
        )

    async def _ping(self, tables: StreamTables, transaction: TransactionId, lease_ms: int) -> PingResult:
        for _ in range(self._settings.conflict_attempts_max):
            found = await tables.transaction(transaction)
            status = found.record.status if found else await self._completed(tables, transaction)
            if status in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED):
                return PingResult.COMMITTED
            if status in (TransactionStatus.ABORTING, TransactionStatus.ABORTED):
                return PingResult.ABORTED
            if found is None:
                return PingResult.UNKNOWN
            if lease_ms > self._settings.lease_ms_max:
                return PingResult.LEASE_TOO_LARGE
            expiry_ms = self._context.runtime.wall_clock_ms() + lease_ms
            if expiry_ms > found.record.execution_expiry_ms:
                return PingResult.LIFETIME_EXCEEDED
            record = replace(found.record, lease_ms=lease_ms, lease_expiry_ms=expiry_ms)
            try:
                version = await tables.put_transaction(transaction, record, found.version)
            except MetadataConflictError:
                continue
            opened = OpenTransaction(tables.scope, tables.stream, transaction)
            if self._is_running:
                self._timers.arm(opened, version, lease_ms + self._settings.lease_slack_ms)
            return PingResult.OK
        raise MetadataConflictError(f"transaction {transaction.text} of {tables.name} keeps changing; try again")

    async def commit(
        self, scope: str, stream: str, transaction: TransactionId, *, writer_id: str, timestamp: int
    ) -> TransactionStatus:
        """Decide to commit, durably; merging follows in the background.

        Returns the status after the decision: COMMITTING or COMMITTED is success, ABORTING or ABORTED means that it
        was decided otherwise before, UNKNOWN that there is no such transaction.
        """

        async def decide(tables: StreamTables) -> TransactionStatus:
            status = await decide_commit(
                self._context, tables, transaction, writer_id=writer_id, timestamp=timestamp
            )
            return status if status else await self._completed(tables, transaction)

        status = await self._context.catalog.on_stream(scope, stream, decide)
        if status is TransactionStatus.COMMITTING:
            opened = OpenTransaction(scope, stream, transaction)
            self._timers.disarm(opened)
            self.post_commit(opened)
        return status

    async def abort(self, scope: str, stream: str, transaction: TransactionId) -> TransactionStatus:
        """Decide to abort, durably; deleting follows in the background. Returns the status after the decision."""

        async def decide(tables: StreamTables) -> TransactionStatus:
            status = await decide_abort(self._context, tables, transaction)
            return status if status else await self._completed(tables, transaction)

        status = await self._context.catalog.on_stream(scope, stream, decide)
        if status is TransactionStatus.ABORTING:
            opened = OpenTransaction(scope, stream, transaction)
            self._timers.disarm(opened)
            self.post_abort(opened)
        return status

    async def status(self, scope: str, stream: str, transaction: TransactionId) -> TransactionStatus:
        """Return a transaction's status, UNKNOWN if there is none or it was completed too long ago."""

        async def read(tables: StreamTables) -> TransactionStatus:
            found = await tables.transaction(transaction)
            return found.record.status if found else await self._completed(tables, transaction)

        return await self._context.catalog.on_stream(scope, stream, read)

    async def completed(self, scope: str, stream: str) -> list[tuple[TransactionId, TransactionStatus]]:
        """Return the newest completed transactions of a stream, newest first."""
        return await self._context.completed.newest(scope, stream)

    async def _completed(self, tables: StreamTables, transaction: TransactionId) -> TransactionStatus:
        return await self._context.completed.status(tables.scope, tables.stream, transaction)

    # Background.

    def post_commit(self, opened: OpenTransaction) -> None:
        """See to it that a COMMITTING transaction gets merged, with all others of its stream, and leaves the index."""
        key = (opened.scope, opened.stream)
        posted = self._commits.get(key)
        if posted is not None:
            posted[opened.transaction] = None
            return
        self._commits[key] = {opened.transaction: None}
        self._tasks.start(f"commit on {opened.scope}/{opened.stream}", self._commit_stream(key))

    async def _commit_stream(self, key: tuple[str, str]) -> None:
        scope, stream = key
        posted = self._commits[key]

        async def run() -> None:
            while posted:
                # Decided before they were posted, so this run merges them. Forgotten only when all of it is done: the
                # index entry must go in the end, and a repetition would find no other trace of them.
                current = list(posted)
                try:
                    await self._commit_alone(scope, stream)
                except NoSuchStreamError:
                    _logger.info("stream %s/%s is gone, and its transactions with it", scope, stream)
                await self._context.index.remove_transactions(scope, stream, current)
                for transaction in current:
                    del posted[transaction]

        try:
            await self._until_done(f"commit on {scope}/{stream}", run)
        finally:
            del self._commits[key]

    async def _commit_alone(self, scope: str, stream: str) -> None:
        async with self._locks.hold(f"{scope}/{stream}"):
            # What was begun before comes first: a commit cannot start in another workflow's state.
            await finish_pending(self._context, scope, stream)
            await self._context.catalog.on_stream(scope, stream, lambda tables: commit(self._context, tables))

    def post_abort(self, opened: OpenTransaction) -> None:
        """See to it that an ABORTING transaction's segments get deleted."""
        self._tasks.start(f"abort of {opened.transaction.text}", self._abort(opened))

    async def _abort(self, opened: OpenTransaction) -> None:
        await self._until_done(
            f"abort of {opened.transaction.text} on {opened.scope}/{opened.stream}",
            lambda: self._context.catalog.on_stream(
                opened.scope, opened.stream, lambda tables: abort(self._context, tables, opened.transaction)
            ),
        )

    async def _until_done(self, what: str, call: Callable[[], Awaitable[None]]) -> None:
        """Repeat `call`, with growing waits, until it succeeds or fails in a way that a repetition cannot mend."""
        attempt = 1
        while True:
            try:
                async with self._workflow_slots:
                    await call()
                return
            except NoSuchStreamError:
                _logger.info("%s: the stream is gone, and the transaction with it", what)
                return
            except _PERMANENT_ERRORS:
                _logger.exception("%s cannot go on; it is tried again when the next transaction is decided", what)
                return
            except PenstockError as error:
                level = logging.WARNING if attempt < self._settings.attempts_max else logging.ERROR
                _logger.log(level, "%s failed (attempt %d): %s", what, attempt, error)
            await asyncio.sleep(delay_s(self._settings, attempt))
            attempt += 1

    def _expired(self, opened: OpenTransaction, version: int) -> None:
        self._tasks.start(f"lease end of {opened.transaction.text}", self._end_lease(opened, version))

    async def _end_lease(self, opened: OpenTransaction, version: int) -> None:
        await self._until_done(
            f"end of the lease of {opened.transaction.text} on {opened.scope}/{opened.stream}",
            lambda: self._context.catalog.on_stream(
                opened.scope, opened.stream, lambda tables: self._abort_if_expired(tables, opened, version)
            ),
        )

    async def _abort_if_expired(self, tables: StreamTables, opened: OpenTransaction, version: int) -> None:
        """Abort a transaction whose record has not changed since `version`; otherwise go by what has changed it.

        That may have been a call here whose reply was lost, so a changed record is never just left alone.
        """
        found = await tables.transaction(opened.transaction)
        if found is None:
            # Completed, or announced and never begun.
            await self._context.index.remove_transactions(opened.scope, opened.stream, [opened.transaction])
            return
        if found.record.status is TransactionStatus.COMMITTING:
            self.post_commit(opened)
            return
        if found.record.status is TransactionStatus.OPEN:
            now_ms = self._context.runtime.wall_clock_ms()
            remaining_ms = found.record.lease_expiry_ms + self._settings.lease_slack_ms - now_ms
            if found.version != version and remaining_ms > 0:
                if self._is_running:
                    self._timers.arm(opened, found.version, remaining_ms)
                return
            # A conflict here means a ping in this very moment: `_until_done` looks again.
            await decide_abort(self._context, tables, opened.transaction, at_version=found.version)
            _logger.info("transaction %s of %s ran out of its lease", opened.transaction.text, tables.name)
        self.post_abort(opened)

    # Start.

    async def take_over(self) -> None:
        """Look after every transaction in the index: give open ones a new lease, finish decided ones."""
        async for scope, stream, transaction, entry in self._context.index.transactions():
            if entry.host == self._context.host:
                continue
            try:
                await self._take_over(scope, stream, transaction)
            except NoSuchStreamError:
                await self._context.index.remove_transactions(scope, stream, [transaction])

    async def _take_over(self, scope: str, stream: str, transaction: TransactionId) -> None:
        async def look(tables: StreamTables) -> None:
            found = await tables.transaction(transaction)
            opened = OpenTransaction(scope, stream, transaction)
            if found is None or found.record.status is TransactionStatus.COMMITTING:
                # Without a record it was completed, or never begun. A commit that finds nothing to do resets the
                # stream's state, in case the crash came just before that, and removes the index entry.
                self.post_commit(opened)
            elif found.record.status is TransactionStatus.ABORTING:
                self.post_abort(opened)
            else:
                now_ms = self._context.runtime.wall_clock_ms()
                # The client could not ping while no controller was there.
                expiry_ms = min(now_ms + found.record.lease_ms, found.record.execution_expiry_ms)
                renewed = replace(found.record, lease_expiry_ms=expiry_ms)
                try:
                    version = await tables.put_transaction(transaction, renewed, found.version)
                except MetadataConflictError:
                    return  # Its client, or another controller, was faster.
                await self._context.index.add_transaction(
                    scope, stream, transaction, TransactionIndexEntry(self._context.host, found.record.created_ms)
                )
                self._timers.arm(opened, version, expiry_ms - now_ms + self._settings.lease_slack_ms)

        await self._context.catalog.on_stream(scope, stream, look)


def _check_takes_transactions(tables: StreamTables, state: StreamState) -> None:
    if state in (StreamState.SEALING, StreamState.SEALED):
        raise StreamSealedError(f"stream {tables.name} is sealed and takes no transactions")
    if state is StreamState.CREATING:
        raise TransactionError(f"stream {tables.name} is not completely created")
