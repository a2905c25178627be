"""`Portal`: an event loop in a background thread, for code that is not async. Nothing else starts such a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TypeVar

T = TypeVar("T")

#: Guards what a portal's loop shares with the threads that call it. In a program of one thread it never waits.
Lock = threading.Lock

_CLOSE_TIMEOUT_S = 10.0


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Portal:
    """Runs coroutines for blocking callers in other threads. Safe to use from many threads.

    Does not survive `os.fork`: open a new one in the child.
    """

    def __init__(self, name: str = "penstock-client") -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._is_closed = False
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop in the background."""
        return self._loop

    def call(self, coroutine: Coroutine[object, object, T], timeout_s: float | None = None) -> T:
        """Run `coroutine` in the loop and return its result, or raise its error.

        Raises `TimeoutError` after `timeout_s`. Then, and when the waiting thread is interrupted, the coroutine
        is cancelled.
        """
        if self._is_closed:
            coroutine.close()
            raise RuntimeError("the client is closed")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a blocking call was made in the client's own event loop: use penstock.aio there")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            # KeyboardInterrupt or time-out: the coroutine must not go on unseen.
            future.cancel()
            raise

    def call_soon(self, function: Callable[[], T]) -> T:
        """Run a plain function in the loop and return its result."""

        async def run() -> T:
            return function()

        return self.call(run())

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over an async iterator, one call per item."""

        async def following() -> T:
            return await anext(source)

        while True:
            try:
                item = self.call(following())
            except StopAsyncIteration:
                return
            yield item

    def close(self) -> None:
        """Cancel what still runs, stop the loop and end the thread."""
        if self._is_closed:
            return
        try:
            self.call(self._cancel_all(), _CLOSE_TIMEOUT_S)
        except concurrent.futures.CancelledError:
            pass  # The canceller itself was among the last tasks to go.
        finally:
            self._is_closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_TIMEOUT_S)

    async def _cancel_all(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT_S / 2)
        await asyncio.get_running_loop().shutdown_asyncgens()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
