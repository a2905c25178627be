"""Truncate and delete a stored segment: chunks leave the list first, then they are deleted.

Both go along the list from its head, a bounded number of chunks per commit; each commit leaves a valid shorter list, so
that a crash in between is continued by the next call. Source: segment store specification, sections 8.7 and 8.8.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.model.errors import BadOffsetError, NoSuchSegmentError
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.records import SegmentRecord, check
from penstock.segmentstore.tier2.storage_context import StorageContext, let_others_go_on, missing_chunk_record


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
        await context.commit(transaction, segment)
        context.index.trim(segment, record.first_chunk_start)
        await context.delete_chunks(dropped)


async def delete_segment(context: StorageContext, segment: str) -> None:
    """See `ChunkedStorage.delete`. The caller holds the segment's lock."""
    context.index.drop(segment)
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
        await context.commit(transaction, segment)
        await context.delete_chunks(dropped)
        if is_finished:
            return


async def finish_deletion(context: StorageContext, segment: str) -> None:
    """Go on with a deletion that was interrupted, so that the name is free. The caller holds the segment's lock."""
    record = await context.load_owned(context.transaction(), segment)
    if record is not None and not record.is_active and record.chunk_count:
        await delete_segment(context, segment)


async def drop_head(
    context: StorageContext, transaction: MetadataTransaction, record: SegmentRecord, offset: int
) -> tuple[SegmentRecord, list[str]]:
    """Stage the end of the chunks that end at or before `offset`, up to the bound.

    Returns the record as it is then, and the names of the chunks.
    """
    dropped: list[str] = []
    name = record.first_chunk
    start = record.first_chunk_start
    is_reached = True
    while name is not None:
        chunk = await transaction.chunk(name)
        if chunk is None:
            raise missing_chunk_record(record, name)
        if start + chunk.length > offset:
            break
        if len(dropped) == context.settings.chunks_per_commit_max:
            is_reached = False
            break
        transaction.remove(chunk)
        await let_others_go_on(len(dropped))
        dropped.append(name)
        start += chunk.length
        name = chunk.next_chunk
    return (
        replace(
            record,
            start_offset=offset if is_reached else max(record.start_offset, start),
            first_chunk=name,
            last_chunk=record.last_chunk if name is not None else None,
            first_chunk_start=start,
            last_chunk_start=record.last_chunk_start if name is not None else start,
            chunk_count=record.chunk_count - len(dropped),
        ),
        dropped,
    )
