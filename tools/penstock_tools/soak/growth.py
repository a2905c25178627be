"""Does a resource grow? A robust slope of its samples, after the warm-up, against a bound with a name.

The slope is the median of the slopes between all pairs of samples (Theil and Sen): a few high samples during a fault
do not change it. A resource grows if its slope is above what the bound permits per hour.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

#: With fewer samples, or less time between the first and the last one, nothing can be said.
SAMPLES_MIN, HOURS_MIN = 6, 0.1
#: More samples than this are thinned out: the number of pairs is quadratic.
_SAMPLES_MAX = 300

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class GrowthBound:
    """What a resource may grow by per hour: a share of its median, and an amount besides.

    Attributes:
        name: of the resource, for the report.
        unit: of its values.
        share, amount: see above.
    """

    name: str
    unit: str
    share: float
    amount: float

    def permitted(self, median: float) -> float:
        """Return the permitted growth per hour."""
        return self.share * median + self.amount


@dataclass(frozen=True, slots=True)
class Growth:
    """The verdict on one series.

    Attributes:
        series: whose values.
        count, hours: samples after the warm-up, and the time between the first and the last of them.
        median: of the samples.
        per_hour: the slope; None: there were too few samples.
        permitted: what it may be.
    """

    bound: GrowthBound
    series: str
    count: int
    hours: float
    median: float
    per_hour: float | None
    permitted: float

    @property
    def is_bounded(self) -> bool | None:
        """Whether the slope is permitted; None: not known."""
        return None if self.per_hour is None else self.per_hour <= self.permitted


def slope(points: Points) -> float:
    """Return the median of the slopes between all pairs of points with different places; 0 without such a pair."""
    if len(points) > _SAMPLES_MAX:
        step = len(points) / _SAMPLES_MAX
        points = [points[int(number * step)] for number in range(_SAMPLES_MAX)]
    slopes = [(b - a) / (y - x) for (x, a), (y, b) in combinations(points, 2) if x != y]
    return statistics.median(slopes) if slopes else 0.0


def judge(bound: GrowthBound, series: str, points: Points) -> Growth:
    """Judge a series. `points`: hours and values, in order, after the warm-up."""
    if not points:
        return Growth(bound, series, 0, 0.0, 0.0, None, bound.amount)
    hours = points[-1][0] - points[0][0]
    median = statistics.median(value for _, value in points)
    is_enough = len(points) >= SAMPLES_MIN and hours >= HOURS_MIN
    return Growth(
        bound, series, len(points), hours, median, slope(points) if is_enough else None, bound.permitted(median)
    )
