"""Held appends of one connection: a lane for each writer, and the lanes held by each container's throttle.

Only appends of one writer keep their order. A writer whose segment is being loaded into memory, or whose container has
no room, does not block other writers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Protocol

from penstock.model.errors import PenstockError, ProtocolError
from penstock.segmentstore.container.container import SegmentContainer

logger: logging.Logger = logging.getLogger(__name__)

#: Bytes counted for an append in addition to its data, while it is held or not durable: requests, callbacks, parts of
#: frames. Held set-ups count the same. Ten bytes appended cost a kilobyte of memory.
OPERATION_OVERHEAD_BYTES = 1024

#: Performs a held operation, or refuses it with the error if what it waited for failed; the flag says whether the
#: throttle has admitted it.
Again = Callable[[PenstockError | None, bool], None]


class HeldOperation:
    """A waiting append or set-up; `byte_count` is the number of bytes it counts as."""

    __slots__ = ("again", "byte_count", "is_append")

    def __init__(self, again: Again, byte_count: int, *, is_append: bool) -> None:
        self.again: Again = again
        self.byte_count: int = byte_count
        self.is_append: bool = is_append


class WriterQueue:
    """Held operations of one writer, in order. Invariant: it is waiting for something while it holds anything.

    Attributes:
        is_waiting: something is being loaded for the first operation, or a throttle holds it.
        hold: that throttle's part of this connection.
    """

    __slots__ = ("hold", "is_waiting", "operations", "writer_id")

    def __init__(self, writer_id: bytes) -> None:
        self.writer_id: bytes = writer_id
        self.operations: deque[HeldOperation] = deque()
        self.is_waiting: bool = False
        self.hold: ThrottleEntry | None = None


class LaneOwner(Protocol):
    """The owner of lanes: the append side of a connection."""

    def count(self, byte_count: int) -> None:
        """Count bytes that are held from now on (positive), or no longer (negative)."""

    def settle(self) -> None:
        """Report the counted bytes to the connection."""

    def fail_writer(self, writer_id: bytes) -> None:
        """Accept nothing more from a writer until it is set up again."""

    def abort(self, reason: str) -> None:
        """Close the connection at once."""

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a task that ends with the connection."""


class ClosedOwner:
    """The owner of the lanes of a lost connection, which hold nothing."""

    def count(self, byte_count: int) -> None:
        """See `LaneOwner.count`."""

    def settle(self) -> None:
        """See `LaneOwner.settle`."""

    def fail_writer(self, writer_id: bytes) -> None:
        """See `LaneOwner.fail_writer`."""

    def abort(self, reason: str) -> None:
        """See `LaneOwner.abort`."""

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Begin nothing."""
        coroutine.close()


class ThrottleEntry:
    """The lanes of one connection that wait for room in one container: one entry in the throttle's queue."""

    __slots__ = ("_lanes", "_owner", "container", "is_urgent")

    def __init__(self, owner: HeldAppends, container: SegmentContainer, *, is_urgent: bool) -> None:
        self._owner = owner
        self._lanes: dict[WriterQueue, None] = {}
        self.container: SegmentContainer = container
        self.is_urgent: bool = is_urgent

    def add(self, writer_queue: WriterQueue) -> None:
        """Hold a lane, after the others of this connection."""
        writer_queue.hold = self
        self._lanes[writer_queue] = None
        self.container.throttle.hold(self, is_urgent=self.is_urgent)

    def remove(self, writer_queue: WriterQueue) -> None:
        """Stop holding a lane: its operations are dropped."""
        writer_queue.hold = None
        self._lanes.pop(writer_queue, None)
        if not self._lanes:
            self.container.throttle.withdraw(self)

    @property
    def held_appends(self) -> list[WriterQueue]:
        """The held lanes."""
        return list(self._lanes)

    def admit(self, byte_count: int) -> bool:
        """See `Held.admit`: process one lane after the other, each as far as the bytes last."""
        while self._lanes and byte_count > 0:
            writer_queue = next(iter(self._lanes))
            del self._lanes[writer_queue]
            writer_queue.hold = None
            byte_count -= self._owner.go_on(writer_queue, None, byte_count)
            if writer_queue.operations and not writer_queue.is_waiting:
                # The bytes were used up part way. The lane is queued again after the others.
                writer_queue.is_waiting = True
                writer_queue.hold = self
                self._lanes[writer_queue] = None
        return bool(self._lanes)


