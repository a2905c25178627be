"""Finishing what an earlier call, or an earlier controller, has begun."""

from __future__ import annotations

import logging

from penstock.controller.metadata.records import PendingWork, StreamState, WorkKind
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.workflows.commit import commit
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.create_stream import resume_create
from penstock.controller.workflows.delete_stream import resume_delete
from penstock.controller.workflows.seal_stream import resume_seal
from penstock.controller.workflows.truncate_stream import resume_truncate
from penstock.controller.workflows.update_stream import resume_update
from penstock.model.errors import NoSuchScopeError, NoSuchSegmentError, NoSuchStreamError

_logger = logging.getLogger(__name__)


async def finish_pending(context: WorkflowContext, scope: str, stream: str) -> None:
    """Bring the stream's unfinished workflow to its end, if there is one. The caller holds the stream's lock."""
    work = await context.index.get(scope, stream)
    if work is None:
        return
    _logger.info("finishing %s of stream %s/%s", work.kind.value, scope, stream)
    if work.kind is WorkKind.CREATE:
        try:
            await resume_create(context, scope, stream, work)
        except NoSuchScopeError:
            _logger.info("stream %s/%s is not created: its scope was deleted meanwhile", scope, stream)
    elif work.kind is WorkKind.DELETE:
        await resume_delete(context, scope, stream, work)
    else:
        await _finish_change(context, scope, stream, work)


async def _finish_change(context: WorkflowContext, scope: str, stream: str, work: PendingWork) -> None:
    try:
        stream_id = await context.catalog.stream_id(scope, stream)
    except NoSuchScopeError:
        stream_id = None
    if stream_id != work.stream_id:  # The stream has been deleted since; another one of its name is not meant.
        await context.index.remove(scope, stream)
        return
    tables = context.catalog.tables_of(scope, stream, stream_id)
    await finish_commit(context, tables)
    if work.kind is WorkKind.UPDATE:
        await resume_update(context, tables, work)
    elif work.kind is WorkKind.TRUNCATE:
        await resume_truncate(context, tables, work.stream_cut)
    else:
        await resume_seal(context, tables)


async def finish_commit(context: WorkflowContext, tables: StreamTables) -> None:
    """Bring a commit that was interrupted to its end, so that the stream's state is free for another workflow."""
    if (await tables.state()).record.state is StreamState.COMMITTING_TXN:
        await commit(context, tables)


async def settle(context: WorkflowContext, scope: str, stream: str) -> None:
    """Finish everything that was begun on a stream. The caller holds the stream's lock."""
    await finish_pending(context, scope, stream)
    try:
        await context.catalog.on_stream(scope, stream, lambda tables: finish_commit(context, tables))
    except (NoSuchStreamError, NoSuchSegmentError):
        return
