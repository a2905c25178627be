"""Background tasks of the client whose failure is never silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from penstock.client.common.deadline import context_without_deadline
from penstock.model.errors import PenstockError, StreamError

_log = logging.getLogger(__name__)


def start_watched(
    coroutine: Coroutine[object, object, None], name: str, on_crash: Callable[[PenstockError], None]
) -> asyncio.Task[None]:
    """Start a task. If it ends by an error that it should have handled, log the error and call `on_crash`.

    Users of the task then fail with a message instead of waiting indefinitely. The task outlives the call that starts
    it and is not bound by its deadline.
    """
    task = asyncio.get_running_loop().create_task(coroutine, name=name, context=context_without_deadline())

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        cause = task.exception()
        if cause is None:
            return
        _log.error("task %r ended unexpectedly", name, exc_info=cause)
        error = cause if isinstance(cause, PenstockError) else StreamError(f"internal error in {name!r}: {cause!r}")
        if error is not cause:
            error.__cause__ = cause
        on_crash(error)

    task.add_done_callback(ended)
    return task
