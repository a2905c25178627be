"""Append one stored segment to another. Neither bytes nor chunk records move: one `MergedRun` refers to all of them.

Nothing is appended to the source's chunks: a later write to the target begins a new chunk. Source:
segment-store 8.7; ``docs/chunk-records.md``.
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
from penstock.segmentstore.tier2.records import MergedRun, check
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
    await context.load_last(transaction, head)
    await context.load_last(transaction, tail)
    if tail.chunk_count:
        merged = MergedRun(run=head.run, start=head.length, length=tail.length, source=tail.run)
        transaction.put(merged)
        head = replace(
            head,
            last_start=merged.start,
            length=head.length + tail.length,
            chunk_count=head.chunk_count + tail.chunk_count,
        )
        check(head, merged)
    transaction.put(replace(head, last_modified_ms=context.runtime.wall_clock_ms()))
    # The chunks now belong to the target: the source ends as an empty segment.
    transaction.remove(
        replace(
            tail,
            first_chunk_start=tail.length,
            start_offset=tail.length,
            last_start=tail.length,
            chunk_count=0,
        )
    )
    await context.commit(transaction, target)
    return head.length
