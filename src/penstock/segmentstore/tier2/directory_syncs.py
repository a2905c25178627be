"""`DirectorySyncs`: one sync of a directory for all entries created in it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class DirectorySyncs:
    """Groups the syncs of each directory. `sync_now` performs one; at most one per directory is in progress.

    A call during a sync waits for the next one: the current one may have missed its entry.

    Attributes:
        sync_count: syncs started so far.
    """

    def __init__(self, sync_now: Callable[[str], Awaitable[None]]) -> None:
        self.sync_count: int = 0
        self._sync_now = sync_now
        #: Futures of the calls that wait for the next sync of a directory.
        self._next: dict[str, asyncio.Future[None]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def sync(self, folder: str) -> None:
        """Return once a sync of `folder` that began after this call has ended. Raises its error."""
        waiting = self._next.get(folder)
        if waiting is None:
            loop = asyncio.get_running_loop()
            waiting = self._next[folder] = loop.create_future()
            if folder not in self._running:
                self._running[folder] = loop.create_task(self._run(folder))
        await asyncio.shield(waiting)

    async def _run(self, folder: str) -> None:
        waiting: asyncio.Future[None] | None = None
        try:
            while (waiting := self._next.pop(folder, None)) is not None:
                self.sync_count += 1
                try:
                    await self._sync_now(folder)
                except Exception as error:  # noqa: BLE001 - raised by each waiter
                    waiting.set_exception(error)
                    waiting.exception()  # All waiters may have been cancelled.
                else:
                    waiting.set_result(None)
        finally:
            del self._running[folder]
            if waiting is not None and not waiting.done():
                waiting.cancel()
