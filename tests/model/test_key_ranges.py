"""Key ranges: splitting, overlapping and tiling of [0, 1)."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidArgumentError
from penstock.model.key_ranges import KeyRange, initial_ranges, merged, tiles


@pytest.mark.parametrize("count", [1, 2, 6, 49, 98, 103, 107, 161, 1000])
def test_initial_ranges_tile_and_end_at_exactly_one(count: int) -> None:
    """K-3: counts for which the product of index and width misses 1.0 are among these."""
    ranges = initial_ranges(count)
    assert len(ranges) == count
    assert ranges[0].start == 0.0
    assert ranges[-1].end == 1.0
    assert all(left.end == right.start for left, right in itertools.pairwise(ranges))
    assert tiles(ranges)


@given(st.integers(1, 2000))
def test_any_number_of_initial_ranges_tiles(count: int) -> None:
    """K-3 for every count up to 2000: no empty range, nothing missing."""
    ranges = initial_ranges(count)
    assert all(keys.is_valid() for keys in ranges)
    assert tiles(ranges)


def test_no_ranges_are_refused() -> None:
    """A stream without segments has no place for any key."""
    for count in (0, -1):
        with pytest.raises(InvalidArgumentError):
            initial_ranges(count)


def test_touching_ranges_do_not_overlap() -> None:
    """Half-open: the common bound belongs to the upper one."""
    low, high = KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)
    assert not low.overlaps(high)
    assert not high.overlaps(low)
    assert low.overlaps(KeyRange(0.49, 0.51))
    assert high.contains(0.5)
    assert not low.contains(0.5)


@pytest.mark.parametrize(
    "bounds",
    [
        [],
        [(0.0, 0.5)],
        [(0.5, 1.0)],
        [(0.0, 0.4), (0.5, 1.0)],
        [(0.0, 0.6), (0.5, 1.0)],
        [(0.0, 1.5)],
        [(0.0, 0.0), (0.0, 1.0)],
        [(0.0, math.nan)],
        [(1.0, 0.0)],
    ],
)
def test_gaps_overlaps_and_nonsense_do_not_tile(bounds: list[tuple[float, float]]) -> None:
    """Each way to miss the key space."""
    assert not tiles([KeyRange(*pair) for pair in bounds])


def test_merging_joins_neighbours_in_any_order() -> None:
    """Ranges that touch become one; a gap stays."""
    assert merged([KeyRange(0.5, 0.75), KeyRange(0.0, 0.25), KeyRange(0.25, 0.5), KeyRange(0.9, 1.0)]) == [
        KeyRange(0.0, 0.75),
        KeyRange(0.9, 1.0),
    ]
