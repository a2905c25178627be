"""`SegmentStore`: the containers of one process, and the `Segments` interface to them by direct calls.

Source: segment-store 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from penstock.model.errors import (
    ContainerNotFoundError,
    InvalidArgumentError,
    NoSuchChunkError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentError,
    UnsupportedOperationError,
)
from penstock.model.names import (
    SYSTEM_SCOPE,
    ContainerId,
    is_index_segment,
    is_transient_segment,
    is_written_for_readers,
)
from penstock.model.routing import container_of
from penstock.model.segments import (
    READ_LENGTH_MAX,
    Buffer,
    SegmentData,
    SegmentInfo,
    TableDelta,
    TableEntry,
    TableInfo,
    TableKeyPage,
    TablePage,
    TableRemoval,
    TableUpdate,
)
from penstock.runtime.bulk import for_each
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.bulk_requests import BulkRequests
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.attributes.updates import AttributeUpdate
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container.opening import ContainerOpening
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.reads.disk_cache import DiskCache
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.storage.container_storage import INDEX_SUFFIX_BYTES_MAX
from penstock.segmentstore.container_monitor import AssignmentSource, ContainerMonitor
from penstock.segmentstore.container_start import ContainerStart
from penstock.segmentstore.core_attributes import core_attribute, is_core_attribute
from penstock.segmentstore.layout_settings import LayoutMode
from penstock.segmentstore.pinned_segment import PinnedSegment
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.statistics import ContainerStatistics
from penstock.segmentstore.storage_state import full_disk, log_problem, storage_problem
from penstock.segmentstore.tail_read_budget import TailReadBudget
from penstock.segmentstore.tier1.durable_log import DurableLogFactory
from penstock.segmentstore.tier2.chunk_name import check_segment_name
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.measured import StorageRequests, measured_storage
from penstock.segmentstore.tier2.storage_guard import GuardedChunkStorage

#: Cluster id if none is given: in tests, and stores without persistence.
UNNAMED_CLUSTER = "unnamed"
_SYSTEM_PREFIX = f"{SYSTEM_SCOPE}/containers/"


class SegmentStore:
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
        self._bulk = BulkRequests(self, settings.bulk_requests_max)
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
        _check_not_system(segment)
        return PinnedSegment(segment, self.container, check=_check_stream, is_reading=True)

    def _using_own(self, segment: str) -> PinnedSegment:
        """Use a segment that callers may change. Raises `InvalidArgumentError` for a container's own."""
        _check_not_system(segment)
        return PinnedSegment(segment, self.container, check=_check_own)

    def _using_stream(self, segment: str) -> PinnedSegment:
        """Use a segment that holds a caller's bytes. Raises `UnsupportedOperationError` for a table."""
        _check_not_system(segment)
        return PinnedSegment(segment, self.container, check=_check_stream)

    # The Segments interface.

    async def create_segment(
        self, segment: str, *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> None:
        """See `Segments.create_segment`."""
        self._check_new_name(segment)
        self.container(segment).space.check(segment)
        await self.container(segment).create(
            segment, scale_type=scale_type, target_rate=target_rate, rollover_bytes=rollover_bytes
        )

    def _check_new_name(self, segment: str) -> None:
        """Refuse names that no segment may have, and those with chunk names that long-term storage does not support."""
        _check_new_name(segment)
        check_segment_name(
            segment,
            derived_bytes_max=INDEX_SUFFIX_BYTES_MAX,
            name_part_bytes_max=self._chunks.name_part_bytes_max,
        )

    async def delete_segment(self, segment: str) -> None:
        """See `Segments.delete_segment`. A repeated call completes a deletion that a crash interrupted."""
        try:
            async with self._using_own(segment) as (container, found):
                await container.delete(segment)
        except NoSuchSegmentError:
            await self.container(segment).offset_indexes.deleted(segment)
            raise
        if container.offset_indexes.may_have_one(found):
            try:
                await container.offset_indexes.deleted(segment)
            except PenstockError as error:
                # The segment is deleted: a caller that got a refusal would attribute the deletion to another client.
                raise OutcomeUnknownError(f"{segment} is deleted, its index may not be: {error}") from error

    async def seal_segment(self, segment: str) -> None:
        """See `Segments.seal_segment`."""
        async with self._using_own(segment) as (container, found):
            await container.seal(segment)
            await container.offset_indexes.sealed(found)

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """See `Segments.truncate_segment`."""
        async with self._using_stream(segment) as (container, found):
            await container.truncate(segment, offset)
            await container.offset_indexes.truncated(found)

    async def locate_offset(self, segment: str, offset: int, *, before: bool = False) -> int:
        """See `Segments.locate_offset`."""
        async with self._using_stream(segment) as (container, found):
            border = await container.offset_indexes.locate(found, offset, before=before)
            container.ownership.check()
            return border

    async def update_policy(self, segment: str, *, scale_type: int, target_rate: int) -> None:
        """See `Segments.update_policy`."""
        async with self._using_own(segment) as (container, _):
            await container.update_policy(segment, scale_type=scale_type, target_rate=target_rate)

    async def segment_info(self, segment: str) -> SegmentInfo:
        """See `Segments.segment_info`."""
        container = self.container(segment)
        try:
            info = await container.info(segment)
        except SegmentError:
            container.ownership.check()
            raise
        container.ownership.check()
        return info

    async def segment_infos(self, segments: Sequence[str]) -> Sequence[SegmentInfo | PenstockError]:
        """See `Segments.segment_infos`."""
        return await self._bulk.infos(segments)

    async def delete_segments(self, segments: Sequence[str]) -> Sequence[PenstockError | None]:
        """See `Segments.delete_segments`."""
        return await for_each(segments, self.delete_segment, self.settings.bulk_requests_max)

    async def truncate_segments(self, offsets: Sequence[tuple[str, int]]) -> Sequence[PenstockError | None]:
        """See `Segments.truncate_segments`."""
        return await self._bulk.truncate(offsets)

    async def merge_segments(self, target: str, sources: Sequence[str]) -> Sequence[int]:
        """See `Segments.merge_segments`."""
        container = self.container(target)
        for segment in (target, *sources):
            _check_not_system(segment)
            if self.container(segment) is not container:
                raise InvalidArgumentError(f"{segment} and {target} are not in one container")
        async with self.using(target):
            merged = await container.merges.merge_all(target, sources)
        if any(source is None for _, source in merged):
            container.ownership.check()
        for _, found in merged:
            if found is not None and container.offset_indexes.may_have_one(found):
                await container.offset_indexes.deleted(found.name)
        return [length for length, _ in merged]

    async def merge_segment(self, target: str, source: str, updates: Sequence[AttributeUpdate] = ()) -> int:
        """Append all of `source` to `target`, change the target's attributes, and delete the source, in one step.

        Returns the target's length, also if the source was merged into it before: a retry after a lost answer changes
        nothing. Raises `BadAttributeError` if a condition of `updates` does not hold, `NoSuchSegmentError` for the
        source or the target, `SegmentSealedError` for the target.
        """
        for segment in (target, source):
            _check_not_system(segment)
        container = self.container(target)
        if self.container(source) is not container:
            raise InvalidArgumentError(f"{source} and {target} are not in one container")
        async with self.using(target) as (_, into):
            try:
                found = await container.find(source)
            except NoSuchSegmentError:
                length = (await container.info(target)).length
                if container.state.was_merged(source, into):
                    container.ownership.check()
                    return length
                raise
            length = await container.merges.merge(target, source, updates)
        if container.offset_indexes.may_have_one(found):
            await container.offset_indexes.deleted(source)
        return length

    async def append(self, segment: str, data: Buffer, *, expected_offset: int | None = None) -> int:
        """See `Segments.append`."""
        async with self._using_stream(segment) as (container, found):
            await _admit(container, found)
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            request = AppendRequest(bytes(data), expected_offset=expected_offset)
            end = container.acceptor.append(found, request, completer(future))
            await future
            return end

    async def read(self, segment: str, offset: int, length: int, *, wait: bool = False) -> SegmentData:
        """See `Segments.read`."""
        using, has_waited = self.reading(segment), False
        while True:
            async with using as (container, found):
                if has_waited and found.has_ended_before(offset):
                    return SegmentData(offset, (), is_at_tail=False, is_end_of_segment=True)
                data = await container.reader.read(found, offset, min(length, READ_LENGTH_MAX))
            if data.data or not data.is_at_tail or not wait:
                return data
            await container.reader.wait(found, offset)
            using, has_waited = self.reading_again(segment, found.id), True

    async def get_attribute(self, segment: str, attribute_id: bytes) -> int:
        """See `Segments.get_attribute`."""
        if is_core_attribute(attribute_id):
            async with self.reading(segment) as (container, found):
                value = core_attribute(found, attribute_id)
                await container.pipeline.barrier()
                return value
        async with self.reading(segment) as (container, _):
            return await container.get_attribute(segment, attribute_id)

    async def update_attribute(self, segment: str, attribute_id: bytes, *, value: int, expected: int) -> bool:
        """See `Segments.update_attribute`."""
        if is_core_attribute(attribute_id):
            raise InvalidArgumentError(f"{segment}: attribute {attribute_id.hex()} is reserved for the store")
        async with self._using_own(segment) as (container, _):
            was_expected = await container.update_attribute(segment, attribute_id, value=value, expected=expected)
            if not was_expected:
                container.ownership.check()
            return was_expected

    async def create_table(self, segment: str, *, key_length: int = 0, rollover_bytes: int = 0) -> None:
        """See `Segments.create_table`."""
        self._check_new_name(segment)
        if not 0 <= key_length <= 256:
            raise InvalidArgumentError(f"{segment}: keys of {key_length} bytes; fixed keys have 1 to 256")
        if is_transient_segment(segment):
            raise InvalidArgumentError(f"{segment}: this is the name of a transient segment, which cannot be a table")
        self.container(segment).space.check(segment)
        await self.container(segment).create(
            segment, flags=SegmentFlags.TABLE, key_length=key_length, rollover_bytes=rollover_bytes
        )

    async def delete_table(self, segment: str, *, must_be_empty: bool = False) -> None:
        """See `Segments.delete_table`."""
        async with self._using_own(segment) as (container, _):
            await container.delete_table(segment, must_be_empty=must_be_empty)

    async def table_info(self, segment: str) -> TableInfo:
        """See `Segments.table_info`."""
        async with self.reading(segment) as (container, found):
            return await container.tables.info(found)

    async def table_put(
        self, segment: str, updates: Sequence[TableUpdate], *, expected_offset: int = -1
    ) -> Sequence[int]:
        """See `Segments.table_put`."""
        async with self._using_own(segment) as (container, found):
            await _admit(container, found)
            return await container.tables.put(found, updates, expected_offset)

    async def table_remove(self, segment: str, removals: Sequence[TableRemoval], *, expected_offset: int = -1) -> None:
        """See `Segments.table_remove`."""
        async with self._using_own(segment) as (container, found):
            await container.tables.remove(found, removals, expected_offset)

    async def table_get(
        self, segment: str, keys: Sequence[bytes], *, bytes_max: int | None = None
    ) -> Sequence[TableEntry | None]:
        """See `Segments.table_get`, and `Tables.get` for `bytes_max`."""
        async with self.reading(segment) as (container, found):
            return await container.tables.get(found, keys, bytes_max=bytes_max)

    async def table_entries(
        self, segment: str, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None
    ) -> TablePage:
        """See `Segments.table_entries`."""
        async with self.reading(segment) as (container, found):
            _check_page(found, token, first, last)
            page = await container.tables.entries(found, limit=limit, token=token, first=first, last=last)
            return TablePage(page.entries, b"") if found.key_length else page

    async def table_keys(
        self, segment: str, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None
    ) -> TableKeyPage:
        """See `Segments.table_keys`."""
        async with self.reading(segment) as (container, found):
            _check_page(found, token, first, last)
            page = await container.tables.keys(found, limit=limit, token=token, first=first, last=last)
            return TableKeyPage(page.keys, b"") if found.key_length else page

    async def table_delta(self, segment: str, *, position: int, limit: int) -> TableDelta:
        """See `Segments.table_delta`."""
        async with self.reading(segment) as (container, found):
            return await container.tables.delta(found, position=position, limit=limit)

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


def _check_own(found: Segment) -> None:
    if found.is_system:
        raise InvalidArgumentError(f"{found.name} belongs to its container and cannot be changed from outside")


def _check_stream(found: Segment) -> None:
    _check_own(found)
    if found.is_table:
        raise UnsupportedOperationError(f"{found.name} is a table segment: its bytes are entries")


def _check_not_system(segment: str) -> None:
    if segment.startswith(_SYSTEM_PREFIX) or is_index_segment(segment):
        raise InvalidArgumentError(f"{segment} belongs to its container and cannot be changed from outside")


def _check_page(segment: Segment, token: bytes, first: bytes, last: bytes | None) -> None:
    if segment.key_length and token:
        raise InvalidArgumentError(f"{segment.name}: a fixed-key table is iterated by ranges of keys, not by tokens")
    if segment.is_table and not segment.key_length and (first or last is not None):
        raise InvalidArgumentError(f"{segment.name}: a hash table has no ranges of keys")


async def _admit(container: SegmentContainer, segment: Segment) -> None:
    """Throttle a caller's write while memory or storage fills up; the system's own streams and tables are exempt.

    Raises `StorageFullError` at once if the log's disk is full: that may last.
    """
    container.space.check(segment.name)
    if segment.name.startswith(f"{SYSTEM_SCOPE}/"):
        return
    if container.quota.is_over(segment):
        await container.quota.room(segment)
    is_urgent = is_written_for_readers(segment.name)
    if container.back_pressure.must_wait(is_urgent=is_urgent):
        await container.throttle.wait(is_urgent=is_urgent)


def _check_new_name(segment: str) -> None:
    """Refuse names that cannot be chunk names or wire text: empty parts, dot parts, control characters."""
    parts = segment.split("/")
    if (
        not segment.isascii()
        or not segment.isprintable()
        or len(segment) > 1024
        or any(part in ("", ".", "..") or len(part) > 255 for part in parts)
        or "\\" in segment
        or segment.startswith(_SYSTEM_PREFIX)
        or is_index_segment(segment)
    ):
        raise InvalidArgumentError(f"{segment!r} cannot be the name of a segment")
