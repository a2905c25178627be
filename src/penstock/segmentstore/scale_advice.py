"""Derives scaling advice from a segment's averages and policy (pure), and advice for segments without any data.

Source: controller-internals 9.1 (SegmentAggregates, AutoScaleProcessor).
"""

from __future__ import annotations

from heapq import heappush, heappushpop

from penstock.model.policies import ScalingKind
from penstock.model.scale_advice import ScaleAdvice, ScaleDirection
from penstock.segmentstore.container_settings import ScaleAdviceSettings
from penstock.segmentstore.statistics import Rates, SegmentStatistics

_MINUTE_S = 60.0
_KIB = 1024


def policy_rates(load: SegmentStatistics) -> Rates | None:
    """Return the averages in the unit of the segment's policy: events/s or KiB/s; None without such a policy."""
    if load.scale_type == ScalingKind.BY_EVENT_RATE:
        return load.events_per_s
    if load.scale_type == ScalingKind.BY_DATA_RATE:
        rates = load.bytes_per_s
        return Rates(rates.minutes_2 / _KIB, rates.minutes_5 / _KIB, rates.minutes_10 / _KIB, rates.minutes_20 / _KIB)
    return None


def advise(
    load: SegmentStatistics, settings: ScaleAdviceSettings, window_unit_s: float = _MINUTE_S
) -> ScaleAdvice | None:
    """Return the advice for a segment's load; None if no scaling is needed, or the load is not known for long enough.

    `window_unit_s`: the length of a minute in the windows of its averages (`StatisticsSettings`). The averages persist
    after the data end: a split requires data within `recent_s`.
    """
    target = load.target_rate
    if target <= 0 or load.age_s < settings.cool_down_s or (rates := policy_rates(load)) is None:
        return None
    two, five, ten = rates.minutes_2, rates.minutes_5, rates.minutes_10
    is_hot = (
        (two > 5 * target and load.age_s > 2 * window_unit_s)
        or (five > 2 * target and load.age_s > 5 * window_unit_s)
        or (ten > target and load.age_s > 10 * window_unit_s)
    )
    if is_hot:
        if load.silent_s > settings.recent_s:
            return None
        return ScaleAdvice(load.name, ScaleDirection.UP, max(2, int(max(two, five, ten) / target)))
    if max(two, five, ten) < target and rates.minutes_20 < target / 2 and load.age_s > 20 * window_unit_s:
        return ScaleAdvice(load.name, ScaleDirection.DOWN)
    return None


def silence(segment: str) -> ScaleAdvice:
    """Return the advice for a segment without data for as long as loads are remembered."""
    return ScaleAdvice(segment, ScaleDirection.DOWN, is_silent=True)


class MostUrgent:
    """Selects `count_max` of very many: all splits, the hottest first, then merges.

    Each `take` and `chosen` is cheap, so that other tasks run in between.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        #: The hottest so far, as a heap: parts, negative arrival number, the advice.
        self._hot: list[tuple[int, int, ScaleAdvice]] = []
        self._cold: list[ScaleAdvice] = []
        self._count = 0

    def take(self, advice: ScaleAdvice) -> None:
        """Add one advice."""
        self._count += 1
        if advice.direction is ScaleDirection.DOWN:
            self._cold.append(advice)
            return
        entry = (advice.split_count, -self._count, advice)
        if len(self._hot) < self._count_max:
            heappush(self._hot, entry)
        else:
            heappushpop(self._hot, entry)

    def chosen(self, turn: int) -> list[ScaleAdvice]:
        """Return the selected ones. If not all cold ones fit, different ones are selected at each `turn`.

        The first ones may stay cold permanently without a neighbour to be merged with.
        """
        hot = [advice for _, _, advice in sorted(self._hot, reverse=True)]
        cold = self._cold
        room = min(self._count_max - len(hot), len(cold))
        at = turn * room % len(cold) if cold else 0
        return hot + cold[at : at + room] + cold[: max(at + room - len(cold), 0)]
