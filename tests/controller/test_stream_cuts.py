"""Which cuts readers can have come to, over histories of splits and merges; against a model that tries all.

Shows S-099 and S-105, and S-094 to S-101 as far as they are about validity alone.
"""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.metadata.records import EpochRecord, ScaleOrder, SegmentRecord
from penstock.controller.metadata.scale_plan import epoch_after, plan_scale
from penstock.controller.steps import at_once
from penstock.controller.stream_cuts import is_equal_or_after
from penstock.model.stream_cuts import OFFSET_FUTURE
from support.cut_model import is_valid_cut, position_of, segments_between


def first_epoch(*bounds):
    segments = tuple(SegmentRecord(n, 0, 0, start, end) for n, (start, end) in enumerate(pairwise(bounds)))
    return EpochRecord(0, 0, segments, 0)


def scaled(current, numbers, *ranges):
    """Return the epoch after `current` in which these ranges replace the segments of these numbers."""
    to_seal = tuple(segment.id for segment in current.segments if segment.number in numbers)
    order = ScaleOrder(current.epoch, to_seal, ranges)
    return epoch_after(current, plan_scale(current, order, segment_count_min=1, segment_count_max=99, now_ms=0))


def by_number(epochs):
    return {segment.number: segment.id for epoch in epochs for segment in epoch.segments}


#: s0, s1 -> s2 -> s3, s4
BOTH = first_epoch(0.0, 0.5, 1.0)
ONE = scaled(BOTH, (0, 1), (0.0, 1.0))
TWO = scaled(ONE, (2,), (0.0, 0.5), (0.5, 1.0))
HISTORY = [BOTH, ONE, TWO]


@pytest.mark.parametrize(
    ("cut", "is_valid"),
    [
        ({0: 5, 1: 7}, True),
        ({2: 3}, True),
        ({3: 1, 4: 1}, True),
        # One of two that merge is read to its end: what follows both is to come.
        ({0: 5, 2: OFFSET_FUTURE}, True),
        ({1: 5, 2: OFFSET_FUTURE}, True),
        # s4 has a position while another is in s0: s2 lies between and has none.
        ({0: 5, 4: 3}, False),
        ({0: 5, 4: OFFSET_FUTURE}, False),
        ({1: 5, 3: 0}, False),
        ({2: 3, 4: 0}, False),
        ({0: 5, 2: 3}, False),
        ({0: 5}, False),
        ({3: 0}, False),
        ({0: 5, 1: 5, 2: OFFSET_FUTURE}, True),
        ({0: -2, 1: 5}, False),
    ],
)
def test_only_a_cut_that_readers_can_have_come_to_is_valid(cut, is_valid: bool) -> None:
    """S-099 among others."""
    ids = by_number(HISTORY)
    assert is_valid_cut({ids[number]: offset for number, offset in cut.items()}, HISTORY) is is_valid


#: s0, s1 -> s0 is split into s2, s3 -> s1 is split into s4, s5.
LOWER = scaled(BOTH, (0,), (0.0, 0.25), (0.25, 0.5))
UPPER = scaled(LOWER, (1,), (0.5, 0.75), (0.75, 1.0))
SPLITS = [BOTH, LOWER, UPPER]


@pytest.mark.parametrize(
    ("history", "first", "second", "relation"),
    [
        (HISTORY, {0: 5, 1: 7}, {0: 5, 1: 7}, "equal"),
        (HISTORY, {0: 5, 1: 8}, {0: 5, 1: 7}, "ahead"),
        (HISTORY, {0: 6, 1: 8}, {0: 5, 1: 7}, "ahead"),
        (HISTORY, {0: 6, 1: 6}, {0: 5, 1: 7}, "mixed"),
        # In other epochs, with no segment in common.
        (HISTORY, {2: 0}, {0: 50, 1: 70}, "ahead"),
        (HISTORY, {3: 0, 4: 0}, {0: 50, 1: 70}, "ahead"),
        (HISTORY, {3: 0, 4: 0}, {2: 9}, "ahead"),
        # With one in common.
        (SPLITS, {2: 0, 3: 0, 1: 7}, {0: 50, 1: 7}, "ahead"),
        (SPLITS, {2: 0, 3: 0, 1: 6}, {0: 50, 1: 7}, "mixed"),
        # Each has come to the next epoch in other keys.
        (SPLITS, {2: 0, 3: 0, 1: 7}, {0: 50, 4: 0, 5: 0}, "mixed"),
        (SPLITS, {2: 0, 3: 0, 4: 0, 5: 0}, {0: 50, 4: 0, 5: 0}, "ahead"),
        (SPLITS, {2: 0, 3: 0, 4: 0, 5: 0}, {2: 1, 3: 0, 1: 7}, "mixed"),
    ],
)
def test_two_cuts_are_equal_or_one_is_ahead_or_neither(
    history, first: dict[int, int], second: dict[int, int], relation: str
) -> None:
    """S-105: told by asking in both directions, and the other way round for "behind"."""
    ids = by_number(history)
    positions = [
        position_of({ids[number]: offset for number, offset in cut.items()}, history) for cut in (first, second)
    ]
    one, other = positions
    found = at_once(is_equal_or_after(one, other)), at_once(is_equal_or_after(other, one))
    assert found == {"equal": (True, True), "ahead": (True, False), "mixed": (False, False)}[relation]


