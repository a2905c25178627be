"""Planning: the end of a micro-batch, and the byte ranges between two stream cuts.

Pure, over a `StreamView`, which answers requests about a stream. A cut is walked forward over scale events: a
segment that is sealed and read to its end is replaced by its successors, but only together with all other segments
that those successors replace, so that each cut on the way covers the whole key space once and no event of a routing
key is read before an older one.

Missing data end a walk with an error, or with `Losses` are skipped and recorded there.

Source: spark-integration 3.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeVar

from penstock.model.errors import InvalidArgumentError, NoSuchSegmentError, PositionBeyondEndError
from penstock.model.names import segment_name, split_scoped_name
from penstock.spark.offsets import Cut
from penstock.spark.sharing import Claims, Lookup, share_bytes, share_events

A = TypeVar("A")
B = TypeVar("B")

#: Why bytes are missing, and how to fix that.
TRUNCATED = (
    "the stream was truncated (retention, or by hand) before they were read. Keep data longer; to continue, start "
    "from 'earliest' (streaming: with a new checkpoint location), or set failOnDataLoss to false, which skips the "
    "lost data and logs it"
)


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes ``[start_offset, length)`` of a segment; a sealed one never grows."""

    start_offset: int
    length: int
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``[start, end)`` of one segment; both are event boundaries."""

    segment: int
    start: int
    end: int

    @property
    def length(self) -> int:
        """Bytes in the range."""
        return self.end - self.start


@dataclass(slots=True)
class Losses:
    """Missing data that a walk has skipped: truncated by retention or by hand, and permanently lost.

    Attributes:
        ranges: the missing bytes, as far as their number is known.
        deleted: segments that no longer exist, each with the byte from which it had to be read. The number of
            bytes after that is unknown.
        streams: streams that no longer exist, or were recreated under their name.
    """

    ranges: list[ByteRange] = field(default_factory=list)
    deleted: dict[int, int] = field(default_factory=dict)
    streams: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ranges or self.deleted or self.streams)

    @property
    def byte_count(self) -> int:
        """Number of missing bytes, at least."""
        return sum(each.length for each in self.ranges)

    def __str__(self) -> str:
        parts = [f"bytes [{each.start}, {each.end}) of segment {each.segment}" for each in self.ranges]
        parts += [f"any data of segment {segment} after byte {at}" for segment, at in self.deleted.items()]
        parts += [f"the unread data of stream {stream}, which was deleted" for stream in self.streams]
        return ", ".join(parts)


class Each(Protocol):
    """Applies a function to each of some values, as `map` does, possibly concurrently."""

    def __call__(self, function: Callable[[A], B], values: Iterable[A], /) -> Iterator[B]:
        """Yield the results in the order of the values. Raises what the function raises."""


class StreamView(Protocol):
    """The requests of planning about one stream."""

    @property
    def name(self) -> str:
        """The stream, as ``scope/stream``, for messages."""

    def extent(self, segment: int) -> Extent:
        """Return the current extent of a segment. Raises `NoSuchSegmentError`: it was deleted by truncation."""

    def extents(self, segments: Sequence[int]) -> Sequence[Extent | NoSuchSegmentError]:
        """Return the extent of each of many segments, or that it was deleted by truncation, in one request."""

    def successors(self, segment: int) -> Mapping[int, Sequence[int]]:
        """Return each segment that follows the sealed `segment`, with all the segments it replaces."""

    def boundaries(self, segment: int, start: int, targets: Sequence[int]) -> Sequence[int]:
        """Return for each ascending target the last event boundary at or before it, walking from boundary `start`."""

    def boundary_behind(self, segment: int, start: int, end: int, event_count: int) -> tuple[int, int]:
        """Return the boundary after `event_count` events from `start`, at most `end`, and the number of events."""

    def event_end(self, segment: int, start: int) -> int:
        """Return the end of the event that starts at `start`."""


def _full_name(view: StreamView, segment: int) -> str:
    return segment_name(*split_scoped_name(view.name), segment)


class _Walk:
    """A cut on its way from a start towards an end, and the ranges that it has passed."""

    def __init__(self, view: StreamView, start: Cut, end: Cut, losses: Losses | None) -> None:
        self.view = view
        self.cut = dict(start)
        self.end = end
        self.ranges: list[ByteRange] = []
        self._extents: dict[int, Extent] = {}
        self._losses = losses
        #: Segments whose missing bytes are known.
        self._inspected: set[int] = set()
        #: Results of `extents` that `_found` has not used yet.
        self._prefetched: dict[int, Extent | NoSuchSegmentError] = {}

    def extent(self, segment: int) -> Extent:
        """Return the extent of a segment that the end cut does not name: it must be sealed, so it cannot change."""
        known = self._extents.get(segment)
        if known is None:
            known = self._found(segment)
            if not known.is_sealed:
                raise InvalidArgumentError(
                    f"stream {self.view.name}: segment {segment} is still open but the end cut "
                    f"{dict(sorted(self.end.items()))} does not name it: the end does not follow the start "
                    f"{dict(sorted(self.cut.items()))}"
                )
            self._extents[segment] = known
        return known

    def _found(self, segment: int) -> Extent:
        try:
            known = self._prefetched.pop(segment, None)
            if isinstance(known, NoSuchSegmentError):
                raise known
            return known or self.view.extent(segment)
        except NoSuchSegmentError as error:
            if self._losses is None:
                error.add_note(f"the data that the query had not read is lost: {TRUNCATED}")
                raise
        if segment in self.end:
            return Extent(self.end[segment], self.end[segment], is_sealed=True)
        at = self._losses.deleted[segment] = self.cut[segment]
        return Extent(at, at, is_sealed=True)

    def limit(self, segment: int) -> int:
        """Return how far a segment of the current cut may be read."""
        return self.end[segment] if segment in self.end else self.extent(segment).length

    def pending(self) -> dict[int, int]:
        """Return the unread bytes of each segment of the current cut that has any."""
        result: dict[int, int] = {}
        for segment in sorted(self.cut):
            left = self.limit(segment) - self.cut[segment]
            if left < 0 and segment not in self.end:
                raise PositionBeyondEndError(
                    _full_name(self.view, segment), position=self.cut[segment], end=self.limit(segment)
                )
            if left < 0:
                raise InvalidArgumentError(
                    f"stream {self.view.name}: segment {segment} would be read from byte {self.cut[segment]}, but "
                    f"ends at {self.limit(segment)}: the end is before the start, or the stream was deleted and "
                    "created again; start with new cuts, or a new checkpoint location"
                )
            if left:
                result[segment] = left
        return result

    def move(self, segment: int, to: int) -> None:
        """Pass the bytes of a segment up to `to`."""
        if to > self.cut[segment]:
            self.ranges.append(ByteRange(segment, self.cut[segment], to))
            self.cut[segment] = to

    def settle(self) -> None:
        """Replace finished segments by their successors, whole groups at a time, until none is finished.

        Repeated, because a successor may itself be sealed and empty.
        """
        self._pass_what_is_gone()
        while self._settle_once():
            self._pass_what_is_gone()

    def _pass_what_is_gone(self) -> None:
        """With losses, move segments to their first byte that is kept, and record the missing bytes."""
        if self._losses is None:
            return
        new = sorted(self.cut.keys() - self._inspected)
        self._prefetched = dict(zip(new, self.view.extents(new), strict=True)) if new else {}
        for segment in new:
            self._inspected.add(segment)
            found = self._found(segment)
            if segment not in self.end:
                self._extents.setdefault(segment, found)
            at, limit = self.cut[segment], self.limit(segment)
            kept = min(max(found.start_offset, at), limit)
            if kept > at:
                self._losses.ranges.append(ByteRange(segment, at, kept))
                self.cut[segment] = kept

    def _settle_once(self) -> bool:
        replaced = False
        for segment in sorted(self.cut):
            if segment not in self.cut or not self._is_finished(segment):
                continue
            group = self._replacement_group(segment)
            if group is None:
                continue
            finished, following = group
            for old in finished:
                del self.cut[old]
            for new in following:
                self.cut[new] = 0
            replaced = True
        return replaced

    def _is_finished(self, segment: int) -> bool:
        return segment in self.cut and segment not in self.end and self.cut[segment] >= self.extent(segment).length

    def _replacement_group(self, segment: int) -> tuple[set[int], set[int]] | None:
        """Return the segments that are replaced along with `segment` and their successors, or None if one is unread."""
        finished, following, open_ends = {segment}, set[int](), [segment]
        while open_ends:
            for new, replaces in sorted(self.view.successors(open_ends.pop()).items()):
                if new in following:
                    continue
                following.add(new)
                for old in replaces:
                    if old in finished:
                        continue
                    # Not in the cut means that the walk has not reached it yet: its successors must wait.
                    if not self._is_finished(old):
                        return None
                    finished.add(old)
                    open_ends.append(old)
        return (finished, following) if following else None


def advance(
    view: StreamView,
    start: Cut,
    end: Cut,
    bytes_max: int | None,
    losses: Losses | None = None,
    *,
    events_max: int | None = None,
    claims: Claims | None = None,
    each: Each = map,
) -> dict[int, int]:
    """Return the cut that is at most `bytes_max` and `events_max` past `start` and not past `end`.

    The limit is shared among the open segments as in `penstock.spark.sharing`, over the micro-batches that have
    the same `claims`, and each share ends on an event boundary. A single event larger than `bytes_max` is
    taken nevertheless: at least one event is passed while there is any. With both limits None the walk goes to `end`.

    With `losses` missing data are skipped, recorded there, and do not count for the limits. `each` is as `map`, and
    may run the lookups of event boundaries concurrently.

    Raises:
        InvalidArgumentError: `end` does not follow `start`.
        NoSuchSegmentError, SegmentTruncatedError: bytes are missing, and there is no `losses`.
    """
    walk, claims = _Walk(view, start, end, losses), claims or Claims()
    bytes_left, events_left = bytes_max, events_max
    while True:
        walk.settle()
        pending = walk.pending()
        total = sum(pending.values())
        if not total:
            claims.clear()
            return walk.cut
        at = {segment: walk.cut[segment] for segment in pending}
        whole = goals = {segment: at[segment] + length for segment, length in pending.items()}
        taken: Mapping[int, int] = pending
        shares = claims.of(pending)
        if bytes_left is not None:
            if total > bytes_left:
                goals, taken = share_bytes(at, goals, shares, bytes_left, partial(_boundaries, view, each))
            bytes_left -= total
        if events_left is not None:
            goals, taken = share_events(at, goals, shares, events_left, partial(_boundaries_behind, view, each))
            events_left -= sum(taken.values())
        for segment, goal in goals.items():
            walk.move(segment, goal)
        if goals == whole:
            continue
        if not walk.ranges:
            # The first event of every segment is larger than the limit: pass one, where the claim is the largest.
            segment = max(pending, key=lambda each: (shares[each], -each))
            walk.move(segment, view.event_end(segment, walk.cut[segment]))
            taken = {segment: 1}
        claims.settle(pending, taken)
        walk.settle()
        return walk.cut


def _boundaries(view: StreamView, each: Each, lookups: Sequence[Lookup]) -> Iterator[tuple[int, int]]:
    def find(lookup: Lookup) -> tuple[int, int]:
        boundary = view.boundaries(lookup.segment, lookup.at, [lookup.at + lookup.share])[0]
        return boundary, boundary - lookup.at

    yield from each(find, lookups)


def _boundaries_behind(view: StreamView, each: Each, lookups: Sequence[Lookup]) -> Iterator[tuple[int, int]]:
    def find(lookup: Lookup) -> tuple[int, int]:
        return view.boundary_behind(lookup.segment, lookup.at, lookup.goal, lookup.share)

    yield from each(find, lookups)


def ranges_between(view: StreamView, start: Cut, end: Cut, losses: Losses | None = None) -> list[ByteRange]:
    """Return the byte ranges from `start` to `end`, a segment's predecessors before it; empty ranges are left out.

    With `losses` missing data are left out, and recorded there.

    Raises:
        InvalidArgumentError: `end` does not follow `start`.
        NoSuchSegmentError: a segment in between no longer exists, and there is no `losses`.
    """
    walk = _Walk(view, start, end, losses)
    while True:
        walk.settle()
        pending = walk.pending()
        if not pending:
            break
        for segment, length in pending.items():
            walk.move(segment, walk.cut[segment] + length)
    missed = sorted(set(end) - set(walk.cut))
    if missed:
        raise InvalidArgumentError(
            f"stream {view.name}: segment {missed[0]} of the end cut is not reached from the start cut: "
            "the end does not follow the start"
        )
    return walk.ranges


def kept(view: StreamView, ranges: Sequence[ByteRange], losses: Losses) -> list[ByteRange]:
    """Return the part of each range that still exists, perhaps an empty range at its end; record the missing part."""
    result: list[ByteRange] = []
    for wanted, found in zip(ranges, view.extents([each.segment for each in ranges]), strict=True):
        start_offset = wanted.end if isinstance(found, NoSuchSegmentError) else found.start_offset
        start = min(max(start_offset, wanted.start), wanted.end)
        if start > wanted.start:
            losses.ranges.append(ByteRange(wanted.segment, wanted.start, start))
        result.append(ByteRange(wanted.segment, start, wanted.end))
    return result


def check_ranges(view: StreamView, ranges: Sequence[ByteRange]) -> None:
    """Check that all bytes of `ranges` exist, before a task waits for bytes that may never be written.

    Raises:
        PositionBeyondEndError: a range goes past the end of its segment.
        InvalidArgumentError: a range starts before the first byte that is kept.
        NoSuchSegmentError: a segment was deleted by truncation.
    """
    for each, extent in zip(ranges, view.extents([each.segment for each in ranges]), strict=True):
        if isinstance(extent, NoSuchSegmentError):
            extent.add_note(f"bytes [{each.start}, {each.end}) of it are lost: {TRUNCATED}")
            raise extent
        if each.end > extent.length:
            raise PositionBeyondEndError(
                _full_name(view, each.segment),
                position=each.end,
                end=extent.length,
                message=f"stream {view.name}: bytes [{each.start}, {each.end}) of segment {each.segment} were "
                f"requested, but it ends at {extent.length}: the cut is after the end of the stream, which was "
                "restored "
                "from an older backup, or deleted and created again; use cuts of this stream, or a new checkpoint "
                "location",
            )
        if each.start < extent.start_offset:
            raise InvalidArgumentError(
                f"stream {view.name}: bytes [{each.start}, {min(each.end, extent.start_offset)}) of segment "
                f"{each.segment} are lost: {TRUNCATED}"
            )


def split_ranges(
    view: StreamView, ranges: Sequence[ByteRange], *, bytes_max: int | None, count_min: int
) -> list[ByteRange]:
    """Split ranges at event boundaries until none is longer than `bytes_max` and there are about `count_min`.

    Costs a walk over the bytes of every range that is split. A range with a single event longer than `bytes_max`
    stays longer. Returns the ranges unchanged when neither limit requires a split.
    """
    piece = bytes_max
    total = sum(each.length for each in ranges)
    if count_min > len(ranges) and total:
        even = -(-total // count_min)
        piece = even if piece is None else min(piece, even)
    if piece is None:
        return list(ranges)
    result: list[ByteRange] = []
    for each in ranges:
        count = -(-each.length // piece)
        targets = [each.start + each.length * index // count for index in range(1, count)]
        cuts = list(view.boundaries(each.segment, each.start, targets)) if targets else []
        edges = sorted({each.start, *cuts, each.end})
        result.extend(ByteRange(each.segment, low, high) for low, high in pairwise(edges))
    return result
