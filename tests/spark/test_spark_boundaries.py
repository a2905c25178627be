"""The walk over event headers against the obvious model: add up the lengths. Pure, no Spark."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptionError
from penstock.model.events import frame_events
from penstock.spark.boundaries import BoundaryScan, boundaries_at, boundary_behind


def blocks_of(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@given(
    lengths=st.lists(st.integers(0, 40), max_size=30),
    block_size=st.integers(1, 50),
    wanted=st.lists(st.integers(0, 1500), min_size=1, max_size=6),
    start=st.integers(0, 1 << 40),
)
def test_each_target_gets_the_last_boundary_not_past_it(
    lengths: list[int], block_size: int, wanted: list[int], start: int
) -> None:
    data = frame_events([b"x" * length for length in lengths])
    ends = [start]
    for length in lengths:
        ends.append(ends[-1] + 8 + length)
    targets = sorted(start + target for target in wanted)
    found = boundaries_at(blocks_of(data, block_size), source="s", start=start, targets=targets)
    assert found == [max(end for end in ends if end <= target) for target in targets]


@given(
    lengths=st.lists(st.integers(0, 40), max_size=30),
    block_size=st.integers(1, 50),
    until=st.integers(0, 30),
    event_count=st.integers(1, 40),
    start=st.integers(0, 1 << 40),
)
def test_so_many_events_are_counted_and_no_further_than_the_end(
    lengths: list[int], block_size: int, until: int, event_count: int, start: int
) -> None:
    data = frame_events([b"x" * length for length in lengths])
    ends = [start]
    for length in lengths:
        ends.append(ends[-1] + 8 + length)
    end = ends[min(until, len(lengths))]
    blocks = blocks_of(data[: end - start], block_size)
    count = min(event_count, until, len(lengths))
    found = boundary_behind(blocks, source="s", start=start, end=end, event_count=event_count)
    assert found == (ends[count], count)


def test_reading_stops_once_every_target_is_answered() -> None:
    data = frame_events([b"abc"] * 10)
    taken: list[bytes] = []

    def blocks() -> Iterator[bytes]:
        for block in blocks_of(data, 11):
            taken.append(block)
            yield block

    assert boundaries_at(blocks(), source="s", start=0, targets=[12]) == [11]
    assert len(taken) == 2


def test_a_payload_longer_than_many_blocks_is_skipped_not_kept() -> None:
    data = frame_events([b"x" * 1000, b"y"])
    scan = BoundaryScan("s", 0, [len(data)])
    for block in blocks_of(data, 64):
        scan.feed(block)
    assert scan.finish() == [len(data)]


def test_no_bytes_give_the_start() -> None:
    assert boundaries_at([], source="s", start=5, targets=[9]) == [5]


@pytest.mark.parametrize("header", [struct.pack(">ii", 1, 3), struct.pack(">ii", 0, -1)])
def test_bytes_that_are_no_header_are_corruption(header: bytes) -> None:
    data = frame_events([b"ab"]) + header + b"abc"
    with pytest.raises(CorruptionError) as caught:
        boundaries_at([data], source="a/b/0.#epoch.0", start=100, targets=[1000])
    assert (caught.value.path, caught.value.offset) == ("a/b/0.#epoch.0", 110)
    with pytest.raises(CorruptionError) as caught:
        boundary_behind([data], source="a/b/0.#epoch.0", start=100, end=1000, event_count=9)
    assert (caught.value.path, caught.value.offset) == ("a/b/0.#epoch.0", 110)
