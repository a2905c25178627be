"""`Deadline`: the time limit of one user call, through all layers below it. See ``docs/deadlines.md``.

It applies to all code inside `within`, like a cancel scope of trio; it is not passed explicitly, so it cannot be
forgotten. It cancels nothing: the layers that wait bound themselves by it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from penstock.model.errors import StreamError


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of one call.

    Attributes:
        what: the user's call, for messages.
        started_s: when the call began, on the loop's clock.
        limit_s: how long it may take, in seconds.
        limit_name: the setting or argument that sets the limit.
    """

    what: str
    started_s: float
    limit_s: float
    limit_name: str

    @property
    def at_s(self) -> float:
        """When it ends, on the loop's clock."""
        return self.started_s + self.limit_s

    def left_s(self) -> float:
        """Return how much time is left, in seconds, never below 0."""
        return max(self.at_s - asyncio.get_running_loop().time(), 0.0)

    def elapsed_s(self) -> float:
        """Return how long the call has taken so far, in seconds."""
        return asyncio.get_running_loop().time() - self.started_s

    def bounded_s(self, timeout_s: float) -> float:
        """Return `timeout_s`, or the time left if that is less."""
        return min(timeout_s, self.left_s())


_CURRENT: contextvars.ContextVar[Deadline | None] = contextvars.ContextVar("penstock_deadline", default=None)


def current_deadline() -> Deadline | None:
    """Return the deadline of the call that this code runs for, if it has one."""
    return _CURRENT.get()


@contextmanager
def within(what: str, limit_s: float, limit_name: str) -> Iterator[Deadline]:
    """Bound everything inside by `limit_s`, or by an outer deadline if that is earlier. Yields the effective one."""
    outer = _CURRENT.get()
    mine = Deadline(what, asyncio.get_running_loop().time(), limit_s, limit_name)
    if outer is not None and outer.at_s <= mine.at_s:
        yield outer
        return
    token = _CURRENT.set(mine)
    try:
        yield mine
    finally:
        # A generator that is collected, not ended, is closed in another context, and its own no longer exists.
        with suppress(ValueError):
            _CURRENT.reset(token)


@asynccontextmanager
async def in_turn(lock: asyncio.Lock) -> AsyncIterator[None]:
    """Hold a lock; wait for it until the deadline of the enclosing call, if there is one.

    Raises `StreamError` after that: nothing was done.
    """
    deadline = _CURRENT.get()
    if deadline is None:
        await lock.acquire()
    else:
        try:
            async with asyncio.timeout_at(deadline.at_s):
                await lock.acquire()
        except TimeoutError as error:
            raise StreamError(
                f"{deadline.what}: not begun: earlier calls were still running after {deadline.limit_s:g} s "
                f"({deadline.limit_name})"
            ) from error
    try:
        yield
    finally:
        lock.release()


def context_without_deadline() -> contextvars.Context:
    """Return a copy of the current context without the deadline, for work that outlives the call."""
    context = contextvars.copy_context()
    context.run(_CURRENT.set, None)
    return context
