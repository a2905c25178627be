"""`StorageWriter`: moves durable data from the log and the cache to long-term storage, in the background.

One loop per container: free what deleted segments left, flush what is due, then let the log be truncated. Per
segment the order of operations is kept. A failure is logged and tried again for ever, except those that say that
this incarnation must not go on: corruption, and the loss of ownership.

Source: segment store specification, section 7.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from penstock.model.errors import (
    ContainerOfflineError,
    CorruptionError,
    LogFencedError,
    NoSuchSegmentError,
    PenstockError,
    StorageNotPrimaryError,
)
from penstock.segmentstore.container.operations import Forget, RareOperation
from penstock.segmentstore.container.read_index import Found
from penstock.segmentstore.container.segment import (
    PendingAppend,
    PendingMerge,
    PendingSeal,
    PendingTruncate,
    Segment,
)
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage import ContainerStorage
from penstock.segmentstore.settings import ContainerSettings

logger = logging.getLogger(__name__)


class MaybeCheckpoint(Protocol):
    """Writes a checkpoint and truncates the log when that is due."""

    def __call__(self, *, is_idle: bool) -> None:
        """`is_idle`: nothing waits to be flushed."""


class Submit(Protocol):
    """Makes an accepted operation durable."""

    async def __call__(self, operation: RareOperation) -> None:
        """Return when it is durable."""


class StorageWriter:
    """The storage writer of one container. Invariant: at most one flush of a segment at a time."""

    def __init__(
        self,
        state: ContainerState,
        storage: ContainerStorage,
        *,
        settings: ContainerSettings,
        submit: Submit,
        checkpoint: MaybeCheckpoint,
        fail: Callable[[BaseException], None],
        is_log_open: Callable[[], bool],
    ) -> None:
        self._state = state
        self._storage = storage
        self._settings = settings
        self._submit = submit
        self._checkpoint = checkpoint
        self._fail = fail
        self._is_log_open = is_log_open
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        self.failed_round_count = 0
        state.on_storage_work = self._wake.set

    def start(self) -> None:
        """Begin the loop."""
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """End the loop; a write under way is abandoned, and found again by the next incarnation."""
        self._is_stopped = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        settings = self._settings
        while True:
            try:
                # Not wait_for: in Python 3.11 that loses a cancellation which comes together with the event.
                async with asyncio.timeout(settings.writer_interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass  # Look for due work all the same.
            self._wake.clear()
            try:
                await self._round(is_forced=False)
            except (CorruptionError, LogFencedError, StorageNotPrimaryError) as error:
                self._fail(error)
                return
            except (PenstockError, OSError) as error:
                if not self._is_log_open():
                    return  # The log failed, and the container with it.
                self.failed_round_count += 1
                logger.warning(
                    "container %d: flush to long-term storage failed, trying again in %.1f s: %s",
                    self._state.metadata.container_id,
                    settings.writer_retry_s,
                    error,
                )
                await asyncio.sleep(settings.writer_retry_s)
            except Exception as error:
                self._fail(error)
                raise

    async def flush_all(self) -> None:
        """Flush until nothing that was durable at the call waits any more. Raises what a flush raises."""
        waiting = {segment.id: segment.durable_length for segment in self._state.unflushed.values()}
        while any(
            segment_id in self._state.unflushed and self._state.unflushed[segment_id].storage_length < length
            for segment_id, length in waiting.items()
        ):
            self._check_not_stopped()
            await self._round(is_forced=True)
        await self._round(is_forced=True)

    def _check_not_stopped(self) -> None:
        if self._is_stopped:
            raise ContainerOfflineError(self._state.metadata.container_id, "stopped")

    async def _round(self, *, is_forced: bool) -> None:
        if self._state.gone:
            await self._free_gone_segments()
        is_pressed = self._state.cache.used_bytes > self._state.cache.settings.target_bytes
        now_s = self._loop.time()
        due = [
            segment
            for segment in self._state.unflushed.values()
            if segment.id not in self._state.gone and (is_forced or is_pressed or self._is_due(segment, now_s))
        ]
        errors: list[BaseException] = []
        for at in range(0, len(due), self._settings.flush_concurrency):
            group = due[at : at + self._settings.flush_concurrency]
            results = await asyncio.gather(*map(self.flush, group), return_exceptions=True)
            errors += [result for result in results if isinstance(result, BaseException)]
        if is_pressed:
            self._state.cache.evict()
        self._checkpoint(is_idle=not self._state.unflushed)
        for error in errors:
            if isinstance(error, (CorruptionError, LogFencedError, StorageNotPrimaryError)):
                raise error
        if errors:
            raise errors[0]

    def _is_due(self, segment: Segment, now_s: float) -> bool:
        pending = segment.pending
        if not pending:
            return True
        first = pending[0]
        if not isinstance(first, PendingAppend):
            return True
        return (
            segment.durable_length - segment.storage_length >= self._settings.flush_bytes
            or now_s - first.since_s >= self._settings.flush_age_s
            or not isinstance(pending[-1], PendingAppend)
        )

    async def flush(self, segment: Segment) -> None:
        """Bring one segment's storage up to date with what is durable now."""
        try:
            async with segment.flush_lock:
                await self._flush_locked(segment)
        except BaseException as error:
            # Whatever was in doubt is looked up again before the next write.
            segment.is_storage_open = False
            if segment.is_deleted and isinstance(error, PenstockError) and not isinstance(error, LogFencedError):
                return  # Storage was in the middle of freeing it.
            raise

    async def _flush_locked(self, segment: Segment) -> None:
        if self._state.gone and self._state.is_name_taken(segment):
            return
        # Appends that become durable meanwhile wait for the next round: the others want their turn.
        stop = segment.durable_length
        pending = segment.pending
        if pending and not segment.is_deleted and not segment.is_storage_open:
            await self._open(segment)
        while pending and not segment.is_deleted:
            piece = pending[0]
            match piece:
                case PendingAppend():
                    if piece.end > segment.storage_length:
                        if segment.storage_length >= stop:
                            return
                        await self._write(segment, piece)
                    if piece.end > segment.storage_length:
                        continue
                case PendingMerge():
                    if not await self._merge(segment, piece):
                        return
                case PendingSeal():
                    if segment.storage_length and not segment.storage_sealed:
                        await self._storage.of(segment).seal(segment.name)
                    segment.storage_sealed = True
                case PendingTruncate():
                    if segment.storage_length:
                        await self._storage.of(segment).truncate(
                            segment.name, min(piece.offset, segment.storage_length)
                        )
                    segment.index.truncate(segment.durable_start_offset)
            if pending and pending[0] is piece:
                pending.popleft()
        if not pending:
            self._state.unflushed.pop(segment.id, None)

    async def _open(self, segment: Segment) -> None:
        stored = await self._storage.open_for_write(segment)
        length = stored.length if stored is not None else 0
        if length > segment.durable_length or length < segment.storage_length:
            raise CorruptionError(
                segment.name,
                min(length, segment.durable_length),
                f"long-term storage has {length} bytes, the container stored {segment.storage_length} "
                f"of {segment.durable_length}",
            )
        segment.storage_length = length
        segment.storage_sealed = stored is not None and stored.is_sealed
        segment.is_storage_open = True

    async def _write(self, segment: Segment, piece: PendingAppend) -> None:
        start = max(piece.start, segment.storage_length)
        length = min(piece.end - start, self._settings.flush_write_bytes_max)
        segment.index.freeze_tail()
        found = segment.index.lookup(start, length)
        if not isinstance(found, Found):
            self._check_not_stopped()
            if segment.is_deleted:
                raise NoSuchSegmentError(segment.name)
            raise CorruptionError(segment.name, start, "bytes that long-term storage does not have left the memory")
        segment.storage_length = await self._storage.write(segment, start, found.data)

    async def _merge(self, target: Segment, piece: PendingMerge) -> bool:
        """Merge in storage, and say whether that is done: not if the target is being deleted."""
        source = piece.source
        if target.storage_length < piece.end:
            while source.storage_length < source.length or source.pending:
                if target.is_deleted or source.is_deleted or self._state.is_name_taken(source):
                    return False
                await self.flush(source)
            storage = self._storage.of(target)
            await storage.seal(source.name)
            await storage.concat(target.name, piece.start, source.name)
            target.storage_length = piece.end
        await self._finish_merge(target, source)
        if target.pending and target.pending[0] is piece:
            target.pending.popleft()
        await self._forget(source)
        return True

    async def _finish_merge(self, target: Segment, source: Segment) -> None:
        """Make the target's what is in memory of a source that storage has merged, and of its own sources."""
        while source.pending:
            piece = source.pending.popleft()
            if isinstance(piece, PendingMerge):
                await self._finish_merge(source, piece.source)
                await self._forget(piece.source)
        target.index.complete_merge(source)
        self._state.metadata.merges.pop(source.id, None)

    async def _forget(self, segment: Segment) -> None:
        self._state.accept_forget(segment)
        await self._submit(Forget(segment.id))
        self._state.durable_forget(segment.id)

    async def _free_gone_segments(self) -> None:
        gone = self._state.gone
        for segment in list(gone.values()):
            async with segment.flush_lock:
                # Another round may have freed it meanwhile, and a new segment may have its name.
                if gone.get(segment.id) is not segment or segment.id in self._state.metadata.merges:
                    continue  # Its bytes are the target's; the merge will free it.
                if segment.is_deleted:
                    try:
                        await self._storage.of(segment).delete(segment.name)
                    except NoSuchSegmentError:
                        pass  # Never flushed, or freed before a crash.
                await self._forget(segment)
