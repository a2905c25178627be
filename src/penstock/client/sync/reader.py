"""The blocking `Reader`. Generated from `penstock.client.reader`: do not edit.

`python -m penstock.client.generate_sync` makes it anew; see ``docs/sync-client.md``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from penstock.client import reader as aio
from penstock.client.event import Event, EventBatch
from penstock.client.reader import BATCH_BYTES_MAX
from penstock.client.sync.handle import Handle
from penstock.client.time_windows import TimeWindow
from penstock.model.errors import CorruptionError


class Reader(Handle[aio.Reader]):
    """Reads events of the segments that its group gives it. Made by `ReaderGroup.reader`.

    Iterating waits for new events, and ends when every stream is sealed and read. An event counts as read when the
    next one is asked for, or when the reader is closed; never because of an exception, a cancellation or a crash. Use
    by one task at a time. Any call may be cancelled: the next one goes on as if it had not been made.
    """

    @property
    def name(self) -> str:
        """The reader's name in its group."""
        return self._part.name

    @property
    def skip_truncated(self) -> bool:
        """When events were truncated away before they were read: True goes on with the first that still exists, False
        (the default) raises `SegmentTruncatedError` once, then goes on.
        """
        return self._part.skip_truncated

    @skip_truncated.setter
    def skip_truncated(self, value: bool) -> None:
        self._part.skip_truncated = value

    def close(self, timeout_s: float | None = None, *, is_done: bool | None = None) -> None:
        """Store positions, leave the group and stop; within `reader_close_timeout_s`, or `timeout_s`.

        `is_done`: whether what was handed out last counts as read. None: yes, unless an exception is being handled,
        as in ``finally:`` after one, or at the end of a block that raised.

        If it raises, the reader has stopped, but not left the group: call it again, or others take over from the
        positions stored last once they find it dead.
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
        """Full names of the segments being read here."""
        return self._part.segments

    @property
    def read_ahead_bytes(self) -> int:
        """Bytes held ahead of the application now; at most `reader_read_ahead_bytes_max`, but for one large event."""
        return self._part.read_ahead_bytes

    def read(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event, waiting up to `timeout_s` (None: without limit). None: no event, or no more ever.

        Raises:
            SegmentTruncatedError: events were truncated before they were read; the next call goes on after them.
            CorruptionError: the next bytes of a segment are not an event. The events before them were delivered. Each
                later call raises it again, or delivers events of other segments, until `skip`.
            ConnectionLostError: the store was away for too long; the next call tries again.
            CommitNeededError: without `commit` nothing can come.
            StreamError: a reader of the same name was started elsewhere, or this one is closed.
            NoSuchReaderGroupError: the group was deleted.
        """
        chunk = self._part._chunk_in_hand() or self._portal.call(self._part._next_chunk(timeout_s))
        return None if chunk is None else chunk.hand_out()

    def read_batch(self, max_bytes: int = BATCH_BYTES_MAX, timeout_s: float | None = None) -> EventBatch | None:
        """Return the next events of one segment, up to `max_bytes` framed bytes but at least one. Else as `read`."""
        chunk = self._part._chunk_in_hand() or self._portal.call(self._part._next_chunk(timeout_s))
        return None if chunk is None else chunk.hand_out_many(max_bytes)

    def __iter__(self) -> Iterator[Event]:
        reader = self._part
        while True:
            chunk = self._portal.call(reader._next_chunk())
            if chunk is None:
                return
            while not chunk.is_used_up and not reader._needs_attention:
                yield chunk.hand_out()

    def store_positions(self) -> None:
        """Store how far this reader is, now. Events handed out last count as unread. Not by `Positions.AT_EXIT`."""
        self._portal.call(self._part.store_positions())

    def time_window(self, stream: str) -> TimeWindow:
        """Return between which times the group is in a stream, in the time that its writers note.

        Nothing of the lower bound or before will come any more, whoever reads it: other readers count with the
        positions that they have stored. What this one was handed out counts as read. Cheap enough to be asked for after
        each batch: new watermarks are looked for once in `reader_time_window_refresh_s`.

        Raises `InvalidArgumentError` for a stream that the group does not read, and as `read` when the server is away.
        """
        return self._portal.call(self._part.time_window(stream))

    def position(self) -> dict[str, int]:
        """Return where the events end that were handed out so far (segment -> offset), for `commit`."""
        return self._portal.call_soon(lambda: self._part.position())

    def commit(self, at: Event | EventBatch | Mapping[str, int] | None = None) -> None:
        """Count events as done; returns once that is stored.

        `at` None: everything handed out. An event or batch: it, and what was handed out before it in its segment. What
        `position` returned: everything handed out until then. Only readers with `Positions.MANUAL` take `at`.

        Raises `StreamError`, once, when a segment went to another reader before its events were stored: they come again
        there. What is still held here is stored all the same. Cancelled, or after another error, the events may count
        as done or not; commit again.
        """
        self._portal.call(self._part.commit(at))

    def seek(self, at: Event | Mapping[str, int]) -> None:
        """Go on with `at` once more: an event, or what `position` returned earlier. Returns once that is stored.

        Other segments stay where they are. Raises `StreamError` for a segment that is not read here any more.
        """
        self._portal.call(self._part.seek(at))

    def skip(self, damage: CorruptionError) -> int:
        """Give up the bytes of a segment that are not events; return how many. Returns once that is stored.

        `damage` is the error that `read` raised. Reading resumes at the next known start of an append, or at the end of
        the segment. Whole events in between are given up as well: starts of appends are known about once in a MiB.

        Raises `StreamError` for a segment that this reader does not read any more, `InvalidArgumentError` when the
        reader is not at the damage.
        """
        return self._portal.call(self._part.skip(damage))

    def pause(self, *streams: str) -> None:
        """Hand out nothing of these streams (none given: of any) until `resume`. The segments stay with this reader."""
        self._portal.call_soon(lambda: self._part.pause(*streams))

    def resume(self, *streams: str) -> None:
        """Hand out events of these streams (none given: of all) again."""
        self._portal.call_soon(lambda: self._part.resume(*streams))
