"""When a watermark is due, and its contents, computed from writers' marks. Pure; the cycle is in `watermarks`.

Source: controller-internals 15.2; it differs where ``docs/watermarks.md`` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.controller.metadata.records import EpochRecord, SegmentRecord, WriterMark
from penstock.controller.steps import at_once
from penstock.controller.stream_cuts import Between, Position
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import segment_epoch, segment_number
from penstock.model.watermarks import MarkedSegment, Watermark


@dataclass(frozen=True, slots=True)
class Writers:
    """The writers of a stream, sorted by their role for the next watermark.

    Attributes:
        participating: have noted a time after the lower bound of the last watermark.
        awaited: have not, but are alive and may be late: no watermark is made without them. Each with the time, in
            seconds of the controller's loop, since when it is seen to lag.
        gone: have left, or been silent for too long; their marks are no longer needed.
    """

    participating: Mapping[str, WriterMark]
    awaited: Mapping[str, float]
    gone: Mapping[str, WriterMark]

    @property
    def is_due(self) -> bool:
        """Whether a watermark can be made."""
        return bool(self.participating) and not self.awaited


def sort_writers(
    marks: Mapping[str, WriterMark],
    previous: Watermark | None,
    behind_since_s: Mapping[str, float],
    now_s: float,
    timeout_s: float,
) -> Writers:
    """Sort writers by their role for the next watermark.

    `behind_since_s`: the previous `Writers.awaited`. A live writer that lags is awaited for `timeout_s`.
    """
    participating: dict[str, WriterMark] = {}
    awaited: dict[str, float] = {}
    gone: dict[str, WriterMark] = {}
    for writer, mark in marks.items():
        if previous is None or mark.timestamp > previous.lower_bound:
            participating[writer] = mark
            continue
        since_s = behind_since_s.get(writer, now_s)
        if mark.is_alive and now_s - since_s < timeout_s:
            awaited[writer] = since_s
        else:
            gone[writer] = mark
    return Writers(participating, awaited, gone)


def upper_bound(positions: Mapping[int, int], records: Mapping[int, SegmentRecord], newest: EpochRecord) -> Watermark:
    """Return the first cut that is at or after each of the positions, as a watermark without times.

    `positions`: segment -> the greatest offset that a writer has noted in it. `records` has all of them. `newest`: the
    epoch in which the last of them was created. On each key the newest segment counts. Where some keys of a replaced
    segment have no known newer segment, the start of the newest epoch's segments is used: no writer has noted a
    position after that.
    """
    if not positions:
        raise InvalidArgumentError("no writer has noted a position")
    found = {segment: records[segment] for segment in positions}
    # Nothing replaces a segment of the newest epoch, and each round but the last adds one of them.
    for _ in range(len(newest.segments) + 1):
        newer = at_once(Between.of([Position(positions, found, {})], []))
        kept = {segment: record for segment, record in found.items() if newer.has(record)}
        gaps = _gaps(kept.values())
        if not gaps:
            segments = (
                MarkedSegment(segment, record.key_start, record.key_end, positions.get(segment, 0))
                for segment, record in sorted(kept.items())
            )
            return Watermark(0, 0, tuple(segments))
        found = {**kept, **{segment.id: segment for segment in _overlapping(newest.segments, gaps)}}
    raise InvalidArgumentError(f"segments {sorted(positions)} do not match epoch {newest.epoch}")


def _gaps(segments: Iterable[SegmentRecord]) -> list[tuple[float, float]]:
    """Return the key ranges that no segment covers, in order. The segments do not overlap."""
    gaps = []
    covered_to = 0.0
    for start, end in [*sorted((segment.key_start, segment.key_end) for segment in segments), (1.0, 1.0)]:
        if start > covered_to:
            gaps.append((covered_to, start))
        covered_to = end
    return gaps


def _overlapping(segments: Iterable[SegmentRecord], gaps: list[tuple[float, float]]) -> Iterable[SegmentRecord]:
    """Yield the segments with keys in one of the gaps. Both are in key order."""
    index = 0
    for segment in segments:
        while index < len(gaps) and gaps[index][1] <= segment.key_start:
            index += 1
        if index < len(gaps) and gaps[index][0] < segment.key_end:
            yield segment


def make_watermark(
    marks: Iterable[WriterMark],
    previous: Watermark | None,
    records: Mapping[int, SegmentRecord],
    newest: EpochRecord,
) -> Watermark | None:
    """Return the watermark of these marks; None unless its time is after that of the previous one.

    Its cut is never before the previous one's. `records` has the segments of the marks; `newest` is the epoch of the
    last one of these and the previous cut.
    """
    found = list(marks)
    lower_bound = min(mark.timestamp for mark in found)
    if previous is not None and lower_bound <= previous.lower_bound:
        return None
    known = {**records, **records_of(previous)}
    cut = upper_bound(greatest_offsets(found, previous), known, newest)
    return Watermark(lower_bound, max(mark.timestamp for mark in found), cut.segments)


def greatest_offsets(marks: Iterable[WriterMark], previous: Watermark | None) -> dict[int, int]:
    """Return each segment of the marks and the previous cut, with its greatest offset."""
    positions = {} if previous is None else previous.positions
    for mark in marks:
        for segment, offset in mark.position.items():
            positions[segment] = max(positions.get(segment, 0), offset)
    return positions


def records_of(watermark: Watermark | None) -> dict[int, SegmentRecord]:
    """Return the segment records of a watermark; their creation times are not known."""
    return (
        {}
        if watermark is None
        else {
            marked.segment_id: SegmentRecord(
                segment_number(marked.segment_id), segment_epoch(marked.segment_id), 0, marked.key_start, marked.key_end
            )
            for marked in watermark.segments
        }
    )


def is_at_or_before(watermark: Watermark, head: Mapping[int, int], records: Mapping[int, SegmentRecord]) -> bool:
    """Say whether no part of a watermark's cut is after `head`, a cut whose segments are in `records`."""
    cut = watermark.positions
    if any(segment in head and offset > head[segment] for segment, offset in cut.items()):
        return False
    newer = at_once(Between.of([], [Position(head, {segment: records[segment] for segment in head}, {})]))
    return all(newer.has(record) for record in records_of(watermark).values())
