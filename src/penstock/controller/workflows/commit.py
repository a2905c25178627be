"""Committing transactions of a stream.

The decision is one versioned write per transaction, OPEN to COMMITTING, made before this workflow runs. The workflow:
pick a batch in commit order; record it, with state COMMITTING_TXN; merge into every segment in that order; record the
writers' times, with the end of each transaction; COMMITTING to COMMITTED; empty the batch, with state ACTIVE, or
replace it by the next one. Later, in batches, completed records replace the active ones, and positions in the order and
index entries are removed: as long as one of them exists, a controller that starts runs this workflow again.

All of it is one piece of announced work, or part of a seal: other live controllers do not interfere.

Source: controller-internals 6.5 and 6.6.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import (
    ActiveTransaction,
    CommittingTransactions,
    EpochRecord,
    StreamState,
    TransactionStatus,
)
from penstock.controller.metadata.stream_tables import CommitView, StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.segment_requests import together
from penstock.controller.watermarks.writer_marks import CommitMark, note_commits
from penstock.controller.work.background_work import all_ended
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.roll_transactions import roll_transactions
from penstock.model.errors import (
    MetadataConflictError,
    NoSuchSegmentError,
    OutcomeUnknownError,
)
from penstock.model.names import segment_name, transaction_segment_name

_logger = logging.getLogger(__name__)

#: Takes a position in the stream's commit order for a transaction (as text); see `CommitOrder`.
TakePosition = Callable[[StreamTables, str], Awaitable[int]]
#: Records of transactions that were read in the process, by the transaction's text.
Known = Mapping[str, Versioned[ActiveTransaction]]


async def decide_commit(
    context: WorkflowContext,
    tables: StreamTables,
    transaction: TransactionId,
    take_position: TakePosition,
    *,
    writer_id: str,
    timestamp: int,
    known: Versioned[ActiveTransaction] | None = None,
) -> TransactionStatus:
    """Move an open transaction to COMMITTING, durably; return the status it has then, UNKNOWN if it is not active.

    Takes a position in the stream's commit order first; `merge_batch` drops a position that is not used in the end.
    After a lost reply the record is read again, to recognize a decision that was stored. `known` is the last known
    record: its version detects whether it is outdated.
    """
    lost: OutcomeUnknownError | None = None
    for _ in range(context.settings.conflict_attempts_max):
        found = known or await tables.transaction(transaction)
        known = None
        if found is None:
            return TransactionStatus.UNKNOWN
        if found.record.status is not TransactionStatus.OPEN:
            return found.record.status
        position: int | None = None
        try:
            position = await take_position(tables, transaction.text)
            committing = replace(
                found.record,
                status=TransactionStatus.COMMITTING,
                writer_id=writer_id,
                commit_time_ms=timestamp,
                commit_order=position,
            )
            version = await tables.put_transaction(transaction, committing, found.version)
            context.commit_order.decided(tables, position, Versioned(committing, version))
        except MetadataConflictError:
            continue
        except OutcomeUnknownError as error:
            lost = error
            continue
        finally:
            if position is not None:
                context.commit_order.undecided(tables, position)
        return TransactionStatus.COMMITTING
    if lost is not None:
        raise lost
    raise MetadataConflictError(f"transaction {transaction.text} of {tables.name} keeps changing; try again")


async def commit_batches(
    context: WorkflowContext, tables: StreamTables, announced: WorkClaim
) -> tuple[TransactionId, ...]:
    """Merge waiting transactions as announced work; return them, empty if there are none. See `merge_batch`.

    At most `commit_batches_max` batches, and no further one once `commit_batch_max` transactions were merged: the
    caller holds the stream's lock, and releases it for other waiters.
    """
    merged: list[TransactionId] = []
    begun = await _begin_known(context, tables, announced) or await _begin(context, tables)
    batches_left = context.settings.commit_batches_max
    while begun is not None:
        batches_left -= 1
        transactions_left = context.settings.commit_batch_max - len(merged) - len(begun[0].batch.transactions)
        merged += begun[0].transactions
        begun = await _merge_begun(context, tables, *begun, goes_on=batches_left > 0 and transactions_left > 0)
    await context.claims.withdraw(announced)
    return tuple(merged)


async def merge_batch(context: WorkflowContext, tables: StreamTables) -> tuple[TransactionId, ...]:
    """Merge one batch of COMMITTING transactions, first the one of an interrupted run; return it, empty if none.

    The caller holds the stream's lock, and has announced the work on the stream that this is part of.
    Raises `NoSuchSegmentError` when a segment to merge into is missing, unless the stream is being sealed.
    """
    begun = await _begin(context, tables)
    if begun is None:
        return ()
    await _merge_begun(context, tables, *begun, goes_on=False)
    return begun[0].transactions


@dataclass(frozen=True, slots=True)
class _Picked:
    """A batch, its positions, and the known records."""

    batch: CommittingTransactions
    positions: Sequence[int] = ()
    known: Known = field(default_factory=dict)

    @property
    def transactions(self) -> tuple[TransactionId, ...]:
        """The transactions of the batch, in order."""
        return tuple(TransactionId.from_text(text) for text in self.batch.transactions)


_Begun = tuple[_Picked, CommitView]


async def _merge_begun(
    context: WorkflowContext, tables: StreamTables, picked: _Picked, view: CommitView, *, goes_on: bool
) -> _Begun | None:
    """Merge a recorded batch; return the next one, recorded in its place, if it `goes_on` and the next is known."""
    # The batch is durable before its positions are removed: if one of the two is lost, the other one is found.
    context.commit_order.leave(tables, picked.positions)
    known = picked.known or await _read_known(tables, picked)
    committing = await _merge(context, tables, view, known)
    await _complete(tables, known)
    view = replace(view, committing=committing)
    is_rolled = committing.record.active_epoch is not None
    following = _pick_known(context, tables) if goes_on and not is_rolled else None
    if following is not None and view.state.record.state is StreamState.COMMITTING_TXN:
        begun = following, await tables.put_commit(following.batch, view)
    else:
        begun = None
        ended = await tables.put_commit(CommittingTransactions(), view)
        context.commit_order.ended(tables, None if is_rolled else ended)
    context.committed.add(tables, picked.transactions)
    return begun


async def _begin_known(context: WorkflowContext, tables: StreamTables, announced: WorkClaim) -> _Begun | None:
    """Begin with a batch known from this controller's own decisions; None if there may be other work.

    Nothing is read: the versions of the recorded batch and of the state change with everything that invalidates this
    knowledge, with each commit of another controller and with each new epoch.
    """
    view = context.commit_order.view(tables)
    if view is None or view.state.record.state is not StreamState.ACTIVE:
        return None
    picked = _pick_known(context, tables)
    if picked is None:
        return None
    context.commit_order.ended(tables, None)
    try:
        return picked, await tables.put_commit(picked.batch, view)
    except MetadataConflictError:
        # Changed by another controller, possibly one that has taken over this work: then it must not continue here.
        await context.claims.confirm(announced)
        return None


def _pick_known(context: WorkflowContext, tables: StreamTables) -> _Picked | None:
    """Choose the next batch from this controller's own decisions; None if they may be incomplete, or there are none.

    Undecided transactions are left for later, whatever their positions: their clients have no answer yet.
    """
    waiting = context.commit_order.known(tables)
    if waiting is None:
        return None
    in_order: list[tuple[int, int]] = []
    known: dict[str, Versioned[ActiveTransaction]] = {}
    for position, one in waiting.items():
        if one.record is not None:
            in_order.append((TransactionId.from_text(one.transaction).epoch, position))
            known[one.transaction] = one.record
        elif not one.is_deciding:
            return None
    if not in_order:
        return None
    in_order.sort()
    epoch = in_order[0][0]
    positions = [position for of, position in in_order if of == epoch][: context.settings.commit_batch_max]
    texts = [waiting[position].transaction for position in positions]
    return _Picked(CommittingTransactions(epoch, tuple(texts)), positions, {text: known[text] for text in texts})


async def _read_known(tables: StreamTables, picked: _Picked) -> Known:
    """Read the records of a batch left by an interrupted run."""
    rows = await tables.transactions_of(picked.batch.epoch, picked.transactions)
    return {text: row for text, row in zip(picked.batch.transactions, rows, strict=True) if row is not None}


async def _begin(context: WorkflowContext, tables: StreamTables) -> _Begun | None:
    """Begin with the recorded batch, or with the next in commit order; None if there is nothing to merge."""
    view = await tables.commit_view()
    batch = view.committing.record
    picked = _Picked(batch, context.commit_order.positions_of(tables, batch.transactions))
    if batch.is_empty:
        found = await _pick(context, tables)
        if found is None:
            if view.state.record.state is StreamState.COMMITTING_TXN:
                await tables.set_state(StreamState.ACTIVE, of=view.state)
            return None
        picked = found
    return picked, await tables.put_commit(picked.batch, view)


async def _pick(context: WorkflowContext, tables: StreamTables) -> _Picked | None:
    """Choose the transactions to merge next: those of the lowest epoch, in commit order.

    Stale positions are removed in the process. The position of an OPEN transaction stays: its decision may follow.
    """
    by_epoch: dict[int, list[tuple[int, str]]] = {}
    for position, text in await context.commit_order.waiting(tables):
        by_epoch.setdefault(TransactionId.from_text(text).epoch, []).append((position, text))
    for epoch in sorted(by_epoch):
        chosen: list[tuple[int, str]] = []
        known: dict[str, Versioned[ActiveTransaction]] = {}
        stale: list[int] = []
        waiting = by_epoch[epoch]
        while waiting and not chosen:
            page, waiting = waiting[: context.settings.commit_batch_max], waiting[context.settings.commit_batch_max :]
            found = await tables.transactions_of(epoch, [TransactionId.from_text(text) for _, text in page])
            for (position, text), row in zip(page, found, strict=True):
                if row is not None and row.record.status is TransactionStatus.OPEN:
                    continue
                is_committing = row is not None and row.record.status is TransactionStatus.COMMITTING
                if row is not None and is_committing and row.record.commit_order == position:
                    chosen.append((position, text))
                    known[text] = row
                else:
                    stale.append(position)
        context.commit_order.leave(tables, stale)
        if chosen:
            batch = CommittingTransactions(epoch, tuple(text for _, text in chosen))
            return _Picked(batch, [position for position, _ in chosen], known)
    return None


async def _merge(
    context: WorkflowContext, tables: StreamTables, view: CommitView, known: Known
) -> Versioned[CommittingTransactions]:
    """Merge a batch into the stream; return it with its new version."""
    batch, current = view.committing.record, view.current
    origin = current if current.epoch == batch.epoch else await tables.need_epoch(batch.epoch)
    if batch.active_epoch is None and origin.reference_epoch == current.reference_epoch:
        is_sealing = view.state.record.state is StreamState.SEALING
        version = view.committing.version if is_sealing else None
        await _merge_into(context, tables, batch, known, origin, current, spares_lost_at=version)
        return view.committing

    async def merge(source: EpochRecord, target: EpochRecord, version: int) -> None:
        await _merge_into(context, tables, batch, known, source, target, spares_lost_at=version)

    return await roll_transactions(context, tables, view.committing, origin, merge)


async def _merge_into(
    context: WorkflowContext,
    tables: StreamTables,
    batch: CommittingTransactions,
    known: Known,
    origin: EpochRecord,
    epoch: EpochRecord,
    *,
    spares_lost_at: int | None,
) -> None:
    """Merge, and record the times that the transactions' writers gave with them.

    `spares_lost_at`: missing segments count as empty while the recorded batch has this version. Otherwise a controller
    that has taken over may have merged into them, and they may have been deleted since. None: they raise an error.
    """
    transactions = [TransactionId.from_text(text) for text in batch.transactions]
    # A duplicate epoch has the same segment numbers and ranges in the same order.
    pairs = zip(origin.segments, epoch.segments, strict=True)
    ends = await together(
        _merge_segment(
            context,
            tables,
            segment_name(tables.scope, tables.stream, target.id),
            [
                transaction_segment_name(
                    segment_name(tables.scope, tables.stream, source.id), transaction.high, transaction.low
                )
                for transaction in transactions
            ],
            spares_lost_at=spares_lost_at,
        )
        for source, target in pairs
    )
    # Before the target segments are sealed: sealed segments are neither merged into nor noted again.
    marks: list[CommitMark] = []
    for index, transaction in enumerate(transactions):
        found = known.get(transaction.text)
        # A transaction that an earlier run has completed was noted before.
        if found is not None and found.record.status is TransactionStatus.COMMITTING:
            position: dict[int, int] = {
                segment.id: merged[index] for segment, merged in zip(epoch.segments, ends, strict=True) if merged
            }
            marks.append(CommitMark(found.record.writer_id, found.record.commit_time_ms, position))
    await note_commits(context.mark_writes, tables, marks)


async def _merge_segment(
    context: WorkflowContext, tables: StreamTables, target: str, sources: list[str], *, spares_lost_at: int | None
) -> Sequence[int]:
    """Return the target's length in bytes after each source; empty if the target is lost."""
    try:
        return await context.segments.merge(target, sources)
    except NoSuchSegmentError:
        if spares_lost_at is None:
            raise
        await tables.check_committing(spares_lost_at)
        # Otherwise a stream that has lost a segment could never be sealed, and so never be deleted.
        _logger.error("%s is missing: the data of %d transactions for it is lost", target, len(sources))
        await together(context.segments.delete(source) for source in sources)
        return ()


async def _complete(tables: StreamTables, known: Known) -> None:
    """Set the records of a merged batch to COMMITTED. Those that another controller has completed are not changed."""

    async def complete(transaction: TransactionId, found: Versioned[ActiveTransaction]) -> None:
        row: Versioned[ActiveTransaction] | None = found
        while row is not None and row.record.status is TransactionStatus.COMMITTING:
            committed = replace(row.record, status=TransactionStatus.COMMITTED)
            try:
                await tables.put_transaction(transaction, committed, row.version)
            except MetadataConflictError:
                row = await tables.transaction(transaction)
            else:
                return

    await all_ended([complete(TransactionId.from_text(text), found) for text, found in known.items()])
