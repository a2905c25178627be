"""Advice from loads: averages against policies, and segments without data. S-n: docs/spec/controller-internals.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.policies import ScalingKind
from penstock.model.scale_advice import ScaleAdvice, ScaleDirection
from penstock.segmentstore.container_settings import ScaleAdviceSettings, StatisticsSettings
from penstock.segmentstore.idle_segments import IdleSegments
from penstock.segmentstore.scale_advice import MostUrgent, advise, silence
from penstock.segmentstore.statistics import MovingRates, Rates, SegmentStatistics, Statistics

NAME = "s/t/0.#epoch.0"
NONE = Rates(0.0, 0.0, 0.0, 0.0)
#: The thresholds alone, without the general cool-down.
AT_ONCE = ScaleAdviceSettings(cool_down_s=0.0)
TARGET = 100


def load(rates: tuple[float, float, float, float], *, age_s: float, silent_s: float = 0.0) -> SegmentStatistics:
    return SegmentStatistics(NAME, age_s, silent_s, 1, 1, Rates(*rates), NONE, int(ScalingKind.BY_EVENT_RATE), TARGET)


def simulated(rate_at: Callable[[int], int], duration_s: int, *, merged_life_s: float = 0.0) -> Statistics:
    """Return statistics after `duration_s` of a scan every second; `rate_at(second)`: events that come then."""
    statistics = Statistics(0, StatisticsSettings(), 0.0)
    for second in range(1, duration_s + 1):
        events = rate_at(second)
        if events:
            merged = (events, events * 100, merged_life_s) if merged_life_s else (0, 0, 0.0)
            statistics.add(
                1, NAME, events=events, byte_count=events * 100, scale_type=2, target_rate=TARGET,
                now_s=float(second), merged=merged,
            )  # fmt: skip
        statistics.advance(float(second))
    return statistics


def advice_after(
    rate_at: Callable[[int], int], duration_s: int, settings: ScaleAdviceSettings = AT_ONCE
) -> ScaleAdvice | None:
    known = simulated(rate_at, duration_s).load(1, float(duration_s))
    return None if known is None else advise(known, settings)


@pytest.mark.parametrize(
    ("rates", "age_s", "splits"),
    [
        ((501, 0, 0, 0), 121, 5),
        ((501, 0, 0, 0), 120, None),
        ((500, 0, 0, 0), 121, None),
        ((0, 201, 0, 0), 301, 2),
        ((0, 201, 0, 0), 300, None),
        ((0, 200, 0, 0), 301, None),
        ((0, 0, 101, 0), 601, 2),
        ((0, 0, 101, 0), 600, None),
        ((0, 0, 100, 0), 601, None),
        ((0, 0, 730, 0), 601, 7),
    ],
)
def test_each_window_requests_a_split_above_its_own_threshold(
    rates: tuple[float, float, float, float], age_s: float, splits: int | None
) -> None:
    """S-249, S-250: above 5, 2 and 1 times the target, not at it, once it was watched for longer than the window."""
    found = advise(load(rates, age_s=age_s), AT_ONCE)
    assert found == (None if splits is None else ScaleAdvice(NAME, ScaleDirection.UP, splits))


@pytest.mark.parametrize(
    ("rates", "age_s", "is_cold"),
    [
        ((99, 99, 99, 49), 1201, True),
        ((99, 99, 99, 49), 1200, False),
        ((99, 99, 99, 50), 1201, False),
        ((100, 99, 99, 49), 1201, False),
        ((99, 100, 99, 49), 1201, False),
        ((99, 99, 100, 49), 1201, False),
        ((0, 0, 0, 0), 1201, True),
    ],
)
def test_a_segment_is_cold_when_all_averages_are_low(
    rates: tuple[float, float, float, float], age_s: float, is_cold: bool
) -> None:
    """S-251: 2, 5 and 10 minutes below the target, 20 below half of it, watched for more than 20 minutes."""
    found = advise(load(rates, age_s=age_s), AT_ONCE)
    assert found == (ScaleAdvice(NAME, ScaleDirection.DOWN) if is_cold else None)


@pytest.mark.parametrize(
    ("rates", "age_s", "direction"),
    [
        ((501, 0, 0, 0), 1.01, ScaleDirection.UP),
        ((501, 0, 0, 0), 1.0, None),
        ((0, 201, 0, 0), 2.51, ScaleDirection.UP),
        ((0, 201, 0, 0), 2.5, None),
        ((0, 0, 101, 0), 5.01, ScaleDirection.UP),
        ((0, 0, 101, 0), 5.0, None),
        ((99, 99, 99, 49), 10.01, ScaleDirection.DOWN),
        ((99, 99, 99, 49), 10.0, None),
    ],
)
def test_how_long_a_segment_is_watched_is_reported_in_the_unit_of_the_windows(
    rates: tuple[float, float, float, float], age_s: float, direction: ScaleDirection | None
) -> None:
    """Windows of half a second times 2, 5, 10 and 20 are waited for, not minutes."""
    found = advise(load(rates, age_s=age_s), AT_ONCE, 0.5)
    assert (found and found.direction) == direction


def test_nothing_is_advised_before_the_cool_down() -> None:
    """S-249: however hot it is, a segment is watched for 10 minutes first."""
    settings = ScaleAdviceSettings()
    assert advise(load((10_000, 10_000, 10_000, 0), age_s=599.9), settings) is None
    assert advise(load((10_000, 10_000, 10_000, 0), age_s=600.0), settings) is not None


def test_a_load_that_has_ended_requests_no_split() -> None:
    """Averages live on for minutes; a split is of use to data that come."""
    hot = (900, 900, 900, 900)
    assert advise(load(hot, age_s=3000, silent_s=120.0), AT_ONCE) is not None
    assert advise(load(hot, age_s=3000, silent_s=125.0), AT_ONCE) is None


def test_the_policy_says_what_is_measured() -> None:
    """S-245: events, or KiB of 1024 bytes; a fixed policy, and one without a rate, ask for nothing. S-254."""
    by_bytes = replace(
        load((0, 0, 0, 0), age_s=3000),
        scale_type=int(ScalingKind.BY_DATA_RATE),
        bytes_per_s=Rates(1024 * 300, 1024 * 300, 1024 * 300, 0),
    )
    assert advise(by_bytes, AT_ONCE) == ScaleAdvice(NAME, ScaleDirection.UP, 3)
    assert advise(replace(by_bytes, bytes_per_s=Rates(1024 * 100, 1024 * 100, 1024 * 100, 0)), AT_ONCE) is None
    for policy in ({"scale_type": 0}, {"target_rate": 0}, {"scale_type": 7}):
        assert advise(replace(by_bytes, **policy), AT_ONCE) is None  # type: ignore[arg-type]


def test_a_burst_over_two_minutes_is_split() -> None:
    """S-249: five times the target and more, for a little longer than 2 minutes; in simulated time."""
    assert advice_after(lambda second: 6 * TARGET, 119) is None
    assert advice_after(lambda second: 6 * TARGET, 125) == ScaleAdvice(NAME, ScaleDirection.UP, 6)


def test_a_lasting_load_is_split_after_ten_minutes() -> None:
    """S-250: half as much again as the target: no short window minds, that of 10 minutes does."""
    assert advice_after(lambda second: 150, 595) is None
    assert advice_after(lambda second: 150, 605) == ScaleAdvice(NAME, ScaleDirection.UP, 2)


def test_a_load_that_goes_down_is_merged_after_its_averages() -> None:
    """S-246, S-251: after a lasting load of twice the target, a tenth of it: the average of 20 minutes falls last.

    200 exp(-t/20) + 10 (1 - exp(-t/20)) = 50 at t = 31.2 minutes.
    """

    def falling(second: int) -> int:
        return 200 if second <= 1800 else 10

    assert advice_after(falling, 1800 + 31 * 60) is None
    assert advice_after(falling, 1800 + 32 * 60) == ScaleAdvice(NAME, ScaleDirection.DOWN)


def test_a_steady_load_at_its_target_requests_nothing() -> None:
    """Whatever window, however long."""
    for minutes in (3, 11, 21, 60):
        assert advice_after(lambda second: TARGET, minutes * 60) is None


@given(rate=st.integers(1, 2000), minutes=st.integers(21, 90), target=st.integers(1, 1000))
def test_a_steady_load_is_judged_by_its_rate_alone(rate: int, minutes: int, target: int) -> None:
    """Averages of a steady load are that load: above the target it is split, below half of it merged, else neither."""
    known = load((rate, rate, rate, rate), age_s=minutes * 60)
    found = advise(replace(known, target_rate=target), AT_ONCE)
    if rate > target:
        assert found == ScaleAdvice(NAME, ScaleDirection.UP, max(2, rate // target))
    elif rate < target / 2:
        assert found == ScaleAdvice(NAME, ScaleDirection.DOWN)
    else:
        assert found is None


@given(
    rates=st.tuples(*[st.floats(0, 1e6)] * 4), age_s=st.floats(0, 1e5), silent_s=st.floats(0, 1200),
    more=st.floats(1, 100),
)  # fmt: skip
def test_more_load_never_requests_a_merge_where_less_asked_for_none(
    rates: tuple[float, float, float, float], age_s: float, silent_s: float, more: tuple[float, float, float, float]
) -> None:
    """Advice moves one way with the load: from merge over nothing to split, into more and more parts."""

    def heat(found: ScaleAdvice | None) -> int:
        return 0 if found is None else found.split_count or -1

    less = load(rates, age_s=age_s, silent_s=silent_s)
    found = advise(replace(less, events_per_s=Rates(*(rate * more for rate in rates))), AT_ONCE)  # type: ignore[operator]
    if silent_s <= AT_ONCE.recent_s:
        assert heat(found) >= heat(advise(less, AT_ONCE))
    else:
        assert found is None or found.direction is ScaleDirection.DOWN


@given(rate=st.integers(1, 500), life_s=st.integers(5, 600), count=st.integers(1, 6))
def test_a_transactions_events_count_as_if_they_had_come_over_its_life(rate: int, life_s: int, count: int) -> None:
    """S-247: averages after transactions in a row are those of the same events one by one."""
    spread, steady = MovingRates(1.0), MovingRates(1.0)
    for number in range(count):
        for _ in range(life_s):
            steady.measure(rate)
        if number:
            # The ticks of its life, in which nothing came by itself.
            spread.measure(0, life_s - 1)
        spread.spread(rate * life_s, float(life_s))
    assert spread.rates().minutes_2 == pytest.approx(steady.rates().minutes_2)
    assert spread.rates().minutes_20 == pytest.approx(steady.rates().minutes_20)


def test_a_large_transaction_is_no_burst() -> None:
    """S-247: an hour's worth at half the target, merged at once. Without its life it would look like a thousandfold."""

    def all_at_once(second: int) -> int:
        return TARGET // 2 * 3600 if second == 600 else 0

    known = simulated(all_at_once, 640, merged_life_s=3600.0).load(1, 640.0)
    assert known is not None
    assert known.event_count == TARGET // 2 * 3600
    assert known.events_per_s.minutes_10 < TARGET / 2
    assert advise(replace(known, age_s=1000.0), AT_ONCE) is None
    at_once = simulated(all_at_once, 640).load(1, 640.0)
    assert at_once is not None
    assert at_once.events_per_s.minutes_10 > 100 * TARGET


