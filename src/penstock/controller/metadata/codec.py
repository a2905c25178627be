"""Records to bytes and back.

======  ======  ============================================================
offset  length  content
======  ======  ============================================================
0       1       format version, 1
1       4       CRC32C, big-endian, of the version byte and the payload
5       n       the record's fields as a MessagePack map, names as in `records`
======  ======  ============================================================
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError

R = TypeVar("R")

FORMAT_VERSION = 1
_HEADER_BYTES = 5
_VERSION_BYTE = bytes([FORMAT_VERSION])

_encoder = msgspec.msgpack.Encoder()


def _checksum(payload: bytes) -> bytes:
    return crc32c(payload, crc32c(_VERSION_BYTE, 0)).to_bytes(4, "big")


def encode(record: object) -> bytes:
    """Return the stored form of a record."""
    payload = _encoder.encode(record)
    return _VERSION_BYTE + _checksum(payload) + payload


def decode(kind: type[R], value: bytes, *, table: str, key: str) -> R:
    """Read the stored form of a `kind`. Raises `CorruptionError`, naming table and key, for anything else."""
    path = f"table {table}, key {key!r}"
    if len(value) <= _HEADER_BYTES:
        raise CorruptionError(path, len(value), f"a record has more than {_HEADER_BYTES} bytes")
    if value[0] != FORMAT_VERSION:
        raise CorruptionError(path, 0, f"format version {value[0]}, this release reads {FORMAT_VERSION}")
    payload = value[_HEADER_BYTES:]
    if value[1:_HEADER_BYTES] != _checksum(payload):
        raise CorruptionError(path, 1, "checksum mismatch")
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.MsgspecError as error:
        raise CorruptionError(path, _HEADER_BYTES, f"not a {kind.__name__}: {error}") from error
