"""What the load of a segment asks for: pure, from its averages and its policy; and which segments get nothing at all.

Source: controller internals specification, section 9.1 (SegmentAggregates, AutoScaleProcessor).
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.model.policies import ScalingKind
from penstock.model.scale_advice import ScaleAdvice, ScaleDirection
from penstock.segmentstore.settings import ScaleAdviceSettings
from penstock.segmentstore.statistics import Rates, SegmentStatistics

_MINUTE_S = 60.0
_KIB = 1024


def policy_rates(load: SegmentStatistics) -> Rates | None:
    """Return the averages in the unit of the segment's policy: events/s or KiB/s; None without such a policy."""
    if load.scale_type == ScalingKind.BY_EVENT_RATE:
        return load.events_per_s
    if load.scale_type == ScalingKind.BY_DATA_RATE:
        rates = load.bytes_per_s
        return Rates(
            rates.minutes_2 / _KIB, rates.minutes_5 / _KIB, rates.minutes_10 / _KIB, rates.minutes_20 / _KIB
        )
    return None


def advise(load: SegmentStatistics, settings: ScaleAdviceSettings) -> ScaleAdvice | None:
    """Return what a segment's load asks for; None if it is as it should be, or not known for long enough.

    Averages live on when the data end: a split needs data within `recent_s`.
    """
    target = load.target_rate
    if target <= 0 or load.age_s < settings.cool_down_s or (rates := policy_rates(load)) is None:
        return None
    two, five, ten = rates.minutes_2, rates.minutes_5, rates.minutes_10
    is_hot = (
        (two > 5 * target and load.age_s > 2 * _MINUTE_S)
        or (five > 2 * target and load.age_s > 5 * _MINUTE_S)
        or (ten > target and load.age_s > 10 * _MINUTE_S)
    )
    if is_hot:
        if load.silent_s > settings.recent_s:
            return None
        return ScaleAdvice(load.name, ScaleDirection.UP, max(2, int(max(two, five, ten) / target)))
    if max(two, five, ten) < target and rates.minutes_20 < target / 2 and load.age_s > 20 * _MINUTE_S:
        return ScaleAdvice(load.name, ScaleDirection.DOWN)
    return None


def silence(segment: str) -> ScaleAdvice:
    """Return the advice about a segment that got nothing for as long as loads are remembered."""
    return ScaleAdvice(segment, ScaleDirection.DOWN, is_silent=True)


def most_urgent(advice: Iterable[ScaleAdvice], count_max: int, turn: int) -> list[ScaleAdvice]:
    """Return up to `count_max` of them: all that is to be split, the hottest first, then what is to be merged.

    When there are more of the latter than have room, others of them are told at each `turn`: the first ones may stay
    cold for ever without a neighbour to be merged with.
    """
    hot: list[ScaleAdvice] = []
    cold: list[ScaleAdvice] = []
    for each in advice:
        (hot if each.direction is ScaleDirection.UP else cold).append(each)
    hot.sort(key=lambda each: -each.split_count)
    room = max(count_max - len(hot), 0)
    if len(cold) > room > 0:
        at = turn * room % len(cold)
        cold = cold[at:] + cold[:at]
    return (hot + cold[:room])[:count_max]
