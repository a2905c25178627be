"""`MarkStreams`: the streams ``_MARK<stream>`` that Java's readers open beside every stream that they read.

Watermarks would be in them. A reader only needs the stream to be there, so it is made when somebody first asks for its
segments: streams that no Java reader reads cost nothing. It goes with its stream.

Source: controller API specification, sections 6 and 9.6.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.controller.metadata.pending_work import Subject, SubjectKind
from penstock.controller.metadata.records import StreamState
from penstock.controller.workflow_runner import WorkflowRunner, lock_name
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.create_stream import create_stream
from penstock.controller.workflows.delete_stream import delete_stream
from penstock.controller.workflows.seal_stream import seal_stream
from penstock.model.errors import NoSuchScopeError, NoSuchStreamError, StreamExistsError
from penstock.model.policies import Scaling, StreamConfig

_logger = logging.getLogger(__name__)

_PREFIX = "_MARK"


def marked_stream(name: str) -> str | None:
    """Return the stream that a mark stream of this name belongs to; None for any other name.

    Internal streams, whose names begin with an underscore, have none.
    """
    stream = name.removeprefix(_PREFIX)
    return stream if stream != name and stream and not stream.startswith("_") else None


class MarkStreams:
    """Makes and removes mark streams."""

    def __init__(self, context: WorkflowContext, runner: WorkflowRunner) -> None:
        self._context = context
        self._runner = runner

    async def create(self, scope: str, stream: str) -> None:
        """Make the mark stream of `stream` unless it is there. Raises `NoSuchStreamError` if there is no `stream`."""
        context = self._context

        async def run() -> None:
            state = await context.catalog.on_stream(scope, stream, lambda tables: tables.state())
            if state.record.state is StreamState.CREATING:
                raise NoSuchStreamError(f"stream {scope}/{stream} is not completely created")
            mark = _PREFIX + stream
            async with self._mark(scope, mark):
                try:
                    await context.catalog.open_scope_id(scope)
                    await create_stream(context, scope, mark, StreamConfig(Scaling.fixed(1)))
                except NoSuchScopeError as error:
                    raise NoSuchStreamError(f"stream {scope}/{mark} cannot be made: {error}") from error
                except StreamExistsError:
                    _logger.debug("stream %s/%s was made meanwhile", scope, mark)

        await self._runner.alone(Subject(SubjectKind.STREAM, scope, stream), run)

    async def delete(self, scope: str, stream: str) -> None:
        """Delete the mark stream of `stream` if `stream` is sealed; fine if there is none.

        The caller holds the lock of `stream` and is about to delete it: a mark stream is never left behind.
        """
        context = self._context
        try:
            state = await context.catalog.on_stream(scope, stream, lambda tables: tables.state())
        except NoSuchStreamError:
            return
        if state.record.state is not StreamState.SEALED:
            return
        mark = _PREFIX + stream
        async with self._mark(scope, mark):
            try:
                await context.catalog.on_stream(scope, mark, lambda tables: seal_stream(context, tables))
                await delete_stream(context, scope, mark)
            except NoSuchStreamError:
                _logger.debug("stream %s/%s has no mark stream", scope, stream)

    @asynccontextmanager
    async def _mark(self, scope: str, mark: str) -> AsyncIterator[None]:
        """Work on a mark stream alone. What is begun there and fails goes on in the background."""
        subject = Subject(SubjectKind.STREAM, scope, mark)
        try:
            async with self._context.locks.hold(lock_name(subject)):
                await self._runner.settle(subject)
                yield
        except Exception:
            self._runner.finish_what_is_left(subject)
            raise
