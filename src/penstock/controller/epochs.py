"""Successors of segments: pure functions over epoch records. Source: controller-internals 4."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.controller.metadata.records import EpochRecord, SegmentRecord
from penstock.controller.steps import Steps, pages


@dataclass(frozen=True, slots=True)
class Successor:
    """A successor of a segment, and all of its predecessors."""

    segment: SegmentRecord
    predecessors: tuple[int, ...]


def successors(segment: SegmentRecord, epoch: EpochRecord, before: EpochRecord) -> Steps[list[Successor]]:
    """Return the successors of `segment`: the segments of `epoch`, its sealed epoch, that take over keys of it."""
    found: list[Successor] = []
    for page in pages(_overlapping(epoch.segments, segment)):
        for following in page:
            previous = tuple(one.id for one in _overlapping(before.segments, following))
            found.append(Successor(following, previous))
        yield
    return found


def _overlapping(tiling: Sequence[SegmentRecord], segment: SegmentRecord) -> Sequence[SegmentRecord]:
    """Return those of an epoch's segments that share keys with `segment`."""
    first = bisect_right(tiling, segment.key_start, key=lambda one: one.key_end)
    return tiling[first : bisect_left(tiling, segment.key_end, lo=first, key=lambda one: one.key_start)]
