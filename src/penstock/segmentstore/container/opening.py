"""`ContainerOpening`: opens one incarnation of a container.

`open` claims the log (which fences all other incarnations), replays it, finds out what long-term storage has, and
returns a `SegmentContainer` that serves and has all of its parts. If a step fails, everything is released again.

Source: segment-store 1.2 and 1.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from penstock.model.errors import (
    CorruptionError,
    InconsistentStateError,
    PenstockError,
    StorageNotPrimaryError,
    UnreadableDataError,
)
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.acceptor import OperationAcceptor
from penstock.segmentstore.container.attributes.attributes import VALUE_LENGTH as ATTRIBUTE_LENGTH
from penstock.segmentstore.container.attributes.attributes import Attributes
from penstock.segmentstore.container.back_pressure import BackPressure
from penstock.segmentstore.container.btree.sorted_index import IndexStorage, SortedIndex
from penstock.segmentstore.container.btree.tree import BTreeIndex
from penstock.segmentstore.container.catalog import SegmentCatalog, metadata_segment
from penstock.segmentstore.container.closing import ContainerClosing
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.events import ContainerEvents
from penstock.segmentstore.container.life import ContainerLife, ContainerStatus
from penstock.segmentstore.container.log.checkpoints import Checkpoints
from penstock.segmentstore.container.log.later_formats import LaterFormats
from penstock.segmentstore.container.log.log_rewriter import LogRewriter
from penstock.segmentstore.container.log.pipeline import OperationPipeline
from penstock.segmentstore.container.log.recovery import Recovered, recover
from penstock.segmentstore.container.ownership import OwnershipLease
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.reads.disk_cache import DiskCache
from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment, SegmentFlags
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
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.container_start import ContainerStart
from penstock.segmentstore.layout_settings import LayoutMode
from penstock.segmentstore.settings import ThrottleSettings
from penstock.segmentstore.tier1.durable_log import DurableLog
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.deferred_deletions import DeferredDeletions
from penstock.segmentstore.tier2.storage_health import StorageHealth, UnwatchedStorage

logger: logging.Logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True, slots=True)
class _LogParts:
    """The parts that accept and log operations, after the replay of the log."""

    recovered: Recovered
    pipeline: OperationPipeline
    acceptor: OperationAcceptor
    storage: ContainerStorage
    checkpoints: Checkpoints
    log_rewriter: LogRewriter
    #: Deletions of chunks, if images are enabled: they are held until no image refers to the chunks.
    held: DeferredDeletions | None


@dataclass(eq=False, kw_only=True, slots=True)
class _ReadParts:
    """The parts that read segments, in memory and in long-term storage."""

    reader: SegmentReader
    tables: Tables
    attributes: Attributes


class ContainerOpening:
    """One attempt to open a container. `on_failure` is called once, with the cause, if the container ends by itself."""

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
        self.id: int = container_id
        self._created_ms = runtime.wall_clock_ms()
        self._log = log
        self._chunks = chunks
        self._runtime = runtime
        self._settings = settings
        self._on_failure = on_failure
        self._disk_cache = disk_cache
        self._health = storage_health or UnwatchedStorage()
        self._container_count = container_count
        self._events = ContainerEvents()
        self._events.on_durable = on_durable
        self.life: ContainerLife = ContainerLife(container_id, self._events)
        self._state = ContainerState(container_id, cache, settings, self._events)
        self.ownership: OwnershipLease = OwnershipLease(
            container_id, log, lease_s=settings.ownership_lease_s, now_s=runtime.monotonic_s
        )
        self.space: SpaceWatch = SpaceWatch(
            container_id, settings.space, log_space=log.space, storage_space=chunks.space, on_change=self._space_changed
        )
        log.on_full = self.space.check_log_now
        self._back_pressure = BackPressure(
            self._state, self.space, self._events, settings, throttle or ThrottleSettings()
        )
        self._stale_log = StaleLogCheck(container_id, chunks, log, table=storage_metadata_segment(container_id))

    @cached_property
    def closing(self) -> ContainerClosing:
        """Releases what the opening has claimed and created so far, or the container once it is open."""
        return ContainerClosing(
            self.life,
            self._log,
            self._state,
            ownership=self.ownership,
            back_pressure=self._back_pressure,
            settings=self._settings,
        )

    async def open(self, steps: ContainerStart | None = None) -> SegmentContainer:
        """Return the container, which serves. After an error it is FAILED, and nothing of it is left.

        `steps`: gets the progress, which distinguishes a long log from one that hangs, and gives the turn to replay.

        Raises `LogRefusedError`, `LaterVersionError`, `CorruptionError` (the log's own disables it), `StorageError`.
        """
        life = self.life
        life.status = ContainerStatus.STARTING
        closing = self.closing
        try:
            container = await self._open(closing, steps or ContainerStart())
            if life.failure is not None:
                raise life.failure
            return container
        except BaseException as error:
            life.status = ContainerStatus.FAILED
            life.failure = life.failure or error
            await closing.run()
            if life.failure is not error and isinstance(error, Exception):
                raise life.failure from error  # The cause of the failure is more useful than the interrupted step.
            raise

    async def _open(self, closing: ContainerClosing, steps: ContainerStart) -> SegmentContainer:
        try:
            await self._log.open(LaterFormats())
        except CorruptionError as error:
            await closing.disable_log(error)
            raise
        opened_s = self._runtime.monotonic_s()
        steps.progress()
        try:
            async with steps.replaying():
                self._stale_log.begin()
                parts = await self._replay(closing, steps.progress)
                container = await self._complete(closing, parts, steps.progress)
        finally:
            await self._stale_log.end()
        async with steps.waiting():
            await self.ownership.wait_out_predecessor(opened_s, self._settings.ownership_drift_percent)
        self._events.on_failure = lambda error: self._on_failure(container, error)
        self.life.status = ContainerStatus.RUNNING
        await self._start_jobs(container)
        return container

    async def _replay(self, closing: ContainerClosing, progress: Callable[[], None]) -> _LogParts:
        """Build the state from the opened log."""
        state, settings, life = self._state, self._settings, self.life
        self._events.on_damage = life.fail
        self._events.on_relief = self._back_pressure.relieve
        self._events.on_shrunk = self._back_pressure.throttle.notify
        try:
            recovered = await recover(self._log, state, progress, checkpoints_max=settings.checkpoints_max)
        except CorruptionError as error:
            await closing.disable_log(error)
            raise
        pipeline = OperationPipeline(
            self.id,
            self._log,
            last_sequence_number=recovered.last_sequence_number,
            last_address=recovered.last_address,
            fail=life.fail,
            events=self._events,
        )
        life.pipeline = self._back_pressure.pipeline = pipeline
        acceptor = closing.acceptor = OperationAcceptor(state, pipeline, self._runtime)
        held = DeferredDeletions(self._chunks, held_max=settings.images.deletions_max)
        has_images = bool(settings.images.interval_s)
        storage = self._new_storage(held if has_images else self._chunks, acceptor)
        checkpoints = Checkpoints(
            state,
            pipeline,
            self._log,
            settings=settings,
            first_unflushed=storage.first_unflushed,
            replayed=recovered,
            spawn=life.spawn,
            fail=life.fail,
        )
        self._events.on_frames_sent = checkpoints.write_if_due
        if not recovered.has_checkpoint:
            checkpoints.write()
            await pipeline.barrier()
        return _LogParts(
            recovered=recovered,
            pipeline=pipeline,
            acceptor=acceptor,
            storage=storage,
            checkpoints=checkpoints,
            log_rewriter=LogRewriter(state, pipeline, checkpoints, settings=settings, spawn=life.spawn),
            held=held if has_images else None,
        )

    def _new_storage(self, chunks: ChunkStorage, acceptor: OperationAcceptor) -> ContainerStorage:
        return ContainerStorage(
            self.id,
            chunks,
            state=self._state,
            submit=acceptor.submit,
            epoch=self._log.epoch,
            runtime=self._runtime,
            settings=self._settings,
            health=self._health,
            spawn=self.life.spawn,
            refuse=self._stale_log.refuse,
            # The log may be on the same file system, and need the space of unused chunks.
            is_room_short=lambda: self.space.is_storage_low or self.space.is_log_low,
        )

    def _new_reading(self, closing: ContainerClosing, parts: _LogParts) -> _ReadParts:
        storage, acceptor = parts.storage, parts.acceptor
        reader = closing.reader = SegmentReader(self.id, self._settings, storage.read, self._state.waits)
        if self._disk_cache is not None:
            reader.use_disk_cache(self._disk_cache, self._log.epoch, self._events)

        def spawn(what: str, segment: Segment) -> None:
            self.life.spawn(_run_table_job(self.life, tables, what, segment))

        tables = closing.tables = Tables(
            self._settings,
            reader,
            append=acceptor.append_own,
            truncate=acceptor.truncate_table,
            barrier=acceptor.barrier,
            spawn=spawn,
            open_index=lambda segment: self.open_table_index(storage, segment),
        )
        attributes = Attributes(
            self._state,
            self._settings,
            open_index=lambda segment: self.open_attribute_index(storage, segment),
            log=acceptor.log,
            barrier=parts.pipeline.barrier,
        )
        return _ReadParts(reader=reader, tables=tables, attributes=attributes)

    def open_table_index(self, storage: ContainerStorage, segment: Segment) -> SortedIndex:
        """Return the index of a table, not opened."""
        return self._new_index(storage.table_index(segment), table_index_segment(segment), SLOT_LENGTH)

    def open_attribute_index(self, storage: ContainerStorage, segment: Segment) -> SortedIndex:
        """Return the index of a segment's attributes, not opened."""
        return self._new_index(storage.attribute_index(segment), attribute_index_segment(segment), ATTRIBUTE_LENGTH)

    def _new_index(self, storage: IndexStorage, name: str, value_length: int) -> SortedIndex:
        return BTreeIndex(
            storage, name=name, value_length=value_length, cache=self._state.cache, settings=self._settings.index
        )

    async def _complete(
        self, closing: ContainerClosing, parts: _LogParts, progress: Callable[[], None]
    ) -> SegmentContainer:
        """Find out what long-term storage has, and create the remaining parts."""
        reading = self._new_reading(closing, parts)
        storage = closing.storage = parts.storage
        # First: records of an old copy may refer to chunks deleted since, which is not corruption.
        is_marked = bool(storage.orphans.mark)
        if is_marked:
            await self._check_that_log_is_newest(storage)
        await storage.open(parts.acceptor.create, reading.tables, progress)
        if not is_marked:
            await self._check_that_log_is_newest(storage)
        writer = closing.writer = self._new_writer(parts, reading)
        self._events.on_storage_work = writer.wake
        self._events.on_truncation = writer.note_truncation
        self._events.on_merge = writer.note_merge
        self._events.on_pressure = writer.note_pressure
        adoptions = Adoptions(self._chunks, self._state, storage, self._settings.layout)
        catalog = SegmentCatalog(
            self._state,
            reading.tables,
            await self._own_table(metadata_segment(self.id), parts.acceptor),
            settings=self._settings,
            log=parts.acceptor.log,
            flush=writer.flush,
            adopt=adoptions.adopt if storage.layout_mode is LayoutMode.LAYOUT_UPGRADE else None,
            now_ms=self._runtime.wall_clock_ms,
        )
        await self.space.check_log()
        recovered = parts.recovered
        logger.info(
            "container %d runs: epoch %d, %d segments, replayed %d operations (%d bytes)",
            self.id,
            self._log.epoch,
            len(self._state.metadata.by_name),
            recovered.operation_count,
            recovered.byte_count,
        )
        return self._assembled(closing, parts, reading, writer=writer, catalog=catalog, adoptions=adoptions)

    async def _check_that_log_is_newest(self, storage: ContainerStorage) -> None:
        self._stale_log.mark = storage.orphans.mark
        await self._stale_log.before_the_first_write(self._settings.recovery_lookup_s)

    def _new_writer(self, parts: _LogParts, reading: _ReadParts) -> StorageWriter:
        pipeline = parts.pipeline
        return StorageWriter(
            self._state,
            parts.storage,
            settings=self._settings,
            submit=parts.acceptor.submit,
            checkpoints=parts.checkpoints,
            log_rewriter=parts.log_rewriter,
            throttle=self._back_pressure.settings,
            attributes=reading.attributes,
            fail=self.life.fail,
            is_log_open=lambda: pipeline.error is None,
            space=self.space,
            turns=self._runtime.turns,
        )

    async def _own_table(self, name: str, acceptor: OperationAcceptor) -> Segment:
        """Return one of the container's own tables; create it at the first start."""
        table = self._state.metadata.by_name.get(name)
        return table or await acceptor.create(name, flags=SegmentFlags.TABLE | SegmentFlags.SYSTEM)

    def _assembled(
        self,
        closing: ContainerClosing,
        parts: _LogParts,
        reading: _ReadParts,
        *,
        writer: StorageWriter,
        catalog: SegmentCatalog,
        adoptions: Adoptions,
    ) -> SegmentContainer:
        capture = ImageCapture(
            container_count=self._container_count,
            epoch=self._log.epoch,
            state=self._state,
            pipeline=parts.pipeline,
            checkpoints=parts.checkpoints,
            log_rewriter=parts.log_rewriter,
            space=self.space,
            settings=self._settings.images,
            runtime=self._runtime,
        )
        return SegmentContainer(
            life=self.life,
            created_ms=self._created_ms,
            recovered=parts.recovered,
            settings=self._settings,
            log=self._log,
            chunks=self._chunks,
            events=self._events,
            state=self._state,
            ownership=self.ownership,
            space=self.space,
            back_pressure=self._back_pressure,
            pipeline=parts.pipeline,
            acceptor=parts.acceptor,
            checkpoints=parts.checkpoints,
            log_rewriter=parts.log_rewriter,
            reader=reading.reader,
            tables=reading.tables,
            attributes=reading.attributes,
            storage=parts.storage,
            writer=writer,
            catalog=catalog,
            stale_log=self._stale_log,
            adoptions=adoptions,
            capture=capture,
            images=self._new_images(parts, capture, writer),
            closing=closing,
        )

    def _new_images(self, parts: _LogParts, capture: ImageCapture, writer: StorageWriter) -> ContainerImages | None:
        if parts.held is None:
            return None
        return ContainerImages(
            container_id=self.id,
            chunks=parts.held,
            pipeline=parts.pipeline,
            capture=capture,
            space=self.space,
            settings=self._settings.images,
            health=self._health,
            flush=writer.flush_all,
            refuse=self._stale_log.refuse,
        )

    async def _start_jobs(self, container: SegmentContainer) -> None:
        """Start the background jobs of a container that serves."""
        spawn = self.life.spawn
        await container.transients.drop_all()
        container.writer.start()
        spawn(container.transients.run())
        spawn(container.catalog.run())
        spawn(container.activity_watch.run())
        spawn(container.ownership.keep())
        spawn(container.space.watch_log())
        spawn(container.space.watch_storage())
        spawn(container.storage.lookups.finish())
        if self._stale_log.is_done:
            _start_deleting(container)
        else:
            spawn(_start_deleting_when_checked(container))

    def _space_changed(self) -> None:
        self._back_pressure.throttle.notify()
        self._events.on_storage_work()


def _start_deleting(container: SegmentContainer) -> None:
    """Start all jobs that delete from long-term storage. The log is known to be the newest."""
    spawn, storage, writer = container.life.spawn, container.storage, container.writer
    spawn(storage.orphans.run())
    storage.start_collecting()
    spawn(storage.run_sweeps())
    storage.start_joining(lambda: writer.is_pressed)
    if container.images is not None:
        spawn(container.images.run())


async def _start_deleting_when_checked(container: SegmentContainer) -> None:
    await container.stale_log.until_done()
    _start_deleting(container)


async def _run_table_job(life: ContainerLife, tables: Tables, what: str, segment: Segment) -> None:
    try:
        await tables.run(what, segment)
    except (InconsistentStateError, StorageNotPrimaryError) as error:
        life.fail(error)
    except UnreadableDataError as error:
        logger.error("container %d: %s of %s: %s", life.id, what, segment.name, error)
    except (PenstockError, OSError) as error:
        # Correctness does not depend on it; the next write to the table that finds it due starts it again.
        logger.info("container %d: %s of %s ended: %s", life.id, what, segment.name, error)
