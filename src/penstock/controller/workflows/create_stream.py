"""Creating a stream.

Order: announce; list in the scope; tables; records (state CREATING); segments, including the mark segment; tags; list
among streams with a retention policy, if it has one; state ACTIVE; withdraw the announcement.
Source: controller-internals 3.1.
"""

from __future__ import annotations

from penstock.controller.change_log import CHANGES, policies_text
from penstock.controller.errors import WorkTakenOverError
from penstock.controller.metadata.pending_work import CreateStream, Subject, SubjectKind
from penstock.controller.metadata.records import StreamState
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.segment_requests import together
from penstock.controller.watermarks.mark_streams import MARK_CONFIGURATION, mark_segment
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import (
    MetadataConflictError,
    NoSuchScopeError,
    NoSuchSegmentError,
    StreamExistsError,
)
from penstock.model.names import segment_name
from penstock.model.policies import StreamConfig


async def create_stream(context: WorkflowContext, scope: str, stream: str, configuration: StreamConfig) -> None:
    """Create a stream. The caller holds the stream's lock and has finished pending work.

    Raises `NoSuchScopeError`, `StreamExistsError`; the latter also when this call has completed the creation begun by
    another request, with that request's configuration.
    """
    stream_id = await context.catalog.stream_id(scope, stream)
    if stream_id is not None:
        try:
            birth = await context.catalog.tables_of(scope, stream, stream_id).birth()
        except NoSuchSegmentError:
            birth = None
        if birth is not None and birth.state is not StreamState.CREATING:
            raise StreamExistsError(f"stream {scope}/{stream} exists already")
    order = CreateStream(configuration)
    subject = Subject(SubjectKind.STREAM, scope, stream)
    announced = await context.begin(subject, order, stream_id or context.new_id())
    if not await resume_create(context, announced, order):
        raise StreamExistsError(f"stream {scope}/{stream} was being created by another request, and is complete now")


async def resume_create(context: WorkflowContext, announced: WorkClaim, order: CreateStream) -> bool:
    """Complete an announced creation; say whether the stream is the one that was requested."""
    work, scope, stream = announced.work, announced.subject.scope, announced.subject.name
    try:
        stream_id = await context.catalog.add_stream(scope, stream, work.life)
    except NoSuchScopeError:
        await context.claims.withdraw(announced)
        raise
    tables = context.catalog.tables_of(scope, stream, stream_id)
    await tables.create_tables()
    first_segment = await context.catalog.first_segment_number(scope, stream)
    await tables.create_records(order.configuration, work.created_ms, first_segment)
    birth = await tables.birth()
    epoch = await tables.epoch(0)
    if birth is None or epoch is None:
        raise MetadataConflictError(f"stream {scope}/{stream} was deleted while it was being created")
    if birth.state is StreamState.CREATING:
        stored = birth.configuration
        state = await tables.state()
        # Do not create segments for an incarnation that another controller has deleted meanwhile.
        try:
            await context.claims.confirm(announced)
        except WorkTakenOverError:
            await _leave_no_ghost(context, tables)
            raise
        wanted = [(segment_name(scope, stream, segment.id), stored) for segment in epoch.segments]
        if (mark := mark_segment(scope, stream, epoch)) is not None:
            wanted.append((mark.name, MARK_CONFIGURATION))
        await together(
            context.segments.create(name, policies.scaling, policies.rollover_bytes) for name, policies in wanted
        )
        await context.catalog.add_tags(scope, stream, stored.tags)
        if stored.retention is not None:
            await context.retained.put(scope, stream, stream_id)
        await tables.set_state(StreamState.ACTIVE, of=state)
        CHANGES.info("created stream %s/%s, identity %s: %s", scope, stream, stream_id, policies_text(stored))
    await context.claims.withdraw(announced)
    return birth.created_ms == work.created_ms and stream_id == work.life


async def _leave_no_ghost(context: WorkflowContext, tables: StreamTables) -> None:
    """Drop the tables of a deleted incarnation that an overtaken controller has created again after its deletion.

    It was listed before its tables were created, so an unlisted one is deleted, and its id is never reused.
    """
    try:
        listed = await context.catalog.stream_id(tables.scope, tables.stream)
    except NoSuchScopeError:
        listed = None
    if listed != tables.stream_id:
        await tables.drop_tables()
