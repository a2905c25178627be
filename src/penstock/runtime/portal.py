"""`Portal`: an event loop in a background thread, for code that is not async. No other module starts such a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TypeVar

from penstock.model.errors import ClosedError, ForkedError
from penstock.runtime.program import watch_program

T = TypeVar("T")

#: Guards state shared between a portal's loop and calling threads. Uncontended in a single-threaded program.
Lock = threading.Lock

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 10.0


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Portal:
    """Runs coroutines for blocking callers in other threads. Thread-safe.

    Does not survive `os.fork`, and does not hang after it: in the child every call raises `ForkedError`. Open a new
    portal there.
    """

    def __init__(self, name: str = "penstock-client") -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._is_closed = False
        self._is_forked = False
        # Guards the decision to close: coroutines submitted before it are cancelled, later ones are refused.
        self._gate = Lock()
        watch_program(self)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of the background thread."""
        return self._loop

    @property
    def is_closed(self) -> bool:
        """True since the first call of `close`."""
        return self._is_closed

    def call(self, coroutine: Coroutine[object, object, T], timeout_s: float | None = None) -> T:
        """Run `coroutine` in the loop and return its result, or raise its error.

        Raises `TimeoutError` after `timeout_s`. Then, and when the waiting thread is interrupted, the coroutine
        is cancelled. Raises `ClosedError` if the portal is closed before the coroutine has finished.
        """
        try:
            with self._gate:
                self._check()
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            if self._is_closed:
                raise ClosedError("the client was closed during this call") from None
            raise
        except BaseException:
            # KeyboardInterrupt or time-out: cancel the coroutine.
            future.cancel()
            raise

    def _check(self) -> None:
        if self._is_forked:
            raise ForkedError(
                "the client was opened before this process was forked, and its thread runs in the parent: start "
                "processes by 'spawn', or connect only in the child"
            )
        if self._is_closed:
            raise ClosedError("the client is closed")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call was made in the client's own event loop: use penstock.aio there")

    def call_soon(self, function: Callable[[], T]) -> T:
        """Run a plain function in the loop and return its result."""

        async def run() -> T:
            return function()

        return self.call(run())

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over an async iterator, one call per item. After an error it can be resumed if `source` can."""
        return _Items(self, source)

    def run_behind(self, make: Callable[[], Coroutine[object, object, object]]) -> None:
        """Run a coroutine in the loop in the background; no effect if the portal is closed. Thread-safe.

        The coroutine has to handle its own errors.
        """
        if not self._is_closed and not self._is_forked:
            try:
                self._loop.call_soon_threadsafe(_start_behind, make)
            except RuntimeError:
                pass  # The loop was closed concurrently.

    def close_behind(self, make: Callable[[], Coroutine[object, object, object]]) -> None:
        """Run a coroutine as `run_behind` does, then close the portal, without waiting. For objects dropped unclosed.

        At exit the program waits for it, for `_CLOSE_TIMEOUT_S` at most.
        """
        _closing_behind.add(self)

        async def run_and_stop() -> None:
            try:
                await make()
            finally:
                await self._cancel_all()
                with self._gate:
                    self._is_closed = True
                _closing_behind.discard(self)
                asyncio.get_running_loop().stop()

        if self._is_closed or self._is_forked:
            _closing_behind.discard(self)
        self.run_behind(run_and_stop)

    def close(self) -> None:
        """Cancel running tasks, stop the loop and end the thread. Idempotent and thread-safe."""
        if self._is_forked:
            return
        with self._gate:
            is_first, self._is_closed = not self._is_closed, True
            future = asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop) if is_first else None
        if future is not None:
            try:
                future.result(_CLOSE_TIMEOUT_S)
            except concurrent.futures.CancelledError:
                pass  # The cancelling task was itself among the last to be cancelled.
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _on_forked(self) -> None:
        """See `ProgramPart`. The thread does not exist in the child, and joining it would never end."""
        self._is_forked = True

    def _on_exit(self) -> None:
        """See `ProgramPart`. Waits only for `close_behind`; the owner of the portal waits for the rest."""
        if self not in _closing_behind or self._is_forked:
            return
        self._thread.join(_CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            _log.error("the program ended before a dropped client was closed, within %g s", _CLOSE_TIMEOUT_S)

    async def _cancel_all(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT_S / 2)
        await asyncio.get_running_loop().shutdown_asyncgens()


#: Portals that are closing in the background. Their owners may be collected; this set keeps them alive.
_closing_behind: set[Portal] = set()
#: Background tasks. A loop holds its tasks weakly; this set keeps them alive.
_behind: set[asyncio.Task[None]] = set()


def _start_behind(make: Callable[[], Coroutine[object, object, object]]) -> None:
    async def run() -> None:
        try:
            await make()
        except Exception:  # noqa: BLE001  # there is no caller to raise to
            _log.exception("an object dropped without close() could not be closed")

    task = asyncio.get_running_loop().create_task(run(), name="finish after cancellation")
    _behind.add(task)
    task.add_done_callback(_behind.discard)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    # A function, not a method: the thread must not keep the portal alive.
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


class _Items(Iterator[T]):
    """Iterates over an async iterator. Not a generator, because that would be exhausted after the first error."""

    def __init__(self, portal: Portal, source: AsyncIterator[T]) -> None:
        self._portal = portal
        self._source = source

    def __next__(self) -> T:
        try:
            return self._portal.call(self._following())
        except StopAsyncIteration:
            raise StopIteration from None

    async def _following(self) -> T:
        return await anext(self._source)
