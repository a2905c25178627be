"""Truncating a stream at a stream cut.

Order: check; announce; check the policy that requested it, if any; truncation record with the new cut, updating, and
state TRUNCATING; truncate the segments of the cut and delete those before it; record no longer updating, and state
ACTIVE; withdraw the announcement. The segments to delete are not recorded: they lie between the previous start of the
stream, which the record keeps until then, and the new one.
Source: controller-internals 7.6.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.controller.change_log import CHANGES, cut_text
from penstock.controller.errors import PolicyReplacedError
from penstock.controller.metadata.pending_work import CONFIGURATION_ANY, TruncateStream
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import StreamState, TruncationRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.steps import in_turns, pages
from penstock.controller.stream_cuts import (
    Position,
    are_in_same_segments,
    epoch_bounds,
    is_equal_or_after,
    size_between,
)
from penstock.controller.stream_positions import (
    beginning_of,
    position_of_span,
    segments_between,
    valid_position_of,
)
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import InvalidArgumentError, StreamSealedError
from penstock.model.names import segment_name

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A checked truncation, with the data that the check has read.

    Attributes:
        record: its initial record, which replaces the one with version `replaces`.
        before: start of the data to delete; None if it is still to be read.
        beginning: the stream's new start.
        offsets: new start offsets of segments, by name, for those with data before them.
    """

    record: TruncationRecord
    replaces: int
    before: Position | None
    beginning: Position
    offsets: Mapping[str, int]


async def truncate_stream(
    context: WorkflowContext,
    tables: StreamTables,
    cut: Mapping[int, int],
    configuration_version: int = CONFIGURATION_ANY,
) -> None:
    """Make the stream begin at `cut`. The caller holds the stream's lock and has finished pending work.

    `configuration_version`: see `TruncateStream`. Raises `StreamSealedError`; `PolicyReplacedError` when the stream has
    another configuration; `InvalidArgumentError` for an invalid cut, or one before the present beginning.
    """
    view = await tables.truncation_view()
    if view.state.record.state in (StreamState.SEALING, StreamState.SEALED):
        raise StreamSealedError(f"stream {tables.name} is sealed and cannot be truncated")
    plan = await _plan(tables, cut, view.truncation)
    await _check_offsets(context, plan.offsets)
    order = TruncateStream(dict(cut), configuration_version)
    announced = await context.begin(tables.subject, order, tables.stream_id)
    await resume_truncate(context, tables, announced, order, plan=plan)


async def _check_offsets(context: WorkflowContext, offsets: Mapping[str, int]) -> None:
    infos = await context.segments.infos(list(offsets))
    for page in pages(offsets.items()):
        for name, offset in page:
            if offset > infos[name].length:
                raise InvalidArgumentError(f"{name} has no offset {offset}: a stream cut ends at the segment's end")
        await asyncio.sleep(0)


async def _offsets_by_name(tables: StreamTables, cut: Mapping[int, int]) -> dict[str, int]:
    """Return the start offsets of the cut's segments, where there is data before them. Other tasks run meanwhile."""
    offsets: dict[str, int] = {}
    for page in pages(sorted(cut)):
        offsets.update((segment_name(tables.scope, tables.stream, one), cut[one]) for one in page if cut[one] > 0)
        await asyncio.sleep(0)
    return offsets


