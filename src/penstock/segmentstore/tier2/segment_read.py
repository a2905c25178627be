"""Read a stored segment: find the chunks, read whole blocks in parallel, verify, cut to size.

Reads run beside changes and take no lock. They work on the segment record as it was when they began; when a chunk
has vanished since, they look again and either succeed with the new list or say that the bytes are gone.
Source: segment store specification, section 8.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.model.errors import (
    ChunkError,
    CorruptionError,
    InvalidArgumentError,
    MissingChunkError,
    NoSuchChunkError,
    NoSuchSegmentError,
    SegmentTruncatedError,
)
from penstock.segmentstore.tier2.block_checksums import block_range, verify_blocks
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.records import ChunkRecord, SegmentRecord, check
from penstock.segmentstore.tier2.storage_context import (
    StorageContext,
    let_others_go_on,
    missing_chunk_record,
    run_bounded,
)


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """A chunk and the segment offset of its first byte."""

    start_offset: int
    chunk: ChunkRecord


class _ChunkGone(Exception):
    """A chunk or its record is missing: the list has changed, or it is damaged (`cause`)."""

    def __init__(self, cause: CorruptionError) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def load_existing(transaction: MetadataTransaction, segment: str) -> SegmentRecord:
    """Return the checked record of an active segment. Raises `NoSuchSegmentError`."""
    record = await transaction.segment(segment)
    if record is None or not record.is_active:
        raise NoSuchSegmentError(segment)
    check(record)
    return record


async def read_segment(context: StorageContext, segment: str, offset: int, length: int) -> bytes:
    """See `ChunkedStorage.read`."""
    if offset < 0 or length < 0:
        raise InvalidArgumentError(f"{segment}: offset {offset} and length {length} must not be negative")
    seen: SegmentRecord | None = None
    gone: _ChunkGone | None = None
    for attempt in range(context.settings.read_attempts_max):
        transaction = context.transaction(is_cached=attempt == 0)
        record = await load_existing(transaction, segment)
        if gone is not None and record == seen:
            break
        if offset < record.start_offset:
            raise SegmentTruncatedError(segment, start_offset=record.start_offset, offset=offset)
        if length == 0:
            return b""
        if offset >= record.length:
            raise InvalidArgumentError(f"{segment}: read at {offset}, but only {record.length} bytes are stored")
        seen = record
        try:
            return await _read(context, transaction, record, offset, min(offset + length, record.length))
        except _ChunkGone as error:
            gone = error
    assert gone is not None
    raise gone.cause


async def placed_chunks(context: StorageContext, segment: str) -> list[PlacedChunk]:
    """Return all chunks of a segment in order. The caller holds the segment's lock. Raises `CorruptionError`."""
    record = await load_existing(context.transaction(is_cached=False), segment)
    if record.first_chunk is None:
        return []
    # What is remembered about the chunks is good as long as the segment's record is the one remembered.
    known = context.cache.get(segment)
    is_cached = known is not None and known.record == record and not context.cache.is_doubtful(segment)
    transaction = context.transaction(is_cached=is_cached)
    try:
        return await _walk(transaction, record, record.first_chunk_start, record.first_chunk, 0, record.length)
    except _ChunkGone as error:
        raise error.cause from error


async def _read(
    context: StorageContext, transaction: MetadataTransaction, record: SegmentRecord, offset: int, end: int
) -> bytes:
    pieces = await _locate(context, transaction, record, offset, end)

    async def read(piece: PlacedChunk) -> memoryview:
        begin = piece.start_offset
        return await _read_chunk(context, piece.chunk, max(offset - begin, 0), min(end - begin, piece.chunk.length))

    parts = await run_bounded(read, pieces, context.settings.chunk_reads_max)
    if len(parts) == 1 and isinstance(parts[0].obj, bytes) and len(parts[0]) == len(parts[0].obj):
        return parts[0].obj
    return b"".join(parts)


