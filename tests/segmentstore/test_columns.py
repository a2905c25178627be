"""Columns of numbers: what is made and compared whole is what a loop over the numbers finds."""

from __future__ import annotations

import random
import struct

import pytest

from penstock.segmentstore.columns import (
    COLUMN_LENGTH_MAX,
    Table,
    agreeing,
    agreeing_with,
    first_difference,
    packed,
    progression,
)


@pytest.mark.parametrize("count", [1, 2, 17, COLUMN_LENGTH_MAX])
@pytest.mark.parametrize(("first", "step"), [(0, 0), (0, 1), (7, 4096), ((1 << 64) - COLUMN_LENGTH_MAX * 9, 9)])
def test_a_progression_is_what_its_numbers_are_packed(first: int, step: int, count: int) -> None:
    numbers = [first + index * step for index in range(count)]
    assert progression(first, step, count) == packed(numbers) == struct.pack(f">{count}Q", *numbers)


def test_columns_agree_up_to_the_first_number_that_differs() -> None:
    rng = random.Random(0)
    for _ in range(200):
        numbers = [rng.randrange(1 << 64) for _ in range(rng.randrange(1, 40))]
        others = list(numbers)
        at = rng.randrange(len(numbers))
        others[at] ^= 1 << rng.randrange(64)
        behind = rng.randrange(at, len(numbers))
        others[behind] ^= 0x55 if behind > at else 0
        assert agreeing(packed(numbers), packed(others)) == at == first_difference(numbers, others)
        assert agreeing(packed(numbers), packed(numbers)) == len(numbers) == first_difference(numbers, list(numbers))
    assert agreeing_with(packed([5, 5, 6, 5]), packed([5])) == 2


@pytest.mark.parametrize("indent", [0, 1])
@pytest.mark.parametrize("rest", range(9))
def test_a_table_gives_columns_of_rows_of_any_length(indent: int, rest: int) -> None:
    """The numbers lie at multiples of their length behind the indent, and the row ends anywhere."""
    rng = random.Random(rest)
    rows = [rng.randbytes(16 - indent + rest) for _ in range(9)]
    table = Table(rows, indent=indent)
    padded = [bytes(indent) + row for row in rows]
    assert table.numbers(8) == b"".join(row[8:16] for row in padded)
    assert table.halves(4) == tuple(int.from_bytes(row[4:8], "big") for row in padded)
    assert table.halves(12, is_signed=True) == tuple(int.from_bytes(row[12:16], "big", signed=True) for row in padded)
