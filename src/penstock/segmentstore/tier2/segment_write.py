"""Write to a stored segment: assign the bytes to chunks, and commit the new lengths.

A write has two steps: the bytes are written to chunks, then a commit updates the lengths. Consecutive writes that each
have chunks of their own may share a commit (`commit_staged`). New bytes are not read
before the commit, so a failure in between leaves only bytes after a chunk's recorded length, or whole chunks without a
record. In between, the checksums for the chunks' records are computed, and the bytes written are compared with those
that arrived (`written_checksums`).

A chunk is appended to only if all of this holds, else a new one is begun: the storage can append; this epoch created
the chunk, for this segment; the segment was not claimed since its last write; the chunk is not full; there are no bytes
after its recorded length; the storage does not refuse it. Source: segment-store 8.5 and 8.6
(R8.13, G10).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from penstock.model.errors import (
    BadChunkOffsetError,
    BadOffsetError,
    ChunkNotSettledError,
    CorruptionError,
    MissingChunkError,
    NoSuchChunkError,
    SegmentSealedError,
    StorageConflictError,
    StorageError,
    StorageNotPrimaryError,
)
from penstock.model.names import SYSTEM_SCOPE
from penstock.model.segments import Buffer
from penstock.segmentstore.tier2.chunk_creation import create_chunk, demand_all, discard_chunks
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.records import ChunkRecord, Extent, StoredSegmentRecord, check, empty_segment
from penstock.segmentstore.tier2.segment_removal import finish_deletion
from penstock.segmentstore.tier2.storage_context import StorageContext
from penstock.segmentstore.tier2.written_checksums import Growth, sum_written

_log = logging.getLogger(__name__)


async def write_segment(
    context: StorageContext,
    segment: str,
    offset: int,
    data: Sequence[Buffer],
    chunk_length_max: int | None,
    arrived: Sequence[tuple[Buffer, int]],
) -> int:
    """See `ChunkedStorage.write`. The caller holds the segment's lock."""
    await finish_deletion(context, segment)
    rest = Rest(data)
    while True:
        transaction = context.transaction()
        record = await load_writable(context, transaction, segment, offset, chunk_length_max)
        if not rest.length:
            return offset
        write = SegmentWrite(context, record, await context.load_last(transaction, record))
        await write.store(rest)
        offset = (await write.commit(transaction, write.before, arrived)).length
        if not rest.length:
            return offset


async def load_writable(
    context: StorageContext, transaction: MetadataTransaction, segment: str, offset: int, chunk_length_max: int | None
) -> StoredSegmentRecord:
    """Return the record of a segment, existing or new, to which bytes from `offset` on will be added.

    Raises `SegmentSealedError`, `BadOffsetError`.
    """
    record = await load_or_new(context, transaction, segment, offset)
    if record.is_sealed:
        raise SegmentSealedError(segment)
    if record.length != offset:
        raise BadOffsetError(segment, expected=offset, actual=record.length)
    if chunk_length_max:
        return replace(record, chunk_length_max=min(chunk_length_max, context.settings.chunk_length_max))
    return record


async def load_or_new(
    context: StorageContext, transaction: MetadataTransaction, segment: str, offset: int
) -> StoredSegmentRecord:
    """Return a segment's record, or that of a new segment which begins at `offset`."""
    record = await context.load_owned(transaction, segment)
    if record is not None and record.is_active:
        return record
    return empty_segment(
        segment,
        offset,
        epoch=context.epoch,
        run_number=context.next_run_number(),
        chunk_length_max=context.settings.chunk_length_max,
        now_ms=context.runtime.wall_clock_ms(),
        is_system=segment.startswith(f"{SYSTEM_SCOPE}/containers/"),
    )


