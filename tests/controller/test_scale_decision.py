"""What loads make of a stream: one order from one epoch's record. S-n: docs/spec/controller-internals.md."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.controller.metadata.records import EpochRecord, ScaleOrder, SegmentRecord
from penstock.controller.metadata.scale_plan import epoch_after, plan_scale
from penstock.controller.scaling.advice_cooldown import AdviceCooldown
from penstock.controller.scaling.decision import can_merge, neighbours, order_by_load
from penstock.model.key_ranges import KeyRange, tiles
from penstock.model.policies import Scaling
from penstock.model.scale_advice import ScaleDirection


def epoch_of(*bounds: float, epoch: int = 3) -> EpochRecord:
    """Return an epoch whose segments lie between successive bounds, numbered from the left."""
    return EpochRecord(
        epoch,
        epoch,
        tuple(
            SegmentRecord(number, 0, 1000, start, end) for number, (start, end) in enumerate(itertools.pairwise(bounds))
        ),
        1000,
    )


def decide(current, policy, hot=None, cold=(), count_max=10_000):
    return order_by_load(current, policy, hot or {}, set(cold), segment_count_max=count_max)


ONE = epoch_of(0.0, 1.0)
FOUR = epoch_of(0.0, 0.25, 0.5, 0.75, 1.0)
FIVE = epoch_of(0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
RATE = Scaling.by_event_rate(100)


def test_a_hot_segment_is_split_into_equal_parts() -> None:
    """S-052: two splits, one more segment than before."""
    assert decide(ONE, RATE, {0: 2}) == ScaleOrder(3, (0,), ((0.0, 0.5), (0.5, 1.0)))


@pytest.mark.parametrize(
    ("factor", "splits", "count"), [(2, 2, 2), (2, 9, 2), (4, 3, 3), (4, 9, 4), (1, 5, 2), (3, 1, 2)]
)
def test_the_policys_factor_bounds_the_parts(factor: int, splits: int, count: int) -> None:
    """min(max(2, splits), max(2, factor)); Pravega's clients may send a factor of 1."""
    policy = Scaling(RATE.kind, 100, factor, 1)
    order = decide(ONE, policy, {0: splits})
    assert len(order.ranges) == count


def test_the_last_part_ends_where_the_segment_did() -> None:
    """Sums of thirds miss the end; clients refuse a map whose highest bound is below 1."""
    order = decide(epoch_of(0.0, 0.7, 1.0), Scaling.by_event_rate(1, factor=3), {0: 3, 1: 3})
    assert order.to_seal == (0, 1)
    assert order.ranges[2][1] == 0.7 == order.ranges[3][0]
    assert order.ranges[-1][1] == 1.0


def test_all_hot_segments_are_split_in_one_epoch_and_nothing_is_merged_beside_them() -> None:
    """Merges are decided again later, with the loads of that time."""
    order = decide(FOUR, RATE, {1: 2, 3: 2}, cold={0})
    assert order.to_seal == (1, 3)
    assert len(order.ranges) == 4


def test_the_hottest_are_split_when_there_is_room_for_some() -> None:
    """A stream has a most number of segments; without room for one more, what is cold is still merged."""
    assert decide(FOUR, RATE, {1: 2, 3: 7}, count_max=5).to_seal == (3,)
    wide = Scaling.by_event_rate(100, factor=8)
    assert len(decide(FOUR, wide, {3: 7}, count_max=6).ranges) == 3
    assert decide(FOUR, RATE, {1: 2}, count_max=4) is None
    assert decide(FOUR, RATE, {1: 2}, cold={2, 3}, count_max=4).to_seal == (2, 3)


def test_a_segment_that_is_too_narrow_is_not_split() -> None:
    """There is no double between its bounds."""
    narrow = epoch_of(0.0, 0.5, 0.5 + 2**-53, 1.0)
    assert decide(narrow, RATE, {1: 2}) is None
    assert decide(narrow, RATE, {1: 2, 0: 2}).to_seal == (0,)


def test_a_cold_segment_alone_is_not_merged_and_two_neighbours_are() -> None:
    """S-053."""
    assert decide(FOUR, RATE, cold={1}) is None
    assert decide(FOUR, RATE, cold={1, 3}) is None
    assert decide(FOUR, RATE, cold={1, 2}) == ScaleOrder(3, (1, 2), ((0.25, 0.75),))


