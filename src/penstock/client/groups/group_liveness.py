"""`Liveness`: how long the other readers of a group have shown no sign of life. Pure.

Only time in which the observer itself could observe counts. After an outage that kept all readers from the group's
record, each of them starts to count again, so the others have the whole time-out to recover.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Sign = TypeVar("Sign", bound=Hashable)

#: A gap between two observations longer than this share of the time-out is an outage: counting restarts.
_OUTAGE_SHARE = 0.5
#: No gap between two observations counts for more than this share of the time-out.
_GAP_SHARE_MAX = 0.25
#: Observations must be at most this share of the time-out apart, so that ordinary delays do not look like outages.
OBSERVATION_SHARE = 0.125


@dataclass(slots=True)
class _Silence(Generic[Sign]):
    sign: Sign
    lasts_s: float


class Liveness(Generic[Sign]):
    """See the module. A sign of life is any value that changes with each heartbeat of a reader."""

    def __init__(self) -> None:
        self._silences: dict[str, _Silence[Sign]] = {}
        self._observed_s: float | None = None

    def observe(self, signs: Mapping[str, Sign], now_s: float, timeout_s: float) -> None:
        """Record the signs of the readers that are observed now; absent readers are dropped."""
        gap_s = 0.0 if self._observed_s is None else now_s - self._observed_s
        self._observed_s = now_s
        is_outage = gap_s > timeout_s * _OUTAGE_SHARE
        counted_s = min(gap_s, timeout_s * _GAP_SHARE_MAX)
        for name in self._silences.keys() - signs.keys():
            del self._silences[name]
        for name, sign in signs.items():
            silence = self._silences.get(name)
            if silence is None or silence.sign != sign:
                self._silences[name] = _Silence(sign, 0.0)
            elif is_outage:
                silence.lasts_s = 0.0
            else:
                silence.lasts_s += counted_s

    def silent(self, lasts_s: float, but: Collection[str] = ()) -> dict[str, Sign]:
        """Return the readers, except `but`, that have been silent for at least `lasts_s`, with their last signs."""
        return {
            name: silence.sign
            for name, silence in self._silences.items()
            if silence.lasts_s >= lasts_s and name not in but
        }
