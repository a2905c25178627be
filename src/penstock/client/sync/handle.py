"""`Handle`: what a blocking caller holds of something that lives in the event loop of a `Portal`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from penstock.client.common.life_cycle import LifeCycle
from penstock.client.common.pickling import NotPicklable
from penstock.runtime.portal import Portal

Opened = TypeVar("Opened")


class Closable(Protocol):
    """What everything has that a client makes."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_closed(self) -> bool: ...

    async def close(self, timeout_s: float | None = None) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


Plain = TypeVar("Plain", bound=Closable)
Part = TypeVar("Part", bound=LifeCycle)


class PlainHandle(NotPicklable, Generic[Plain]):
    """Base of all blocking classes. It keeps the client alive that it came from, which is closed when it is dropped."""

    def __init__(self, client: object, portal: Portal, part: Plain) -> None:
        self._client = client
        self._portal = portal
        self._part = part

    @property
    def is_open(self) -> bool:
        """True from opening to the first call of `close`."""
        return self._part.is_open

    @property
    def is_closed(self) -> bool:
        """True once closing is over: nothing happens here any more."""
        return self._part.is_closed

    def close(self, timeout_s: float | None = None) -> None:
        """Refuse new work, finish what was accepted, then stop; all within `timeout_s` (None: `close_timeout_s`).

        Calling again is fine. Raises what could not be finished; it is closed nevertheless.
        """
        if not self._part.is_closed:
            self._portal.call(self._part.close(timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._part.is_closed:
            self._portal.call(self._part.__aexit__(kind, error, traceback))

    def __repr__(self) -> str:
        return repr(self._part)

    def _opened(self, make: Callable[[], Awaitable[Opened]]) -> Opened:
        """Make something in the loop, and open it there."""

        async def opening() -> Opened:
            return await make()

        return self._portal.call(opening())


class Handle(PlainHandle[Part]):
    """Base of the blocking classes whose part is a `LifeCycle`.

    One that is dropped open is closed in the loop, in the background, after a `ResourceWarning`.
    """

    def close(self, timeout_s: float | None = None) -> None:
        """Refuse new work, finish what was accepted, then stop; all within `timeout_s` (None: `close_timeout_s`).

        Calling again is fine. Raises what could not be finished; it is closed nevertheless.
        """
        if not self._part.is_closed:
            if sys.exception() is not None:
                self._portal.call_soon(self._part.note_exception)
            self._portal.call(self._part.close(timeout_s))

    def abandon(self) -> None:
        """Stop without finishing anything, as a crash would; what waits is answered with `OutcomeUnknownError`."""
        if not self._part.is_closed:
            self._portal.call(self._part.abandon())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._part.is_closed:
            if error is not None:
                # In the loop's own thread no exception is being handled.
                self._portal.call_soon(self._part.note_exception)
            super().__exit__(kind, error, traceback)

    def __del__(self) -> None:
        # Absent if opening failed.
        part: Part | None = getattr(self, "_part", None)
        if part is not None and part.is_open:
            warnings.warn(f"unclosed {part!r}", ResourceWarning, source=self, stacklevel=1)
            part.note_exception()
            self._portal.run_behind(part.close)
