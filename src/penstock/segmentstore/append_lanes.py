"""What is held of one connection's appends: a lane for each writer, and the lanes that one container's throttle holds.

Appends of one writer keep their order, and nothing else does: a writer whose segment is being brought into memory, or
whose container has no room, holds up no other one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.model.errors import PenstockError
from penstock.segmentstore.container.container import SegmentContainer

#: Something that was held, to be done now, or refused with the error if what it waited for failed; and whether the
#: throttle has let it in.
Again = Callable[[PenstockError | None, bool], None]


class HeldOperation:
    """An append or a set-up that waits; `byte_count` is what it counts."""

    __slots__ = ("again", "byte_count", "is_append")

    def __init__(self, again: Again, byte_count: int, *, is_append: bool) -> None:
        self.again = again
        self.byte_count = byte_count
        self.is_append = is_append


class Lane:
    """What is held of one writer, in order. Invariant: it is waiting for something as long as it holds anything.

    Attributes:
        is_waiting: for the first operation something is being brought into memory, or it is held by a throttle.
        hold: that throttle's part of this connection.
    """

    __slots__ = ("hold", "is_waiting", "operations", "writer_id")

    def __init__(self, writer_id: bytes) -> None:
        self.writer_id = writer_id
        self.operations: deque[HeldOperation] = deque()
        self.is_waiting = False
        self.hold: Hold | None = None


class LaneOwner(Protocol):
    """Who does what lanes hold."""

    def go_on(self, lane: Lane, byte_count: int) -> int:
        """Do what `lane` holds until `byte_count` bytes are done or it waits for something else; return the bytes."""


class Hold:
    """The lanes of one connection that wait for room in one container: what stands in its throttle's line."""

    __slots__ = ("_lanes", "_owner", "container", "is_urgent")

    def __init__(self, owner: LaneOwner, container: SegmentContainer, *, is_urgent: bool) -> None:
        self._owner = owner
        self._lanes: dict[Lane, None] = {}
        self.container = container
        self.is_urgent = is_urgent

    def add(self, lane: Lane) -> None:
        """Hold a lane, behind the others of this connection."""
        lane.hold = self
        self._lanes[lane] = None
        self.container.throttle.hold(self, is_urgent=self.is_urgent)

    def remove(self, lane: Lane) -> None:
        """Hold a lane no longer: its operations are given up."""
        lane.hold = None
        self._lanes.pop(lane, None)
        if not self._lanes:
            self.container.throttle.withdraw(self)

    @property
    def lanes(self) -> list[Lane]:
        """Those that are held."""
        return list(self._lanes)

    def let_in(self, byte_count: int) -> bool:
        """See `Held.let_in`: one lane after the other, each as far as the bytes go."""
        while self._lanes and byte_count > 0:
            lane = next(iter(self._lanes))
            del self._lanes[lane]
            lane.hold = None
            byte_count -= self._owner.go_on(lane, byte_count)
            if lane.operations and not lane.is_waiting:
                # The bytes were used up in the midst of it. Its turn comes again behind the others.
                lane.is_waiting = True
                lane.hold = self
                self._lanes[lane] = None
        return bool(self._lanes)
