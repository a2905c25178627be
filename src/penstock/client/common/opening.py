"""`Opening`: an object that is opened by `await` or by `async with`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from penstock.client.common.pickling import NotPicklable


class Closable(Protocol):
    """The interface of an object that an `Opening` opens."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


Opened = TypeVar("Opened", bound=Closable, covariant=True)


async def awaiting(opening: Opening[Opened]) -> Opened:
    """Return a coroutine that opens, for callers that accept no other awaitable."""
    return await opening


class Opening(NotPicklable, Generic[Opened]):
    """Await it for the opened object, or enter it with `async with`, which also closes it. Lazy until then."""

    def __init__(self, open_it: Callable[[], Coroutine[object, object, Opened]]) -> None:
        self._open = open_it
        self._opened: Opened | None = None

    def __repr__(self) -> str:
        return "<Opening: not opened yet; use `await`, or enter it with `async with`>"

    def __await__(self) -> Generator[object, None, Opened]:
        return self._open().__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._open()
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._opened is not None, "entered before it is left"
        await self._opened.__aexit__(kind, error, traceback)
