"""Sealing a stream.

Order: announce; state SEALING (no new transactions from here on); abort open transactions, finish commits; seal the
active segments; state SEALED; withdraw the announcement. Source: controller-internals 3.3.

A prepared transaction is not aborted: a stream that has one is not sealed. This is checked before anything is changed,
and again once the stream is SEALING; a transaction prepared in between makes the stream ACTIVE again. When all
remaining transaction records are COMMITTED, none is left that could still be prepared.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.controller.change_log import CHANGES
from penstock.controller.metadata.pending_work import SealStream
from penstock.controller.metadata.records import AbortReason, ActiveTransaction, StreamState, TransactionStatus
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.segment_requests import together
from penstock.controller.workflows.abort import abort, decide_abort
from penstock.controller.workflows.commit import merge_batch
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import MetadataConflictError, NoSuchSegmentError, TransactionPreparedError
from penstock.model.names import segment_name

_logger = logging.getLogger(__name__)


async def seal_stream(context: WorkflowContext, tables: StreamTables, *, spares_prepared: bool = True) -> None:
    """Seal a stream, unless it is sealed. The caller holds the stream's lock and has finished pending work.

    Raises `TransactionPreparedError` when a prepared transaction waits for its decision; without `spares_prepared` it
    is aborted like any open one.
    """
    if (await tables.state()).record.state is StreamState.SEALED:
        return
    if spares_prepared and (prepared := await _prepared(tables)):
        raise _refusal(tables, prepared)
    announced = await context.begin(tables.subject, SealStream(), tables.stream_id)
    if prepared := await _seal(context, tables, announced, spares_prepared=spares_prepared):
        raise _refusal(tables, prepared)


async def resume_seal(context: WorkflowContext, tables: StreamTables, announced: WorkClaim, order: SealStream) -> None:
    """Complete an announced seal, or revert it if there is a prepared transaction."""
    if prepared := await _seal(context, tables, announced, spares_prepared=True):
        _logger.info("%s", _refusal(tables, prepared))


async def _seal(
    context: WorkflowContext, tables: StreamTables, announced: WorkClaim, *, spares_prepared: bool
) -> list[TransactionId]:
    """Complete a seal; or revert it, and return the prepared transactions that prevent it.

    A missing segment is logged; it accepts no more events either.
    """
    state = await tables.state()
    if state.record.state is not StreamState.SEALED:
        sealing = await tables.set_state(StreamState.SEALING, of=state)
        # Creations that saw the stream open: their transactions must be found below.
        await context.creations.ended(tables.name)
        if prepared := await _complete_transactions(context, tables, spares_prepared=spares_prepared):
            await tables.set_state(StreamState.ACTIVE, of=sealing)
            await context.claims.withdraw(announced)
            return prepared
        epoch = await tables.current_epoch()
        await together(
            _seal_segment(context, announced, segment_name(tables.scope, tables.stream, segment.id))
            for segment in epoch.segments
        )
        await tables.set_state(StreamState.SEALED, of=sealing)
        CHANGES.info("sealed stream %s", tables.name)
    await context.claims.withdraw(announced)
    return []


async def _seal_segment(context: WorkflowContext, announced: WorkClaim, segment: str) -> None:
    try:
        await context.segments.seal(segment)
    except NoSuchSegmentError:
        # Another controller may have sealed the stream meanwhile, and the segment may have been deleted since.
        await context.claims.confirm(announced)
        _logger.error("%s is missing: its data is lost; the stream is sealed without it", segment)


async def _prepared(tables: StreamTables) -> list[TransactionId]:
    return [transaction async for transaction, found in tables.transactions() if _waits(found.record)]


def _waits(record: ActiveTransaction) -> bool:
    return record.is_prepared and record.status is TransactionStatus.OPEN


def _refusal(tables: StreamTables, prepared: Sequence[TransactionId]) -> TransactionPreparedError:
    return TransactionPreparedError(
        f"stream {tables.name} is not sealed: {len(prepared)} prepared transactions are undecided, the first is "
        f"{prepared[0].text}; commit or abort them by their ids, then seal the stream"
    )


async def _complete_transactions(
    context: WorkflowContext, tables: StreamTables, *, spares_prepared: bool
) -> list[TransactionId]:
    """Abort open transactions and merge decided ones; return the prepared ones, which are kept."""
    for _ in range(context.settings.seal_rounds_max):
        remaining = [
            (transaction, found.record)
            async for transaction, found in tables.transactions()
            if found.record.status is not TransactionStatus.COMMITTED
        ]
        if not remaining:
            return []
        prepared = [transaction for transaction, record in remaining if _waits(record)] if spares_prepared else []
        if not prepared:
            for transaction, record in remaining:
                if record.status in (TransactionStatus.OPEN, TransactionStatus.ABORTING) and (
                    await decide_abort(
                        context,
                        tables,
                        transaction,
                        spares_prepared=spares_prepared,
                        reason=AbortReason.STREAM_SEALED,
                    )
                    is TransactionStatus.ABORTING
                ):
                    await abort(context, tables, transaction)
        # Also for a reverted seal: no batch may be left half done in a stream that accepts changes again.
        while await merge_batch(context, tables):
            continue
        if prepared:
            return prepared
    raise MetadataConflictError(f"stream {tables.name} still gets new transactions while it is being sealed")
