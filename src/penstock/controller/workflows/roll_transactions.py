"""Committing transactions of an epoch whose segments are no longer those of the stream.

Between the active epoch A and a copy of it two more are put: epoch A+1 has the segments of the transactions' own
epoch, filled with the transactions and sealed, and epoch A+2 has the segments of A anew. Readers go from A through A+1
to A+2, so that each key's events stay in order.

Order: active epoch noted in the batch; segments of A+1; merges into them; they are sealed; segments of A+2; both epochs
with their history, and the ends of the segments of A and A+1, at once; segments of A sealed; their sizes, and A+2
becomes the current epoch, at once. Source: controller internals specification, section 6.8.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import CommittingTransactions, EpochRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.scaling.plan import duplicate_of, history_entry
from penstock.controller.segment_requests import together
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.scale_stream import seal_segments
from penstock.model.errors import NoSuchSegmentError
from penstock.model.names import segment_name
from penstock.model.policies import Scaling, ScalingKind

#: Segments that are sealed as soon as they are filled report no load.
_NO_SCALING = Scaling(ScalingKind.FIXED)

#: Merges the batch, on record at a version, from the segments of one epoch into those of another with the same numbers.
MergeInto = Callable[[EpochRecord, EpochRecord, int], Awaitable[None]]


async def roll_transactions(
    context: WorkflowContext,
    tables: StreamTables,
    committing: Versioned[CommittingTransactions],
    origin: EpochRecord,
    merge: MergeInto,
) -> Versioned[CommittingTransactions]:
    """Commit a batch of epoch `origin`, whatever of it is done; return the batch with its version.

    The caller holds the stream's lock, and the stream is in state COMMITTING_TXN or SEALING.
    """
    current = await tables.current_epoch()
    batch = committing.record
    if batch.active_epoch is not None and await _is_rolled(tables, batch.active_epoch, origin):
        if current.epoch > batch.active_epoch:
            return committing
        active = current
        last = await tables.need_epoch(active.epoch + 2)
        # Written again as it is: the version of whoever began this is gone then.
        version = await tables.put_committing(batch, committing.version)
    else:
        active = current
        now_ms = max(context.runtime.wall_clock_ms(), active.created_ms + 1)
        middle = duplicate_of(origin, active.epoch + 1, now_ms, active)
        last = duplicate_of(active, active.epoch + 2, now_ms + 1, active)
        batch = replace(batch, active_epoch=active.epoch)
        version = await tables.put_committing(batch, committing.version)
        version = await _add_epochs(context, tables, Versioned(batch, version), origin, active, middle, last, merge)
    segments = [segment.id for segment in active.segments]
    sizes = await seal_segments(context, tables, segments, lambda: tables.check_committing(version))
    (version,) = await tables.enter_epoch(last, sizes, [(layout.COMMITTING_TRANSACTIONS, batch, version)])
    return Versioned(batch, version)


async def _add_epochs(
    context: WorkflowContext,
    tables: StreamTables,
    committing: Versioned[CommittingTransactions],
    origin: EpochRecord,
    active: EpochRecord,
    middle: EpochRecord,
    last: EpochRecord,
    merge: MergeInto,
) -> int:
    """Fill the epoch `middle`, and put it and `last` on record; return the new version of the batch."""
    configuration = (await tables.configuration()).record.configuration
    await _create(context, tables, middle, _NO_SCALING, configuration.rollover_bytes)
    if not await _is_any_sealed(context, tables, middle):
        await merge(origin, middle, committing.version)

    async def confirm() -> None:
        await tables.check_committing(committing.version)

    sizes = await seal_segments(context, tables, [segment.id for segment in middle.segments], confirm)
    # Merges take their time, and creations have no versions: whoever was overtaken meanwhile makes no segments any
    # more, of which nothing on record would tell if the stream is gone by now.
    await confirm()
    await _create(context, tables, last, configuration.scaling, configuration.rollover_bytes)
    ended: dict[int, int] = {segment.id: middle.epoch for segment in active.segments}
    ended.update({segment.id: last.epoch for segment in middle.segments})
    return await tables.add_epochs(
        [(middle, history_entry(middle, middle)), (last, history_entry(last, last))],
        ended,
        sizes,
        (layout.COMMITTING_TRANSACTIONS, committing.record, committing.version),
    )


async def _is_rolled(tables: StreamTables, active_epoch: int, origin: EpochRecord) -> bool:
    """Say whether the epochs behind `active_epoch` are on record as those of this batch."""
    middle = await tables.epoch(active_epoch + 1)
    return middle is not None and middle.reference_epoch == origin.reference_epoch


async def _is_any_sealed(context: WorkflowContext, tables: StreamTables, epoch: EpochRecord) -> bool:
    """Say whether sealing has begun, as it does when everything was merged."""

    async def ask(segment: str) -> bool:
        try:
            return (await context.segments.info(segment)).is_sealed
        except NoSuchSegmentError:
            return False

    names = [segment_name(tables.scope, tables.stream, segment.id) for segment in epoch.segments]
    return any(await together(ask(name) for name in names))


async def _create(
    context: WorkflowContext, tables: StreamTables, epoch: EpochRecord, scaling: Scaling, rollover_bytes: int
) -> None:
    await together(
        context.segments.create(segment_name(tables.scope, tables.stream, segment.id), scaling, rollover_bytes)
        for segment in epoch.segments
    )
