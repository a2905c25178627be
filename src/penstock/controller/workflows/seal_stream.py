"""Sealing a stream.

Order: announce; state SEALING (no new transactions from here on); abort open transactions, finish commits; seal the
active segments; state SEALED; withdraw the announcement. Source: controller internals specification, section 3.3.
"""

from __future__ import annotations

from penstock.controller.metadata.records import StreamState, TransactionStatus, WorkKind
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.segment_requests import together
from penstock.controller.workflows.abort import abort, decide_abort
from penstock.controller.workflows.commit import commit
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import MetadataConflictError
from penstock.model.names import segment_name


async def seal_stream(context: WorkflowContext, tables: StreamTables) -> None:
    """Seal a stream; fine if it is sealed. The caller holds the stream's lock and has finished what was pending."""
    if (await tables.state()).record.state is StreamState.SEALED:
        return
    if not await context.index.add(tables.scope, tables.stream, context.work(WorkKind.SEAL, tables.stream_id)):
        raise MetadataConflictError(f"stream {tables.name}: another change has just begun; try again")
    await resume_seal(context, tables)


async def resume_seal(context: WorkflowContext, tables: StreamTables) -> None:
    """Bring an announced seal to its end."""
    state = await tables.state()
    if state.record.state is not StreamState.SEALED:
        await tables.set_state(StreamState.SEALING, of=state)
        await _complete_transactions(context, tables)
        epoch = await tables.current_epoch()
        await together(
            context.segments.seal(segment_name(tables.scope, tables.stream, segment.id))
            for segment in epoch.segments
        )
        await tables.set_state(StreamState.SEALED)
    await context.index.remove(tables.scope, tables.stream)


async def _complete_transactions(context: WorkflowContext, tables: StreamTables) -> None:
    for _ in range(context.settings.seal_rounds_max):
        remaining = [(transaction, found.record.status) async for transaction, found in tables.transactions()]
        if not remaining:
            return
        for transaction, status in remaining:
            if status in (TransactionStatus.OPEN, TransactionStatus.ABORTING) and (
                await decide_abort(context, tables, transaction) is TransactionStatus.ABORTING
            ):
                await abort(context, tables, transaction)
        await commit(context, tables)
    raise MetadataConflictError(f"stream {tables.name} still gets new transactions while it is being sealed")
