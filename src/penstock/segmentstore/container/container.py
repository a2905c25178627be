"""`SegmentContainer`: the unit of ownership, fencing and recovery; holds the segments whose names hash to its id.

Life: `start` opens the log (which fences every other incarnation), replays it, finds out what long-term storage has,
and serves; the first failed log write, or any sign of corruption, ends it. There is no repair in place: recovery is
always by a new container that reads the log.

Source: segment store specification, sections 1.2, 1.3 and 2.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum

from penstock.model.errors import (
    BadAttributeError,
    BadEventNumberError,
    BadOffsetError,
    ContainerOfflineError,
    CorruptionError,
    InvalidArgumentError,
    NoSuchSegmentError,
    PenstockError,
    SegmentExistsError,
    SegmentMergedError,
    SegmentSealedError,
    SegmentTruncatedError,
    UnsupportedOperationError,
)
from penstock.model.names import is_transient_segment
from penstock.model.segments import NO_VALUE, Buffer, SegmentInfo
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.attribute_updates import AttributeUpdate, evaluate
from penstock.segmentstore.container.cache import Cache
from penstock.segmentstore.container.operations import (
    NO_WRITER,
    Checkpoint,
    Create,
    Delete,
    Merge,
    RareOperation,
    Seal,
    Truncate,
    UpdateAttributes,
    UpdatePolicy,
    encode_append_header,
)
from penstock.segmentstore.container.pipeline import CheckpointMark, OnDone, OperationPipeline, completer
from penstock.segmentstore.container.reader import SegmentReader
from penstock.segmentstore.container.recovery import Recovered, recover
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage import ContainerStorage
from penstock.segmentstore.container.storage_writer import StorageWriter
from penstock.segmentstore.container.tables import Tables
from penstock.segmentstore.settings import ContainerSettings
from penstock.segmentstore.tier1.durable_log import DurableLog
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage

logger = logging.getLogger(__name__)

#: Attributes of a transient segment, see the segment store specification, rule R5.5.
TRANSIENT_ATTRIBUTES_MAX = 16


class ContainerStatus(Enum):
    """Where a container is in its life."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class SegmentContainer:
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
    ) -> None:
        self.id = container_id
        self.status = ContainerStatus.NEW
        self.failure: BaseException | None = None
        self.recovered: Recovered | None = None
        self._log = log
        self._runtime = runtime
        self._settings = settings
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._background: set[asyncio.Task[None]] = set()
        self.state = ContainerState(container_id, cache, settings)
        self._chunks = chunks
        self.storage: ContainerStorage
        self.pipeline: OperationPipeline
        self.reader = SegmentReader(container_id, settings, self._storage_read)
        self.tables = Tables(
            settings,
            self.reader,
            append=self._append_internal,
            truncate=self._truncate_table,
            barrier=self._barrier_future,
            spawn=self._spawn_compaction,
        )
        self.writer: StorageWriter
        self._checkpoint_bytes = 0
        #: Durable checkpoints that the log was not truncated to yet, oldest first.
        self._checkpoints: deque[CheckpointMark] = deque()
        self._checkpoint_is_pending = False

    # Life.

    async def start(self) -> None:
        """Open and replay the log, find out what storage has, and serve. After an error the container is FAILED.

        Raises `LogDisabledError`, `CorruptionError` (the log is disabled then), `StorageError`.
        """
        self.status = ContainerStatus.STARTING
        try:
            await self._log.open()
            try:
                recovered = await recover(self._log, self.state)
            except CorruptionError:
                # Keep the evidence, and do not let the next incarnation loop over it.
                await self._log.disable()
                raise
            self.recovered = recovered
            # What was replayed counts, or a log would never be cut by containers that do little between restarts.
            self._checkpoint_bytes = -recovered.byte_count
            self.pipeline = OperationPipeline(
                self.id,
                self._log,
                last_sequence_number=recovered.last_sequence_number,
                last_address=recovered.last_address,
                fail=self._fail,
            )
            if not recovered.has_checkpoint:
                self._write_checkpoint()
                await self.pipeline.barrier()
            self.storage = ContainerStorage(
                self.id,
                self._chunks,
                state=self.state,
                tables=self.tables,
                submit=self.submit,
                epoch=self._log.epoch,
                runtime=self._runtime,
                settings=self._settings,
            )
            await self.storage.open(self.create)
            self.writer = StorageWriter(
                self.state,
                self.storage,
                settings=self._settings,
                submit=self.submit,
                checkpoint=self._maybe_checkpoint,
                fail=self._fail,
                is_log_open=lambda: self.pipeline.error is None,
            )
            self.status = ContainerStatus.RUNNING
            await self._drop_transient_segments()
            self.writer.start()
            if self.failure is not None:
                raise self.failure
        except BaseException as error:
            self.status = ContainerStatus.FAILED
            self.failure = self.failure or error
            await self._release()
            if self.failure is not error and isinstance(error, Exception):
                raise self.failure from error  # Why it failed says more than what was under way then.
            raise
        logger.info(
            "container %d runs: epoch %d, %d segments, replayed %d operations (%d bytes)",
            self.id,
            self._log.epoch,
            len(self.state.metadata.by_name),
            recovered.operation_count,
            recovered.byte_count,
        )

    async def _drop_transient_segments(self) -> None:
        """Delete what connections of an earlier life left behind: their large events can never be finished."""
        segments = self.state.metadata.by_name.values()
        names = [segment.name for segment in segments if segment.flags & SegmentFlags.TRANSIENT]
        await asyncio.gather(*map(self.delete, names))

    async def stop(self) -> None:
        """Finish what was accepted, then stop. Every pending call ends, at the latest with `ContainerOfflineError`."""
        if self.status in (ContainerStatus.STOPPED, ContainerStatus.STOPPING):
            return
        if self.status is ContainerStatus.RUNNING:
            self.status = ContainerStatus.STOPPING
        await self._release()
        self.status = ContainerStatus.STOPPED

    async def _release(self) -> None:
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if hasattr(self, "writer"):
            await self.writer.stop()
        try:
            async with asyncio.timeout(self._settings.stop_timeout_s):
                if hasattr(self, "pipeline"):
                    await self.pipeline.close()
                await self._log.close()
        except (TimeoutError, PenstockError, OSError) as error:
            # Whatever is still under way there, the next incarnation's open fences it.
            logger.warning("container %d: its log did not close: %r", self.id, error)
        finally:
            if hasattr(self, "pipeline"):
                self.pipeline.abandon("stopped")
            await self.reader.close()
            self._drop_memory()

    def _drop_memory(self) -> None:
        """End the waits of all readers and give the cache back."""
        offline = ContainerOfflineError(self.id, "stopped")
        for segment in self.state.metadata.by_id.values():
            for future in list(segment.waiters):
                if not future.done():
                    future.set_exception(offline)
            segment.waiters.clear()
            segment.index.clear()

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

    def _check_running(self) -> None:
        if self.status is not ContainerStatus.RUNNING:
            raise ContainerOfflineError(self.id, f"it is {self.status.value}")
        self.pipeline.check_open()

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a background job that ends with the container."""
        task = self._loop.create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Operations.

    def segment(self, name: str) -> Segment:
        """Return a live segment. Raises `NoSuchSegmentError`, `ContainerOfflineError`."""
        if self.status is not ContainerStatus.RUNNING:
            raise ContainerOfflineError(self.id, f"it is {self.status.value}")
        return self.state.metadata.get(name)

    def _live(self, segment: Segment) -> None:
        if segment.is_merged:
            raise SegmentMergedError(segment.name)
        if segment.is_deleted:
            raise NoSuchSegmentError(segment.name)

    async def submit(self, operation: RareOperation) -> None:
        """Log an operation that was accepted, wait until it is durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.pipeline.add_operation(operation, completer(future))
        await future

    async def create(
        self,
        name: str,
        *,
        flags: SegmentFlags = SegmentFlags.NONE,
        key_length: int = 0,
        scale_type: int = 0,
        target_rate: int = 0,
        rollover_bytes: int = 0,
    ) -> Segment:
        """Create a segment. Raises `SegmentExistsError` once the existing one is durable."""
        self.pipeline.check_open()
        metadata = self.state.metadata
        if name in metadata.by_name:
            await self.pipeline.barrier()
            raise SegmentExistsError(name)
        if is_transient_segment(name):
            flags |= SegmentFlags.TRANSIENT
        operation = Create(
            metadata.next_segment_id,
            name,
            int(flags),
            key_length,
            scale_type,
            target_rate,
            rollover_bytes,
            self._runtime.wall_clock_ms(),
        )
        segment = self.state.accept_create(operation)
        if segment.is_table:
            self.state.new_table(segment)
        await self.submit(operation)
        return segment

    def append(
        self,
        segment: Segment,
        data: Buffer,
        on_done: OnDone,
        *,
        event_count: int = 0,
        writer_id: bytes = NO_WRITER,
        event_number: int = NO_VALUE,
        stored_event_number: int = NO_VALUE,
        expected_offset: int | None = None,
    ) -> int:
        """Validate and accept an append; return the segment's length after it. `data` must not change any more.

        `on_done` is called when the bytes are durable, in the order of the calls. Raises at once, changing nothing:
        `SegmentSealedError`, `NoSuchSegmentError`, `SegmentMergedError`; `BadEventNumberError` when the writer's
        last number is not `stored_event_number`; `BadOffsetError`; `ContainerOfflineError`.
        """
        self.pipeline.check_open()
        if segment.is_sealed or segment.is_deleted:
            self._live(segment)
            raise SegmentSealedError(segment.name)
        if event_number != NO_VALUE:
            stored = segment.attributes.get(writer_id, NO_VALUE)
            if stored != stored_event_number:
                raise BadEventNumberError(segment.name, writer_id=writer_id, event_number=event_number, stored=stored)
        offset = segment.length
        if expected_offset is not None and expected_offset != offset:
            raise BadOffsetError(segment.name, expected=expected_offset, actual=offset)
        state = self.state
        pipeline = self.pipeline
        now_ms = self._runtime.wall_clock_ms()
        state.accept_append(
            segment,
            data,
            event_count=event_count,
            writer_id=writer_id,
            event_number=event_number,
            time_ms=now_ms,
        )
        end = segment.length
        number = pipeline.next_sequence_number()

        def done(error: BaseException | None) -> None:
            if error is None:
                state.durable_append(segment, number, offset, end)
            on_done(error)

        pipeline.add(
            encode_append_header(number, segment.id, offset, now_ms, event_count, event_number, writer_id), data, done
        )
        if (
            pipeline.logged_bytes - self._checkpoint_bytes > self._settings.checkpoint_log_bytes
            and not self._checkpoint_is_pending
        ):
            self._write_checkpoint()
        return end

    def _append_internal(self, segment: Segment, data: Buffer) -> asyncio.Future[None]:
        """Accept bytes of the container's own; the future ends when they are durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.append(segment, data, completer(future))
        return future

    async def seal(self, name: str) -> None:
        """Seal a segment. Raises `SegmentSealedError` once the earlier seal is durable."""
        self._check_running()
        segment = self.state.metadata.get(name)
        if segment.is_sealed:
            await self.pipeline.barrier()
            raise SegmentSealedError(name)
        future: asyncio.Future[None] = self._loop.create_future()
        self._accept_seal(segment, completer(future))
        await future

    def _accept_seal(self, segment: Segment, on_done: OnDone) -> None:
        operation = Seal(segment.id, segment.length, self._runtime.wall_clock_ms())
        self.state.accept_seal(segment, operation.time_ms)

        def done(error: BaseException | None) -> None:
            if error is None:
                self.state.durable_seal(segment, number)
            on_done(error)

        number = self.pipeline.add_operation(operation, done)

    async def truncate(self, name: str, offset: int) -> None:
        """Forget the bytes before `offset`. Raises `SegmentTruncatedError` outside [start, length]."""
        self._check_running()
        segment = self.state.metadata.get(name)
        if not segment.start_offset <= offset <= segment.length:
            await self.pipeline.barrier()
            raise SegmentTruncatedError(name, start_offset=segment.start_offset, offset=offset)
        if offset > segment.start_offset:
            self._accept_truncate(segment, offset)
        await self.pipeline.barrier()

    def _accept_truncate(self, segment: Segment, offset: int) -> None:
        operation = Truncate(segment.id, offset, self._runtime.wall_clock_ms())
        self.state.accept_truncate(segment, offset, operation.time_ms)

        def done(error: BaseException | None) -> None:
            if error is None:
                self.state.durable_truncate(segment, number, offset)

        number = self.pipeline.add_operation(operation, done)

    def _truncate_table(self, segment: Segment, offset: int) -> None:
        """Truncate a table whose head was compacted, unless it is gone."""
        self.pipeline.check_open()
        if not segment.is_deleted and offset > segment.start_offset:
            self._accept_truncate(segment, offset)

    async def delete(self, name: str) -> None:
        """Delete a segment; its storage is freed in the background. Raises `NoSuchSegmentError`."""
        self._check_running()
        segment = self.state.metadata.by_name.get(name)
        if segment is None:
            await self.pipeline.barrier()
            raise NoSuchSegmentError(name)
        self.state.accept_delete(segment)
        future: asyncio.Future[None] = self._loop.create_future()
        complete = completer(future)

        def done(error: BaseException | None) -> None:
            if error is None:
                self.state.durable_delete(segment)
            complete(error)

        self.pipeline.add_operation(Delete(segment.id), done)
        await future

    async def merge(self, target_name: str, source_name: str, updates: Sequence[AttributeUpdate] = ()) -> int:
        """Append all of `source` to `target` and delete it; return the target's length.

        `updates` change the target's attributes in the same step. A source that does not exist counts as merged
        already. Raises `SegmentSealedError` (of the target), `BadAttributeError` when a condition of `updates` does
        not hold, `InvalidArgumentError` for a truncated source or a table; nothing has changed then.
        """
        self._check_running()
        metadata = self.state.metadata
        target = metadata.get(target_name)
        source = metadata.by_name.get(source_name)
        if source is None:
            await self.pipeline.barrier()
            return target.durable_length
        if target.is_sealed:
            await self.pipeline.barrier()
            raise SegmentSealedError(target_name)
        if source is target or source.is_table or target.is_table:
            raise InvalidArgumentError(
                f"{source_name} cannot be merged into {target_name}: both must be stream segments"
            )
        if source.start_offset:
            raise InvalidArgumentError(f"{source_name} cannot be merged: it was truncated at {source.start_offset}")
        try:
            values = evaluate(target_name, target.attributes, updates)
        except BadAttributeError:
            await self.pipeline.barrier()
            raise
        if not source.is_sealed:
            # Accepted right before the merge, nothing can come between; the merge is durable only if the seal is.
            self._accept_seal(source, lambda _: None)
        offset = target.length
        # The pieces of a large event are one event.
        event_count = 1 if source.flags & SegmentFlags.TRANSIENT else source.event_count
        operation = Merge(
            target.id, source.id, offset, source.length, event_count, self._runtime.wall_clock_ms(), values
        )
        self.state.accept_merge(target, source, operation)
        end = target.length
        future: asyncio.Future[None] = self._loop.create_future()
        complete = completer(future)

        def done(error: BaseException | None) -> None:
            if error is None:
                self.state.durable_merge(target, source, number, offset, end)
            complete(error)

        number = self.pipeline.add_operation(operation, done)
        await future
        return end

    async def update_policy(self, name: str, *, scale_type: int, target_rate: int) -> None:
        """Store a segment's scaling policy."""
        self._check_running()
        segment = self.state.metadata.get(name)
        if segment.is_sealed:
            raise SegmentSealedError(name)
        self.state.accept_policy(segment, scale_type, target_rate)
        await self.submit(UpdatePolicy(segment.id, scale_type, target_rate))

    async def get_attribute(self, name: str, attribute_id: bytes) -> int:
        """Return a durable attribute value, or `NO_VALUE`."""
        segment = self.segment(name)
        value = segment.attribute(attribute_id)
        await self.pipeline.barrier()
        return value

    async def update_attribute(self, name: str, attribute_id: bytes, *, value: int, expected: int) -> bool:
        """Compare-and-set an attribute; return whether it matched, once that answer is durable."""
        self._check_running()
        segment = self.state.metadata.get(name)
        if segment.is_sealed:
            raise SegmentSealedError(name)
        if segment.attribute(attribute_id) != expected:
            await self.pipeline.barrier()
            return False
        if (
            segment.flags & SegmentFlags.TRANSIENT
            and attribute_id not in segment.attributes
            and len(segment.attributes) >= TRANSIENT_ATTRIBUTES_MAX
        ):
            raise UnsupportedOperationError(
                f"{name}: a transient segment has at most {TRANSIENT_ATTRIBUTES_MAX} attributes"
            )
        self.state.accept_attributes(segment, {attribute_id: value})
        await self.submit(UpdateAttributes(segment.id, {attribute_id: value}))
        return True

    async def info(self, name: str) -> SegmentInfo:
        """Return the durable state of a segment."""
        segment = self.segment(name)
        await self.pipeline.barrier()
        self._live(segment)
        return SegmentInfo(
            name,
            segment.durable_start_offset,
            segment.durable_length,
            segment.durable_sealed,
            segment.last_modified_ms,
            segment.is_table,
        )

    async def delete_table(self, name: str, *, must_be_empty: bool) -> None:
        """Delete a table segment."""
        segment = self.segment(name)
        if not segment.is_table:
            raise UnsupportedOperationError(f"{name} is not a table segment")
        if must_be_empty:
            await self.tables.check_empty(segment)
        await self.delete(name)

    def _barrier_future(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self.pipeline.when_durable(completer(future))
        return future

    def _spawn_compaction(self, what: str, segment: Segment) -> None:
        async def compact() -> None:
            try:
                await self.tables.compact(segment)
            except CorruptionError as error:
                self._fail(error)
            except PenstockError as error:
                # Nothing depends on it; the next write to the table that finds it due begins again.
                logger.info("container %d: %s of %s ended: %s", self.id, what, segment.name, error)

        self.spawn(compact())

    # Storage and checkpoints.

    async def _storage_read(self, segment: Segment, offset: int, length: int) -> bytes:
        return await self.storage.read(segment, offset, length)

    def _write_checkpoint(self) -> None:
        self._checkpoint_is_pending = True

        def durable(mark: CheckpointMark) -> None:
            self._checkpoint_is_pending = False
            if mark.address is not None:
                self._checkpoints.append(mark)
                if len(self._checkpoints) > self._settings.checkpoints_max:
                    # Flushing lags far behind: keep every other one.
                    self._checkpoints = deque(list(self._checkpoints)[::2])

        self.pipeline.add_checkpoint(Checkpoint(self.state.metadata.snapshot()), durable)
        # Not before it was added: a large one must not call for the next.
        self._checkpoint_bytes = self.pipeline.logged_bytes

    def _maybe_checkpoint(self, *, is_idle: bool) -> None:
        """Write a checkpoint when enough was logged since the last one; truncate the log to the last that allows it.

        Earlier checkpoints stay usable: under load there is always something unflushed before the newest one.
        """
        settings = self._settings
        if self._checkpoints:
            first_unflushed = min(map(self.storage.first_unflushed, self.state.unflushed.values()), default=None)
            usable: CheckpointMark | None = None
            while self._checkpoints and (
                first_unflushed is None or self._checkpoints[0].sequence_number < first_unflushed
            ):
                usable = self._checkpoints.popleft()
            if usable is not None:
                self.spawn(self._truncate_log(usable))
        limit = settings.checkpoint_log_bytes_idle if is_idle else settings.checkpoint_log_bytes
        if not self._checkpoint_is_pending and self.pipeline.logged_bytes - self._checkpoint_bytes > limit:
            self._write_checkpoint()

    async def _truncate_log(self, mark: CheckpointMark) -> None:
        assert mark.address is not None
        try:
            await self._log.truncate(mark.address)
        except (PenstockError, OSError) as error:
            self._fail(error)

    async def flush(self) -> None:
        """Move everything that is durable now to long-term storage."""
        self._check_running()
        await self.pipeline.barrier()
        await self.writer.flush_all()

    def segments(self) -> Sequence[Segment]:
        """Return the live segments."""
        return list(self.state.metadata.by_name.values())

