"""Waits of reads by segment and offset: who is woken, in what order, and at what cost."""

from __future__ import annotations

import random

import pytest

from penstock.model.errors import PenstockError
from penstock.segmentstore.container.reads.tail_waits import ReadWaiter, TailWaits
from penstock.segmentstore.container.segment import Segment, SegmentFlags


class Waiter(ReadWaiter):
    """A waiter that notes when it is woken."""

    def __init__(self, woken: list[Waiter]) -> None:
        super().__init__()
        self.woken = woken

    def wake(self) -> None:
        self.woken.append(self)

    def fail(self, error: PenstockError) -> None:
        raise AssertionError(error)


class Offset(int):
    """An offset that counts how often it is compared."""

    compared_count = 0

    def __lt__(self, other: int) -> bool:
        Offset.compared_count += 1
        return int(self) < int(other)


def new_segment() -> Segment:
    return Segment(7, "s/t/0.#epoch.0", flags=SegmentFlags.NONE, key_length=0, created_ms=0)


def test_an_append_touches_only_waits_whose_offset_it_has_passed() -> None:
    """10 000 wait far off, each for an offset of its own: a wake-up of one compares as many as the heap is deep."""
    waits, segment, woken = TailWaits(), new_segment(), list[Waiter]()
    for number in range(10_000):
        waits.add(segment, Offset((1 << 61) - number), Waiter(woken))
    near = Waiter(woken)
    waits.add(segment, Offset(5), near)
    assert segment.waits is not None
    Offset.compared_count = 0
    segment.waits.wake(5)
    assert woken == []
    assert Offset.compared_count <= 1
    segment.waits.wake(6)
    assert woken == [near]
    assert Offset.compared_count <= 64
    assert segment.waits.count == 10_000


@pytest.mark.parametrize("seed", range(5))
def test_waits_do_as_a_plain_list_does(seed: int) -> None:
    """Random waits, wake-ups and ends: the same are woken, lowest offset first and then in the order they came."""
    rng = random.Random(seed)
    waits, segment, woken = TailWaits(), new_segment(), list[Waiter]()
    expected: list[tuple[int, int, Waiter]] = []
    length = 0
    for number in range(3000):
        match rng.randrange(8):
            case 0 | 1 | 2 | 3:
                offset = length + rng.choice([0, 0, rng.randrange(50), 1 << 61])
                waiter = Waiter(woken)
                waits.add(segment, offset, waiter)
                expected.append((offset, number, waiter))
            case 4 | 5 if expected:
                _, _, waiter = expected.pop(rng.randrange(len(expected)))
                assert waiter.waits is not None
                waiter.waits.remove(waiter)
            case 6:
                length += rng.randrange(20)
                due = sorted(wait for wait in expected if wait[0] < length)
                expected = [wait for wait in expected if wait[0] >= length]
                segment.wake_readers()
                segment.durable_length = length
                segment.wake_readers()
                assert woken == [waiter for _, _, waiter in due]
                assert all(waiter.waits is None for waiter in woken)
                woken.clear()
            case 7 if rng.randrange(20) == 0:
                back = new_segment()  # It has left memory and come back.
                back.durable_length = length
                segment = back
                waits.activated(segment)
        assert (segment.waits is None) == (not expected)
        if segment.waits is not None:
            assert segment.waits.count == len(expected)
            assert sorted(offset for offset, _ in segment.waits) == sorted(offset for offset, _, _ in expected)
            assert sum(map(len, segment.waits._by_offset.values())) <= 2 * len(expected) + 17  # Ended ones go.
    left = waits.take_all()
    assert left == [waiter for _, _, waiter in sorted(expected)]
    assert not len(waits)
