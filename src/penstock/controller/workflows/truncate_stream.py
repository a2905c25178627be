"""Truncating a stream at a stream cut.

Order: check; announce; truncation record with the new cut, updating; state TRUNCATING; truncate the segments of the cut
and delete those before it; record no longer updating; state ACTIVE; withdraw the announcement.
Source: controller internals specification, section 7.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock.controller import epochs as history
from penstock.controller.metadata.announcements import Announcement
from penstock.controller.metadata.pending_work import TruncateStream
from penstock.controller.metadata.records import EpochRecord, StreamState, TruncationRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.segment_requests import together
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import InvalidArgumentError, StreamSealedError
from penstock.model.names import segment_name


async def truncate_stream(context: WorkflowContext, tables: StreamTables, cut: Mapping[int, int]) -> None:
    """Make the stream begin at `cut`. The caller holds the stream's lock and has finished what was pending.

    Raises `StreamSealedError`; `InvalidArgumentError` for a cut that is not valid, or before the present beginning.
    """
    state = (await tables.state()).record.state
    if state in (StreamState.SEALING, StreamState.SEALED):
        raise StreamSealedError(f"stream {tables.name} is sealed and cannot be truncated")
    await _next_record(tables, cut, (await tables.truncation()).record)
    for segment, offset in cut.items():
        name = segment_name(tables.scope, tables.stream, segment)
        if offset > 0 and offset > (await context.segments.info(name)).length:
            raise InvalidArgumentError(f"{name} has no offset {offset}: a stream cut ends at the segment's end")
    order = TruncateStream(dict(cut))
    await resume_truncate(context, tables, await context.begin(tables.subject, order, tables.stream_id), order)


async def resume_truncate(
    context: WorkflowContext, tables: StreamTables, announced: Announcement, order: TruncateStream
) -> None:
    """Bring an announced truncation to its end."""
    cut = order.stream_cut
    found = await tables.truncation()
    record, version = found.record, found.version
    state = await tables.state()
    if record.is_updating or record.stream_cut != cut:
        if record.stream_cut != cut:  # Also when an earlier truncation was given up half-way.
            record = await _next_record(tables, cut, record)
        # Written again if it is there already: the version of whoever began this is gone then.
        version = await tables.put_truncation(record, version)
        state = await tables.set_state(StreamState.TRUNCATING, of=state)
        await together(
            context.segments.truncate(segment_name(tables.scope, tables.stream, segment), offset)
            for segment, offset in sorted(record.stream_cut.items())
            if offset > 0
        )
        await together(
            context.segments.delete(segment_name(tables.scope, tables.stream, segment))
            for segment in record.to_delete
        )
        deleted = tuple(sorted({*record.deleted_segments, *record.to_delete}))
        done = replace(record, deleted_segments=deleted, to_delete=(), is_updating=False)
        await tables.put_truncation(done, version)
    if state.record.state is StreamState.TRUNCATING:
        await tables.set_state(StreamState.ACTIVE, of=state)
    await context.announcements.withdraw(announced)


async def _next_record(
    tables: StreamTables, cut: Mapping[int, int], previous: TruncationRecord
) -> TruncationRecord:
    """Check a cut against the stream and its present beginning; return the record of the truncation."""
    _, newest = history.epoch_bounds(cut)
    oldest = min(previous.span.values(), default=0)
    current = await tables.current_epoch()
    if newest > current.epoch:
        raise InvalidArgumentError(f"the stream cut names epoch {newest}, {tables.name} is in epoch {current.epoch}")
    records: list[EpochRecord] = await tables.epochs(min(oldest, history.epoch_bounds(cut)[0]), newest)
    if not history.is_valid_cut(cut, records):
        raise InvalidArgumentError(f"the stream cut does not cover the keys of {tables.name} exactly once")
    before = previous.stream_cut or {segment.id: 0 for segment in records[0].segments}
    before_span = history.span_of(before, records)
    span = history.span_of(cut, records)
    if not history.is_equal_or_after(cut, span, before, before_span, records):
        raise InvalidArgumentError(f"the stream cut lies before the present beginning of {tables.name}")
    between = history.segments_between(before_span, span, records)
    sizes = await tables.sealed_sizes(segment.id for segment in between if segment.id not in cut)
    return TruncationRecord(
        stream_cut=dict(sorted(cut.items())),
        span=span,
        deleted_segments=previous.deleted_segments,
        to_delete=tuple(
            sorted({*previous.to_delete, *(segment.id for segment in between if segment.id not in cut)})
        ),
        size_till_bytes=previous.size_till_bytes + history.size_between(before, cut, between, sizes),
        is_updating=True,
    )
