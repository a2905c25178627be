"""`Histogram`: counts of observed values by fixed ranges, cheap enough for a path taken for each batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

#: Upper bounds in seconds for durations of requests and of writes to a log, from one millisecond (the resolution of the
#: loop's clock) to ten seconds.
DURATION_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts values in ranges. `bounds`: ascending upper bounds, each inclusive; larger values are in the last range.

    Attributes:
        bounds: see above.
        counts: number of values in each range, one more than there are bounds.
        total: sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = DURATION_BOUNDS_S) -> None:
        self.bounds: tuple[float, ...] = tuple(bounds)
        self.counts: list[int] = [0] * (len(self.bounds) + 1)
        self.total: float = 0.0

    @property
    def count(self) -> int:
        """Number of all values."""
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (upper bound, number of values up to it) for each range; the last bound is infinite."""
        found: list[tuple[float, int]] = []
        count = 0
        for bound, in_range in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += in_range
            found.append((bound, count))
        return found
