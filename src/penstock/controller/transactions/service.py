"""`Transactions`: the calls for transactions, independent of the protocol.

A decision (commit or abort) is durable when it is answered; `TransactionWork` does the work that follows. Changes run
in a task of their own, so that a client that disconnects during a call leaves nothing half done.

Source: controller-api 9.14; controller-internals 6.1 to 6.7.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum

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
from penstock.controller.transaction_state.creations import StreamView
from penstock.controller.transactions.descriptions import TransactionDescriptions
from penstock.controller.transactions.lease_timers import OpenTransaction
from penstock.controller.transactions.work import VERSION_UNKNOWN, TransactionWork
from penstock.controller.work.background_work import BackgroundWork, all_ended
from penstock.controller.work.work_registry import WorkRegistry
from penstock.controller.workflow_runner import WorkflowRunner
from penstock.controller.workflows.abort import decide_abort
from penstock.controller.workflows.commit import decide_commit
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.prepare import prepare_transaction
from penstock.model.errors import (
    ControllerUnavailableError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchStreamError,
    PenstockError,
    StreamSealedError,
    TransactionError,
)
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import NO_SCALING

_logger = logging.getLogger(__name__)


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
    """A new transaction, and the epoch to whose segments its segments belong."""

    id: TransactionId
    epoch: EpochRecord


class Transactions:
    """Transactions of all streams, as far as this controller manages them.

    Attributes:
        work: the work after decisions and ends of leases.
        descriptions: the present state of transactions.
    """

    def __init__(
        self,
        context: WorkflowContext,
        numbers: TransactionNumbers,
        runner: WorkflowRunner,
        background: BackgroundWork,
        registry: WorkRegistry,
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._numbers = numbers
        self._runner = runner
        self.work: TransactionWork = TransactionWork(context, background, registry)
        self.descriptions: TransactionDescriptions = TransactionDescriptions(context)

    def stop(self) -> None:
        """Remove all timers; pings are answered DISCONNECTED from now on. Transactions are not changed."""
        self.work.stop()

    @property
    def open_count(self) -> int:
        """Number of transactions with a running lease timer."""
        return len(self.work.timers)

    def now_ms(self) -> int:
        """Return this controller's wall clock time, as used in records, in milliseconds."""
        return self._context.runtime.wall_clock_ms()

    # Calls.

    async def create(self, scope: str, stream: str, lease_ms: int) -> CreatedTransaction:
        """Begin a transaction with a lease in milliseconds.

        Raises `InvalidArgumentError` for a lease out of bounds, `NoSuchStreamError`, `StreamSealedError`,
        `ControllerUnavailableError` when this controller manages too many already.
        """
        if lease_ms < self._settings.lease_ms_min:
            raise InvalidArgumentError(f"lease value too small, min value is {self._settings.lease_ms_min}")
        if lease_ms > self._settings.lease_ms_max:
            raise InvalidArgumentError(f"lease value too large, max value is {self._settings.lease_ms_max}")
        if self.work.timers.is_full:
            raise ControllerUnavailableError(f"{self.open_count} transactions are open, the limit of this controller")

        async def run() -> CreatedTransaction:
            with self._context.creations.one(f"{scope}/{stream}"):
                return await self._context.catalog.on_stream(
                    scope, stream, lambda tables: self._create(tables, lease_ms)
                )

        return await self._runner.bounded(f"creation of a transaction on {scope}/{stream}", run)

    async def _create(self, tables: StreamTables, lease_ms: int) -> CreatedTransaction:
        creations = self._context.creations
        for _ in range(self._settings.conflict_attempts_max):
            view = creations.view(tables.name, tables.stream_id) or await self._read_view(tables)
            current = view.current
            transaction = TransactionId.of(current.reference_epoch, await self._numbers.next())
            epoch = current if current.reference_epoch == current.epoch else await tables.epoch(transaction.epoch)
            if epoch is None:
                creations.found(tables.name, None)
                continue
            begun_s = asyncio.get_running_loop().time()
            now_ms = self._context.runtime.wall_clock_ms()
            lifetime_ms = min(
                self._settings.transaction_lifetime_leases_max * lease_ms, self._settings.transaction_lifetime_ms_max
            )
            record = ActiveTransaction(now_ms, lease_ms, now_ms + lease_ms, now_ms + lifetime_ms)
            await self._context.index.add_transaction(
                tables.scope, tables.stream, transaction, TransactionIndexEntry(self._context.host, now_ms)
            )
            opened = OpenTransaction(tables.scope, tables.stream, transaction)
            # If this call fails from here on, the timer cleans up.
            self.work.timers.arm(opened, VERSION_UNKNOWN, lease_ms + self._settings.lease_slack_ms)
            try:
                version = await tables.create_transaction(transaction, record)
            except MetadataConflictError:
                self.work.timers.disarm(opened)
                creations.found(tables.name, None)
                continue  # The epoch has just ended, or, which cannot happen, the number is in use: take another one.
            self.work.timers.arm(opened, version, lease_ms + self._settings.lease_slack_ms, record)
            try:
                await self._create_segments(tables, transaction, epoch, view.configuration.rollover_bytes)
                # A seal, or even a deletion, may have begun since, here or at another controller: if it has aborted the
                # transaction, the state shows it.
                found = await self._read_view(tables)
                await self._check_lease(tables, transaction, lease_ms, begun_s)
            except PenstockError:
                creations.found(tables.name, None)
                self.work.discard(tables, transaction, epoch)
                raise
            creations.found(tables.name, found)
            if _is_as_good(view, found):
                return CreatedTransaction(transaction, epoch)
            # Its epoch has ended, and its table may be dropped; no client knows the transaction yet.
            self.work.discard(tables, transaction, epoch)
        raise MetadataConflictError(f"stream {tables.name}: no transaction could be created; try again")

    @staticmethod
    async def _read_view(tables: StreamTables) -> StreamView:
        view = StreamView(tables.stream_id, *await tables.state_epoch_and_configuration())
        _check_takes_transactions(tables, view.state)
        return view

    async def _create_segments(
        self, tables: StreamTables, transaction: TransactionId, epoch: EpochRecord, rollover_bytes: int
    ) -> None:
        # All requests end even if one fails: none may create a segment after the segments were cleaned up.
        await all_ended(
            [
                self._context.segments.create(
                    transaction_segment_name(
                        segment_name(tables.scope, tables.stream, segment.id), transaction.high, transaction.low
                    ),
                    NO_SCALING,
                    rollover_bytes,
                )
                for segment in epoch.segments
            ]
        )

    async def _check_lease(
        self, tables: StreamTables, transaction: TransactionId, lease_ms: int, begun_s: float
    ) -> None:
        """Raise `ControllerUnavailableError` if a transaction's lease ended, and aborted it, during its creation."""
        if (asyncio.get_running_loop().time() - begun_s) * 1000 < lease_ms:
            return
        found = await tables.transaction(transaction)
        if found is None or found.record.status is not TransactionStatus.OPEN:
            raise ControllerUnavailableError(
                f"stream {tables.name}: creating a transaction took longer than its lease of {lease_ms} ms; try again"
            )

    async def ping(self, scope: str, stream: str, transaction: TransactionId, lease_ms: int) -> PingResult:
        """Extend a transaction's lease to `lease_ms` from now; this controller manages it from then on."""
        if not self.work.is_running:
            return PingResult.DISCONNECTED
        if lease_ms < 0:
            raise InvalidArgumentError(f"lease of {lease_ms} ms: use 0 or more")
        opened = OpenTransaction(scope, stream, transaction)
        self.work.timers.ping_arrived(opened)
        # Not after an error: the client is alive, and the end of the lease must not be decided against it.
        result = await self._context.catalog.on_stream(
            scope, stream, lambda tables: self._ping(tables, transaction, lease_ms)
        )
        self.work.timers.ping_answered(opened)
        return result

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
            if found.record.is_prepared:
                return PingResult.OK  # Its limit applies, even if other clients still consider it open.
            opened = OpenTransaction(tables.scope, tables.stream, transaction)
            now_ms = self._context.runtime.wall_clock_ms()
            left_ms = self.work.lifetime_left_ms(opened, found, now_ms)
            if lease_ms > left_ms:
                return PingResult.LIFETIME_EXCEEDED
            record = replace(
                found.record,
                lease_ms=lease_ms,
                lease_expiry_ms=now_ms + lease_ms,
                execution_expiry_ms=now_ms + left_ms,
            )
            try:
                version = await tables.put_transaction(transaction, record, found.version)
            except MetadataConflictError:
                continue
            if self.work.is_running:
                self.work.timers.arm(opened, version, lease_ms + self._settings.lease_slack_ms, record)
            return PingResult.OK
        raise MetadataConflictError(f"transaction {transaction.text} of {tables.name} keeps changing; try again")

    async def prepare(
        self, scope: str, stream: str, transaction: TransactionId, limit_ms: int
    ) -> TransactionStatus | ActiveTransaction:
        """Stop an open transaction from accepting events, and keep it for `limit_ms` from now until its decision.

        Returns its record once it is prepared, otherwise its status. Preparing it again may extend the limit, never
        reduce it. Raises `InvalidArgumentError` for a limit out of bounds, `NoSuchStreamError`.
        """
        limit_ms_max = self._settings.prepared_limit_s_max * 1000
        if not 0 < limit_ms <= limit_ms_max:
            raise InvalidArgumentError(f"limit of {limit_ms} ms for a prepared transaction: use 1 to {limit_ms_max}")

        async def decide(tables: StreamTables) -> TransactionStatus | ActiveTransaction:
            found = await prepare_transaction(self._context, tables, transaction, limit_ms)
            if found is None:
                return await self._completed(tables, transaction)
            if not found.record.is_prepared or found.record.status is not TransactionStatus.OPEN:
                return found.record.status
            if self.work.is_running:
                delay_ms = found.record.lease_expiry_ms - self._context.runtime.wall_clock_ms()
                opened = OpenTransaction(scope, stream, transaction)
                self.work.timers.arm(opened, found.version, delay_ms + self._settings.lease_slack_ms, found.record)
            return found.record

        async def run() -> TransactionStatus | ActiveTransaction:
            return await self._context.catalog.on_stream(scope, stream, decide)

        return await self._runner.bounded(f"preparation of {transaction.text} on {scope}/{stream}", run)

    async def commit(
        self, scope: str, stream: str, transaction: TransactionId, *, writer_id: str, timestamp: int
    ) -> TransactionStatus:
        """Decide to commit, durably; merging follows in the background.

        Returns the status after the decision: COMMITTING or COMMITTED is success, ABORTING or ABORTED means that it
        was decided otherwise before, UNKNOWN that the transaction does not exist.
        """

        async def decide(tables: StreamTables) -> TransactionStatus:
            status = await decide_commit(
                self._context,
                tables,
                transaction,
                self._context.commit_order.take,
                writer_id=writer_id,
                timestamp=timestamp,
                known=self.work.timers.known(OpenTransaction(scope, stream, transaction)),
            )
            return status if status else await self._completed(tables, transaction)

        opened = OpenTransaction(scope, stream, transaction)
        return await self._decided("commit", opened, decide, TransactionStatus.COMMITTING, self.work.post_commit)

    async def abort(self, scope: str, stream: str, transaction: TransactionId) -> TransactionStatus:
        """Decide to abort, durably; deletion follows in the background. Returns the status after the decision."""

        async def decide(tables: StreamTables) -> TransactionStatus:
            status = await decide_abort(self._context, tables, transaction)
            return status if status else await self._completed(tables, transaction)

        opened = OpenTransaction(scope, stream, transaction)
        return await self._decided("abort", opened, decide, TransactionStatus.ABORTING, self.work.post_abort)

    async def _decided(
        self,
        what: str,
        opened: OpenTransaction,
        decide: Callable[[StreamTables], Awaitable[TransactionStatus]],
        wanted: TransactionStatus,
        post: Callable[[OpenTransaction], None],
    ) -> TransactionStatus:
        """Decide a transaction; if the status is `wanted`, have the rest done in the background."""

        async def run() -> TransactionStatus:
            status = await self._context.catalog.on_stream(opened.scope, opened.stream, decide)
            if status is wanted:
                self.work.timers.disarm(opened)
                post(opened)
            return status

        return await self._runner.bounded(f"{what} of {opened.transaction.text} on {opened.scope}/{opened.stream}", run)

    async def status(self, scope: str, stream: str, transaction: TransactionId) -> TransactionStatus:
        """Return a transaction's status, UNKNOWN if it does not exist or was completed too long ago."""

        async def read(tables: StreamTables) -> TransactionStatus:
            found = await tables.transaction(transaction)
            return found.record.status if found else await self._completed(tables, transaction)

        return await self._context.catalog.on_stream(scope, stream, read)

    async def completed(self, scope: str, stream: str) -> list[tuple[TransactionId, TransactionStatus]]:
        """Return the newest completed transactions of a stream, newest first; none if it does not exist.

        Those that another controller has committed, and has not moved yet, come first.
        """
        await self._context.committed.moved(scope, stream)
        try:
            # Before the others: a row is removed after it was added there.
            created_ms, committed = await self._context.catalog.on_stream(scope, stream, _committed)
        except NoSuchStreamError:
            return []
        moved = await self._context.completed.newest(scope, stream, since_ms=created_ms)
        known = {transaction for transaction, _ in moved}
        found = [(each, TransactionStatus.COMMITTED) for each in committed if each not in known]
        return [*found, *moved][: self._settings.completed_transactions_listed_max]

    async def _completed(self, tables: StreamTables, transaction: TransactionId) -> TransactionStatus:
        status = await self._context.completed.status(tables.scope, tables.stream, transaction)
        if status is TransactionStatus.UNKNOWN:
            # Another controller may have deleted the stream, and created it again.
            await tables.check_exists()
        return status


async def _committed(tables: StreamTables) -> tuple[int, list[TransactionId]]:
    """Return when the stream was created, and its transactions that are committed and not among the completed ones.

    Raises `NoSuchStreamError`.
    """
    birth = await tables.birth()
    if birth is None:
        raise NoSuchStreamError(f"stream {tables.name} is not completely created")
    return birth.created_ms, [
        transaction
        async for transaction, found in tables.transactions()
        if found.record.status is TransactionStatus.COMMITTED
    ]


def _is_as_good(begun: StreamView, found: StreamView) -> bool:
    """Say whether a transaction begun with one view is still correct with the view found at its end."""
    return (
        begun.current.reference_epoch == found.current.reference_epoch
        and begun.configuration.rollover_bytes == found.configuration.rollover_bytes
    )


def _check_takes_transactions(tables: StreamTables, state: StreamState) -> None:
    if state in (StreamState.SEALING, StreamState.SEALED):
        raise StreamSealedError(f"stream {tables.name} is sealed and takes no transactions")
    if state is StreamState.CREATING:
        raise TransactionError(f"stream {tables.name} is not completely created")
