"""Records to bytes and back.

======  ======  ============================================================
offset  length  content
======  ======  ============================================================
0       1       format version: 1 for a map of fields, 2 for a packed record
1       4       CRC32C, big-endian, of the version byte and the payload
5       n       version 1: the record's fields as a MessagePack map, names as in `records`; version 2: a byte for the
                kind of record, and what `packing` says
======  ======  ============================================================

Packed records that were written as maps of fields by earlier releases are still read.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import msgspec

from penstock.controller.metadata.packing import PackedRecord
from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, LaterVersionError

R = TypeVar("R")

VERSION_FIELDS = 1
VERSION_PACKED = 2
_HEADER_BYTES = 5

_encoder = msgspec.msgpack.Encoder()


def _checksum(version: int, payload: bytes) -> bytes:
    return crc32c(payload, crc32c(bytes([version]), 0)).to_bytes(4, "big")


def encode(record: object) -> bytes:
    """Return the stored form of a record."""
    if isinstance(record, PackedRecord):
        version, payload = VERSION_PACKED, bytes([record.kind_number]) + record.packed()
    else:
        version, payload = VERSION_FIELDS, _encoder.encode(record)
    return b"".join((bytes([version]), _checksum(version, payload), payload))


def decode(kind: type[R], value: bytes, *, table: str, key: str) -> R:
    """Read the stored form of a `kind`. Raises `CorruptionError`, naming table and key, for anything else.

    An intact record of a later version raises `LaterVersionError`.
    """
    path = f"table {table}, key {key!r}"
    if len(value) <= _HEADER_BYTES:
        raise CorruptionError(path, len(value), f"a record has more than {_HEADER_BYTES} bytes")
    version, payload = value[0], value[_HEADER_BYTES:]
    is_packed = issubclass(kind, PackedRecord)
    if value[1:_HEADER_BYTES] != _checksum(version, payload):
        raise CorruptionError(path, 1, "checksum mismatch")
    if version != VERSION_FIELDS and not (is_packed and version == VERSION_PACKED):
        newest = VERSION_PACKED if is_packed else VERSION_FIELDS
        if version > newest:
            raise LaterVersionError(path, found=version, known=newest)
        raise CorruptionError(path, 0, f"format version {version} is not read by this version")
    try:
        if issubclass(kind, PackedRecord):
            if version == VERSION_FIELDS:
                return kind.from_fields(payload)
            if payload[0] != kind.kind_number:
                raise ValueError(f"it is of kind {payload[0]}, not {kind.kind_number}")
            return kind.unpacked(payload[1:])
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, ValueError, struct.error) as error:
        raise CorruptionError(path, _HEADER_BYTES, f"not a {kind.__name__}: {error}") from error
