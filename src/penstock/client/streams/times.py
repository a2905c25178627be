"""Stream cuts at a time, as precisely as the segment stores have recorded times.

Events have no times. A store records when a segment was last changed. For long segments there is an index segment:
about once per MiB it records the segment's length and the time (`ActivitySettings.index_entry_bytes`). So a time leads
to a cut that is a little early or a little late, as requested, but never past the events in question. All times are
those of the segment stores' clocks when they received the bytes; for a transaction's events, when it was merged.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence

from penstock.client.common.deadline import within
from penstock.client.controller.stream_segments import Successor
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.segment_extents import segment_infos
from penstock.model.errors import InvalidArgumentError, NoSuchSegmentError, PenstockError, SegmentTruncatedError
from penstock.model.names import index_segment_name, parse_segment_name, segment_name, split_scoped_name
from penstock.model.segments import SegmentInfo
from penstock.model.stream_cuts import StreamCut
from penstock.runtime.bulk import for_each

#: Offset after an append, events before it, milliseconds since the epoch. See ``docs/formats.md``.
_ENTRY = struct.Struct(">qqq")
#: Entries fetched at once; larger ranges are bisected first.
_WINDOW_ENTRY_COUNT = 4096


async def cut_at_time(cluster: Cluster, stream: str, at_ms: int, *, is_end: bool = False) -> StreamCut:
    """Return a cut with no event before it that was stored at `at_ms` or later.

    `is_end`: a cut with no event after it that was stored before `at_ms`, as of the present end. Raises
    `NoSuchStreamError`; `InvalidArgumentError` for a future time. Costs a few requests per segment from the head on.
    """
    now_ms = cluster.wall_clock_ms()
    if at_ms > now_ms:
        late_s = (at_ms - now_ms) / 1000
        raise InvalidArgumentError(f"{stream}: the requested time is {late_s:g} s ahead of this machine's clock")
    scope, name = split_scoped_name(stream)
    settings = cluster.settings
    with within(f"find the position of {stream} at a time", settings.retry_time_max_s, "retry_time_max_s"):
        found: dict[int, int] = {}
        # Segments without events of `at_ms` or later, and their successors.
        passed: dict[int, tuple[int, Sequence[Successor]]] = {}
        frontier = dict((await cluster.head(stream)).positions)
        while frontier:
            infos = await segment_infos(cluster, [segment_name(scope, name, each) for each in frontier])
            over: dict[str, int] = {}
            for (segment, start), info in zip(frontier.items(), infos, strict=True):
                if isinstance(info, NoSuchSegmentError):
                    over[info.segment] = start  # Truncated meanwhile.
                elif isinstance(info, PenstockError):
                    raise info
                elif info.is_sealed and info.last_modified_ms < at_ms:
                    over[info.name] = info.length
                else:
                    first = max(start, info.start_offset)
                    found[segment] = await _offset_at(cluster, info, first, at_ms, is_end=is_end)

            async def successors(segment: str) -> Sequence[Successor]:
                return await cluster.controller.successors(*parse_segment_name(segment))

            answers = await for_each(list(over), successors, settings.bulk_request_count_max)
            for (full_name, end), answer in zip(over.items(), answers, strict=True):
                if isinstance(answer, PenstockError):
                    raise answer
                passed[parse_segment_name(full_name)[2]] = end, answer
            going_on = _going_on(passed)
            frontier = {successor.segment.segment_id: 0 for segment in going_on for successor in passed.pop(segment)[1]}
        found.update({segment: end for segment, (end, _) in passed.items()})
    return StreamCut(scope, name, found)


def _going_on(passed: dict[int, tuple[int, Sequence[Successor]]]) -> set[int]:
    """Return the segments whose successors can replace them in a cut: all segments that these replace must go, too."""
    going_on = {segment for segment, (_, following) in passed.items() if following}
    while True:
        staying = {
            segment
            for segment in going_on
            if any(other not in going_on for each in passed[segment][1] for other in each.predecessors)
        }
        if not staying:
            return going_on
        going_on -= staying


async def _offset_at(cluster: Cluster, info: SegmentInfo, start: int, at_ms: int, *, is_end: bool) -> int:
    """Return the known boundary of a segment next to `at_ms`, on the requested side."""
    if info.last_modified_ms < at_ms:
        return info.length
    unknown = info.length if is_end else start
    index = index_segment_name(info.name)
    try:
        kept = await cluster.segments.segment_info(index)
        low, high = -(-kept.start_offset // _ENTRY.size), kept.length // _ENTRY.size
        first = low
        while high - low > _WINDOW_ENTRY_COUNT:
            middle = (low + high) // 2
            if (await _entries(cluster, index, middle, middle + 1))[0][1] < at_ms:
                low = middle + 1
            else:
                high = middle
        # One more on each side: the boundary lies between them.
        low = max(low - 1, first)
        entries = await _entries(cluster, index, low, min(high + 1, kept.length // _ENTRY.size))
    except (NoSuchSegmentError, SegmentTruncatedError):
        return unknown  # Most segments are too short to have an index; and it may be truncated at this moment.
    at = bisect_left(entries, at_ms, key=lambda entry: entry[1])
    if not is_end:
        at -= 1
    if not 0 <= at < len(entries):
        return unknown
    return min(max(entries[at][0], start), info.length)


async def _entries(cluster: Cluster, index: str, first: int, end: int) -> list[tuple[int, int]]:
    """Return offset and time of the entries `[first, end)`."""
    start, stop = first * _ENTRY.size, end * _ENTRY.size
    data = bytearray()
    while start + len(data) < stop:
        at = start + len(data)
        read = await cluster.segments.read(index, at, stop - at, wait=True)
        block = read.joined()
        if not block:
            raise NoSuchSegmentError(index, f"nothing can be read at {at}")
        data += block[: stop - at]
    return [(offset, time) for offset, _, time in _ENTRY.iter_unpack(data)]
