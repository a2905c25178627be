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


class Lane:
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
        self.hold: Hold | None = None


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


class Hold:
    """The lanes of one connection that wait for room in one container: one entry in the throttle's queue."""

    __slots__ = ("_lanes", "_owner", "container", "is_urgent")

    def __init__(self, owner: Lanes, container: SegmentContainer, *, is_urgent: bool) -> None:
        self._owner = owner
        self._lanes: dict[Lane, None] = {}
        self.container: SegmentContainer = container
        self.is_urgent: bool = is_urgent

    def add(self, lane: Lane) -> None:
        """Hold a lane, after the others of this connection."""
        lane.hold = self
        self._lanes[lane] = None
        self.container.throttle.hold(self, is_urgent=self.is_urgent)

    def remove(self, lane: Lane) -> None:
        """Stop holding a lane: its operations are dropped."""
        lane.hold = None
        self._lanes.pop(lane, None)
        if not self._lanes:
            self.container.throttle.withdraw(self)

    @property
    def lanes(self) -> list[Lane]:
        """The held lanes."""
        return list(self._lanes)

    def let_in(self, byte_count: int) -> bool:
        """See `Held.let_in`: process one lane after the other, each as far as the bytes last."""
        while self._lanes and byte_count > 0:
            lane = next(iter(self._lanes))
            del self._lanes[lane]
            lane.hold = None
            byte_count -= self._owner.go_on(lane, None, byte_count)
            if lane.operations and not lane.is_waiting:
                # The bytes were used up part way. The lane is queued again after the others.
                lane.is_waiting = True
                lane.hold = self
                self._lanes[lane] = None
        return bool(self._lanes)


class Lanes:
    """Held operations of one connection, by writer, and by the container without room for them."""

    def __init__(self, owner: LaneOwner) -> None:
        self._owner = owner
        self._lanes: dict[bytes, Lane] = {}
        self._holds: dict[tuple[SegmentContainer, bool], Hold] = {}
        self._is_closed = False

    def __contains__(self, writer_id: bytes) -> bool:
        """Whether anything of the writer is held."""
        return writer_id in self._lanes

    def __len__(self) -> int:
        """Return the number of writers with held operations."""
        return len(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        """Iterate over a snapshot of the lanes; they may be dropped meanwhile."""
        return iter(list(self._lanes.values()))

    def put(self, writer_id: bytes, operation: HeldOperation) -> None:
        """Queue an operation after the held ones of the writer, of which there is at least one."""
        self._lanes[writer_id].operations.append(operation)
        self._owner.count(operation.byte_count)

    def _hold(self, writer_id: bytes, operation: HeldOperation) -> Lane:
        """Put an operation that cannot be performed yet at the head of its writer's lane."""
        lane = self._lanes.get(writer_id)
        if lane is None:
            lane = self._lanes[writer_id] = Lane(writer_id)
        lane.operations.appendleft(operation)
        lane.is_waiting = True
        self._owner.count(operation.byte_count)
        return lane

    def hold_for(self, writer_id: bytes, work: Callable[[], Awaitable[object]], operation: HeldOperation) -> None:
        """Hold a writer's operations until `work` is done, then continue with this one."""
        self._owner.spawn(self._held(self._hold(writer_id, operation), work))

    async def _held(self, lane: Lane, work: Callable[[], Awaitable[object]]) -> None:
        failure: PenstockError | None = None
        try:
            await work()
        except PenstockError as error:
            failure = error
        self.go_on(lane, failure, None)

    def hold_for_room(
        self, writer_id: bytes, container: SegmentContainer, is_urgent: bool, operation: HeldOperation
    ) -> None:
        """Hold a writer's operations until the container has room for them."""
        lane = self._hold(writer_id, operation)
        hold = self._holds.get((container, is_urgent))
        if hold is None:
            # Containers come and go: drop those that hold nothing.
            self._holds = {key: other for key, other in self._holds.items() if other.lanes}
            hold = self._holds[container, is_urgent] = Hold(self, container, is_urgent=is_urgent)
        hold.add(lane)

    def go_on(self, lane: Lane, failure: PenstockError | None, byte_count: int | None) -> int:
        """Perform a lane's operations until it must wait again; return their bytes.

        `byte_count`: how much a throttle has admitted; None: the work it waited for is done, or failed with `failure`.
        """
        owner = self._owner
        lane.is_waiting = False
        done = 0
        try:
            while lane.operations and not lane.is_waiting and not self._is_closed:
                if byte_count is not None and done >= byte_count:
                    return done
                operation = lane.operations.popleft()
                done += operation.byte_count
                owner.count(-operation.byte_count)
                operation.again(failure, byte_count is not None)
                failure = None
        except ProtocolError as error:
            owner.abort(str(error))
            return done
        except Exception as error:
            # This must not end a throttle that serves other connections, and nothing may be stored after the gap.
            logger.exception("an operation of writer %s that was held has failed", lane.writer_id.hex())
            owner.fail_writer(lane.writer_id)
            self.drop(lane)
            owner.abort(f"an operation that was held has failed: {error!r}")
            return done
        finally:
            owner.settle()
        if not lane.operations:
            self._lanes.pop(lane.writer_id, None)
        return done

    def drop(self, lane: Lane, *, keeps_set_ups: bool = False) -> None:
        """Drop a writer's held operations; `keeps_set_ups`: except set-ups, which must still be answered."""
        kept = [operation for operation in lane.operations if keeps_set_ups and not operation.is_append]
        before = sum(operation.byte_count for operation in lane.operations)
        self._owner.count(sum(operation.byte_count for operation in kept) - before)
        lane.operations.clear()
        lane.operations.extend(kept)
        if kept or (keeps_set_ups and lane.hold is None):
            return  # It is still waiting.
        lane.is_waiting = False
        if lane.hold is not None:
            lane.hold.remove(lane)
        self._lanes.pop(lane.writer_id, None)

    def close(self) -> None:
        """Drop all held operations: the connection is lost."""
        self._is_closed = True
        for hold in self._holds.values():
            for lane in hold.lanes:
                hold.remove(lane)
        self._holds.clear()
        self._lanes.clear()
