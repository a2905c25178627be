"""Deleting a stream.

Order: announce; check that it may still be deleted; tags; last segment number; the mark segment; all segments ever
created and not yet deleted; tables; the scope's listing; withdraw the announcement. Source:
controller-internals 3.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.controller.change_log import CHANGES
from penstock.controller.metadata.pending_work import DeleteStream, Subject, SubjectKind
from penstock.controller.metadata.records import SegmentRecord, StreamState
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.steps import pages
from penstock.controller.watermarks.mark_streams import mark_segment
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import (
    NoSuchScopeError,
    NoSuchSegmentError,
    NoSuchStreamError,
    StreamNotSealedError,
)
from penstock.model.names import segment_name


async def delete_stream(context: WorkflowContext, scope: str, stream: str) -> None:
    """Delete a sealed or half-created stream. The caller holds its lock and has finished pending work.

    Raises `NoSuchStreamError`, `StreamNotSealedError`.
    """
    try:
        stream_id = await context.catalog.stream_id(scope, stream)
    except NoSuchScopeError as error:
        raise NoSuchStreamError(f"stream {scope}/{stream} does not exist: {error}") from error
    if stream_id is None:
        raise NoSuchStreamError(f"stream {scope}/{stream} does not exist")
    try:
        birth = await context.catalog.tables_of(scope, stream, stream_id).birth()
    except NoSuchSegmentError:
        birth = None
    if birth is not None and birth.state not in (StreamState.SEALED, StreamState.CREATING):
        raise StreamNotSealedError(f"stream {scope}/{stream} is {birth.state.value}; seal it before deleting it")
    await resume_delete(
        context, await context.begin(Subject(SubjectKind.STREAM, scope, stream), DeleteStream(), stream_id)
    )


async def resume_delete(context: WorkflowContext, announced: WorkClaim) -> None:
    """Complete an announced deletion. A stream of the same name with another id is not changed.

    Raises `StreamNotSealedError`, with nothing changed and the announcement withdrawn, when the stream was half created
    and another controller has completed it before the announcement.
    """
    scope, stream = announced.subject.scope, announced.subject.name
    try:
        stream_id = await context.catalog.stream_id(scope, stream)
    except NoSuchScopeError:
        stream_id = None
    if stream_id is not None and stream_id == announced.work.life:
        tables = context.catalog.tables_of(scope, stream, stream_id)
        try:
            birth = await tables.birth()
        except NoSuchSegmentError:  # Its tables are gone already.
            birth = None
        if birth is not None:
            if birth.state is not StreamState.SEALED and not await _is_half_created(tables):
                await context.claims.withdraw(announced)
                raise StreamNotSealedError(f"stream {scope}/{stream} was completed before its deletion could begin")
            # Tags have no versions: an overtaken controller must not change those of a later incarnation.
            await context.claims.confirm(announced)
            await context.catalog.remove_tags(scope, stream, birth.configuration.tags)
            await _delete_segments(context, tables)
        await tables.drop_tables()
        await context.catalog.remove_stream(scope, stream, stream_id)
        CHANGES.info("deleted stream %s/%s, identity %s", scope, stream, stream_id)
    await context.claims.withdraw(announced)


async def undo_create(context: WorkflowContext, announced: WorkClaim) -> None:
    """Undo an announced creation that has not completed; does not withdraw the announcement.

    For a creation that can never complete: afterwards the name is free, and the scope can be deleted.
    """
    scope, stream = announced.subject.scope, announced.subject.name
    try:
        stream_id = await context.catalog.stream_id(scope, stream)
    except NoSuchScopeError:
        return
    if stream_id is None or stream_id != announced.work.life:
        return
    tables = context.catalog.tables_of(scope, stream, stream_id)
    try:
        birth = await tables.birth()
    except NoSuchSegmentError:
        birth = None
    await context.claims.confirm(announced)
    if birth is not None:
        if not await _is_half_created(tables):
            return
        await context.catalog.remove_tags(scope, stream, birth.configuration.tags)
        await _delete_segments(context, tables)
    await tables.drop_tables()
    await context.catalog.remove_stream(scope, stream, stream_id)


async def _is_half_created(tables: StreamTables) -> bool:
    """Say whether a stream is still half created. Rewrites its state, so that an overtaken creation cannot complete."""
    state = await tables.state()
    if state.record.state is not StreamState.CREATING:
        return False
    await tables.set_state(StreamState.CREATING, of=state)
    return True


async def _delete_segments(context: WorkflowContext, tables: StreamTables) -> None:
    current = await tables.current_epoch()
    last_number = max(segment.number for segment in current.segments)
    # Before the first segment is deleted: numbers must not be reused even if another controller does the rest.
    await context.catalog.record_last_segment(tables.scope, tables.stream, last_number)
    await _delete_marks(context, tables)
    # Truncated segments belong to epochs before the cut, or before the previous cut if its deletions were given up.
    truncation = (await tables.truncation()).record
    span = truncation.previous_span if truncation.is_updating else truncation.span
    first = await tables.need_epoch(min(span.values(), default=0))
    await _delete(context, tables, first.segments)
    async for page in tables.changes(first.epoch, current.epoch):
        await _delete(context, tables, [segment for change in page for segment in change.created])


async def _delete_marks(context: WorkflowContext, tables: StreamTables) -> None:
    """Delete the mark segment of the stream, unless it belongs to a stream of that name that a client created."""
    mark = mark_segment(tables.scope, tables.stream, await tables.need_epoch(0))
    if mark is not None and await context.catalog.stream_id(tables.scope, mark.stream) is None:
        await context.segments.delete(mark.name)


async def _delete(context: WorkflowContext, tables: StreamTables, segments: Sequence[SegmentRecord]) -> None:
    names: list[str] = []
    for page in pages(segments):
        names += [segment_name(tables.scope, tables.stream, segment.id) for segment in page]
        await asyncio.sleep(0)
    await context.segments.delete_all(names)
