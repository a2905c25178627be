"""The readers' intervals of polls, heartbeats and stored positions. Pure.

All three load the same store, so their intervals grow with the number of readers: an idle group of hundreds of readers
costs little more than a small one.
"""

from __future__ import annotations

import math

from penstock.client.groups.group_liveness import OBSERVATION_SHARE
from penstock.client.settings import ClientSettings

#: Up to this many readers poll the record every `reader_group_refresh_s`; more readers poll proportionally less often.
_READERS_PER_REFRESH = 20
#: An unchanged record is polled up to this many times less often, in groups that are not small.
_IDLE_FACTOR_MAX = 4.0
#: Polls without a change until that factor is reached.
_IDLE_POLL_COUNT = 12
#: Heartbeats of a reader in the group's `reader_timeout_s`.
_HEARTBEATS_PER_TIMEOUT = 4
#: As `OBSERVATION_SHARE`, while the record does not change: for readers that do not watch all others, and for all
#: readers of a large group, where those that watch read very many heartbeats. It is the interval of heartbeats.
_IDLE_SHARE = 0.25
#: More readers are a large group.
_LARGE_READER_COUNT = 100
#: Maximum interval of polls, for any size of the group and any time-out.
_POLL_INTERVAL_MAX_S = 10.0
#: Average time between two stores of changed positions, over all readers of a group, in seconds.
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
    is_often = is_watcher and reader_count <= _LARGE_READER_COUNT
    share = OBSERVATION_SHARE if is_often else OBSERVATION_SHARE + (_IDLE_SHARE - OBSERVATION_SHARE) * idleness
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
    """Return the seconds after which changed positions are stored. `beat_interval_s`: of a small group."""
    return max(beat_interval_s, _STORE_SPACING_S * reader_count)


def next_tick_s(after_s: float, interval_s: float, phase: float) -> float:
    """Return the first time after `after_s` that is a multiple of the interval plus `phase` (0 to 1) of it.

    Readers of one client with the same phase work at the same time, so that their work takes one request.
    """
    begin_s = phase * interval_s
    tick_s = begin_s + (math.floor((after_s - begin_s) / interval_s) + 1) * interval_s
    # Rounding must not return the same time again.
    return tick_s if tick_s > after_s else after_s + interval_s
