"""`Throttle`: lets operations from outside in at the rate at which what fills up is emptied.

What is let in is counted in bytes, and nobody is delayed by a time: as long as there is room everybody goes on at once,
and when there is none everybody waits until something has been relieved. Then one connection after the other takes in
what it has in line, a quantum of bytes at a time, until the room is used up. So the rate is that of whatever is
relieved, however many appends the bytes are in, and how long one waits follows from the bytes before it.

Nothing that relieves pressure is ever held: deletions, checkpoints, the storage writer's own records (lesson L8). What
the clients need to go on reading (group state, marks: `is_urgent`) has room of its own above what others may fill.
See docs/back-pressure.md.

Not here: the delay that batches small writes (the pipeline gathers records per turn of the loop instead).

Source: segment store specification, section 1.5, rules R1.27 to R1.31; delays there, room here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.segmentstore.settings import CacheSettings, ThrottleSettings


@dataclass(frozen=True, slots=True)
class Bounds:
    """How full everything may become before operations of one kind are held.

    Attributes:
        cache_bytes: what the cache holds, whatever may be evicted included.
        outstanding_bytes: bytes accepted and not yet durable.
        backlog_bytes: bytes that wait for long-term storage.
        backlog_operations: durable operations that do; 0: there is no bound.
    """

    cache_bytes: int
    outstanding_bytes: int
    backlog_bytes: int
    backlog_operations: int = 0

    @classmethod
    def of(
        cls, settings: ThrottleSettings, cache: CacheSettings, outstanding_bytes_max: int, *, is_urgent: bool
    ) -> Bounds:
        """Return the bounds that the settings say.

        The last `urgent_percent` of each, and the cache up to where only essential data are taken in, are for urgent
        operations alone.
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
        """Return how many bytes may be let in while everything is so full; 0 or less: none. The least room counts."""
        if self.backlog_operations and backlog_operations >= self.backlog_operations:
            return 0
        return min(
            self.cache_bytes - cache_bytes,
            self.outstanding_bytes - outstanding_bytes,
            self.backlog_bytes - backlog_bytes,
        )


def hold_bytes(settings: ThrottleSettings, cache: CacheSettings) -> int:
    """Return what the cache may hold before appends are held: what storage lacks has filled it beyond its target."""
    return cache.bytes_max * (cache.target_percent + settings.cache_margin_percent) // 100


class Held(Protocol):
    """Somebody, a connection for instance, with operations that are held."""

    def let_in(self, byte_count: int) -> bool:
        """Do what is held, in order, until `byte_count` bytes are done or none is left; return whether some is."""


class Throttle:
    """Holds operations back, and lets them in. One per container; any number may wait, in the order of their coming.

    `room`: how many bytes may be let in now, given whether they are urgent.
    """

    def __init__(self, settings: ThrottleSettings, room: Callable[[bool], int]) -> None:
        self._settings = settings
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        #: In line, first come first; the urgent ones apart. Invariant: whoever is in line has something held.
        self._ordinary: dict[Held, None] = {}
        self._urgent: dict[Held, None] = {}
        self._round_is_scheduled = False

    @property
    def waiting_count(self) -> int:
        """How many are in line: connections with held appends, and single calls."""
        return len(self._ordinary) + len(self._urgent)

    def must_wait(self, *, is_urgent: bool = False) -> bool:
        """Say whether an operation that comes now has to get in line."""
        if self._is_closed:
            return False
        if is_urgent:
            return bool(self._urgent) or self._room(True) <= 0
        return bool(self._ordinary) or self._room(False) <= 0

    def hold(self, held: Held, *, is_urgent: bool = False) -> None:
        """Put somebody in line, who keeps the place if there already."""
        (self._urgent if is_urgent else self._ordinary).setdefault(held, None)
        if self._is_closed:
            self.notify()

    def withdraw(self, held: Held) -> None:
        """Take somebody out of the line, whose operations are given up. Others may have waited behind."""
        self._urgent.pop(held, None)
        self._ordinary.pop(held, None)
        self.notify()

    def notify(self) -> None:
        """Let those in line in as far as there is room: something was relieved."""
        if (self._ordinary or self._urgent) and not self._round_is_scheduled:
            self._round_is_scheduled = True
            self._loop.call_soon(self._round)

    def close(self) -> None:
        """Let everybody in, now and in future: the container stops, and refuses them (R1.31)."""
        self._is_closed = True
        self.notify()

    def _round(self) -> None:
        """Let each in line have a quantum, in turn, and let the loop turn before the next round."""
        self._round_is_scheduled = False
        left = self._settings.round_bytes_max
        # Of calls that were let in: what they bring is counted when they go on, in the next turn.
        uncounted = 0
        for line, is_urgent in self._lines():
            for held in list(line):
                room = left if self._is_closed else min(left, self._room(is_urgent) - uncounted)
                if room <= 0:
                    break
                if held not in line:
                    continue  # Another one's end took it along.
                quantum = min(room, self._settings.quantum_bytes)
                if isinstance(held, _Call):
                    uncounted += self._settings.quantum_bytes
                del line[held]
                if held.let_in(quantum):
                    line.setdefault(held, None)
                left -= quantum
        if any(line and (self._is_closed or self._room(urgent) > 0) for line, urgent in self._lines()):
            self.notify()

    def _lines(self) -> tuple[tuple[dict[Held, None], bool], ...]:
        return (self._urgent, True), (self._ordinary, False)

    async def wait(self, *, is_urgent: bool = False) -> None:
        """Return when a call may go on: at once if it need not get in line."""
        if self.must_wait(is_urgent=is_urgent):
            call = _Call(self._loop)
            self.hold(call, is_urgent=is_urgent)
            try:
                await call.future
            finally:
                self.withdraw(call)


class _Call:
    """One call in line."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[None] = loop.create_future()

    def let_in(self, byte_count: int) -> bool:
        """See `Held.let_in`. What the call brings is counted when it goes on, a quantum is taken for it until then."""
        if not self.future.done():
            self.future.set_result(None)
        return False
