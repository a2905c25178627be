"""`ContainerMonitor`: starts and stops the containers of this process according to their assignment.

A round compares the two: an assigned container that neither runs nor is pending is started, a running one that is not
assigned is stopped. Each start and stop is a task that marks its container as pending until the task ends. Pending
containers are left alone, and the end of a task triggers another round. So there are never two incarnations of one
container here, and however the assignment changes, the last one is applied in the end.

A container that failed, or could not start, gets a new incarnation after a pause. The pause grows until an incarnation
has run for longer than the maximum pause.

Source: segment-store R1.4 to R1.8 and R1.12.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Generic, Protocol, TypeVar

from penstock.model.errors import (
    ContainerOfflineError,
    LogRefusedError,
    PenstockError,
    StorageError,
    UnreadableDataError,
)
from penstock.runtime.pacing import GrowingDelay
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.container_start import ContainerStart
from penstock.segmentstore.own_failures import is_own_failure
from penstock.segmentstore.settings import SegmentStoreSettings

logger: logging.Logger = logging.getLogger(__name__)


class Stoppable(Protocol):
    """The part of a container incarnation that the monitor uses."""

    async def stop(self) -> None:
        """Stop cleanly."""


C = TypeVar("C", bound=Stoppable)

#: After one of these errors a container stays offline, and the others serve.
_STAYS_OFFLINE = (UnreadableDataError, LogRefusedError)
#: Creates an incarnation of a container, given its id and what the monitor watches of its start.
StartContainer = Callable[[int, ContainerStart], Awaitable[C]]
#: Returns the ids of the containers assigned to this process; None: no assignment yet.
AssignmentSource = Callable[[], Awaitable[Collection[int] | None]]


class ContainerMonitor(Generic[C]):
    """Starts and stops the containers of one process. `start_container` returns a new incarnation that serves.

    Attributes:
        running: incarnations that serve, by container id.
        failures: why an assigned container is not running, for messages and probes.
        own_failure_count: failures so far for lack of memory, descriptors or threads of this process.
        before_open: called before each start of a container; its error prevents the start, which is retried.
        on_changed: called when any of `running`, `failures` and `held` may have changed.
    """

    def __init__(self, start_container: StartContainer[C], settings: SegmentStoreSettings) -> None:
        self.running: dict[int, C] = {}
        self.failures: dict[int, BaseException] = {}
        self.own_failure_count: int = 0
        self.before_open: Callable[[int], Awaitable[None]] | None = None
        self.on_changed: Callable[[], None] = lambda: None
        self._start_container = start_container
        self._settings = settings
        self._assigned: frozenset[int] = frozenset()
        self._starts: dict[int, asyncio.Task[None]] = {}
        #: Incarnations that are being started. One that is not assigned any more is cancelled: its claim would shut the
        #: present owner out.
        self._starting: dict[int, asyncio.Future[C]] = {}
        #: Incarnations that failed during their start or right after it.
        self._failed_early: dict[int, tuple[C, BaseException]] = {}
        self._stops: dict[int, asyncio.Task[None]] = {}
        #: Containers that wait for their next start, and the wait after that one.
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._delays: dict[int, GrowingDelay] = {}
        #: Start times of running incarnations, by container id.
        self._began_s: dict[int, float] = {}
        self._slots = asyncio.Semaphore(settings.parallel_starts)
        self._following: asyncio.Task[None] | None = None
        self.is_stopping: bool = False

    # -- assignment ---------------------------------------------------------------------------------------------

    @property
    def assigned(self) -> Collection[int]:
        """The containers assigned to this process, ascending."""
        return sorted(self._assigned)

    @property
    def held(self) -> Collection[int]:
        """The containers that run or are being started or stopped, ascending: the others are not touched."""
        return sorted({*self.running, *self._starts, *self._stops})

    def assign(self, container_ids: Collection[int]) -> None:
        """Set the containers of this process. They are started and stopped in the background."""
        self._assigned = frozenset(container_ids)
        for container_id in [one for one in self._retries if one not in self._assigned]:
            self._retries.pop(container_id).cancel()
        for container_id in [one for one in self.failures if one not in self._assigned]:
            del self.failures[container_id]
        for container_id in [one for one in self._delays if one not in self._assigned]:
            del self._delays[container_id]
        for container_id, start in self._starting.items():
            if container_id not in self._assigned:
                start.cancel()
        self._round()

    def follow(self, source: AssignmentSource) -> None:
        """Read the assignment again every `assignment_interval_s`, in case a notification was missed."""

        async def run() -> None:
            while True:
                await asyncio.sleep(self._settings.assignment_interval_s)
                await self.refresh(source)

        self._following = asyncio.get_running_loop().create_task(run())

    async def refresh(self, source: AssignmentSource) -> None:
        """Read the assignment and apply it; if there is none, or it cannot be read, nothing changes."""
        try:
            container_ids = await source()
        except (PenstockError, OSError) as error:
            logger.warning("the container assignment cannot be read, nothing changes: %s", error)
            return
        if container_ids is None:
            logger.warning("there is no container assignment, nothing changes")
        else:
            self.assign(container_ids)

    async def start(self, container_ids: Collection[int]) -> None:
        """Run these containers: wait until each runs, or has failed.

        One whose log is corrupt or refused stays offline and is retried later, see `failures`; any other error stops
        everything and is raised.
        """
        try:
            self.assign(container_ids)
            await asyncio.gather(*self._starts.values(), return_exceptions=True)
        except BaseException:
            await self.stop()
            raise
        if self.is_stopping:
            raise ContainerOfflineError(min(container_ids, default=0), "the segment store stops")
        for _, error in sorted(self.failures.items()):
            if not isinstance(error, _STAYS_OFFLINE):
                await self.stop()
                raise error

    def _round(self) -> None:
        self.on_changed()
        if self.is_stopping:
            return
        loop = asyncio.get_running_loop()
        for container_id in self.assigned:
            if not self._is_busy(container_id) and container_id not in self.running:
                self._starts[container_id] = loop.create_task(self._start(container_id))
        for container_id in sorted(self.running):
            if not self._is_busy(container_id) and container_id not in self._assigned:
                logger.info("container %d is no longer assigned to this process: stopping it", container_id)
                self._stop_later(container_id, self.running.pop(container_id))

    def _is_busy(self, container_id: int) -> bool:
        return container_id in self._starts or container_id in self._stops or container_id in self._retries

    # -- starts -------------------------------------------------------------------------------------------------

    async def _start(self, container_id: int) -> None:
        try:
            container = self.running[container_id] = await self._started(container_id)
            self._began_s[container_id] = asyncio.get_running_loop().time()
            self.failures.pop(container_id, None)
            failed, failure = self._failed_early.get(container_id, (None, None))
            if failed is container and failure is not None:
                self.failed(container_id, container, failure)
        except _STAYS_OFFLINE as error:
            # Until an administrator has investigated and acted.
            logger.error("container %d stays offline: %s", container_id, error)
            self._retry_later(container_id, error, self._settings.disabled_retry_s)
        except (PenstockError, OSError) as error:
            logger.warning("container %d could not be started: %s", container_id, error)
            self._retry_later(container_id, error)
        except Exception as error:  # A bug must not leave the container down without a trace
            logger.error("container %d cannot be started", container_id, exc_info=error)
            self._retry_later(container_id, error)
        finally:
            # After the handle is registered, and in every case; otherwise the container would stay pending.
            del self._starts[container_id]
            self._failed_early.pop(container_id, None)
            self._round()

    async def _started(self, container_id: int) -> C:
        """Return a new incarnation that serves. There is no time limit as long as the start makes progress."""
        timeout_s = self._settings.start_stall_timeout_s

        def check() -> None:
            # The wait for its turn may have been long.
            if container_id not in self._assigned:
                raise ContainerOfflineError(container_id, "it is not assigned to this process any more")

        steps = ContainerStart(self._slots, check)
        start = self._starting[container_id] = asyncio.ensure_future(self._open(container_id, steps))
        try:
            while True:
                before = steps.step_count
                await asyncio.wait((start,), timeout=timeout_s)
                if start.cancelled():
                    raise ContainerOfflineError(container_id, "it was not assigned to this process any more")
                if start.done():
                    return start.result()
                if steps.step_count == before and not steps.is_waiting:
                    # Whether it is retried is not known here: the first start of a process ends it.
                    raise StorageError(
                        f"the start of container {container_id} made no progress for {timeout_s:g} s "
                        f"(start_stall_timeout_s), after {steps.step_count} steps: check that the place of the log and "
                        "long-term storage answer"
                    )
        finally:
            del self._starting[container_id]
            if not start.done():
                await cancel_and_wait(start)

    async def _open(self, container_id: int, steps: ContainerStart) -> C:
        if self.before_open is not None:
            async with steps.waiting():
                await self.before_open(container_id)
        return await self._start_container(container_id, steps)

    def _retry_later(self, container_id: int, error: BaseException, delay_s: float | None = None) -> None:
        if self.is_stopping or container_id not in self._assigned:
            return
        self.failures[container_id] = error
        self.own_failure_count += is_own_failure(error)
        if delay_s is None:
            settings = self._settings
            first = GrowingDelay(settings.restart_delay_s, settings.restart_delay_s_max)
            delay_s = self._delays.setdefault(container_id, first).take()

        def retry() -> None:
            del self._retries[container_id]
            self._round()

        self._retries[container_id] = asyncio.get_running_loop().call_later(delay_s, retry)

    # -- ends ---------------------------------------------------------------------------------------------------

    def failed(self, container_id: int, container: C, error: BaseException) -> None:
        """Note that an incarnation failed: it is stopped, and a new one started after a pause.

        One that is not running yet, or not any more, is ignored: the task that starts or stops it gets the error.
        """
        if self.running.get(container_id) is not container:
            if container_id in self._starts:
                # It may have started without being registered yet.
                self._failed_early[container_id] = (container, error)
            return
        del self.running[container_id]
        self.failures[container_id] = error
        served_s = asyncio.get_running_loop().time() - self._began_s[container_id]
        if served_s > self._settings.restart_delay_s_max:
            self._delays.pop(container_id, None)
        self._stop_later(container_id, container, error)

    def _stop_later(self, container_id: int, container: C, failure: BaseException | None = None) -> None:
        task = asyncio.get_running_loop().create_task(self._stop(container_id, container, failure))
        self._stops[container_id] = task
        self.on_changed()

    async def _stop(self, container_id: int, container: C, failure: BaseException | None) -> None:
        timeout_s = self._settings.stop_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await container.stop()
        except (TimeoutError, PenstockError, OSError) as error:
            # Not retried: the next open of its log fences this incarnation.
            logger.warning("container %d did not stop cleanly within %g s: %r", container_id, timeout_s, error)
        finally:
            del self._stops[container_id]
            if failure is not None:
                self._retry_later(container_id, failure)
            self._round()

    async def stop(self) -> None:
        """Stop every container; nothing is started any more. Idempotent.

        Raises the first error of a container that could not stop cleanly, once all have ended.
        """
        self.is_stopping = True
        if self._following is not None:
            await cancel_and_wait(self._following)
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()
        for task in list(self._starts.values()):
            task.cancel()
        await asyncio.gather(*self._starts.values(), *self._stops.values(), return_exceptions=True)
        containers = [self.running[container_id] for container_id in sorted(self.running)]
        self.running.clear()
        ends = await asyncio.gather(*(container.stop() for container in containers), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
