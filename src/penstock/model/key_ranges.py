"""Key ranges: the part of [0, 1) that a segment takes.

Ranges are half-open `[start, end)`; neighbours share the identical double, and the last one ends at exactly 1.0
(clients reject a segment map whose highest bound is lower).

Source: controller-api 8.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from penstock.model.errors import InvalidArgumentError

_BOUNDS = attrgetter("start", "end")


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """The keys whose hash is in `[start, end)`."""

    start: float
    end: float

    def overlaps(self, other: KeyRange) -> bool:
        """Return whether some key is in both; ranges that only touch do not overlap."""
        return self.start < other.end and other.start < self.end

    def contains(self, key_hash: float) -> bool:
        """Return whether a key with this hash is in the range."""
        return self.start <= key_hash < self.end

    def is_valid(self) -> bool:
        """Return whether the range is non-empty, ascending, and within [0, 1]."""
        return math.isfinite(self.start) and math.isfinite(self.end) and 0.0 <= self.start < self.end <= 1.0


def initial_ranges(count: int) -> list[KeyRange]:
    """Split [0, 1) into `count` equal ranges in ascending order."""
    if count < 1:
        raise InvalidArgumentError(f"cannot split the key space into {count} ranges: use 1 or more")
    # Pravega computes the same products, so that all bounds are identical doubles. The last one is set explicitly: the
    # product is not 1.0 for 49, 98, 103 and many more.
    bounds = [index * (1.0 / count) for index in range(count)] + [1.0]
    return [KeyRange(bounds[index], bounds[index + 1]) for index in range(count)]


def merged(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the ranges sorted, with touching ranges joined. Overlapping ranges raise `InvalidArgumentError`."""
    result: list[KeyRange] = []
    start = end = -1.0  # Of the range that may still grow.
    for current in sorted(ranges, key=_BOUNDS):
        if not current.is_valid():
            raise InvalidArgumentError(f"key range [{current.start}, {current.end}) is not inside [0, 1)")
        if current.start < end:
            raise InvalidArgumentError(f"key ranges [{start}, {end}) and [{current.start}, {current.end}) overlap")
        if current.start > end:
            if end > start:
                result.append(KeyRange(start, end))
            start = current.start
        end = current.end
    if end > start:
        result.append(KeyRange(start, end))
    return result


def tiles(ranges: Sequence[KeyRange]) -> bool:
    """Return whether the ranges cover [0, 1) without gaps and overlaps."""
    try:
        return merged(ranges) == [KeyRange(0.0, 1.0)]
    except InvalidArgumentError:
        return False
