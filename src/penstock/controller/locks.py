"""`StreamLocks`: one workflow at a time per stream."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class StreamLocks:
    """A lock per name, kept only while it is held or awaited.

    Waiters queue in lanes. Lanes take turns, however many waiters each has; within a lane the order is first come,
    first served.
    """

    def __init__(self) -> None:
        self._locks: dict[str, _LaneLock] = {}

    def hold(self, name: str, *, lane: str = "") -> _Hold:
        """Hold the lock of `name` while a block runs."""
        return _Hold(self._locks, name, lane)

    def __len__(self) -> int:
        return len(self._locks)


class _Hold:
    """One holder or waiter of a lock. Not a generator, for speed: some requests take several locks each."""

    __slots__ = ("_lane", "_lock", "_locks", "_name")

    def __init__(self, locks: dict[str, _LaneLock], name: str, lane: str) -> None:
        self._locks = locks
        self._name = name
        self._lane = lane
        self._lock: _LaneLock | None = None

    async def __aenter__(self) -> None:
        """Wait for the lock."""
        lock = self._locks.get(self._name)
        if lock is None:
            lock = self._locks[self._name] = _LaneLock()
        self._lock = lock
        lock.user_count += 1
        try:
            await lock.acquire(self._lane)
        except BaseException:
            self._leave(lock)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock."""
        assert self._lock is not None
        self._lock.release()
        self._leave(self._lock)

    def _leave(self, lock: _LaneLock) -> None:
        lock.user_count -= 1
        if lock.user_count == 0:
            del self._locks[self._name]


class _LaneLock:
    """A lock that is handed over: while there are waiters, it is never free for a new caller."""

    def __init__(self) -> None:
        self.user_count: int = 0
        self._is_held = False
        self._lane = ""
        #: Waiters by lane; no lane is empty. The lane served longest ago comes first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, lane: str) -> None:
        if not self._is_held:
            self._is_held, self._lane = True, lane
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(lane, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # The lock was handed over at the moment of cancellation.
            raise

    def release(self) -> None:
        while self._waiting:
            lane = next((lane for lane in self._waiting if lane != self._lane), self._lane)
            waiting = self._waiting.pop(lane)
            turn = waiting.popleft()
            if waiting:
                self._waiting[lane] = waiting
            if not turn.done():  # Cancelled waiters are still in the queue.
                self._lane = lane
                turn.set_result(None)
                return
        self._is_held = False
