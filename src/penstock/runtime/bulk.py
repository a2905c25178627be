"""`for_each`: one request for each of many names, a bounded number at a time, each with a result of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.model.errors import PenstockError

T = TypeVar("T")
Name = TypeVar("Name")


async def for_each(
    names: Sequence[Name], request: Callable[[Name], Awaitable[T]], concurrency_max: int
) -> list[T | PenstockError]:
    """Return what `request` returns or raises for each name, in order; `concurrency_max` requests at a time.

    Errors that are no `PenstockError` end the call; so does its cancellation, and then nothing of it goes on.
    """
    results: list[T | PenstockError] = [PenstockError("not asked")] * len(names)
    waiting = iter(enumerate(names))

    async def work() -> None:
        for at, name in waiting:
            try:
                results[at] = await request(name)
            except PenstockError as error:
                results[at] = error

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency_max, len(names))):
            group.create_task(work())
    return results
