"""`Rotation`: lets a reader at its maximum of segments read all segments of its group, some at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from penstock.client.groups.group_state import GroupState
from penstock.client.groups.segment_events import SegmentEvents
from penstock.client.settings import ClientSettings

_log = logging.getLogger(__name__)

#: At most one of this many held segments is exchanged at a time.
_HELD_PER_EXCHANGED = 2


class Rotation:
    """See the module. Segments without a reader replace others every `reader_rotation_interval_s`.

    The segments that have waited longest come first. They replace segments without available events first, then those
    held longest; never a segment with events at the application.
    """

    def __init__(self, group: str, reader: str, settings: ClientSettings) -> None:
        self._group = group
        self._reader = reader
        self._settings = settings
        #: Segments that no reader holds, and since when as seen here.
        self._waiting: dict[str, float] = {}
        self._state: GroupState | None = None
        # Since when there are such segments and this reader is at its maximum, or the time of its last exchange. Else
        # None.
        self._since_s: float | None = None
        self._is_reported = False

    def follow(self, state: GroupState, held_count: int) -> None:
        """Update from the record. Logs a warning, once, when segments remain that this reader has no capacity for."""
        if state is not self._state:
            self._state = state
            now_s = asyncio.get_running_loop().time()
            self._waiting = {segment: self._waiting.get(segment, now_s) for segment in state.unassigned}
        if not self._waiting or held_count < self._settings.reader_segment_count_max:
            self._since_s = None
            self._is_reported = False
            return
        now_s = asyncio.get_running_loop().time()
        if self._since_s is None:
            self._since_s = now_s
        # Other readers may be about to take them.
        if not self._is_reported and now_s - self._since_s >= self._settings.reader_group_refresh_s:
            self._is_reported = True
            _log.warning(
                "reader %s of group %s holds %d segments (reader_segment_count_max); segments without a reader: %d. "
                "They are read in turn, a part every %g s (reader_rotation_interval_s): start more readers, or "
                "raise reader_segment_count_max",
                self._reader, self._group, held_count, len(self._waiting), self._settings.reader_rotation_interval_s,
            )  # fmt: skip

    def due_s(self) -> float:
        """Return when segments are due to be exchanged, on the loop's clock; infinite: there is no need."""
        return float("inf") if self._since_s is None else self._since_s + self._settings.reader_rotation_interval_s

    def postpone(self) -> None:
        """Wait for another interval: the record cannot be changed now."""
        if self._since_s is not None:
            self._since_s = asyncio.get_running_loop().time()

    def choose(
        self, held: Iterable[SegmentEvents], may_go: Callable[[SegmentEvents], bool]
    ) -> tuple[list[SegmentEvents], list[str]]:
        """Return the segments to release, and those to take in their place, both in order of preference.

        No more events of the released segments are returned. Call it when the exchange is due.
        """
        self._since_s = asyncio.get_running_loop().time()
        count_max = max(self._settings.reader_segment_count_max // _HELD_PER_EXCHANGED, 1)
        wanted = sorted(self._waiting, key=lambda segment: (self._waiting[segment], segment))[:count_max]
        going = sorted(
            (source for source in held if not source.is_leaving and not source.is_at_end and may_go(source)),
            key=lambda source: (source.is_queued, source.turn),
        )[: len(wanted)]
        for source in going:
            source.is_leaving = True
        return going, wanted
