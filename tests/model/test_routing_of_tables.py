"""Where a key of a key-value table goes: golden numbers of Pravega's Java client 0.13.0.

Made there by ``HashHelper.seededWith("KeyValueTableRouter").hashToRange(ByteBuffer.wrap(key))``.
"""

from __future__ import annotations

import mmh3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.murmur import murmur3_first_64
from penstock.model.routing import table_key_hash


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"", 0.42352702020022215),
        (b"a", 0.6272098046731807),
        (b"key00001", 0.10746373259718034),
        (b"customer-42 padded to be long", 0.6745930936928668),
        (bytes(number * 17 for number in range(16)), 0.9125576022713844),
    ],
)
def test_keys_go_where_java_puts_them(key: bytes, hashed: float) -> None:
    """Lengths below, at and above a block of 16 bytes; bytes above 127."""
    assert table_key_hash(key) == hashed


@given(st.binary(max_size=80), st.integers(0, (1 << 32) - 1))
def test_the_hash_is_that_of_a_library_where_the_seed_fits(data: bytes, seed: int) -> None:
    """Seeds of 32 bits without a sign are what libraries take."""
    assert murmur3_first_64(data, seed) == mmh3.hash64(data, seed, True, signed=False)[0]
