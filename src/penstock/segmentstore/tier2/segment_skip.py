"""Skip bytes that a stored segment will never get: they were truncated before they were written.

The segment's chunks are removed, and it restarts, empty, at the later offset. A crash in between leaves a valid
shorter list, and the next call continues.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.model.errors import BadOffsetError, SegmentSealedError
from penstock.segmentstore.tier2.records import check
from penstock.segmentstore.tier2.segment_removal import drop_head, finish_deletion
from penstock.segmentstore.tier2.segment_write import load_or_new
from penstock.segmentstore.tier2.storage_context import StorageContext


async def skip_segment(context: StorageContext, segment: str, offset: int) -> None:
    """See `ChunkedStorage.skip`. The caller holds the segment's lock."""
    await finish_deletion(context, segment)
    while True:
        transaction = context.transaction()
        record = await load_or_new(context, transaction, segment, offset)
        if record.is_sealed:
            raise SegmentSealedError(segment)
        if offset < record.length:
            raise BadOffsetError(segment, expected=offset, actual=record.length)
        record, dropped = await drop_head(context, transaction, record, record.length)
        is_finished = record.chunk_count == 0
        if is_finished:
            record = replace(record, start_offset=offset, length=offset, first_chunk_start=offset, last_start=offset)
        check(record)
        transaction.put(replace(record, last_modified_ms=context.runtime.wall_clock_ms()))
        context.garbage.stage(transaction, dropped)
        await context.commit(transaction, segment)
        await context.garbage.settle()
        if is_finished:
            return
