"""Reads of one connection: answered at once, parked at a segment's end, or read from long-term storage.

Nearly every read of a stream's follower finds the bytes in the cache, or arrives before they exist. Neither needs a
task: a read that waits at a segment's end is an entry there, and the commit that makes more bytes durable wakes it. It
is answered at the end of that turn of the loop, in the same write as the acknowledgements. Reads that need long-term
storage or a lookup run in a task; so do refusals, since a refusal may have to wait until the state that it is based on
is durable.

Source: wire-protocol 4.1; segment-store 4.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import NamedTuple, Protocol

from penstock.model.errors import (
    NoSuchSegmentError,
    PenstockError,
    SegmentInactiveError,
    SegmentMergedError,
    SegmentSealedError,
)
from penstock.model.segments import READ_LENGTH_MAX, Buffer, SegmentData
from penstock.runtime.failure_levels import level_of
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.reads.tail_waits import ReadWaiter
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.pinned_segment import PinnedSegment
from penstock.segmentstore.request_processor import error_reply
from penstock.segmentstore.store import SegmentStore
from penstock.wire.codec import encode, encode_parts
from penstock.wire.commands import NoSuchSegment, ReadSegment, SegmentRead

logger: logging.Logger = logging.getLogger(__name__)

#: Minimum length of a read, whatever was requested.
_READ_LENGTH_MIN = 8
#: Bytes of replies that one connection produces from memory in one turn of the loop. Further reads wait for the next
#: turn: each reply is verified and assembled, and other connections are served in between.
TURN_REPLY_BYTES_MAX = 8 * 1024 * 1024
#: Maximum length of reads while slow readers hold too much. Not shorter, since some clients do not repeat short reads.
_READ_LENGTH_PRESSED = 64 * 1024


class ReadReplies(Protocol):
    """The sending side of a connection, as used by reads."""

    @property
    def is_write_blocked(self) -> bool:
        """Whether the peer does not read what was sent; `ReadProcessor.resume` is called when it does."""
        ...

    @property
    def has_too_many_slow_replies(self) -> bool:
        """Whether slow readers, of all connections, hold the maximum memory."""
        ...

    def send(self, frame: bytes) -> None:
        """Queue a reply; it is sent at the end of the loop's turn at the latest."""

    def send_parts(self, parts: list[Buffer]) -> None:
        """Queue a reply in parts, which must not change afterwards."""

    def serve_reads_later(self) -> None:
        """Call `ReadProcessor.serve` at the end of the loop's turn at the latest."""

    def review(self) -> None:
        """Decide again whether to read the socket: `ReadProcessor.is_full` may have changed."""

    def abort(self, reason: str) -> None:
        """Close the connection at once."""

    def task_ended(self, task: asyncio.Task[None]) -> None:
        """Handle the end of a task of the connection."""


class _TailRead(ReadWaiter):
    """A read that waits for bytes beyond the end of a segment.

    An object of few fields, not a task: a client parks one for each segment that it follows.
    """

    __slots__ = ("_processor", "container", "length", "name", "offset", "request_id", "segment_id")

    def __init__(
        self, processor: ReadProcessor, command: ReadSegment, length: int, container: SegmentContainer, segment: Segment
    ) -> None:
        super().__init__()
        self._processor = processor
        self.offset: int = command.offset
        self.request_id: int = command.request_id
        self.length: int = length
        self.container: SegmentContainer = container
        # Not the segment: it may be unloaded, and loaded again as another object.
        self.name: str = segment.name
        self.segment_id: int = segment.id

    @property
    def command(self) -> ReadSegment:
        """The request."""
        return ReadSegment(self.name, self.offset, self.length, "", self.request_id)

    def wake(self) -> None:
        """See `ReadWaiter.wake`."""
        self._processor.woken(self)

    def fail(self, error: PenstockError) -> None:
        """See `ReadWaiter.fail`."""
        self._processor.failed(self, error)


class _StorageRead(NamedTuple):
    """A read that may need storage; see `ReadProcessor._answer`."""

    command: ReadSegment
    length: int
    using: PinnedSegment
    has_waited: bool


