"""Tasks, futures and handles of a `SimulatedLoop`, with hashes that are the same in every run."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator
from typing import TypeVar

T = TypeVar("T")


class SimulatedTask(asyncio.Task[T]):
    """A task whose position in a set does not depend on its address."""

    def __init__(
        self,
        coroutine: Generator[asyncio.Future[object] | None, None, T] | Coroutine[object, object, T],
        *,
        loop: asyncio.AbstractEventLoop,
        number: int,
        name: str,
        context: contextvars.Context | None,
    ) -> None:
        # Set first: asyncio adds the task to a set before its initialiser returns.
        self._number = number
        super().__init__(coroutine, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class SimulatedFuture(asyncio.Future[T]):
    """A future whose position in a set does not depend on its address."""

    def __init__(self, *, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimulatedHandle(asyncio.Handle):
    """A handle that skips the check for debug mode: most objects made by a simulation are handles."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
    ) -> None:
        self._context = context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
