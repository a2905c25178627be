"""`Reader`: one member of a reader group.

Segments come and go only inside read calls, so the application never has an event in hand of a segment that
another reader has taken over already. A task in the background stores positions, shows that the reader is alive, looks
for dead members, and raises a flag when a read call should balance.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from types import TracebackType

from penstock.client import reader_group_state as rgs
from penstock.client.cluster import Cluster
from penstock.client.event import Event, EventBatch, EventChunk
from penstock.client.reader_group_record import GroupRecord
from penstock.client.reader_group_state import GroupState
from penstock.client.segment_events import SegmentEvents
from penstock.client.tasks import start_watched
from penstock.model.errors import (
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentTruncatedError,
    StreamError,
)
from penstock.model.names import parse_segment_name, segment_name

_log = logging.getLogger(__name__)

_BATCH_BYTES_MAX = 1024 * 1024


class Reader:
    """Reads events of the segments that its group gives it. Made by `ReaderGroup.reader`.

    Iterating waits for new events, and ends when every stream is sealed and read. An event counts as read when the
    next one is asked for, or when the reader is closed. Use by one task at a time.

    Attributes:
        skip_truncated: when events were truncated away before they were read: True goes on with the first that still
            exists, False (the default) raises `SegmentTruncatedError` once, then goes on.
        needs_attention: True when `next_chunk` should be called soon, even if the chunk in hand is not used up.
    """

    def __init__(self, group: GroupRecord, name: str, incarnation: str, cluster: Cluster) -> None:
        self.name = name
        self.skip_truncated = False
        self.needs_attention = False
        self._group = group
        self._incarnation = incarnation
        self._cluster = cluster
        self._settings = cluster.settings
        self._open_segments: dict[str, SegmentEvents] = {}
        self._queue: deque[SegmentEvents] = deque()
        self._something = asyncio.Event()
        self._chunk: EventChunk | None = None
        self._finished = False
        self._is_closed = False
        #: What `close` has still to store while it leaves.
        self._leaving: dict[str, int] | None = None
        self._failure: PenstockError | None = None
        # Other member -> its incarnation and heartbeat, and when this was first seen.
        self._seen: dict[str, tuple[str, int, float]] = {}
        self._keeper: asyncio.Task[None] | None = None

    # -- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Join the group. Called by `ReaderGroup.reader`."""
        await self._join()
        self._keeper = start_watched(self._keep(), f"keep reader {self.name}", self._stop_with)

    async def close(self) -> None:
        """Store positions, leave the group and stop. Everything handed out counts as read.

        If it raises, the reader has stopped, but not left the group: call it again, or others take over from the
        positions stored last once they find it dead.
        """
        if not self._is_closed:
            self._is_closed = True
            self._leaving = self._positions(is_done=True)
        positions = self._leaving
        if positions is None:
            return
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        await self._close_segments()
        if self._failure is None:
            await self._group.update(
                lambda state: (
                    rgs.leave(state, self.name, positions)
                    if rgs.is_member(state, self.name, self._incarnation)
                    else state
                )
            )
        self._leaving = None

    async def abandon(self) -> None:
        """Stop as a crash would: nothing is stored, the group finds out by itself."""
        self._is_closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        await self._close_segments()

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """True after `close` or `abandon`."""
        return self._is_closed

    @property
    def is_finished(self) -> bool:
        """True when every stream of the group is sealed and was read to its end."""
        return self._finished

    @property
    def segments(self) -> list[str]:
        """Full names of the segments being read here."""
        return list(self._open_segments)

    async def read(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event, waiting up to `timeout_s` (None: without limit). None: no event, or no more ever.

        Raises:
            SegmentTruncatedError: events were truncated before they were read; the next call goes on after them.
            CorruptionError: the bytes of a segment are not events.
            StreamError: a reader of the same name was started elsewhere, or this one is closed.
            NoSuchReaderGroupError: the group was deleted.
        """
        chunk = self.chunk_in_hand() or await self.next_chunk(timeout_s)
        return None if chunk is None else chunk.hand_out()

    async def read_batch(self, max_bytes: int = _BATCH_BYTES_MAX, timeout_s: float | None = None) -> EventBatch | None:
        """Return the next events of one segment, up to `max_bytes` framed bytes but at least one. Else as `read`."""
        chunk = self.chunk_in_hand() or await self.next_chunk(timeout_s)
        return None if chunk is None else chunk.hand_out_many(max_bytes)

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Event:
        event = await self.read()
        if event is None:
            raise StopAsyncIteration
        return event

    def chunk_in_hand(self) -> EventChunk | None:
        """Return the chunk that `next_chunk` gave last if it can be gone on with, in any thread. Else None."""
        chunk = self._chunk
        return None if chunk is None or chunk.is_used_up or self.needs_attention else chunk

    async def next_chunk(self, timeout_s: float | None = None) -> EventChunk | None:
        """Return a chunk with events to hand out; what was handed out before counts as read. Else as `read`.

        For front ends that hand out events themselves, with `EventChunk.hand_out`.
        """
        loop = asyncio.get_running_loop()
        deadline_s = None if timeout_s is None else loop.time() + timeout_s
        self._mark_done()
        while True:
            if self._is_closed:
                raise StreamError(f"reader {self.name} is closed")
            if self._failure is not None:
                raise self._failure
            if self.needs_attention:
                self.needs_attention = False
                await self._balance()
            if self._chunk is not None and not self._chunk.is_used_up:
                return self._chunk
            self._chunk = None
            if await self._take():
                continue
            if self._finished:
                return None
            self._something.clear()
            if self._queue or self.needs_attention:
                continue
            left_s = None if deadline_s is None else deadline_s - loop.time()
            if left_s is not None and left_s <= 0:
                return None
            try:
                async with asyncio.timeout(left_s):
                    await self._something.wait()
            except TimeoutError:
                return None

    async def store_positions(self) -> None:
        """Store how far this reader is, now. Events handed out last count as unread."""
        positions = self._positions(is_done=False)
        state = await self._group.update(lambda state: self._if_member(state, rgs.beat(state, self.name, positions)))
        self._look_at(state)

    # -- inside -------------------------------------------------------------------------------------------------

    async def _take(self) -> bool:
        """Take the next chunk of a segment that has something. True if it is worth looking again."""
        if not self._queue:
            return False
        source = self._queue.popleft()
        source.is_queued = False
        if self._open_segments.get(source.segment) is not source:
            return True
        try:
            chunk = source.take()
        except SegmentTruncatedError as error:
            await source.restart(error.start_offset)
            if not self.skip_truncated:
                raise
            _log.warning("reader %s: %s; going on there", self.name, error)
            return True
        except NoSuchSegmentError:
            # Truncated away as a whole.
            await self._finish(source)
            return True
        except OutcomeUnknownError:
            # The store stayed away for too long. The caller may try again: go on where the events end.
            await source.restart(source.offset)
            raise
        except PenstockError:
            self._enqueue(source)
            raise
        if chunk is not None:
            self._chunk = chunk
            # Back to the end of the queue: segments take turns.
            self._enqueue(source)
        elif source.is_at_end:
            await self._finish(source)
        return True

    def _enqueue(self, source: SegmentEvents) -> None:
        if not source.is_queued:
            source.is_queued = True
            self._queue.append(source)
        self._something.set()

    async def _finish(self, source: SegmentEvents) -> None:
        """Take a segment that was read to its end out of the group and bring in its successors."""
        scope, stream, number = parse_segment_name(source.segment)
        try:
            following = await self._cluster.controller.successors(scope, stream, number)
        except PenstockError:
            self._enqueue(source)
            raise
        successors = {
            successor.segment.name: [segment_name(scope, stream, other) for other in successor.predecessors]
            for successor in following
        }
        end_offset = source.offset
        state = await self._group.update(
            lambda state: self._if_member(state, rgs.finish(state, self.name, source.segment, end_offset, successors))
        )
        self._open_segments.pop(source.segment, None)
        await source.close()
        self._look_at(state)
        await self._balance()

    async def _balance(self) -> None:
        """Give up what others should have, take what is free. Everything handed out counts as read."""
        positions = self._positions(is_done=True)

        def step(state: GroupState) -> GroupState:
            if not rgs.is_member(state, self.name, self._incarnation):
                return state
            state = rgs.release(
                state, self.name, {segment: positions[segment] for segment in rgs.surplus(state, self.name)
                                   if segment in positions}
            )  # fmt: skip
            return rgs.acquire(state, self.name, self._settings.reader_segment_count_max)

        state = await self._group.update(step)
        if self.name not in state.readers:
            _log.warning("reader %s was declared dead by another one and joins again", self.name)
            await self._close_segments()
            await self._join()
            return
        self._look_at(state)
        if self._failure is not None:
            raise self._failure
        await self._open_and_close(state)

    async def _join(self) -> None:
        limit = self._settings.reader_segment_count_max
        state = await self._group.update(
            lambda state: rgs.acquire(rgs.join(state, self.name, self._incarnation), self.name, limit)
        )
        await self._open_and_close(state)

    async def _open_and_close(self, state: GroupState) -> None:
        """Read exactly the segments that the state gives to this reader."""
        mine = state.readers[self.name].segments
        for segment in [segment for segment in self._open_segments if segment not in mine]:
            await self._open_segments.pop(segment).close()
            if self._chunk is not None and self._chunk.segment == segment:
                self._chunk = None
        for segment, offset in mine.items():
            if segment not in self._open_segments:
                self._open_segments[segment] = SegmentEvents(
                    self._cluster.segments, segment, offset, self._settings, self._enqueue
                )
        self._finished = state.is_finished

    async def _close_segments(self) -> None:
        sources, self._open_segments = self._open_segments, {}
        self._chunk = None
        for source in sources.values():
            await source.close()

    def _mark_done(self) -> None:
        if self._chunk is not None:
            self._chunk.unfinished = self._chunk.following

    def _positions(self, *, is_done: bool) -> dict[str, int]:
        positions = {segment: source.offset for segment, source in self._open_segments.items()}
        chunk = self._chunk
        if chunk is not None and chunk.segment in positions:
            positions[chunk.segment] = chunk.next_offset if is_done else chunk.safe_offset
        return positions

    def _if_member(self, state: GroupState, changed: GroupState) -> GroupState:
        return changed if rgs.is_member(state, self.name, self._incarnation) else state

    def _look_at(self, state: GroupState) -> None:
        """Take notice of the record: was this reader replaced, is there something to balance, is all read."""
        me = state.readers.get(self.name)
        limit = self._settings.reader_segment_count_max
        if me is not None and me.incarnation != self._incarnation:
            self._failure = StreamError(
                f"reader {self.name} of group {self._group.name} was started again elsewhere; this one has ended"
            )
        elif me is None or rgs.surplus(state, self.name) or rgs.acquire(state, self.name, limit) != state:
            self.needs_attention = True
        self._finished = state.is_finished
        if self.needs_attention or self._finished or self._failure is not None:
            self._something.set()

    def _dead_readers(self, state: GroupState) -> list[tuple[str, str]]:
        """Return the other members whose state has not changed for `reader_timeout_s`, with their incarnation."""
        now_s = asyncio.get_running_loop().time()
        dead = []
        for name, reader in state.readers.items():
            seen = self._seen.get(name)
            if seen is None or seen[:2] != (reader.incarnation, reader.heartbeat):
                self._seen[name] = (reader.incarnation, reader.heartbeat, now_s)
            elif name != self.name and now_s - seen[2] >= self._settings.reader_timeout_s:
                dead.append((name, reader.incarnation))
        for name in [name for name in self._seen if name not in state.readers]:
            del self._seen[name]
        return dead

    def _stop_with(self, error: PenstockError) -> None:
        self._failure = error
        self._something.set()

    async def _keep(self) -> None:
        """Store positions every `position_interval_s`, look at the group every `reader_group_refresh_s`."""
        loop = asyncio.get_running_loop()
        stored_s = loop.time()
        while self._failure is None:
            await asyncio.sleep(min(self._settings.reader_group_refresh_s, self._settings.position_interval_s))
            try:
                if loop.time() - stored_s >= self._settings.position_interval_s:
                    await self.store_positions()
                    stored_s = loop.time()
                state = await self._group.state()
                for name, incarnation in self._dead_readers(state):
                    _log.warning("reader %s declares reader %s dead", self.name, name)
                    state = await self._group.update(partial(_without_dead, name=name, incarnation=incarnation))
                self._look_at(state)
            except PenstockError as error:
                if not error.is_retriable and not isinstance(error, OutcomeUnknownError):
                    self._stop_with(error)
                    return
                _log.warning("reader %s could not store its positions and tries again: %s", self.name, error)


def _without_dead(state: GroupState, *, name: str, incarnation: str) -> GroupState:
    return rgs.leave(state, name) if rgs.is_member(state, name, incarnation) else state
