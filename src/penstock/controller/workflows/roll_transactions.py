"""Committing transactions of an epoch whose segments are no longer current.

Two epochs are inserted after the active epoch A: epoch A+1 is a duplicate of the transactions' own epoch, whose
segments are filled with the transactions and sealed, and epoch A+2 is a duplicate of A. Readers go from A through A+1
to A+2, so that each key's events stay in order.

Order: active epoch noted in the batch; segments of A+1; merges into them; seal them; segments of A+2; both epochs with
their history, and the ends of the segments of A and A+1, in one write; seal the segments of A; their sizes, and A+2 as
the current epoch, in one write. Source: controller-internals 6.8.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import CommittingTransactions, EpochRecord
from penstock.controller.metadata.scale_plan import duplicate_of, history_entry
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.segment_requests import together
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.scale_stream import seal_segments
from penstock.model.errors import NoSuchSegmentError
from penstock.model.names import segment_name
from penstock.model.policies import NO_SCALING, Scaling

#: Merges the batch, recorded at a version, from the segments of one epoch into those of another with the same numbers.
MergeInto = Callable[[EpochRecord, EpochRecord, int], Awaitable[None]]


async def roll_transactions(
    context: WorkflowContext,
    tables: StreamTables,
    committing: Versioned[CommittingTransactions],
    origin: EpochRecord,
    merge: MergeInto,
) -> Versioned[CommittingTransactions]:
    """Commit a batch of epoch `origin`, however much of it is done; return the batch with its version.

    The caller holds the stream's lock, and the stream is in state COMMITTING_TXN or SEALING.
    """
    current = await tables.current_epoch()
    batch = committing.record
    if batch.active_epoch is not None and await _is_rolled(tables, batch.active_epoch, origin):
        if current.epoch > batch.active_epoch:
            return committing
        active = current
        last = await tables.need_epoch(active.epoch + 2)
        # Rewritten unchanged, which invalidates the version of an earlier owner of this work.
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
    """Fill the epoch `middle`, and record it and `last`; return the new version of the batch."""
    configuration = (await tables.configuration()).record.configuration
    await _create(context, tables, middle, NO_SCALING, configuration.rollover_bytes)
    if not await _is_any_sealed(context, tables, middle):
        await merge(origin, middle, committing.version)

    async def confirm() -> None:
        await tables.check_committing(committing.version)

    sizes = await seal_segments(context, tables, [segment.id for segment in middle.segments], confirm)
    # Merges take time, and creations have no versions: a controller overtaken meanwhile must not create segments, which
    # no record would refer to if the stream has been deleted.
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
    """Say whether the epochs after `active_epoch` are recorded as those of this batch."""
    middle = await tables.epoch(active_epoch + 1)
    return middle is not None and middle.reference_epoch == origin.reference_epoch


async def _is_any_sealed(context: WorkflowContext, tables: StreamTables, epoch: EpochRecord) -> bool:
    """Say whether sealing has begun, which means that everything was merged."""

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
