"""Long computations in steps: others have their turn between two of them.

A computation is a generator that stops each time it has dealt with about `STEP_ITEMS` things; what it returns is its
result. It knows nothing of the event loop: whoever runs it says whether others are to have their turn where it stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

#: A computation in steps with a result.
Steps = Generator[None, None, T]
#: Things that are dealt with in one step: a millisecond of work, or two.
STEP_ITEMS = 1000


def pages(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items in lists of `STEP_ITEMS`, the last one shorter; there is no empty one."""
    rest = iter(items)
    while page := list(islice(rest, STEP_ITEMS)):
        yield page


async def in_turns(steps: Steps[T]) -> T:
    """Run a computation to its end; others have their turn wherever it stops. Return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


def at_once(steps: Steps[T]) -> T:
    """Run a computation to its end, for callers that nobody waits for. Return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
