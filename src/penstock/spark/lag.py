"""The lag of a query in its streams, by segment, computed from its progress reports.

A report of the penstock source has two offsets (`penstock.spark.offsets`): `endOffset`, the end of the micro-batch,
and `latestOffset`, the streams' tails when it was planned. The lag is the range between them. In bytes it is exact as
long as no segment was sealed in between: the offsets contain neither the length of a sealed segment, nor its sealed
successors. A `StreamView` supplies those, if given; otherwise the lag is marked as incomplete. So is the lag of a
stream that is new to the query and was scaled before.

The number of events is estimated by their mean size in the latest micro-batch. The waiting time is computed from
earlier tails: bytes after the query's position that an earlier report contained have waited at least since then.
"""

from __future__ import annotations

import json
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from penstock.model.errors import PenstockError
from penstock.model.names import segment_epoch
from penstock.spark.offsets import Cut, Cuts, QueryPosition
from penstock.spark.planner import Losses, StreamView, ranges_between

_log = logging.getLogger(__name__)

#: Tails remembered of one segment. When exceeded, every second one is dropped, which lowers the reported waiting time.
TAIL_COUNT_MAX = 128

#: Maximum number of queries remembered without a report of their end.
QUERY_COUNT_MAX = 256

#: The number of a report's source in the query, stream (``scope/stream``), segment.
_Key: TypeAlias = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class SegmentLag:
    """The bytes of one segment that a query has not read.

    Attributes:
        source: the number of the query's source, from 0; nearly every query has one.
        stream: ``scope/stream``.
        segment: the segment's 64-bit id.
        byte_count: bytes after the query's position, headers of events included; None: unknown, because the segment was
            sealed since and the store was not queried. Of a segment that the query has not reached, all bytes ever
            written into it, unless the store was queried.
        event_count_estimated: these bytes divided by the mean event size of the latest micro-batch; None: unknown.
        waited_s_min: seconds that the first of these bytes has waited, at least: since a report contained it. 0.0 where
            there are none, or no earlier report contained them; None: unknown.
    """

    source: int
    stream: str
    segment: int
    byte_count: int | None
    event_count_estimated: int | None
    waited_s_min: float | None


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The data that a query has not read after one of its micro-batches.

    Attributes:
        query: the query's id, which stays over restarts.
        name: the query's name, if it has one.
        batch: the micro-batch's number.
        time: when it was planned, in ISO 8601; the lag is as of then.
        segments: by source, stream and segment.
        is_whole: whether `segments` is complete; else the lag is at least their sum.
    """

    query: str
    name: str | None
    batch: int
    time: str
    segments: tuple[SegmentLag, ...]
    is_whole: bool

    @property
    def byte_count(self) -> int:
        """Bytes in all segments."""
        return sum(each.byte_count or 0 for each in self.segments)

    @property
    def event_count_estimated(self) -> int | None:
        """Events in all segments, estimated; None: unknown."""
        counts = [each.event_count_estimated for each in self.segments if each.byte_count is not None]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def waited_s_min(self) -> float:
        """Seconds that the oldest unread byte has waited, at least."""
        return max((each.waited_s_min or 0.0 for each in self.segments), default=0.0)

    def __str__(self) -> str:
        events = self.event_count_estimated
        behind = [each for each in self.segments if each.byte_count != 0]
        return (
            f"query {self.name or self.query}, batch {self.batch}: {'' if self.is_whole else 'at least '}"
            f"{self.byte_count} bytes behind in {len(behind)} of {len(self.segments)} segments"
            + ("" if events is None else f", about {events} events")
            + f", waiting for {self.waited_s_min:.1f} s at least"
        )


@dataclass(slots=True)
class _Followed:
    """The remembered state of a query."""

    #: Tails after the query's position, each with the time of the first report that had it.
    tails: dict[_Key, deque[tuple[float, int]]] = field(default_factory=dict)
    #: Mean size of the latest events, by source.
    event_bytes: dict[int, float] = field(default_factory=dict)


class LagTracker:
    """Computes lags from the progress reports of queries, in their order. Not thread-safe."""

    def __init__(self, view_of: Callable[[str], StreamView] | None = None) -> None:
        """`view_of` returns the view of a stream (``scope/stream``), for cases where offsets are not sufficient."""
        self._view_of = view_of
        self._followed: OrderedDict[str, _Followed] = OrderedDict()

    def lag(self, progress: Mapping[str, object]) -> QueryLag | None:
        """Return the lag of a report; None if it is not of a penstock source, or has no latest offset.

        The latter is the case for a micro-batch repeated after a restart, for which tails were not read.

        Raises:
            InvalidArgumentError: an offset of an unknown layout.
        """
        query, time = str(progress["id"]), str(progress["timestamp"])
        at_s = datetime.fromisoformat(time).timestamp()
        followed = self._followed.get(query, _Followed())
        segments: list[SegmentLag] = []
        is_whole, is_told, keys = True, False, set[_Key]()
        for number, source in enumerate(_sources_of(progress)):
            end, latest = _place(source.get("endOffset")), _place(source.get("latestOffset"))
            if end is None or latest is None:
                continue
            is_told = True
            if (size := _event_bytes(source, end)) is not None:
                followed.event_bytes[number] = size
            for stream, ends in latest.cuts.items():
                at = end.cuts.get(stream, {})
                left, is_all = self._left(stream, at, ends)
                is_whole &= is_all
                for segment in sorted(left):
                    key = (number, stream, segment)
                    keys.add(key)
                    waited_s = _waited_s(
                        followed.tails.setdefault(key, deque()), at_s, at.get(segment, 0), ends.get(segment)
                    )
                    segments.append(_segment_lag(key, left[segment], followed.event_bytes.get(number), waited_s))
        if not is_told:
            return None
        followed.tails = {key: tails for key, tails in followed.tails.items() if key in keys and tails}
        self._followed[query] = followed
        self._followed.move_to_end(query)
        while len(self._followed) > QUERY_COUNT_MAX:
            self._followed.popitem(last=False)
        name, batch = progress.get("name"), progress.get("batchId")
        return QueryLag(
            query,
            name if isinstance(name, str) else None,
            batch if isinstance(batch, int) else -1,
            time,
            tuple(segments),
            is_whole,
        )

    def forget(self, query: str) -> None:
        """Drop the state of a query that has ended."""
        self._followed.pop(query, None)

    def _left(self, stream: str, at: Cut, ends: Cut) -> tuple[dict[int, int | None], bool]:
        """Return the bytes of each segment between two cuts of a stream, None if unknown; and whether it is all."""
        left: dict[int, int | None] = {segment: max(end - at.get(segment, 0), 0) for segment, end in ends.items()}
        if not at:
            # New to the query. The offsets do not contain older segments than the current ones, if there are any.
            return left, not any(map(segment_epoch, ends))
        sealed = at.keys() - ends.keys()
        if sealed and self._view_of is not None:
            try:
                # Bytes truncated meanwhile are not part of the lag.
                ranges = ranges_between(self._view_of(stream), at, ends, Losses())
            except PenstockError as error:
                _log.warning("stream %s: the lag of the query is only partly known: %s", stream, error)
            else:
                return {**dict.fromkeys(ends, 0), **{each.segment: each.length for each in ranges}}, True
        return left | dict.fromkeys(sealed), not sealed


def _sources_of(progress: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    sources = progress.get("sources")
    return [each for each in sources if isinstance(each, Mapping)] if isinstance(sources, Sequence) else []


def _place(offset: object) -> QueryPosition | None:
    """Return the place in an offset, given as JSON values or as text; None if it is not one of penstock's source."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except json.JSONDecodeError:
            return None  # Other sources' offsets may be anything; a missing one is "None".
    if not isinstance(offset, dict):
        return None
    is_ours = {"positions", "scope", "stream"} <= offset.keys() or {"streams", "v"} <= offset.keys()
    return QueryPosition.of(offset, None) if is_ours else None


