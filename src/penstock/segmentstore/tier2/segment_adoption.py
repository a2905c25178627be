"""Adopt a segment of RollingStorage: its chunks stay in place, and records are created for them.

All bytes are read once, to compute the checksums for later reads. Records are written in commits of bounded size. Each
commit leaves a valid segment, a prefix of the whole, which is not visible before its container registers it; the first
one also contains the adoption mark. An interrupted call is continued by the next one. Adopted chunks count as created
by epoch 0: nothing is ever appended to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.model.errors import (
    AdoptionError,
    CorruptionError,
    InvalidArgumentError,
    NoSuchChunkError,
    StorageConflictError,
)
from penstock.segmentstore.tier2.adoption_records import AdoptionMark, adoption_key
from penstock.segmentstore.tier2.block_checksums import extend_checksums
from penstock.segmentstore.tier2.records import ChunkRecord, StoredSegmentRecord, check
from penstock.segmentstore.tier2.rolling_layout import PlacedFile, RollingLayout
from penstock.segmentstore.tier2.segment_read import placed_chunks
from penstock.segmentstore.tier2.segment_removal import finish_deletion
from penstock.segmentstore.tier2.segment_write import load_or_new
from penstock.segmentstore.tier2.storage_context import StorageContext

#: The epoch of the chunk's creator: before all epochs of containers.
ADOPTED_EPOCH = 0

#: Maximum number of checksums of one chunk: in a longer one a checksum covers more bytes. 16 GiB in blocks of 256 KiB.
_CHECKSUMS_MAX = 65_536
#: Maximum number of checksums in one commit, unless a single chunk has more: 1 MiB.
_COMMIT_CHECKSUMS_MAX = 262_144
_READ_BYTES = 8 * 1024 * 1024


async def adopt_segment(
    context: StorageContext, layout: RollingLayout, progress: Callable[[int], None]
) -> StoredSegmentRecord | None:
    """See `ChunkedStorage.adopt`. The caller holds the segment's lock."""
    segment = layout.segment
    await finish_deletion(context, segment)
    transaction = context.transaction()
    record = await load_or_new(context, transaction, segment, layout.start_offset)
    if await adopted_as(context, segment) is not None:
        stored = await transaction.segment(segment)
        if stored is None or not stored.is_active:
            return None
    else:
        mark = AdoptionMark(segment, segment, context.runtime.wall_clock_ms())
        transaction.add(mark.key, mark.encode())
    await _compare(context, layout, record)
    left = [chunk for chunk in layout.chunks if chunk.start >= record.length]
    while True:
        count = checksum_count = 0
        while left and count < context.settings.written_chunks_per_commit_max:
            chunk = await _record(context, record, left[0], progress)
            if count and checksum_count + len(chunk.block_checksums) > _COMMIT_CHECKSUMS_MAX:
                break
            del left[0]
            count += 1
            checksum_count += len(chunk.block_checksums)
            transaction.put(chunk)
            record = replace(
                record,
                last_start=chunk.start,
                length=chunk.start + chunk.length,
                chunk_count=record.chunk_count + 1,
            )
            check(record, chunk)
        record = replace(record, last_modified_ms=context.runtime.wall_clock_ms())
        transaction.put(record)
        await context.commit(transaction, segment)
        if not left:
            return record
        transaction = context.transaction()
        again = await context.load_owned(transaction, segment)
        assert again is not None
        record = again


async def adopted_as(context: StorageContext, segment: str) -> str | None:
    """Return the segment that got a header's chunks, or for which they were reserved; or None. `CorruptionError`."""
    key = adoption_key(segment)
    (entry,) = await context.table.get([key])
    return None if entry is None else AdoptionMark.decode(key, entry.value).became


async def reserve_segment(context: StorageContext, segment: str, became: str) -> None:
    """See `ChunkedStorage.reserve`. The caller holds the segment's lock."""
    known = await adopted_as(context, segment)
    if known is None:
        transaction = context.transaction()
        mark = AdoptionMark(segment, became, context.runtime.wall_clock_ms())
        transaction.add(mark.key, mark.encode())
        await context.commit(transaction, segment)
    elif known != became:
        raise AdoptionError(segment, f"its chunks were assigned to segment {known}, not to {became}")


async def _compare(context: StorageContext, layout: RollingLayout, record: StoredSegmentRecord) -> None:
    """Raise `AdoptionError` unless the part already stored is a prefix of `layout`."""
    known = await placed_chunks(context, record.name, None, None) if record.chunk_count else []
    stored = [PlacedFile(chunk.chunk.name, chunk.start_offset, chunk.chunk.length) for chunk in known]
    if record.start_offset != layout.start_offset or stored != list(layout.chunks[: len(stored)]):
        raise AdoptionError(record.name, "other data than its header says is already stored under this name")


async def _record(
    context: StorageContext, record: StoredSegmentRecord, file: PlacedFile, progress: Callable[[int], None]
) -> ChunkRecord:
    """Read a chunk and return its record."""
    block_length = context.settings.block_length
    while file.length > block_length * _CHECKSUMS_MAX:
        block_length *= 2
    checksums: tuple[int, ...] = ()
    at = 0
    while at < file.length:
        wanted = min(_READ_BYTES, file.length - at)
        try:
            data = await context.chunks.read(file.name, at, wanted)
        except (NoSuchChunkError, InvalidArgumentError) as error:
            raise StorageConflictError(record.name, f"chunk {file.name} disappeared or shrank") from error
        if len(data) != wanted:
            raise CorruptionError(file.name, at + len(data), f"the chunk ends here, it had {file.length} bytes")
        checksums = await context.runtime.work.run(_extend, checksums, at, data, block_length)
        at += wanted
        progress(wanted)
    return ChunkRecord(
        run=record.run,
        start=file.start,
        name=file.name,
        length=file.length,
        epoch=ADOPTED_EPOCH,
        block_length=block_length,
        block_checksums=checksums,
    )


def _extend(checksums: tuple[int, ...], length: int, data: bytes, block_length: int) -> tuple[int, ...]:
    return extend_checksums(checksums, length, [data], block_length=block_length)
