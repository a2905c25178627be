"""Planning over streams that scale, against a model stream in memory. Pure, no Spark.

The property tests cut a random stream into byte-limited steps and check that the steps' ranges are, together, every
byte once, on event boundaries, predecessors first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidArgumentError, NoSuchSegmentError, SegmentTruncatedError
from penstock.model.events import frame_events
from penstock.spark.boundaries import boundaries_at, boundary_behind
from penstock.spark.planner import ByteRange, Extent, Losses, advance, check_ranges, ranges_between, split_ranges


@dataclass
class ModelStream:
    """A stream in memory: each segment's bytes, which are sealed, and what replaces what."""

    data: dict[int, bytes]
    #: successor -> the segments it replaces
    replaces: dict[int, list[int]] = field(default_factory=dict)
    name: str = "model/stream"

    def sealed(self) -> set[int]:
        return {old for olds in self.replaces.values() for old in olds}

    def extent(self, segment: int) -> Extent:
        return Extent(0, len(self.data[segment]), segment in self.sealed())

    def extents(self, segments: Sequence[int]) -> Sequence[Extent | NoSuchSegmentError]:
        found: list[Extent | NoSuchSegmentError] = []
        for segment in segments:
            try:
                found.append(self.extent(segment))
            except NoSuchSegmentError as error:
                found.append(error)
        return found

    def successors(self, segment: int) -> Mapping[int, Sequence[int]]:
        return {new: olds for new, olds in self.replaces.items() if segment in olds}

    def boundaries(self, segment: int, start: int, targets: Sequence[int]) -> Sequence[int]:
        return boundaries_at([self.data[segment][start:]], source=str(segment), start=start, targets=targets)

    def boundary_behind(self, segment: int, start: int, end: int, event_count: int) -> tuple[int, int]:
        blocks = [self.data[segment][start:end]]
        return boundary_behind(blocks, source=str(segment), start=start, end=end, event_count=event_count)

    def event_end(self, segment: int, start: int) -> int:
        return start + 8 + int.from_bytes(self.data[segment][start + 4 : start + 8], "big")

    def head(self) -> dict[int, int]:
        return {segment: 0 for segment in self.data if segment not in self.replaces}

    def tail(self) -> dict[int, int]:
        return {segment: len(data) for segment, data in self.data.items() if segment not in self.sealed()}


def events(*lengths: int) -> bytes:
    return frame_events([b"x" * length for length in lengths])


def scaled() -> ModelStream:
    """0 splits into 2 and 3; 1 and 3 merge into 4."""
    return ModelStream(
        {0: events(2, 2), 1: events(92), 2: events(12), 3: events(2), 4: events(2, 2, 2)},
        {2: [0], 3: [0], 4: [1, 3]},
    )


def test_available_now_reads_to_the_tail_through_every_scale() -> None:
    stream = scaled()
    assert advance(stream, stream.head(), stream.tail(), None) == {2: 20, 4: 30}
    assert ranges_between(stream, stream.head(), stream.tail()) == [
        ByteRange(0, 0, 20),
        ByteRange(1, 0, 100),
        ByteRange(2, 0, 20),
        ByteRange(3, 0, 10),
        ByteRange(4, 0, 30),
    ]


def test_without_new_events_the_end_is_the_start() -> None:
    stream = scaled()
    assert advance(stream, stream.tail(), stream.tail(), 100) == stream.tail()
    assert ranges_between(stream, stream.tail(), stream.tail()) == []


def test_a_merge_waits_until_all_that_it_replaces_is_read() -> None:
    stream = scaled()
    # 1 has one event of 100 bytes, so 3 is read before it; 4 must not start, and 3 stays in the cut at its length.
    assert advance(stream, {1: 0, 2: 20, 3: 0}, {1: 0, 2: 20, 3: 10}, None) == {1: 0, 2: 20, 3: 10}
    assert advance(stream, {1: 0, 2: 20, 3: 10}, stream.tail(), 5) == {2: 20, 4: 0}


def test_sealed_segments_without_an_event_are_stepped_over() -> None:
    stream = ModelStream({0: b"", 1: b"", 2: events(2)}, {1: [0], 2: [1]})
    assert ranges_between(stream, stream.head(), stream.tail()) == [ByteRange(2, 0, 10)]
    assert advance(stream, stream.head(), stream.tail(), 1) == {2: 10}