class ReadProcessor:
    """Answers the reads of one connection. `reads_max`: concurrent reads that may need storage."""

    def __init__(
        self, store: SegmentStore, replies: ReadReplies, loop: asyncio.AbstractEventLoop, reads_max: int
    ) -> None:
        self._store = store
        self._replies = replies
        self._loop = loop
        self._reads_max = reads_max
        #: Reads parked at the end of their segments; and those of them that were woken and not answered yet.
        self._parked: dict[_TailRead, None] = {}
        self._woken: list[_TailRead] = []
        # Separate from the connection's other tasks: these may only end when its other requests are served.
        self._tasks: set[asyncio.Task[None]] = set()
        #: Reads beyond `reads_max`. Few: the connection is not read meanwhile.
        self._queued: deque[_StorageRead] = deque()
        #: Reads for the next turn. At most those of one receive buffer: the connection is not read meanwhile.
        self._later: deque[ReadSegment] = deque()
        self._turn_bytes = 0
        self._is_continuing = False
        self._writable: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def waiting_count(self) -> int:
        """Number of reads that wait for data, storage or the next turn."""
        return len(self._parked) + len(self._tasks) + len(self._queued) + len(self._later)

    @property
    def is_full(self) -> bool:
        """Whether so many reads wait for storage or the next turn that no more should be read from the socket."""
        return len(self._tasks) >= self._reads_max or bool(self._later)

    def read(self, command: ReadSegment) -> None:
        """Answer a read now, in the next turn, or when its bytes exist."""
        if not self._later and self._turn_bytes < TURN_REPLY_BYTES_MAX:
            self._read(command)
            return
        self._later.append(command)
        if len(self._later) == 1:
            self._replies.review()

    def _read(self, command: ReadSegment) -> None:
        length = min(READ_LENGTH_MAX, max(_READ_LENGTH_MIN, command.suggested_length))
        if self._replies.has_too_many_slow_replies:
            length = min(length, _READ_LENGTH_PRESSED)
        try:
            container, segment = self._store.find(command.segment)
            data = container.reader.read_cached(segment, command.offset, length)
        except (SegmentInactiveError, NoSuchSegmentError):
            # Loaded into memory; or refused once the deletion is durable.
            self._begin(command, length, self._store.reading(command.segment))
            return
        except PenstockError as error:
            self._send_error(command, error)
            return
        if data is not None:
            if container.ownership.is_confirmed:
                self._send(command, data)
            else:
                # A task can wait for a check of the ownership.
                self._begin(command, length, self._store.reading_found(container, segment))
        elif command.offset >= segment.durable_length:
            self._park(command, length, container, segment)
        else:
            self._begin(command, length, self._store.reading_found(container, segment))

    # At the end of a segment.

    def _park(self, command: ReadSegment, length: int, container: SegmentContainer, segment: Segment) -> None:
        if not self._store.tail_reads.take(len(self._parked), self._loop.time()):
            self._send(command, SegmentData(command.offset, (), is_at_tail=True, is_end_of_segment=False))
            return
        read = _TailRead(self, command, length, container, segment)
        self._parked[read] = None
        try:
            container.reader.park(segment, command.offset, read)
        except PenstockError as error:
            self._unpark(read)
            self._send_error(command, error)

    def woken(self, read: _TailRead) -> None:
        """Answer a parked read at the end of the turn: more bytes may become durable in this one."""
        if not self._woken:
            self._replies.serve_reads_later()
        self._woken.append(read)

    def failed(self, read: _TailRead, error: PenstockError) -> None:
        """End a parked read: its container stops."""
        if read in self._parked:
            self._unpark(read)
            self._send_error(read.command, error)

    def _unpark(self, read: _TailRead) -> None:
        del self._parked[read]
        self._store.tail_reads.give_back()

    def serve(self) -> None:
        """Answer the parked reads that were woken, as far as the turn permits and the peer reads the replies."""
        woken, self._woken = self._woken, []
        for at, read in enumerate(woken):
            if self._is_closed:
                return
            if self._replies.is_write_blocked or self._turn_bytes >= TURN_REPLY_BYTES_MAX:
                # Many may have been woken at once: the rest is read in the next turn, or when the peer has read.
                self._woken = woken[at:] + self._woken
                return
            self._serve(read)

    def _serve(self, read: _TailRead) -> None:
        command, container = read.command, read.container
        segment = container.state.metadata.by_id.get(read.segment_id)
        self._unpark(read)
        if segment is None:
            # It was unloaded again.
            self._begin(command, read.length, self._store.reading_again(read.name, read.segment_id), has_waited=True)
            return
        try:
            if segment.has_ended_before(command.offset):
                raise SegmentSealedError(segment.name)
            data = container.reader.read_cached(segment, command.offset, read.length)
        except PenstockError as error:
            if container.pipeline.is_all_durable or isinstance(error, SegmentSealedError):
                self._send_error(command, self._checked(container, error))
                return
            data = None  # Refused by the task, which can wait until the refusal's cause is durable.
        if data is not None and container.ownership.is_confirmed:
            self._send(command, data)
        else:
            self._begin(command, read.length, self._store.reading_found(container, segment), has_waited=True)

    def _checked(self, container: SegmentContainer, error: PenstockError) -> PenstockError:
        """Return a refusal, or why it may not be sent: it may be based on state that a successor has changed."""
        try:
            container.ownership.check()
        except PenstockError as unconfirmed:
            return unconfirmed
        return error

    # In tasks.

    def _begin(self, command: ReadSegment, length: int, found: PinnedSegment, *, has_waited: bool = False) -> None:
        read = _StorageRead(command, length, found, has_waited)
        if self.is_full:
            self._queued.append(read)
        else:
            self._run(read)

    def _run(self, read: _StorageRead) -> None:
        task = self._loop.create_task(self._answer(*read))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if self.is_full:
            self._replies.review()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._queued and not self._is_closed:
            self._run(self._queued.popleft())
        self._replies.task_ended(task)

    async def _answer(self, command: ReadSegment, length: int, using: PinnedSegment, has_waited: bool) -> None:
        try:
            while True:
                data = None
                async with using as (container, segment):
                    if has_waited and segment.has_ended_before(command.offset):
                        raise SegmentSealedError(segment.name)
                    if not segment.is_inactive:
                        data = await container.reader.read(segment, command.offset, length, client=self)
                if data is not None and not self._replies.is_write_blocked:
                    break
                using = self._store.reading_again(command.segment, segment.id)
                if data is not None:
                    # Many reads may end at once: for a slow peer the data is dropped and read again later.
                    del data
                    await self._until_writable()
        except PenstockError as error:
            self._send_error(command, error)
            return
        if data.is_at_tail and not data.data:
            self._park(command, length, container, segment)  # No task waits at a segment's end.
        else:
            self._send(command, data)

    async def _until_writable(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()
        await asyncio.shield(self._writable)

    def resume(self) -> None:
        """Answer reads that waited for the peer to read its replies."""
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None
        self._continue_later()

    def flushed(self) -> None:
        """Begin the next turn's share: the replies of this turn were sent."""
        self._turn_bytes = 0
        if not self._replies.is_write_blocked:
            self._continue_later()

    def _continue_later(self) -> None:
        if (self._woken or self._later) and not self._is_continuing:
            self._is_continuing = True
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        self._is_continuing = False
        if self._woken and not self._is_closed:
            self._replies.serve_reads_later()
        while self._later and not self._is_closed and not self._replies.is_write_blocked:
            if self._turn_bytes >= TURN_REPLY_BYTES_MAX:
                return  # `flushed` continues.
            self._read(self._later.popleft())
            if not self._later:
                self._replies.review()

    # Replies.

    def _send(self, command: ReadSegment, data: SegmentData) -> None:
        self._turn_bytes += sum(map(len, data.data))
        self._replies.send_parts(
            encode_parts(
                SegmentRead(
                    command.segment,
                    command.offset,
                    data.is_at_tail,
                    data.is_end_of_segment,
                    data.data,
                    command.request_id,
                )
            )
        )

    def _send_error(self, command: ReadSegment, error: PenstockError) -> None:
        if isinstance(error, (NoSuchSegmentError, SegmentMergedError)):
            self._replies.send(encode(NoSuchSegment(command.request_id, command.segment, "", command.offset)))
            return
        if not isinstance(error, SegmentSealedError):
            logger.log(
                level_of(error),
                "read of %s at %d failed: %s",
                command.segment,
                command.offset,
                error,
            )
        try:
            reply = error_reply(error, command.request_id, command.segment, "ReadSegment", command.offset)
        except PenstockError as fault:
            self._replies.abort(f"read of {command.segment} failed: {fault}")
        else:
            self._replies.send(encode(reply))

    def close(self) -> None:
        """Drop the waiting reads: the connection is lost."""
        self._is_closed = True
        self._woken = []
        self._later.clear()
        for read in list(self._parked):
            if read.waits is not None:
                read.waits.remove(read)
            self._unpark(read)
        self._queued.clear()
        for task in self._tasks:
            task.cancel()