class HeldAppends:
    """Held operations of one connection, by writer, and by the container without room for them."""

    def __init__(self, owner: LaneOwner) -> None:
        self._owner = owner
        self._lanes: dict[bytes, WriterQueue] = {}
        self._holds: dict[tuple[SegmentContainer, bool], ThrottleEntry] = {}
        self._is_closed = False

    def __contains__(self, writer_id: bytes) -> bool:
        """Whether anything of the writer is held."""
        return writer_id in self._lanes

    def __len__(self) -> int:
        """Return the number of writers with held operations."""
        return len(self._lanes)

    def __iter__(self) -> Iterator[WriterQueue]:
        """Iterate over a snapshot of the lanes; they may be dropped meanwhile."""
        return iter(list(self._lanes.values()))

    def put(self, writer_id: bytes, operation: HeldOperation) -> None:
        """Queue an operation after the held ones of the writer, of which there is at least one."""
        self._lanes[writer_id].operations.append(operation)
        self._owner.count(operation.byte_count)

    def _hold(self, writer_id: bytes, operation: HeldOperation) -> WriterQueue:
        """Put an operation that cannot be performed yet at the head of its writer's lane."""
        writer_queue = self._lanes.get(writer_id)
        if writer_queue is None:
            writer_queue = self._lanes[writer_id] = WriterQueue(writer_id)
        writer_queue.operations.appendleft(operation)
        writer_queue.is_waiting = True
        self._owner.count(operation.byte_count)
        return writer_queue

    def hold_for(self, writer_id: bytes, work: Callable[[], Awaitable[object]], operation: HeldOperation) -> None:
        """Hold a writer's operations until `work` is done, then continue with this one."""
        self._owner.spawn(self._held(self._hold(writer_id, operation), work))

    async def _held(self, writer_queue: WriterQueue, work: Callable[[], Awaitable[object]]) -> None:
        failure: PenstockError | None = None
        try:
            await work()
        except PenstockError as error:
            failure = error
        self.go_on(writer_queue, failure, None)

    def hold_for_room(
        self, writer_id: bytes, container: SegmentContainer, is_urgent: bool, operation: HeldOperation
    ) -> None:
        """Hold a writer's operations until the container has room for them."""
        writer_queue = self._hold(writer_id, operation)
        hold = self._holds.get((container, is_urgent))
        if hold is None:
            # Containers come and go: drop those that hold nothing.
            self._holds = {key: other for key, other in self._holds.items() if other.held_appends}
            hold = self._holds[container, is_urgent] = ThrottleEntry(self, container, is_urgent=is_urgent)
        hold.add(writer_queue)

    def go_on(self, writer_queue: WriterQueue, failure: PenstockError | None, byte_count: int | None) -> int:
        """Perform a lane's operations until it must wait again; return their bytes.

        `byte_count`: how much a throttle has admitted; None: the work it waited for is done, or failed with `failure`.
        """
        owner = self._owner
        writer_queue.is_waiting = False
        done = 0
        try:
            while writer_queue.operations and not writer_queue.is_waiting and not self._is_closed:
                if byte_count is not None and done >= byte_count:
                    return done
                operation = writer_queue.operations.popleft()
                done += operation.byte_count
                owner.count(-operation.byte_count)
                operation.again(failure, byte_count is not None)
                failure = None
        except ProtocolError as error:
            owner.abort(str(error))
            return done
        except Exception as error:
            # This must not end a throttle that serves other connections, and nothing may be stored after the gap.
            logger.exception("an operation of writer %s that was held has failed", writer_queue.writer_id.hex())
            owner.fail_writer(writer_queue.writer_id)
            self.drop(writer_queue)
            owner.abort(f"an operation that was held has failed: {error!r}")
            return done
        finally:
            owner.settle()
        if not writer_queue.operations:
            self._lanes.pop(writer_queue.writer_id, None)
        return done

    def drop(self, writer_queue: WriterQueue, *, keeps_set_ups: bool = False) -> None:
        """Drop a writer's held operations; `keeps_set_ups`: except set-ups, which must still be answered."""
        kept = [operation for operation in writer_queue.operations if keeps_set_ups and not operation.is_append]
        before = sum(operation.byte_count for operation in writer_queue.operations)
        self._owner.count(sum(operation.byte_count for operation in kept) - before)
        writer_queue.operations.clear()
        writer_queue.operations.extend(kept)
        if kept or (keeps_set_ups and writer_queue.hold is None):
            return  # It is still waiting.
        writer_queue.is_waiting = False
        if writer_queue.hold is not None:
            writer_queue.hold.remove(writer_queue)
        self._lanes.pop(writer_queue.writer_id, None)

    def close(self) -> None:
        """Drop all held operations: the connection is lost."""
        self._is_closed = True
        for hold in self._holds.values():
            for writer_queue in hold.held_appends:
                hold.remove(writer_queue)
        self._holds.clear()
        self._lanes.clear()
