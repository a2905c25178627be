"""Replacing segments of a stream by others.

Order: check; announce; transition record; state SCALING; create the new segments; the next epoch's record with its
history entry and the ends of the old segments, at once; seal the old segments; their sizes, the current epoch, an empty
transition record and state ACTIVE, at once; withdraw the announcement.

Whoever meets a sealed segment finds its successors, since they are on record before it is sealed. Source: controller
internals specification, section 5.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

from penstock.controller.change_log import CHANGES, names_text
from penstock.controller.errors import ScaleUnderWayError
from penstock.controller.metadata import layout
from penstock.controller.metadata.announcements import Announcement
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
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.scaling.plan import (
    epoch_after,
    even_order,
    history_entry,
    is_ordered_by,
    moved_to,
    plan_scale,
)
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
    """How a scale is doing."""

    IN_PROGRESS = "in progress"
    SUCCESS = "success"
    UNKNOWN_EPOCH = "unknown epoch"


async def scale_status(tables: StreamTables, epoch: int) -> ScaleStatus:
    """Say how the scale that began in `epoch` is doing. Source: controller API specification, 9.13."""
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
    """Return the transition that is under way, if it is what `order` asks for; None if none is.

    Raises `ScaleUnderWayError` when it is another one.
    """
    found = (await tables.transition()).record
    if found.is_empty or (await tables.current_epoch()).epoch != found.active_epoch:
        return None
    if not is_ordered_by(found, order):
        raise ScaleUnderWayError(f"stream {tables.name}: another scale is not complete; ask again when it is")
    return found


async def begin_scale(
    context: WorkflowContext, tables: StreamTables, to_seal: Sequence[int], ranges: Sequence[tuple[float, float]]
) -> EpochTransition:
    """Check and announce a scale; return what it will do. The caller has it finished, by `resume_scale`.

    The caller holds the stream's lock and has finished what was pending. Raises `StreamSealedError`,
    `ScalePreconditionError`, `InvalidArgumentError`.
    """
    state, current = await tables.state_and_current_epoch()
    while True:
        if state in (StreamState.SEALING, StreamState.SEALED):
            raise StreamSealedError(f"stream {tables.name} is sealed and cannot be scaled")
        order = ScaleOrder(current.epoch, tuple(sorted(set(to_seal))), tuple(sorted(ranges)))
        planned = _plan(context, (await tables.configuration()).record.configuration, current, order)
        announced = await context.begin(tables.subject, ScaleStream(order), tables.stream_id)
        # Another controller may have scaled, rolled or sealed before this was announced; from now on none can.
        planned_for = state, current.epoch
        state, current, transition = await tables.state_epoch_and_transition()
        if (state, current.epoch) == planned_for:
            break
        await context.announcements.withdraw(announced)
    await tables.put_transition(planned, transition.version)
    return planned


async def resume_scale(
    context: WorkflowContext, tables: StreamTables, announced: Announcement, scale: ScaleStream
) -> None:
    """Bring an announced scale to its end.

    Raises `StreamSealedError`, with nothing done, when the stream was sealed before the announcement.
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
        # Written again if it is there already: the version of whoever began this is gone then.
        version = await tables.put_transition(planned, transition.version)
        await make_transition(
            context,
            tables,
            announced,
            Versioned(planned, version),
            current,
            configuration,
            # The last write of all frees the stream.
            finally_write=[(layout.STATE, StateRecord(StreamState.ACTIVE), scaling.version)],
        )
    else:
        if not transition.record.is_empty:
            await tables.put_transition(planned, transition.version)
        if state.record.state is StreamState.SCALING:
            await tables.set_state(StreamState.ACTIVE, of=state)
    await context.announcements.withdraw(announced)


async def _planned_again(
    context: WorkflowContext, tables: StreamTables, configuration: StreamConfig, order: ScaleOrder, current: EpochRecord
) -> EpochTransition:
    """Return the transition for an order that no transition record of the present epoch is about.

    It was not written yet; or the scale is complete, and an empty one is returned; or transactions were rolled over
    since it was ordered, and the segments of the same numbers are meant.
    """
    if current.epoch == order.active_epoch:
        return _plan(context, configuration, current, order)
    ordered_for = await tables.need_epoch(order.active_epoch)
    if ordered_for.reference_epoch != current.reference_epoch:
        return EpochTransition()
    _logger.info("stream %s: a scale of epoch %d goes on in epoch %d", tables.name, ordered_for.epoch, current.epoch)
    return _plan(context, configuration, current, moved_to(order, ordered_for, current))


async def scale_evenly(
    context: WorkflowContext,
    tables: StreamTables,
    announced: Announcement,
    current: EpochRecord,
    configuration: StreamConfig,
) -> None:
    """Replace all segments by as many of equal ranges as the policy asks for, as a part of other work."""
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
    announced: Announcement,
    transition: Versioned[EpochTransition],
    current: EpochRecord,
    configuration: StreamConfig,
    *,
    finally_write: Sequence[Row],
) -> Sequence[int]:
    """Bring a transition from `current` to its end, whatever of it is done; return the versions of `finally_write`.

    Those rows are written when the new epoch becomes the current one.
    """
    planned = transition.record
    following = epoch_after(current, planned)
    # What follows has no versions: a controller that was overtaken must not make segments any more.
    await context.announcements.confirm(announced)
    await together(
        context.segments.create(
            segment_name(tables.scope, tables.stream, segment.id), configuration.scaling, configuration.rollover_bytes
        )
        for segment in planned.created
    )
    await asyncio.sleep(0)  # What follows takes some milliseconds for a thousand segments.
    entry = history_entry(following, current)
    await asyncio.sleep(0)
    version = await tables.add_epochs(
        [(following, entry)],
        dict.fromkeys(planned.to_seal, following.epoch),
        {},
        (layout.EPOCH_TRANSITION, planned, transition.version),
    )
    sizes = await seal_segments(
        context, tables, planned.to_seal, lambda: context.announcements.confirm(announced)
    )
    rows: list[Row] = [*finally_write, (layout.EPOCH_TRANSITION, EpochTransition(), version)]
    versions = (await tables.enter_epoch(following, sizes, rows))[: len(finally_write)]
    # Transactions begin in the new epoch from now on, without a detour through the one that this controller knows.
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

    One that is missing is reported, and counts as empty: it takes no more events either, and what follows it must not
    wait for ever. But first `confirm` says whether this is still the caller's work, and raises if it is not: who has
    taken it over may have sealed the segment, and others may have deleted it since.
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
        _logger.error("%s is missing: what it held is lost; its stream goes on without it", segment)
        return 0


async def give_up_scale(context: WorkflowContext, tables: StreamTables) -> None:
    """Forget the transition that is under way, unless its epoch is on record: then it can only be finished."""
    transition = await tables.transition()
    planned = transition.record
    if planned.is_empty:
        return
    if await tables.epoch(planned.active_epoch + 1) is not None:
        raise PenstockError(f"stream {tables.name}: epoch {planned.active_epoch + 1} is on record and must be finished")
    await tables.put_transition(EpochTransition(), transition.version)
    await together(
        context.segments.delete(segment_name(tables.scope, tables.stream, segment.id)) for segment in planned.created
    )