@st.composite
def histories(draw):
    """Draw some successive epochs."""
    epochs = [first_epoch(0.0, 0.25, 0.5, 0.75, 1.0)]
    for _ in range(draw(st.integers(1, 4))):
        segments = epochs[-1].segments
        first = draw(st.integers(0, len(segments) - 1))
        last = draw(st.integers(first, min(first + 1, len(segments) - 1)))
        low, high = segments[first].key_start, segments[last].key_end
        middle = (low + high) / 2
        ranges = draw(st.sampled_from([((low, high),), ((low, middle), (middle, high))]))
        epochs.append(scaled(epochs[-1], {s.number for s in segments[first : last + 1]}, *ranges))
    return epochs


def predecessors_of(epochs):
    """Return for each segment the segments that it replaces."""
    found = {segment.id: set() for segment in epochs[0].segments}
    for before, epoch in pairwise(epochs):
        old = {segment.id for segment in before.segments}
        new = {segment.id for segment in epoch.segments}
        for segment in epoch.segments:
            if segment.id not in old:
                found[segment.id] = {s.id for s in before.segments if s.id not in new and s.overlaps(segment)}
    return found


def reachable_positions(epochs):
    """Yield every set of segments that readers can be in at once, and what waits for them, by trying all orders."""
    before = predecessors_of(epochs)
    ends = {one for all_before in before.values() for one in all_before}
    start = frozenset()
    seen, waiting = {start}, [start]
    while waiting:
        done = waiting.pop()
        reading = frozenset(s for s, needed in before.items() if s not in done and needed <= done)
        half = frozenset(s for s, needed in before.items() if needed & done and not needed <= done)
        yield reading, half
        for segment in reading & ends:
            if (further := done | {segment}) not in seen:
                seen.add(further)
                waiting.append(further)


@settings(deadline=None, max_examples=60)
@given(histories())
def test_validity_equals_that_of_a_search_over_all_orders(epochs) -> None:
    """Every position that readers can come to is valid; of the sets of segments that tile the keys, no other is."""
    reached = set()
    for reading, half in reachable_positions(epochs):
        cut = {**dict.fromkeys(reading, 7), **dict.fromkeys(half, OFFSET_FUTURE)}
        assert is_valid_cut(cut, epochs)
        if not half:
            reached.add(reading)
    records = {segment.id: segment for epoch in epochs for segment in epoch.segments}
    for members in product((False, True), repeat=len(records)):
        chosen = sorted(
            (record for record, is_in in zip(records.values(), members, strict=True) if is_in),
            key=lambda segment: segment.key_start,
        )
        bounds = [segment.key_start for segment in chosen] + [1.0]
        if bounds[0] != 0.0 or [segment.key_end for segment in chosen] != bounds[1:]:
            continue
        ids = frozenset(segment.id for segment in chosen)
        assert is_valid_cut(dict.fromkeys(ids, 7), epochs) is (ids in reached)


@settings(deadline=None, max_examples=60)
@given(histories(), st.data())
def test_between_two_positions_lie_all_segments_on_the_way(epochs, data) -> None:
    """From an earlier position to a later one: what was read in between, and both positions' own segments."""
    positions = [reading for reading, half in reachable_positions(epochs) if not half]
    before = predecessors_of(epochs)

    def ancestors(segments):
        found, waiting = set(), list(segments)
        while waiting:
            for one in before[waiting.pop()]:
                if one not in found:
                    found.add(one)
                    waiting.append(one)
        return found

    start = data.draw(st.sampled_from(positions))
    end = data.draw(st.sampled_from([other for other in positions if ancestors(start) <= ancestors(other)]))
    cuts = [dict.fromkeys(one, 0) for one in (start, end)]
    first, last = (position_of(cut, epochs) for cut in cuts)
    expected = (ancestors(end) | set(end)) - ancestors(start)
    assert {segment.id for segment in segments_between(first, last, epochs)} == expected
