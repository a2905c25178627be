"""`LogWork`: the threads and tasks of one local log."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from penstock.model.errors import DataDirectoryInUseError, StorageError, StorageFullError
from penstock.runtime.runtime import Runtime
from penstock.runtime.work import PoolSettings, WorkPool
from penstock.segmentstore.tier1.log_settings import LocalLogSettings

T = TypeVar("T")


async def while_locked(what: str, call: Callable[[], Awaitable[T]], settings: LocalLogSettings) -> T:
    """Retry while another process holds a log's lock, for `lock_wait_s_max`; then raise `StorageError`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.lock_wait_s_max
    while True:
        try:
            return await call()
        except DataDirectoryInUseError as error:
            if loop.time() >= deadline:
                raise StorageError(f"could not {what}: its lock was held for {settings.lock_wait_s_max} s") from error
        await asyncio.sleep(settings.lock_retry_delay_s)


class LogWork:
    """Runs blocking work, and work that must finish even if its caller was cancelled. `description`: for messages.

    Attributes:
        writes: the thread for appends, available whatever else hangs; only one, because their order counts.
        files: threads for everything else.
    """

    def __init__(self, runtime: Runtime, container_id: int, settings: LocalLogSettings, description: str) -> None:
        self.writes: WorkPool = runtime.work.pool(f"log-{container_id}-writes", PoolSettings(thread_count_max=1))
        self.files: WorkPool = runtime.work.pool(f"log-{container_id}-files", settings.files)
        self._settings = settings
        self._description = description
        self._tasks: dict[asyncio.Task[object], None] = {}

    async def run(self, what: str, function: Callable[..., T], *args: object) -> T:
        """Run blocking work on files; operating-system errors become `StorageError`."""
        try:
            return await self.files.run(function, *args)
        except OSError as error:
            raise self.translated(what, error) from error

    async def run_write(self, what: str, function: Callable[..., T], *args: object) -> T:
        """Run blocking work in the thread for appends."""
        try:
            return await self.writes.run(function, *args)
        except OSError as error:
            raise self.translated(what, error) from error

    async def run_locked(self, what: str, function: Callable[..., T], *args: object) -> T:
        """Run blocking work that takes the log's lock, retrying while another process holds it."""
        subject = f"{what} {self._description}"
        return await while_locked(subject, lambda: self.run(what, function, *args), self._settings)

    def start(self, work: Coroutine[object, object, object]) -> asyncio.Task[object]:
        """Start a task that must end before the log's descriptors are closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def shielded(self, work: Coroutine[object, object, object]) -> None:
        """Run to completion even if the caller is cancelled: blocking work cannot be undone half way."""
        task = self.start(work)
        # After a cancellation no caller is left to retrieve the result.
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        await asyncio.shield(task)

    async def tasks_ended(self) -> None:
        """Return when no task started here is running."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def close(self) -> None:
        """Accept no more work; accepted work continues."""
        self.writes.close()
        self.files.close()

    def translated(self, what: str, error: OSError) -> StorageError:
        """Return the `StorageError` that users of the log get for an error of the operating system."""
        kind = StorageFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        return kind(f"could not {what} {self._description}: {error}")
