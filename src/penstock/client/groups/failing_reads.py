"""Which segments a reader cannot read: after how long it leaves them to others.

A read at a segment's end returns nothing until there are more bytes, so an idle reader cannot tell by its reads that a
fault is over. While the last read of a segment that was returned is an error, the reader therefore requests the
segment's length: if it is answered and the reader has all bytes, nothing is failing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock.client.common.deadline import within
from penstock.client.groups.segment_events import SegmentEvents
from penstock.model.errors import PenstockError
from penstock.model.segments import SegmentInfo, Segments


async def note_recovered(segments: Segments, sources: Iterable[SegmentEvents], limit_s: float) -> None:
    """Reset `failing_since_s` of those segments whose reads work again. One request for each that was failing."""
    failing = [source for source in sources if source.failing_since_s is not None and not source.has_failed]
    if not failing:
        return
    try:
        with within("check segments that could not be read", limit_s, "position_interval_s"):
            infos = await segments.segment_infos([source.segment for source in failing])
    except PenstockError:
        return  # No answer: they are still failing.
    for source, info in zip(failing, infos, strict=True):
        if isinstance(info, SegmentInfo) and source.is_reading_at(info.length):
            source.failing_since_s = None


def failing_longer_than(limit_s: float, sources: Iterable[SegmentEvents]) -> list[str]:
    """Return the names of the segments that have been failing for longer than `limit_s`."""
    now_s = asyncio.get_running_loop().time()
    return [
        source.segment
        for source in sources
        if source.failing_since_s is not None and now_s - source.failing_since_s > limit_s
    ]
