"""The scale that the loads of a stream's segments call for: one order, from one epoch's record. Pure functions.

Source: controller-internals 9.3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from penstock.controller.metadata.records import EpochRecord, ScaleOrder, SegmentRecord
from penstock.model.policies import Scaling, ScalingKind

#: A cold segment is merged with both neighbours at most.
_MERGED_MAX = 3


def order_by_load(
    current: EpochRecord, policy: Scaling, hot: Mapping[int, int], cold: Collection[int], *, segment_count_max: int
) -> ScaleOrder | None:
    """Return the order for hot segments, or if there are none for cold ones; None: nothing to do.

    `hot`: number of parts to split each into, by id. `cold`: ids. Segments outside the epoch are ignored. Splits are
    done first and separately, so that merged segments were inspected after them. The stream keeps at least
    `policy.min_segments` and at most `segment_count_max` segments.
    """
    if policy.kind is ScalingKind.FIXED:
        return None
    to_seal, ranges = _splits(current, policy, hot, segment_count_max)
    if not to_seal:
        to_seal, ranges = _merges(current, policy, cold)
    return ScaleOrder(current.epoch, tuple(to_seal), tuple(ranges)) if to_seal else None


def neighbours(current: EpochRecord, cold: Collection[int]) -> list[int]:
    """Return the ids of neighbours of cold segments that are not known to be cold too; by key."""
    segments = current.segments
    return [
        segment.id
        for at, segment in enumerate(segments)
        if segment.id not in cold
        and any(beside.id in cold for beside in (*segments[max(at - 1, 0) : at], *segments[at + 1 : at + 2]))
    ]


def can_merge(current: EpochRecord, policy: Scaling) -> bool:
    """Say whether the policy allows the stream fewer segments than it has."""
    return policy.kind is not ScalingKind.FIXED and len(current.segments) > policy.min_segments


def _splits(
    current: EpochRecord, policy: Scaling, hot: Mapping[int, int], segment_count_max: int
) -> tuple[list[int], list[tuple[float, float]]]:
    room = segment_count_max - len(current.segments)
    to_seal: list[int] = []
    ranges: list[tuple[float, float]] = []
    for segment in sorted(current.segments, key=lambda each: -hot.get(each.id, 0)):
        if segment.id not in hot:
            break
        count = min(max(2, hot[segment.id]), max(2, policy.factor), room + 1)
        parts = _parts(segment, count)
        if len(parts) < 2:
            continue
        to_seal.append(segment.id)
        ranges += parts
        room -= len(parts) - 1
    return to_seal, sorted(ranges)


def _parts(segment: SegmentRecord, count: int) -> list[tuple[float, float]]:
    """Return the keys of a segment in `count` equal parts; empty if the parts would be indistinguishable."""
    start, end = segment.key_start, segment.key_end
    # Computed as Pravega does; the last end is exactly the old one, regardless of rounding.
    bounds = [start + (end - start) / max(count, 1) * index for index in range(count)] + [end]
    parts = list(pairwise(bounds))
    return parts if all(low < high for low, high in parts) else []


def _merges(
    current: EpochRecord, policy: Scaling, cold: Collection[int]
) -> tuple[list[int], list[tuple[float, float]]]:
    room = len(current.segments) - policy.min_segments
    to_seal: list[int] = []
    ranges: list[tuple[float, float]] = []
    for run in _runs(current.segments, cold):
        at = 0
        while room > 0 and len(run) - at > 1:
            # Four are merged as two and two, since a fourth segment would be left over.
            count = 2 if len(run) - at in (2, 4) else _MERGED_MAX
            together = run[at : at + min(count, room + 1)]
            to_seal += [segment.id for segment in together]
            ranges.append((together[0].key_start, together[-1].key_end))
            room -= len(together) - 1
            at += len(together)
    return to_seal, ranges


def _runs(segments: Sequence[SegmentRecord], cold: Collection[int]) -> list[list[SegmentRecord]]:
    """Return the cold segments as runs of neighbours, by key."""
    runs: list[list[SegmentRecord]] = [[]]
    for segment in segments:
        if segment.id in cold:
            runs[-1].append(segment)
        elif runs[-1]:
            runs.append([])
    return runs
