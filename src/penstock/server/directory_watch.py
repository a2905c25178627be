"""`DirectoryWatch`: detects while a server runs that its data directory is no longer locked by it.

At intervals it compares the directory and its lock file with what was locked (`DataDirectory.retake`):

1. The lock file was removed or replaced, and no process has locked the path since: the server locks it again, gives the
   new lock to its segment stores, logs that, and continues.
2. Another process has locked it since, or the directory was renamed, replaced or unmounted: `lost` returns. The server
   must exit at once, and write nothing more by path, because the paths may lead to another server's files.
3. That cannot be determined, or the lock cannot be taken, as on a failing file system: it is tried again. Until then
   no log is claimed.

The earlier owner is the one that exits, so with each removal of a lock file logs change their owner once at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.model.errors import DataDirectoryLostError, StorageError
from penstock.runtime.runtime import Runtime
from penstock.server.data_directory import DataDirectory

logger: logging.Logger = logging.getLogger(__name__)

#: How long `DirectoryWatch.stop` waits for a check in progress, in seconds. One that hangs for longer is abandoned.
STOP_WAIT_S_MAX = 5.0


class DirectoryWatch:
    """Monitors one open data directory. `on_retaken` is called with the directory after it was locked again."""

    def __init__(
        self, directory: DataDirectory, runtime: Runtime, interval_s: float, on_retaken: Callable[[DataDirectory], None]
    ) -> None:
        self._directory = directory
        self._runtime = runtime
        self._interval_s = interval_s
        self._on_retaken = on_retaken
        self._is_stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: The error of the last check, so that a repeated one is logged once.
        self._trouble = ""
        self._is_lost = asyncio.Event()
        self._loss: DataDirectoryLostError | None = None

    def start(self) -> None:
        """Start; the first check comes after one interval."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop checking; wait for a check in progress, which may take the lock, for `STOP_WAIT_S_MAX`."""
        self._is_stopping.set()
        if self._task is None:
            return
        await asyncio.wait((self._task,), timeout=STOP_WAIT_S_MAX)
        if not self._task.done():
            logger.warning(
                "a check of the data directory %s has not ended within %g s and is abandoned; its file system hangs",
                self._directory.root, STOP_WAIT_S_MAX,
            )  # fmt: skip
            self._task.cancel()
        (result,) = await asyncio.gather(self._task, return_exceptions=True)
        if isinstance(result, Exception):
            raise result

    async def lost(self) -> DataDirectoryLostError:
        """Wait until the directory is permanently lost, and return why."""
        await self._is_lost.wait()
        assert self._loss is not None
        return self._loss

    async def _run(self) -> None:
        while not self._is_stopping.is_set() and self._loss is None:
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._is_stopping.wait()
            except TimeoutError:
                await self._check()

    async def _check(self) -> None:
        try:
            former = await self._runtime.work.run(self._directory.retake)
        except DataDirectoryLostError as error:
            logger.error("%s", error)
            self._loss = error
            self._is_lost.set()
            return
        except (OSError, StorageError) as error:
            if self._trouble != str(error):
                self._trouble = str(error)
                logger.warning("the lock of the data directory cannot be checked, no log is claimed: %s", error)
            return
        self._trouble = ""
        if former is not None:
            self._on_retaken(self._directory)
            former.release()
            logger.warning(
                "the lock file of the data directory %s was removed or replaced by another program; this server has "
                "locked it again and continues. Do not touch the files of a data directory while a server runs on it",
                self._directory.root,
            )
