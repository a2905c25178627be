"""Committing transactions of a stream.

The decision is one versioned write per transaction, OPEN to COMMITTING, made before this workflow runs. Here: pick a
batch in commit order and write it down; state COMMITTING_TXN; merge into every segment in that order; the times that
their writers gave, with where each transaction ends; completed records; remove the active ones; empty the batch; state
ACTIVE. Index entries are removed by whoever asked for it, after all of it: while one is there, a controller that starts
runs this workflow again.

All of it is one piece of announced work, or a part of a seal's: another controller that is alive does not interfere.

Source: controller internals specification, sections 6.5 and 6.6.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from penstock.controller.metadata.announcements import Announcement
from penstock.controller.metadata.records import (
    ActiveTransaction,
    CommittingTransactions,
    EpochRecord,
    StreamState,
    TransactionStatus,
)
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.typed import Versioned
from penstock.controller.segment_requests import together
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.roll_transactions import roll_transactions
from penstock.controller.writer_marks import CommitMark, note_commits
from penstock.model.errors import (
    MetadataConflictError,
    NoSuchSegmentError,
    OutcomeUnknownError,
)
from penstock.model.names import segment_name, transaction_segment_name

_logger = logging.getLogger(__name__)

#: Takes a position in the stream's commit order for a transaction (as text); see `CommitPositions`.
TakePosition = Callable[[StreamTables, str], Awaitable[int]]
#: Records of transactions that were read on the way, by the transaction's text.
Known = Mapping[str, ActiveTransaction]


async def decide_commit(
    context: WorkflowContext,
    tables: StreamTables,
    transaction: TransactionId,
    take_position: TakePosition,
    *,
    writer_id: str,
    timestamp: int,
) -> TransactionStatus:
    """Move an open transaction to COMMITTING, durably; return the status it has then, UNKNOWN if it is not active.

    Takes a position in the stream's commit order first; one that is not used in the end is dropped by `merge_batch`.
    A write whose reply was lost is looked at again, so that a decision that was stored is known as one.
    """
    lost: OutcomeUnknownError | None = None
    for _ in range(context.settings.conflict_attempts_max):
        found = await tables.transaction(transaction)
        if found is None:
            return TransactionStatus.UNKNOWN
        if found.record.status is not TransactionStatus.OPEN:
            return found.record.status
        try:
            position = await take_position(tables, transaction.text)
            committing = replace(
                found.record,
                status=TransactionStatus.COMMITTING,
                writer_id=writer_id,
                commit_time_ms=timestamp,
                commit_order=position,
            )
            await tables.put_transaction(transaction, committing, found.version)
        except MetadataConflictError:
            continue
        except OutcomeUnknownError as error:
            lost = error
            continue
        return TransactionStatus.COMMITTING
    if lost is not None:
        raise lost
    raise MetadataConflictError(f"transaction {transaction.text} of {tables.name} keeps changing; try again")


async def commit_batch(
    context: WorkflowContext, tables: StreamTables, announced: Announcement
) -> tuple[TransactionId, ...]:
    """Merge one batch as announced; return it, empty if there is none. See `merge_batch`."""
    merged = await merge_batch(context, tables)
    await context.announcements.withdraw(announced)
    return merged


async def merge_batch(context: WorkflowContext, tables: StreamTables) -> tuple[TransactionId, ...]:
    """Merge one batch of COMMITTING transactions, the one that an earlier run left first; return it, empty if none.

    One batch and no more: the caller holds the stream's lock, and gives it to others that wait before the next one.
    It has announced work on the stream that this is a part of.
    Raises `NoSuchSegmentError` when a segment to merge into is missing, unless the stream is being sealed.
    """
    state = await tables.state()
    committing = await tables.committing()
    known: Known = {}
    if committing.record.is_empty:
        batch = await _pick(context, tables)
        if batch is None:
            if state.record.state is StreamState.COMMITTING_TXN:
                await tables.set_state(StreamState.ACTIVE, of=state)
            return ()
        # The batch is durable before its positions go: whichever is lost, the other one leads to it.
        version = await tables.put_committing(batch[0], committing.version)
        committing = Versioned(batch[0], version)
        await tables.remove_commit_positions(batch[1])
        known = batch[2]
    if state.record.state is not StreamState.SEALING:
        state = await tables.set_state(StreamState.COMMITTING_TXN, of=state)
    is_sealing = state.record.state is StreamState.SEALING
    committing = await _merge(context, tables, committing, known, is_sealing=is_sealing)
    await _complete(context, tables, committing)
    if state.record.state is StreamState.COMMITTING_TXN:
        await tables.set_state(StreamState.ACTIVE, of=state)
    return tuple(TransactionId.from_text(text) for text in committing.record.transactions)


async def _pick(
    context: WorkflowContext, tables: StreamTables
) -> tuple[CommittingTransactions, list[int], Known] | None:
    """Choose the transactions to merge next: those of the lowest epoch, in commit order; their positions and records.

    Positions that lead nowhere are removed on the way. One whose transaction is OPEN stays: its write may follow.
    """
    stale: list[int] = []
    chosen: list[tuple[int, str]] = []
    known: dict[str, ActiveTransaction] = {}
    epoch = -1
    by_epoch = sorted(
        (TransactionId.from_text(text).epoch, position, text) for position, text in await tables.commit_positions()
    )
    for transaction_epoch, position, text in by_epoch:
        if len(chosen) == context.settings.commit_batch_max or (chosen and transaction_epoch != epoch):
            break
        found = await tables.transaction(TransactionId.from_text(text))
        if found is not None and found.record.status is TransactionStatus.OPEN:
            continue
        is_committing = found is not None and found.record.status is TransactionStatus.COMMITTING
        if found is not None and is_committing and found.record.commit_order == position:
            epoch = transaction_epoch
            chosen.append((position, text))
            known[text] = found.record
        else:
            stale.append(position)
    await tables.remove_commit_positions(stale)
    if not chosen:
        return None
    record = CommittingTransactions(epoch, tuple(text for _, text in chosen))
    return record, [position for position, _ in chosen], known


async def _merge(
    context: WorkflowContext,
    tables: StreamTables,
    committing: Versioned[CommittingTransactions],
    known: Known,
    *,
    is_sealing: bool,
) -> Versioned[CommittingTransactions]:
    """Merge a batch into the stream; return it with the version that it has then."""
    batch = committing.record
    current = await tables.current_epoch()
    origin = current if current.epoch == batch.epoch else await tables.need_epoch(batch.epoch)
    if batch.active_epoch is None and origin.reference_epoch == current.reference_epoch:
        await _merge_into(context, tables, batch, known, origin, current, is_lost_told=is_sealing)
        return committing

    async def merge(source: EpochRecord, target: EpochRecord) -> None:
        await _merge_into(context, tables, batch, known, source, target, is_lost_told=True)

    return await roll_transactions(context, tables, committing, origin, merge)


async def _merge_into(
    context: WorkflowContext,
    tables: StreamTables,
    batch: CommittingTransactions,
    known: Known,
    origin: EpochRecord,
    epoch: EpochRecord,
    *,
    is_lost_told: bool,
) -> None:
    transactions = [TransactionId.from_text(text) for text in batch.transactions]
    # A duplicate epoch has the same segment numbers and ranges in the same order.
    pairs = zip(origin.segments, epoch.segments, strict=True)
    ends = await together(
        _merge_segment(
            context,
            segment_name(tables.scope, tables.stream, target.id),
            [
                transaction_segment_name(
                    segment_name(tables.scope, tables.stream, source.id), transaction.high, transaction.low
                )
                for transaction in transactions
            ],
            is_lost_told=is_lost_told,
        )
        for source, target in pairs
    )
    # Before anything is sealed that was merged into: what is sealed is not merged, and not noted, again.
    marks: list[CommitMark] = []
    for index, transaction in enumerate(transactions):
        record = known.get(transaction.text)
        if record is None:
            # The batch was left by an earlier run; a record that is gone was noted before it went.
            found = await tables.transaction(transaction)
            record = None if found is None else found.record
        if record is not None:
            position: dict[int, int] = {
                segment.id: merged[index] for segment, merged in zip(epoch.segments, ends, strict=True) if merged
            }
            marks.append(CommitMark(record.writer_id, record.commit_time_ms, position))
    await note_commits(context, tables, marks)


async def _merge_segment(
    context: WorkflowContext, target: str, sources: list[str], *, is_lost_told: bool
) -> Sequence[int]:
    """Return the target's length in bytes after each source; nothing if it is lost."""
    try:
        return await context.segments.merge(target, sources)
    except NoSuchSegmentError:
        if not is_lost_told:
            raise
        # Otherwise a stream that has lost a segment could never be sealed, and so never be deleted.
        _logger.error("%s is missing: what %d transactions had for it is lost", target, len(sources))
        await together(context.segments.delete(source) for source in sources)
        return ()


async def _complete(
    context: WorkflowContext, tables: StreamTables, committing: Versioned[CommittingTransactions]
) -> None:
    transactions = [TransactionId.from_text(text) for text in committing.record.transactions]
    await context.completed.add(tables.scope, tables.stream, transactions, TransactionStatus.COMMITTED)
    await tables.remove_transactions(committing.record.epoch, transactions)
    await tables.put_committing(CommittingTransactions(), committing.version)
