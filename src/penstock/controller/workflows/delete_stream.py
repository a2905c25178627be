"""Deleting a stream.

Order: announce; look whether it may still be deleted; tags; last segment number; the segment of marks; all segments
ever created and not yet deleted; tables; the scope's listing; withdraw the announcement. Source: controller internals
specification, section 3.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.controller.change_log import CHANGES
from penstock.controller.mark_streams import mark_segment
from penstock.controller.metadata.announcements import Announcement
from penstock.controller.metadata.pending_work import DeleteStream, Subject, SubjectKind
from penstock.controller.metadata.records import SegmentRecord, StreamState
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.steps import pages
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import (
    NoSuchScopeError,
    NoSuchSegmentError,
    NoSuchStreamError,
    StreamNotSealedError,
)
from penstock.model.names import segment_name


async def delete_stream(context: WorkflowContext, scope: str, stream: str) -> None:
    """Delete a sealed or half-created stream. The caller holds its lock and has finished what was pending.

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


async def resume_delete(context: WorkflowContext, announced: Announcement) -> None:
    """Bring an announced deletion to its end. A stream of the same name with another id is not touched.

    Raises `StreamNotSealedError`, with nothing done and nothing announced, when the stream was half created and another
    controller has completed it before the announcement.
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
                await context.announcements.withdraw(announced)
                raise StreamNotSealedError(f"stream {scope}/{stream} was completed before its deletion could begin")
            # Tags have no versions: those of a later life are not touched by who was overtaken.
            await context.announcements.confirm(announced)
            await context.catalog.remove_tags(scope, stream, birth.configuration.tags)
            await _delete_segments(context, tables)
        await tables.drop_tables()
        await context.catalog.remove_stream(scope, stream, stream_id)
        CHANGES.info("deleted stream %s/%s, identity %s", scope, stream, stream_id)
    await context.announcements.withdraw(announced)


async def undo_create(context: WorkflowContext, announced: Announcement) -> None:
    """Delete what an announced creation has made of a stream, if the creation has not ended; withdraw nothing.

    For a creation that can never end: the name is free afterwards, and the scope can be deleted.
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
    await context.announcements.confirm(announced)
    if birth is not None:
        if not await _is_half_created(tables):
            return
        await context.catalog.remove_tags(scope, stream, birth.configuration.tags)
        await _delete_segments(context, tables)
    await tables.drop_tables()
    await context.catalog.remove_stream(scope, stream, stream_id)


async def _is_half_created(tables: StreamTables) -> bool:
    """Say whether a stream is still half created. Whoever was overtaken in its creation cannot complete it any more."""
    state = await tables.state()
    if state.record.state is not StreamState.CREATING:
        return False
    await tables.set_state(StreamState.CREATING, of=state)
    return True


async def _delete_segments(context: WorkflowContext, tables: StreamTables) -> None:
    current = await tables.current_epoch()
    last_number = max(segment.number for segment in current.segments)
    # Before the first segment goes: numbers must not come back even if the rest is left to another controller.
    await context.catalog.record_last_segment(tables.scope, tables.stream, last_number)
    await _delete_marks(context, tables)
    # What was truncated lived before the epochs of the cut, or of the one before if its deletions were given up.
    truncation = (await tables.truncation()).record
    span = truncation.previous_span if truncation.is_updating else truncation.span
    first = await tables.need_epoch(min(span.values(), default=0))
    await _delete(context, tables, first.segments)
    async for page in tables.changes(first.epoch, current.epoch):
        await _delete(context, tables, [segment for change in page for segment in change.created])


async def _delete_marks(context: WorkflowContext, tables: StreamTables) -> None:
    """Delete the segment of the stream's marks, unless a stream has it that a client has made under its name."""
    mark = mark_segment(tables.scope, tables.stream, await tables.need_epoch(0))
    if mark is not None and await context.catalog.stream_id(tables.scope, mark.stream) is None:
        await context.segments.delete(mark.name)


async def _delete(context: WorkflowContext, tables: StreamTables, segments: Sequence[SegmentRecord]) -> None:
    names: list[str] = []
    for page in pages(segments):
        names += [segment_name(tables.scope, tables.stream, segment.id) for segment in page]
        await asyncio.sleep(0)
    await context.segments.delete_all(names)
