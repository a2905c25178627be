"""`Delivery`: the events that one reader gives to the application, and how far the application has come with them.

One chunk of events is with the application at a time; then the next segment in turn gives one. The membership reads
from here what it stores in the group's record, and which segments may move.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from penstock.client.groups.membership import GroupMembership, ReaderCallbacks
from penstock.client.groups.positions import Positions
from penstock.client.groups.ready_segments import ReadySegments
from penstock.client.groups.segment_events import SegmentEvents, StoredPosition
from penstock.client.reading.event import EventChunk
from penstock.model.errors import (
    CommitNeededError,
    PenstockError,
    PositionBeyondEndError,
    SegmentTruncatedError,
)

_log = logging.getLogger(__name__)


class Delivery:
    """See the module. Implements `ReaderCallbacks`.

    Args:
        reader: the name of the reader, for messages.
        positions: what counts as done.
        is_clean_end: whether the reader is closed and the events returned last are done.
        membership: makes the membership of the reader, which calls this object.

    Attributes:
        membership: the membership; its `open_segments` are those that events come from.
        chunk: the chunk whose events are returned now.
        ready: the segments that have something to take.
        news: set when there may be something to take, or something to check.
        needs_attention: `next_chunk` should be called soon, even if the current chunk is not used up.
        call_count: calls of the application that wait for events now.
        taken_away: segments reassigned to other readers: the end of the events returned here, and the stored position.
    """

    def __init__(
        self,
        reader: str,
        positions: Positions,
        *,
        is_clean_end: Callable[[], bool],
        membership: Callable[[ReaderCallbacks], GroupMembership],
    ) -> None:
        self.chunk: EventChunk | None = None
        self.ready: ReadySegments = ReadySegments()
        self.news: asyncio.Event = asyncio.Event()
        self.needs_attention: bool = False
        self.call_count: int = 0
        self.taken_away: dict[str, tuple[int, StoredPosition]] = {}
        self._reader = reader
        self._mode = positions
        self._is_clean_end = is_clean_end
        # The segment of the current chunk.
        self._source: SegmentEvents | None = None
        # How far the application was at the last check, and when that value was first observed.
        self._progress: tuple[EventChunk | None, int] = (None, 0)
        self._progress_s = 0.0
        self.membership: GroupMembership = membership(self)

    @property
    def open_segments(self) -> Mapping[str, SegmentEvents]:
        """The segments that this reader reads, by full name."""
        return self.membership.open_segments

    # -- for the reader -----------------------------------------------------------------------------------------

    def positions(self) -> dict[str, int]:
        """Return the end of the events returned so far (segment -> offset)."""
        return {
            segment: self.chunk.next_offset if self.chunk is not None and source is self._source else source.offset
            for segment, source in self.open_segments.items()
        }

    def count_as_read(self) -> None:
        """Count the events returned last as read."""
        if self.chunk is not None:
            self.chunk.unfinished = self.chunk.following

    def drop(self, source: SegmentEvents | None = None) -> None:
        """Return no more events of the current chunk, if it is of this segment; None: of any."""
        if source is None or source is self._source:
            self.chunk = self._source = None

    def is_current(self, source: SegmentEvents) -> bool:
        """Return whether the current chunk is of this segment."""
        return source is self._source

    def chunk_to_continue(self) -> EventChunk | None:
        """Return the current chunk if it has more to return. Otherwise put the rest of it back, for any reader."""
        chunk, source = self.chunk, self._source
        if chunk is None or source is None:
            return None
        is_held = self.open_segments.get(source.segment) is source
        if is_held and not chunk.is_used_up and not source.is_leaving and not self.ready.is_paused(source):
            return chunk
        self.drop()
        if is_held and not chunk.is_revoked:
            source.put_back(chunk)
            self.enqueue(source)
            if source.is_leaving:
                self.membership.wake()
        return None

    def take(self, *, skip_truncated: bool) -> bool:
        """Take the next chunk of a segment that has data. True if it is worth trying again.

        `skip_truncated`: continue after events that were truncated, instead of raising `SegmentTruncatedError` once.
        """
        if not self.ready:
            return False
        source = self.ready.pop()
        self.membership.note_news()
        if self.open_segments.get(source.segment) is not source or source.is_leaving:
            return True
        if self.ready.is_paused(source):
            self.ready.park(source)
            return True
        try:
            chunk = source.take()
        except SegmentTruncatedError as error:
            source.restart(error.start_offset)
            source.committed = max(source.committed, error.start_offset)
            if not skip_truncated:
                raise
            _log.warning("reader %s: %s; resuming there", self._reader, error)
            return True
        except PositionBeyondEndError:
            # Not read again: the segment may have grown past the position by then, so that the position lies inside an
            # event.
            if source.failing_since_s is None:
                source.failing_since_s = asyncio.get_running_loop().time()
            self.enqueue(source)
            raise
        except PenstockError:
            # The next call reads again from the end of the events, and raises again while the cause persists.
            if source.failing_since_s is None:
                source.failing_since_s = asyncio.get_running_loop().time()
            source.restart(source.offset)
            raise
        if chunk is not None:
            self.chunk, self._source = chunk, source
            # Back to the end of the queue: round robin over the segments.
            self.enqueue(source)
        elif source.is_at_end:
            self.membership.wake()
        return True

    def check_not_waiting_for_commit(self) -> None:
        """Raise `CommitNeededError` if a segment gives no more events before a commit."""
        for source in self.open_segments.values():
            if (source.is_at_end or source.is_leaving) and not self.is_settled(source):
                raise CommitNeededError(
                    f"reader {self._reader} delivers no more events of {source.segment} before commit(), because it "
                    "has ended or is being reassigned: commit the processed events, then continue"
                )

    def note_progress(self) -> None:
        """The application has called just now."""
        self._progress_s = asyncio.get_running_loop().time()

    # -- see `ReaderCallbacks` ----------------------------------------------------------------------------------

    def position_of(self, source: SegmentEvents, *, is_leaving: bool) -> int | None:
        """See `ReaderCallbacks.position_of`."""
        if self._mode is Positions.MANUAL:
            return source.committed
        if self._mode is Positions.AT_EXIT and not is_leaving:
            return None
        if self.chunk is None or source is not self._source:
            return source.offset
        return self.chunk.next_offset if self._is_clean_end() else self.chunk.safe_offset

    def handed_out(self) -> dict[str, int]:
        """See `ReaderCallbacks.handed_out`."""
        found = {}
        for segment, end in self.positions().items():
            source = self.open_segments[segment]
            known = source.committed if self._mode is Positions.MANUAL else None
            if known is None and source is self._source and self.chunk is not None:
                known = self.chunk.safe_offset
            if known is not None and end > known:
                found[segment] = end
        return found

    def is_settled(self, source: SegmentEvents) -> bool:
        """See `ReaderCallbacks.is_settled`."""
        if self.chunk is not None and source is self._source:
            return False
        return self._mode is not Positions.MANUAL or source.committed >= source.offset

    def idle_s(self) -> float:
        """See `ReaderCallbacks.idle_s`."""
        if self.call_count:
            return 0.0
        now_s = asyncio.get_running_loop().time()
        progress = (self.chunk, 0 if self.chunk is None else self.chunk.following)
        if progress != self._progress:
            self._progress = progress
            self._progress_s = now_s
        return now_s - self._progress_s

    def has_chunk(self) -> bool:
        """See `ReaderCallbacks.has_chunk`."""
        return self.chunk is not None

    def enqueue(self, source: SegmentEvents) -> None:
        """See `ReaderCallbacks.enqueue`."""
        self.ready.add(source)
        self.news.set()

    def revoke(self, source: SegmentEvents) -> None:
        """See `ReaderCallbacks.revoke`."""
        is_in_hand = self.chunk is not None and source is self._source
        end = self.chunk.next_offset if self.chunk is not None and is_in_hand else source.offset
        if end > source.stored.offset:
            self.taken_away[source.segment] = end, source.stored
        if source is self._source and self.chunk is not None:
            self.chunk.is_revoked = True

    def notice(self) -> None:
        """See `ReaderCallbacks.notice`."""
        self.needs_attention = True
        self.news.set()
