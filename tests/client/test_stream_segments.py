"""`SegmentMap`: routing by upper bound, replacement across splits and merges."""

from __future__ import annotations

import pytest

from penstock.client.controller.stream_segments import SegmentMap, SegmentRange
from penstock.model.errors import ProtocolError
from penstock.model.names import SegmentId
from penstock.model.routing import routing_key_hash


def segment(number: int, low: float, high: float) -> SegmentRange:
    return SegmentRange("retail", "orders", SegmentId(number), low, high)


def layout(segments: SegmentMap) -> list[tuple[int, float, float]]:
    return [(found.segment_id, found.key_low, found.key_high) for found in segments.segments]


def test_smallest_upper_bound_not_below_the_hash_wins() -> None:
    segments = SegmentMap([segment(1, 0.5, 1.0), segment(0, 0.0, 0.5)])
    assert [segments.segment_of(x).segment_id for x in (0.0, 0.49, 0.5, 0.51, 0.999999)] == [0, 0, 0, 1, 1]
    assert segments.segment_of(routing_key_hash("hello")).segment_id == 1


def test_split_replaces_the_parent() -> None:
    segments = SegmentMap([segment(0, 0.0, 0.5), segment(1, 0.5, 1.0)])
    after = segments.replace(SegmentId(0), [segment(2, 0.0, 0.2), segment(3, 0.2, 0.5)])
    assert layout(after) == [(2, 0.0, 0.2), (3, 0.2, 0.5), (1, 0.5, 1.0)]


def test_merge_leaves_the_neighbour_its_part_until_it_is_found_sealed() -> None:
    segments = SegmentMap([segment(0, 0.0, 0.5), segment(1, 0.5, 1.0)])
    merged = segment(2, 0.0, 1.0)
    first = segments.replace(SegmentId(0), [merged])
    assert layout(first) == [(2, 0.0, 0.5), (1, 0.5, 1.0)]
    assert layout(first.replace(SegmentId(1), [merged])) == [(2, 0.0, 0.5), (2, 0.5, 1.0)]


@pytest.mark.parametrize(
    "ranges", [[(0.0, 0.4), (0.5, 1.0)], [(0.1, 1.0)], [(0.0, 0.9)], [(0.0, 0.6), (0.5, 1.0)], [(0.0, 0.0), (0.0, 1.0)]]
)
def test_ranges_that_do_not_cover_the_key_space_are_refused(ranges: list[tuple[float, float]]) -> None:
    with pytest.raises(ProtocolError):
        SegmentMap([segment(number, low, high) for number, (low, high) in enumerate(ranges)])
