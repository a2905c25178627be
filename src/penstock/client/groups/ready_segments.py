"""`ReadySegments`: the segments of one reader that have something to take, in turn, without those of paused streams."""

from __future__ import annotations

from collections import deque

from penstock.client.groups.segment_events import SegmentEvents
from penstock.model.errors import InvalidArgumentError


class ReadySegments:
    """See the module. Bounded by the segments that the reader holds: each is in it once."""

    def __init__(self) -> None:
        self._queue: deque[SegmentEvents] = deque()
        self._parked: list[SegmentEvents] = []
        #: None: all streams are paused.
        self._paused: set[str] | None = set()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, source: SegmentEvents) -> None:
        """Put a segment at the end of the queue, if it is not in it."""
        if not source.is_queued:
            source.is_queued = True
            self._queue.append(source)

    def pop(self) -> SegmentEvents:
        """Return the segment whose turn it is."""
        source = self._queue.popleft()
        source.is_queued = False
        return source

    def park(self, source: SegmentEvents) -> None:
        """Keep a segment of a paused stream until `resume`."""
        self._parked.append(source)

    def is_paused(self, source: SegmentEvents) -> bool:
        """Return whether the stream of a segment is paused."""
        return self._paused is None or source.stream in self._paused

    def pause(self, *streams: str) -> None:
        """Pause these streams; none given: all."""
        if not streams:
            self._paused = None
        elif self._paused is not None:
            self._paused.update(streams)

    def resume(self, *streams: str) -> list[SegmentEvents]:
        """Resume these streams, none given: all. Return the parked segments, for `add`."""
        if not streams or self._paused is None:
            if streams:
                raise InvalidArgumentError("everything is paused: resume() without a stream first")
            self._paused = set()
        else:
            self._paused.difference_update(streams)
        parked, self._parked = self._parked, []
        return parked
