"""Write to a stored segment: which bytes go to which chunk, and what is committed.

A write lands in two steps: the bytes in chunks, then one commit that moves the lengths. Until the commit nobody reads
the new bytes, so a failure in between leaves nothing but bytes behind a chunk's recorded length, or whole chunks that
no record leads to. The checksums that go into the chunks' records are taken in between, and what was to be written is
compared with what arrived (`written_checksums`).

A chunk is appended to only if all of this holds, else a new one is begun: the storage can append; this epoch created
the chunk, for this segment; nobody claimed the segment since its last write; the chunk is not full; nothing lies behind
its recorded length; the storage does not refuse it. Source: segment store specification, sections 8.5 and 8.6 (R8.13,
G10).
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
from penstock.segmentstore.tier2.records import ChunkRecord, Extent, SegmentRecord, check, empty_segment
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
    rest = _Rest(data)
    while True:
        offset = await _write_some(context, segment, offset, rest, chunk_length_max, arrived)
        if not rest.length:
            return offset


async def _write_some(
    context: StorageContext,
    segment: str,
    offset: int,
    rest: _Rest,
    chunk_length_max: int | None,
    arrived: Sequence[tuple[Buffer, int]],
) -> int:
    """Write and commit what fits into as many chunks as one commit may create; return the new length."""
    transaction = context.transaction()
    record = await load_or_new(context, transaction, segment, offset)
    if record.is_sealed:
        raise SegmentSealedError(segment)
    if record.length != offset:
        raise BadOffsetError(segment, expected=offset, actual=record.length)
    if not rest.length:
        return offset
    if chunk_length_max:
        record = replace(record, chunk_length_max=min(chunk_length_max, context.settings.chunk_length_max))
    write = _Write(context, transaction, record, await context.load_last(transaction, record))
    try:
        await write.write(rest)
        await write.add_checksums(offset, arrived)
    except StorageError:
        # Nothing was committed, so nothing leads to what was created.
        await context.delete_chunks([chunk.name for chunk in write.created])
        raise
    except BaseException:
        for chunk in write.created:
            context.orphans.add(chunk.name)
        raise
    record = replace(write.record, last_modified_ms=context.runtime.wall_clock_ms())
    check(record, write.last)
    transaction.put(record)
    try:
        await context.commit(transaction, segment)
    except (StorageConflictError, StorageNotPrimaryError) as error:
        await discard_chunks(context, write.created, error)
        raise
    context.orphans.note_recorded(len(write.created))
    return record.length


async def load_or_new(
    context: StorageContext, transaction: MetadataTransaction, segment: str, offset: int
) -> SegmentRecord:
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


class _Write:
    """One write under way. `record` and `last` are what is to be committed, once `add_checksums` has ended."""

    def __init__(
        self,
        context: StorageContext,
        transaction: MetadataTransaction,
        record: SegmentRecord,
        last: Extent | None,
    ) -> None:
        self.record = record
        self.last = last
        #: The chunks created by this write, as they were then.
        self.created: list[ChunkRecord] = []
        self._context = context
        self._transaction = transaction
        #: Chunks that have grown, and by what.
        self._grown: list[tuple[ChunkRecord, Growth]] = []

    async def write(self, rest: _Rest) -> None:
        """Write `rest`, or as much of it as one commit is for, into chunks and stage their records."""
        while rest.length and len(self.created) < self._context.settings.written_chunks_per_commit_max:
            last = self.last
            if isinstance(last, ChunkRecord) and self._may_append(last):
                piece = rest.take(self.record.chunk_length_max - last.length)
                if await self._append(last, piece):
                    continue
            else:
                piece = rest.take(self.record.chunk_length_max)
            await self._create(piece)

    async def add_checksums(self, offset: int, arrived: Sequence[tuple[Buffer, int]]) -> None:
        """Stage the records of the chunks that have grown, with their checksums. Raises as `sum_written`."""
        growths = [growth for _, growth in self._grown]
        checksums = await sum_written(self._context.runtime.work, self.record.name, offset, growths, arrived)
        for (chunk, _), grown in zip(self._grown, checksums, strict=True):
            self.last = replace(chunk, block_checksums=grown)
            self._transaction.put(self.last)

    def _may_append(self, last: ChunkRecord) -> bool:
        return (
            self._context.chunks.supports_append
            and last.epoch == self._context.epoch
            and not self.record.is_ownership_changed
            and last.length < self.record.chunk_length_max
        )

    async def _append(self, last: ChunkRecord, piece: Sequence[Buffer]) -> bool:
        """Append to the last chunk; False, with nothing done, if it cannot be: bytes lie behind its recorded length, or
        the storage says so.
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
            _log.info("another chunk is begun for %s: %s", self.record.name, error)
            return False
        except NoSuchChunkError as error:
            raise MissingChunkError(last.name, f"the chunk is gone, its record says {last.length} bytes") from error
        demand_all(last.name, count, piece)
        grown = self.last = replace(last, length=last.length + count)
        if self._grown and self._grown[-1][0] is last:
            # Created by this write: nothing was known of the chunk that it follows but that it could not be used.
            before = self._grown.pop()[1]
            growth = replace(before, pieces=[*before.pieces, *piece])
        else:
            growth = Growth(last.block_checksums, last.length, last.block_length, piece)
        self._grown.append((grown, growth))
        self.record = replace(self.record, length=self.record.length + count)
        return True

    async def _create(self, piece: Sequence[Buffer]) -> None:
        context, record = self._context, self.record
        name, count = await create_chunk(context, record.name, record.length, piece)
        block_length = context.settings.block_length
        created = ChunkRecord(
            run=record.run,
            start=record.length,
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
        self.record = replace(
            record,
            last_start=record.length,
            length=record.length + count,
            chunk_count=record.chunk_count + 1,
            is_ownership_changed=False,
        )


class _Rest:
    """The bytes not yet written, `length` in all.

    Whole buffers are passed on as they are, parts as views: nothing is copied.
    """

    def __init__(self, data: Sequence[Buffer]) -> None:
        self._buffers = [buffer for buffer in data if len(buffer)]
        self._next = 0
        self._position = 0
        self.length = sum(map(len, self._buffers))

    def take(self, length_max: int) -> list[Buffer]:
        """Take up to `length_max` bytes off the front."""
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
