"""When a watermark is due and what it says: numbers of controller-internals 15.3, and properties."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.metadata.records import EpochRecord, SegmentRecord, WriterMark
from penstock.controller.watermarks.watermark_rules import (
    is_at_or_before,
    make_watermark,
    records_of,
    sort_writers,
    upper_bound,
)
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import segment_epoch
from penstock.model.watermarks import MarkedSegment, Watermark
from support.cut_model import tiling

THIRDS = EpochRecord(0, 0, tiling(3, 0, 0), 0)
HALVES = EpochRecord(1, 1, tiling(2, 1, 3), 0)
#: As ids: segments 3 and 4 of the specification's numbers.
S3, S4 = (segment.id for segment in HALVES.segments)
RECORDS = {segment.id: segment for epoch in (THIRDS, HALVES) for segment in epoch.segments}


def watermark(marks: Any, previous: Any, newest: Any) -> Any:
    return make_watermark(marks, previous, RECORDS, newest)


def test_numbers_of_the_specification_in_sequence() -> None:
    """S-232: three writers; a scale that some have seen; one that stalls, leaves, and returns."""
    w1, w2, w3 = WriterMark(100, {0: 100, 1: 200}), WriterMark(101, {1: 100, 2: 200}), WriterMark(102, {2: 100, 0: 200})
    first = watermark([w1, w2, w3], None, THIRDS)
    assert (first.lower_bound, first.upper_bound, first.positions) == (100, 102, {0: 200, 1: 200, 2: 200})
    w1, w2, w3 = (WriterMark(200, {0: 300, 1: 300}), WriterMark(201, {1: 300, 2: 300}), WriterMark(202, {2: 300}))
    second = watermark([w1, w2, w3], first, THIRDS)
    assert (second.lower_bound, second.positions) == (200, {0: 300, 1: 300, 2: 300})
    w1, w2, w3 = WriterMark(301, {0: 400, 1: 400}), WriterMark(301, {1: 400, 2: 400}), WriterMark(300, {S3: 100})
    third = watermark([w1, w2, w3], second, HALVES)
    assert (third.lower_bound, third.positions) == (300, {S3: 100, S4: 0})
    # w3 is silent: nothing more. It leaves: its mark is gone, and the others continue.
    w1, w2 = WriterMark(400, {0: 400, 1: 400}), WriterMark(401, {1: 400, 2: 400})
    assert not sort_writers({"w1": w1, "w2": w2, "w3": w3}, third, {}, 0.0, 1.0).is_due
    left = sort_writers({"w1": w1, "w2": w2, "w3": WriterMark(300, {S3: 100}, is_alive=False)}, third, {}, 0.0, 1.0)
    assert left.is_due
    assert list(left.gone) == ["w3"]
    fourth = watermark(left.participating.values(), third, HALVES)
    assert (fourth.lower_bound, fourth.positions) == (400, {S3: 100, S4: 0})
    w1, w2, w3 = WriterMark(500, {0: 500}), WriterMark(500, {S3: 0}), WriterMark(500, {S4: 500})
    fifth = watermark([w1, w2, w3], fourth, HALVES)
    assert (fifth.lower_bound, fifth.positions) == (500, {S3: 100, S4: 500})


def test_a_late_writer_is_awaited_until_its_time_out() -> None:
    """S-233. Of time-out 0 it is gone at once; of another one, when it was seen behind for so long."""
    previous = Watermark(10, 12, (MarkedSegment(0, 0.0, 1.0, 5),))
    marks = {"late": WriterMark(10, {0: 4}), "early": WriterMark(11, {0: 9})}
    at_once = sort_writers(marks, previous, {}, 50.0, 0.0)
    assert (list(at_once.participating), list(at_once.gone), at_once.is_due) == (["early"], ["late"], True)
    first = sort_writers(marks, previous, {}, 50.0, 8.0)
    assert (first.awaited, first.is_due, first.gone) == ({"late": 50.0}, False, {})
    assert sort_writers(marks, previous, first.awaited, 57.9, 8.0).awaited == {"late": 50.0}
    assert list(sort_writers(marks, previous, first.awaited, 58.0, 8.0).gone) == ["late"]
    # It was back in between: the time restarts.
    assert sort_writers(marks, previous, {}, 58.0, 8.0).awaited == {"late": 58.0}


def test_before_the_first_watermark_all_writers_count_and_none_is_awaited() -> None:
    """Whatever its time; also one that has left."""
    marks = {"a": WriterMark(-5, {0: 1}, is_alive=False), "b": WriterMark(0, {0: 2})}
    writers = sort_writers(marks, None, {}, 0.0, 0.0)
    assert writers.participating == marks
    assert writers.is_due
    assert not sort_writers({}, None, {}, 0.0, 0.0).is_due


def test_a_time_that_is_not_later_makes_no_watermark() -> None:
    """The lower bound grows, whatever the upper one does."""
    previous = Watermark(10, 12, (MarkedSegment(0, 0.0, 1 / 3, 5),))
    assert watermark([WriterMark(10, {0: 9})], previous, THIRDS) is None
    assert watermark([WriterMark(11, {0: 9})], previous, THIRDS).upper_bound == 11


def test_positions_that_fit_no_epoch_are_refused() -> None:
    """Not searched without end: a segment that the epoch given as the newest does not replace."""
    stranger = SegmentRecord(9, 7, 0, 0.2, 0.3)
    with pytest.raises(InvalidArgumentError):
        upper_bound({stranger.id: 1}, {stranger.id: stranger}, THIRDS)


@st.composite
def histories(draw: Any) -> Any:
    """Epochs of a stream that is split and merged at random."""
    epochs = [EpochRecord(0, 0, tiling(draw(st.integers(1, 4)), 0, 0), 0)]
    number = len(epochs[0].segments)
    for epoch in range(1, draw(st.integers(1, 6))):
        before = epochs[-1].segments
        first = draw(st.integers(0, len(before) - 1))
        last = draw(st.integers(first, min(first + 2, len(before) - 1)))
        count = draw(st.integers(1, 3))
        start, end = before[first].key_start, before[last].key_end
        bounds = [start + (end - start) * index / count for index in range(count)] + [end]
        new = tuple(
            SegmentRecord(number + index, epoch, 0, low, high) for index, (low, high) in enumerate(pairwise(bounds))
        )
        number += count
        epochs.append(EpochRecord(epoch, epoch, (*before[:first], *new, *before[last + 1 :]), 0))
    return epochs


def frontier(segments: Any, key: Any) -> Any:
    """Return the newest of the segments that have a key, as (segment, offset), if there is one."""
    found = [(segment, offset) for segment, (start, end, offset) in segments.items() if start <= key < end]
    return max(found, default=None)


@settings(deadline=None, max_examples=60)
@given(histories(), st.data())
def test_a_watermark_cut_is_at_or_after_all_positions_and_covers_the_keys(epochs: Any, data: Any) -> None:
    """S-236: for every key. No reader need be able to come to it: a writer that has not heard of the end of a segment
    notes it beside segments after it, and readers have the one before they can have the other.
    """
    records = {segment.id: segment for epoch in epochs for segment in epoch.segments}

    def draw_marks() -> Any:
        return [
            WriterMark(data.draw(st.integers(0, 9)), data.draw(
                st.dictionaries(st.sampled_from(sorted(records)), st.integers(0, 99), min_size=1)
            ))
            for _ in range(data.draw(st.integers(1, 3)))
        ]  # fmt: skip

    previous = None
    for _ in range(data.draw(st.integers(1, 3))):
        marks = draw_marks()
        named = {segment for mark in marks for segment in mark.position} | set(records_of(previous))
        newest = epochs[max(map(segment_epoch, named))]
        made = make_watermark(marks, previous, records, newest)
        if made is None:
            assert min(mark.timestamp for mark in marks) <= previous.lower_bound
            continue
        tiles = sorted((segment.key_start, segment.key_end) for segment in made.segments)
        assert [tiles[0][0], tiles[-1][1]] == [0.0, 1.0]
        assert all(before[1] == after[0] for before, after in pairwise(tiles))
        cut = {each.segment_id: (each.key_start, each.key_end, each.offset) for each in made.segments}
        positions = [{segment: (records[segment].key_start, records[segment].key_end, offset)
                      for segment, offset in mark.position.items()} for mark in marks]  # fmt: skip
        if previous is not None:
            positions.append({s.segment_id: (s.key_start, s.key_end, s.offset) for s in previous.segments})
            assert made.lower_bound > previous.lower_bound
            assert is_at_or_before(previous, made.positions, records)
        for key in {start for start, _ in tiles} | {segment.key_start for segment in records.values()}:
            reached = frontier(cut, key)
            assert all((frontier(position, key) or reached) <= reached for position in positions)
        previous = made


@settings(deadline=None, max_examples=60)
@given(histories(), st.data())
def test_a_position_in_all_segments_of_an_epoch_is_the_cut(epochs: Any, data: Any) -> None:
    """Nothing is made later than it has to be."""
    epoch = data.draw(st.sampled_from(epochs))
    position = {segment.id: data.draw(st.integers(0, 99)) for segment in epoch.segments}
    records = {segment.id: segment for segment in epoch.segments}
    newest = epochs[max(map(segment_epoch, position))]
    made = make_watermark([WriterMark(3, position)], None, records, newest)
    assert made.positions == dict(sorted(position.items()))


def test_whether_a_cut_is_passed_is_reported_by_segments_and_keys() -> None:
    """The head of the stream: at it, after it by an offset, after it by a scale."""
    made = Watermark(1, 1, tuple(
        MarkedSegment(segment.id, segment.key_start, segment.key_end, 10) for segment in THIRDS.segments
    ))  # fmt: skip
    assert is_at_or_before(made, {0: 10, 1: 10, 2: 10}, RECORDS)
    assert not is_at_or_before(made, {0: 10, 1: 9, 2: 10}, RECORDS)
    halves = {S3: 0, S4: 0}
    assert is_at_or_before(made, halves, {segment: RECORDS[segment] for segment in halves})
    later = Watermark(2, 2, tuple(
        MarkedSegment(segment.id, segment.key_start, segment.key_end, 0) for segment in HALVES.segments
    ))  # fmt: skip
    head = {0: 10, 1: 10, 2: 10}
    assert not is_at_or_before(later, head, {segment: RECORDS[segment] for segment in head})
