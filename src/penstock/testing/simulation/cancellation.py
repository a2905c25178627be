"""`cut_short`: cancel a call at one of its awaits, as a time-out, Ctrl-C in a notebook or a task group does.

A call suspends wherever it waits for something that is not there yet. Drawing the number of the suspension reaches
every one of those places, each in the very state that the call leaves behind there.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TypeVar

T = TypeVar("T")


class CutShortError(Exception):
    """The call was cancelled before it had an answer."""


async def cut_short(call: Awaitable[T], suspension: int) -> T:
    """Make a call in a task that is cancelled once it has suspended `suspension` times (1: at its first await).

    Returns its answer if it has one before, or in spite of that. Raises `CutShortError` when it was cancelled, and
    whatever the call raises itself.
    """
    loop = asyncio.get_running_loop()
    left = suspension

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            # At a turn of its own: what is waited for may come first.
            loop.call_soon(task.cancel)

    task: asyncio.Task[T] = loop.create_task(_counted(call, count), name=f"call cut short at {suspension}")
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.cancelled():
        raise CutShortError(f"cancelled at its suspension {suspension}")
    return task.result()


async def _counted(call: Awaitable[T], on_suspension: Callable[[], None]) -> T:
    return await _steps(_awaiting(call), on_suspension)


async def _awaiting(call: Awaitable[T]) -> T:
    return await call


@types.coroutine
def _steps(call: Coroutine[object, object, T], on_suspension: Callable[[], None]) -> Generator[object, None, T]:
    """Do what ``yield from`` does, and tell each time that it yields."""
    try:
        waited_for = call.send(None)
        while True:
            on_suspension()
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001  # handed on to the call, cancellation included
                waited_for = call.throw(error)
            else:
                waited_for = call.send(None)
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    finally:
        call.close()
