"""Finishing what an earlier call, or an earlier controller, has begun, and giving up what nobody can finish."""

from __future__ import annotations

import logging

from penstock.controller.errors import PERMANENT_ERRORS
from penstock.controller.metadata.records import ScaleOrder, StreamState, WorkKind
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.work_index import StreamWork
from penstock.controller.workflows.commit import merge_batch
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.create_stream import resume_create
from penstock.controller.workflows.delete_stream import resume_delete
from penstock.controller.workflows.scale_stream import give_up_scale, resume_scale
from penstock.controller.workflows.seal_stream import resume_seal
from penstock.controller.workflows.truncate_stream import resume_truncate
from penstock.controller.workflows.update_stream import resume_update
from penstock.model.errors import NoSuchScopeError, NoSuchSegmentError, NoSuchStreamError, PenstockError

_logger = logging.getLogger(__name__)


async def finish_pending(context: WorkflowContext, scope: str, stream: str) -> None:
    """Bring the stream's unfinished workflow to its end, if there is one. The caller holds the stream's lock.

    One that fails in a way that no repetition can mend is given up, so that it does not block the stream for ever.
    """
    announced = await context.index.claim(scope, stream)
    if announced is None:
        return
    _logger.info("finishing %s of stream %s/%s", announced.work.kind.value, scope, stream)
    try:
        if announced.work.kind is WorkKind.CREATE:
            await _finish_create(context, scope, stream, announced)
        elif announced.work.kind is WorkKind.DELETE:
            await resume_delete(context, scope, stream, announced)
        else:
            await _finish_change(context, scope, stream, announced)
    except PERMANENT_ERRORS as error:
        await _give_up(context, scope, stream, announced, error)


async def _finish_create(context: WorkflowContext, scope: str, stream: str, announced: StreamWork) -> None:
    try:
        await resume_create(context, scope, stream, announced)
    except NoSuchScopeError:
        _logger.info("stream %s/%s is not created: its scope was deleted meanwhile", scope, stream)


async def _finish_change(context: WorkflowContext, scope: str, stream: str, announced: StreamWork) -> None:
    try:
        stream_id = await context.catalog.stream_id(scope, stream)
    except NoSuchScopeError:
        stream_id = None
    if stream_id is None or stream_id != announced.work.stream_id:
        # The stream has been deleted since; another one of its name is not meant.
        await context.index.withdraw(announced)
        return
    tables = context.catalog.tables_of(scope, stream, stream_id)
    await finish_commit(context, tables)
    if announced.work.kind is WorkKind.UPDATE:
        await resume_update(context, tables, announced)
    elif announced.work.kind is WorkKind.TRUNCATE:
        await resume_truncate(context, tables, announced)
    elif announced.work.kind is WorkKind.SCALE:
        await resume_scale(context, tables, announced)
    else:
        await resume_seal(context, tables, announced)


async def _give_up(
    context: WorkflowContext, scope: str, stream: str, announced: StreamWork, error: PenstockError
) -> None:
    """Withdraw work that can never be done, and leave the stream in a state in which other changes can be.

    What it has done stays: the next update applies its own configuration in full, and the next truncation deletes what
    this one has left.
    """
    what = announced.work.kind.value
    _logger.error("%s of stream %s/%s is given up, nothing can mend it: %s", what, scope, stream, error)
    try:
        tables = context.catalog.tables_of(scope, stream, announced.work.stream_id)
        if announced.work.kind in (WorkKind.SCALE, WorkKind.UPDATE):
            await give_up_scale(context, tables)
        state = await tables.state()
        if state.record.state in (StreamState.UPDATING, StreamState.TRUNCATING, StreamState.SCALING):
            await tables.set_state(StreamState.ACTIVE, of=state)
    except (NoSuchStreamError, NoSuchSegmentError):
        _logger.info("stream %s/%s has no state any more", scope, stream)
    await context.index.withdraw(announced)


async def finish_commit(context: WorkflowContext, tables: StreamTables) -> None:
    """Bring a batch of commits that was interrupted to its end, so that the stream's state is free for other work.

    One that cannot be merged stays on record, and its transactions stay COMMITTING; the state is freed all the same.
    """
    if (await tables.state()).record.state is not StreamState.COMMITTING_TXN:
        return
    try:
        await merge_batch(context, tables)
    except PERMANENT_ERRORS as error:
        state = await tables.state()
        _logger.error("stream %s: transactions cannot be committed: %s", tables.name, error)
        if state.record.state is StreamState.COMMITTING_TXN:
            await tables.set_state(StreamState.ACTIVE, of=state)


async def settle(context: WorkflowContext, scope: str, stream: str) -> None:
    """Finish everything that was begun on a stream. The caller holds the stream's lock."""
    await finish_pending(context, scope, stream)
    try:
        await context.catalog.on_stream(scope, stream, lambda tables: _free_state(context, tables))
    except (NoSuchStreamError, NoSuchSegmentError):
        return


async def _free_state(context: WorkflowContext, tables: StreamTables) -> None:
    """Bring a stream out of a state that belongs to no work that is announced; its records say what was going on."""
    state = (await tables.state()).record.state
    if state is StreamState.COMMITTING_TXN:
        await finish_commit(context, tables)
    elif state is StreamState.UPDATING:
        wanted = (await tables.configuration()).record.configuration
        work = context.work(WorkKind.UPDATE, tables.stream_id, configuration=wanted)
        announced = await context.index.add(tables.scope, tables.stream, work)
        if announced is not None:
            await resume_update(context, tables, announced)
    elif state is StreamState.TRUNCATING:
        cut = (await tables.truncation()).record.stream_cut
        work = context.work(WorkKind.TRUNCATE, tables.stream_id, stream_cut=cut)
        announced = await context.index.add(tables.scope, tables.stream, work)
        if announced is not None:
            await resume_truncate(context, tables, announced)
    elif state is StreamState.SCALING:
        await _finish_scale(context, tables)


async def _finish_scale(context: WorkflowContext, tables: StreamTables) -> None:
    planned = (await tables.transition()).record
    if planned.is_empty:
        await tables.set_state(StreamState.ACTIVE)
        return
    ranges = tuple((segment.key_start, segment.key_end) for segment in planned.created)
    order = ScaleOrder(planned.active_epoch, planned.to_seal, ranges)
    announced = await context.index.add(
        tables.scope, tables.stream, context.work(WorkKind.SCALE, tables.stream_id, scale=order)
    )
    if announced is not None:
        await resume_scale(context, tables, announced)
