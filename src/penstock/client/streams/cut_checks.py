"""Whether a stream cut lies between events, checked before a stream is truncated there.

A segment store does not know events, so a truncation inside an event leaves the rest of the event at the head of the
segment, where no reader can tell it from an event. The client checks first, from the nearest known start of an append.
"""

from __future__ import annotations

from typing import Final

from penstock.client.transport.cluster import Cluster
from penstock.client.transport.segment_extents import segment_infos
from penstock.model.errors import CorruptionError, InvalidArgumentError, NoSuchSegmentError, PenstockError
from penstock.model.events import EVENT_HEADER_LENGTH, EventAssembler
from penstock.model.names import segment_name
from penstock.model.segments import SegmentInfo
from penstock.model.stream_cuts import StreamCut

#: Bytes read of one segment at most to find the events around a cut. Without a start of an append that near, as with a
#: segment store that keeps no index of appends, the cut is not checked.
CHECK_BYTES_MAX: Final = 64 * 1024 * 1024


async def check_between_events(cluster: Cluster, cut: StreamCut) -> None:
    """Raise `InvalidArgumentError` if `cut` lies inside an event of a segment.

    Offsets at the start or the end of a segment cost one request for each segment; offsets in between cost tens.
    Offsets after damaged bytes pass: there are no events to compare with.
    """
    named = [(segment_name(cut.scope, cut.stream, segment), at) for segment, at in cut.positions.items()]
    offsets = {name: at for name, at in named if at > 0}
    infos = await segment_infos(cluster, list(offsets))
    for (segment, offset), info in zip(offsets.items(), infos, strict=True):
        if isinstance(info, NoSuchSegmentError):
            continue  # Truncated as a whole, or none of the stream: the controller's answer is exact.
        if isinstance(info, PenstockError):
            raise info
        if info.start_offset < offset < info.length:
            await _check(cluster, segment, offset, info)


async def _check(cluster: Cluster, segment: str, offset: int, info: SegmentInfo) -> None:
    if await cluster.segments.locate_offset(segment, offset) == offset:
        return
    known = await cluster.segments.locate_offset(segment, offset, before=True)
    if offset - known > CHECK_BYTES_MAX:
        return
    events = EventAssembler(segment, known)
    try:
        async with cluster.segment_reader(segment, known, offset) as reader:
            async for block in reader:
                events.feed(block)
                events.take()
        events.check()
    except CorruptionError:
        return
    if not events.pending_bytes:
        return
    end = min(events.end_offset + events.missing_bytes, info.length)
    # With less than a header the end of the event is not known.
    borders = f"{events.offset} or {end}" if events.pending_bytes >= EVENT_HEADER_LENGTH else f"{events.offset}"
    raise InvalidArgumentError(
        f"{segment}: the cut at byte {offset} lies inside the event that starts at byte {events.offset}; nothing was "
        f"truncated. Truncate at byte {borders}, or pass at_any_byte=True if the stream holds bytes, not events"
    )
