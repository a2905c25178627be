"""Stream cuts: a position in a whole stream.

A cut names an offset in each of a set of segments that together cover the key space once. Everything before it is
"read", everything after it is not.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from penstock.model.errors import InvalidArgumentError, InvalidNameError
from penstock.model.names import check_scope_name, check_stream_name, segment_epoch, segment_id, segment_number

#: Offset of a segment in a cut that has not been reached yet: its predecessors are not fully read.
OFFSET_FUTURE: Final = -1
#: Names of the ends of a stream, wherever a position is given by a word; messages use the first.
EARLIEST: Final = ("earliest", "head")
LATEST: Final = ("latest", "tail")

_FORMAT_VERSION = 1
_INT64_MAX = (1 << 63) - 1
_INT32_MAX = (1 << 31) - 1
#: Prefix of the text of Pravega's clients: gzip's header in base64.
_GZIP_BASE64 = "H4sI"
#: As Java writes it: no time, no level, no system.
_GZIP_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
#: checksum, length
_GZIP_TRAILER = struct.Struct("<II")
_PRAVEGA_VERSION = "0"
#: Maximum length of such a text after decompression: a cut of half a million segments.
_PRAVEGA_TEXT_LENGTH_MAX = 16 * 1024 * 1024


def is_cut_text(text: str) -> bool:
    """Return whether a text is meant as a stream cut, in one of the forms that `StreamCut.from_text` parses."""
    return text.lstrip().startswith(("{", _GZIP_BASE64))


@dataclass(frozen=True, slots=True)
class StreamCut:
    """A position in stream `scope`/`stream`.

    `positions` maps segment ids to offsets in bytes (`OFFSET_FUTURE` for a segment not reached yet); it is copied and
    immutable. Only the controller can check that the segments tile the key space.
    """

    scope: str
    stream: str
    positions: Mapping[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", MappingProxyType(dict(sorted(self.positions.items()))))

    def __hash__(self) -> int:
        return hash((self.scope, self.stream, tuple(self.positions.items())))

    def __reduce__(self) -> tuple[type[StreamCut], tuple[str, str, dict[int, int]]]:
        return StreamCut, (self.scope, self.stream, dict(self.positions))

    def __repr__(self) -> str:
        return f"StreamCut(scope={self.scope!r}, stream={self.stream!r}, positions={dict(self.positions)})"

    def to_text(self) -> str:
        """Return the cut as JSON on one line. Equal cuts give equal text.

        ``{"positions":{"0":10},"scope":"retail","stream":"orders","v":1}``, segments in ascending order.
        """
        return json.dumps(
            {
                "positions": {str(segment): offset for segment, offset in self.positions.items()},
                "scope": self.scope,
                "stream": self.stream,
                "v": _FORMAT_VERSION,
            },
            separators=(",", ":"),
            ensure_ascii=True,
        )

    def to_pravega_text(self) -> str:
        """Return the cut in the text form of Pravega's clients, which Java's ``StreamCut.from`` parses.

        ``0:retail/orders:0,1:0,0:10,20``, numbers, epochs and offsets of the segments, packed by gzip, in base64.
        """
        ids = list(self.positions)
        columns = (map(segment_number, ids), map(segment_epoch, ids), self.positions.values())
        lists = ":".join(",".join(map(str, column)) for column in columns)
        data = f"{_PRAVEGA_VERSION}:{self.scope}/{self.stream}:{lists}".encode()
        packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        packed = packer.compress(data) + packer.flush()
        trailer = _GZIP_TRAILER.pack(zlib.crc32(data), len(data) & 0xFFFFFFFF)
        return base64.b64encode(_GZIP_HEADER + packed + trailer).decode()

    @classmethod
    def from_text(cls, text: str) -> StreamCut:
        """Parse the results of `to_text` and `to_pravega_text`, and of Java's ``StreamCut.asText``.

        Also accepts JSON with ``cut`` for ``positions``, as in old checkpoints of Spark. Raises `InvalidArgumentError`
        with the reason for other text.
        """
        if text.lstrip().startswith(_GZIP_BASE64):
            return cls._from_pravega_text(text.strip())
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise InvalidArgumentError(f"stream cut {text[:80]!r} is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise InvalidArgumentError(f"stream cut {text[:80]!r} is not a JSON object")
        if fields.get("v") != _FORMAT_VERSION or isinstance(fields["v"], bool):
            raise InvalidArgumentError(
                f"stream cut has format version {fields.get('v')!r}, this release reads {_FORMAT_VERSION}"
            )
        scope, stream, positions = fields.get("scope"), fields.get("stream"), fields.get("positions", fields.get("cut"))
        if not isinstance(scope, str) or not isinstance(stream, str) or not isinstance(positions, dict):
            raise InvalidArgumentError("stream cut needs the texts 'scope' and 'stream' and the object 'positions'")
        try:
            check_scope_name(scope)
            check_stream_name(stream)
        except InvalidNameError as error:
            raise InvalidArgumentError(f"stream cut: {error}") from error
        parsed: dict[int, int] = {}
        for segment, offset in positions.items():
            if not segment.isascii() or not segment.isdecimal() or int(segment) > _INT64_MAX:
                raise InvalidArgumentError(f"stream cut: {segment!r} is not a segment id")
            if not isinstance(offset, int) or isinstance(offset, bool) or not OFFSET_FUTURE <= offset <= _INT64_MAX:
                raise InvalidArgumentError(f"stream cut: {offset!r} is not an offset (segment {segment})")
            parsed[int(segment)] = offset
        return cls(scope, stream, parsed)

    @classmethod
    def _from_pravega_text(cls, text: str) -> StreamCut:
        parts = _unpacked(text).split(":")
        if len(parts) != 5 or parts[0] != _PRAVEGA_VERSION:
            raise InvalidArgumentError(f"stream cut {text[:80]!r} has another format than Pravega's version 0")
        scope, _, stream = parts[1].partition("/")
        try:
            check_scope_name(scope)
            check_stream_name(stream)
            numbers, epochs, offsets = ([_number(each) for each in part.split(",") if part] for part in parts[2:])
        except (InvalidNameError, ValueError) as error:
            raise InvalidArgumentError(f"stream cut {text[:80]!r}: {error}") from error
        if not len(numbers) == len(epochs) == len(offsets):
            raise InvalidArgumentError(f"stream cut {text[:80]!r} has lists of unequal length")
        for number, epoch, offset in zip(numbers, epochs, offsets, strict=True):
            if not (0 <= number <= _INT32_MAX and 0 <= epoch <= _INT32_MAX and OFFSET_FUTURE <= offset <= _INT64_MAX):
                raise InvalidArgumentError(
                    f"stream cut {text[:80]!r}: segment {number} of epoch {epoch} at {offset} cannot be"
                )
        ids = map(segment_id, numbers, epochs)
        return cls(scope, stream, dict(zip(ids, offsets, strict=True)))


def _number(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > len(str(_INT64_MAX)):
        raise ValueError(f"{text[:32]!r} is not a number")
    return int(text)


def _unpacked(text: str) -> str:
    """Return the decompressed text of a cut from Pravega's clients. Raises `InvalidArgumentError`."""
    unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        data = unpacker.decompress(base64.b64decode(text, validate=True), _PRAVEGA_TEXT_LENGTH_MAX)
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("it is truncated, too long, or followed by other data")
        return data.decode()
    except (binascii.Error, zlib.error, ValueError) as error:
        raise InvalidArgumentError(f"stream cut {text[:80]!r} is damaged: {error}") from error
