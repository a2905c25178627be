"""`AdoptionMark`: that a segment of RollingStorage was taken over, or that this was begun.

Its header stays where it is, so that nothing of the older layout is changed. This mark, made by the commit that stores
the first of the segment, keeps the header from bringing the segment back once it was deleted. It stays for good, with
the records of garbage, before those of all segments. Bytes: ``docs/formats.md``.
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
    """That the chunks of `segment`, as its header names them, belong to a segment of this store.

    Attributes:
        segment: whose header it is.
        became: the segment that has the chunks, as a rule the same.
        made_ms: wall clock when the adoption was begun, milliseconds; for people.
    """

    segment: str
    became: str
    made_ms: int

    @property
    def key(self) -> bytes:
        """Where it lies."""
        return adoption_key(self.segment)

    def encode(self) -> bytes:
        """Return its stored bytes."""
        segment, became = self.segment.encode(), self.became.encode()
        head = _HEAD.pack(_FORMAT_VERSION, _KIND_ADOPTED, self.made_ms, len(segment), len(became))
        body = head + segment + became
        return body + _CHECKSUM.pack(crc32c(body, 0))

    @classmethod
    def decode(cls, key: bytes, data: bytes) -> AdoptionMark:
        """Read what `encode` made. Raises `CorruptionError` for anything else."""
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
            raise CorruptionError(where, _HEAD.size, "its fields do not fit the record")
        if ADOPTED_PREFIX + names[:length] != key:
            raise CorruptionError(where, _HEAD.size, "it is about another segment")
        return cls(names[:length].decode(), names[length:].decode(), made_ms)


def adoption_key(segment: str) -> bytes:
    """Return where the mark of a segment lies."""
    return ADOPTED_PREFIX + segment.encode()
