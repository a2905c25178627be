"""`IdleSegments`: segments with a policy by rate that get no data, by name, for a limited time.

A segment is noted when it is created, and when its load is forgotten because it got no data for long. It is silent once
it has got no data for `expiry_s`; this is reported for `quiet_told_s`. Source:
controller-internals 9.1 ("silence").
"""

from __future__ import annotations

from penstock.segmentstore.container_settings import ScaleAdviceSettings


class IdleSegments:
    """See the module. `expiry_s`: for how long loads are remembered. `now_s` is always the loop's time.

    Bounded: above `quiet_segments_max` the first noted are dropped first.
    """

    __slots__ = ("_expiry_s", "_noted", "_settings")

    def __init__(self, expiry_s: float, settings: ScaleAdviceSettings) -> None:
        self._expiry_s = expiry_s
        self._settings = settings
        #: By segment id: name, and since when it has got no data.
        self._noted: dict[int, tuple[str, float]] = {}

    def note(self, segment_id: int, name: str, since_s: float) -> None:
        """Start to watch a segment that has got no data since then."""
        self._noted.pop(segment_id, None)
        while len(self._noted) >= max(self._settings.quiet_segments_max, 1):
            del self._noted[next(iter(self._noted))]
        self._noted[segment_id] = (name, since_s)

    def forget(self, segment_id: int) -> None:
        """Stop watching a segment: it got data, or has ended."""
        self._noted.pop(segment_id, None)

    def silent(self, now_s: float) -> list[tuple[int, str]]:
        """Return ids and names of the silent segments; forget those reported for long enough."""
        oldest_s = now_s - self._expiry_s - self._settings.quiet_told_s
        for segment_id in [each for each, (_, since_s) in self._noted.items() if since_s < oldest_s]:
            del self._noted[segment_id]
        silent_s = now_s - self._expiry_s
        return [(segment_id, name) for segment_id, (name, since_s) in self._noted.items() if since_s <= silent_s]
