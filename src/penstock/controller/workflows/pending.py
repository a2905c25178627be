"""Completing work begun on a stream by an earlier call or controller, and giving up work that cannot be completed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.controller.errors import PERMANENT_ERRORS
from penstock.controller.metadata.pending_work import (
    CommitTransactions,
    CreateStream,
    DeleteStream,
    Order,
    ScaleStream,
    SealStream,
    Subject,
    TruncateStream,
    UpdateStream,
)
from penstock.controller.metadata.records import ScaleOrder, StreamState
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.work.work_registry import WorkRegistry
from penstock.controller.workflows.commit import commit_batches, merge_batch
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.create_stream import resume_create
from penstock.controller.workflows.delete_stream import resume_delete, undo_create
from penstock.controller.workflows.scale_stream import give_up_scale, resume_scale
from penstock.controller.workflows.seal_stream import resume_seal
from penstock.controller.workflows.truncate_stream import resume_truncate
from penstock.controller.workflows.update_stream import resume_update
from penstock.model.errors import (
    NoSuchScopeError,
    NoSuchSegmentError,
    NoSuchStreamError,
    StreamNotSealedError,
)

OrderT = TypeVar("OrderT", bound=Order)
_logger = logging.getLogger(__name__)

#: States that given-up work leaves. Not SEALING: only a seal continues from it, or reverts it.
_PASSING = (StreamState.UPDATING, StreamState.TRUNCATING, StreamState.SCALING, StreamState.COMMITTING_TXN)


def register_stream_work(registry: WorkRegistry, context: WorkflowContext) -> None:
    """Register the workflows that complete each kind of work on streams."""

    def change(
        resume: Callable[[WorkflowContext, StreamTables, WorkClaim, OrderT], Awaitable[None]],
    ) -> Callable[[WorkClaim, OrderT], Awaitable[None]]:
        """Return `resume` for the intended incarnation of the stream; for another one the work is withdrawn."""

        async def run(announced: WorkClaim, order: OrderT) -> None:
            tables = await _tables_of_life(context, announced)
            if tables is None:
                await context.claims.withdraw(announced)
                return
            await finish_commit(context, tables)
            await resume(context, tables, announced, order)

        return run

    async def commit(announced: WorkClaim, order: CommitTransactions) -> None:
        tables = await _tables_of_life(context, announced)
        if tables is None:
            await context.claims.withdraw(announced)
            return
        await commit_batches(context, tables, announced)

    async def create(announced: WorkClaim, order: CreateStream) -> None:
        try:
            await resume_create(context, announced, order)
        except NoSuchScopeError:
            _logger.info("%s is not created: its scope was deleted meanwhile", announced.subject)

    async def delete(announced: WorkClaim, order: DeleteStream) -> None:
        try:
            await resume_delete(context, announced)
        except StreamNotSealedError as error:
            _logger.info("%s is not deleted: %s", announced.subject, error)

    async def undo(announced: WorkClaim) -> None:
        await undo_create(context, announced)

    async def give_up(announced: WorkClaim) -> None:
        await _free(context, announced)

    async def give_up_transition(announced: WorkClaim) -> None:
        await _free(context, announced, before=give_up_scale)

    registry.register(CreateStream, create, give_up=undo)
    registry.register(UpdateStream, change(resume_update), give_up=give_up_transition)
    registry.register(TruncateStream, change(resume_truncate), give_up=give_up)
    registry.register(CommitTransactions, commit, give_up=give_up)
    registry.register(SealStream, change(resume_seal))
    registry.register(ScaleStream, change(resume_scale), give_up=give_up_transition)
    registry.register(DeleteStream, delete)


async def _tables_of_life(context: WorkflowContext, announced: WorkClaim) -> StreamTables | None:
    """Return the tables of the intended incarnation of the stream; None if it has been deleted since."""
    scope, stream = announced.subject.scope, announced.subject.name
    try:
        stream_id = await context.catalog.stream_id(scope, stream)
    except NoSuchScopeError:
        return None
    if stream_id is None or stream_id != announced.work.life:
        return None
    return context.catalog.tables_of(scope, stream, stream_id)


async def _free(
    context: WorkflowContext,
    announced: WorkClaim,
    *,
    before: Callable[[WorkflowContext, StreamTables], Awaitable[None]] | None = None,
) -> None:
    """Leave the stream of given-up work in a state in which other changes are possible.

    Its partial effects stay: the next update applies its own configuration in full, and the next truncation deletes the
    segments that this one has left.
    """
    subject = announced.subject
    try:
        tables = context.catalog.tables_of(subject.scope, subject.name, announced.work.life)
        if before is not None:
            await before(context, tables)
        state = await tables.state()
        if state.record.state in _PASSING:
            await tables.set_state(StreamState.ACTIVE, of=state)
    except (NoSuchStreamError, NoSuchSegmentError):
        _logger.info("%s no longer has a state", subject)


async def finish_commit(context: WorkflowContext, tables: StreamTables) -> None:
    """Complete an interrupted batch of commits, so that the stream's state is free for other work.

    A batch that cannot be merged stays recorded, and its transactions stay COMMITTING; the state is still freed.
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


async def free_state(context: WorkflowContext, subject: Subject) -> None:
    """Move a stream out of a state that belongs to no announced work, by completing the work found in its records.

    The caller holds the stream's lock, and no work is announced.
    """
    try:
        await context.catalog.on_stream(subject.scope, subject.name, lambda tables: _free_state(context, tables))
    except (NoSuchStreamError, NoSuchSegmentError):
        return


async def _free_state(context: WorkflowContext, tables: StreamTables) -> None:
    state = (await tables.state()).record.state
    if state is StreamState.COMMITTING_TXN:
        announced = await context.begin(tables.subject, CommitTransactions(), tables.stream_id, in_turn=False)
        await commit_batches(context, tables, announced)
    elif state is StreamState.UPDATING:
        update = UpdateStream((await tables.configuration()).record.configuration)
        announced = await context.begin(tables.subject, update, tables.stream_id, in_turn=False)
        await resume_update(context, tables, announced, update)
    elif state is StreamState.TRUNCATING:
        truncation = TruncateStream((await tables.truncation()).record.stream_cut)
        announced = await context.begin(tables.subject, truncation, tables.stream_id, in_turn=False)
        await resume_truncate(context, tables, announced, truncation)
    elif state is StreamState.SCALING:
        await _finish_scale(context, tables)


async def _finish_scale(context: WorkflowContext, tables: StreamTables) -> None:
    planned = (await tables.transition()).record
    if planned.is_empty:
        await tables.set_state(StreamState.ACTIVE)
        return
    ranges = tuple((segment.key_start, segment.key_end) for segment in planned.created)
    scale = ScaleStream(ScaleOrder(planned.active_epoch, planned.to_seal, ranges))
    announced = await context.begin(tables.subject, scale, tables.stream_id, in_turn=False)
    await resume_scale(context, tables, announced, scale)
