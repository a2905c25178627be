"""`TransactionWork`: the work that follows decisions about transactions and ends of leases.

All of it runs in the background, serially per stream, and is repeated until it is done.
Source: controller-internals 6.5 to 6.7 and 13.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import replace

from penstock.controller.errors import PERMANENT_ERRORS, WorkElsewhereError
from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import CommitTransactions, Lane, Subject, SubjectKind
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import (
    AbortReason,
    ActiveTransaction,
    EpochRecord,
    TransactionIndexEntry,
    TransactionStatus,
)
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.transactions.lease_timers import LeaseTimers, OpenTransaction
from penstock.controller.transactions.leases import elapsed_at_first_sight_ms, lifetime_left_ms, limit_ms
from penstock.controller.work.background_work import BackgroundWork, StreamQueue, all_ended
from penstock.controller.work.work_registry import WorkRegistry
from penstock.controller.workflows.abort import (
    abort,
    decide_abort,
    delete_segments_of_epoch,
    delete_transaction_segments,
)
from penstock.controller.workflows.commit import commit_batches
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import MetadataConflictError, NoSuchSegmentError, NoSuchStreamError

_logger = logging.getLogger(__name__)

#: Version of a timer whose record may not have been written.
VERSION_UNKNOWN = -1


class TransactionWork:
    """Merges, aborts, ends leases, and takes over the transactions of earlier controllers.

    Attributes:
        timers: the leases of open transactions.
        is_running: whether timers may be armed.
    """

    def __init__(self, context: WorkflowContext, background: BackgroundWork, registry: WorkRegistry) -> None:
        settings = context.settings
        self._context = context
        self._background = background
        self._registry = registry
        self.is_running: bool = True
        self.timers: LeaseTimers = LeaseTimers(self._expired, settings.transactions_open_max)
        self._commits = StreamQueue("commit", background, settings, self._commit, lock=lambda *stream: "/".join(stream))
        self._aborts = StreamQueue("abort", background, settings, self._abort)
        self._lease_ends = StreamQueue("end of leases", background, settings, self._end_leases)
        self._inherited = StreamQueue("take-over of transactions", background, settings, self._take_over)
        self._inheritance: asyncio.Task[None] | None = None
        #: Transactions that were merged with a batch before they were posted; the newest.
        self._merged: dict[OpenTransaction, None] = {}

    def stop(self) -> None:
        """Remove all timers. Transactions are not changed."""
        self.is_running = False
        self.timers.clear()

    # Commits.

    def post_commit(self, opened: OpenTransaction) -> None:
        """Start merging a COMMITTING transaction, with all others of its stream, and removing it from the index."""
        if opened in self._merged:
            del self._merged[opened]
            return
        self._commits.post(opened.scope, opened.stream, opened.transaction)

    async def _commit(self, scope: str, stream: str, transactions: list[TransactionId]) -> Collection[TransactionId]:
        """Merge some of the stream's transactions; return them, or those given when there are none left.

        They were decided before they were posted. The stream's lock is released after some batches, so that other
        waiters get their turn however many commits there are.
        """
        merged: Collection[TransactionId] = ()
        subject = Subject(SubjectKind.STREAM, scope, stream)
        claims = self._context.claims
        try:
            merged = await self._context.catalog.on_stream(
                scope, stream, lambda tables: self._commit_batches(tables, transactions)
            )
        except NoSuchStreamError:
            _logger.info("stream %s/%s was deleted, and its transactions with it", scope, stream)
            index = self._context.index.keys(scope, stream, transactions)
            self._context.removals.add(layout.TRANSACTION_INDEX, index)
            await claims.dequeue(subject, Lane.COMMIT, self._commits)
            if claims.is_unfinished(subject):
                await self._registry.finish(subject)
        except WorkElsewhereError:
            # Take a place in line, to begin before later work of other controllers.
            await claims.enqueue(subject, Lane.COMMIT, self._commits, self._context.new_id())
            raise
        except PERMANENT_ERRORS:
            # Given up like other announced work; the decisions remain.
            await claims.dequeue(subject, Lane.COMMIT, self._commits)
            is_finished = await self._registry.finish(subject)
            if is_finished is None:
                raise
            return () if is_finished else transactions
        for transaction in merged:
            if not self._commits.has(scope, stream, transaction):
                self._merged[OpenTransaction(scope, stream, transaction)] = None
        while len(self._merged) > self._context.settings.id_cache_entries_max:
            del self._merged[next(iter(self._merged))]
        return merged or transactions

    async def _commit_batches(self, tables: StreamTables, posted: list[TransactionId]) -> Collection[TransactionId]:
        order = CommitTransactions()
        try:
            announced = await self._context.begin(tables.subject, order, tables.stream_id)
        except WorkElsewhereError:
            # Work begun earlier comes first: a commit cannot start in another workflow's state.
            await self._registry.finish(tables.subject)
            announced = await self._context.begin(tables.subject, order, tables.stream_id)
        merged = await commit_batches(self._context, tables, announced)
        if not merged:
            # Another controller has merged them, or only remainders are left.
            self._context.committed.add(tables, posted)
        return merged

    # Aborts.

    def post_abort(self, opened: OpenTransaction) -> None:
        """Start the deletion of an ABORTING transaction's segments."""
        self._aborts.post(opened.scope, opened.stream, opened.transaction)

    async def _abort(self, scope: str, stream: str, transactions: list[TransactionId]) -> Collection[TransactionId]:
        async def one(transaction: TransactionId) -> None:
            try:
                await self._context.catalog.on_stream(
                    scope, stream, lambda tables: abort(self._context, tables, transaction)
                )
            except NoSuchStreamError:
                await self._forget(scope, stream, transaction)

        await all_ended([one(transaction) for transaction in transactions])
        return transactions

    async def _forget(self, scope: str, stream: str, transaction: TransactionId) -> None:
        _logger.info("stream %s/%s was deleted, and transaction %s with it", scope, stream, transaction.text)
        await self._context.index.remove_transactions(scope, stream, [transaction])

    def discard(self, tables: StreamTables, transaction: TransactionId, epoch: EpochRecord) -> None:
        """Clean up a transaction whose creation failed, in the background; the stream may be deleted meanwhile.

        No client knows its id, so it cannot have been committed.
        """

        async def clear() -> None:
            try:
                if await decide_abort(self._context, tables, transaction) is TransactionStatus.ABORTING:
                    await abort(self._context, tables, transaction)
            except (NoSuchStreamError, NoSuchSegmentError):
                _logger.info("stream %s was deleted while transaction %s was created", tables.name, transaction.text)
            # An earlier abort has not seen the segments created since.
            await delete_segments_of_epoch(self._context, tables.scope, tables.stream, transaction, epoch)
            await self._context.index.remove_transactions(tables.scope, tables.stream, [transaction])

        self.timers.disarm(OpenTransaction(tables.scope, tables.stream, transaction))
        self._background.start(f"clearing {transaction.text} of {tables.name} away", clear)

    # Leases.

    def _expired(self, opened: OpenTransaction, version: int) -> None:
        self._lease_ends.post(opened.scope, opened.stream, (opened.transaction, version))

    async def _end_leases(
        self, scope: str, stream: str, leases: list[tuple[TransactionId, int]]
    ) -> Collection[tuple[TransactionId, int]]:
        async def one(transaction: TransactionId, version: int) -> None:
            opened = OpenTransaction(scope, stream, transaction)
            try:
                await self._context.catalog.on_stream(
                    scope, stream, lambda tables: self._abort_if_expired(tables, opened, version)
                )
            except NoSuchStreamError:
                await self._forget(scope, stream, transaction)

        await all_ended([one(transaction, version) for transaction, version in leases])
        return leases

    async def _abort_if_expired(self, tables: StreamTables, opened: OpenTransaction, version: int) -> None:
        """Abort a transaction whose record has not changed since `version`; otherwise act on its present record.

        A call here whose reply was lost may have changed it, so a changed record is never ignored.
        """
        found = await tables.transaction(opened.transaction)
        if found is None:
            await self._clear_leftovers(tables, opened.transaction)
            return
        if found.record.status is TransactionStatus.COMMITTING:
            self.post_commit(opened)
            return
        if found.record.status is TransactionStatus.COMMITTED:
            self._context.committed.add(tables, [opened.transaction])
            return
        if found.record.status is TransactionStatus.OPEN:
            remaining_ms = self._remaining_ms(opened, found, version)
            if remaining_ms > 0:
                if self.is_running:
                    self.timers.arm(opened, found.version, remaining_ms, found.record)
                return
            # A conflict here means a concurrent ping: the work is repeated.
            await decide_abort(
                self._context, tables, opened.transaction, at_version=found.version, reason=AbortReason.LEASE_ENDED
            )
            limit = "limit, prepared and not decided" if found.record.is_prepared else "lease"
            _logger.info("transaction %s of %s ran out of its %s", opened.transaction.text, tables.name, limit)
        self.post_abort(opened)

    def _remaining_ms(self, opened: OpenTransaction, found: Versioned[ActiveTransaction], version: int) -> int:
        """Return how long a transaction must be left open after its timer, armed with `version`, has fired.

        No wall clock is used: the record may be another controller's, whose clock differs from this one's.
        """
        record, slack_ms = found.record, self._context.settings.lease_slack_ms
        if found.version != version:
            return (limit_ms(record) if record.is_prepared else record.lease_ms) + slack_ms
        since_ping_ms = self.timers.since_ping_ms(opened)
        if since_ping_ms is None or record.is_prepared:
            return 0
        # A ping has arrived that could not be stored, for example because the store of the record was unavailable.
        return record.lease_ms + slack_ms - since_ping_ms

    def lifetime_left_ms(self, opened: OpenTransaction, found: Versioned[ActiveTransaction], now_ms: int) -> int:
        """Return the maximum lease of an open transaction that begins now. `now_ms`: by the wall clock."""
        elapsed_ms = self.timers.elapsed_ms(opened, found.version)
        if elapsed_ms is None:
            elapsed_ms = elapsed_at_first_sight_ms(found.record, now_ms, self._context.settings.lease_slack_ms)
        return lifetime_left_ms(found.record, elapsed_ms)

    async def _clear_leftovers(self, tables: StreamTables, transaction: TransactionId) -> None:
        """Remove a transaction without a record: completed, or never begun. Delete the segments that it has left.

        Segments of a committed transaction are merged already.
        """
        await delete_transaction_segments(self._context, tables, transaction)
        await self._context.index.remove_transactions(tables.scope, tables.stream, [transaction])

    # Take-over.

    def take_over(self) -> None:
        """Take over every transaction in the index that is not managed by a live controller, in the background.

        Open ones get new leases, decided ones are completed.

        Calls are served meanwhile, also for transactions that are not taken over yet.
        """
        self._inheritance = self._background.start("search for transactions", self._find_inherited)

    async def _find_inherited(self) -> None:
        async for page in self._context.index.pages():
            # After the page was read: its writers had joined before. One read for all of them, as it may be a request.
            living = await self._context.claims.live_members()
            for scope, stream, transaction, entry in page:
                if entry.host not in living:
                    await self._background.room()
                    self._inherited.post(scope, stream, transaction)

    async def taken_over(self, scope: str, stream: str) -> None:
        """Wait until this controller has taken over all transactions of a stream that earlier controllers left."""
        if self._inheritance is not None:
            await asyncio.wait([self._inheritance])
        await self._inherited.empty(scope, stream)

    async def _take_over(self, scope: str, stream: str, transactions: list[TransactionId]) -> Collection[TransactionId]:
        async def one(transaction: TransactionId) -> None:
            try:
                await self._context.catalog.on_stream(
                    scope, stream, lambda tables: self._take_over_one(tables, transaction)
                )
            except NoSuchStreamError:
                await self._forget(scope, stream, transaction)

        await all_ended([one(transaction) for transaction in transactions])
        return transactions

    async def _take_over_one(self, tables: StreamTables, transaction: TransactionId) -> None:
        found = await tables.transaction(transaction)
        opened = OpenTransaction(tables.scope, tables.stream, transaction)
        if found is None or found.record.status in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED):
            if found is None:
                await delete_transaction_segments(self._context, tables, transaction)
            # A commit without work resets the stream's state, in case the crash came just before that, and removes
            # record and index entry.
            self.post_commit(opened)
        elif found.record.status is TransactionStatus.ABORTING:
            self.post_abort(opened)
        else:
            now_ms = self._context.runtime.wall_clock_ms()
            renewed = self._renewed(opened, found, now_ms)
            try:
                version = await tables.put_transaction(transaction, renewed, found.version)
            except MetadataConflictError:
                return  # Its client, or another controller, was faster.
            await self._context.index.add_transaction(
                tables.scope,
                tables.stream,
                transaction,
                TransactionIndexEntry(self._context.host, found.record.created_ms),
            )
            if self.is_running:
                delay_ms = renewed.lease_expiry_ms - now_ms + self._context.settings.lease_slack_ms
                self.timers.arm(opened, version, delay_ms, renewed)

    def _renewed(self, opened: OpenTransaction, found: Versioned[ActiveTransaction], now_ms: int) -> ActiveTransaction:
        """Return the record of an open transaction as written by the controller that takes it over."""
        record = found.record
        if record.is_prepared:
            # Downtime counts, and only the wall clock shows it. If the limit has ended meanwhile, one lease is left to
            # decide; the time left is never longer than the original limit, even if this clock is behind.
            expiry_ms = min(max(now_ms + record.lease_ms, record.lease_expiry_ms), now_ms + limit_ms(record))
            return replace(record, lease_expiry_ms=expiry_ms)
        # The client could not ping while no controller was available.
        left_ms = self.lifetime_left_ms(opened, found, now_ms)
        lease_ms = max(0, min(record.lease_ms, left_ms))
        return replace(
            record, lease_ms=lease_ms, lease_expiry_ms=now_ms + lease_ms, execution_expiry_ms=now_ms + left_ms
        )
