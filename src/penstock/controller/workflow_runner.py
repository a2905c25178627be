"""`WorkflowRunner`: one workflow at a time on a stream, group or table, going on when its caller has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from penstock.controller.errors import WorkflowTimeoutError
from penstock.controller.tasks import BackgroundTasks
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.pending import settle
from penstock.model.errors import ControllerUnavailableError

T = TypeVar("T")


class WorkflowRunner:
    """Runs workflows as background tasks, under the lock of what they change."""

    def __init__(self, context: WorkflowContext, tasks: BackgroundTasks) -> None:
        self._context = context
        self._tasks = tasks

    async def on_stream(self, scope: str, stream: str, work: Callable[[], Awaitable[T]]) -> T:
        """Finish what was begun on the stream, then run `work`, alone on the stream. See `alone`."""

        async def run() -> T:
            await settle(self._context, scope, stream)
            return await work()

        return await self.alone(f"{scope}/{stream}", run)

    async def alone(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` while nobody else works on `name`, in a task of its own.

        Raises `WorkflowTimeoutError` after `workflow_timeout_s`; the work goes on.
        """

        async def run() -> T:
            async with self._context.locks.hold(name):
                return await work()

        if self._tasks.is_closed:
            raise ControllerUnavailableError("the controller is stopping")
        return await self.bounded(f"workflow on {name}", run())

    async def bounded(self, name: str, work: Coroutine[object, object, T]) -> T:
        """Run `work` in a task of its own and wait for it up to `workflow_timeout_s`."""
        task = self._tasks.start(name, work)
        timeout_s = self._context.settings.workflow_timeout_s
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise WorkflowTimeoutError(f"{name} has not ended within {timeout_s:g} s; it goes on in the background")
        if task.cancelled():
            raise ControllerUnavailableError("the controller is stopping")
        return task.result()
