"""How the record of a group is packed and split."""

from __future__ import annotations

import random

import pytest

from penstock.client.groups.group_packing import pack_record, part_count, unpack_record
from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import TABLE_VALUE_LENGTH_MAX


@pytest.mark.parametrize("length", [2, 128 * 1024, 128 * 1024 + 1, 5_000_000])
def test_a_record_survives_packing(length: int) -> None:
    record = b"{" + random.Random(length).randbytes(length - 1)
    parts = pack_record(record)
    assert part_count(parts[0]) == len(parts)
    assert max(map(len, parts)) <= TABLE_VALUE_LENGTH_MAX
    assert unpack_record(parts) == record


def test_a_small_record_is_stored_in_the_format_of_earlier_releases() -> None:
    assert pack_record(b'{"version":3}') == [b'{"version":3}']


def test_a_record_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="several groups"):
        pack_record(random.Random(1).randbytes(8_000_000))


@pytest.mark.parametrize("at", [0, 3, 9, 20, 2_000_000])
def test_damage_is_reported(at: int) -> None:
    parts = pack_record(random.Random(2).randbytes(2_500_000))
    joined = bytearray(b"".join(parts))
    joined[at] ^= 0x40
    damaged, start = [], 0
    for part in parts:
        damaged.append(bytes(joined[start : start + len(part)]))
        start += len(part)
    if at == 0:
        assert unpack_record(damaged) == damaged[0]  # Not a packed record; the decoder of JSON refuses it.
        return
    with pytest.raises(InvalidArgumentError):
        unpack_record(damaged)
