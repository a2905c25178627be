"""One request per name, with bounded concurrency.

`for_each` has a result for each name, `all_ended` raises the first error, `errors_of` returns the errors.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.model.errors import PenstockError

T = TypeVar("T")
Name = TypeVar("Name")

#: Requests started in one turn of the event loop. Answers that arrive together start as many requests together, and
#: each may cost 0.2 ms.
STARTS_PER_TURN = 16


class _Turns:
    """Admits `STARTS_PER_TURN` waiters in each turn of the event loop, in FIFO order."""

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
            if not waiter.done():  # It may have been cancelled.
                waiter.set_result(None)
                self._count += 1
        if self._count:
            self._loop.call_soon(self._begin)


async def for_each(
    names: Sequence[Name], request: Callable[[Name], Awaitable[T]], concurrency_max: int
) -> list[T | PenstockError]:
    """Return what `request` returns or raises for each name, in order; `concurrency_max` requests at a time.

    No more than `STARTS_PER_TURN` begin in one turn of the event loop.

    Errors other than `PenstockError` end the call. On an error or a cancellation all requests are cancelled.
    """
    results: list[T | PenstockError] = [PenstockError("not asked")] * len(names)
    waiting = iter(enumerate(names))
    turns = _Turns()

    async def work() -> None:
        """Process names until none is left. The caller has already waited for the turn of the first request."""
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


async def all_ended(names: Sequence[Name], request: Callable[[Name], Awaitable[T]], concurrency_max: int) -> list[T]:
    """Return what `request` returns for each name, in order; `concurrency_max` requests at a time.

    A failure cancels nothing: when all have ended, the error of the first name that failed is raised.
    """
    results: list[T] = []
    for outcome in await _outcomes(names, request, concurrency_max):
        if isinstance(outcome, BaseException):
            raise outcome
        results += outcome
    return results


async def errors_of(
    names: Sequence[Name], request: Callable[[Name], Awaitable[object]], concurrency_max: int
) -> list[BaseException]:
    """Await `request` for each name, `concurrency_max` at a time. A failure cancels nothing.

    Returns the errors raised, in the order of the names, when all have ended. Their results are dropped.
    """
    outcomes = await _outcomes(names, request, concurrency_max)
    return [outcome for outcome in outcomes if isinstance(outcome, BaseException)]


async def _outcomes(
    names: Sequence[Name], request: Callable[[Name], Awaitable[T]], concurrency_max: int
) -> list[tuple[T] | BaseException]:
    free = asyncio.Semaphore(concurrency_max)

    async def one(name: Name) -> tuple[T]:
        # In a tuple, because a result may be an error that is returned and not raised.
        async with free:
            return (await request(name),)

    return await asyncio.gather(*map(one, names), return_exceptions=True)
