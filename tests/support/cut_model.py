"""Stream cuts against successive epoch records, as a stream's history passes them to the folds of `stream_cuts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from penstock.controller.metadata.records import EpochRecord, SegmentRecord
from penstock.controller.steps import at_once
from penstock.controller.stream_cuts import Between, Change, Position, PositionFold, ValidityFold


def tiling(count: int, epoch: int, first_number: int) -> tuple[SegmentRecord, ...]:
    """Return so many segments of equal ranges, made in an epoch."""
    bounds = [index / count for index in range(count)] + [1.0]
    return tuple(
        SegmentRecord(first_number + index, epoch, 2**41, start, end)
        for index, (start, end) in enumerate(pairwise(bounds))
    )


def changes_of(epochs: Sequence[EpochRecord]) -> list[Change]:
    """Return what changed with each epoch but the first."""
    result = []
    for before, epoch in pairwise(epochs):
        old, new = ({segment.id for segment in one.segments} for one in (before, epoch))
        sealed = [segment.id for segment in before.segments if segment.id not in new]
        result.append(Change(epoch.epoch, sealed, [segment for segment in epoch.segments if segment.id not in old]))
    return result


def position_of(cut: Mapping[int, int], epochs: Sequence[EpochRecord]) -> Position:
    """Find a cut in these epochs."""
    fold = PositionFold(cut)
    at_once(fold.begin(epochs[0].segments))
    at_once(fold.add(changes_of(epochs)))
    return at_once(fold.position())


def is_valid_cut(cut: Mapping[int, int], epochs: Sequence[EpochRecord]) -> bool:
    """Say whether readers can have come to a cut, told the history from the first to the last epoch of its span."""
    position = position_of(cut, epochs)
    fold = ValidityFold(position)
    first, newest = position.first_epoch, max(segment >> 32 for segment in cut)
    start = next(index for index, epoch in enumerate(epochs) if epoch.epoch == first)
    at_once(fold.prepare())
    at_once(fold.begin(epochs[start].segments))
    at_once(fold.add(change for change in changes_of(epochs[start:]) if change.epoch <= newest))
    return fold.is_valid


def segments_between(start: Position, end: Position, epochs: Sequence[EpochRecord]) -> list[SegmentRecord]:
    """Return the segments between two positions, by id."""
    between = at_once(Between.of([start], [end]))
    found = {segment.id: segment for epoch in epochs for segment in epoch.segments if between.has(segment)}
    return [found[segment] for segment in sorted(found)]