def test_overlapping_replacements_go_together() -> None:
    # 0, 1, 2 become 3 (of 0), 4 (of 0 and 1), 5 (of 1 and 2): none may start before all of 0, 1 and 2 are read.
    stream = ModelStream(
        {0: events(2), 1: events(2), 2: events(2), 3: events(2), 4: events(2), 5: events(2)},
        {3: [0], 4: [0, 1], 5: [1, 2]},
    )
    # All three are read: all of 3, 4 and 5 come at once, and one event of the first is passed.
    assert advance(stream, {0: 10, 1: 10, 2: 10}, stream.tail(), 1) == {3: 10, 4: 0, 5: 0}
    assert advance(stream, {0: 10, 1: 10, 2: 0}, {0: 10, 1: 10, 2: 10}, None) == {0: 10, 1: 10, 2: 10}


def test_a_limit_is_shared_in_proportion_and_ends_on_boundaries() -> None:
    stream = ModelStream({0: events(*[2] * 100), 1: events(*[2] * 300)})
    assert advance(stream, stream.head(), stream.tail(), 400) == {0: 100, 1: 300}
    # 399 bytes are 99 and 299: back to the boundary before.
    assert advance(stream, stream.head(), stream.tail(), 399) == {0: 90, 1: 290}


def test_events_are_shared_among_segments_and_what_rounding_leaves_goes_where_most_is() -> None:
    stream = ModelStream({0: events(*[2] * 100), 1: events(*[2] * 300)})
    assert advance(stream, stream.head(), stream.tail(), None, events_max=40) == {0: 100, 1: 300}
    assert advance(stream, stream.head(), stream.tail(), None, events_max=41) == {0: 100, 1: 310}
    assert advance(stream, stream.head(), stream.tail(), None, events_max=1) == {0: 0, 1: 10}
    # Fewer and larger events than its share of the bytes would have: what they leave is not given to others.
    mixed = ModelStream({0: events(92, 92), 1: events(*[2] * 20)})
    assert advance(mixed, mixed.head(), mixed.tail(), None, events_max=10) == {0: 200, 1: 50}
    assert advance(mixed, mixed.head(), mixed.tail(), 100, events_max=1000) == {0: 0, 1: 50}
    many = ModelStream({segment: events(2) for segment in range(100)})
    assert sum(advance(many, many.head(), many.tail(), None, events_max=10).values()) == 100


def test_an_event_larger_than_the_limit_is_passed_alone() -> None:
    stream = ModelStream({0: events(992), 1: events(92, 92)})
    assert advance(stream, stream.head(), stream.tail(), 10) == {0: 1000, 1: 0}


def test_a_limit_of_one_byte_still_arrives() -> None:
    stream, cut, steps = scaled(), scaled().head(), 0
    while cut != stream.tail():
        following = advance(stream, cut, stream.tail(), 1)
        assert following != cut
        cut, steps = following, steps + 1
        assert steps < 50
    assert cut == {2: 20, 4: 30}


def test_an_end_before_the_start_is_refused() -> None:
    stream = ModelStream({0: events(2, 2)})
    with pytest.raises(InvalidArgumentError, match="the end is before the start"):
        advance(stream, {0: 20}, {0: 10}, None)
    with pytest.raises(InvalidArgumentError, match="does not follow the start"):
        ranges_between(scaled(), scaled().tail(), scaled().head())


def test_an_end_that_the_start_never_reaches_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="segment 7 of the end cut is not reached"):
        ranges_between(ModelStream({0: events(2)}), {0: 0}, {0: 10, 7: 0})


def test_ranges_that_the_stream_does_not_hold_are_refused() -> None:
    class Truncated(ModelStream):
        def extent(self, segment: int) -> Extent:
            return Extent(10, len(self.data[segment]), False)

    stream = Truncated({0: events(2, 2, 2)})
    check_ranges(stream, [ByteRange(0, 10, 30)])
    with pytest.raises(InvalidArgumentError, match=r"\[10, 31\) of segment 0 were requested, but it ends at 30"):
        check_ranges(stream, [ByteRange(0, 10, 31)])
    with pytest.raises(InvalidArgumentError, match=r"\[0, 10\) of segment 0 are lost"):
        check_ranges(stream, [ByteRange(0, 0, 20)])


