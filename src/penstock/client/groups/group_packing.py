"""The record of a reader group as bytes of one or more table values. Pure.

A small record is stored unchanged: JSON, in one value. A larger one is compressed and split over as many values as
needed. The first value begins with a header::

    uint8 1 (format), uint8 number of values, uint32 CRC-32 of the compressed bytes, uint64 their number; big-endian
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from penstock.model.errors import InvalidArgumentError, LaterVersionError
from penstock.model.segments import TABLE_VALUE_LENGTH_MAX

_HEADER = struct.Struct(">BBIQ")
_FORMAT = 1
#: First bytes reserved for later versions. JSON begins with none of them.
_LATER_FORMATS = range(_FORMAT + 1, 9)
#: Records up to this size are stored unchanged, so that clients of earlier releases can read them.
_PLAIN_BYTES_MAX = 128 * 1024
_PART_BYTES_MAX = TABLE_VALUE_LENGTH_MAX - _HEADER.size
#: All values are written in one request.
_PART_COUNT_MAX = 7
_RECORD_BYTES_MAX = 256 * 1024 * 1024


def pack_record(record: bytes) -> list[bytes]:
    """Return the values of a record. Raises `InvalidArgumentError` for one that is too large."""
    if len(record) <= _PLAIN_BYTES_MAX:
        return [record]
    packed = zlib.compress(record, 1)
    parts = [packed[start : start + _PART_BYTES_MAX] for start in range(0, len(packed), _PART_BYTES_MAX)]
    if len(parts) > _PART_COUNT_MAX or len(record) > _RECORD_BYTES_MAX:
        raise InvalidArgumentError(
            f"the compressed state of a reader group would have {len(packed)} bytes; at most "
            f"{_PART_COUNT_MAX * _PART_BYTES_MAX} can be stored: divide the streams among several groups"
        )
    parts[0] = _HEADER.pack(_FORMAT, len(parts), zlib.crc32(packed), len(packed)) + parts[0]
    return parts


def part_count(first: bytes) -> int:
    """Return the number of values of the record with this first value.

    Raises `LaterVersionError`, `InvalidArgumentError` for a damaged one.
    """
    if first and first[0] in _LATER_FORMATS:
        raise LaterVersionError("the reader group's state", found=first[0], known=_FORMAT, what="packed format")
    if not first or first[0] != _FORMAT:
        return 1
    if len(first) < _HEADER.size or not 0 < first[1] <= _PART_COUNT_MAX:
        raise InvalidArgumentError("the reader group's state cannot be read: its header is damaged")
    return first[1]


def unpack_record(parts: Sequence[bytes]) -> bytes:
    """Return the record in these values. Raises `LaterVersionError`, `InvalidArgumentError` for damaged ones."""
    part_count(parts[0])
    if not parts[0] or parts[0][0] != _FORMAT:
        return parts[0]
    _, _, checksum, length = _HEADER.unpack_from(parts[0])
    packed = b"".join((parts[0][_HEADER.size :], *parts[1:]))
    if len(packed) != length or zlib.crc32(packed) != checksum:
        raise InvalidArgumentError("the reader group's state cannot be read: its checksum does not match")
    unpacker = zlib.decompressobj()
    try:
        record = unpacker.decompress(packed, _RECORD_BYTES_MAX)
    except zlib.error as error:
        raise InvalidArgumentError(f"the reader group's state cannot be read: {error}") from error
    if not unpacker.eof:
        raise InvalidArgumentError(f"the reader group's state is larger than {_RECORD_BYTES_MAX} bytes, or cut off")
    return record
