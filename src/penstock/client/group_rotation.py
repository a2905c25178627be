"""`Rotation`: lets a reader that may hold no more segments read all of its group's nevertheless, a part at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from penstock.client.group_state import GroupState
from penstock.client.segment_events import SegmentEvents
from penstock.client.settings import ClientSettings

_log = logging.getLogger(__name__)

#: At most one of so many held segments is exchanged at a time.
_HELD_PER_EXCHANGED = 2


class Rotation:
    """See the module. Segments without a reader take the place of others every `reader_rotation_interval_s`.

    Those that wait longest come first. Those that have nothing to hand out go first, then those held longest; none of
    which anything is with the application.
    """

    def __init__(self, group: str, reader: str, settings: ClientSettings) -> None:
        self._group = group
        self._reader = reader
        self._settings = settings
        #: Segments that no reader holds, and since when as seen here.
        self._waiting: dict[str, float] = {}
        self._state: GroupState | None = None
        # Since when there are such segments and this reader has no room, or when it last exchanged some. None: it has.
        self._since_s: float | None = None
        self._is_reported = False

    def follow(self, state: GroupState, held_count: int) -> None:
        """Take in the record. Logs a warning, once, when segments are left that this reader has no room for."""
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
        # Others may be about to take them.
        if not self._is_reported and now_s - self._since_s >= self._settings.reader_group_refresh_s:
            self._is_reported = True
            _log.warning(
                "reader %s of group %s holds %d segments (reader_segment_count_max); segments that no reader holds: "
                "%d. They are read in turn, a part every %g s (reader_rotation_interval_s): start more readers, or "
                "raise reader_segment_count_max",
                self._reader, self._group, held_count, len(self._waiting), self._settings.reader_rotation_interval_s,
            )  # fmt: skip

    def due_s(self) -> float:
        """Return when segments are to be exchanged, on the loop's clock; infinite: there is no need."""
        return float("inf") if self._since_s is None else self._since_s + self._settings.reader_rotation_interval_s

    def postpone(self) -> None:
        """Wait for another interval: the record cannot be changed now."""
        if self._since_s is not None:
            self._since_s = asyncio.get_running_loop().time()

    def choose(
        self, held: Iterable[SegmentEvents], may_go: Callable[[SegmentEvents], bool]
    ) -> tuple[list[SegmentEvents], list[str]]:
        """Return the segments to give up, and those to take in their place, both in order of preference.

        Nothing is handed out of the first ones any more. Call it when it is due.
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
