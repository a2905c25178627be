"""Replacing segments of a stream by new ones.

Order: check; announce; transition record; state SCALING; create the new segments; the next epoch's record with its
history entry and the ends of the old segments, in one write; seal the old segments; their sizes, the current epoch, an
empty transition record and state ACTIVE, in one write; withdraw the announcement.

The successors of a segment are recorded before it is sealed, so clients that find it sealed can find them. Source:
controller-internals 5.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

from penstock.controller.change_log import CHANGES, names_text
from penstock.controller.errors import ScaleUnderWayError
from penstock.controller.metadata import layout
from penstock.controller.metadata.epoch_tables import Row
from penstock.controller.metadata.pending_work import ScaleStream
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import (
    EpochRecord,
    EpochTransition,
    ScaleOrder,
    StateRecord,
    StreamState,
)
from penstock.controller.metadata.scale_plan import (
    epoch_after,
    even_order,
    history_entry,
    is_ordered_by,
    moved_to,
    plan_scale,
)
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.segment_requests import together
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import (
    NoSuchSegmentError,
    PenstockError,
    StreamSealedError,
)
from penstock.model.names import segment_name
from penstock.model.policies import StreamConfig

_logger = logging.getLogger(__name__)


class ScaleStatus(Enum):
    """Status of a scale."""

    IN_PROGRESS = "in progress"
    SUCCESS = "success"
    UNKNOWN_EPOCH = "unknown epoch"


async def scale_status(tables: StreamTables, epoch: int) -> ScaleStatus:
    """Return the status of the scale that began in `epoch`. Source: controller-api 9.13."""
    state, current = await tables.state_and_current_epoch()
    if epoch > current.epoch:
        return ScaleStatus.UNKNOWN_EPOCH
    if epoch in (current.epoch, current.reference_epoch):
        return ScaleStatus.IN_PROGRESS
    if epoch + 1 == current.reference_epoch and state is StreamState.SCALING:
        transition = (await tables.transition()).record
        if transition.is_empty or transition.active_epoch + 1 == current.epoch:
            return ScaleStatus.IN_PROGRESS
    return ScaleStatus.SUCCESS


async def pending_scale(tables: StreamTables, order: ScaleOrder) -> EpochTransition | None:
    """Return the transition in progress, if `order` asks for the same; None if there is none.

    Raises `ScaleUnderWayError` when it is a different one.
    """
    found = (await tables.transition()).record
    if found.is_empty or (await tables.current_epoch()).epoch != found.active_epoch:
        return None
    if not is_ordered_by(found, order):
        raise ScaleUnderWayError(f"stream {tables.name}: another scaling is not complete; try again later")
    return found


async def begin_scale(
    context: WorkflowContext, tables: StreamTables, to_seal: Sequence[int], ranges: Sequence[tuple[float, float]]
) -> EpochTransition:
    """Check and announce a scale; return the planned transition. The caller must have `resume_scale` complete it.

    The caller holds the stream's lock and has finished pending work. Raises `StreamSealedError`,
    `ScalePreconditionError`, `InvalidArgumentError`.
    """
    state, current = await tables.state_and_current_epoch()
    while True:
        if state in (StreamState.SEALING, StreamState.SEALED):
            raise StreamSealedError(f"stream {tables.name} is sealed and cannot be scaled")
        order = ScaleOrder(current.epoch, tuple(sorted(set(to_seal))), tuple(sorted(ranges)))
        planned = _plan(context, (await tables.configuration()).record.configuration, current, order)
        announced = await context.begin(tables.subject, ScaleStream(order), tables.stream_id)
        # Another controller may have scaled, rolled or sealed the stream before the announcement; from now on none can.
        planned_for = state, current.epoch
        state, current, transition = await tables.state_epoch_and_transition()
        if (state, current.epoch) == planned_for:
            break
        await context.claims.withdraw(announced)
    await tables.put_transition(planned, transition.version)
    return planned


async def resume_scale(
    context: WorkflowContext, tables: StreamTables, announced: WorkClaim, scale: ScaleStream
) -> None:
    """Complete an announced scale.

    Raises `StreamSealedError`, with nothing changed, when the stream was sealed before the announcement.
    """
    order = scale.scale
    configuration = (await tables.configuration()).record.configuration
    transition = await tables.transition()
    current = await tables.current_epoch()
    state = await tables.state()
    planned = transition.record
    if planned.is_empty or planned.active_epoch != current.epoch:
        planned = await _planned_again(context, tables, configuration, order, current)
    if not planned.is_empty:
        if state.record.state in (StreamState.SEALING, StreamState.SEALED):
            raise StreamSealedError(f"stream {tables.name} was sealed before it could be scaled")
        scaling = await tables.set_state(StreamState.SCALING, of=state)
        # Rewritten if it exists already, which invalidates the version of an earlier owner of this work.
        version = await tables.put_transition(planned, transition.version)
        await make_transition(
            context,
            tables,
            announced,
            Versioned(planned, version),
            current,
            configuration,
            # The last write frees the stream.
            finally_write=[(layout.STATE, StateRecord(StreamState.ACTIVE), scaling.version)],
        )
    else:
        if not transition.record.is_empty:
            await tables.put_transition(planned, transition.version)
        if state.record.state is StreamState.SCALING:
            await tables.set_state(StreamState.ACTIVE, of=state)
    await context.claims.withdraw(announced)


async def _planned_again(
    context: WorkflowContext, tables: StreamTables, configuration: StreamConfig, order: ScaleOrder, current: EpochRecord
) -> EpochTransition:
    """Return the transition for an order without a transition record in the present epoch.

    Either it was not written yet; or the scale is complete, and an empty one is returned; or transactions were rolled
    over since the order, and it applies to the segments of the same numbers.
    """
    if current.epoch == order.active_epoch:
        return _plan(context, configuration, current, order)
    ordered_for = await tables.need_epoch(order.active_epoch)
    if ordered_for.reference_epoch != current.reference_epoch:
        return EpochTransition()
    _logger.info("stream %s: scaling of epoch %d continues in epoch %d", tables.name, ordered_for.epoch, current.epoch)
    return _plan(context, configuration, current, moved_to(order, ordered_for, current))


async def scale_evenly(
    context: WorkflowContext,
    tables: StreamTables,
    announced: WorkClaim,
    current: EpochRecord,
    configuration: StreamConfig,
) -> None:
    """Replace all segments by the policy's number of segments with equal ranges, as part of other work."""
    order = even_order(current, configuration.scaling.min_segments)
    transition = await tables.transition()
    planned = transition.record
    if not is_ordered_by(planned, order) or planned.active_epoch != current.epoch:
        planned = _plan(context, configuration, current, order)
    version = await tables.put_transition(planned, transition.version)
    await make_transition(
        context, tables, announced, Versioned(planned, version), current, configuration, finally_write=()
    )