def test_a_stream_keeps_the_least_number_of_segments() -> None:
    """S-054: five, four at least, all cold: two are merged, those lowest by key; then none."""
    policy = Scaling.by_event_rate(100, min_segments=4)
    assert decide(FIVE, policy, cold=range(5)) == ScaleOrder(3, (0, 1), ((0.0, 0.4),))
    assert decide(FOUR, policy, cold=range(4)) is None
    assert not can_merge(FOUR, policy)
    assert can_merge(FIVE, policy)


@pytest.mark.parametrize(
    ("count", "sealed"),
    [
        (2, [(0, 1)]),
        (3, [(0, 1, 2)]),
        (4, [(0, 1), (2, 3)]),
        (5, [(0, 1, 2), (3, 4)]),
        (6, [(0, 1, 2), (3, 4, 5)]),
        (7, [(0, 1, 2), (3, 4), (5, 6)]),
    ],
)
def test_a_cold_segment_is_merged_with_both_neighbours_at_most(count: int, sealed) -> None:
    """All segments of a stream are cold: done at once instead of one after the other, with no segment left single."""
    current = epoch_of(*(index / count for index in range(count)), 1.0)
    order = decide(current, RATE, cold=range(count))
    assert order.to_seal == tuple(itertools.chain(*sealed))
    assert len(order.ranges) == len(sealed)


def test_fixed_streams_and_segments_that_are_not_current_are_left_alone() -> None:
    """S-055, S-056: a policy that became fixed meanwhile; advice for a segment that is sealed by now."""
    assert decide(FOUR, Scaling.fixed(1), {0: 2}, cold=range(4)) is None
    assert not can_merge(FOUR, Scaling.fixed(1))
    assert decide(FOUR, RATE, {99: 5}, cold={77, 78}) is None


def test_unknown_neighbours_are_queried() -> None:
    """The segments beside a cold one; those of the ends have one."""
    assert neighbours(FOUR, {1}) == [0, 2]
    assert neighbours(FOUR, {0, 3}) == [1, 2]
    assert neighbours(FOUR, {1, 2}) == [0, 3]
    assert neighbours(FOUR, set(range(4))) == []
    assert neighbours(ONE, {0}) == []
    assert neighbours(FOUR, {99}) == []


@given(data=st.data())
def test_every_ordered_scale_is_valid(data) -> None:
    """For all hot and cold segments the order fits the epoch, keeps the bounds of the policy, and tiles the keys."""
    count = data.draw(st.integers(1, 12))
    bounds = data.draw(st.sets(st.floats(0.001, 0.999), min_size=count - 1, max_size=count - 1))
    current = epoch_of(0.0, *sorted(bounds), 1.0)
    ids = st.integers(0, count + 1)
    hot = data.draw(st.dictionaries(ids, st.integers(2, 9)))
    cold = data.draw(st.sets(ids)) - set(hot)
    least = data.draw(st.integers(1, count))
    policy = Scaling.by_event_rate(1, factor=data.draw(st.integers(2, 6)), min_segments=least)
    most = data.draw(st.integers(count, 20))
    order = decide(current, policy, hot, cold, count_max=most)
    if order is None:
        return
    transition = plan_scale(current, order, segment_count_min=least, segment_count_max=most, now_ms=2000)
    after = epoch_after(current, transition)
    assert tiles([KeyRange(each.key_start, each.key_end) for each in after.segments])
    assert set(order.to_seal) <= set(hot) or set(order.to_seal) <= cold


def test_a_check_for_splits_mutes_all_checks_and_one_for_merges_only_itself() -> None:
    """S-252: a second split is suppressed, a merge behind a split too; a split behind a merge is not."""
    up, down = ScaleDirection.UP, ScaleDirection.DOWN
    mutes = AdviceCooldown(600.0, 10)
    mutes.mute("hot", up, 0.0)
    mutes.mute("cold", down, 0.0)
    assert [mutes.is_muted("hot", each, 599.0) for each in (up, down)] == [True, True]
    assert [mutes.is_muted("cold", each, 599.0) for each in (up, down)] == [False, True]
    assert not mutes.is_muted("hot", up, 600.0)
    assert not mutes.is_muted("other", down, 0.0)
    mutes.mute("hot", down, 10.0)
    assert mutes.is_muted("hot", up, 20.0)


def test_mutes_end_and_are_bounded() -> None:
    """Those muted first go first."""
    mutes = AdviceCooldown(600.0, 2)
    for number in range(3):
        mutes.mute(str(number), ScaleDirection.UP, float(number))
    assert len(mutes) == 2
    assert not mutes.is_muted("0", ScaleDirection.UP, 3.0)
    mutes.forget_old(601.5)
    assert len(mutes) == 1
    mutes.forget_old(700.0)
    assert len(mutes) == 0
