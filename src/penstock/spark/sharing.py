"""Shares the limit of a micro-batch among segments, fairly over many micro-batches, at a bounded cost.

Each segment has a claim to a part of every micro-batch, in proportion to its unread bytes, so that all
segments reach the end together. A claim that a micro-batch does not meet, because it is less than an event or
because the micro-batch is already full, is kept for the next one (`Claims`). So a small micro-batch takes some
of very many segments, and other segments the next time, and each time about as much as the limit.

A segment that is read up to a limit costs a lookup of an event boundary; one that is read to its end costs none. The
number of lookups of a micro-batch is bounded, whatever the number of segments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

#: Minimum number of bytes of a lookup, where there are more segments than lookups.
SLICE_BYTES_MIN = 64 * 1024

#: Minimum number of events of a lookup, likewise.
SLICE_EVENT_COUNT_MIN = 100

#: Bounds of the number of lookups of one pass over the segments.
LOOKUP_COUNT_MIN = 16
LOOKUP_COUNT_MAX = 256

#: Maximum number of passes over the segments for one micro-batch. Later ones are for events larger than a share.
PASS_COUNT_MAX = 8

#: Number of segments among which the second pass shares the rest; later passes give it to one segment.
_SECOND_COUNT = 8

#: Claims are floats: a product that should be a whole number may be slightly less.
_ROUNDING = 1e-6


class Claims:
    """The share that earlier micro-batches owe each segment, in parts of a micro-batch. The sum of all is about 0.

    They are kept in memory only. After a restart all are 0, which costs at most one share of fairness.
    """

    def __init__(self) -> None:
        self._owed: dict[int, float] = {}

    def of(self, pending: Mapping[int, int]) -> dict[int, float]:
        """Return the claim of each segment to a micro-batch; `pending` are the unread bytes of each, above 0."""
        total = sum(pending.values())
        return {segment: self._owed.get(segment, 0.0) + length / total for segment, length in pending.items()}

    def settle(self, pending: Mapping[int, int], taken: Mapping[int, int]) -> None:
        """Record what a micro-batch has taken of each segment, in bytes or in events."""
        total = sum(taken.values())
        if not total:
            return
        self._owed = {segment: claim - taken.get(segment, 0) / total for segment, claim in self.of(pending).items()}

    def clear(self) -> None:
        """Drop all claims: everything was read."""
        self._owed = {}


@dataclass(frozen=True, slots=True)
class Lookup:
    """A lookup of an event boundary: after `at`, at most `goal`, both bytes; at most `share` bytes or events."""

    segment: int
    at: int
    goal: int
    share: int


#: Performs lookups: returns for each the boundary, and the number of bytes or events before it.
Find = Callable[[Sequence[Lookup]], Iterable[tuple[int, int]]]


def lookup_count(limit: int, slice_min: int) -> int:
    """Return the maximum number of lookups of a pass for a limit, if each gets `slice_min` at least."""
    return min(max(limit // slice_min, LOOKUP_COUNT_MIN), LOOKUP_COUNT_MAX)


def share_bytes(
    positions: Mapping[int, int], goals: Mapping[int, int], claims: Mapping[int, float], limit: int, find: Find
) -> tuple[dict[int, int], dict[int, int]]:
    """Share `limit` bytes; return the new position of each segment, at most its goal, and the bytes taken of each.

    At least half of `limit` is taken if there are as many bytes and no event is larger than that.
    """
    found, taken, left = dict(positions), dict.fromkeys(positions, 0), limit
    for least in _slices(len(positions), lookup_count(limit, SLICE_BYTES_MIN), limit, SLICE_BYTES_MIN):
        lookups: list[Lookup] = []
        room = left
        for segment in _by_claim(found, goals, claims):
            length = goals[segment] - found[segment]
            share = min(max(math.floor(claims[segment] * limit + _ROUNDING), least), room)
            if length <= share:
                found[segment], taken[segment] = goals[segment], taken[segment] + length
                left, room = left - length, room - length
            elif share > 0:
                lookups.append(Lookup(segment, found[segment], goals[segment], share))
                room -= share
            if room <= 0 or len(lookups) >= LOOKUP_COUNT_MAX:
                break
        for lookup, (boundary, length) in zip(lookups, find(lookups) if lookups else (), strict=True):
            found[lookup.segment], taken[lookup.segment] = boundary, taken[lookup.segment] + length
            left -= length
        if left * 2 <= limit:
            break
    return found, taken


def share_events(
    positions: Mapping[int, int], goals: Mapping[int, int], claims: Mapping[int, float], limit: int, find: Find
) -> tuple[dict[int, int], dict[int, int]]:
    """Share `limit` events; return the new position of each segment, at most its goal, and the events taken of each.

    The number of events of a segment before its goal is known only after a walk, so each segment costs a lookup,
    and the unused part of a segment's share may be left over.
    """
    found, taken, left = dict(positions), dict.fromkeys(positions, 0), limit
    for least in _slices(len(positions), lookup_count(limit, SLICE_EVENT_COUNT_MIN), limit, SLICE_EVENT_COUNT_MIN):
        lookups: list[Lookup] = []
        room = left
        for segment in _by_claim(found, goals, claims):
            share = min(max(math.ceil(claims[segment] * limit - _ROUNDING), least, 1), room)
            lookups.append(Lookup(segment, found[segment], goals[segment], share))
            room -= share
            if room <= 0 or len(lookups) >= LOOKUP_COUNT_MAX:
                break
        for lookup, (boundary, count) in zip(lookups, find(lookups) if lookups else (), strict=True):
            found[lookup.segment], taken[lookup.segment] = boundary, taken[lookup.segment] + count
            left -= count
        if left * 2 <= limit:
            break
    return found, taken


def _slices(segment_count: int, count_max: int, limit: int, slice_min: int) -> Iterable[int]:
    """Yield the minimum share of each pass: 0 in the first pass if each segment may have its own lookup."""
    yield 0 if segment_count <= count_max else max(limit // count_max, min(slice_min, limit))
    yield max(limit // _SECOND_COUNT, 1)
    for _ in range(PASS_COUNT_MAX - 2):
        yield limit


def _by_claim(found: Mapping[int, int], goals: Mapping[int, int], claims: Mapping[int, float]) -> list[int]:
    open_segments = [segment for segment in found if found[segment] < goals[segment]]
    return sorted(open_segments, key=lambda segment: (-claims[segment], segment))
