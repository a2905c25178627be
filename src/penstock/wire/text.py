"""The wire's text: a byte count and *modified UTF-8*, as Java's `DataOutput.writeUTF` defines it.

It differs from UTF-8 in two places: U+0000 is ``c0 80``, and a character above U+FFFF is written as its two UTF-16
surrogates, three bytes each (six in all, where UTF-8 has four). The Rust client reads and writes plain UTF-8. For ASCII
text, which is all that scope, stream and segment names and tokens can be, the two are the same; servers should
keep stack traces and messages to ASCII as well, because the Rust client drops a connection on text it can't decode.

Source: wire-protocol 1.3.
"""

from __future__ import annotations

import struct

from penstock.model.errors import InvalidArgumentError, ProtocolError

#: Longest text on the wire, in encoded bytes: its count is an unsigned 16-bit number.
TEXT_LENGTH_MAX = 0xFFFF
#: Longest text that is not plain UTF-8, in encoded bytes. Its decoding costs 0.09 us per byte, and a command has up to
#: four texts. Names and tokens are ASCII; messages of servers are longer only with characters above U+FFFF in them.
MODIFIED_LENGTH_MAX = 16 * 1024
_UTF16_UNIT = struct.Struct("<H")


def encode_text(text: str) -> bytes:
    """Encode `text` as modified UTF-8, without its byte count.

    Raises:
        InvalidArgumentError: more than `TEXT_LENGTH_MAX` bytes, or a surrogate without its other half.
    """
    if text.isascii() and "\0" not in text:
        encoded = text.encode("ascii")
    else:
        encoded = _encode_beyond_ascii(text)
    if len(encoded) > TEXT_LENGTH_MAX:
        raise InvalidArgumentError(
            f"cannot send text of {len(encoded)} bytes, the wire takes {TEXT_LENGTH_MAX} at most: {text[:40]!r}..."
        )
    return encoded


def decode_text(encoded: bytes | bytearray | memoryview) -> str:
    """Decode plain UTF-8, or else modified UTF-8, so that the texts of all clients are decoded correctly.

    Raises:
        ProtocolError: the bytes are neither, or more than `MODIFIED_LENGTH_MAX` and not plain UTF-8.
    """
    try:
        return str(encoded, "utf-8")
    except UnicodeDecodeError:
        if len(encoded) > MODIFIED_LENGTH_MAX:
            raise ProtocolError(
                f"text of {len(encoded)} bytes is not plain UTF-8; up to {MODIFIED_LENGTH_MAX} bytes of modified UTF-8 "
                "are read"
            ) from None
        return _decode_modified(bytes(encoded))


def _encode_beyond_ascii(text: str) -> bytes:
    try:
        utf16 = text.encode("utf-16-le")
    except UnicodeEncodeError as cause:
        raise InvalidArgumentError(f"cannot send text with half a surrogate pair: {text[:40]!r}") from cause
    # Each UTF-16 unit becomes a character of its own, so that pairs are encoded as two halves.
    units = "".join(chr(unit) for (unit,) in _UTF16_UNIT.iter_unpack(utf16))
    return units.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def _decode_modified(encoded: bytes) -> str:
    try:
        # `c0` begins nothing else in (modified) UTF-8; the round trip through UTF-16 joins surrogate pairs.
        units = encoded.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as cause:
        raise ProtocolError(f"text is neither UTF-8 nor modified UTF-8: {encoded[:40].hex()}") from cause
