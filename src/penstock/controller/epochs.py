"""Stream cuts against the history of a stream: pure functions over epoch records.

`epochs` arguments are successive epoch records, at least from the lowest to the highest creation epoch in the cuts. A
span maps each segment of a cut to the last epoch that contains it, not above the newest creation epoch in the cut.

Source: controller internals specification, sections 4 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.controller.metadata.records import EpochRecord, SegmentRecord
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import segment_epoch
from penstock.model.stream_cuts import OFFSET_FUTURE

Span = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that follows another one, and the segments that it follows."""

    segment: SegmentRecord
    predecessors: tuple[int, ...]


def successors(segment: SegmentRecord, epoch: EpochRecord, before: EpochRecord) -> list[Successor]:
    """Return what follows `segment`: those of `epoch`, its sealed epoch, that take over some of its keys."""
    return [
        Successor(
            following, tuple(previous.id for previous in before.segments if previous.overlaps(following))
        )
        for following in epoch.segments
        if following.overlaps(segment)
    ]


def epoch_bounds(*cuts: Mapping[int, int]) -> tuple[int, int]:
    """Return the lowest and the highest creation epoch of the segments in the cuts."""
    found = [segment_epoch(segment) for cut in cuts for segment in cut]
    if not found:
        raise InvalidArgumentError("a stream cut without segments says nothing")
    if min(found) < 0:
        raise InvalidArgumentError("a stream cut names a negative segment id")
    return min(found), max(found)


def span_of(cut: Mapping[int, int], epochs: Sequence[EpochRecord]) -> dict[int, int]:
    """Return the span of a cut. Raises `InvalidArgumentError` for a segment that its creation epoch does not have."""
    _, newest = epoch_bounds(cut)
    span: dict[int, int] = {}
    for segment in sorted(cut):
        containing = [
            epoch.epoch
            for epoch in epochs
            if segment_epoch(segment) <= epoch.epoch <= newest and epoch.segment(segment) is not None
        ]
        if not containing:
            raise InvalidArgumentError(f"segment {segment} is not, and never was, a segment of the stream")
        span[segment] = max(containing)
    return span


def _record(segment: int, epochs: Sequence[EpochRecord]) -> SegmentRecord:
    for epoch in epochs:
        found = epoch.segment(segment)
        if found is not None:
            return found
    raise InvalidArgumentError(f"segment {segment} is not, and never was, a segment of the stream")


def is_valid_cut(cut: Mapping[int, int], epochs: Sequence[EpochRecord]) -> bool:
    """Say whether readers can have come to a cut: it covers the key space once, future segments filling the gaps, and
    every segment before another one of the cut has been read to its end.

    Raises `InvalidArgumentError` for an unknown segment, and for a cut that has no reached segment at all.
    """
    if not any(offset >= 0 for offset in cut.values()):
        raise InvalidArgumentError("a stream cut needs a segment with an offset of 0 or more")
    if any(offset < OFFSET_FUTURE for offset in cut.values()):
        return False
    reached = sorted(
        (_record(segment, epochs) for segment, offset in cut.items() if offset >= 0), key=lambda s: s.key_start
    )
    future = [_record(segment, epochs) for segment, offset in sorted(cut.items()) if offset == OFFSET_FUTURE]
    if any(one.overlaps(later) and one.id >= later.id for one in reached for later in future):
        return False
    covered_to = 0.0
    for segment in reached:
        if segment.key_start < covered_to:
            return False
        if segment.key_start > covered_to and not _is_covered(covered_to, segment.key_start, future):
            return False
        covered_to = segment.key_end
    if covered_to < 1.0 and not _is_covered(covered_to, 1.0, future):
        return False
    return _is_reached(cut, reached, epochs)


def _is_reached(cut: Mapping[int, int], reached: Sequence[SegmentRecord], epochs: Sequence[EpochRecord]) -> bool:
    """Say whether all that was read before a cut could be read.

    From the oldest epoch of the cut on, a segment outside the cut was read to its end, and what follows it is looked at
    in turn. Unless it lies behind a segment of the cut for some of its keys: then nothing of it can have been read,
    and it had to be in the cut as a future one.
    """
    oldest, newest = epoch_bounds(cut)
    span = [epoch for epoch in epochs if oldest <= epoch.epoch <= newest]
    ends: dict[int, EpochRecord] = {}
    for before, epoch in pairwise(span):
        kept = {segment.id for segment in epoch.segments}
        ends.update((segment.id, epoch) for segment in before.segments if segment.id not in kept)
    waiting, seen = list(span[0].segments), set(cut)
    while waiting:
        segment = waiting.pop()
        if segment.id in seen:
            continue
        seen.add(segment.id)
        if any(one.id < segment.id and one.overlaps(segment) for one in reached):
            return False
        if segment.id in ends:
            waiting.extend(following for following in ends[segment.id].segments if following.overlaps(segment))
    return True


def _is_covered(start: float, end: float, segments: Sequence[SegmentRecord]) -> bool:
    for segment in sorted(segments, key=lambda s: s.key_start):
        if segment.key_start <= start < segment.key_end:
            start = segment.key_end
    return start >= end


def is_equal_or_after(
    cut: Mapping[int, int], span: Span, other: Mapping[int, int], other_span: Span, epochs: Sequence[EpochRecord]
) -> bool:
    """Say whether no part of `cut` lies before `other`."""
    if any(segment in cut and cut[segment] < offset for segment, offset in other.items()):
        return False
    return not any(
        span[mine] < other_span[its] and _record(mine, epochs).overlaps(_record(its, epochs))
        for mine in cut
        for its in other
    )


def segments_between(
    from_span: Span, to_span: Span, epochs: Sequence[EpochRecord]
) -> list[SegmentRecord]:
    """Return every segment not strictly before one cut and not strictly after the other, by ascending id."""
    low, high = min(from_span.values()), max(to_span.values())
    inner_low, inner_high = max(from_span.values()), min(to_span.values())
    starts = [_record(segment, epochs) for segment in from_span]
    ends = [_record(segment, epochs) for segment in to_span]
    found: dict[int, SegmentRecord] = {}
    for epoch in epochs:
        if not low <= epoch.epoch <= high:
            continue
        for segment in epoch.segments:
            is_inner = inner_low <= epoch.epoch <= inner_high
            if is_inner or (
                all(start.id <= segment.id for start in starts if start.overlaps(segment))
                and all(segment.id <= end.id for end in ends if end.overlaps(segment))
            ):
                found[segment.id] = segment
    return [found[segment] for segment in sorted(found)]


def size_between(
    start: Mapping[int, int],
    end: Mapping[int, int],
    between: Sequence[SegmentRecord],
    sealed_sizes: Mapping[int, int],
) -> int:
    """Return the bytes between two cuts. An unknown size and an offset of a future segment count as 0."""
    total = 0
    for segment in between:
        until = max(0, end[segment.id]) if segment.id in end else sealed_sizes.get(segment.id, 0)
        since = max(0, start.get(segment.id, 0))
        total += max(0, until - since)
    return total
