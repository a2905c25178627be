"""Long computations in steps: other tasks can run between two steps.

A computation is a generator that yields after about `STEP_ITEMS` items; its return value is the result. It does not
depend on the event loop: the caller decides whether other tasks run at each yield.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

#: A computation in steps with a result.
Steps = Generator[None, None, T]
#: Items processed in one step: a millisecond or two of work.
STEP_ITEMS = 1000


def pages(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items in lists of `STEP_ITEMS`, the last one shorter; no list is empty."""
    rest = iter(items)
    while page := list(islice(rest, STEP_ITEMS)):
        yield page


async def in_turns(steps: Steps[T]) -> T:
    """Run a computation to completion; other tasks run at each yield. Return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def at_once(steps: Steps[T]) -> T:
    """Run a computation to completion without yielding to other tasks. Return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
