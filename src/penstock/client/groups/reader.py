"""`Reader`: one member of a reader group, as the application uses it.

Its `GroupMembership` decides which segments it reads; its `Delivery` tracks which events the application has and which
are done. Nothing here changes the group's record, so a call may be cancelled anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from penstock.client.common.life_cycle import LifeCycle
from penstock.client.common.retry import Backoff
from penstock.client.common.tasks import start_watched
from penstock.client.common.telemetry import operation, telemetry_of_process
from penstock.client.groups.delivery import Delivery
from penstock.client.groups.group_state import HeldSegment
from penstock.client.groups.group_watch import GroupWatch
from penstock.client.groups.membership import GroupMembership, OnChange
from penstock.client.groups.positions import Positions
from penstock.client.groups.reader_group_record import GroupRecord
from penstock.client.reading.event import Event, EventBatch, EventChunk
from penstock.client.streams.time_windows import StreamMarks, TimeWindow, positions_of_stream
from penstock.client.transport.cluster import Cluster
from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PenstockError,
    StreamError,
)
from penstock.model.names import segment_name, split_scoped_name

if TYPE_CHECKING:
    from typing import Self

_log = logging.getLogger(__name__)

#: Default for the size of a `Reader.read_batch` result.
BATCH_BYTES_MAX = 1024 * 1024


class Reader(LifeCycle):
    """Reads events of the segments that its group assigns to it. Made by `ReaderGroup.reader`.

    Iterating waits for new events, and ends when every stream is sealed and read. An event counts as read when the next
    one is read, or when the reader is closed; never because of an exception, a cancellation or a crash. Use by one task
    at a time. Any call may be cancelled: the next call continues as if the cancelled one had not been made.
    """

    #: The reader's name in its group.
    name: Final[str]
    #: Handling of events that were truncated before they were read: True continues with the first event that still
    #: exists, False (the default) raises `SegmentTruncatedError` once, then continues.
    skip_truncated: bool

    def __init__(
        self,
        group: GroupRecord,
        watch: GroupWatch,
        name: str,
        incarnation: str,
        cluster: Cluster,
        *,
        positions: Positions = Positions.AUTOMATIC,
        on_change: OnChange | None = None,
    ) -> None:
        super().__init__(
            f"reader {name} of group {group.scope}/{group.name}",
            close_timeout_s=cluster.settings.reader_close_timeout_s,
        )
        self.name = name
        self.skip_truncated = False
        self._cluster = cluster
        self._mode = positions
        self._delivery = Delivery(
            name,
            positions,
            is_clean_end=lambda: not self.is_open and not self._is_failed,
            membership=lambda hands: GroupMembership(group, watch, name, incarnation, cluster, hands, on_change),
        )
        self._membership = self._delivery.membership
        self._group = f"{group.scope}/{group.name}"
        self._telemetry = telemetry_of_process(cluster.segments.controller)
        if self._telemetry is not None:
            self._telemetry.watch_reader(self, self._group)
        #: The stream of the events that the application has now, and when it got them; only for telemetry.
        self._given: tuple[str, float] | None = None
        # An exception was raised after the last return: the events returned last are not done.
        self._is_failed = False
        self._marks: dict[str, StreamMarks] = {}
        # Updates that the group's record still lacks.
        self._must_leave = False
        self._last_positions: dict[str, HeldSegment] = {}
        self._last_handed_out: dict[str, int] | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    async def _open(self, owner: LifeCycle | None = None) -> None:
        """Join the group. Called by `ReaderGroup.reader`. If cancelled, the reader leaves again by itself."""
        self.open_life(owner)
        self._delivery.note_progress()
        self._must_leave = True
        try:
            await self._membership.join()
        except BaseException:
            start_watched(self.close(), f"leave as reader {self.name}", lambda error: None)
            raise

    async def close(self, timeout_s: float | None = None, *, is_done: bool | None = None) -> None:
        """Store positions, leave the group and stop; within `reader_close_timeout_s`, or `timeout_s`.

        `is_done`: whether the events returned last count as read. None: yes, unless an exception is being handled, as
        in ``finally:`` after one, or at the end of a block that raised.

        If it raises, the reader has stopped but not left the group. Call it again; otherwise other readers resume from
        the positions stored last once they detect that this one is dead.
        """
        if self.is_open:
            raised = sys.exception()
            self._note_processed("" if raised is None else type(raised).__name__)
        if self.is_open and is_done is not None:
            self._is_failed = not is_done
        elif self.is_open:
            self._is_failed = self._is_failed or sys.exception() is not None
        await super().close(timeout_s)
        if self._must_leave and not self._is_abandoned:
            await self._leave_within(self._close_timeout_s if timeout_s is None else timeout_s)

    async def __aenter__(self) -> Self:
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. After an exception, also a cancellation, the events returned last count as unread."""
        try:
            await self.close(is_done=error is None)
        except PenstockError as other:
            if error is None:
                raise
            error.add_note(f"then the {self._what} could not be closed: {other}")

    def note_exception(self) -> None:
        """See `LifeCycle.note_exception`: the events returned last count as unread."""
        self._is_failed = True
        super().note_exception()

    async def _finish(self) -> None:
        """Leave the group and store all done positions."""
        if self._membership.failure is not None:
            self._must_leave = False
            return
        # No more events are returned, so the positions are final.
        self._last_positions = self._membership.positions(is_leaving=not self._is_failed)
        self._last_handed_out = self._delivery.handed_out() if self._is_failed else None
        await self._membership.stop()
        backoff = Backoff(self._cluster.settings, self._cluster.rng)
        while True:
            try:
                await self._leave()
                return
            except PenstockError as error:
                if not error.is_retriable and not isinstance(error, OutcomeUnknownError):
                    raise
                await backoff.pause(error)

    async def _leave_within(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._leave()
        except TimeoutError:
            message = f"the {self._what} could not confirm within {timeout_s:g} s that it has left"
            raise OutcomeUnknownError(message) from None

    async def _leave(self) -> None:
        await self._membership.leave(self._last_positions, self._last_handed_out)
        self._must_leave = False
        await self._membership.tell_last()

    async def _release(self) -> None:
        """Stop reading."""
        await self._membership.stop()
        self._delivery.drop()

    def _settle(self) -> None:
        """Wake the tasks that wait for events."""
        self._delivery.news.set()

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """True when every stream of the group is sealed and was read to its end."""
        return self._membership.is_finished

    @property
    def segments(self) -> list[str]:
        """Full names of the segments that this reader reads now."""
        return list(self._membership.open_segments)

    @property
    def read_ahead_bytes(self) -> int:
        """Bytes read ahead of the application now; at most `reader_read_ahead_bytes_max` but for one large event."""
        return self._membership.read_ahead_bytes

    async def read(self, timeout_s: float | None = None) -> Event | None:
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
        chunk = chunk_in_hand(self) or await self._next_chunk(timeout_s)
        return None if chunk is None else chunk.hand_out()

    async def read_batch(self, max_bytes: int = BATCH_BYTES_MAX, timeout_s: float | None = None) -> EventBatch | None:
        """Return the next events of one segment, at least one and up to `max_bytes` framed bytes. Else as `read`."""
        chunk = chunk_in_hand(self) or await self._next_chunk(timeout_s)
        return None if chunk is None else chunk.hand_out_many(max_bytes)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self.read()
        if event is None:
            raise StopAsyncIteration
        return event

    async def _next_chunk(self, timeout_s: float | None = None) -> EventChunk | None:
        """Return a chunk of events; the events returned before it count as read. Otherwise as `read`.

        For front ends that return events themselves, with `EventChunk.hand_out`.
        """
        loop = asyncio.get_running_loop()
        delivery = self._delivery
        deadline_s = None if timeout_s is None else loop.time() + timeout_s
        begin_s = loop.time()
        delivery.call_count += 1
        try:
            # A consumer that always finds data yields to other tasks between chunks.
            await asyncio.sleep(0)
            self._check_readable()
            self._come_back()
            while True:
                self._check_readable()
                delivery.needs_attention = False
                chunk = delivery.chunk_to_continue()
                if chunk is None:
                    self._note_processed()
                if chunk is not None or delivery.take(skip_truncated=self.skip_truncated):
                    if delivery.chunk is not None:
                        if chunk is None and self._telemetry is not None:
                            self._telemetry.received(delivery.chunk, self._group, loop.time() - begin_s)
                            self._given = (delivery.chunk.stream, loop.time())
                        return delivery.chunk
                    continue
                if self.is_finished:
                    return None
                delivery.news.clear()
                if delivery.ready or delivery.needs_attention:
                    continue
                if (trouble := self._membership.take_trouble()) is not None:
                    raise trouble
                left_s = None if deadline_s is None else deadline_s - loop.time()
                if left_s is None:
                    delivery.check_not_waiting_for_commit()
                elif left_s <= 0:
                    return None
                try:
                    async with asyncio.timeout(left_s):
                        await delivery.news.wait()
                except TimeoutError:
                    return None
        finally:
            delivery.call_count -= 1
            delivery.note_progress()

    def _note_processed(self, error: str = "") -> None:
        """Report how long the application had the last events, and the exception that it ended with."""
        if self._given is not None and self._telemetry is not None:
            (stream, given_s), self._given = self._given, None
            self._telemetry.processed(stream, self._group, asyncio.get_running_loop().time() - given_s, error)

    async def store_positions(self) -> None:
        """Store this reader's positions now. The events returned last count as unread. Not for `Positions.AT_EXIT`."""
        self._check_open()
        await self._membership.store()

    async def time_window(self, stream: str) -> TimeWindow:
        """Return the lower and upper bound of the group's time in a stream, as noted by the stream's writers.

        No reader of the group will return an event at or before the lower bound any more. Other readers count with
        their stored positions. Events returned by this reader count as read. Cheap enough to call after each batch: new
        watermarks are fetched once per `reader_time_window_refresh_s`.

        Raises `InvalidArgumentError` for a stream that the group does not read, and as `read` if the server is
        unavailable.
        """
        self._check_readable()
        name = "/".join(split_scoped_name(stream))
        positions = self._membership.group_positions()
        if positions is None:
            return TimeWindow(None, None)
        if name not in self._membership.streams:
            raise InvalidArgumentError(f"reader {self.name}: its group does not read stream {name}")
        marks = self._marks.setdefault(name, StreamMarks(self._cluster, name))
        return await marks.window(positions_of_stream({**positions, **self.position()}, name))

    # -- what the application decides ---------------------------------------------------------------------------

    def position(self) -> dict[str, int]:
        """Return the end of the events returned so far (segment -> offset), for `commit`."""
        return self._delivery.positions()

    async def commit(self, at: Event | EventBatch | Mapping[str, int] | None = None) -> None:
        """Mark events as done; returns once that is stored.

        `at` None: all events returned so far. An event or batch: it, and the events returned before it in its segment.
        A result of `position`: all events returned until then. Only readers with `Positions.MANUAL` take `at`.

        Raises `StreamError`, once, if a segment was assigned to another reader before its events were stored: that
        reader delivers them again. Positions in segments that are still held here are stored nevertheless. After a
        cancellation or another error, the events may count as done or not; commit again.
        """
        self._check_readable()
        is_everything = at is None
        if at is None:
            self._delivery.count_as_read()
            at = self.position()
        elif self._mode is not Positions.MANUAL:
            raise InvalidArgumentError(
                f"reader {self.name} commits its positions automatically ({self._mode.value}): give "
                "positions='manual' to "
                "ReaderGroup.reader, or call commit() without an argument"
            )
        if isinstance(at, Event | EventBatch):
            at = {segment_name(*split_scoped_name(at.stream), at.segment_id): at.position}
        handed_out = self.position()
        for segment, offset in at.items():
            source = self._membership.open_segments.get(segment)
            if source is None:
                raise self._not_stored([segment])
            if offset > handed_out[segment]:
                raise InvalidArgumentError(f"{segment}: nothing was handed out up to {offset} that could be committed")
            source.committed = max(source.committed, offset)
        sources = [(self._membership.open_segments[segment], offset) for segment, offset in at.items()]
        with operation(self._telemetry, "commit", "settle", "", self._group):
            await self._membership.store()
        if self._mode is Positions.AT_EXIT:
            return
        missing = {source.segment for source, offset in sources if source.stored.offset < offset}
        if is_everything:
            missing.update(
                segment for segment, (end, stored) in self._delivery.taken_away.items() if stored.offset < end
            )
        for segment in missing:
            self._delivery.taken_away.pop(segment, None)
        if missing:
            raise self._not_stored(sorted(missing))

    def _not_stored(self, segments: Sequence[str]) -> StreamError:
        named = ", ".join(segments[:3]) + (f" and {len(segments) - 3} more" if len(segments) > 3 else "")
        return StreamError(
            f"reader {self.name} cannot commit in {named}: it no longer holds the segment: the segment was reassigned "
            "or has ended, or the group was reset. The group resumes at the last stored position, so later events are "
            "delivered again: continue reading"
        )

    async def seek(self, at: Event | Mapping[str, int]) -> None:
        """Continue from `at` again: an event, or a result of `position`. Returns once that is stored.

        Positions in other segments do not change. Raises `StreamError` for a segment that this reader no longer reads.
        """
        self._check_readable()
        if isinstance(at, Event):
            at = {segment_name(*split_scoped_name(at.stream), at.segment_id): at.offset}
        sources = {segment: self._membership.open_segments.get(segment) for segment in at}
        for segment, source in sources.items():
            if source is None or source.is_leaving:
                raise StreamError(f"reader {self.name} cannot seek in {segment}: this reader no longer reads it")
        for segment, source in sources.items():
            assert source is not None
            self._delivery.drop(source)
            source.restart(at[segment])
            source.committed = at[segment]
        await self._membership.store()
        for segment, source in sources.items():
            if self._membership.open_segments.get(segment) is not source:
                raise StreamError(f"reader {self.name} cannot seek in {segment}: another reader has taken it since")

    async def skip(self, damage: CorruptionError) -> int:
        """Skip the bytes of a segment that are not events; return how many. Returns once that is stored.

        `damage` is the error that `read` raised. Reading resumes at the next known start of an append, or at the end of
        the segment. Whole events in between are skipped as well: a start of an append is known about once per MiB.

        Raises `StreamError` for a segment that this reader no longer reads, `InvalidArgumentError` if the reader is not
        at the damage.
        """
        self._check_readable()
        segment, offset = damage.path, damage.offset
        source = self._membership.open_segments.get(segment)
        if source is None or source.is_leaving:
            raise StreamError(f"reader {self.name} cannot skip in {segment}: it no longer reads the segment")
        if self._delivery.is_current(source) or source.offset != offset:
            raise InvalidArgumentError(
                f"reader {self.name} is not at the damage at byte {offset} of {segment}: its next event starts at byte "
                f"{self.position()[segment]}; pass the error that read() raised last"
            )
        end = await self._cluster.segments.locate_offset(segment, offset + 1)
        if self._membership.open_segments.get(segment) is not source or source.offset != offset:
            raise StreamError(f"reader {self.name} cannot skip in {segment}: it was assigned to another reader")
        _log.warning("reader %s: gave up bytes %d to %d of %s, which are not events", self.name, offset, end, segment)
        source.restart(end)
        source.committed = max(source.committed, end)
        await self._membership.store()
        return end - offset

    def pause(self, *streams: str) -> None:
        """Return no events of these streams (none given: of any) until `resume`. The reader keeps the segments."""
        self._delivery.ready.pause(*streams)
        self._delivery.needs_attention = True

    def resume(self, *streams: str) -> None:
        """Return events of these streams (none given: of all) again."""
        for source in self._delivery.ready.resume(*streams):
            self._delivery.enqueue(source)

    # -- inside -------------------------------------------------------------------------------------------------

    def _check_readable(self) -> None:
        self._check_open()
        if self._membership.failure is not None:
            raise self._membership.failure

    def _come_back(self) -> None:
        """Count the events returned last as read."""
        self._delivery.count_as_read()
        # The membership may be waiting for it.
        self._membership.came_back()


def chunk_in_hand(reader: Reader) -> EventChunk | None:
    """Return the chunk of the last `next_chunk` if it can still be used, in any thread. Otherwise None."""
    delivery = reader._delivery
    chunk = delivery.chunk
    return None if chunk is None or chunk.is_used_up or delivery.needs_attention else chunk


def events_in_hand(reader: Reader, chunk: EventChunk) -> Iterator[Event]:
    """Return the events of the chunk in hand, in any thread, until `next_chunk` should be called."""
    delivery = reader._delivery
    while not chunk.is_used_up and not delivery.needs_attention:
        yield chunk.hand_out()


def next_chunk(reader: Reader, timeout_s: float | None = None) -> Coroutine[object, object, EventChunk | None]:
    """Return a chunk of events; the events returned before it count as read. Otherwise as `Reader.read`.

    For front ends that return events themselves, with `EventChunk.hand_out`.
    """
    return reader._next_chunk(timeout_s)