def _event_bytes(source: Mapping[str, object], end: QueryPosition) -> float | None:
    """Return the mean size of the events of a micro-batch; None if it had none, or its length is unknown."""
    start, count = _place(source.get("startOffset")), source.get("numInputRows")
    if start is None or not isinstance(count, int) or count <= 0:
        return None
    begins: Cuts = {**start.cuts, **end.since}
    total = start.lost_byte_count - end.lost_byte_count
    for stream, cut in end.cuts.items():
        begin = begins.get(stream, {})
        if begin.keys() != cut.keys():
            return None
        total += sum(cut[segment] - begin[segment] for segment in cut)
    return total / count if total > 0 else None


def _segment_lag(key: _Key, byte_count: int | None, event_bytes: float | None, waited_s: float | None) -> SegmentLag:
    event_count: int | None = None
    if byte_count == 0:
        event_count = 0
    elif byte_count is not None and event_bytes is not None:
        event_count = math.ceil(byte_count / event_bytes)
    return SegmentLag(*key, byte_count, event_count, 0.0 if byte_count == 0 else waited_s)


def _waited_s(tails: deque[tuple[float, int]], now_s: float, at: int, tail: int | None) -> float | None:
    """Return how long a byte after `at` has existed, at least, by the `tails` seen. Adds the current tail, if known."""
    while tails and tails[0][1] <= at:
        tails.popleft()
    if tail is not None and tail > at and (not tails or tail > tails[-1][1]):
        if len(tails) >= TAIL_COUNT_MAX:
            kept = list(tails)[::2]
            tails.clear()
            tails.extend(kept)
        tails.append((now_s, tail))
    if tails:
        return max(now_s - tails[0][0], 0.0)
    return None if tail is None else 0.0
