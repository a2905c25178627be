"""The checksum of everything stored: CRC-32C, of any kind of buffer."""

from __future__ import annotations

import pytest

from penstock.model.checksum import crc32c

#: RFC 3720, appendix B.4.
VECTORS = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    b"": 0,
}


@pytest.mark.parametrize("data", VECTORS)
def test_checksum_is_that_of_the_standard(data: bytes) -> None:
    assert crc32c(data, 0) == VECTORS[data]


def test_a_checksum_continues_over_buffers_of_any_kind() -> None:
    """Whole, or in parts of bytes, bytearrays and views: also above the length at which other threads may run."""
    data = bytes(range(256)) * 1000
    for cut in (0, 1, 7, 64, 40_000, len(data)):
        for part in (data[cut:], bytearray(data[cut:]), memoryview(data)[cut:]):
            assert crc32c(part, crc32c(memoryview(data)[:cut], 0)) == crc32c(data, 0)
