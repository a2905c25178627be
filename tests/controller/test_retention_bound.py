"""The bound of subscribers and the order of cuts, against reading each key one by one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller import stream_cuts
from penstock.controller.metadata.records import EpochRecord, SegmentRecord
from penstock.controller.retention.decision import Choice, RetentionRow, SizeSituation, choose_by_size, choose_by_time
from penstock.controller.steps import STEP_ITEMS, at_once
from penstock.controller.stream_cuts import CutOrder, lowest, merged_cuts, order_of
from penstock.model.stream_cuts import OFFSET_FUTURE
from support.cut_model import is_valid_cut, position_of

#: Parts of the key space that are inspected one by one; bounds of segments are multiples of one.
KEYS = 8


def epoch_of(
    number: int, ranges: list[tuple[float, float]], before: EpochRecord, count: int
) -> tuple[EpochRecord, int]:
    """Return the epoch that follows: segments with these ranges, those that were there stay."""
    known = {(one.key_start, one.key_end): one for one in before.segments}
    segments = []
    for start, end in ranges:
        if (start, end) in known:
            segments.append(known[start, end])
        else:
            segments.append(SegmentRecord(count, number, 2**41 + number, start, end))
            count += 1
    return EpochRecord(number, number, tuple(segments), 2**41 + number), count


@st.composite
def histories(draw: Callable[..., Any]) -> list[EpochRecord]:
    """Make a history of splits and merges over `KEYS` parts of the key space."""
    epochs = []
    count = 0
    before = EpochRecord(-1, -1, (), 0)
    for number in range(draw(st.integers(1, 5))):
        bounds = [0, *sorted(draw(st.sets(st.integers(1, KEYS - 1), max_size=4))), KEYS]
        ranges = [(start / KEYS, end / KEYS) for start, end in pairwise(bounds)]
        before, count = epoch_of(number, ranges, before, count)
        epochs.append(before)
    return epochs


def keys_of(segment: SegmentRecord) -> range:
    return range(round(segment.key_start * KEYS), round(segment.key_end * KEYS))


def readers(draw: Callable[..., Any], epochs: list[EpochRecord]) -> dict[int, int]:
    """Let readers read a while: return the cut where they are. A segment begins when all before it are read."""
    offsets = {segment.id: 0 for segment in epochs[0].segments}
    for before, epoch in pairwise(epochs):
        ended = [one for one in before.segments if one not in epoch.segments]
        for segment in ended:
            if segment.id in offsets and draw(st.booleans()):
                del offsets[segment.id]
        waiting = {key for segment in ended if segment.id in offsets for key in keys_of(segment)}
        held = {key for one in epochs for segment in one.segments if segment.id in offsets for key in keys_of(segment)}
        for segment in epoch.segments:
            if segment in before.segments:
                continue
            keys = set(keys_of(segment))
            if not keys & (waiting | held):
                offsets[segment.id] = 0
            elif keys - held:
                offsets[segment.id] = OFFSET_FUTURE
    return {
        segment: offset if offset == OFFSET_FUTURE else draw(st.integers(0, 3)) for segment, offset in offsets.items()
    }


def place(cut: dict[int, int], epochs: list[EpochRecord], key: int) -> tuple[int, int]:
    """Return where a cut is on one key: the least of its segments there, and how far in it."""
    segments = {segment.id: segment for epoch in epochs for segment in epoch.segments}
    return min((segment, max(0, offset)) for segment, offset in cut.items() if key in keys_of(segments[segment]))  # type: ignore[index]


@settings(max_examples=300, deadline=None)
@given(histories(), st.data())
def test_the_bound_is_the_slowest_position_per_key_and_a_valid_cut(
    epochs: list[EpochRecord], data: st.DataObject
) -> None:
    """Over random splits and merges, with subscribers that have read more or less of each segment."""
    cuts = [readers(data.draw, epochs) for _ in range(data.draw(st.integers(1, 4)))]
    cuts = [cut for cut in cuts if cut and is_valid_cut(cut, epochs)]
    if not cuts:
        return
    bound = at_once(lowest(position_of(at_once(merged_cuts(cuts)), epochs)))
    for key in range(KEYS):
        assert place(bound, epochs, key) == min(place(cut, epochs, key) for cut in cuts)
    assert is_valid_cut(bound, epochs)


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(1, 5), st.data())
def test_the_bound_of_many_subscribers_in_few_segments_is_that_of_each(
    epochs: list[EpochRecord], at_once_count: int, data: st.DataObject
) -> None:
    """As most are: in the same segments, apart in their offsets, in any order; so many are compared at once."""
    cuts = []
    for _ in range(data.draw(st.integers(1, 3))):
        cut = readers(data.draw, epochs)
        if not cut or not is_valid_cut(cut, epochs):
            continue
        for _ in range(data.draw(st.integers(1, 8))):
            moved = [
                (segment, offset if offset == OFFSET_FUTURE else data.draw(st.integers(0, 9)))
                for segment, offset in cut.items()
            ]
            cuts.append(dict(data.draw(st.permutations(moved))))
    if not cuts:
        return
    with mock.patch.object(stream_cuts, "_CUTS_AT_ONCE", at_once_count):
        merged = at_once(merged_cuts(data.draw(st.permutations(cuts))))
    assert merged == {segment: min(cut[segment] for cut in cuts if segment in cut) for cut in cuts for segment in cut}
    bound = at_once(lowest(position_of(merged, epochs)))
    for key in range(KEYS):
        assert place(bound, epochs, key) == min(place(cut, epochs, key) for cut in cuts)


def test_the_offsets_of_very_many_segments_are_compared_page_by_page() -> None:
    """More segments than one step deals with, more cuts than are compared at once."""
    count = STEP_ITEMS * 2 + 7
    cuts = [{segment: (segment * 31 + number * 17) % 1000 for segment in range(count)} for number in range(120)]
    steps = merged_cuts([*cuts, {5: -1}, {count: 3}])
    merged = at_once(steps)
    assert merged == {
        **{segment: min(cut[segment] for cut in cuts) for segment in range(count)}, 5: -1, count: 3,
    }  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(histories(), st.data())
def test_the_order_of_two_cuts_is_that_of_their_keys(epochs: list[EpochRecord], data: st.DataObject) -> None:
    """A future segment counts on the keys that no other one has, and as one of which nothing is read."""
    one, two = (readers(data.draw, epochs) for _ in range(2))
    if not (one and two and is_valid_cut(one, epochs) and is_valid_cut(two, epochs)):
        return
    places = [(place(one, epochs, key), place(two, epochs, key)) for key in range(KEYS)]
    is_before, is_after = any(a < b for a, b in places), any(a > b for a, b in places)
    expected = CutOrder.EQUAL_OR_AFTER
    if is_before:
        expected = CutOrder.OVERLAPPING if is_after else CutOrder.BEFORE
    assert at_once(order_of(position_of(one, epochs), position_of(two, epochs))) is expected


def history_of(*tilings: tuple[float, ...]) -> tuple[list[EpochRecord], list[int]]:
    """Return a history, with the ids of its segments in the order in which they were made."""
    epochs, count, before = [], 0, EpochRecord(-1, -1, (), 0)
    for number, bounds in enumerate(tilings):
        before, count = epoch_of(number, list(pairwise(bounds)), before, count)
        epochs.append(before)
    ids = {segment.number: segment.id for epoch in epochs for segment in epoch.segments}
    return epochs, [ids[number] for number in sorted(ids)]


def bound_of(epochs: list[EpochRecord], *cuts: dict[int, int]) -> dict[int, int]:
    assert all(is_valid_cut(cut, epochs) for cut in cuts)
    return at_once(lowest(position_of(at_once(merged_cuts(cuts)), epochs)))


def test_the_bound_of_cuts_with_future_segments() -> None:
    """S-124: s0 splits in two; the right one, s1 and s2 merge into s5; the left one and s5 merge into s6."""
    epochs, (s0, s1, s2, _, _, s5, _) = history_of(
        (0.0, 0.25, 0.5, 1.0), (0.0, 0.125, 0.25, 0.5, 1.0), (0.0, 0.125, 1.0), (0.0, 1.0)
    )
    two = [{s0: 1, s5: OFFSET_FUTURE}, {s0: 1, s2: 1, s5: OFFSET_FUTURE}]
    assert bound_of(epochs, *two) == two[1]
    assert bound_of(epochs, *two, {s0: 1, s1: 1, s2: 1}) == {s0: 1, s1: 1, s2: 1}


def test_the_bound_without_limits_reaches_back_to_the_first_segments() -> None:
    """S-122: pairs of segments, each shifted against the one before, up to s10; what comes later hides nothing."""
    shifted = ((0.0, 0.5, 1.0), (0.0, 0.25, 1.0)) * 2 + ((0.0, 0.5, 1.0), (0.0, 1.0))
    epochs, ids = history_of(*shifted)
    s0, s1, s2, s8, s9 = ids[0], ids[1], ids[2], ids[8], ids[9]
    ahead, other = {s0: 1, s9: 1, s2: OFFSET_FUTURE, s8: OFFSET_FUTURE}, {s1: 1, s2: OFFSET_FUTURE}
    assert len(ids) == 11
    bound = at_once(lowest(position_of(at_once(merged_cuts([ahead, other])), epochs)))
    assert bound == {s0: 1, s1: 1}
    assert is_valid_cut(bound, epochs)


def test_the_choice_by_size_keeps_the_minimum_and_no_more_than_the_maximum() -> None:
    """Every row of the table, with the numbers that lie next to the limits."""

    def row(
        retained: int, order: CutOrder | None = CutOrder.EQUAL_OR_AFTER, most: int | None = 10, gain: int = 0
    ) -> RetentionRow:
        return choose_by_size(SizeSituation(2, most, retained, order, gain))

    assert row(1, CutOrder.BEFORE) is RetentionRow.SIZE_BELOW_MIN
    assert row(1, CutOrder.OVERLAPPING) is row(1) is RetentionRow.SIZE_BELOW_MIN_OVERLAPPING
    assert row(1, None) is RetentionRow.SIZE_BELOW_MIN_WITHOUT_CUT
    assert row(2) is row(9) is RetentionRow.SIZE_BETWEEN
    assert row(10, gain=9) is RetentionRow.SIZE_PAST_MAX
    assert row(10, gain=10) is RetentionRow.SIZE_PAST_MAX_WITHOUT_GAIN
    assert row(1 << 60, most=None) is RetentionRow.SIZE_BETWEEN


def test_the_choice_by_time_keeps_the_minimum_and_nothing_older_than_the_maximum() -> None:
    """Every row of the table."""
    behind = CutOrder.EQUAL_OR_AFTER
    assert choose_by_time(None, CutOrder.BEFORE) is RetentionRow.TIME_WITHOUT_CUT
    assert choose_by_time(CutOrder.BEFORE, CutOrder.BEFORE) is RetentionRow.TIME_ABOVE_MIN
    assert choose_by_time(CutOrder.OVERLAPPING, CutOrder.BEFORE) is RetentionRow.TIME_MIN_OVERLAPPING
    assert choose_by_time(behind, None) is choose_by_time(behind, behind) is RetentionRow.TIME_BETWEEN
    assert choose_by_time(behind, CutOrder.BEFORE) is RetentionRow.TIME_PAST_MAX
    assert choose_by_time(behind, CutOrder.OVERLAPPING) is RetentionRow.TIME_MAX_OVERLAPPING


def test_each_row_leads_to_a_choice() -> None:
    """As the tables of the page have it; and no two rows are one, which equal values would make them."""
    choices = {row.name: row.choice for row in RetentionRow}
    assert choices == {
        "NO_CUTS": Choice.NOTHING,
        "SIZE_NO_SUBSCRIBERS": Choice.MIN_CUT,
        "SIZE_BELOW_MIN_WITHOUT_CUT": Choice.NOTHING,
        "SIZE_BELOW_MIN": Choice.MIN_CUT,
        "SIZE_BELOW_MIN_OVERLAPPING": Choice.BEFORE_BOUND,
        "SIZE_BETWEEN": Choice.BOUND,
        "SIZE_PAST_MAX": Choice.MAX_CUT,
        "SIZE_PAST_MAX_WITHOUT_GAIN": Choice.BOUND,
        "TIME_NO_SUBSCRIBERS": Choice.MIN_CUT,
        "TIME_WITHOUT_CUT": Choice.NOTHING,
        "TIME_ABOVE_MIN": Choice.MIN_CUT,
        "TIME_MIN_OVERLAPPING": Choice.BEFORE_BOUND,
        "TIME_BETWEEN": Choice.BOUND,
        "TIME_PAST_MAX": Choice.MAX_CUT,
        "TIME_MAX_OVERLAPPING": Choice.MAX_BOUND,
    }
