"""Truncating a stream at a stream cut.

Order: check; announce; truncation record with the new cut, updating; state TRUNCATING; truncate the segments of the cut
and delete those before it; record no longer updating; state ACTIVE; withdraw the announcement. What is deleted is in no
record: it lies between the beginning that the stream had, which the record keeps until then, and the new one.
Source: controller internals specification, section 7.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from penstock.controller.metadata.announcements import Announcement
from penstock.controller.metadata.pending_work import TruncateStream
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import SegmentRecord, StreamState, TruncationRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.steps import in_turns, pages
from penstock.controller.stream_cuts import Position, epoch_bounds, is_equal_or_after, size_between
from penstock.controller.stream_positions import (
    beginning_of,
    position_of_span,
    segments_between,
    valid_position_of,
)
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
    present = await tables.truncation()
    checked = Versioned(await _next_record(tables, cut, present.record), present.version)
    await _check_offsets(context, tables, cut)
    order = TruncateStream(dict(cut))
    announced = await context.begin(tables.subject, order, tables.stream_id)
    await resume_truncate(context, tables, announced, order, checked=checked)


async def _check_offsets(context: WorkflowContext, tables: StreamTables, cut: Mapping[int, int]) -> None:
    offsets = await _offsets_by_name(tables, cut)
    infos = await context.segments.infos(list(offsets))
    for page in pages(offsets.items()):
        for name, offset in page:
            if offset > infos[name].length:
                raise InvalidArgumentError(f"{name} has no offset {offset}: a stream cut ends at the segment's end")
        await asyncio.sleep(0)


async def _offsets_by_name(tables: StreamTables, cut: Mapping[int, int]) -> dict[str, int]:
    """Return where the segments of a cut are to begin, as far as something lies before. Others have their turn."""
    offsets: dict[str, int] = {}
    for page in pages(sorted(cut)):
        offsets.update((segment_name(tables.scope, tables.stream, one), cut[one]) for one in page if cut[one] > 0)
        await asyncio.sleep(0)
    return offsets


async def resume_truncate(
    context: WorkflowContext,
    tables: StreamTables,
    announced: Announcement,
    order: TruncateStream,
    *,
    checked: Versioned[TruncationRecord] | None = None,
) -> None:
    """Bring an announced truncation to its end.

    `checked` is its record, if it was made just now, with the version of the one that it replaces. Raises
    `StreamSealedError`, with nothing done and nothing announced, when the stream was sealed before the announcement.
    """
    cut = order.stream_cut
    found = await tables.truncation()
    record, version = found.record, found.version
    state = await tables.state()
    if record.is_updating or record.stream_cut != cut:
        if state.record.state in (StreamState.SEALING, StreamState.SEALED):
            await context.announcements.withdraw(announced)
            raise StreamSealedError(f"stream {tables.name} was sealed before it could be truncated")
        if record.stream_cut != cut:  # Also when an earlier truncation was given up half-way.
            is_checked = checked is not None and checked.version == version
            record = checked.record if checked is not None and is_checked else await _next_record(tables, cut, record)
        # Written again if it is there already: the version of whoever began this is gone then.
        version = await tables.put_truncation(record, version)
        state = await tables.set_state(StreamState.TRUNCATING, of=state)
        await context.segments.truncate_all(await _offsets_by_name(tables, record.stream_cut))
        before = await position_of_span(tables, {}, record.previous_span)
        async for page in _segments_till(tables, before, await beginning_of(tables, record)):
            await context.segments.delete_all([segment_name(tables.scope, tables.stream, one.id) for one in page])
        await tables.put_truncation(replace(record, previous_span={}, is_updating=False), version)
    if state.record.state is StreamState.TRUNCATING:
        await tables.set_state(StreamState.ACTIVE, of=state)
    await context.announcements.withdraw(announced)


async def _segments_till(
    tables: StreamTables, before: Position, beginning: Position
) -> AsyncIterator[list[SegmentRecord]]:
    """Yield the segments from where the stream began before to where it begins now, which are not of it any more."""
    async for page in segments_between(tables, [before], beginning):
        yield [segment for segment in page if segment.id not in beginning.cut]


async def _next_record(
    tables: StreamTables, cut: Mapping[int, int], previous: TruncationRecord
) -> TruncationRecord:
    """Check a cut against the stream and its present beginning; return the record of the truncation."""
    position = await valid_position_of(tables, cut)
    if position is None:
        _, newest = epoch_bounds(cut)
        raise InvalidArgumentError(
            f"the stream cut is none of {tables.name}: no reader can be there, or epoch {newest} is yet to come"
        )
    before = await beginning_of(tables, previous)
    if not await in_turns(is_equal_or_after(position, before)):
        raise InvalidArgumentError(f"the stream cut lies before the present beginning of {tables.name}")
    size_bytes = 0
    async for page in segments_between(tables, [before], position):
        sizes = await tables.sealed_sizes(segment.id for segment in page if segment.id not in cut)
        size_bytes += size_between(before.cut, cut, page, sizes)
    return TruncationRecord(
        stream_cut=dict(sorted(cut.items())),
        span=dict(sorted(position.span.items())),
        # What an earlier truncation was to delete, and did not, is deleted now.
        previous_span=previous.previous_span if previous.is_updating else previous.span,
        size_till_bytes=previous.size_till_bytes + size_bytes,
        is_updating=True,
    )
