"""Stream cuts against a stream's history: validity, order, and the segments between two cuts.

Pure functions, by sweeps over sorted key ranges. A *position* is a cut with the records of its segments from the
history; `stream_positions` reads it. The cost of each function is that of sorting its input: it never compares all
pairs of segments. Work that takes long with thousands of segments is done in steps, see `steps`.

Source: controller-internals 7.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import attrgetter

from penstock.controller.errors import UnknownCutSegmentError
from penstock.controller.metadata.records import SegmentRecord
from penstock.controller.steps import Steps, pages
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import segment_epoch
from penstock.model.stream_cuts import OFFSET_FUTURE

#: Values per block, of which only the greatest one is read when a range covers the block.
_BLOCK_VALUES = 64
#: Cuts in the same segments that are compared at once: with a page of segments, about a millisecond of work.
_CUTS_AT_ONCE = 50
_NOTHING = -(1 << 63)
_GREATEST = 1 << 63
#: Orders segments by key.
_BY_KEY = attrgetter("key_start")


@dataclass(frozen=True, slots=True)
class Change:
    """The change at one epoch: ids of sealed segments, and created segments by key."""

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
        """The lowest epoch of the span: no segment that ended before it is at or after the position."""
        return min(self.span.values())

    @property
    def last_epoch(self) -> int:
        """The highest epoch of the span."""
        return max(self.span.values())


def epoch_bounds(cut: Mapping[int, int]) -> tuple[int, int]:
    """Return the lowest and the highest creation epoch of the segments in a cut."""
    if not cut:
        raise InvalidArgumentError("a stream cut needs at least one segment")
    if min(cut) < 0:
        raise InvalidArgumentError("a stream cut names a negative segment id")
    return segment_epoch(min(cut)), segment_epoch(max(cut))


class PositionFold:
    """Finds the position of a cut from the segments of an epoch and the changes after it.

    That epoch is not later than the first one of the cut's span.
    """

    def __init__(self, cut: Mapping[int, int]) -> None:
        self._cut = cut
        _, self._newest = epoch_bounds(cut)
        self._records: dict[int, SegmentRecord] = {}
        self._ends: dict[int, int] = {}

    def begin(self, segments: Iterable[SegmentRecord]) -> Steps[None]:
        """Add the segments of the first epoch."""
        cut, records = self._cut, self._records
        for page in pages(segments):
            for segment in page:
                if (number := segment.id) in cut:
                    records[number] = segment
            yield

    def add(self, changes: Iterable[Change]) -> Steps[None]:
        """Add the next changes."""
        for change in changes:
            yield from self.begin(change.created)
            for page in pages(change.sealed):
                self._ends.update((segment, change.epoch) for segment in page if segment in self._cut)
                yield

    def position(self) -> Steps[Position]:
        """Return the position. Raises `InvalidArgumentError` for a segment that is not in the history."""
        if missing := self._cut.keys() - self._records.keys():
            raise UnknownCutSegmentError(f"segment {min(missing)} is not and never was a segment of the stream")
        newest, ends = self._newest, self._ends
        if not ends:
            return Position(self._cut, self._records, dict.fromkeys(self._cut, newest))
        span: dict[int, int] = {}
        for page in pages(self._cut):
            span.update((segment, min(newest, ends.get(segment, newest + 1) - 1)) for segment in page)
            yield
        return Position(self._cut, self._records, span)


class _KeyMap:
    """For every key, the greatest of the numbers of the key ranges that contain it.

    Value `i` of `values` applies from bound `i` of `bounds` to the next one; both are in key order.
    """

    def __init__(self, bounds: list[float], values: list[int]) -> None:
        self.bounds: Sequence[float] = bounds
        self.values: Sequence[int] = values
        self._greatest = [max(values[at : at + _BLOCK_VALUES]) for at in range(0, len(values), _BLOCK_VALUES)]

    def greatest(self, start: float, end: float) -> int:
        """Return the greatest number of any key in `[start, end)`; `_NOTHING` if none has one."""
        low = max(0, bisect_right(self.bounds, start) - 1)
        high = bisect_left(self.bounds, end, low)
        if high - low == 1:  # The usual case, made fast.
            return self.values[low]
        first, last = -(-low // _BLOCK_VALUES), high // _BLOCK_VALUES
        if first >= last:
            return max(self.values[low:high], default=_NOTHING)
        return max(
            max(self.values[low : first * _BLOCK_VALUES], default=_NOTHING),
            max(self._greatest[first:last]),
            max(self.values[last * _BLOCK_VALUES : high], default=_NOTHING),
        )


def _key_map(ranges: Iterable[tuple[float, float, int]]) -> Steps[_KeyMap]:
    """Return the map of key ranges with their numbers."""
    found: list[tuple[float, float, int]] = []
    for page in pages(ranges):
        found += page
        yield
    found.sort()
    starts, ends = [start for start, _, _ in found], [end for _, end, _ in found]
    yield
    if not found or starts[1:] != ends[:-1]:  # There are gaps or overlaps.
        return (yield from _swept(found))
    return _KeyMap([*starts, ends[-1]], [*(number for _, _, number in found), _NOTHING])


def _swept(ranges: Sequence[tuple[float, float, int]]) -> Steps[_KeyMap]:
    """Find the greatest number for each key; the ranges are sorted."""
    bounds: list[float] = []
    values: list[int] = []
    open_ranges: list[tuple[int, float]] = []
    taken = 0
    for page in pages(sorted({bound for start, end, _ in ranges for bound in (start, end)})):
        for bound in page:
            while taken < len(ranges) and ranges[taken][0] <= bound:
                _, end, number = ranges[taken]
                heapq.heappush(open_ranges, (-number, end))
                taken += 1
            while open_ranges and open_ranges[0][1] <= bound:
                heapq.heappop(open_ranges)
            bounds.append(bound)
            values.append(-open_ranges[0][0] if open_ranges else _NOTHING)
        yield
    return _KeyMap(bounds, values)


def _by_greatest_id(segments: Iterable[SegmentRecord]) -> Steps[_KeyMap]:
    return _key_map((segment.key_start, segment.key_end, segment.id) for segment in segments)


def _by_least_id(segments: Iterable[SegmentRecord]) -> Steps[_KeyMap]:
    return _key_map((segment.key_start, segment.key_end, -segment.id) for segment in segments)


class ValidityFold:
    """Says whether readers can have reached a position: it covers the key space once, future segments fill the gaps,
    and every segment before another one of the cut has been read to its end.

    Starting with the first epoch given, a segment outside the cut counts as read to its end, and its successors are
    checked in turn. The exception is a segment that comes after a segment of the cut on some of its keys: nothing of it
    can have been read, so it had to be in the cut as a future segment. The first epoch is as for `PositionFold`. Call
    `prepare` first.
    """

    def __init__(self, position: Position) -> None:
        self._position = position
        self._cut = position.cut
        self._reached: list[SegmentRecord] = []
        self._least_reached: _KeyMap | None = None
        self._read: dict[int, SegmentRecord] = {}
        self.is_valid: bool = False

    def prepare(self) -> Steps[None]:
        """Check the position itself. Raises `InvalidArgumentError` for a cut without any reached segment."""
        records, reached, future = self._position.records, self._reached, []
        self.is_valid = True
        for page in pages(self._cut.items()):
            reached += [records[segment] for segment, offset in page if offset >= 0]
            future += [records[segment] for segment, offset in page if offset == OFFSET_FUTURE]
            self.is_valid = self.is_valid and all(offset >= OFFSET_FUTURE for _, offset in page)
            yield
        if not reached:
            raise InvalidArgumentError("a stream cut needs a segment with an offset of 0 or more")
        reached.sort(key=_BY_KEY)
        yield
        self.is_valid = self.is_valid and (yield from _is_covered(reached, future))
        self.is_valid = self.is_valid and (yield from _is_before(reached, future))

    def _take(self, segments: Iterable[SegmentRecord]) -> Steps[None]:
        outside = [segment for segment in segments if segment.id not in self._cut]
        if not outside:
            return
        if self._least_reached is None:
            self._least_reached = yield from _by_least_id(self._reached)
        for segment in outside:
            if -self._least_reached.greatest(segment.key_start, segment.key_end) < segment.id:
                self.is_valid = False
            self._read[segment.id] = segment

    def begin(self, segments: Iterable[SegmentRecord]) -> Steps[None]:
        """Add the segments of the first epoch."""
        for page in pages(segments):
            yield from self._take(page)
            yield

    def add(self, changes: Iterable[Change]) -> Steps[None]:
        """Add the next changes."""
        for change in changes:
            ended = [self._read.pop(segment) for segment in change.sealed if segment in self._read]
            if not ended:
                continue
            ended.sort(key=_BY_KEY)
            index = 0
            for page in pages(change.created):
                behind = []
                for following in page:
                    while index < len(ended) and ended[index].key_end <= following.key_start:
                        index += 1
                    if index < len(ended) and ended[index].key_start < following.key_end:
                        behind.append(following)
                yield from self._take(behind)
                yield


def _is_covered(reached: Sequence[SegmentRecord], future: Iterable[SegmentRecord]) -> Steps[bool]:
    """Say whether no key is in two reached segments, and every key is in a reached or a future one."""
    gaps: list[tuple[float, float]] = []
    covered_to = 0.0
    for page in pages(reached):
        for segment in page:
            if segment.key_start < covered_to:
                return False
            if segment.key_start > covered_to:
                gaps.append((covered_to, segment.key_start))
            covered_to = segment.key_end
        yield
    if covered_to < 1.0:
        gaps.append((covered_to, 1.0))
    filled: list[list[float]] = []
    for page in pages(sorted(future, key=_BY_KEY)):
        for segment in page:
            if filled and segment.key_start <= filled[-1][1]:
                filled[-1][1] = max(filled[-1][1], segment.key_end)
            else:
                filled.append([segment.key_start, segment.key_end])
        yield
    index = 0
    for start, end in gaps:
        while index < len(filled) and filled[index][1] <= start:
            index += 1
        if index == len(filled) or filled[index][0] > start or filled[index][1] < end:
            return False
    return True


def _is_before(reached: Iterable[SegmentRecord], future: Sequence[SegmentRecord]) -> Steps[bool]:
    """Say whether every reached segment that shares keys with a future one is older."""
    if not future:
        return True
    newest = yield from _by_greatest_id(reached)
    for page in pages(future):
        if not all(newest.greatest(later.key_start, later.key_end) < later.id for later in page):
            return False
        yield
    return True


def is_equal_or_after(position: Position, other: Position) -> Steps[bool]:
    """Say whether no part of `position` lies before `other`."""
    cut = position.cut
    for page in pages(other.cut.items()):
        if any(segment in cut and cut[segment] < offset for segment, offset in page):
            return False
        yield
    if (yield from are_in_same_segments(position, other)):
        return all(other.span[segment] <= epoch for segment, epoch in position.span.items())
    its = yield from _key_map(
        (found.key_start, found.key_end, other.span[segment]) for segment, found in other.records.items()
    )
    span = position.span
    for records in pages(position.records.items()):
        if not all(its.greatest(mine.key_start, mine.key_end) <= span[segment] for segment, mine in records):
            return False
        yield
    return True


class CutOrder(Enum):
    """How a position compares with another one over all keys: after it nowhere and before it somewhere; before it
    nowhere; both somewhere.
    """

    BEFORE = "before"
    EQUAL_OR_AFTER = "equal or after"
    OVERLAPPING = "overlapping"


def order_of(position: Position, other: Position) -> Steps[CutOrder]:
    """Compare `position` with `other`.

    On each key the lowest segment of a position counts: a future one counts only for keys that no other segment has.
    """
    mine = yield from _by_least_id(position.records.values())
    its = yield from _by_least_id(other.records.values())
    is_before = is_after = False
    # A key on which only one of the two has a segment is ignored; positions of one stream have no such keys.
    for page in pages(_side_by_side(mine, its)):
        for one, two in page:
            if _NOTHING in (one, two):
                continue
            if one == two:
                difference = max(0, position.cut[-one]) - max(0, other.cut[-two])
            else:
                difference = two - one  # Numbers are negated.
            is_before = is_before or difference < 0
            is_after = is_after or difference > 0
        yield
    if not is_before:
        return CutOrder.EQUAL_OR_AFTER
    return CutOrder.OVERLAPPING if is_after else CutOrder.BEFORE


def _side_by_side(one: _KeyMap, two: _KeyMap) -> Iterator[tuple[int, int]]:
    """Yield the values of both maps, key by key, for keys from the first bound of both on."""
    at = [0, 0]
    maps = (one, two)
    bounds = heapq.merge(one.bounds, two.bounds)
    for bound, _ in groupby(bounds):
        for index, found in enumerate(maps):
            while at[index] < len(found.bounds) and found.bounds[at[index]] <= bound:
                at[index] += 1
        if at[0] and at[1]:
            yield one.values[at[0] - 1], two.values[at[1] - 1]


def merged_cuts(cuts: Iterable[Mapping[int, int]]) -> Steps[dict[int, int]]:
    """Return each segment of several cuts with its lowest offset. `lowest` makes a cut of the result."""
    # Most cuts have the same segments: many of these are compared at once, without a line of Python for each offset.
    by_segments: dict[tuple[int, ...], list[Mapping[int, int]]] = {}
    for cut in cuts:
        by_segments.setdefault(tuple(cut), []).append(cut)
        yield
    merged: dict[int, int] = {}
    for segments, alike in by_segments.items():
        for at in range(0, len(alike), _CUTS_AT_ONCE):
            columns = [cut.values() for cut in alike[at : at + _CUTS_AT_ONCE]]
            offsets = map(min, *columns) if len(columns) > 1 else iter(columns[0])
            for page in pages(segments):
                for segment, offset in zip(page, offsets, strict=False):  # `offsets` continues with the next page.
                    if offset < merged.get(segment, _GREATEST):
                        merged[segment] = offset
                yield
    return merged


def lowest(position: Position) -> Steps[dict[int, int]]:
    """Return the greatest cut that is nowhere after any of several; `position` is that of the `merged_cuts`.

    On each key it has the lowest segment. Where one of the cuts has not reached a segment of another one on all of its
    keys, it has that segment as a future one, or not at all: so the result is a cut that readers can have reached.
    """
    least = yield from _by_least_id(position.records.values())
    found = {-value for value in least.values if value != _NOTHING}
    yield
    return {segment: position.cut[segment] for segment in sorted(found)}


def are_in_same_segments(position: Position, other: Position) -> Steps[bool]:
    """Say whether two positions have the same segments and these cover every key: no other segment lies between."""
    if position.records.keys() != other.records.keys():
        return False
    yield
    ranges: list[tuple[float, float]] = []
    for page in pages(position.records.values()):
        ranges += [(segment.key_start, segment.key_end) for segment in page]
        yield
    ranges.sort()
    starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
    return [*starts, 1.0] == [0.0, *ends]


class Between:
    """Says which segments are not strictly before any of the starts, and not strictly after any of the ends.

    On each key segments are ordered by id, so comparing overlapping segments suffices. Use `of` to create it.
    """

    def __init__(self, starts: Sequence[_KeyMap], ends: Sequence[_KeyMap]) -> None:
        self._starts = starts
        self._ends = ends

    @classmethod
    def of(cls, starts: Iterable[Position], ends: Iterable[Position]) -> Steps[Between]:
        """Return what lies between the starts and the ends."""
        first: list[_KeyMap] = []
        last: list[_KeyMap] = []
        for position in starts:
            first.append((yield from _by_greatest_id(position.records.values())))
        for position in ends:
            last.append((yield from _by_least_id(position.records.values())))
        return cls(first, last)

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
    """Return the bytes between two cuts. Unknown sizes and offsets of future segments count as 0."""
    total = 0
    for segment in between:
        number = segment.id
        until = end[number] if number in end else sealed_sizes.get(number, 0)
        since = start.get(number, 0)
        if since < 0:  # Plain comparisons, since there may be thousands of segments.
            since = 0
        if until > since:
            total += until - since
    return total
