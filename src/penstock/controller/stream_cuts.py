"""Stream cuts against a stream's history: validity, order, what lies between. Pure, by sweeps over sorted key ranges.

A *position* is a cut with what the history says of its segments; how it is read is in `stream_positions`. The cost of
each function is that of sorting what it is given: no pair of segments is looked at because both are there.

Source: controller internals specification, section 7.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.controller.metadata.records import SegmentRecord
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import segment_epoch
from penstock.model.stream_cuts import OFFSET_FUTURE

#: Values that are summed up by their greatest one, for ranges that hold many.
_BLOCK_VALUES = 64
_NOTHING = -(1 << 63)


@dataclass(frozen=True, slots=True)
class Change:
    """What changed at one epoch: ids that ended, segments that began, these by key."""

    epoch: int
    sealed: Sequence[int]
    created: Sequence[SegmentRecord]


@dataclass(frozen=True, slots=True)
class Position:
    """A stream cut, the records of its segments, and its span.

    `span` maps each segment of the cut to the last epoch that contains it, not above the newest creation epoch in the
    cut.
    """

    cut: Mapping[int, int]
    records: Mapping[int, SegmentRecord]
    span: Mapping[int, int]

    @property
    def first_epoch(self) -> int:
        """The lowest epoch of the span: all that is not before the position lives in it, or later."""
        return min(self.span.values())

    @property
    def last_epoch(self) -> int:
        """The highest epoch of the span."""
        return max(self.span.values())


def epoch_bounds(cut: Mapping[int, int]) -> tuple[int, int]:
    """Return the lowest and the highest creation epoch of the segments in a cut."""
    if not cut:
        raise InvalidArgumentError("a stream cut without segments says nothing")
    if min(cut) < 0:
        raise InvalidArgumentError("a stream cut names a negative segment id")
    return segment_epoch(min(cut)), segment_epoch(max(cut))


class PositionFold:
    """Finds the position of a cut: is told the segments of an epoch, and what changed behind it.

    That epoch is not above the first one of the cut's span.
    """

    def __init__(self, cut: Mapping[int, int]) -> None:
        self._cut = cut
        _, self._newest = epoch_bounds(cut)
        self._records: dict[int, SegmentRecord] = {}
        self._ends: dict[int, int] = {}

    def begin(self, segments: Iterable[SegmentRecord]) -> None:
        """Take the segments of the first epoch."""
        self._records.update((segment.id, segment) for segment in segments if segment.id in self._cut)

    def add(self, changes: Iterable[Change]) -> None:
        """Take what changed next."""
        for change in changes:
            self.begin(change.created)
            self._ends.update((segment, change.epoch) for segment in change.sealed if segment in self._cut)

    def position(self) -> Position:
        """Return the position. Raises `InvalidArgumentError` for a segment that the history does not have."""
        for segment in sorted(self._cut):
            if segment not in self._records:
                raise InvalidArgumentError(f"segment {segment} is not, and never was, a segment of the stream")
        span = {segment: min(self._newest, self._ends.get(segment, self._newest + 1) - 1) for segment in self._cut}
        return Position(self._cut, self._records, span)


class _KeyMap:
    """For every key, the greatest of the numbers that ranges of keys have."""

    def __init__(self, ranges: Iterable[tuple[float, float, int]]) -> None:
        found = sorted(ranges)
        starts, ends = [start for start, _, _ in found], [end for _, end, _ in found]
        self._bounds: list[float] = [*starts, *ends[-1:]]
        self._values: list[int] = [*(number for _, _, number in found), _NOTHING]
        if not found or starts[1:] != ends[:-1]:  # They do not follow one another without a gap or an overlap.
            self._sweep(found)
        values = self._values
        self._greatest = [max(values[at : at + _BLOCK_VALUES]) for at in range(0, len(values), _BLOCK_VALUES)]

    def _sweep(self, ranges: Sequence[tuple[float, float, int]]) -> None:
        """Find the greatest number key by key."""
        self._bounds, self._values = [], []
        open_ranges: list[tuple[int, float]] = []
        taken = 0
        for bound in sorted({bound for start, end, _ in ranges for bound in (start, end)}):
            while taken < len(ranges) and ranges[taken][0] <= bound:
                _, end, number = ranges[taken]
                heapq.heappush(open_ranges, (-number, end))
                taken += 1
            while open_ranges and open_ranges[0][1] <= bound:
                heapq.heappop(open_ranges)
            self._bounds.append(bound)
            self._values.append(-open_ranges[0][0] if open_ranges else _NOTHING)

    def greatest(self, start: float, end: float) -> int:
        """Return the greatest number that some key in `[start, end)` has; `_NOTHING` when none has one."""
        low = max(0, bisect_right(self._bounds, start) - 1)
        high = bisect_left(self._bounds, end, low)
        if high - low == 1:  # As it nearly always is, and then it is to be quick.
            return self._values[low]
        first, last = -(-low // _BLOCK_VALUES), high // _BLOCK_VALUES
        if first >= last:
            return max(self._values[low:high], default=_NOTHING)
        return max(
            max(self._values[low : first * _BLOCK_VALUES], default=_NOTHING),
            max(self._greatest[first:last]),
            max(self._values[last * _BLOCK_VALUES : high], default=_NOTHING),
        )


def _by_greatest_id(segments: Iterable[SegmentRecord]) -> _KeyMap:
    return _KeyMap((segment.key_start, segment.key_end, segment.id) for segment in segments)


def _by_least_id(segments: Iterable[SegmentRecord]) -> _KeyMap:
    return _KeyMap((segment.key_start, segment.key_end, -segment.id) for segment in segments)


class ValidityFold:
    """Says whether readers can have come to a position: it covers the key space once, future segments filling the gaps,
    and every segment before another one of the cut has been read to its end.

    From the first epoch that it is told on, a segment outside the cut was read to its end, and what follows it is
    looked at in turn. Unless it lies behind a segment of the cut for some of its keys: then nothing of it can have been
    read, and it had to be in the cut as a future one. The first epoch is as for `PositionFold`. Raises
    `InvalidArgumentError` for a cut that has no reached segment at all.
    """

    def __init__(self, position: Position) -> None:
        cut = position.cut
        if not any(offset >= 0 for offset in cut.values()):
            raise InvalidArgumentError("a stream cut needs a segment with an offset of 0 or more")
        reached = [position.records[segment] for segment, offset in cut.items() if offset >= 0]
        future = [position.records[segment] for segment, offset in cut.items() if offset == OFFSET_FUTURE]
        reached.sort(key=lambda segment: segment.key_start)
        self._cut = cut
        self._reached = reached
        self._least_reached: _KeyMap | None = None
        self._read: dict[int, SegmentRecord] = {}
        self.is_valid: bool = (
            all(offset >= OFFSET_FUTURE for offset in cut.values())
            and _is_covered(reached, future)
            and _is_before(reached, future)
        )

    def _take(self, segment: SegmentRecord) -> None:
        if segment.id in self._cut:
            return
        if self._least_reached is None:
            self._least_reached = _by_least_id(self._reached)
        if -self._least_reached.greatest(segment.key_start, segment.key_end) < segment.id:
            self.is_valid = False
        self._read[segment.id] = segment

    def begin(self, segments: Iterable[SegmentRecord]) -> None:
        """Take the segments of the first epoch."""
        for segment in segments:
            self._take(segment)

    def add(self, changes: Iterable[Change]) -> None:
        """Take what changed next."""
        for change in changes:
            ended = [self._read.pop(segment) for segment in change.sealed if segment in self._read]
            if not ended:
                continue
            ended.sort(key=lambda segment: segment.key_start)
            index = 0
            for following in change.created:
                while index < len(ended) and ended[index].key_end <= following.key_start:
                    index += 1
                if index < len(ended) and ended[index].key_start < following.key_end:
                    self._take(following)


def _is_covered(reached: Sequence[SegmentRecord], future: Iterable[SegmentRecord]) -> bool:
    """Say whether no key is in two reached segments, and every key in a reached or a future one."""
    gaps: list[tuple[float, float]] = []
    covered_to = 0.0
    for start, end in [*((segment.key_start, segment.key_end) for segment in reached), (1.0, 1.0)]:
        if start < covered_to:
            return False
        if start > covered_to:
            gaps.append((covered_to, start))
        covered_to = end
    filled: list[list[float]] = []
    for segment in sorted(future, key=lambda one: one.key_start):
        if filled and segment.key_start <= filled[-1][1]:
            filled[-1][1] = max(filled[-1][1], segment.key_end)
        else:
            filled.append([segment.key_start, segment.key_end])
    index = 0
    for start, end in gaps:
        while index < len(filled) and filled[index][1] <= start:
            index += 1
        if index == len(filled) or filled[index][0] > start or filled[index][1] < end:
            return False
    return True


def _is_before(reached: Iterable[SegmentRecord], future: Iterable[SegmentRecord]) -> bool:
    """Say whether every reached segment that shares keys with a future one is older."""
    newest = _by_greatest_id(reached)
    return all(newest.greatest(later.key_start, later.key_end) < later.id for later in future)


def is_equal_or_after(position: Position, other: Position) -> bool:
    """Say whether no part of `position` lies before `other`."""
    cut = position.cut
    if any(segment in cut and cut[segment] < offset for segment, offset in other.cut.items()):
        return False
    its = _KeyMap((found.key_start, found.key_end, other.span[segment]) for segment, found in other.records.items())
    return all(
        its.greatest(mine.key_start, mine.key_end) <= position.span[segment]
        for segment, mine in position.records.items()
    )


def are_in_same_segments(position: Position, other: Position) -> bool:
    """Say whether two positions are in the same segments, and each key in one of these: nothing else lies between."""
    if position.records.keys() != other.records.keys():
        return False
    ranges = sorted((segment.key_start, segment.key_end) for segment in position.records.values())
    starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
    return [*starts, 1.0] == [0.0, *ends]


class Between:
    """Says which segments are not strictly before any of `starts`, and not strictly after any of `ends`.

    On each key segments follow one another by id, so what overlaps a segment of a position tells.
    """

    def __init__(self, starts: Iterable[Position], ends: Iterable[Position]) -> None:
        self._starts = [_by_greatest_id(position.records.values()) for position in starts]
        self._ends = [_by_least_id(position.records.values()) for position in ends]

    def has(self, segment: SegmentRecord) -> bool:
        """Say whether the segment is between."""
        key_start, key_end, number = segment.key_start, segment.key_end, segment.id
        for start in self._starts:
            if start.greatest(key_start, key_end) > number:
                return False
        for end in self._ends:  # noqa: SIM110  # Plain loops, since there may be thousands of segments.
            if -end.greatest(key_start, key_end) < number:
                return False
        return True


def size_between(
    start: Mapping[int, int],
    end: Mapping[int, int],
    between: Iterable[SegmentRecord],
    sealed_sizes: Mapping[int, int],
) -> int:
    """Return the bytes between two cuts. An unknown size and an offset of a future segment count as 0."""
    total = 0
    for segment in between:
        until = max(0, end[segment.id]) if segment.id in end else sealed_sizes.get(segment.id, 0)
        since = max(0, start.get(segment.id, 0))
        total += max(0, until - since)
    return total
