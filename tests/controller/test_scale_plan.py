"""What a scale changes, without a store: orders that fit and orders that do not, and the epochs that follow.

Shows S-036, S-037, S-038, S-044, S-045, S-046, S-051, and the counters of S-030.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.errors import ScalePreconditionError
from penstock.controller.metadata.records import EpochRecord, ScaleOrder, SegmentRecord
from penstock.controller.metadata.scale_plan import (
    duplicate_of,
    epoch_after,
    even_order,
    history_entry,
    is_due,
    is_ordered_by,
    moved_to,
    plan_scale,
)
from penstock.model.errors import InvalidArgumentError
from penstock.model.key_ranges import KeyRange, initial_ranges, tiles
from penstock.model.policies import Scaling


def epoch_of(*bounds: float, epoch: int = 0, created_ms: int = 1000) -> EpochRecord:
    """Return an epoch whose segments lie between successive bounds."""
    segments = tuple(
        SegmentRecord(number, epoch, created_ms, start, end)
        for number, (start, end) in enumerate(itertools.pairwise(bounds))
    )
    return EpochRecord(epoch, epoch, segments, created_ms)


def plan(current, to_seal, ranges, *, least: int = 1, now_ms: int = 2000):
    order = ScaleOrder(current.epoch, tuple(to_seal), tuple(ranges))
    return plan_scale(current, order, segment_count_min=least, segment_count_max=10_000, now_ms=now_ms)


THREE = epoch_of(0.0, 0.25, 0.5, 1.0)


@pytest.mark.parametrize(
    ("to_seal", "ranges"),
    [
        ([0], [(0.0, 0.1), (0.1, 0.25)]),
        ([0, 1], [(0.0, 0.5)]),
        ([0, 1, 2], [(0.0, 1.0)]),
        ([0, 2], [(0.0, 0.1), (0.1, 0.25), (0.5, 0.7), (0.7, 1.0)]),
        ([1, 0], [(0.2, 0.5), (0.0, 0.2)]),
        ([1, 2], [(0.25, 0.4), (0.4, 1.0)]),
    ],
)
def test_scales_that_cover_the_sealed_range_are_accepted(to_seal: list[int], ranges: list[tuple[float, float]]) -> None:
    """S-036: splits, merges, several of them, shifted bounds; the order of the request does not matter."""
    planned = plan(THREE, to_seal, ranges)
    assert planned.to_seal == tuple(sorted(to_seal))
    assert [(segment.key_start, segment.key_end) for segment in planned.created] == sorted(ranges)
    assert [segment.number for segment in planned.created] == [3 + index for index in range(len(ranges))]
    assert {segment.creation_epoch for segment in planned.created} == {1}


@pytest.mark.parametrize(
    ("to_seal", "ranges"),
    [
        ([], [(0.0, 1.0)]),
        ([0], []),
        ([0], [(0.0, 0.1)]),
        ([0], [(0.0, 0.1), (0.15, 0.25)]),
        ([0], [(0.0, 0.2), (0.1, 0.25)]),
        ([0], [(0.0, 0.3)]),
        ([0], [(0.0, 0.25), (0.0, 0.25)]),
        ([0], [(0.25, 0.0)]),
        ([0], [(0.0, 0.1), (0.1, 0.1), (0.1, 0.25)]),
        ([0], [(-0.1, 0.25)]),
        ([2], [(0.5, 1.1)]),
        ([0, 2], [(0.0, 1.0)]),
        ([0], [(float("nan"), 0.25)]),
    ],
)
def test_orders_that_do_not_are_refused(to_seal, ranges) -> None:
    """S-037: nothing, gaps, overlaps, keys outside, sealed segments that do not touch behind ranges that do."""
    with pytest.raises(InvalidArgumentError):
        plan(THREE, to_seal, ranges)


def test_segments_of_another_epoch_are_refused() -> None:
    """S-038: an id that is not of the current epoch."""
    with pytest.raises(ScalePreconditionError, match=r"\[7\] are not of epoch 0"):
        plan(THREE, [0, 7], [(0.0, 0.25)])


def test_the_policy_bounds_a_merge_from_below() -> None:
    """S-051: fewer than the policy's least are refused, exactly that many are not."""
    with pytest.raises(ScalePreconditionError):
        plan(THREE, [0, 1], [(0.0, 0.5)], least=3)
    assert plan(THREE, [0, 1], [(0.0, 0.5)], least=2)