class SegmentWrite:
    """One write in progress: first `store` (or `plan` and `create_planned`), then `commit`.

    If the first part fails, it leaves no recorded chunk, and deletes what it created.

    Attributes:
        before: the last chunk or merged run before this write, as far as it was known.
        record: the segment's record after the commit ...
        last: ... and that of its last chunk, without checksums.
        created: the chunks created by this write, as they were then.
    """

    def __init__(self, context: StorageContext, record: StoredSegmentRecord, last: Extent | None) -> None:
        self.before: Extent | None = last
        self.record: StoredSegmentRecord = record
        self.last: Extent | None = last
        self.created: list[ChunkRecord] = []
        self._offset = record.length
        self._context = context
        #: Chunks that have grown, and their growth.
        self._grown: list[tuple[ChunkRecord, Growth]] = []
        #: Chunks to be created: where each begins, and its content.
        self._planned: list[tuple[int, Sequence[Buffer]]] = []

    async def store(self, rest: Rest) -> None:
        """Write `rest`, or as much of it as fits in one commit, to chunks."""
        try:
            while rest.length and len(self.created) < self._context.settings.written_chunks_per_commit_max:
                last = self.last
                if isinstance(last, ChunkRecord) and self._may_append(last):
                    piece = rest.take(self.record.chunk_length_max - last.length)
                    if await self._append(last, piece):
                        continue
                else:
                    piece = rest.take(self.record.chunk_length_max)
                self._plan(piece)
                await self._create_planned()
        except BaseException as error:
            await self._discard(error)
            raise

    def plan(self, rest: Rest) -> None:
        """Plan what `store` would write, using only new chunks; `record` is known then, before anything is written."""
        while rest.length and len(self._planned) < self._context.settings.written_chunks_per_commit_max:
            self._plan(rest.take(self.record.chunk_length_max))

    async def create_planned(self) -> None:
        """Write the chunks planned by `plan`."""
        try:
            await self._create_planned()
        except BaseException as error:
            await self._discard(error)
            raise

    async def commit(
        self, transaction: MetadataTransaction, before: Extent | None, arrived: Sequence[tuple[Buffer, int]]
    ) -> StoredSegmentRecord:
        """Compute the checksums of the written bytes, compare with `arrived`, and commit; return the record.

        `before`: the last chunk or merged run, as read by `transaction`. Raises as `sum_written`.
        """
        await self.stage(transaction, before, arrived)
        return await commit_staged(self._context, transaction, [self])

    async def stage(
        self, transaction: MetadataTransaction, before: Extent | None, arrived: Sequence[tuple[Buffer, int]]
    ) -> None:
        """Do what `commit` does before the commit: the records of the chunks are put, that of the segment is not."""
        name = self.record.name
        try:
            growths = [self._grown_from(before, chunk, growth) for chunk, growth in self._grown]
            checksums = await sum_written(self._context.runtime.work, name, self._offset, growths, arrived)
        except BaseException as error:
            await self._discard(error)
            raise
        for (chunk, _), grown in zip(self._grown, checksums, strict=True):
            self.last = replace(chunk, block_checksums=grown)
            transaction.put(self.last)

    def leave_behind(self) -> None:
        """Schedule the deletion of the created chunks: they will not be recorded."""
        for chunk in self.created:
            self._context.orphans.add(chunk.name)

    async def _discard(self, error: BaseException) -> None:
        # Nothing was committed, so no record refers to the created chunks.
        if isinstance(error, StorageError):
            await self._context.delete_chunks([chunk.name for chunk in self.created])
        else:
            self.leave_behind()

    @staticmethod
    def _grown_from(before: Extent | None, chunk: ChunkRecord, growth: Growth) -> Growth:
        """Return `growth` with the present checksums of `before`, if that is the chunk that has grown."""
        if before is None or before.key != chunk.key:
            return growth
        if not isinstance(before, ChunkRecord) or (before.name, before.length) != (chunk.name, growth.length):
            raise StorageConflictError(chunk.name, "it was changed concurrently; nothing was applied")
        return replace(growth, checksums=before.block_checksums)

    def _may_append(self, last: ChunkRecord) -> bool:
        return (
            self._context.chunks.supports_append
            and last.epoch == self._context.epoch
            and not self.record.is_ownership_changed
            and last.length < self.record.chunk_length_max
        )

    async def _append(self, last: ChunkRecord, piece: Sequence[Buffer]) -> bool:
        """Append to the last chunk; False, with nothing done, if that is not possible.

        It is not if there are bytes after its recorded length, or the storage refuses.
        """
        try:
            count = await self._context.chunks.write(last.name, last.length, piece)
        except BadChunkOffsetError as error:
            if error.expected > error.given:
                return False
            raise CorruptionError(
                last.name, error.expected, f"the chunk ends here, its record says {last.length}"
            ) from error
        except ChunkNotSettledError as error:
            _log.info("a new chunk is started for %s: %s", self.record.name, error)
            return False
        except NoSuchChunkError as error:
            raise MissingChunkError(last.name, f"the chunk is missing, its record says {last.length} bytes") from error
        demand_all(last.name, count, piece)
        grown = self.last = replace(last, length=last.length + count)
        if self._grown and self._grown[-1][0] is last:
            # The last chunk was created by this write, because the previous one could not be used.
            before = self._grown.pop()[1]
            growth = replace(before, pieces=[*before.pieces, *piece])
        else:
            growth = Growth(last.block_checksums, last.length, last.block_length, piece)
        self._grown.append((grown, growth))
        self.record = replace(self.record, length=self.record.length + count)
        return True

    def _plan(self, piece: Sequence[Buffer]) -> None:
        record = self.record
        self._planned.append((record.length, piece))
        self.record = replace(
            record,
            last_start=record.length,
            length=record.length + sum(map(len, piece)),
            chunk_count=record.chunk_count + 1,
            is_ownership_changed=False,
        )

    async def _create_planned(self) -> None:
        context, record = self._context, self.record
        block_length = context.settings.block_length
        planned, self._planned = self._planned, []
        for start, piece in planned:
            name, count = await create_chunk(context, record.name, start, piece)
            created = ChunkRecord(
                run=record.run,
                start=start,
                name=name,
                length=count,
                epoch=context.epoch,
                block_length=block_length,
                block_checksums=(),
            )
            self.created.append(created)
            demand_all(name, count, piece)
            self.last = created
            self._grown.append((created, Growth((), 0, block_length, piece)))


