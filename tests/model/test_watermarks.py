"""Watermarks as they are stored. Bytes of a real one have 65; `test_java_watermarks.py` asks Java's own class."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.model.watermarks import MarkedSegment, Watermark, _decode_count, _encode_count

ONE = Watermark(100, 102, (MarkedSegment(0, 0.0, 1.0, 500),))
#: Revisions of Java's ``VersionedSerializer``, one in another; a map's count in one byte.
ONE_BYTES = bytes.fromhex(
    "00000100" "00000039"
    "0000000000000064" "0000000000000066" "01"
    "00000100" "00000018" "0000000000000000" "0000000000000000" "3ff0000000000000"
    "00000000000001f4"
)  # fmt: skip


def decode(data: bytes) -> Watermark:
    return Watermark.decode(data, segment="scope/_MARKa/0.#epoch.0", offset=73)


def test_a_watermark_of_one_segment_has_the_bytes_that_pravega_stores() -> None:
    """In a recorded conversation of Pravega's own reader such an event has 73 bytes, 8 of them its header."""
    assert ONE.encode() == ONE_BYTES
    assert len(ONE_BYTES) + 8 == 73
    assert decode(ONE_BYTES) == ONE
    assert ONE.positions == {0: 500}


@pytest.mark.parametrize(
    ("count", "data"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8080"), (16383, "bfff"), (16384, "c0004000"), (2**30 - 1, "ffffffff")],
)
def test_a_count_takes_one_two_or_four_bytes(count: int, data: str) -> None:
    """As ``RevisionDataOutput.writeCompactInt`` does it."""
    assert _encode_count(count) == bytes.fromhex(data)
    assert _decode_count(b"x" + bytes.fromhex(data), 1) == (count, 1 + len(data) // 2)


def test_a_count_that_has_no_bytes_is_refused() -> None:
    """Two of its bits are taken."""
    with pytest.raises(InvalidArgumentError):
        _encode_count(2**30)


segments = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=200, unique=True).map(
    lambda ids: tuple(
        MarkedSegment(number, index / len(ids), (index + 1) / len(ids), index * 1000)
        for index, number in enumerate(sorted(ids))
    )
)
times = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None, max_examples=60)
@given(times, times, segments)
def test_stored_records_are_decoded(one: int, other: int, cut: tuple[MarkedSegment, ...]) -> None:
    """Whatever the segments and the times; also when a later revision has put more after it."""
    watermark = Watermark(min(one, other), max(one, other), cut)
    data = watermark.encode()
    assert decode(data) == watermark
    assert decode(data[:2] + b"\x02" + data[3:] + b"\x01\0\0\0\x02xy") == watermark


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_other_bytes_raise_only_the_named_error(data: st.DataObject) -> None:
    """Each truncation, and bytes changed anywhere, are a watermark or a corruption."""
    broken = bytearray(ONE_BYTES)
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    for end in (len(broken), data.draw(st.integers(0, len(broken) - 1))):
        with contextlib.suppress(CorruptionError):
            decode(bytes(broken[:end]))
    with pytest.raises(CorruptionError, match=r"scope/_MARKa/0\.#epoch\.0"):
        decode(ONE_BYTES[:-1])
