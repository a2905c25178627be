"""The blocking `Reader`. Generated from `penstock.client.groups.reader`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from penstock.client.groups import reader as aio
from penstock.client.groups.reader import BATCH_BYTES_MAX, chunk_in_hand, events_in_hand, next_chunk
from penstock.client.reading.event import Event, EventBatch
from penstock.client.streams.time_windows import TimeWindow
from penstock.client.sync.handle import Handle
from penstock.model.errors import CorruptionError


class Reader(Handle[aio.Reader]):
    """Reads events of the segments that its group assigns to it. Made by `ReaderGroup.reader`.

    Iterating waits for new events, and ends when every stream is sealed and read. An event counts as read when the next
    one is read, or when the reader is closed; never because of an exception, a cancellation or a crash. Use by one task
    at a time. Any call may be cancelled: the next call continues as if the cancelled one had not been made.
    """

    @property
    def name(self) -> str:
        """The reader's name in its group."""
        return self._part.name

    @property
    def skip_truncated(self) -> bool:
        """Handling of events that were truncated before they were read: True continues with the first event that still
        exists, False (the default) raises `SegmentTruncatedError` once, then continues.
        """
        return self._part.skip_truncated

    @skip_truncated.setter
    def skip_truncated(self, value: bool) -> None:
        self._part.skip_truncated = value

    def close(self, timeout_s: float | None = None, *, is_done: bool | None = None) -> None:
        """Store positions, leave the group and stop; within `reader_close_timeout_s`, or `timeout_s`.

        `is_done`: whether the events returned last count as read. None: yes, unless an exception is being handled, as
        in ``finally:`` after one, or at the end of a block that raised.

        If it raises, the reader has stopped but not left the group. Call it again; otherwise other readers resume from
        the positions stored last once they detect that this one is dead.
        """
        if self._part.is_closed and self._portal.is_closed:
            return
        if is_done is None:
            is_done = sys.exception() is None
        self._portal.call(self._part.close(timeout_s, is_done=is_done))

    @property
    def is_finished(self) -> bool:
        """True when every stream of the group is sealed and was read to its end."""
        return self._part.is_finished

    @property
    def segments(self) -> list[str]:
        """Full names of the segments that this reader reads now."""
        return self._part.segments

    @property
    def read_ahead_bytes(self) -> int:
        """Bytes read ahead of the application now; at most `reader_read_ahead_bytes_max` but for one large event."""
        return self._part.read_ahead_bytes

    def read(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event, waiting up to `timeout_s` (None: without limit).

        Returns None if no event came in time, or if the reader is finished.

        Raises:
            SegmentTruncatedError: events were truncated before they were read; the next call continues after them.
            CorruptionError: the next bytes of a segment are not an event. The events before them were delivered. Each
                later call raises it again, or delivers events of other segments, until `skip`.
            ConnectionLostError: the store was unavailable for too long; the next call tries again.
            CommitNeededError: no event can come before a `commit`.
            StreamError: a reader of the same name was started elsewhere, or this one is closed.
            NoSuchReaderGroupError: the group was deleted.
        """
        chunk = chunk_in_hand(self._part) or self._portal.call(next_chunk(self._part, timeout_s))
        return None if chunk is None else chunk.hand_out()

    def read_batch(self, max_bytes: int = BATCH_BYTES_MAX, timeout_s: float | None = None) -> EventBatch | None:
        """Return the next events of one segment, at least one and up to `max_bytes` framed bytes. Else as `read`."""
        chunk = chunk_in_hand(self._part) or self._portal.call(next_chunk(self._part, timeout_s))
        return None if chunk is None else chunk.hand_out_many(max_bytes)

    def __iter__(self) -> Iterator[Event]:
        reader = self._part
        while True:
            chunk = self._portal.call(next_chunk(reader))
            if chunk is None:
                return
            yield from events_in_hand(reader, chunk)

    def store_positions(self) -> None:
        """Store this reader's positions now. The events returned last count as unread. Not for `Positions.AT_EXIT`."""
        self._portal.call(self._part.store_positions())

    def time_window(self, stream: str) -> TimeWindow:
        """Return the lower and upper bound of the group's time in a stream, as noted by the stream's writers.

        No reader of the group will return an event at or before the lower bound any more. Other readers count with
        their stored positions. Events returned by this reader count as read. Cheap enough to call after each batch: new
        watermarks are fetched once per `reader_time_window_refresh_s`.

        Raises `InvalidArgumentError` for a stream that the group does not read, and as `read` if the server is
        unavailable.
        """
        return self._portal.call(self._part.time_window(stream))

    def position(self) -> dict[str, int]:
        """Return the end of the events returned so far (segment -> offset), for `commit`."""
        return self._portal.call_soon(lambda: self._part.position())

    def commit(self, at: Event | EventBatch | Mapping[str, int] | None = None) -> None:
        """Mark events as done; returns once that is stored.

        `at` None: all events returned so far. An event or batch: it, and the events returned before it in its segment.
        A result of `position`: all events returned until then. Only readers with `Positions.MANUAL` take `at`.

        Raises `StreamError`, once, if a segment was assigned to another reader before its events were stored: that
        reader delivers them again. Positions in segments that are still held here are stored nevertheless. After a
        cancellation or another error, the events may count as done or not; commit again.
        """
        self._portal.call(self._part.commit(at))

    def seek(self, at: Event | Mapping[str, int]) -> None:
        """Continue from `at` again: an event, or a result of `position`. Returns once that is stored.

        Positions in other segments do not change. Raises `StreamError` for a segment that this reader no longer reads.
        """
        self._portal.call(self._part.seek(at))

    def skip(self, damage: CorruptionError) -> int:
        """Skip the bytes of a segment that are not events; return how many. Returns once that is stored.

        `damage` is the error that `read` raised. Reading resumes at the next known start of an append, or at the end of
        the segment. Whole events in between are skipped as well: a start of an append is known about once per MiB.

        Raises `StreamError` for a segment that this reader no longer reads, `InvalidArgumentError` if the reader is not
        at the damage.
        """
        return self._portal.call(self._part.skip(damage))

    def pause(self, *streams: str) -> None:
        """Return no events of these streams (none given: of any) until `resume`. The reader keeps the segments."""
        self._portal.call_soon(lambda: self._part.pause(*streams))

    def resume(self, *streams: str) -> None:
        """Return events of these streams (none given: of all) again."""
        self._portal.call_soon(lambda: self._part.resume(*streams))
