"""`AdoptionMark`: records that the adoption of a segment of RollingStorage was started or completed.

The segment's header stays in place, so that the older layout is unchanged. This mark, written by the commit that stores
the first part of the segment, prevents the header from restoring the segment after it was deleted. The mark is
permanent; it is stored with the records of garbage, before those of all segments. Bytes: ``docs/formats.md``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError
from penstock.segmentstore.later_format import version_error

ADOPTED_PREFIX: Final = b"\0adopted\0"

_FORMAT_VERSION: Final = 1
_KIND_ADOPTED: Final = 18
_HEAD = struct.Struct(">BBqHH")
_CHECKSUM = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class AdoptionMark:
    """Records that the chunks of `segment`, as its header names them, belong to a segment of this store.

    Attributes:
        segment: the segment of the header.
        became: the segment that owns the chunks, usually the same.
        made_ms: wall clock when the adoption was started, milliseconds; informational.
    """

    segment: str
    became: str
    made_ms: int

    @property
    def key(self) -> bytes:
        """The key of the mark."""
        return adoption_key(self.segment)

    def encode(self) -> bytes:
        """Return the stored bytes."""
        segment, became = self.segment.encode(), self.became.encode()
        head = _HEAD.pack(_FORMAT_VERSION, _KIND_ADOPTED, self.made_ms, len(segment), len(became))
        body = head + segment + became
        return body + _CHECKSUM.pack(crc32c(body, 0))

    @classmethod
    def decode(cls, key: bytes, data: bytes) -> AdoptionMark:
        """Decode the output of `encode`. Raises `CorruptionError` for anything else."""
        where = f"storage adoption record {key[len(ADOPTED_PREFIX) :].decode(errors='replace')!r}"
        body = bytes(data[: -_CHECKSUM.size])
        if len(body) < _HEAD.size or _CHECKSUM.pack(crc32c(body, 0)) != data[len(body) :]:
            raise CorruptionError(where, 0, "its checksum does not match")
        version, kind, made_ms, length, became_length = _HEAD.unpack_from(body)
        if version != _FORMAT_VERSION:
            raise version_error(where, version, (_FORMAT_VERSION,))
        if kind != _KIND_ADOPTED:
            raise CorruptionError(where, 1, f"record kind {kind} belongs under another key")
        names = body[_HEAD.size :]
        if not became_length or len(names) != length + became_length:
            raise CorruptionError(where, _HEAD.size, "its fields do not match the record")
        if ADOPTED_PREFIX + names[:length] != key:
            raise CorruptionError(where, _HEAD.size, "it belongs to another segment")
        return cls(names[:length].decode(), names[length:].decode(), made_ms)


def adoption_key(segment: str) -> bytes:
    """Return the key of a segment's mark."""
    return ADOPTED_PREFIX + segment.encode()