@dataclass
class TruncatedStream(ModelStream):
    """A stream of which everything before some cut is gone: segments that the cut has left behind are deleted."""

    kept_from: dict[int, int] = field(default_factory=dict)

    def extent(self, segment: int) -> Extent:
        start_offset = self.kept_from.get(segment, 0)
        if self._is_replaced(segment):
            raise NoSuchSegmentError(f"segment {segment} does not exist")
        return Extent(start_offset, len(self.data[segment]), segment in self.sealed())

    def boundaries(self, segment: int, start: int, targets: Sequence[int]) -> Sequence[int]:
        if self.extent(segment).start_offset > start:
            raise SegmentTruncatedError(f"segment {segment}", start_offset=self.kept_from[segment], offset=start)
        return super().boundaries(segment, start, targets)

    def _is_replaced(self, segment: int) -> bool:
        """Say whether a segment lies before the cut: the cut has come to one that follows it."""
        if segment in self.kept_from:
            return False
        return any(new in self.kept_from or self._is_replaced(new) for new in self.successors(segment))


def truncated(stream: ModelStream, cut: Mapping[int, int]) -> TruncatedStream:
    return TruncatedStream(stream.data, stream.replaces, kept_from=dict(cut))


def test_a_truncated_range_stops_planning_and_names_the_option_that_skips_it() -> None:
    stream = truncated(scaled(), {2: 0, 4: 10})
    with pytest.raises(NoSuchSegmentError) as caught:
        ranges_between(stream, {0: 10, 1: 0}, stream.tail())
    assert "set failOnDataLoss to false" in "".join(caught.value.__notes__)
    with pytest.raises(SegmentTruncatedError):
        advance(stream, {2: 0, 4: 0}, stream.tail(), 25)


def test_a_truncated_range_is_skipped_and_counted_with_the_option() -> None:
    stream, losses = truncated(scaled(), {2: 0, 4: 10}), Losses()
    assert ranges_between(stream, {0: 10, 1: 0}, stream.tail(), losses) == [ByteRange(2, 0, 20), ByteRange(4, 10, 30)]
    # The lengths of 0, 1 and 3 are no longer known.
    assert losses.deleted == {0: 10, 1: 0, 3: 0}
    assert losses.ranges == [ByteRange(4, 0, 10)]
    assert losses.byte_count == 10
    assert str(losses).startswith("bytes [0, 10) of segment 4, any data of segment 0 after byte 10")


def test_a_batch_that_is_replayed_behind_its_own_end_has_nothing_left() -> None:
    """Its end is on record: it is kept to, though all of the batch is gone meanwhile."""
    stream, losses = truncated(scaled(), {2: 20, 4: 20}), Losses()
    assert ranges_between(stream, {0: 0, 1: 0}, {0: 10, 1: 100}, losses) == []
    assert losses.ranges == [ByteRange(0, 0, 10), ByteRange(1, 0, 100)]
    assert losses.deleted == {}
    # So it is where the end lies in a segment that is there, but before what is kept of it.
    losses = Losses()
    assert ranges_between(stream, {2: 20, 4: 0}, {2: 20, 4: 10}, losses) == []
    assert losses.ranges == [ByteRange(4, 0, 10)]


def test_no_loss_is_counted_without_truncation() -> None:
    stream, losses = scaled(), Losses()
    assert ranges_between(stream, stream.head(), stream.tail(), losses) == ranges_between(
        stream, stream.head(), stream.tail()
    )
    assert not losses


def test_ranges_are_split_at_event_boundaries() -> None:
    stream = ModelStream({0: events(*[2] * 10), 1: events(42)})
    ranges = ranges_between(stream, stream.head(), stream.tail())
    assert split_ranges(stream, ranges, bytes_max=None, count_min=0) == ranges
    assert split_ranges(stream, ranges, bytes_max=None, count_min=2) == ranges
    assert split_ranges(stream, ranges, bytes_max=40, count_min=0) == [
        ByteRange(0, 0, 30),
        ByteRange(0, 30, 60),
        ByteRange(0, 60, 100),
        # One event cannot be split.
        ByteRange(1, 0, 50),
    ]
    assert len(split_ranges(stream, ranges, bytes_max=None, count_min=5)) == 5
    assert split_ranges(stream, [], bytes_max=10, count_min=5) == []


@st.composite
def streams(draw: st.DrawFn) -> ModelStream:
    """Streams of up to 3 epochs, each of which replaces neighbouring segments by new ones."""
    lengths = st.lists(st.integers(0, 60), max_size=8)
    width = draw(st.integers(1, 4))
    data = {number: events(*draw(lengths)) for number in range(width)}
    live, replaces, number = list(range(width)), dict[int, list[int]](), width
    for _ in range(draw(st.integers(0, 2))):
        low = draw(st.integers(0, len(live) - 1))
        high = draw(st.integers(low + 1, len(live)))
        olds, count = live[low:high], draw(st.integers(1, 3))
        news = list(range(number, number + count))
        number += count
        for index, new in enumerate(news):
            data[new] = events(*draw(lengths))
            # New segment i covers [i, i+1)/count of the old range: it replaces whatever overlaps.
            replaces[new] = [
                old
                for at, old in enumerate(olds)
                if at * count < (index + 1) * len(olds) and (at + 1) * count > index * len(olds)
            ]
        live[low:high] = news
    return ModelStream(data, replaces)


