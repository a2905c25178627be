"""`SegmentContainer`: the unit of ownership, fencing and recovery; holds the segments whose names hash to its id.

Life cycle: `start` opens the log (which fences all other incarnations), replays it, finds out what long-term storage
has, and serves. The first failed log write or inconsistency in memory ends the container. There is no repair in place:
recovery is always by a new container that reads the log. Damage in long-term storage only affects one segment; damage
of the log disables the log.

Source: segment-store 1.2, 1.3 and 2.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace

from penstock.model.errors import (
    ContainerOfflineError,
    CorruptionError,
    InconsistentStateError,
    LogFencedError,
    PenstockError,
    StaleLogError,
    StorageNotPrimaryError,
    UnreadableDataError,
)
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.activity.offset_index import OffsetIndexes
from penstock.segmentstore.container.activity.watch import ActivityWatch
from penstock.segmentstore.container.attributes.attributes import VALUE_LENGTH as ATTRIBUTE_LENGTH
from penstock.segmentstore.container.attributes.attributes import Attributes
from penstock.segmentstore.container.btree.sorted_index import IndexStorage, SortedIndex
from penstock.segmentstore.container.btree.tree import BTreeIndex
from penstock.segmentstore.container.catalog import SegmentCatalog, metadata_segment
from penstock.segmentstore.container.events import ContainerEvents
from penstock.segmentstore.container.log.checkpoints import Checkpoints
from penstock.segmentstore.container.log.later_formats import LaterFormats
from penstock.segmentstore.container.log.log_rewriter import LogRewriter
from penstock.segmentstore.container.log.operations import (
    NonAppendOperation,
)
from penstock.segmentstore.container.log.pipeline import OperationPipeline
from penstock.segmentstore.container.log.recovery import Recovered, recover
from penstock.segmentstore.container.ownership import OwnershipLease
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.reads.disk_cache import DiskCache
from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.segment_merges import SegmentMerges
from penstock.segmentstore.container.segment_operations import ContainerStatus
from penstock.segmentstore.container.segment_quota import SegmentQuota
from penstock.segmentstore.container.space import SpaceWatch
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage.adoptions import Adoptions
from penstock.segmentstore.container.storage.container_storage import (
    ContainerStorage,
    attribute_index_segment,
    storage_metadata_segment,
    table_index_segment,
)
from penstock.segmentstore.container.storage.image_capture import ImageCapture
from penstock.segmentstore.container.storage.images import ContainerImages
from penstock.segmentstore.container.storage.stale_log import StaleLogCheck
from penstock.segmentstore.container.storage.storage_writer import StorageWriter
from penstock.segmentstore.container.tables.entries import SLOT_LENGTH
from penstock.segmentstore.container.tables.tables import Tables
from penstock.segmentstore.container.throttle import Bounds, Throttle, hold_bytes
from penstock.segmentstore.container.transients import TransientSegments
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.container_start import ContainerStart
from penstock.segmentstore.layout_settings import LayoutMode
from penstock.segmentstore.settings import ThrottleSettings
from penstock.segmentstore.statistics import ContainerStatistics
from penstock.segmentstore.tier1.durable_log import DurableLog
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.deferred_deletions import DeferredDeletions
from penstock.segmentstore.tier2.storage_health import StorageHealth, UnwatchedStorage

__all__ = ["ContainerStatus", "SegmentContainer"]

logger: logging.Logger = logging.getLogger(__name__)

#: Segments whose memory is released before yielding to the event loop.
_DROP_STEP = 1024


class SegmentContainer(SegmentMerges):
    """One incarnation of a container. `on_failure` is called once, with the cause, if it ends by itself."""

    def __init__(
        self,
        container_id: int,
        *,
        log: DurableLog,
        chunks: ChunkStorage,
        cache: Cache,
        runtime: Runtime,
        settings: ContainerSettings,
        on_failure: Callable[[SegmentContainer, BaseException], None],
        on_durable: Callable[[], None] = lambda: None,
        throttle: ThrottleSettings | None = None,
        disk_cache: DiskCache | None = None,
        storage_health: StorageHealth | None = None,
        container_count: int = 1,
    ) -> None:
        super().__init__(container_id, runtime)
        #: Creation time of this incarnation, in milliseconds since the epoch.
        self.created_ms: int = runtime.wall_clock_ms()
        self.failure: BaseException | None = None
        self.recovered: Recovered | None = None
        self._log = log
        self._settings = settings
        self._on_failure = on_failure
        self._background: set[asyncio.Task[None]] = set()
        self.events: ContainerEvents = ContainerEvents()
        self.state: ContainerState = ContainerState(container_id, cache, settings, self.events)
        self._disk_cache = disk_cache
        self._throttle_settings = throttle or ThrottleSettings()
        #: Holds appends and table updates of clients back while a resource is nearly full.
        self.throttle: Throttle = Throttle(self._throttle_settings, self._room_bytes)
        self._bounds, self._urgent_bounds = (
            Bounds.of(self._throttle_settings, cache.settings, settings.outstanding_bytes_max, is_urgent=is_urgent)
            for is_urgent in (False, True)
        )
        self._reserved_bounds = Bounds.reserved(self._throttle_settings, cache.settings, settings.outstanding_bytes_max)
        #: Whether this incarnation may answer from its state.
        self.ownership: OwnershipLease = OwnershipLease(
            container_id, log, lease_s=settings.ownership_lease_s, now_s=runtime.monotonic_s
        )
        #: Whether file systems have space. User operations wait while the log's file system has none.
        self.space: SpaceWatch = SpaceWatch(
            container_id,
            settings.space,
            log_space=log.space,
            storage_space=chunks.space,
            on_change=self._space_changed,
        )
        #: Holds appends to a segment back when long-term storage does not accept its data.
        self.quota: SegmentQuota = SegmentQuota(
            self._throttle_settings.segment_backlog_bytes_max(cache.settings),
            hold_s_max=self._throttle_settings.segment_hold_s_max,
        )
        self._cache_thresholds = (hold_bytes(self._throttle_settings, cache.settings), cache.settings.essential_bytes)
        for mark_bytes in self._cache_thresholds:
            cache.on_fall_below(mark_bytes, self.throttle.notify)
        self._chunks = chunks
        #: Whether the log is an old copy, as far as long-term storage shows.
        self.stale_log: StaleLogCheck = StaleLogCheck(
            container_id, chunks, log, table=storage_metadata_segment(container_id)
        )
        self._container_count = container_count
        #: Writes images, from which a store whose machine is lost can be rebuilt, if enabled in the settings.
        self.images: ContainerImages | None = None
        self.capture: ImageCapture
        self._storage_health = storage_health or UnwatchedStorage()
        self.storage: ContainerStorage
        #: Adopts segments of an older store, if enabled in the settings.
        self.adoptions: Adoptions
        self.pipeline: OperationPipeline
        self.reader: SegmentReader = SegmentReader(container_id, settings, self._storage_read, self.state.waits)
        self.offset_indexes: OffsetIndexes = OffsetIndexes(
            self,
            find=self.find,
            append=self._append_internal,
            read=self.reader.read_exactly,
            entry_bytes=settings.activity.index_entry_bytes,
        )
        self.activity_watch: ActivityWatch = ActivityWatch(
            container_id, self.state.activity, self.offset_indexes, settings.activity
        )
        self.tables: Tables = Tables(
            settings,
            self.reader,
            append=self._append_internal,
            truncate=self._truncate_table,
            barrier=self._barrier_future,
            spawn=self._spawn_table_job,
            open_index=self._open_table_index,
        )
        self.transients: TransientSegments = TransientSegments(
            self.state.metadata,
            settings.transients,
            count_max=settings.transients.count_max(settings.active_segments_max),
            delete=self.delete,
            takes_bytes=lambda: not self.throttle.must_wait(),
        )
        self.writer: StorageWriter
        self.checkpoints: Checkpoints
        self.log_rewriter: LogRewriter
        self.catalog: SegmentCatalog
        self.attributes: Attributes = Attributes(
            self.state,
            settings,
            open_index=self._open_attribute_index,
            log=self._log_operation,
            barrier=lambda: self.pipeline.barrier(),
        )

        self._connect_first(on_durable)

    def _connect_first(self, on_durable: Callable[[], None]) -> None:
        """Connect the events that parts created before the log is opened handle."""
        self.events.on_durable = on_durable
        self.events.on_relief = self._relieved
        self.events.on_damage = self._fail
        self.events.on_shrunk = self.throttle.notify

    # Life cycle.

    async def start(self, steps: ContainerStart | None = None) -> None:
        """Open and replay the log, find out what storage has, and serve. After an error the container is FAILED.

        `steps`: gets the progress, which distinguishes a long log from one that hangs, and gives the turn to replay.

        Raises `LogRefusedError`, `LaterVersionError`, `CorruptionError` (the log's own disables it), `StorageError`.
        """
        steps = steps or ContainerStart()
        self.status: ContainerStatus = ContainerStatus.STARTING
        try:
            try:
                await self._log.open(LaterFormats())
            except CorruptionError as error:
                await self._disable_log(error)
                raise
            opened_s = self._runtime.monotonic_s()
            steps.progress()
            async with steps.replaying():
                await self._replay(steps.progress)
            async with steps.waiting():
                await self.ownership.wait_out_predecessor(opened_s, self._settings.ownership_drift_percent)
            self.status = ContainerStatus.RUNNING
            await self.transients.drop_all()
            self.writer.start()
            self.spawn(self.transients.run())
            self.spawn(self._put_idle_segments_away())
            self.spawn(self.activity_watch.run())
            self.spawn(self.ownership.keep())
            self.spawn(self.space.watch_log())
            self.spawn(self.space.watch_storage())
            self.spawn(self.storage.lookups.finish())
            if self.stale_log.is_done:
                self._start_deleting()
            else:
                self.spawn(self._start_deleting_when_checked())
            if self.failure is not None:
                raise self.failure
        except BaseException as error:
            self.status = ContainerStatus.FAILED
            self.failure = self.failure or error
            await self._release()
            if self.failure is not error and isinstance(error, Exception):
                raise self.failure from error  # The cause of the failure is more useful than the interrupted step.
            raise

    async def _replay(self, progress: Callable[[], None]) -> None:
        """Build the state from the opened log, and find out what storage has."""
        try:
            recovered = await recover(self._log, self.state, progress, checkpoints_max=self._settings.checkpoints_max)
        except CorruptionError as error:
            await self._disable_log(error)
            raise
        self.recovered = recovered
        if self._disk_cache is not None:
            self.reader.use_disk_cache(self._disk_cache, self._log.epoch, self.events)
        last = recovered.last_sequence_number
        self.pipeline = OperationPipeline(
            self.id,
            self._log,
            last_sequence_number=last,
            last_address=recovered.last_address,
            fail=self._fail,
            events=self.events,
        )
        self.checkpoints = Checkpoints(
            self.state,
            self.pipeline,
            self._log,
            settings=self._settings,
            first_unflushed=lambda segment: self.storage.first_unflushed(segment),
            replayed=recovered,
            spawn=self.spawn,
            fail=self._fail,
        )
        self.events.on_frames_sent = self.checkpoints.write_if_due
        self.log_rewriter = LogRewriter(
            self.state, self.pipeline, self.checkpoints, settings=self._settings, spawn=self.spawn
        )
        if not recovered.has_checkpoint:
            self.checkpoints.write()
            await self.pipeline.barrier()
        # Deletions of chunks are held until no image refers to them.
        held = DeferredDeletions(self._chunks, held_max=self._settings.images.deletions_max)
        has_images = bool(self._settings.images.interval_s)
        self.capture = ImageCapture(
            container_count=self._container_count,
            epoch=self._log.epoch,
            state=self.state,
            pipeline=self.pipeline,
            checkpoints=self.checkpoints,
            log_rewriter=self.log_rewriter,
            settings=self._settings.images,
            runtime=self._runtime,
        )
        if has_images:
            self.images = self._new_images(held)
        self.storage = ContainerStorage(
            self.id,
            held if has_images else self._chunks,
            state=self.state,
            tables=self.tables,
            submit=self.submit,
            epoch=self._log.epoch,
            runtime=self._runtime,
            settings=self._settings,
            health=self._storage_health,
            spawn=self.spawn,
            refuse=self.stale_log.refuse,
            # The log may be on the same file system, and need the space of unused chunks.
            is_room_short=lambda: self.space.is_storage_low or self.space.is_log_low,
        )
        # First: records of an old copy may refer to chunks deleted since, which is not corruption.
        is_marked = bool(self.storage.orphans.mark)
        if is_marked:
            await self._check_that_log_is_newest()
        await self.storage.open(self._create, progress)
        if not is_marked:
            await self._check_that_log_is_newest()
        self.adoptions = Adoptions(self._chunks, self.state, self.storage, self._settings.layout)
        self.writer = StorageWriter(
            self.state,
            self.storage,
            settings=self._settings,
            submit=self.submit,
            checkpoints=self.checkpoints,
            log_rewriter=self.log_rewriter,
            throttle=self._throttle_settings,
            attributes=self.attributes,
            fail=self._fail,
            is_log_open=lambda: self.pipeline.error is None,
            space=self.space,
            turns=self._runtime.turns,
        )
        self._connect()
        self.catalog = SegmentCatalog(
            self.state,
            self.tables,
            await self._own_table(metadata_segment(self.id)),
            settings=self._settings,
            log=self._log_operation,
            flush=self.writer.flush,
            adopt=self.adoptions.adopt if self.storage.layout_mode is LayoutMode.LAYOUT_UPGRADE else None,
            now_ms=self._runtime.wall_clock_ms,
        )
        await self.space.look_at_log()
        logger.info(
            "container %d runs: epoch %d, %d segments, replayed %d operations (%d bytes)",
            self.id,
            self._log.epoch,
            len(self.state.metadata.by_name),
            recovered.operation_count,
            recovered.byte_count,
        )

    def _new_images(self, held: DeferredDeletions) -> ContainerImages:
        return ContainerImages(
            container_id=self.id,
            chunks=held,
            pipeline=self.pipeline,
            capture=self.capture,
            settings=self._settings.images,
            health=self._storage_health,
            flush=lambda: self.writer.flush_all(),
            refuse=self.stale_log.refuse,
        )

    def _connect(self) -> None:
        """Connect the events that parts created during the start handle."""
        self.events.on_storage_work = self.writer.wake
        self.events.on_truncation = self.writer.note_truncation
        self.events.on_merge = self.writer.note_merge
        self.events.on_pressure = self.writer.note_pressure

    async def _check_that_log_is_newest(self) -> None:
        self.stale_log.mark = self.storage.orphans.mark
        await self.stale_log.before_the_first_write(self._settings.recovery_lookup_s)

    def _start_deleting(self) -> None:
        """Start all jobs that delete from long-term storage. The log is known to be the newest."""
        self.spawn(self.storage.orphans.run())
        self.storage.start_collecting()
        self.spawn(self.storage.run_sweeps())
        self.storage.start_joining(lambda: self.writer.is_pressed)
        if self.images is not None:
            self.spawn(self.images.run())

    async def _start_deleting_when_checked(self) -> None:
        await self.stale_log.until_done()
        self._start_deleting()

    async def _disable_log(self, cause: PenstockError) -> None:
        """Keep the evidence, and prevent the next incarnation from failing in a loop. The caller raises `cause`."""
        try:
            await self._log.disable(cause)
        except (PenstockError, OSError) as error:
            # Either the log was never claimed: then the damage refuses the next claim as well. Or its disk fails, or
            # another incarnation owns it: then the next open finds the same damage and disables it.
            logger.warning("container %d: its log could not be disabled: %s", self.id, error)

    async def _own_table(self, name: str) -> Segment:
        """Return one of the container's own tables; create it at the first start."""
        table = self.state.metadata.by_name.get(name)
        return table or await self._create(name, flags=SegmentFlags.TABLE | SegmentFlags.SYSTEM)

    async def _put_idle_segments_away(self) -> None:
        """Deactivate idle segments periodically, for as long as the container runs."""
        while True:
            await asyncio.sleep(self._settings.deactivation_interval_s)
            try:
                await self.catalog.deactivate_idle()
            except (InconsistentStateError, LogFencedError, StorageNotPrimaryError):
                raise
            except (PenstockError, OSError) as error:
                logger.warning("container %d: idle segments stay in memory: %s", self.id, error)

    def _space_changed(self) -> None:
        self.throttle.notify()
        self.events.on_storage_work()

    def must_wait(self, *, is_urgent: bool = False) -> bool:
        """Whether a client's append or table update must be held by `throttle`; never for the container's own."""
        if not self.throttle.must_wait(is_urgent=is_urgent):
            return False
        self.events.on_pressure()  # The storage writer may be asleep.
        return True

    def _relieved(self) -> None:
        self.throttle.notify()
        self.quota.notify()

    @property
    def epoch(self) -> int:
        """The epoch of this incarnation's log, unique to it."""
        return self._log.epoch

    @property
    def outstanding_bytes_max(self) -> int:
        """Limit of bytes accepted and not yet durable above which no more are admitted."""
        return self._settings.outstanding_bytes_max

    def _room_bytes(self, is_urgent: bool) -> int:
        if self.space.is_log_low and not is_urgent:
            return 0
        backlog, cache, outstanding_bytes = self.state.backlog, self.state.cache, self.pipeline.outstanding_bytes
        room_bytes = (self._urgent_bounds if is_urgent else self._bounds).room_bytes(
            cache_bytes=cache.used_bytes,
            outstanding_bytes=outstanding_bytes,
            backlog_bytes=backlog.byte_count,
            backlog_operations=backlog.operation_count,
        )
        if not is_urgent or room_bytes > 0:
            return room_bytes
        return self._reserved_bounds.room_bytes(
            cache_bytes=cache.urgent_lacking_bytes,
            outstanding_bytes=outstanding_bytes,
            backlog_bytes=backlog.urgent.byte_count,
            backlog_operations=backlog.urgent.operation_count,
        )

    def _log_operation(self, operation: NonAppendOperation, accept: Callable[[], object] = lambda: None) -> None:
        """Call `accept` to change the accepted state, and log the operation.

        There is no wait: operations that depend on it follow it in the log.
        """
        with self.pipeline.critical_section():
            accept()
            self.pipeline.add_operation(operation, _ignore)

    def _open_attribute_index(self, segment: Segment) -> SortedIndex:
        storage = self.storage.attribute_index(segment)
        return self._open_index(storage, attribute_index_segment(segment), ATTRIBUTE_LENGTH)

    def _open_table_index(self, segment: Segment) -> SortedIndex:
        return self._open_index(self.storage.table_index(segment), table_index_segment(segment), SLOT_LENGTH)

    def _open_index(self, storage: IndexStorage, name: str, value_length: int) -> SortedIndex:
        return BTreeIndex(
            storage, name=name, value_length=value_length, cache=self.state.cache, settings=self._settings.index
        )

    async def stop(self) -> None:
        """Complete accepted operations, then stop. Every pending call ends, at worst with `ContainerOfflineError`."""
        if self.status in (ContainerStatus.STOPPED, ContainerStatus.STOPPING):
            return
        if self.status is ContainerStatus.RUNNING:
            self.status = ContainerStatus.STOPPING
        await self._release()
        self.status = ContainerStatus.STOPPED

    async def _release(self) -> None:
        self.ownership.end()
        self.throttle.close()
        self.quota.close()
        if hasattr(self, "writer"):
            self.writer.begin_stop()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if hasattr(self, "writer"):
            await self.writer.stop()
        if self.status is ContainerStatus.STOPPING and (note := self.storage.close()) is not None:
            self._log_operation(note, lambda: self.state.accept_pinned(note.values))
        try:
            if isinstance(self.failure, StaleLogError):
                await self._disable_log(self.failure)
            if hasattr(self, "pipeline"):
                await self._close_in_time("its accepted operations", self.pipeline.close())
            # A separate timeout: a pipeline that hangs must not leave the log open.
            await self._close_in_time("its log", self._log.close())
        finally:
            if hasattr(self, "pipeline"):
                self.pipeline.abandon("stopped")
            await self.reader.close()
            for mark_bytes in self._cache_thresholds:
                self.state.cache.forget_fall_below(mark_bytes, self.throttle.notify)
            await self._drop_memory()

    async def _close_in_time(self, what: str, closing: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._settings.stop_timeout_s):
                await closing
        except (TimeoutError, PenstockError, OSError) as error:
            # Operations still running there are fenced when the next incarnation opens the log.
            logger.warning("container %d: %s did not close: %r", self.id, what, error)

    async def _drop_memory(self) -> None:
        """End all reads' waits and release the cache; stepwise for very many segments, or at once if cancelled."""
        steps = self._drop_memory_in_steps()
        try:
            for _ in steps:
                await asyncio.sleep(0)
        finally:
            for _ in steps:
                pass

    def _drop_memory_in_steps(self) -> Iterator[None]:
        offline = ContainerOfflineError(self.id, "stopped")
        self.tables.close(offline)
        for number, waiter in enumerate(self.state.waits.take_all()):
            if number % _DROP_STEP == _DROP_STEP - 1:
                yield
            waiter.fail(offline)
        for number, segment in enumerate(list(self.state.metadata.by_id.values())):
            if number % _DROP_STEP == _DROP_STEP - 1:
                yield
            segment.index.clear()
            segment.close_indexes()
        self.state.backlog.close()

    def _fail(self, error: BaseException) -> None:
        if self.failure is not None or self.status in (ContainerStatus.STOPPING, ContainerStatus.STOPPED):
            return
        self.failure = error
        if self.pipeline.error is None:
            self.pipeline.error = error
        if self.status is ContainerStatus.RUNNING:
            self.status = ContainerStatus.FAILED
            logger.error("container %d failed: %s", self.id, error)
            self._on_failure(self, error)

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a background job that ends with the container; an exception in it ends the container."""
        task = self._loop.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _spawn_table_job(self, what: str, segment: Segment) -> None:
        async def run() -> None:
            try:
                await self.tables.run(what, segment)
            except (InconsistentStateError, StorageNotPrimaryError) as error:
                self._fail(error)
            except UnreadableDataError as error:
                logger.error("container %d: %s of %s: %s", self.id, what, segment.name, error)
            except (PenstockError, OSError) as error:
                # Correctness does not depend on it; the next write to the table that finds it due starts it again.
                logger.info("container %d: %s of %s ended: %s", self.id, what, segment.name, error)

        self.spawn(run())

    # Storage.

    async def _storage_read(self, segment: Segment, offset: int, length: int) -> bytes:
        return await self.storage.read(segment, offset, length)

    async def flush(self) -> None:
        """Move everything currently durable to long-term storage, and write an image if images are enabled."""
        self._check_running()
        await self.pipeline.barrier()
        await self.writer.flush_all()
        if self.images is not None:
            await self.images.write()

    def statistics(self, now_s: float) -> ContainerStatistics:
        """Return the load as of the last measurement, and the current backlog. `now_s` is the loop's time."""
        backlog = self.state.backlog
        return replace(
            self.activity_watch.statistics.snapshot(now_s),
            log_bytes=self.checkpoints.log_bytes,
            is_log_long=self.log_rewriter.is_alarmed,
            backlog_bytes=backlog.byte_count,
            backlog_operations=backlog.operation_count,
            held_append_count=self.quota.held_count,
        )

    def segments(self) -> Sequence[Segment]:
        """Return the live segments."""
        return list(self.state.metadata.by_name.values())


def _ignore(error: BaseException | None) -> None:
    """Do nothing: if the log failed, the container ends and all of its memory with it."""
