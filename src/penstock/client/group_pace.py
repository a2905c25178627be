"""How often the readers of a group poll its record, show that they are alive, and store positions. Pure.

All three cost the same store, so they become rarer with the number of readers: a group of hundreds of readers that has
nothing to do costs little more than a small one.
"""

from __future__ import annotations

import math

from penstock.client.group_liveness import OBSERVATION_SHARE
from penstock.client.settings import ClientSettings

#: Up to so many readers poll the record each `reader_group_refresh_s`; more of them that much less often.
_READERS_PER_REFRESH = 20
#: A record that has not changed is polled up to this many times less often, in groups that are not small.
_IDLE_FACTOR_MAX = 4.0
#: Polls without a change until that is reached.
_IDLE_POLL_COUNT = 12
#: A reader shows that it is alive so many times in the group's `reader_timeout_s`.
_HEARTBEATS_PER_TIMEOUT = 4
#: As `OBSERVATION_SHARE`, of readers that do not watch all others, while the record does not change.
_OTHERS_SHARE = 0.25
#: No poll is rarer, however large the group and its time-out are.
_POLL_INTERVAL_MAX_S = 10.0
#: Positions that moved are stored so many seconds apart, on average over all readers of a group.
_STORE_SPACING_S = 0.02


def poll_interval_s(
    settings: ClientSettings,
    reader_timeout_s: float,
    reader_count: int,
    unchanged_count: int,
    *,
    is_watcher: bool = True,
) -> float:
    """Return the seconds between two polls of the record.

    `unchanged_count`: the last polls that found no change. `is_watcher`: the reader watches all others; those that
    watch a few may poll less often, because any one of them that finds a dead watcher is enough.
    """
    idleness = min(unchanged_count / _IDLE_POLL_COUNT, 1.0)
    share = OBSERVATION_SHARE if is_watcher else OBSERVATION_SHARE + (_OTHERS_SHARE - OBSERVATION_SHARE) * idleness
    longest_s = min(reader_timeout_s * share, _POLL_INTERVAL_MAX_S)
    shortest_s = min(
        settings.reader_group_refresh_s, settings.position_interval_s, reader_timeout_s * OBSERVATION_SHARE
    )
    idle_factor = 1 + (_IDLE_FACTOR_MAX - 1) * idleness
    crowd_factor = max(1.0, idle_factor * reader_count / _READERS_PER_REFRESH)
    return min(shortest_s * crowd_factor, longest_s)


def heartbeat_interval_s(reader_timeout_s: float) -> float:
    """Return the seconds between two heartbeats of a reader."""
    return reader_timeout_s / _HEARTBEATS_PER_TIMEOUT


def store_interval_s(beat_interval_s: float, reader_count: int) -> float:
    """Return the seconds after which positions that moved are stored. `beat_interval_s`: of a small group."""
    return max(beat_interval_s, _STORE_SPACING_S * reader_count)


def next_tick_s(after_s: float, interval_s: float, phase: float) -> float:
    """Return the first time after `after_s` that is `phase` (0 to 1) of an interval behind a multiple of it.

    Readers of one client that have the same phase do things at the same time, which then take one request.
    """
    begin_s = phase * interval_s
    tick_s = begin_s + (math.floor((after_s - begin_s) / interval_s) + 1) * interval_s
    # Rounding must not lead to the same time again.
    return tick_s if tick_s > after_s else after_s + interval_s
