"""`LagTime`: how long ago the oldest unread event of a reader group was stored, as far as stores note times.

Events have no times. Stores note when a segment was last written, and about once for each MiB of it. So the answer is a
pair of bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock import aio
from penstock.client.low_level import segments_of
from penstock.model.names import segment_name, split_scoped_name
from penstock.model.segments import SegmentInfo
from penstock.model.stream_cuts import OFFSET_FUTURE, StreamCut

#: Ages that are tried, in seconds: the answer is between two of them.
AGES_S: tuple[float, ...] = (10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0)
_SEGMENTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class LagTime:
    """Bounds in seconds. `most` is None: nothing is known but `least`. Both 0: nothing is unread."""

    least: float
    most: float | None


async def lag_time(client: aio.Client, position: StreamCut, now: datetime) -> LagTime:
    """Return the age of the oldest event of a stream after `position`. Costs some requests for each segment.

    Raises what the client raises.
    """
    scope, name = split_scoped_name(f"{position.scope}/{position.stream}")
    offsets = {each: at for each, at in position.positions.items() if at != OFFSET_FUTURE}
    names = {segment_name(scope, name, each): at for each, at in list(offsets.items())[:_SEGMENTS_MAX]}
    infos = await segments_of(client).segment_infos(list(names))
    unread = [info for info in infos if isinstance(info, SegmentInfo) and info.length > names[info.name]]
    if not unread:
        return LagTime(0.0, 0.0)
    now_ms = now.timestamp() * 1000
    # The oldest unread event of a segment was stored no later than its last one.
    least = max(0.0, *((now_ms - info.last_modified_ms) / 1000 for info in unread))
    stream = f"{scope}/{name}"
    for age_s in AGES_S:
        if age_s < least:
            continue
        # No event after this cut was stored earlier: a group at or after it has read all that is older.
        cut = await client.cut_at_time(stream, now - timedelta(seconds=age_s), is_end=True)
        if is_at_or_after(offsets, cut.positions):
            return LagTime(least, age_s)
        before = await client.cut_at_time(stream, now - timedelta(seconds=age_s))
        if not is_at_or_after(offsets, before.positions):
            least = max(least, age_s)
    return LagTime(least, None)


def is_at_or_after(offsets: Mapping[int, int], cut: Mapping[int, int]) -> bool:
    """Return whether a position has reached a cut in all segments that both name; others are of later epochs."""
    shared = [each for each in cut if each in offsets]
    if not shared:
        # Ids grow with the epochs: all segments of the position are later ones, or all are earlier ones.
        return min(offsets, default=0) > max(cut, default=0)
    return all(offsets[each] >= cut[each] for each in shared) and all(
        each in offsets or each < min(offsets) for each in cut if cut[each] > 0
    )