def _plan(
    context: WorkflowContext, configuration: StreamConfig, current: EpochRecord, order: ScaleOrder
) -> EpochTransition:
    return plan_scale(
        current,
        order,
        segment_count_min=configuration.scaling.min_segments,
        segment_count_max=context.settings.segments_per_stream_max,
        now_ms=context.runtime.wall_clock_ms(),
    )


async def make_transition(
    context: WorkflowContext,
    tables: StreamTables,
    announced: WorkClaim,
    transition: Versioned[EpochTransition],
    current: EpochRecord,
    configuration: StreamConfig,
    *,
    finally_write: Sequence[Row],
) -> Sequence[int]:
    """Complete a transition from `current`, however much of it is done; return the versions of `finally_write`.

    Those rows are written when the new epoch becomes current.
    """
    planned = transition.record
    following = epoch_after(current, planned)
    # Creations have no versions: a controller that was overtaken must not create segments.
    await context.claims.confirm(announced)
    await together(
        context.segments.create(
            segment_name(tables.scope, tables.stream, segment.id), configuration.scaling, configuration.rollover_bytes
        )
        for segment in planned.created
    )
    await asyncio.sleep(0)  # The next step takes some milliseconds for a thousand segments.
    entry = history_entry(following, current)
    await asyncio.sleep(0)
    version = await tables.add_epochs(
        [(following, entry)],
        dict.fromkeys(planned.to_seal, following.epoch),
        {},
        (layout.EPOCH_TRANSITION, planned, transition.version),
    )
    sizes = await seal_segments(context, tables, planned.to_seal, lambda: context.claims.confirm(announced))
    rows: list[Row] = [*finally_write, (layout.EPOCH_TRANSITION, EpochTransition(), version)]
    versions = (await tables.enter_epoch(following, sizes, rows))[: len(finally_write)]
    # Transactions begin in the new epoch from now on: the cached view of the stream is outdated.
    context.creations.found(tables.name, None)
    CHANGES.info(
        "scaled stream %s to epoch %d: segments %s replace %s",
        tables.name,
        following.epoch,
        names_text([segment.id for segment in planned.created]),
        names_text(planned.to_seal),
    )
    return versions


async def seal_segments(
    context: WorkflowContext, tables: StreamTables, segments: Sequence[int], confirm: Callable[[], Awaitable[None]]
) -> dict[int, int]:
    """Seal segments of the stream; return their lengths in bytes.

    A missing segment is logged, and counts as empty: it accepts no more events either, and its successors must not wait
    forever. Before that `confirm` checks that this is still the caller's work, and raises otherwise: a controller that
    has taken it over may have sealed the segment, which may have been deleted since.
    """
    names = [segment_name(tables.scope, tables.stream, segment) for segment in segments]
    lengths = await together(_seal(context, name, confirm) for name in names)
    return dict(zip(segments, lengths, strict=True))


async def _seal(context: WorkflowContext, segment: str, confirm: Callable[[], Awaitable[None]]) -> int:
    try:
        await context.segments.seal(segment)
        return (await context.segments.info(segment)).length
    except NoSuchSegmentError:
        await confirm()
        _logger.error("%s is missing: its data is lost; the stream continues without it", segment)
        return 0


async def give_up_scale(context: WorkflowContext, tables: StreamTables) -> None:
    """Drop the transition in progress, unless its epoch is recorded: then it can only be completed."""
    transition = await tables.transition()
    planned = transition.record
    if planned.is_empty:
        return
    if await tables.epoch(planned.active_epoch + 1) is not None:
        raise PenstockError(f"stream {tables.name}: epoch {planned.active_epoch + 1} is recorded and must be finished")
    await tables.put_transition(EpochTransition(), transition.version)
    await together(
        context.segments.delete(segment_name(tables.scope, tables.stream, segment.id)) for segment in planned.created
    )
