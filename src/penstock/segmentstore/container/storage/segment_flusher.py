"""`SegmentFlusher`: brings one segment's long-term storage up to date with the durable log.

Operations of a segment are applied in order. A write with an unknown outcome needs no comparison of bytes: a segment's
length in storage is committed in the container's fenced log, bytes after it are never read, and the next write goes to
a new chunk (`tier2.segment_write`). The flusher therefore looks the segment's length up again and continues from there.

A merged segment that storage has nothing of (nearly every small transaction) gets no chunks of its own: its bytes are
written to the target's chunks, together with those of other sources and the appends between them. The source keeps its
bytes, and the log its records, until it is forgotten, so a crash in between only leaves a target whose flush continues.
A source that storage has a part of is completed there and moved by `concat`.

Source: segment-store 7.2 to 7.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from penstock.model.errors import (
    InconsistentStateError,
    LogFencedError,
    NoSuchSegmentError,
    PenstockError,
    StorageFullError,
    StorageNotPrimaryError,
    UnreadableDataError,
)
from penstock.model.segments import Buffer
from penstock.segmentstore.container.log.operations import Forget
from penstock.segmentstore.container.pending import PendingAppend, PendingMerge, PendingSeal, PendingTruncate
from penstock.segmentstore.container.reads.read_index import UnflushedBytes
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.space import SpaceWatch
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage.container_storage import ContainerStorage, Submit
from penstock.segmentstore.container_settings import ContainerSettings

#: Another incarnation owns the container: these errors end this one, whatever segment they concern.
_SHUT_OUT = (LogFencedError, StorageNotPrimaryError)


class _Step(Enum):
    """What was done with the piece at the head of a segment's queue."""

    #: Storage has it: it may leave the queue.
    DONE = "done"
    #: Inspect the head of the queue again.
    REPEAT = "repeat"
    #: The rest is left to the next flush.
    STOP = "stop"