def check_all_is_covered(stream: ModelStream, seen: Sequence[ByteRange]) -> None:
    """Every byte once, in order, what a segment replaces before it."""
    position = dict.fromkeys(stream.data, 0)
    for each in seen:
        assert each.start == position[each.segment]
        assert each.end in stream.boundaries(each.segment, 0, [each.end])
        for old in stream.replaces.get(each.segment, []):
            assert position[old] == len(stream.data[old])
        position[each.segment] = each.end
    assert position == {segment: len(data) for segment, data in stream.data.items()}


@given(stream=streams(), bytes_max=st.integers(1, 500))
def test_steps_cover_every_byte_once_in_order(stream: ModelStream, bytes_max: int) -> None:
    cut, tail, seen = stream.head(), stream.tail(), list[ByteRange]()
    for _ in range(200):
        following = advance(stream, cut, tail, bytes_max)
        ranges = ranges_between(stream, cut, following)
        assert sum(each.length for each in ranges) <= bytes_max or len(ranges) == 1
        seen.extend(ranges)
        if following == cut:
            break
        cut = following
    assert cut == tail
    check_all_is_covered(stream, seen)


@given(stream=streams(), bytes_max=st.none() | st.integers(1, 500), events_max=st.integers(1, 9))
def test_steps_of_so_many_events_cover_every_byte_once_in_order(
    stream: ModelStream, bytes_max: int | None, events_max: int
) -> None:
    cut, tail, seen = stream.head(), stream.tail(), list[ByteRange]()
    for _ in range(200):
        following = advance(stream, cut, tail, bytes_max, events_max=events_max)
        ranges = ranges_between(stream, cut, following)
        counts = [stream.boundary_behind(each.segment, each.start, each.end, 1000)[1] for each in ranges]
        assert sum(counts) <= events_max
        if bytes_max is not None:
            assert sum(each.length for each in ranges) <= bytes_max or counts == [1]
        seen.extend(ranges)
        if following == cut:
            break
        cut = following
    assert cut == tail
    check_all_is_covered(stream, seen)


@given(stream=streams(), before=st.integers(0, 400), at=st.integers(0, 400), bytes_max=st.integers(1, 500))
def test_steps_over_truncated_ranges_cover_each_retained_byte_once_in_order(
    stream: ModelStream, before: int, at: int, bytes_max: int
) -> None:
    """A query at any position, truncated at any position; it continues in steps, and to its end."""
    tail = stream.tail()
    start = advance(stream, stream.head(), tail, before) if before else stream.head()
    kept_from = advance(stream, stream.head(), tail, at) if at else stream.head()
    kept = ranges_between(stream, kept_from, tail)
    wanted = {(each.segment, byte) for each in kept for byte in range(each.start, each.end)} & {
        (each.segment, byte) for each in ranges_between(stream, start, tail) for byte in range(each.start, each.end)
    }
    gone, cut, seen = truncated(stream, kept_from), start, list[ByteRange]()
    for _ in range(200):
        losses = Losses()
        following = advance(gone, cut, tail, bytes_max, losses)
        again = Losses()
        seen.extend(ranges_between(gone, cut, following, again))
        assert again.byte_count >= losses.byte_count
        if following == cut:
            break
        cut = following
    assert cut == tail
    found = [(each.segment, byte) for each in seen for byte in range(each.start, each.end)]
    assert len(found) == len(set(found))
    assert set(found) == wanted
    position: dict[int, int] = {}
    for each in seen:
        assert each.start >= position.get(each.segment, 0)
        position[each.segment] = each.end


@given(stream=streams(), bytes_max=st.integers(1, 200), count_min=st.integers(0, 20))
def test_splitting_keeps_every_byte(stream: ModelStream, bytes_max: int, count_min: int) -> None:
    ranges = ranges_between(stream, stream.head(), stream.tail())
    pieces = split_ranges(stream, ranges, bytes_max=bytes_max, count_min=count_min)
    joined: dict[int, int] = {}
    for piece in pieces:
        assert piece.start == joined.get(piece.segment, 0)
        assert piece.length > 0
        joined[piece.segment] = piece.end
    assert joined == {each.segment: each.end for each in ranges}
