"""`Throttle`: admits external operations at the rate at which the fullest resource is emptied.

Admission is counted in bytes; there are no fixed delays. While there is room, operations are admitted at once; without
room, all wait until space is freed. Then the connections in the queue take turns, each with a quantum of bytes, until
the room is used up. The rate is therefore that of the resource being emptied, regardless of the number of appends, and
the waiting time depends on the bytes ahead in the queue.

Operations that relieve pressure are never held: deletions, checkpoints, the storage writer's own records (lesson L8).
Writes that clients need in order to continue reading (group state, marks: `is_urgent`) have additional room of their
own. See docs/back-pressure.md.

Not done here: the delay that batches small writes (the pipeline gathers records per turn of the loop instead).

Source: segment-store 1.5, R1.27 to R1.31, which use delays instead of room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.segmentstore.settings import CacheSettings, ThrottleSettings


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the resources above which operations of one kind are held.

    Attributes:
        cache_bytes: bytes in the cache, including evictable ones.
        outstanding_bytes: bytes accepted and not yet durable.
        backlog_bytes: bytes that wait for long-term storage.
        backlog_operations: durable operations that wait for long-term storage; 0: unlimited.
    """

    cache_bytes: int
    outstanding_bytes: int
    backlog_bytes: int
    backlog_operations: int = 0

    @classmethod
    def reserved(cls, settings: ThrottleSettings, cache: CacheSettings, outstanding_bytes_max: int) -> Bounds:
        """Return the limits of what urgent operations alone have in use: the room that only they may fill.

        The last ordinary operation admitted may exceed its bounds by more than is reserved. Measured by the use of all
        operations, the reserve would then be gone until storage responds again.
        """
        ordinary = cls.of(settings, cache, outstanding_bytes_max, is_urgent=False)
        whole = cls.of(settings, cache, outstanding_bytes_max, is_urgent=True)
        has_limit = bool(whole.backlog_operations)
        return cls(
            cache_bytes=whole.cache_bytes - ordinary.cache_bytes,
            outstanding_bytes=whole.outstanding_bytes,
            backlog_bytes=whole.backlog_bytes - ordinary.backlog_bytes,
            backlog_operations=max(whole.backlog_operations - ordinary.backlog_operations, 1) if has_limit else 0,
        )

    @classmethod
    def of(
        cls, settings: ThrottleSettings, cache: CacheSettings, outstanding_bytes_max: int, *, is_urgent: bool
    ) -> Bounds:
        """Return the bounds according to the settings.

        The last `urgent_percent` of each bound, and the cache up to the essential-only mark, are reserved for urgent
        operations.
        """
        share = 100 if is_urgent else 100 - settings.urgent_percent
        operations_max = settings.backlog_operations_max
        return cls(
            cache_bytes=cache.essential_bytes if is_urgent else hold_bytes(settings, cache),
            outstanding_bytes=outstanding_bytes_max * share // 100,
            backlog_bytes=settings.container_backlog_bytes_max(cache) * share // 100,
            backlog_operations=max(operations_max * share // 100, 1) if operations_max else 0,
        )

    def room_bytes(
        self, *, cache_bytes: int, outstanding_bytes: int, backlog_bytes: int, backlog_operations: int = 0
    ) -> int:
        """Return how many bytes may be admitted at this usage, by the tightest bound; none if 0 or less."""
        if self.backlog_operations and backlog_operations >= self.backlog_operations:
            return 0
        return min(
            self.cache_bytes - cache_bytes,
            self.outstanding_bytes - outstanding_bytes,
            self.backlog_bytes - backlog_bytes,
        )


def hold_bytes(settings: ThrottleSettings, cache: CacheSettings) -> int:
    """Return the cache use above which appends are held: unstored bytes have filled the cache beyond its target."""
    return cache.bytes_max * (cache.target_percent + settings.cache_margin_percent) // 100


class Held(Protocol):
    """A connection, or another source of operations, with held operations."""

    def admit(self, byte_count: int) -> bool:
        """Do held operations, in order, until `byte_count` bytes are done or none is left; return if any is left."""


class Throttle:
    """Holds operations back and admits them. One per container; any number may wait, in order of arrival.

    `room`: returns how many bytes may be admitted now, given whether they are urgent.
    """

    def __init__(self, settings: ThrottleSettings, room: Callable[[bool], int]) -> None:
        self._settings = settings
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        #: The queues, in order of arrival; urgent ones separate. Invariant: every entry has held operations.
        self._ordinary: dict[Held, None] = {}
        self._urgent: dict[Held, None] = {}
        self._round_is_scheduled = False

    @property
    def waiting_count(self) -> int:
        """Number of entries in the queues: connections with held appends, and single calls."""
        return len(self._ordinary) + len(self._urgent)

    def must_wait(self, *, is_urgent: bool = False) -> bool:
        """Return whether a new operation must be queued."""
        if self._is_closed:
            return False
        if is_urgent:
            return bool(self._urgent) or self._room(True) <= 0
        return bool(self._ordinary) or self._room(False) <= 0

    def hold(self, held: Held, *, is_urgent: bool = False) -> None:
        """Add an entry to the queue; an entry already in it keeps its position."""
        (self._urgent if is_urgent else self._ordinary).setdefault(held, None)
        if self._is_closed:
            self.notify()

    def withdraw(self, held: Held) -> None:
        """Remove an entry whose operations are given up; entries after it may now be admitted."""
        self._urgent.pop(held, None)
        self._ordinary.pop(held, None)
        self.notify()

    def notify(self) -> None:
        """Admit queued operations as far as there is room: space was freed."""
        if (self._ordinary or self._urgent) and not self._round_is_scheduled:
            self._round_is_scheduled = True
            self._loop.call_soon(self._round)

    def close(self) -> None:
        """Admit everything, now and in future: the container is stopping, and rejects the operations (R1.31)."""
        self._is_closed = True
        self.notify()

    def _round(self) -> None:
        """Give each entry a quantum, in turn, and let the loop turn before the next round."""
        self._round_is_scheduled = False
        left = self._settings.round_bytes_max
        # Bytes of admitted calls, which are only counted when the calls continue in the next turn.
        uncounted = 0
        for line, is_urgent in self._lines():
            for held in list(line):
                room = left if self._is_closed else min(left, self._room(is_urgent) - uncounted)
                if room <= 0:
                    break
                if held not in line:
                    continue  # It was removed together with another entry.
                quantum = min(room, self._settings.quantum_bytes)
                if isinstance(held, _Call):
                    uncounted += self._settings.quantum_bytes
                del line[held]
                if held.admit(quantum):
                    line.setdefault(held, None)
                left -= quantum
        if any(line and (self._is_closed or self._room(urgent) > 0) for line, urgent in self._lines()):
            self.notify()

    def _lines(self) -> tuple[tuple[dict[Held, None], bool], ...]:
        return (self._urgent, True), (self._ordinary, False)

    async def wait(self, *, is_urgent: bool = False) -> None:
        """Return when a call may continue: at once if it need not be queued."""
        if self.must_wait(is_urgent=is_urgent):
            call = _Call(self._loop)
            self.hold(call, is_urgent=is_urgent)
            try:
                await call.future
            finally:
                self.withdraw(call)


class _Call:
    """One call in the queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()

    def admit(self, byte_count: int) -> bool:
        """See `Held.admit`. The call's bytes are counted when it continues; until then it counts as a quantum."""
        if not self.future.done():
            self.future.set_result(None)
        return False
