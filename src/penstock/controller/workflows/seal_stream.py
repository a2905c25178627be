"""Sealing a stream.

Order: announce; state SEALING (no new transactions from here on); abort open transactions, finish commits; seal the
active segments; state SEALED; withdraw the announcement. Source: controller internals specification, section 3.3.
"""

from __future__ import annotations

import logging

from penstock.controller.metadata.announcements import Announcement
from penstock.controller.metadata.pending_work import SealStream
from penstock.controller.metadata.records import StreamState, TransactionStatus
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.segment_requests import together
from penstock.controller.workflows.abort import abort, decide_abort
from penstock.controller.workflows.commit import merge_batch
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import MetadataConflictError, NoSuchSegmentError
from penstock.model.names import segment_name

_logger = logging.getLogger(__name__)


async def seal_stream(context: WorkflowContext, tables: StreamTables) -> None:
    """Seal a stream; fine if it is sealed. The caller holds the stream's lock and has finished what was pending."""
    if (await tables.state()).record.state is StreamState.SEALED:
        return
    order = SealStream()
    await resume_seal(context, tables, await context.begin(tables.subject, order, tables.stream_id), order)


async def resume_seal(
    context: WorkflowContext, tables: StreamTables, announced: Announcement, order: SealStream
) -> None:
    """Bring an announced seal to its end. A segment that is missing is reported, and takes no more events either."""
    state = await tables.state()
    if state.record.state is not StreamState.SEALED:
        sealing = await tables.set_state(StreamState.SEALING, of=state)
        # Those that saw the stream open: what they make is to be found below.
        await context.creations.ended(tables.name)
        await _complete_transactions(context, tables)
        epoch = await tables.current_epoch()
        await together(
            _seal_segment(context, segment_name(tables.scope, tables.stream, segment.id))
            for segment in epoch.segments
        )
        await tables.set_state(StreamState.SEALED, of=sealing)
    await context.announcements.withdraw(announced)


async def _seal_segment(context: WorkflowContext, segment: str) -> None:
    try:
        await context.segments.seal(segment)
    except NoSuchSegmentError:
        _logger.error("%s is missing: what it held is lost; its stream is sealed without it", segment)


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
        while await merge_batch(context, tables):
            continue
    raise MetadataConflictError(f"stream {tables.name} still gets new transactions while it is being sealed")
