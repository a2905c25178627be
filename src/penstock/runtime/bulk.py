"""`for_each`: one request for each of many names, a bounded number at a time, each with a result of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.model.errors import PenstockError

T = TypeVar("T")
Name = TypeVar("Name")

#: Requests that are begun before others have their turn: what answers come in at once begins as many at once, and each
#: may be two tenths of a millisecond of work.
STARTS_PER_TURN = 16


class _Turns:
    """Lets so many go on in each turn of the event loop, in the order in which they came."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        if not self._count:
            self._loop.call_soon(self._begin)
        if self._count < STARTS_PER_TURN:
            self._count += 1
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _begin(self) -> None:
        self._count = 0
        while self._waiting and self._count < STARTS_PER_TURN:
            waiter = self._waiting.popleft()
            if not waiter.done():  # Nor cancelled.
                waiter.set_result(None)
                self._count += 1
        if self._count:
            self._loop.call_soon(self._begin)


async def for_each(
    names: Sequence[Name], request: Callable[[Name], Awaitable[T]], concurrency_max: int
) -> list[T | PenstockError]:
    """Return what `request` returns or raises for each name, in order; `concurrency_max` requests at a time.

    No more than `STARTS_PER_TURN` begin in one turn of the event loop.

    Errors that are no `PenstockError` end the call; so does its cancellation, and then nothing of it goes on.
    """
    results: list[T | PenstockError] = [PenstockError("not asked")] * len(names)
    waiting = iter(enumerate(names))
    turns = _Turns()

    async def work() -> None:
        """Has had its turn for the first."""
        for at, name in waiting:
            try:
                results[at] = await request(name)
            except PenstockError as error:
                results[at] = error
            await turns.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency_max, len(names))):
            await turns.wait()
            group.create_task(work())
    return results
