"""`cut_short`: cancel a call at one of its awaits, as a timeout, Ctrl-C in a notebook or a task group does.

A call suspends at every await whose result is not ready. Drawing the number of the suspension reaches each of these
points, with the state that the call has there.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TypeVar

T = TypeVar("T")


class CutShortError(Exception):
    """The call was cancelled before it returned."""


async def cut_short(call: Awaitable[T], suspension: int) -> T:
    """Make a call in a task that is cancelled once it has suspended `suspension` times (1: at its first await).

    Returns the result if the call ends before the cancellation or despite it. Raises `CutShortError` when the call was
    cancelled, and any error of the call itself.
    """
    loop = asyncio.get_running_loop()
    left = suspension

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            # Cancel in a separate turn, so that the awaited event can still arrive first.
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
    """Behave as ``yield from`` does, and report each yield."""
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
