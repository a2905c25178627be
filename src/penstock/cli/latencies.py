"""`Latencies`: percentiles of any number of measurements, in bounded memory."""

from __future__ import annotations

import math

#: Growth of the buckets, which bounds the error of percentiles.
_GROWTH = 1.01
_SHORTEST_S = 1e-6
_BUCKET_COUNT = math.ceil(math.log(1e10) / math.log(_GROWTH))
_SCALE = 1 / math.log(_GROWTH)


class Latencies:
    """Counts of durations, from a microsecond to hours, in buckets of one percent."""

    def __init__(self) -> None:
        self.count: int = 0
        self.max_s: float = 0.0
        self._buckets = [0] * _BUCKET_COUNT

    def add(self, seconds: float) -> None:
        """Count one. A clock that went backwards counts as the shortest there is."""
        index = int(math.log(max(seconds, _SHORTEST_S) / _SHORTEST_S) * _SCALE)
        self._buckets[min(index, _BUCKET_COUNT - 1)] += 1
        self.count += 1
        self.max_s = max(self.max_s, seconds)

    def percentile_s(self, percent: float) -> float:
        """Return what so many percent were not longer than, up to one percent; 0 of none."""
        wanted = math.ceil(self.count * percent / 100)
        seen = 0
        for index, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                return min(_SHORTEST_S * _GROWTH ** (index + 1), self.max_s)
        return 0.0

    def in_ms(self) -> dict[str, float]:
        """Return the reported percentiles, in milliseconds."""
        told = {f"p{percent:g}".replace(".", "_"): self.percentile_s(percent) for percent in (50, 95, 99, 99.9)}
        return {name: round(seconds * 1000, 3) for name, seconds in (*told.items(), ("max", self.max_s))}