async def commit_staged(
    context: StorageContext, transaction: MetadataTransaction, writes: Sequence[SegmentWrite]
) -> StoredSegmentRecord:
    """Commit consecutive writes to one segment, all staged in `transaction`; return the segment's record."""
    last = writes[-1]
    created = [chunk for write in writes for chunk in write.created]
    record = replace(last.record, last_modified_ms=context.runtime.wall_clock_ms())
    check(record, last.last)
    transaction.put(record)
    try:
        await context.commit(transaction, record.name)
    except (StorageConflictError, StorageNotPrimaryError) as error:
        await discard_chunks(context, created, error)
        raise
    context.orphans.note_recorded(len(created))
    return record


class Rest:
    """The bytes not yet written, `length` in total.

    Whole buffers are passed on unchanged, parts as views: nothing is copied.
    """

    def __init__(self, data: Sequence[Buffer]) -> None:
        self._buffers = [buffer for buffer in data if len(buffer)]
        self._next = 0
        self._position = 0
        self.length: int = sum(map(len, self._buffers))

    def take(self, length_max: int) -> list[Buffer]:
        """Remove and return up to `length_max` bytes from the front."""
        wanted = min(length_max, self.length)
        self.length -= wanted
        taken: list[Buffer] = []
        while wanted:
            buffer = self._buffers[self._next]
            count = min(wanted, len(buffer) - self._position)
            end = self._position + count
            taken.append(buffer if count == len(buffer) else memoryview(buffer)[self._position : end])
            wanted -= count
            self._position = end
            if end == len(buffer):
                self._next += 1
                self._position = 0
        return taken
