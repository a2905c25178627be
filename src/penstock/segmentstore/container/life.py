"""`ContainerLife`: the phase of one incarnation of a container, its background jobs, and how it ends by itself.

The first failed log write, inconsistency in memory or failed job ends the incarnation. There is no repair in place:
recovery is always by a new incarnation that reads the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from enum import Enum

from penstock.model.errors import ContainerOfflineError, InconsistentStateError, LogFencedError, StorageNotPrimaryError
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.container.events import ContainerEvents
from penstock.segmentstore.container.log.pipeline import OperationPipeline

#: Errors after which the incarnation must not continue.
FATAL_ERRORS = (InconsistentStateError, LogFencedError, StorageNotPrimaryError)

logger: logging.Logger = logging.getLogger(__name__)


class ContainerStatus(Enum):
    """Phase of a container's life."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class ContainerLife:
    """The life of one incarnation. Reports `ContainerEvents.on_failure` once if it ends by itself while it runs.

    Attributes:
        status: its phase.
        failure: why it ended by itself.
        pipeline: accepts no more operations after a failure; None until the log is replayed.
        jobs: background jobs that end with the incarnation.
    """

    def __init__(self, container_id: int, events: ContainerEvents) -> None:
        self.id: int = container_id
        self.status: ContainerStatus = ContainerStatus.NEW
        self.failure: BaseException | None = None
        self.pipeline: OperationPipeline | None = None
        self.jobs: set[asyncio.Task[None]] = set()
        self._events = events
        self._loop = asyncio.get_running_loop()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self.status in (ContainerStatus.STOPPING, ContainerStatus.STOPPED)

    def check_running(self) -> None:
        """Raise `ContainerOfflineError` unless the container serves."""
        if self.status is not ContainerStatus.RUNNING:
            raise ContainerOfflineError(self.id, f"it is {self.status.value}")

    def fail(self, error: BaseException) -> None:
        """End the incarnation, unless it has ended or is being stopped."""
        if self.failure is not None or self.is_stopping:
            return
        self.failure = error
        if self.pipeline is not None and self.pipeline.error is None:
            self.pipeline.error = error
        if self.status is ContainerStatus.RUNNING:
            self.status = ContainerStatus.FAILED
            logger.error("container %d failed: %s", self.id, error)
            self._events.on_failure(error)

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a background job that ends with the container; an exception in it ends the container."""
        task = self._loop.create_task(coroutine)
        self.jobs.add(task)
        task.add_done_callback(self._job_done)

    def _job_done(self, task: asyncio.Task[None]) -> None:
        self.jobs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def end_jobs(self) -> None:
        """Cancel all background jobs, and wait for their end."""
        await cancel_and_wait(*self.jobs)
