"""The changes made by a scale: pure functions over epoch records.

Source: controller-internals 2 (rules R2 to R8) and 5; controller-api 9.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.controller.errors import ScalePreconditionError
from penstock.controller.metadata.history_records import HISTORY_SEGMENTS_MAX, HistoryEntry
from penstock.controller.metadata.records import (
    EpochRecord,
    EpochTransition,
    ScaleOrder,
    SegmentRecord,
)
from penstock.model.errors import InvalidArgumentError
from penstock.model.key_ranges import KeyRange, initial_ranges, merged
from penstock.model.policies import Scaling, ScalingKind


def check_ranges(to_seal: Sequence[SegmentRecord], ranges: Sequence[KeyRange]) -> None:
    """Raise `InvalidArgumentError` unless the ranges cover the keys of the segments, each key once."""
    if not to_seal or not ranges:
        raise InvalidArgumentError("a scale must seal at least one segment and create at least one")
    sealed = merged(KeyRange(segment.key_start, segment.key_end) for segment in to_seal)
    if merged(ranges) != sealed:
        text = ", ".join(f"[{keys.start}, {keys.end})" for keys in sealed)
        raise InvalidArgumentError(f"the new key ranges do not cover exactly those of the sealed segments: {text}")


def plan_scale(
    current: EpochRecord, order: ScaleOrder, *, segment_count_min: int, segment_count_max: int, now_ms: int
) -> EpochTransition:
    """Return the transition from `current` that an order asks for, segments to seal and to create sorted by key.

    Raises `InvalidArgumentError` for ranges that do not fit, `ScalePreconditionError` for segments outside this epoch
    and for a result of fewer than `segment_count_min` segments.
    """
    wanted = set(order.to_seal)
    to_seal = [segment for segment in current.segments if segment.id in wanted]
    if len(to_seal) != len(wanted):
        missing = sorted(wanted - {segment.id for segment in to_seal})
        raise ScalePreconditionError(f"segments {missing} are not of epoch {current.epoch}, the current one")
    ranges = [KeyRange(start, end) for start, end in sorted(order.ranges)]
    check_ranges(to_seal, ranges)
    count = len(current.segments) - len(to_seal) + len(ranges)
    if count < segment_count_min:
        raise ScalePreconditionError(f"{count} segments would remain, the policy asks for {segment_count_min}")
    if count > segment_count_max:
        raise InvalidArgumentError(f"{count} segments: a stream has {segment_count_max} at most")
    created_ms = max(now_ms, current.created_ms + 1)
    first_number = max(segment.number for segment in current.segments) + 1
    return EpochTransition(
        active_epoch=current.epoch,
        started_ms=created_ms,
        to_seal=tuple(segment.id for segment in to_seal),
        created=tuple(
            SegmentRecord(first_number + index, current.epoch + 1, created_ms, keys.start, keys.end)
            for index, keys in enumerate(ranges)
        ),
    )


def is_ordered_by(transition: EpochTransition, order: ScaleOrder) -> bool:
    """Say whether a transition carries out an order."""
    return (
        not transition.is_empty
        and set(transition.to_seal) == set(order.to_seal)
        and [(segment.key_start, segment.key_end) for segment in transition.created] == sorted(order.ranges)
    )


def moved_to(order: ScaleOrder, ordered_for: EpochRecord, current: EpochRecord) -> ScaleOrder:
    """Return an order for one epoch as an order for `current`, a duplicate of that epoch with other segment ids."""
    wanted = set(order.to_seal)
    numbers = {segment.number for segment in ordered_for.segments if segment.id in wanted}
    to_seal = tuple(segment.id for segment in current.segments if segment.number in numbers)
    return ScaleOrder(current.epoch, to_seal, order.ranges)


def even_order(current: EpochRecord, count: int) -> ScaleOrder:
    """Return the order to replace all segments by `count` with equal ranges."""
    ranges = tuple((keys.start, keys.end) for keys in initial_ranges(count))
    return ScaleOrder(current.epoch, tuple(segment.id for segment in current.segments), ranges)


def is_due(policy: Scaling, current: EpochRecord) -> bool:
    """Say whether a policy requires another number of segments than there are, regardless of load."""
    count, least = len(current.segments), policy.min_segments
    return count < least or (policy.kind is ScalingKind.FIXED and count != least)


def epoch_after(current: EpochRecord, transition: EpochTransition) -> EpochRecord:
    """Return the record of the epoch after a transition from `current`."""
    sealed = set(transition.to_seal)
    ended = [segment for segment in current.segments if segment.id in sealed]
    kept = (segment for segment in current.segments if segment.id not in sealed)
    segments = sorted([*kept, *transition.created], key=lambda segment: segment.key_start)
    return EpochRecord(
        current.epoch + 1,
        current.epoch + 1,
        tuple(segments),
        transition.started_ms,
        current.splits + _divided(ended, transition.created),
        current.merges + _divided(transition.created, ended),
    )


def _divided(whole: Sequence[SegmentRecord], parts: Sequence[SegmentRecord]) -> int:
    """Count the segments of `whole` whose keys belong to more than one of `parts`. Both are sorted by key."""
    count = index = 0
    for segment in whole:
        while index < len(parts) and parts[index].key_end <= segment.key_start:
            index += 1
        count += index + 1 < len(parts) and parts[index + 1].key_start < segment.key_end
    return count


def history_entry(epoch: EpochRecord, before: EpochRecord) -> HistoryEntry:
    """Return the change of `epoch`. A large change is omitted: it is in the epoch's own record."""
    created = _difference(epoch.segments, before.segments)
    sealed = tuple(segment.id for segment in _difference(before.segments, epoch.segments))
    if len(created) + len(sealed) > HISTORY_SEGMENTS_MAX:
        created, sealed = (), ()
    return HistoryEntry(epoch.epoch, epoch.reference_epoch, sealed, created, epoch.created_ms)


def first_entry(epoch: EpochRecord) -> HistoryEntry:
    """Return the history entry of epoch 0. With many segments it is a large change."""
    created = epoch.segments if len(epoch.segments) <= HISTORY_SEGMENTS_MAX else ()
    return HistoryEntry(epoch.epoch, epoch.reference_epoch, (), created, epoch.created_ms)


def _difference(those: Iterable[SegmentRecord], without: Iterable[SegmentRecord]) -> tuple[SegmentRecord, ...]:
    known = {segment.id for segment in without}
    return tuple(segment for segment in those if segment.id not in known)


def duplicate_of(original: EpochRecord, epoch: int, created_ms: int, counted: EpochRecord) -> EpochRecord:
    """Return a duplicate of `original` as a later epoch: the same numbers and keys, other segments.

    Its splits and merges are those of `counted`, the epoch before it.
    """
    return EpochRecord(
        epoch,
        original.reference_epoch,
        tuple(
            SegmentRecord(segment.number, epoch, created_ms, segment.key_start, segment.key_end)
            for segment in original.segments
        ),
        created_ms,
        counted.splits,
        counted.merges,
    )
