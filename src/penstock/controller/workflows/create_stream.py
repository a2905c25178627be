"""Creating a stream.

Order: announce; list in the scope; tables; records (state CREATING); segments; tags; state ACTIVE; withdraw the
announcement. Source: controller internals specification, section 3.1.
"""

from __future__ import annotations

from penstock.controller.metadata.records import StreamState, WorkKind
from penstock.controller.metadata.work_index import StreamWork
from penstock.controller.segment_requests import together
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchScopeError,
    NoSuchSegmentError,
    StreamExistsError,
)
from penstock.model.names import segment_name
from penstock.model.policies import StreamConfig


async def create_stream(context: WorkflowContext, scope: str, stream: str, configuration: StreamConfig) -> None:
    """Create a stream. The caller holds the stream's lock and has finished what was pending.

    Raises `NoSuchScopeError`, `StreamExistsError`; the latter also when this call has completed what another request
    had begun, with the configuration of that one.
    """
    stream_id = await context.catalog.stream_id(scope, stream)
    if stream_id is not None:
        try:
            birth = await context.catalog.tables_of(scope, stream, stream_id).birth()
        except NoSuchSegmentError:
            birth = None
        if birth is not None and birth.state is not StreamState.CREATING:
            raise StreamExistsError(f"stream {scope}/{stream} exists already")
    work = context.work(WorkKind.CREATE, stream_id or context.new_id(), configuration=configuration)
    announced = await context.index.add(scope, stream, work)
    if announced is None:
        raise MetadataConflictError(f"stream {scope}/{stream}: another change has just begun; try again")
    if not await resume_create(context, scope, stream, announced):
        raise StreamExistsError(f"stream {scope}/{stream} was being created by another request, and is complete now")


async def resume_create(context: WorkflowContext, scope: str, stream: str, announced: StreamWork) -> bool:
    """Bring an announced creation to its end; say whether the stream is the one that was asked for."""
    work = announced.work
    if work.configuration is None:
        raise InvalidArgumentError(f"creation of {scope}/{stream} was announced without a configuration")
    try:
        stream_id = await context.catalog.add_stream(scope, stream, work.stream_id)
    except NoSuchScopeError:
        await context.index.withdraw(announced)
        raise
    tables = context.catalog.tables_of(scope, stream, stream_id)
    await tables.create_tables()
    first_segment = await context.catalog.first_segment_number(scope, stream)
    await tables.create_records(work.configuration, work.created_ms, first_segment)
    birth = await tables.birth()
    epoch = await tables.epoch(0)
    if birth is None or epoch is None:
        raise MetadataConflictError(f"stream {scope}/{stream} was deleted while it was being created")
    if birth.state is StreamState.CREATING:
        stored = birth.configuration
        state = await tables.state()
        # Segments are not made for a life that another controller has ended meanwhile.
        await context.index.confirm(announced)
        await together(
            context.segments.create(segment_name(scope, stream, segment.id), stored.scaling, stored.rollover_bytes)
            for segment in epoch.segments
        )
        await context.catalog.add_tags(scope, stream, stored.tags)
        await tables.set_state(StreamState.ACTIVE, of=state)
    await context.index.withdraw(announced)
    return birth.created_ms == work.created_ms and stream_id == work.stream_id
