"""Long work in slices: other tasks run in between, and the number of concurrent calls is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from penstock.runtime.waits import cancel_and_wait

T = TypeVar("T")
R = TypeVar("R")

#: Chunks that a loop processes before it yields to other tasks.
_SLICE_STEPS = 64


async def yield_to_loop(number: int) -> None:
    """Yield to other tasks after a number of steps of long work. `number`: of the step, from 0.

    A step takes up to some 60 us, and a loop over them might otherwise never suspend.
    """
    if number % _SLICE_STEPS == _SLICE_STEPS - 1:
        await asyncio.sleep(0)


async def run_bounded(function: Callable[[T], Awaitable[R]], items: Sequence[T], limit: int) -> list[R]:
    """Apply `function` to all items, `limit` at a time, and return the results in order.

    The first error, or a cancellation, stops the others and is raised after they ended.
    """
    if len(items) == 1:
        return [await function(items[0])]
    results: dict[int, R] = {}
    pending: Iterator[tuple[int, T]] = iter(enumerate(items))

    async def work() -> None:
        for index, item in pending:
            results[index] = await function(item)
            await yield_to_loop(index)  # Not every call suspends.

    workers = [asyncio.ensure_future(work()) for _ in range(min(limit, len(items)))]
    try:
        await asyncio.gather(*workers)
    except BaseException:
        await cancel_and_wait(*workers)
        raise
    return [results[index] for index in range(len(items))]
