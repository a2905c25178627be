"""Append one stored segment to another by linking their chunk lists. No byte moves.

Chunks keep their names and the epoch that created them, so that a later write to the target does not append to a
chunk of another incarnation that came with the source. Source: segment store specification, section 8.7.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.model.errors import (
    BadOffsetError,
    InvalidArgumentError,
    NoSuchSegmentError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from penstock.segmentstore.tier2.records import check
from penstock.segmentstore.tier2.segment_removal import finish_deletion
from penstock.segmentstore.tier2.segment_write import load_or_new
from penstock.segmentstore.tier2.storage_context import StorageContext


async def concat_segment(context: StorageContext, target: str, offset: int, source: str) -> int:
    """See `ChunkedStorage.concat`. The caller holds the locks of both segments."""
    await finish_deletion(context, target)
    transaction = context.transaction()
    head = await load_or_new(context, transaction, target, offset)
    tail = await context.load_owned(transaction, source)
    if tail is None or not tail.is_active:
        raise NoSuchSegmentError(source)
    if head.is_sealed:
        raise SegmentSealedError(target)
    if head.length != offset:
        raise BadOffsetError(target, expected=offset, actual=head.length)
    if not tail.is_sealed:
        raise InvalidArgumentError(f"segment {source} must be sealed before it is merged into {target}")
    if tail.start_offset != 0:
        raise SegmentTruncatedError(source, start_offset=tail.start_offset, offset=0)
    if tail.first_chunk is not None:
        last = await context.load_last(transaction, head)
        await context.load_last(transaction, tail)
        if last is not None:
            transaction.put(replace(last, next_chunk=tail.first_chunk))
        head = replace(
            head,
            first_chunk=head.first_chunk or tail.first_chunk,
            last_chunk=tail.last_chunk,
            last_chunk_start=head.length + tail.last_chunk_start,
            length=head.length + tail.length,
            chunk_count=head.chunk_count + tail.chunk_count,
        )
        check(head)
    transaction.put(replace(head, last_modified_ms=context.runtime.wall_clock_ms()))
    # The chunks are the target's now: the source ends as an empty segment.
    transaction.remove(
        replace(
            tail,
            first_chunk=None,
            last_chunk=None,
            first_chunk_start=tail.length,
            start_offset=tail.length,
            last_chunk_start=tail.length,
            chunk_count=0,
        )
    )
    await context.commit(transaction, target)
    context.index.drop(source)
    return head.length
