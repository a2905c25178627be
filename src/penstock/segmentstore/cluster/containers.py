"""`MemberContainers`: what a cluster's member does with the containers of its segment store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from penstock.model.cluster_nodes import HeldPhase
from penstock.model.errors import PenstockError, StorageError
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.store import SegmentStore

#: A log that has not answered for longer takes no checkpoint soon.
_LOG_SILENT_S = 2.0


@dataclass(frozen=True, slots=True)
class ContainerCondition:
    """State of an assigned container: how far it is, its epoch (0: not open), and why it does not run."""

    phase: HeldPhase
    epoch: int = 0
    error: str = ""


class MemberContainers(Protocol):
    """Containers that are started and stopped by their assignment."""

    def observe(self, before_open: Callable[[int], Awaitable[None]], on_changed: Callable[[], None]) -> None:
        """Set what is called: `before_open` before each open of a log, `on_changed` when a condition may differ.

        An error of `before_open` prevents the open; it is tried again later.
        """

    def assign(self, container_ids: Collection[int]) -> None:
        """Run these containers from now on. Returns at once."""

    @property
    def held(self) -> Collection[int]:
        """The containers whose logs are open, or are being opened or closed."""

    def condition(self, container_id: int) -> ContainerCondition:
        """Return the condition of an assigned container."""

    async def prepare(self, container_id: int) -> None:
        """Make the next start of a container short while it serves. Raises `PenstockError`."""

    def end_waits(self) -> None:
        """End the requests that wait for a log that does not answer; their outcome is unknown."""


class StoreContainers:
    """`MemberContainers` of a `SegmentStore`. `server`: has the connections of its clients."""

    def __init__(self, store: SegmentStore, server: SegmentStoreServer) -> None:
        self._store = store
        self._server = server

    def observe(self, before_open: Callable[[int], Awaitable[None]], on_changed: Callable[[], None]) -> None:
        """See `MemberContainers.observe`."""
        self._store.monitor.before_open = before_open
        self._store.monitor.on_changed = on_changed

    def assign(self, container_ids: Collection[int]) -> None:
        """See `MemberContainers.assign`."""
        self._store.set_assignment(container_ids)

    @property
    def held(self) -> Collection[int]:
        """See `MemberContainers.held`."""
        return self._store.held

    def condition(self, container_id: int) -> ContainerCondition:
        """See `MemberContainers.condition`."""
        container = self._store.monitor.running.get(container_id)
        if container is not None:
            return ContainerCondition(HeldPhase.SERVING, container.epoch)
        failure = self._store.failures.get(container_id)
        return ContainerCondition(HeldPhase.OPENING, error="" if failure is None else str(failure))

    async def prepare(self, container_id: int) -> None:
        """See `MemberContainers.prepare`: flush, write a checkpoint, and truncate the log there.

        Under load there are data before the checkpoint that the first flush has not taken; the second one does.
        """
        container = self._store.monitor.running.get(container_id)
        if container is None:
            return
        if container.log_problem_s(asyncio.get_running_loop().time()) > _LOG_SILENT_S:
            raise StorageError(f"container {container_id} cannot be prepared: its log does not answer")
        await container.flush()
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_done(error: BaseException | None) -> None:
            if written.done():
                return
            if error is None:
                written.set_result(None)
            else:
                written.set_exception(error if isinstance(error, PenstockError) else PenstockError(str(error)))

        container.checkpoints.write(on_done)
        await written
        await container.writer.flush_all()
        await container.checkpoints.until_truncated()

    def end_waits(self) -> None:
        """See `MemberContainers.end_waits`."""
        self._server.close_unanswered("the log does not answer, and another store may have the containers")
