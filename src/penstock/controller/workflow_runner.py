"""`WorkflowRunner`: one workflow at a time per stream, group, table or scope; it continues without its caller."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar, assert_never

from penstock.controller.errors import WorkElsewhereError, WorkflowTimeoutError, WorkTakenOverError
from penstock.controller.metadata.pending_work import Lane, Subject, SubjectKind
from penstock.controller.retry import delay_s
from penstock.controller.work.background_work import BackgroundWork
from penstock.controller.work.work_registry import WorkRegistry
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.key_value_table import table_stream
from penstock.controller.workflows.pending import free_state
from penstock.controller.workflows.reader_group import state_stream
from penstock.model.errors import ControllerUnavailableError, MetadataConflictError, PenstockError

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class WorkflowRunner:
    """Runs workflows as background tasks, under the lock of their subject.

    A workflow that fails after it was announced continues in the background, however often it was repeated before.
    """

    def __init__(self, context: WorkflowContext, background: BackgroundWork, registry: WorkRegistry) -> None:
        self._context = context
        self._background = background
        self._registry = registry
        #: Subjects with a task that finishes the work begun on them.
        self._finishing: set[Subject] = set()

    async def settle(self, subject: Subject) -> None:
        """Finish all work that was begun on a subject. The caller holds its lock."""
        for part in _parts(subject):
            await self._registry.finish(part)
            if part.kind is SubjectKind.STREAM:
                await free_state(self._context, part)

    async def _settle_before(self, subject: Subject) -> None:
        """Settle for a call that has not begun yet: unfinished work of other callers must not make it fail.

        A write that was given up may still arrive while its work is being finished, and cause a conflict. The state is
        then read again.
        """
        settings = self._context.settings
        for attempt in range(1, settings.attempts_max):
            try:
                return await self.settle(subject)
            except WorkElsewhereError:
                raise
            except MetadataConflictError as error:
                _logger.info("unfinished work on %s is retried: %s", subject, error)
            await asyncio.sleep(delay_s(settings, attempt))
        return await self.settle(subject)

    def is_unfinished(self, subject: Subject) -> bool:
        """Say whether this controller has begun work on the subject that is not complete."""
        return any(self._context.claims.is_unfinished(part) for part in _parts(subject))

    async def alone(self, subject: Subject, work: Callable[[], Awaitable[T]]) -> T:
        """Finish the work begun on `subject`, then run `work` exclusively, in a task of its own.

        Work of another live controller is waited for. Raises `WorkflowTimeoutError` after `workflow_timeout_s`, and the
        work continues; `WorkElsewhereError` if it cannot begin in that time; `WorkTakenOverError` when another
        controller has taken over the work of this call.
        """
        settings, claims = self._context.settings, self._context.claims

        async def run() -> T:
            deadline_s = asyncio.get_running_loop().time() + settings.workflow_timeout_s
            while True:
                try:
                    async with self._context.locks.hold(lock_name(subject)):
                        await self._settle_before(subject)
                        return await work()
                except WorkElsewhereError:
                    # Work that this call has begun is completed in the background, not restarted.
                    is_begun = self.is_unfinished(subject)
                    self.finish_what_is_left(subject)
                    if is_begun or asyncio.get_running_loop().time() >= deadline_s:
                        raise
                except MetadataConflictError as error:
                    if await self._is_taken_over(subject):
                        # The conflict says nothing about the request: the new owner of the work decides its outcome.
                        raise WorkTakenOverError(f"{subject}: another controller owns the work: {error}") from error
                    self.finish_what_is_left(subject)
                    raise
                except Exception:
                    self.finish_what_is_left(subject)
                    raise
                # Take a place in line, to begin before later work of other controllers.
                await claims.enqueue(subject, Lane.CHANGE, run, self._context.new_id())
                await asyncio.sleep(settings.peer_poll_ms / 1000)

        async def run_in_line() -> T:
            try:
                result = await run()
            except Exception:
                await claims.dequeue(subject, Lane.CHANGE, run)
                raise
            await claims.dequeue(subject, Lane.CHANGE, run)
            return result

        return await self.bounded(f"workflow on {subject}", run_in_line)

    async def _is_taken_over(self, subject: Subject) -> bool:
        """Say whether work that this controller has begun on the subject now belongs to another one."""
        try:
            return any([await self._context.claims.is_taken_over(part) for part in _parts(subject)])
        except PenstockError as error:
            _logger.info("the owner of the work on %s cannot be determined: %s", subject, error)
            return False

    def finish_what_is_left(self, subject: Subject) -> None:
        """Finish in the background the work that this controller has begun on `subject`, if any is incomplete."""
        if self.is_unfinished(subject):
            self.finish_later(subject)

    def finish_later(self, subject: Subject) -> None:
        """Finish the work begun on `subject` in the background, repeated until it is done."""
        if subject not in self._finishing:
            self._finishing.add(subject)
            self._background.tasks.start(f"unfinished work on {subject}", self._finish(subject))

    async def _finish(self, subject: Subject) -> None:
        async def run() -> None:
            try:
                await self.settle(subject)
            except WorkElsewhereError as error:
                if self.is_unfinished(subject):
                    raise  # A peer is working on a part of it, or on a prerequisite: the rest must still be done here.
                _logger.info("unfinished work on %s is left to another controller: %s", subject, error)

        try:
            await self._background.until_done(f"unfinished work on {subject}", run, lock=lock_name(subject))
        finally:
            self._finishing.discard(subject)

    async def bounded(self, name: str, work: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run `work` in a task of its own and wait up to `workflow_timeout_s`; it continues if the caller leaves."""
        tasks = self._background.tasks
        if tasks.is_closed:
            raise ControllerUnavailableError("the controller is stopping")
        task = tasks.start(name, work())
        timeout_s = self._context.settings.workflow_timeout_s
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise WorkflowTimeoutError(f"{name} has not ended within {timeout_s:g} s; it continues in the background")
        if task.cancelled():
            raise ControllerUnavailableError("the controller is stopping")
        return task.result()


def lock_name(subject: Subject) -> str:
    """Return the name of the lock held during work on a subject. For a group it is that of its stream."""
    match subject.kind:
        case SubjectKind.STREAM:
            return f"{subject.scope}/{subject.name}"
        case SubjectKind.GROUP:
            return f"{subject.scope}/{state_stream(subject.name)}"
        case SubjectKind.TABLE:
            return f"{subject.scope}/{table_stream(subject.name)}"
        case SubjectKind.SCOPE:
            # Not the scope's own lock: that one is held while something is added to the scope.
            return f"/{subject.scope}"
        case _:
            assert_never(subject.kind)


def _parts(subject: Subject) -> tuple[Subject, ...]:
    """Return the parts of a subject that have announcements of their own, in the order in which to finish them."""
    if subject.kind is SubjectKind.GROUP:
        return Subject(SubjectKind.STREAM, subject.scope, state_stream(subject.name)), subject
    return (subject,)
