"""Preparing a transaction: it accepts no more writes, and waits until a decision by its id.

Order: seal the transaction's segments; one versioned write that replaces the lease by the limit. That write is the
decision. Before it the transaction is open whatever has failed, and ends with its lease; after it all acknowledged data
of its writers is in sealed segments.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import ActiveTransaction, TransactionStatus
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.segment_requests import together
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import MetadataConflictError, NoSuchSegmentError, OutcomeUnknownError
from penstock.model.names import segment_name, transaction_segment_name


async def prepare_transaction(
    context: WorkflowContext, tables: StreamTables, transaction: TransactionId, limit_ms: int
) -> Versioned[ActiveTransaction] | None:
    """Prepare an open transaction for `limit_ms` from now; return its new record, None if it is not active.

    Its status says whether it was decided before. If it is prepared already, the later of both limits applies, so that
    a duplicate or late request does not shorten it. After a lost reply the record is read again.
    """
    now_ms = context.runtime.wall_clock_ms()
    lost: OutcomeUnknownError | None = None
    for _ in range(context.settings.conflict_attempts_max):
        found = await tables.transaction(transaction)
        if found is None or found.record.status is not TransactionStatus.OPEN:
            return found
        record = found.record
        if not record.is_prepared:
            try:
                await _seal_segments(context, tables, transaction)
            except NoSuchSegmentError:
                again = await tables.transaction(transaction)
                if again is not None and again.record.status is TransactionStatus.OPEN:
                    raise  # It was not ended: a segment is lost.
                return again
        elif record.lease_expiry_ms >= now_ms + limit_ms:
            return found
        end_ms = max(now_ms + limit_ms, record.lease_expiry_ms if record.is_prepared else 0)
        prepared = replace(
            record,
            lease_expiry_ms=end_ms,
            execution_expiry_ms=end_ms,
            prepared_ms=record.prepared_ms if record.is_prepared else now_ms,
        )
        try:
            return Versioned(prepared, await tables.put_transaction(transaction, prepared, found.version))
        except MetadataConflictError:
            continue
        except OutcomeUnknownError as error:
            lost = error
    if lost is not None:
        raise lost
    raise MetadataConflictError(f"transaction {transaction.text} of {tables.name} keeps changing; try again")


async def _seal_segments(context: WorkflowContext, tables: StreamTables, transaction: TransactionId) -> None:
    epoch = await tables.need_epoch(transaction.epoch)
    await together(
        context.segments.seal(
            transaction_segment_name(
                segment_name(tables.scope, tables.stream, segment.id), transaction.high, transaction.low
            )
        )
        for segment in epoch.segments
    )