def most_urgent(advice: list[ScaleAdvice], count_max: int, turn: int) -> list[ScaleAdvice]:
    chosen = MostUrgent(count_max)
    for each in advice:
        chosen.take(each)
    return chosen.chosen(turn)


@given(splits=st.lists(st.integers(2, 9)), count_max=st.integers(1, 5))
def test_the_hottest_of_many_are_chosen(splits: list[int], count_max: int) -> None:
    """As if all were sorted; of equals those that came first."""
    advice = [ScaleAdvice(str(number), ScaleDirection.UP, count) for number, count in enumerate(splits)]
    assert most_urgent(advice, count_max, 0) == sorted(advice, key=lambda each: -each.split_count)[:count_max]


def test_segments_to_split_come_first() -> None:
    """An answer is bounded: heat before cold, the hottest before all."""
    up = [ScaleAdvice(f"segment-{splits}", ScaleDirection.UP, splits) for splits in (2, 9, 4)]
    cold = silence("cold")
    assert most_urgent([cold, *up], 3, 5) == [up[1], up[2], up[0]]
    assert most_urgent([cold, *up], 2, 5) == [up[1], up[2]]
    assert most_urgent([cold, *up], 9, 5)[-1] == cold


@given(count=st.integers(1, 50), hot=st.integers(0, 5), room=st.integers(1, 10), first_turn=st.integers(0, 1000))
def test_advice_beyond_one_answer_follows_in_later_answers(count: int, hot: int, room: int, first_turn: int) -> None:
    """Otherwise segments without a neighbour to merge with would keep the others from ever being reported."""
    cold = [silence(str(number)) for number in range(count)]
    up = [ScaleAdvice(f"hot-{number}", ScaleDirection.UP, 2) for number in range(hot)]
    told: set[str] = set()
    for turn in range(first_turn, first_turn + 2 * count):
        answer = most_urgent([*cold, *up], hot + room, turn)
        assert len(answer) == min(hot + room, hot + count)
        assert answer[:hot] == up
        told |= {each.segment for each in answer[hot:]}
    assert len(told) == count


