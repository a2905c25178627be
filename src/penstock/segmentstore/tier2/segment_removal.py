"""Truncate and delete a stored segment: chunk records are removed, and the chunks become garbage in the same commit.

Both proceed from the start, with a bounded number of chunks per commit. Each commit leaves a valid shorter segment, so
the next call continues after a crash. Chunks are deleted later (`garbage`). Source:
segment-store 8.7 and 8.8.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.model.errors import BadOffsetError, CorruptionError, NoSuchSegmentError
from penstock.segmentstore.tier2.chunk_lookup import ChunkWalk, ExtentGoneError
from penstock.segmentstore.tier2.chunk_run import describe_key
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.records import StoredSegmentRecord, check
from penstock.segmentstore.tier2.storage_context import StorageContext
from penstock.segmentstore.tier2.turns import yield_to_loop


async def truncate_segment(context: StorageContext, segment: str, offset: int) -> None:
    """See `ChunkedStorage.truncate`. The caller holds the segment's lock."""
    while True:
        transaction = context.transaction()
        record = await context.load_owned(transaction, segment)
        if record is None or not record.is_active:
            raise NoSuchSegmentError(segment)
        if offset > record.length:
            raise BadOffsetError(segment, expected=offset, actual=record.length)
        if offset <= record.start_offset:
            return
        record, dropped = await drop_head(context, transaction, record, offset)
        check(record)
        transaction.put(replace(record, last_modified_ms=context.runtime.wall_clock_ms()))
        context.garbage.stage(transaction, dropped)
        await context.commit(transaction, segment)
        await context.garbage.settle()


async def delete_segment(context: StorageContext, segment: str) -> None:
    """See `ChunkedStorage.delete`. The caller holds the segment's lock."""
    while True:
        transaction = context.transaction()
        record = await context.load_owned(transaction, segment)
        if record is None:
            return
        record, dropped = await drop_head(context, transaction, record, record.length)
        check(record)
        is_finished = record.chunk_count == 0
        if is_finished:
            transaction.remove(record)
        else:
            transaction.put(replace(record, is_active=False))
        context.garbage.stage(transaction, dropped)
        await context.commit(transaction, segment)
        await context.garbage.settle()
        if is_finished:
            return


async def finish_deletion(context: StorageContext, segment: str) -> None:
    """Continue an interrupted deletion, so that the name is free. The caller holds the segment's lock."""
    record = await context.load_owned(context.transaction(), segment)
    if record is not None and not record.is_active and record.chunk_count:
        await delete_segment(context, segment)


async def drop_head(
    context: StorageContext, transaction: MetadataTransaction, record: StoredSegmentRecord, offset: int
) -> tuple[StoredSegmentRecord, list[str]]:
    """Stage the removal of the chunks that end at or before `offset`, up to the bound.

    Returns the resulting record, and the names of the chunks.
    """
    dropped: list[str] = []
    start = record.first_chunk_start
    is_reached = True
    walk = ChunkWalk(transaction, record, start)
    while start < record.length:
        try:
            passed = await walk.next()
        except ExtentGoneError as error:
            raise error.cause from error
        assert passed is not None
        (placed, ended) = passed
        if placed.start_offset != start:
            raise CorruptionError(
                describe_key(record.key), 0, f"its first chunk begins at {placed.start_offset}, the record says {start}"
            )
        if placed.end_offset > offset:
            break
        if len(dropped) == context.settings.chunks_per_commit_max:
            is_reached = False
            break
        transaction.remove(placed.chunk)
        for merged in ended:
            transaction.remove(merged)
        await yield_to_loop(len(dropped))
        dropped.append(placed.chunk.name)
        start = placed.end_offset
    count = record.chunk_count - len(dropped)
    return (
        replace(
            record,
            start_offset=offset if is_reached else max(record.start_offset, start),
            first_chunk_start=start,
            last_start=record.last_start if count else start,
            chunk_count=count,
        ),
        dropped,
    )