class SegmentFlusher:
    """Flushes and frees segments of one container. Invariant: at most one change of a segment in storage at a time.

    `check_open` raises once the container has released its memory.
    """

    def __init__(
        self,
        state: ContainerState,
        storage: ContainerStorage,
        *,
        settings: ContainerSettings,
        submit: Submit,
        check_open: Callable[[], None],
        space: SpaceWatch,
    ) -> None:
        self._space = space
        #: Segments whose bytes wait for space -> the offset they were truncated at in storage.
        self._freed_before: dict[int, int] = {}
        self._state = state
        self._storage = storage
        self._settings = settings
        self._submit = submit
        self._check_open = check_open

    def has_to_wait(self, segment: Segment) -> bool:
        """Whether a segment has no work until long-term storage has space for user bytes."""
        if not self._space.is_storage_low:
            self._freed_before.clear()
            return False
        if segment.is_system or not segment.pending:
            return False
        head = segment.pending[0]
        if isinstance(head, PendingAppend) and (
            head.end <= segment.storage_length or segment.storage_length < segment.durable_start_offset
        ):
            return False
        if isinstance(head, PendingMerge) and self._can_leave_out(segment, head):
            return False
        is_about_bytes = isinstance(head, (PendingAppend, PendingMerge))
        return is_about_bytes and self._can_free_before(segment) <= self._freed_before.get(segment.id, 0)

    @staticmethod
    def _can_leave_out(target: Segment, piece: PendingMerge[Segment]) -> bool:
        """Return whether a merge not done in storage is wholly truncated, and its source has no pending merges."""
        return target.storage_length < piece.end <= target.durable_start_offset and not any(
            isinstance(waiting, PendingMerge) for waiting in piece.source.pending
        )

    @staticmethod
    def _can_free_before(segment: Segment) -> int:
        return min(segment.durable_start_offset, segment.storage_length)

    async def _wait_for_room(self, segment: Segment) -> None:
        """Free truncated bytes of the segment, ahead of earlier operations, and raise `StorageFullError`.

        Truncations are normally applied after the bytes before them. But they free space, and no read starts before the
        start offset in the log.
        """
        before = self._can_free_before(segment)
        if before > self._freed_before.get(segment.id, 0):
            await self._storage.of(segment).truncate(segment.name, before)
            self._freed_before[segment.id] = before
        raise StorageFullError(
            f"{segment.name}: its bytes stay in the log until long-term storage has room again "
            "(segment_store.container.space.storage_free_bytes_min)"
        )

    async def flush(self, segment: Segment) -> None:
        """Bring one segment's storage up to date with the currently durable operations.

        Does nothing for a segment that is merged: the flush of its target moves its bytes. A segment whose name is
        taken in storage is left to a flush after the name is free. Raises `StorageFullError` for user bytes while
        long-term storage has no space for them.
        """
        for target in reversed(self._targets_before(segment)):
            await self._flush(target, is_for_merge=True)
        await self._flush(segment)

    def _targets_before(self, segment: Segment) -> list[Segment]:
        """Return the merged segments whose flush frees the name of `segment` in storage; the last one comes first.

        Usually the flush of a merged segment is left to the target of its own merge. But that target may wait for this
        name: A is merged into B, created again, and B is merged into the new A. B has a pending merge, so it gets
        chunks of its own in any case, and may get them now. The list ends: each of these merges was accepted before
        its target was merged, and so before the merge of the entry before it.
        """
        targets: list[Segment] = []
        while (holder := self._state.holder_of_name(segment)) is not None:
            merge = self._state.metadata.merges.get(holder.id)
            target = None if merge is None else self._state.gone.get(merge[0])
            if target is None or not self._is_merged(target):
                break  # The holder is deleted, or its target is flushed by itself.
            targets.append(target)
            segment = target
        return targets

    async def _flush(self, segment: Segment, *, is_for_merge: bool = False) -> None:
        await self._storage.lookups.ended()
        try:
            async with segment.flush_lock:
                # This flush may have been requested before the merge. It must not give the segment chunks of its own
                # while its bytes are written to those of the target.
                if is_for_merge or not self._is_merged(segment):
                    await self._flush_locked(segment)
        except BaseException as error:
            # Look the segment's length up again before the next write.
            segment.is_storage_open = False
            if segment.is_deleted and isinstance(error, PenstockError) and not isinstance(error, _SHUT_OUT):
                return  # Storage was freeing it at the same time.
            if isinstance(error, UnreadableDataError):
                await self._storage.judge(error)
            raise

    def _is_merged(self, segment: Segment) -> bool:
        """Return whether a durable merge of the segment waits for the flush of its target."""
        return segment.id in self._state.gone and segment.id in self._state.metadata.merges

    async def _flush_locked(self, segment: Segment) -> None:
        if segment.is_inactive or self._state.is_name_taken(segment):
            return  # Storage has all of an inactive segment; its id may now belong to another object.
        if segment.damage is not None and not segment.is_deleted:
            raise segment.damage.with_traceback(None)  # Raised repeatedly: do not accumulate tracebacks.
        # Appends that become durable meanwhile wait for the next flush, so that other segments get their turn.
        stop = segment.durable_length
        pending = segment.pending
        pending.begin_flush()
        if pending and not segment.is_deleted and not segment.is_storage_open:
            await self._open(segment)
        while pending and not segment.is_deleted:
            piece = pending[0]
            match piece:
                case PendingAppend():
                    step = await self._flush_append(segment, piece, stop)
                case PendingMerge():
                    step = await self._flush_merge(segment, piece, stop)
                case PendingSeal():
                    step = await self._flush_seal(segment)
                case PendingTruncate():
                    step = await self._flush_truncation(segment, piece)
            if step is _Step.STOP:
                return
            if step is _Step.DONE and pending and pending[0] is piece:
                pending.popleft()
        if not pending:
            self._state.unflushed.pop(segment.id, None)

    async def _flush_append(self, segment: Segment, piece: PendingAppend, stop: int) -> _Step:
        if piece.end > segment.storage_length:
            if segment.storage_length >= stop:
                return _Step.STOP
            if segment.storage_length < segment.durable_start_offset:
                await self._skip(segment)
                return _Step.REPEAT
            await self._write(segment, stop)
        return _Step.REPEAT if piece.end > segment.storage_length else _Step.DONE

    async def _flush_merge(self, segment: Segment, piece: PendingMerge[Segment], stop: int) -> _Step:
        if piece.start >= stop and piece.end > segment.storage_length:
            return _Step.STOP
        if await self._is_in_memory(segment, piece):
            await self._write(segment, stop)
        elif not await self._merge(segment, piece):
            return _Step.STOP
        return _Step.REPEAT  # A completed merge has left the queue.

    async def _flush_seal(self, segment: Segment) -> _Step:
        if segment.storage_length and not segment.storage_sealed:
            await self._storage.of(segment).seal(segment.name)
        segment.storage_sealed = True
        return _Step.DONE

    async def _flush_truncation(self, segment: Segment, piece: PendingTruncate) -> _Step:
        if segment.storage_length:
            await self._storage.of(segment).truncate(segment.name, min(piece.offset, segment.storage_length))
        segment.index.truncate(segment.durable_start_offset)
        return _Step.DONE

    async def _open(self, segment: Segment) -> None:
        stored = await self._storage.open_for_write(segment)
        length = stored.length if stored is not None else 0
        if length > segment.durable_length or length < segment.storage_length:
            raise InconsistentStateError(
                segment.name,
                min(length, segment.durable_length),
                f"long-term storage has {length} bytes, the container stored {segment.storage_length} "
                f"of {segment.durable_length}",
            )
        before, segment.storage_length = segment.storage_length, length
        segment.index.stored(before)
        segment.pending.flushed(length)
        segment.storage_sealed = stored is not None and stored.is_sealed
        segment.is_storage_open = True

    async def _skip(self, segment: Segment) -> None:
        """Skip bytes that were truncated before they were moved: they need no space in storage or in the log."""
        before = segment.storage_length
        end = segment.pending.run_end(segment.durable_start_offset)
        await self._storage.of(segment).skip(segment.name, end)
        segment.storage_length = end
        segment.index.stored(before)
        segment.index.truncate(segment.durable_start_offset)
        segment.pending.flushed(end)

    async def _write(self, segment: Segment, stop: int) -> None:
        """Write the pending bytes at the head of the queue that are in memory.

        If several writes are needed before `stop`, each runs while the previous one is recorded. Merges that are stored
        are completed before more writes begin.
        """
        if self._space.is_storage_low and not segment.is_system:
            await self._wait_for_room(segment)
        start = segment.storage_length
        reach = await self._reach(segment, start)
        if reach <= start:
            return  # The merge at the head was truncated, or its segment got chunks, meanwhile: check it again.
        # Pending small pieces are written together: each write costs a sync and a record.
        write_bytes_max = self._settings.flush_write_bytes_max
        first = _waiting(segment, start, min(start + write_bytes_max, reach))
        if first is None:
            self._check_open()
            if segment.is_deleted:
                raise NoSuchSegmentError(segment.name)
            raise InconsistentStateError(segment.name, start, "bytes left memory before long-term storage had them")

        def stored(length: int) -> None:
            before, segment.storage_length = segment.storage_length, length
            segment.index.stored(before)
            segment.pending.flushed(length)

        def take(position: int) -> UnflushedBytes | None:
            if position == start:
                return first
            if position >= min(stop, reach) or self._has_other_work(segment, position):
                return None
            return _waiting(segment, position, min(position + write_bytes_max, reach))

        if start + first.length >= min(stop, reach):
            stored(await self._storage.write(segment, start, first))
        else:
            await self._storage.write_ahead(segment, start, take, stored)

    async def _reach(self, segment: Segment, start: int) -> int:
        """Return the offset up to which pending bytes can be written without checking merged segments again."""
        settings = self._settings
        scan_end = start + settings.flush_writes_max * settings.flush_write_bytes_max
        reach = start
        for piece in list(segment.pending):
            if isinstance(piece, PendingMerge):
                if piece.start >= scan_end or not await self._is_in_memory(segment, piece):
                    return piece.start
            elif not isinstance(piece, PendingAppend):
                break
            reach = piece.end
        return reach

    def _has_other_work(self, segment: Segment, position: int) -> bool:
        """Return whether other work must be done before bytes from `position` on are written."""
        head = segment.pending[0] if segment.pending else None
        return (
            segment.is_deleted
            or position < segment.durable_start_offset
            or (self._space.is_storage_low and not segment.is_system)
            or (isinstance(head, PendingMerge) and head.end <= segment.storage_length)
        )

    async def _is_in_memory(self, target: Segment, piece: PendingMerge[Segment]) -> bool:
        """Return whether a merge is pending and storage has none of its bytes, so that the source needs no chunks.

        Only the merge starts flushes of the source, so a merge done this way once, before a crash, is always done this
        way. But a flush that began before the merge may still be running; then the source has chunks.
        """
        source = piece.source
        # A part that storage has may have been moved by a `concat` whose result was lost.
        if target.storage_length >= piece.end or source.storage_length or self._can_leave_out(target, piece):
            return False
        if source.flush_lock.locked():
            return False
        async with source.flush_lock:  # Another task may be about to acquire it.
            if not source.is_storage_open and not self._state.is_name_taken(source):
                await self._open(source)
            return _is_memory_alone(source)

    async def _merge(self, target: Segment, piece: PendingMerge[Segment]) -> bool:
        """Merge in storage; return whether that is done (False if the target is being deleted).

        Also completes all following merges that storage already has.
        """
        source = piece.source
        moved: Segment | None = None
        if self._can_leave_out(target, piece):
            await self._storage.of(target).skip(target.name, piece.end)
            target.storage_length = piece.end
        if target.storage_length < piece.end:
            while source.storage_length < source.length or source.pending:
                if target.is_deleted or source.is_deleted or self._state.is_name_taken(source):
                    return False
                await self._flush(source, is_for_merge=True)
            storage = self._storage.of(target)
            await storage.seal(source.name)
            await storage.concat(target.name, piece.start, source.name)
            target.storage_length = piece.end
            moved = source
        merged: list[Segment] = []
        while target.pending:
            head = target.pending[0]
            if not isinstance(head, PendingMerge) or head.end > target.storage_length:
                break
            source = head.source
            if source is not moved and not self._state.is_name_taken(source):
                await self._delete_stored(source)
            await self._finish_merge(target, source)
            if target.pending and target.pending[0] is head:
                target.pending.popleft()
                target.pending.flushed(target.storage_length)
            merged.append(source)
        # Submitted together, so that the log can batch them.
        results = await asyncio.gather(*map(self._forget_merged, merged), return_exceptions=True)
        for error in results:
            if error is not None:
                raise error
        return True

    async def _delete_stored(self, source: Segment) -> None:
        """Free the storage of a merged segment whose bytes are not needed, without those of its own sources."""
        async with source.flush_lock:  # A flush that began before the merge may still be running.
            if _is_memory_alone(source):
                return
            try:
                await self._storage.of(source).delete(source.name)
            except NoSuchSegmentError:
                pass  # It was never flushed.
            source.storage_length = source.length
            source.index.stored(0)

    async def _finish_merge(self, target: Segment, source: Segment) -> None:
        """Move the in-memory bytes of a source merged in storage, and those of its own sources, to the target."""
        while source.pending:
            piece = source.pending.popleft()
            if isinstance(piece, PendingMerge):
                await self._finish_merge(source, piece.source)
                await self._forget_merged(piece.source)
        target.index.complete_merge(source)
        self._state.metadata.merges.pop(source.id, None)

    async def _forget_merged(self, source: Segment) -> None:
        async with source.flush_lock:  # A running flush of its attributes would recreate the index.
            await self._forget(source)

    async def _forget(self, segment: Segment) -> None:
        table = segment.table
        if table is None:
            await self._storage.delete_indexes(segment)
        else:
            async with table.flush_lock:  # For the same reason.
                await self._storage.delete_indexes(segment)
        await self._submit(Forget(segment.id), lambda: self._state.accept_forget(segment))
        self._state.durable_forget(segment.id)

    async def free(self, segment: Segment) -> bool:
        """Free the storage of a deleted or merged segment; return whether this call did. A merge frees its source."""
        await self._storage.lookups.ended()
        gone = self._state.gone
        async with segment.flush_lock:
            # Another call may have freed it meanwhile, and a new segment may have its name.
            if gone.get(segment.id) is not segment or segment.id in self._state.metadata.merges:
                return False
            try:
                # If the name is reused, storage under it belongs to the earlier segment, whose bytes a merge may need.
                if segment.is_deleted and not self._state.is_name_taken(segment):
                    try:
                        await self._storage.of(segment).delete(segment.name)
                    except NoSuchSegmentError:
                        pass  # Never flushed, or freed before a crash.
                await self._forget(segment)
            except UnreadableDataError as error:
                await self._storage.judge(error)
                raise
            return True


def _is_memory_alone(segment: Segment) -> bool:
    """Return whether storage is known to have nothing of a segment, and the segment has no pending merges."""
    return (
        segment.is_storage_open
        and not segment.storage_length
        and not any(isinstance(waiting, PendingMerge) for waiting in segment.pending)
    )


def _waiting(segment: Segment, start: int, limit: int) -> UnflushedBytes | None:
    """Return pending bytes of a segment and its sources, from `start` up to `limit`; None if there are none."""
    data: list[Buffer] = []
    checksummed_blocks: list[tuple[Buffer, int]] = []
    position = start
    for piece in segment.pending:
        if isinstance(piece, PendingAppend):
            index, shift = segment.index, 0
        elif isinstance(piece, PendingMerge) and _is_memory_alone(piece.source):
            index, shift = piece.source.index, piece.start
        else:
            break
        stop = min(piece.end, limit)
        if stop <= position:
            if piece.end > position:
                break
            continue
        found = index.arrived(position - shift, stop - position) if piece.start <= position else None
        if found is None:
            break
        data += found.data
        checksummed_blocks += found.checksummed_blocks
        position += found.length
        if position < stop:
            break
    return UnflushedBytes(data, position - start, checksummed_blocks) if data else None
