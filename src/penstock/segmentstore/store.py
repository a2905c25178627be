"""`SegmentStore`: the containers of one process, and the `Segments` seam over them by direct calls.

Source: segment store specification, section 1.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from penstock.model.errors import (
    ContainerNotFoundError,
    ContainerOfflineError,
    CorruptionError,
    InvalidArgumentError,
    LogDisabledError,
    PenstockError,
    SegmentMergedError,
    SegmentSealedError,
    UnsupportedOperationError,
)
from penstock.model.names import SYSTEM_SCOPE, ContainerId
from penstock.model.routing import container_of
from penstock.model.segments import (
    READ_LENGTH_MAX,
    Buffer,
    SegmentData,
    SegmentInfo,
    TableDelta,
    TableEntry,
    TableInfo,
    TablePage,
    TableRemoval,
    TableUpdate,
)
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.cache import Cache
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.pipeline import completer
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.tier1.durable_log import DurableLogFactory
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage

logger = logging.getLogger(__name__)

_SYSTEM_PREFIX = f"{SYSTEM_SCOPE}/containers/"


class SegmentStore:
    """Runs containers: starts them, starts a new incarnation when one fails, and finds the one of a segment."""

    def __init__(
        self,
        *,
        logs: DurableLogFactory,
        chunks: ChunkStorage,
        runtime: Runtime,
        settings: SegmentStoreSettings,
        container_ids: Sequence[int] | None = None,
    ) -> None:
        self.settings = settings
        self.cache = Cache(settings.cache)
        self.runtime = runtime
        self._logs = logs
        self._chunks = chunks
        self._container_ids = tuple(range(settings.container_count)) if container_ids is None else tuple(container_ids)
        self._containers: dict[int, SegmentContainer] = {}
        self._restarts: dict[int, asyncio.Task[None]] = {}
        #: Why a container is not running, for people and probes.
        self.failures: dict[int, BaseException] = {}
        self._is_stopping = False

    async def start(self) -> None:
        """Recover all containers, a few at a time.

        A container whose log is corrupt or disabled stays offline and the others serve; any other error stops the
        start and is raised.
        """
        slots = asyncio.Semaphore(self.settings.parallel_starts)

        async def start_one(container_id: int) -> None:
            async with slots:
                await self._start_container(container_id)

        results = await asyncio.gather(*map(start_one, self._container_ids), return_exceptions=True)
        for container_id, result in zip(self._container_ids, results, strict=True):
            if isinstance(result, (CorruptionError, LogDisabledError)):
                self.failures[container_id] = result
                logger.error("container %d stays offline: %s", container_id, result)
                self._restart_later(container_id, self.settings.disabled_retry_s)
            elif isinstance(result, BaseException):
                await self.stop()
                raise result

    async def _start_container(self, container_id: int) -> None:
        container = SegmentContainer(
            container_id,
            log=self._logs.create(container_id),
            chunks=self._chunks,
            cache=self.cache,
            runtime=self.runtime,
            settings=self.settings.container,
            on_failure=self._container_failed,
        )
        await container.start()
        if self._is_stopping:
            await container.stop()
            raise ContainerOfflineError(container_id, "the segment store stops")
        self._containers[container_id] = container
        self.failures.pop(container_id, None)

    def _container_failed(self, container: SegmentContainer, error: BaseException) -> None:
        if self._containers.get(container.id) is container:
            del self._containers[container.id]
        self.failures[container.id] = error
        self._restart_later(container.id, self.settings.restart_delay_s, failed=container)

    def _restart_later(self, container_id: int, delay_s: float, *, failed: SegmentContainer | None = None) -> None:
        if not self._is_stopping and container_id not in self._restarts:
            task = asyncio.get_running_loop().create_task(self._restart(container_id, delay_s, failed))
            self._restarts[container_id] = task
            task.add_done_callback(lambda _: self._restarts.pop(container_id, None))

    async def _restart(self, container_id: int, delay_s: float, failed: SegmentContainer | None) -> None:
        """Bring a fresh incarnation up; there is no repair in place."""
        if failed is not None:
            await failed.stop()
        while not self._is_stopping:
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, self.settings.restart_delay_s_max)
            try:
                await self._start_container(container_id)
            except (CorruptionError, LogDisabledError) as error:
                # Until somebody has looked into it and enabled the log.
                self.failures[container_id] = error
                delay_s = self.settings.disabled_retry_s
                logger.error("container %d stays offline: %s", container_id, error)
            except (PenstockError, OSError) as error:
                self.failures[container_id] = error
                logger.warning("container %d could not be restarted, trying again: %s", container_id, error)
            except Exception as error:
                self.failures[container_id] = error
                logger.exception("container %d cannot be restarted", container_id)
                raise
            else:
                return

    async def stop(self) -> None:
        """Finish what was accepted and stop every container."""
        self._is_stopping = True
        restarts = list(self._restarts.values())
        for task in restarts:
            task.cancel()
        await asyncio.gather(*restarts, return_exceptions=True)
        containers, self._containers = self._containers, {}
        await asyncio.gather(*(container.stop() for container in containers.values()))
        await self._chunks.close()

    @property
    def is_ready(self) -> bool:
        """Whether every container serves."""
        return len(self._containers) == len(self._container_ids)

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
        """Return a live segment and its container. Raises `NoSuchSegmentError`, `ContainerNotFoundError`."""
        container = self.container(segment)
        return container, container.segment(segment)

    def _find_own(self, segment: str) -> tuple[SegmentContainer, Segment]:
        """Return a segment that callers may change. Raises `InvalidArgumentError` for a container's own."""
        container, found = self.find(segment)
        if found.is_system:
            raise InvalidArgumentError(f"{segment} belongs to its container and cannot be changed from outside")
        return container, found

    def _find_stream(self, segment: str) -> tuple[SegmentContainer, Segment]:
        """Return a segment whose bytes are the caller's. Raises `UnsupportedOperationError` for a table."""
        container, found = self._find_own(segment)
        if found.is_table:
            raise UnsupportedOperationError(f"{segment} is a table segment: its bytes are entries")
        return container, found

    # The Segments seam.

    async def create_segment(
        self, segment: str, *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> None:
        """See `Segments.create_segment`."""
        _check_new_name(segment)
        await self.container(segment).create(
            segment, scale_type=scale_type, target_rate=target_rate, rollover_bytes=rollover_bytes
        )

    async def delete_segment(self, segment: str) -> None:
        """See `Segments.delete_segment`."""
        container, _ = self._find_own(segment)
        await container.delete(segment)

    async def seal_segment(self, segment: str) -> None:
        """See `Segments.seal_segment`."""
        container, _ = self._find_own(segment)
        await container.seal(segment)

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """See `Segments.truncate_segment`."""
        container, _ = self._find_stream(segment)
        await container.truncate(segment, offset)

    async def update_policy(self, segment: str, *, scale_type: int, target_rate: int) -> None:
        """See `Segments.update_policy`."""
        container, _ = self._find_own(segment)
        await container.update_policy(segment, scale_type=scale_type, target_rate=target_rate)

    async def segment_info(self, segment: str) -> SegmentInfo:
        """See `Segments.segment_info`."""
        return await self.container(segment).info(segment)

    async def merge_segments(self, target: str, sources: Sequence[str]) -> Sequence[int]:
        """See `Segments.merge_segments`."""
        container = self.container(target)
        lengths: list[int] = []
        for source in sources:
            if self.container(source) is not container:
                raise InvalidArgumentError(f"{source} and {target} are not in one container")
            try:
                lengths.append(await container.merge(target, source))
            except SegmentMergedError:
                lengths.append((await container.info(target)).length)
        return lengths

    async def append(self, segment: str, data: Buffer, *, expected_offset: int | None = None) -> int:
        """See `Segments.append`."""
        container, found = self._find_stream(segment)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        end = container.append(found, bytes(data), completer(future), expected_offset=expected_offset)
        await future
        return end

    async def read(self, segment: str, offset: int, length: int, *, wait: bool = False) -> SegmentData:
        """See `Segments.read`."""
        container, found = self.find(segment)
        try:
            return await container.reader.read(found, offset, min(length, READ_LENGTH_MAX), wait=wait)
        except SegmentSealedError:
            return SegmentData(offset, (), is_at_tail=False, is_end_of_segment=True)

    async def get_attribute(self, segment: str, attribute_id: bytes) -> int:
        """See `Segments.get_attribute`."""
        return await self.container(segment).get_attribute(segment, attribute_id)

    async def update_attribute(self, segment: str, attribute_id: bytes, *, value: int, expected: int) -> bool:
        """See `Segments.update_attribute`."""
        container, _ = self._find_own(segment)
        return await container.update_attribute(segment, attribute_id, value=value, expected=expected)

    async def create_table(self, segment: str, *, key_length: int = 0, rollover_bytes: int = 0) -> None:
        """See `Segments.create_table`."""
        _check_new_name(segment)
        if not 0 <= key_length <= 256:
            raise InvalidArgumentError(f"{segment}: keys of {key_length} bytes; fixed keys have 1 to 256")
        await self.container(segment).create(
            segment, flags=SegmentFlags.TABLE, key_length=key_length, rollover_bytes=rollover_bytes
        )

    async def delete_table(self, segment: str, *, must_be_empty: bool = False) -> None:
        """See `Segments.delete_table`."""
        container, _ = self._find_own(segment)
        await container.delete_table(segment, must_be_empty=must_be_empty)

    async def table_info(self, segment: str) -> TableInfo:
        """See `Segments.table_info`."""
        container, found = self.find(segment)
        return await container.tables.info(found)

    async def table_put(
        self, segment: str, updates: Sequence[TableUpdate], *, expected_offset: int = -1
    ) -> Sequence[int]:
        """See `Segments.table_put`."""
        container, found = self._find_own(segment)
        return await container.tables.put(found, updates, expected_offset)

    async def table_remove(
        self, segment: str, removals: Sequence[TableRemoval], *, expected_offset: int = -1
    ) -> None:
        """See `Segments.table_remove`."""
        container, found = self._find_own(segment)
        await container.tables.remove(found, removals, expected_offset)

    async def table_get(self, segment: str, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """See `Segments.table_get`."""
        container, found = self.find(segment)
        return await container.tables.get(found, keys)

    async def table_entries(self, segment: str, *, limit: int, token: bytes = b"") -> TablePage:
        """See `Segments.table_entries`."""
        container, found = self.find(segment)
        return await container.tables.entries(found, limit=limit, token=token)

    async def table_delta(self, segment: str, *, position: int, limit: int) -> TableDelta:
        """See `Segments.table_delta`."""
        container, found = self.find(segment)
        return await container.tables.delta(found, position=position, limit=limit)


def _check_new_name(segment: str) -> None:
    """Refuse names that could never be chunks or wire text: empty parts, dot parts, control characters."""
    parts = segment.split("/")
    if (
        not segment.isascii()
        or not segment.isprintable()
        or len(segment) > 1024
        or any(part in ("", ".", "..") or len(part) > 255 for part in parts)
        or "\\" in segment
        or segment.startswith(_SYSTEM_PREFIX)
    ):
        raise InvalidArgumentError(f"{segment!r} cannot be the name of a segment")
