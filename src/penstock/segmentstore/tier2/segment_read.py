"""Read a stored segment: find the chunks, read whole blocks in parallel, verify, trim to the requested range.

Reads run concurrently with changes and take no lock. They use the segment record as of their start. If a chunk has
disappeared since, they retry with the current record and either succeed or report that the bytes are gone. Source:
segment-store 8.7.
"""

from __future__ import annotations

import asyncio

from penstock.model.block_checksums import block_range, verify_blocks
from penstock.model.errors import (
    ChunkError,
    CorruptionError,
    InvalidArgumentError,
    MissingChunkError,
    NoSuchChunkError,
    NoSuchSegmentError,
    SegmentTruncatedError,
)
from penstock.segmentstore.tier2.chunk_lookup import ChunkWalk, ExtentGoneError, PlacedChunk, find_chunks
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.records import ChunkRecord, StoredSegmentRecord, check
from penstock.segmentstore.tier2.storage_context import StorageContext
from penstock.segmentstore.tier2.turns import run_bounded, yield_to_loop


async def load_existing(transaction: MetadataTransaction, segment: str) -> StoredSegmentRecord:
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
    seen: StoredSegmentRecord | None = None
    gone: ExtentGoneError | None = None
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
        except ExtentGoneError as error:
            gone = error
    assert gone is not None
    raise gone.cause


async def placed_chunks(
    context: StorageContext, segment: str, offset: int | None, limit: int | None, end: int | None = None
) -> list[PlacedChunk]:
    """See `ChunkedStorage.chunks_of`. The caller holds the segment's lock."""
    # From the table: very many records would evict all others from the cache.
    transaction = context.transaction(is_cached=False)
    record = await load_existing(transaction, segment)
    begin = record.first_chunk_start if offset is None else max(offset, record.start_offset)
    end = record.length if end is None else min(end, record.length)
    if begin >= end:
        return []
    page_length = context.settings.page_length
    try:
        if limit is None:
            return await find_chunks(transaction, record, begin, end, page_length=page_length, is_remembered=False)
        (first,) = await find_chunks(transaction, record, begin, begin + 1, page_length=page_length)
        found: list[PlacedChunk] = []
        walk = ChunkWalk(transaction, record, first.start_offset)
        while len(found) < limit and (not found or found[-1].end_offset < end):
            passed = await walk.next()
            if passed is None:
                break
            found.append(passed[0])
            await yield_to_loop(len(found))
        return found
    except ExtentGoneError as error:
        raise error.cause from error


async def _read(
    context: StorageContext, transaction: MetadataTransaction, record: StoredSegmentRecord, offset: int, end: int
) -> bytes:
    pieces = await find_chunks(transaction, record, offset, end, page_length=context.settings.page_length)

    async def read(piece: PlacedChunk) -> memoryview:
        begin = piece.start_offset
        return await read_chunk(context, piece.chunk, max(offset - begin, 0), min(end - begin, piece.chunk.length))

    parts = await run_bounded(read, pieces, context.settings.chunk_reads_max)
    if len(parts) == 1 and isinstance(parts[0].obj, bytes) and len(parts[0]) == len(parts[0].obj):
        return parts[0].obj
    return b"".join(parts)


async def _read_with_retries(context: StorageContext, chunk: str, offset: int, length: int) -> bytes:
    """Read from a chunk, with retries: the start of a container needs very many reads to succeed."""
    settings = context.settings
    for attempt in range(1, settings.chunk_read_attempts):
        try:
            return await context.chunks.read(chunk, offset, length)
        except NoSuchChunkError:
            raise
        except ChunkError:
            await asyncio.sleep(settings.chunk_read_retry_s * attempt)
    return await context.chunks.read(chunk, offset, length)


async def read_chunk(context: StorageContext, chunk: ChunkRecord, start: int, end: int) -> memoryview:
    """Return verified bytes [`start`, `end`) of a chunk. Raises `ExtentGoneError` (no chunk), `CorruptionError`."""
    first, last = block_range(start, end, length=chunk.length, block_length=chunk.block_length)
    try:
        data = await _read_with_retries(context, chunk.name, first, last - first)
    except NoSuchChunkError as error:
        raise ExtentGoneError(
            MissingChunkError(chunk.name, f"the chunk is missing, its record says {chunk.length} bytes")
        ) from error
    except InvalidArgumentError as error:
        # Reads never exceed the recorded length, so the chunk is shorter than recorded.
        raise CorruptionError(chunk.name, first, f"the chunk is too short, its record says {chunk.length}") from error
    if len(data) != last - first:
        raise CorruptionError(
            chunk.name,
            first + len(data),
            f"the chunk ends here, its record says {chunk.length}; requested up to {last}",
        )
    verify_blocks(chunk.name, first, data, chunk.block_checksums, block_length=chunk.block_length)
    return memoryview(data)[start - first : end - first]