async def resume_truncate(
    context: WorkflowContext,
    tables: StreamTables,
    announced: WorkClaim,
    order: TruncateStream,
    *,
    plan: _Plan | None = None,
) -> None:
    """Complete an announced truncation.

    `plan` was just made, and is valid while its record can replace the existing one. Raises `StreamSealedError`, with
    nothing changed and the announcement withdrawn, when the stream was sealed before the announcement; likewise
    `PolicyReplacedError`, but only with a `plan`: without one there is no caller to report it to.
    """
    has_caller = plan is not None
    view = await tables.truncation_view()
    record, state = view.truncation.record, view.state.record.state
    if record.is_updating or record.stream_cut != order.stream_cut:
        if state in (StreamState.SEALING, StreamState.SEALED):
            await context.claims.withdraw(announced)
            raise StreamSealedError(f"stream {tables.name} was sealed before it could be truncated")
        if plan is not None and plan.replaces != view.truncation.version:
            plan = None
        if record.stream_cut != order.stream_cut and not await _is_policy_in_force(tables, order):
            await context.claims.withdraw(announced)
            problem = f"stream {tables.name} is not truncated: the retention policy was replaced"
            if has_caller:
                raise PolicyReplacedError(problem)
            _logger.info("%s", problem)
            return
        if record.stream_cut != order.stream_cut:  # Also when an earlier truncation was given up half-way.
            plan = plan or await _plan(tables, order.stream_cut, view.truncation)
            record = plan.record
        # Rewritten if it exists already, which invalidates the versions of an earlier owner of this work.
        view = await tables.put_truncation(record, view)
        offsets = plan.offsets if plan else await _offsets_by_name(tables, record.stream_cut)
        await context.segments.truncate_all(offsets)
        before = plan.before if plan else None
        await _delete_between(
            context,
            tables,
            before or await position_of_span(tables, {}, record.previous_span),
            plan.beginning if plan else await beginning_of(tables, record),
        )
        await tables.put_truncation(replace(record, previous_span={}, is_updating=False), view)
        CHANGES.info("truncated stream %s, it begins at %s", tables.name, cut_text(record.stream_cut))
    elif state is StreamState.TRUNCATING:
        await tables.set_state(StreamState.ACTIVE, of=view.state)
    await context.claims.withdraw(announced)


async def _is_policy_in_force(tables: StreamTables, order: TruncateStream) -> bool:
    """Return whether the policy that chose a cut is still in force; a caller's cut needs none.

    An update is announced like a truncation, so none begins between this read and the end of the truncation. For a
    controller that was overtaken before, the version of the truncation record that it has read is outdated by then.
    """
    if order.configuration_version == CONFIGURATION_ANY:
        return True
    return (await tables.configuration()).version == order.configuration_version


async def _delete_between(
    context: WorkflowContext, tables: StreamTables, before: Position, beginning: Position
) -> None:
    """Delete the segments between the stream's previous and new start that are no longer in it."""
    if await in_turns(are_in_same_segments(before, beginning)):
        return
    async for page in segments_between(tables, [before], beginning):
        gone = [segment_name(tables.scope, tables.stream, one.id) for one in page if one.id not in beginning.cut]
        await context.segments.delete_all(gone)


async def _plan(tables: StreamTables, cut: Mapping[int, int], present: Versioned[TruncationRecord]) -> _Plan:
    """Check a cut against the stream and its present beginning; return the truncation to it."""
    previous = present.record
    position = await valid_position_of(tables, cut)
    if position is None:
        _, newest = epoch_bounds(cut)
        raise InvalidArgumentError(
            f"the stream cut is not a valid cut of {tables.name}: no reader can reach it, or epoch {newest} does not "
            "exist yet"
        )
    before = await beginning_of(tables, previous)
    if not await in_turns(is_equal_or_after(position, before)):
        raise InvalidArgumentError(f"the stream cut is before the head of {tables.name}")
    size_bytes = 0
    async for page in segments_between(tables, [before], position):
        sizes = await tables.sealed_sizes(segment.id for segment in page if segment.id not in cut)
        size_bytes += size_between(before.cut, cut, page, sizes)
    record = TruncationRecord(
        stream_cut=dict(sorted(cut.items())),
        span=dict(sorted(position.span.items())),
        # The rest of an earlier, incomplete truncation is deleted too.
        previous_span=previous.previous_span if previous.is_updating else previous.span,
        size_till_bytes=previous.size_till_bytes + size_bytes,
        is_updating=True,
    )
    offsets = await _offsets_by_name(tables, cut)
    return _Plan(record, present.version, None if previous.is_updating else before, position, offsets)
