"""Text fields: modified UTF-8 as Java writes it, read as either client writes it.

Byte sequences are those of wire-protocol 1.3, and of `java.io.DataOutput.writeUTF`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidArgumentError, ProtocolError
from penstock.wire.text import TEXT_LENGTH_MAX, decode_text, encode_text

JAVA = [
    ("scope/stream/0.#epoch.0", b"scope/stream/0.#epoch.0"),
    ("", b""),
    ("\0", b"\xc0\x80"),
    ("a\0b", b"a\xc0\x80b"),
    ("é", b"\xc3\xa9"),
    ("日", b"\xe6\x97\xa5"),
    ("\U0001f600", b"\xed\xa0\xbd\xed\xb8\x80"),
    ("\0\U0010ffff!", b"\xc0\x80\xed\xaf\xbf\xed\xbf\xbf!"),
]


@pytest.mark.parametrize(("text", "encoded"), JAVA)
def test_text_is_written_and_read_as_java_does(text: str, encoded: bytes) -> None:
    assert encode_text(text) == encoded
    assert decode_text(encoded) == text
    assert decode_text(memoryview(encoded)) == text


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_plain_and_modified_utf8_are_both_read(text: str) -> None:
    assert decode_text(text.encode("utf-8")) == text
    assert decode_text(encode_text(text)) == text


@given(st.binary(max_size=20))
def test_bytes_that_are_no_text_are_a_protocol_error(encoded: bytes) -> None:
    try:
        text = decode_text(encoded)
    except ProtocolError:
        return
    assert decode_text(encode_text(text)) == text


@pytest.mark.parametrize(
    "encoded", [b"\xff", b"\xc0", b"\xc1\x80", b"\xed\xa0\xbd", b"\xed\xb8\x80\xed\xa0\xbd", b"\xe6\x97"]
)
def test_half_characters_are_a_protocol_error(encoded: bytes) -> None:
    with pytest.raises(ProtocolError, match=encoded.hex()):
        decode_text(encoded)


def test_text_of_the_largest_size_is_written_and_one_byte_more_is_not() -> None:
    assert len(encode_text("x" * TEXT_LENGTH_MAX)) == TEXT_LENGTH_MAX
    with pytest.raises(InvalidArgumentError, match="65536 bytes"):
        encode_text("x" * (TEXT_LENGTH_MAX + 1))
    with pytest.raises(InvalidArgumentError, match="65536 bytes"):
        encode_text("\0" * 32768)


def test_half_a_surrogate_pair_is_not_written() -> None:
    with pytest.raises(InvalidArgumentError, match="surrogate"):
        encode_text("\ud83d")
