"""Blocks are compared with their checksums where they lie: the first that is not what was written is named."""

from __future__ import annotations

import pytest

from penstock.model import block_checksums
from penstock.model.block_checksums import verify_blocks
from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError

DATA = bytes(range(250))
SUMS = [crc32c(DATA[at : at + 100], 0) for at in range(0, 250, 100)]


def test_blocks_are_summed_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def sum_of(part: memoryview, before: int) -> int:
        seen.append(part.obj)
        return crc32c(part, before)

    monkeypatch.setattr(block_checksums, "crc32c", sum_of)
    verify_blocks("chunk", 0, DATA, SUMS, block_length=100)
    assert [each is DATA for each in seen] == [True] * 3


@pytest.mark.parametrize("at", [0, 99, 100, 249])
def test_the_damaged_block_is_named(at: int) -> None:
    damaged = DATA[:at] + bytes([DATA[at] ^ 1]) + DATA[at + 1 :]
    with pytest.raises(CorruptionError) as caught:
        verify_blocks("chunk", 0, damaged, SUMS, block_length=100)
    assert (caught.value.path, caught.value.offset) == ("chunk", at - at % 100)
