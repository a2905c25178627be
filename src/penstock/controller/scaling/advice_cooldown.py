"""`AdviceCooldown`: segments that were inspected recently, so that they are not inspected again at once. Pure.

Source: controller-internals 9.1 ("mute").
"""

from __future__ import annotations

from penstock.model.scale_advice import ScaleDirection


class AdviceCooldown:
    """See the module: the inspection of a hot segment mutes all its advice, that of a cold one only merges.

    Holds at most `count_max` segments; those muted first are dropped first. `now_s` is the loop's time.
    """

    def __init__(self, mute_s: float, count_max: int) -> None:
        self._mute_s = mute_s
        self._count_max = max(count_max, 1)
        #: By segment: end of the mute, and whether it applies to splits as well. In the order of the ends.
        self._muted: dict[str, tuple[float, bool]] = {}

    def mute(self, segment: str, direction: ScaleDirection, now_s: float) -> None:
        """Record that a segment was inspected because it is too hot, or too cold."""
        before = self._muted.pop(segment, (now_s, False))
        while len(self._muted) >= self._count_max:
            del self._muted[next(iter(self._muted))]
        is_for_splits = direction is ScaleDirection.UP or (before[1] and before[0] > now_s)
        self._muted[segment] = (now_s + self._mute_s, is_for_splits)

    def is_muted(self, segment: str, direction: ScaleDirection, now_s: float) -> bool:
        """Say whether advice of this kind about a segment is ignored now."""
        until_s, is_for_splits = self._muted.get(segment, (now_s, False))
        return until_s > now_s and (is_for_splits or direction is ScaleDirection.DOWN)

    def forget_old(self, now_s: float) -> None:
        """Remove expired entries."""
        while self._muted and next(iter(self._muted.values()))[0] <= now_s:
            del self._muted[next(iter(self._muted))]

    def __len__(self) -> int:
        return len(self._muted)