async def _locate(
    context: StorageContext, transaction: MetadataTransaction, record: SegmentRecord, offset: int, end: int
) -> list[PlacedChunk]:
    """Return the chunks that hold [`offset`, `end`)."""
    assert record.first_chunk is not None
    assert record.last_chunk is not None
    if offset >= record.last_chunk_start:
        return await _walk(transaction, record, record.last_chunk_start, record.last_chunk, offset, end)
    # The index is about segments that this epoch owns; it may lag behind for others.
    starts = context.index.starts(record.name) if record.owner_epoch == context.epoch else None
    hint = starts.floor(offset) if starts is not None else None
    found: list[PlacedChunk] | None = None
    if hint is not None and hint[0] >= record.first_chunk_start:
        try:
            found = await _walk(transaction, record, *hint, offset, end, context.step_index(starts))
        except _ChunkGone:
            context.index.drop(record.name)
            starts = context.index.starts(record.name)
    if found is None:
        found = await _walk(
            transaction, record, record.first_chunk_start, record.first_chunk, offset, end, context.step_index(starts)
        )
    if starts is not None:
        for piece in found:
            starts.add(piece.start_offset, piece.chunk.name)
    return found


async def _walk(
    transaction: MetadataTransaction,
    record: SegmentRecord,
    start: int,
    first: str,
    offset: int,
    end: int,
    passed: Callable[[int, int, str], None] | None = None,
) -> list[PlacedChunk]:
    """Follow the list from chunk `first`, which begins at `start`; return the chunks that hold [`offset`, `end`).

    `passed` hears of each chunk on the way: how many steps it was, where it begins, its name.
    """
    found: list[PlacedChunk] = []
    name: str | None = first
    step = 0
    while start < end:
        if name is None:
            raise _ChunkGone(
                CorruptionError(
                    f"storage metadata record {record.name!r}",
                    0,
                    f"the chunk list ends at {start}, the segment at {record.length}",
                )
            )
        chunk = await transaction.chunk(name)
        if chunk is None:
            raise _ChunkGone(missing_chunk_record(record, name))
        if start + chunk.length > offset:
            found.append(PlacedChunk(start, chunk))
        if passed is not None:
            passed(step, start, name)
        await let_others_go_on(step)
        step += 1
        start += chunk.length
        name = chunk.next_chunk
    return found


async def _read_with_retries(context: StorageContext, chunk: str, offset: int, length: int) -> bytes:
    """Read from a chunk, again if that fails: a container that starts needs very many reads to succeed."""
    settings = context.settings
    for attempt in range(1, settings.chunk_read_attempts):
        try:
            return await context.chunks.read(chunk, offset, length)
        except NoSuchChunkError:
            raise
        except ChunkError:
            await asyncio.sleep(settings.chunk_read_retry_s * attempt)
    return await context.chunks.read(chunk, offset, length)


async def _read_chunk(context: StorageContext, chunk: ChunkRecord, start: int, end: int) -> memoryview:
    """Return verified bytes [`start`, `end`) of a chunk."""
    first, last = block_range(start, end, length=chunk.length, block_length=chunk.block_length)
    try:
        data = await _read_with_retries(context, chunk.name, first, last - first)
    except NoSuchChunkError as error:
        raise _ChunkGone(
            MissingChunkError(chunk.name, f"the chunk is gone, its record says {chunk.length} bytes")
        ) from error
    except InvalidArgumentError as error:
        # Never beyond the recorded length: so the chunk is shorter than that.
        raise CorruptionError(chunk.name, first, f"the chunk ends before, its record says {chunk.length}") from error
    if len(data) != last - first:
        raise CorruptionError(
            chunk.name, first + len(data), f"the chunk ends here, its record says {chunk.length}; asked up to {last}"
        )
    verify_blocks(chunk.name, first, data, chunk.block_checksums, block_length=chunk.block_length)
    return memoryview(data)[start - first : end - first]