QUIET = ScaleAdviceSettings(quiet_told_s=100.0, quiet_segments_max=2)


def test_a_segment_is_silent_after_long_enough_and_for_a_while() -> None:
    """S-253: not before nothing came for as long as loads are remembered; then it is said until it must be known."""
    quiet = IdleSegments(60.0, QUIET)
    quiet.note(1, NAME, 10.0)
    assert quiet.silent(69.9) == []
    assert quiet.silent(70.0) == [(1, NAME)]
    assert quiet.silent(170.0) == [(1, NAME)]
    assert quiet.silent(170.1) == []
    assert quiet.silent(70.0) == []


def test_a_segment_that_gets_something_or_ends_is_not_silent() -> None:
    """S-253: traffic keeps it from being said, and so does its end."""
    quiet = IdleSegments(60.0, QUIET)
    quiet.note(1, NAME, 0.0)
    quiet.forget(1)
    quiet.forget(2)
    assert quiet.silent(70.0) == []


def test_quiet_segments_are_bounded() -> None:
    """The first noted go first."""
    quiet = IdleSegments(60.0, QUIET)
    for segment_id in range(4):
        quiet.note(segment_id, str(segment_id), 0.0)
    assert quiet.silent(60.0) == [(2, "2"), (3, "3")]


def test_statistics_hand_over_what_falls_silent() -> None:
    """S-253: a load that expires is noted at once as silent; one that comes back is not; nor is a fixed segment."""
    settings = StatisticsSettings(tick_s=5.0, expiry_s=60.0)
    statistics = Statistics(0, settings, 0.0)

    def add(segment_id: int, now_s: float, scale_type: int = 2) -> None:
        statistics.add(
            segment_id, str(segment_id), events=1, byte_count=1, scale_type=scale_type, target_rate=1, now_s=now_s
        )

    add(1, 1.0)
    add(2, 1.0)
    add(3, 1.0, scale_type=0)
    for second in range(5, 71, 5):
        statistics.advance(float(second))
    assert statistics.quiet.silent(70.0) == [(1, "1"), (2, "2")]
    add(1, 71.0)
    assert statistics.quiet.silent(72.0) == [(2, "2")]
    statistics.forget(2)
    assert statistics.quiet.silent(72.0) == []


def test_silence_is_known_only_after_watching_for_long_enough() -> None:
    """The store has just started, the segment is young, or loads were dropped for want of room: no claim is made."""
    settings = StatisticsSettings(tick_s=5.0, expiry_s=60.0, segments_max=1)
    statistics = Statistics(0, settings, 100.0)
    assert not statistics.is_silent(1, 159.0, age_s=1000.0)
    assert statistics.is_silent(1, 160.0, age_s=1000.0)
    assert not statistics.is_silent(1, 160.0, age_s=59.0)
    for segment_id in (8, 9):
        statistics.add(segment_id, "x", events=1, byte_count=1, scale_type=2, target_rate=1, now_s=170.0)
    assert not statistics.is_silent(9, 500.0, age_s=1000.0)
    assert not statistics.is_silent(1, 229.0, age_s=1000.0)
    assert statistics.is_silent(1, 230.0, age_s=1000.0)