def test_bounds_are_kept_to_the_last_bit() -> None:
    """S-045, S-046: what is split is joined again without a gap, and neighbours that touch do not overlap."""
    low, middle, high = 0.17067106781186547, 0.43971530781186545, 0.7085355339059327
    current = epoch_of(0.0, low, high, 1.0)
    split = epoch_after(current, plan(current, [1], [(low, middle), (middle, high)]))
    parts = [segment.id for segment in split.segments if segment.creation_epoch == 1]
    joined = epoch_after(split, plan(split, parts, [(low, high)]))
    assert [(s.key_start, s.key_end) for s in joined.segments] == [(0.0, low), (low, high), (high, 1.0)]
    assert [segment.number for segment in joined.segments] == [0, 5, 2]


def test_splits_and_merges_are_counted() -> None:
    """S-030: 1 -> 3 is a split, 2 -> 1 a merge, a shifted bound is both; counts continue from epoch to epoch."""
    split = epoch_after(THREE, plan(THREE, [0], [(0.0, 0.1), (0.1, 0.2), (0.2, 0.25)]))
    assert (split.splits, split.merges) == (1, 0)
    merged = epoch_after(split, plan(split, [1, 2], [(0.25, 1.0)]))
    assert (merged.splits, merged.merges) == (1, 1)
    shifted = epoch_after(THREE, plan(THREE, [0, 1], [(0.0, 0.1), (0.1, 0.5)]))
    assert (shifted.splits, shifted.merges) == (1, 1)


def test_epoch_times_increase_under_any_clock() -> None:
    """An epoch is later than the one before it, also when the clock went back."""
    assert plan(THREE, [0], [(0.0, 0.25)], now_ms=5).started_ms == 1001


def test_a_large_change_is_left_out_of_the_history() -> None:
    """The history has a bound for what one epoch adds to it."""
    small = epoch_after(THREE, plan(THREE, [0], [(0.0, 0.25)]))
    entry = history_entry(small, THREE)
    assert (list(entry.sealed), [s.number for s in entry.created]) == ([0], [3])
    order = even_order(THREE, 50)
    many = epoch_after(THREE, plan(THREE, order.to_seal, order.ranges))
    entry = history_entry(many, THREE)
    assert (entry.sealed, entry.created) == ((), ())


def test_an_order_moves_to_the_duplicate_of_its_epoch() -> None:
    """S-048: the same numbers in a later epoch have other ids, and those are meant."""
    later = duplicate_of(THREE, 2, 3000, THREE)
    order = ScaleOrder(0, (1, 2), ((0.25, 1.0),))
    moved = moved_to(order, THREE, later)
    assert moved.to_seal == tuple(segment.id for segment in later.segments[1:])
    assert is_ordered_by(plan(later, moved.to_seal, moved.ranges), moved)
    assert not is_ordered_by(plan(later, moved.to_seal, moved.ranges), order)


@pytest.mark.parametrize(
    ("policy", "is_wanted"),
    [
        (Scaling.fixed(3), False),
        (Scaling.fixed(2), True),
        (Scaling.fixed(4), True),
        (Scaling.by_event_rate(10, min_segments=3), False),
        (Scaling.by_event_rate(10, min_segments=4), True),
        (Scaling.by_event_rate(10, min_segments=1), False),
    ],
)
def test_a_policy_requests_a_number_of_segments(policy, is_wanted: bool) -> None:
    """S-079, S-080, S-081: a fixed number exactly, any other policy for its least."""
    assert is_due(policy, THREE) is is_wanted


@settings(deadline=None)
@given(st.data())
def test_any_history_of_scales_tiles_the_keys_and_numbers_segments_upwards(data) -> None:
    """R2, R3, R6, R8: after each of many random scales."""
    current = epoch_of(0.0, 0.5, 1.0)
    highest = 1
    for _ in range(data.draw(st.integers(1, 12))):
        first = data.draw(st.integers(0, len(current.segments) - 1))
        last = data.draw(st.integers(first, min(first + 3, len(current.segments) - 1)))
        sealed = current.segments[first : last + 1]
        low, high = sealed[0].key_start, sealed[-1].key_end
        inner = data.draw(st.lists(st.floats(low, high), unique=True, max_size=3))
        bounds = [low, *sorted(key for key in inner if low < key < high), high]
        ranges = list(itertools.pairwise(bounds))
        following = epoch_after(current, plan(current, [s.id for s in sealed], ranges, now_ms=0))
        assert following.epoch == following.reference_epoch == current.epoch + 1
        assert following.created_ms > current.created_ms
        assert tiles([KeyRange(s.key_start, s.key_end) for s in following.segments])
        assert [s.key_start for s in following.segments] == sorted(s.key_start for s in following.segments)
        new = [s for s in following.segments if s.creation_epoch == following.epoch]
        assert sorted(s.number for s in new) == list(range(highest + 1, highest + 1 + len(ranges)))
        highest += len(ranges)
        current = following
    assert tiles(initial_ranges(len(current.segments)))
