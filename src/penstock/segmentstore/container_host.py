"""`ContainerHost`: the containers of one process, from start to stop, and the way from a segment to its container.

Source: segment-store 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from penstock.model.errors import (
    ContainerNotFoundError,
    NoSuchChunkError,
    NoSuchSegmentError,
)
from penstock.model.names import (
    ContainerId,
)
from penstock.model.routing import container_of
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.opening import ContainerOpening
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.reads.disk_cache import DiskCache
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container_monitor import AssignmentSource, ContainerMonitor
from penstock.segmentstore.container_start import ContainerStart
from penstock.segmentstore.layout_settings import LayoutMode
from penstock.segmentstore.pinned_segment import PinnedSegment
from penstock.segmentstore.segment_rules import check_not_system, check_own, check_stream
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.statistics import ContainerStatistics
from penstock.segmentstore.storage_state import full_disk, log_problem, storage_problem
from penstock.segmentstore.tail_read_budget import TailReadBudget
from penstock.segmentstore.tier1.durable_log import DurableLogFactory
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.measured import StorageRequests, measured_storage
from penstock.segmentstore.tier2.storage_guard import GuardedChunkStorage

#: Cluster id if none is given: in tests, and stores without persistence.
UNNAMED_CLUSTER = "unnamed"


class ContainerHost:
    """Runs the containers that are assigned to this process, and routes segments to them.

    `container_ids`: the initial ones, all by default. `assignment` is called for them instead, now and repeatedly.
    `cluster_id`: the cluster that `chunks` must belong to, see `GuardedChunkStorage`. `cache_directory`: directory of
    the second level of the cache, if enabled in the settings; used only by this process.
    """

    def __init__(
        self,
        *,
        logs: DurableLogFactory,
        chunks: ChunkStorage,
        runtime: Runtime,
        settings: SegmentStoreSettings,
        container_ids: Collection[int] | None = None,
        assignment: AssignmentSource | None = None,
        cache_directory: str = "",
        cluster_id: str = UNNAMED_CLUSTER,
    ) -> None:
        self.settings = settings
        self.cluster_id: str = cluster_id
        #: Called after a sync of a log has made operations durable and completed their futures: replies are due.
        self.on_durable: Callable[[], None] = lambda: None
        self.cache: Cache = Cache(settings.cache)
        self.runtime = runtime
        #: The second level of the cache, if enabled in the settings.
        self.disk_cache: DiskCache | None = None
        if settings.disk_cache.bytes_max and cache_directory:
            self.disk_cache = DiskCache(cache_directory, settings.disk_cache, runtime)
        self._logs = logs
        self._has_closed_logs = False
        measured = measured_storage(chunks)
        self.storage_requests: StorageRequests = measured.requests
        self._chunks = GuardedChunkStorage(
            measured,
            cluster_id=cluster_id,
            settings=settings.storage_guard,
            may_be_older=settings.container.layout.mode is LayoutMode.LAYOUT_UPGRADE,
        )
        self._container_ids = range(settings.container_count) if container_ids is None else container_ids
        self._assignment = assignment
        #: Starts and stops the containers.
        self.monitor: ContainerMonitor[SegmentContainer] = ContainerMonitor(self._start_container, settings)
        #: Counts the reads of connections that wait at the ends of segments.
        self.tail_reads: TailReadBudget = TailReadBudget(
            settings.connection.tail_reads_bytes_max, settings.connection.tail_read_bytes_max
        )
        self._containers = self.monitor.running
        #: Why a container is not running, for messages and probes.
        self.failures: dict[int, BaseException] = self.monitor.failures

    async def start(self) -> None:
        """Wait until long-term storage is available, or does not respond; then recover all containers, a few at a time.

        A container whose log is corrupt or disabled stays offline and the others serve; any other error stops the start
        and is raised. Raises `StorageIdentityError` if long-term storage belongs to another cluster.
        """
        try:
            await self._start()
        except BaseException:
            await self._close_logs()
            raise

    async def _start(self) -> None:
        if self.disk_cache is not None:
            await self.disk_cache.open()
        await self._logs.start()
        await self._chunks.claim_when_there(self._logs.has_logs)
        self._chunks.start()
        if self._assignment is None:
            await self.monitor.start(self._container_ids)
            return
        await self.monitor.start(())
        await self.monitor.refresh(self._assignment)
        self.monitor.follow(self._assignment)

    def set_assignment(self, container_ids: Collection[int]) -> None:
        """Run these containers from now on; see `held` for when the others are released. Returns at once."""
        self.monitor.assign(container_ids)

    async def refresh_assignment(self) -> None:
        """Read the assignment now: it may have changed."""
        if self._assignment is not None:
            await self.monitor.refresh(self._assignment)

    async def _start_container(self, container_id: int, steps: ContainerStart) -> SegmentContainer:
        # Before its log is claimed: the present owner may have access to the storage that is missing here.
        await self._chunks.check_place()
        opening = ContainerOpening(
            container_id,
            log=self._logs.create(container_id),
            chunks=self._chunks,
            cache=self.cache,
            runtime=self.runtime,
            settings=self.settings.container,
            on_failure=self._container_failed,
            on_durable=lambda: self.on_durable(),
            throttle=self.settings.throttle,
            disk_cache=self.disk_cache,
            storage_health=self._chunks,
            container_count=self.settings.container_count,
        )
        return await opening.open(steps)

    def _container_failed(self, container: SegmentContainer, error: BaseException) -> None:
        self.monitor.failed(container.id, container, error)

    async def stop(self) -> None:
        """Finish accepted operations and stop every container."""
        try:
            await self.monitor.stop()
        finally:
            try:
                await self._close_logs()
            finally:
                if self.disk_cache is not None:
                    await self.disk_cache.close()
                await self._chunks.close()

    async def _close_logs(self) -> None:
        """Close what the logs share, once: after a failed start, or when all containers have stopped."""
        if not self._has_closed_logs:
            self._has_closed_logs = True
            await self._logs.close()

    @property
    def storage_problem(self) -> str | None:
        """The problem with long-term storage, for messages and probes: see `storage_state`; None if there is none."""
        return storage_problem(self._chunks, self.containers, asyncio.get_running_loop().time())

    @property
    def log_problem(self) -> str | None:
        """Why appends have waited for their log for some time, for messages and probes; None if they have not."""
        return log_problem(self.containers, asyncio.get_running_loop().time())

    @property
    def full_disk(self) -> str | None:
        """Why users' writes are held or refused for lack of space, for messages and clients; None if they are not."""
        return full_disk(self.containers, asyncio.get_running_loop().time())

    @property
    def is_ready(self) -> bool:
        """Whether all assigned containers serve, and no others."""
        return sorted(self._containers) == self.monitor.assigned

    @property
    def starting(self) -> list[int]:
        """The assigned containers that neither run nor have failed, ascending: they are being opened."""
        return [each for each in self.assigned if each not in self._containers and each not in self.failures]

    @property
    def assigned(self) -> Collection[int]:
        """The containers assigned to this process, ascending."""
        return self.monitor.assigned

    @property
    def held(self) -> Collection[int]:
        """The containers that run here, or are being started or stopped; this process does not touch the others."""
        return self.monitor.held

    @property
    def containers(self) -> Sequence[SegmentContainer]:
        """The containers that run now."""
        return [self._containers[container_id] for container_id in sorted(self._containers)]

    def container(self, segment: str) -> SegmentContainer:
        """Return the container of a segment. Raises `ContainerNotFoundError` while it is not running here."""
        container_id = container_of(segment, self.settings.container_count)
        container = self._containers.get(container_id)
        if container is None or container.status is not ContainerStatus.RUNNING:
            failure = self.failures.get(container_id)
            raise ContainerNotFoundError(
                ContainerId(container_id), f"it is not running here{f': {failure}' if failure else ''}"
            )
        return container

    def find(self, segment: str) -> tuple[SegmentContainer, Segment]:
        """Return an active segment and its container, at once.

        Raises `NoSuchSegmentError`, `ContainerNotFoundError`, and `SegmentInactiveError` if `using` is required.
        """
        container = self.container(segment)
        return container, container.segment(segment)

    def using(self, segment: str) -> PinnedSegment:
        """Find a segment, activate it if necessary, and keep it in memory while the block runs.

        Raises `NoSuchSegmentError`, `ContainerNotFoundError`, `TooManyActiveSegmentsError`.
        """
        return PinnedSegment(segment, self.container)

    def reading(self, segment: str) -> PinnedSegment:
        """Use a segment for an answer that would be stale if the container was fenced.

        In addition to the errors of `using`, raises `OwnershipUnconfirmedError` after the block, before the answer is
        returned.
        """
        return PinnedSegment(segment, self.container, is_reading=True)

    def reading_found(self, container: SegmentContainer, found: Segment) -> PinnedSegment:
        """Like `reading`, for a segment found before, even if its name now belongs to another one."""
        return PinnedSegment(found.name, lambda _: container, is_reading=True, found=found)

    def reading_again(self, segment: str, segment_id: int) -> PinnedSegment:
        """Like `reading`, for a read that has waited, while its segment may have been unloaded.

        Raises `NoSuchSegmentError` if the name now belongs to another segment.
        """

        def check(found: Segment) -> None:
            if found.id != segment_id:
                raise NoSuchSegmentError(segment)

        return PinnedSegment(segment, self.container, check=check, is_reading=True)

    def reading_stream(self, segment: str) -> PinnedSegment:
        """Like `reading`, for a segment of a caller's bytes. Raises `UnsupportedOperationError` for a table."""
        check_not_system(segment)
        return PinnedSegment(segment, self.container, check=check_stream, is_reading=True)

    def using_own(self, segment: str) -> PinnedSegment:
        """Use a segment that callers may change. Raises `InvalidArgumentError` for a container's own."""
        check_not_system(segment)
        return PinnedSegment(segment, self.container, check=check_own)

    def using_stream(self, segment: str) -> PinnedSegment:
        """Use a segment that holds a caller's bytes. Raises `UnsupportedOperationError` for a table."""
        check_not_system(segment)
        return PinnedSegment(segment, self.container, check=check_stream)

    # Long-term storage.

    @property
    def storage(self) -> GuardedChunkStorage:
        """Long-term storage."""
        return self._chunks

    async def chunk_length(self, chunk: str) -> int | None:
        """Return the true length of a chunk in long-term storage; None if it does not exist."""
        try:
            return (await self._chunks.info(chunk)).length
        except NoSuchChunkError:
            return None

    # Load.

    async def check_log(self) -> None:
        """Return when the durable log has answered. Raises `PenstockError`; may wait without a limit."""
        await self._logs.check()

    def container_statistics(self) -> Sequence[ContainerStatistics]:
        """Return the load of each container that runs here, and of its segments with recent data."""
        now_s = asyncio.get_running_loop().time()
        return [container.statistics(now_s) for container in self.containers]
