"""Aborting a transaction.

The decision is one versioned write, OPEN to ABORTING; after it the outcome never changes. Then: delete the
transaction's segments; completed record; remove the active record; remove the index entry.
Source: controller-internals 6.5 and 6.9.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.controller.metadata.records import AbortReason, EpochRecord, TransactionStatus
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.segment_requests import together
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import MetadataConflictError, OutcomeUnknownError, TransactionError
from penstock.model.names import segment_name, transaction_segment_name


async def decide_abort(
    context: WorkflowContext,
    tables: StreamTables,
    transaction: TransactionId,
    *,
    at_version: int | None = None,
    spares_prepared: bool = False,
    reason: AbortReason = AbortReason.REQUESTED,
) -> TransactionStatus:
    """Move an open transaction to ABORTING; return the status it has then, UNKNOWN if it is not active.

    `reason` is recorded. With `at_version` it changes only a record with that version, and otherwise raises
    `MetadataConflictError`. With `spares_prepared` a prepared transaction stays OPEN.
    """
    lost: OutcomeUnknownError | None = None
    for _ in range(context.settings.conflict_attempts_max):
        found = await tables.transaction(transaction)
        if found is None:
            return TransactionStatus.UNKNOWN
        if at_version is not None and found.version != at_version:
            raise MetadataConflictError(f"transaction {transaction.text} has changed since its lease was noted")
        if found.record.status is not TransactionStatus.OPEN:
            return found.record.status
        if spares_prepared and found.record.is_prepared:
            return found.record.status
        try:
            aborting = replace(found.record, status=TransactionStatus.ABORTING, abort_reason=reason)
            await tables.put_transaction(transaction, aborting, found.version)
        except (MetadataConflictError, OutcomeUnknownError) as error:
            # After a lost reply the record is read again, to recognize a decision that was stored.
            if at_version is not None:
                raise
            lost = error if isinstance(error, OutcomeUnknownError) else lost
        else:
            return TransactionStatus.ABORTING
    if lost is not None:
        raise lost
    raise MetadataConflictError(f"transaction {transaction.text} of {tables.name} keeps changing; try again")


async def abort(context: WorkflowContext, tables: StreamTables, transaction: TransactionId) -> None:
    """Complete an ABORTING transaction; if it is no longer active, only remove its index entry."""
    found = await tables.transaction(transaction)
    if found is not None:
        if found.record.status is not TransactionStatus.ABORTING:
            raise TransactionError(
                f"transaction {transaction.text} of {tables.name} is {found.record.status.name}, it cannot be aborted"
            )
        await delete_transaction_segments(context, tables, transaction)
        await context.completed.add(
            tables.scope, tables.stream, [transaction], TransactionStatus.ABORTED, found.record.abort_reason
        )
        await tables.remove_transactions(transaction.epoch, [transaction])
    await context.index.remove_transactions(tables.scope, tables.stream, [transaction])


async def delete_transaction_segments(
    context: WorkflowContext, tables: StreamTables, transaction: TransactionId
) -> None:
    """Delete the transaction's segments; missing ones are ignored."""
    epoch = await tables.epoch(transaction.epoch)
    if epoch is not None:
        await delete_segments_of_epoch(context, tables.scope, tables.stream, transaction, epoch)


async def delete_segments_of_epoch(
    context: WorkflowContext, scope: str, stream: str, transaction: TransactionId, epoch: EpochRecord
) -> None:
    """Delete the transaction's segments, given its epoch; missing ones are ignored. Reads no table of the stream."""
    await together(
        context.segments.delete(
            transaction_segment_name(segment_name(scope, stream, segment.id), transaction.high, transaction.low)
        )
        for segment in epoch.segments
    )
