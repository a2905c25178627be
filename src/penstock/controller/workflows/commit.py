"""Committing transactions of a stream.

The decision is one versioned write per transaction, OPEN to COMMITTING, made before this workflow runs. Here: pick a
batch in commit order and write it down; state COMMITTING_TXN; merge into every segment in that order; completed
records; remove the active ones; empty the batch; state ACTIVE. Index entries are removed by whoever asked for it, after
all of it: while one is there, a controller that starts runs this workflow again.

Source: controller internals specification, sections 6.5 and 6.6.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.controller.metadata.records import (
    CommittingTransactions,
    StreamState,
    TransactionStatus,
)
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.typed import Versioned
from penstock.controller.segment_requests import together
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import MetadataConflictError, UnsupportedOperationError
from penstock.model.names import segment_name, transaction_segment_name


async def decide_commit(
    context: WorkflowContext,
    tables: StreamTables,
    transaction: TransactionId,
    *,
    writer_id: str,
    timestamp: int,
) -> TransactionStatus:
    """Move an open transaction to COMMITTING, durably; return the status it has then, UNKNOWN if it is not active.

    Takes a position in the stream's commit order first; one that is not used in the end is dropped by `commit`.
    """
    found = await tables.transaction(transaction)
    for _ in range(context.settings.conflict_attempts_max):
        if found is None:
            return TransactionStatus.UNKNOWN
        if found.record.status is not TransactionStatus.OPEN:
            return found.record.status
        position = await tables.take_commit_position(transaction.text, context.settings.conflict_attempts_max)
        committing = replace(
            found.record,
            status=TransactionStatus.COMMITTING,
            writer_id=writer_id,
            commit_time_ms=timestamp,
            commit_order=position,
        )
        try:
            await tables.put_transaction(transaction, committing, found.version)
        except MetadataConflictError:
            found = await tables.transaction(transaction)
        else:
            return TransactionStatus.COMMITTING
    raise MetadataConflictError(f"transaction {transaction.text} of {tables.name} keeps changing; try again")


async def commit(context: WorkflowContext, tables: StreamTables) -> None:
    """Merge every COMMITTING transaction, batch after batch, finishing first what an earlier run left.

    The caller holds the stream's lock. Raises `NoSuchSegmentError` when a segment to merge into is missing.
    """
    while True:
        committing = await tables.committing()
        if committing.record.is_empty:
            batch = await _pick(context, tables)
            if batch is None:
                break
            # The batch is durable before its positions go: whichever is lost, the other one leads to it.
            version = await tables.put_committing(batch[0], committing.version)
            committing = Versioned(batch[0], version)
            await tables.remove_commit_positions(batch[1])
        await _merge(context, tables, committing.record)
        await _complete(context, tables, committing)
    state = await tables.state()
    if state.record.state is StreamState.COMMITTING_TXN:
        await tables.set_state(StreamState.ACTIVE, of=state)


async def _pick(
    context: WorkflowContext, tables: StreamTables
) -> tuple[CommittingTransactions, list[int]] | None:
    """Choose the transactions to merge next: those of the lowest epoch, in commit order; and their positions.

    Positions that lead nowhere are removed on the way. One whose transaction is OPEN stays: its write may follow.
    """
    stale: list[int] = []
    chosen: list[tuple[int, str]] = []
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
        else:
            stale.append(position)
    await tables.remove_commit_positions(stale)
    if not chosen:
        return None
    record = CommittingTransactions(epoch, tuple(text for _, text in chosen))
    return record, [position for position, _ in chosen]


async def _merge(context: WorkflowContext, tables: StreamTables, batch: CommittingTransactions) -> None:
    state = await tables.state()
    if state.record.state is not StreamState.SEALING:
        await tables.set_state(StreamState.COMMITTING_TXN, of=state)
    current = await tables.current_epoch()
    origin = current if current.epoch == batch.epoch else await tables.epoch(batch.epoch)
    if origin is None or origin.reference_epoch != current.reference_epoch:
        raise UnsupportedOperationError(
            f"transactions of epoch {batch.epoch} of {tables.name} cannot be merged into epoch {current.epoch}: "
            "rolling transactions are not built"
        )
    transactions = [TransactionId.from_text(text) for text in batch.transactions]
    # A duplicate epoch has the same segment numbers and ranges in the same order.
    pairs = zip(origin.segments, current.segments, strict=True)
    await together(
        context.segments.merge(
            segment_name(tables.scope, tables.stream, target.id),
            [
                transaction_segment_name(
                    segment_name(tables.scope, tables.stream, source.id), transaction.high, transaction.low
                )
                for transaction in transactions
            ],
        )
        for source, target in pairs
    )


async def _complete(
    context: WorkflowContext, tables: StreamTables, committing: Versioned[CommittingTransactions]
) -> None:
    transactions = [TransactionId.from_text(text) for text in committing.record.transactions]
    await context.completed.add(tables.scope, tables.stream, transactions, TransactionStatus.COMMITTED)
    await tables.remove_transactions(committing.record.epoch, transactions)
    await tables.put_committing(CommittingTransactions(), committing.version)
