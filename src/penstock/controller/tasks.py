"""`BackgroundTasks`: tasks that outlive the call that started them, but not the controller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TypeVar

from penstock.model.errors import PenstockError

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class BackgroundTasks:
    """Owns tasks until they end; `close` cancels the remaining ones and waits for them."""

    def __init__(self) -> None:
        # A dict and not a set: cancelled in the order of their start, so that simulations repeat exactly.
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def start(self, name: str, work: Coroutine[object, object, T]) -> asyncio.Task[T]:
        """Run `work` as a task. Awaiting the task raises its error; the error is also logged here."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        if self._is_closed:
            task.cancel()
        return task

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            level = logging.INFO if isinstance(error, PenstockError) else logging.ERROR
            _logger.log(level, "%s failed: %s", task.get_name(), error, exc_info=level == logging.ERROR and error)

    async def idle(self) -> None:
        """Wait until no task is left, including tasks started meanwhile."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def close(self) -> None:
        """Cancel every task and wait for its end."""
        self._is_closed = True
        while self._tasks:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.wait(list(self._tasks))
