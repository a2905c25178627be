"""`WorkflowRunner`: one workflow at a time on a stream, group or table, going on when its caller has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from penstock.controller.background_work import BackgroundWork
from penstock.controller.errors import WorkflowTimeoutError
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.pending import settle
from penstock.model.errors import ControllerUnavailableError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is worked on.

    Attributes:
        name: whoever works on it holds the lock of this name.
        finish: brings what was begun on it to its end.
        is_unfinished: says whether this controller has begun something on it that has not ended.
    """

    name: str
    finish: Callable[[], Awaitable[None]]
    is_unfinished: Callable[[], bool]


class WorkflowRunner:
    """Runs workflows as background tasks, under the lock of what they change.

    A workflow that fails after it was announced goes on in the background, however often it has been repeated by then.
    """

    def __init__(self, context: WorkflowContext, background: BackgroundWork) -> None:
        self._context = context
        self._background = background
        #: Names with a task that finishes what was begun.
        self._finishing: set[str] = set()

    def stream(self, scope: str, stream: str) -> Subject:
        """Return a stream as a subject."""
        return Subject(
            f"{scope}/{stream}",
            lambda: settle(self._context, scope, stream),
            lambda: self._context.index.is_unfinished(scope, stream),
        )

    async def on_stream(self, scope: str, stream: str, work: Callable[[], Awaitable[T]]) -> T:
        """Finish what was begun on the stream, then run `work`, alone on the stream. See `alone`."""
        return await self.alone(self.stream(scope, stream), work)

    async def alone(self, subject: Subject, work: Callable[[], Awaitable[T]]) -> T:
        """Finish what was begun on `subject`, then run `work`, while nobody else works on it, in a task of its own.

        Raises `WorkflowTimeoutError` after `workflow_timeout_s`; the work goes on.
        """

        async def run() -> T:
            try:
                async with self._context.locks.hold(subject.name):
                    await subject.finish()
                    return await work()
            except Exception:
                self.finish_what_is_left(subject)
                raise

        return await self.bounded(f"workflow on {subject.name}", run)

    def finish_what_is_left(self, subject: Subject) -> None:
        """Finish in the background what this controller has begun on `subject`, if it has not ended."""
        if subject.is_unfinished():
            self.finish_later(subject)

    def finish_later(self, subject: Subject) -> None:
        """Finish what was begun on `subject`, in the background, repeated until it is done."""
        if subject.name not in self._finishing:
            self._finishing.add(subject.name)
            self._background.tasks.start(f"unfinished work on {subject.name}", self._finish(subject))

    async def _finish(self, subject: Subject) -> None:
        async def run() -> None:
            async with self._context.locks.hold(subject.name):
                await subject.finish()

        try:
            await self._background.until_done(f"unfinished work on {subject.name}", run)
        finally:
            self._finishing.discard(subject.name)

    async def bounded(self, name: str, work: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run `work` in a task of its own and wait for it up to `workflow_timeout_s`; it goes on if the caller goes."""
        tasks = self._background.tasks
        if tasks.is_closed:
            raise ControllerUnavailableError("the controller is stopping")
        task = tasks.start(name, work())
        timeout_s = self._context.settings.workflow_timeout_s
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise WorkflowTimeoutError(f"{name} has not ended within {timeout_s:g} s; it goes on in the background")
        if task.cancelled():
            raise ControllerUnavailableError("the controller is stopping")
        return task.result()
