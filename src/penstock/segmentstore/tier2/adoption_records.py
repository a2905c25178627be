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

ADOPTED_PREFIX: Final = b"\0adopted\0"

_FORMAT_VERSION: Final = 1
_KIND_ADOPTED: Final = 18
_HEAD = struct.Struct(">BBq")
_CHECKSUM = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class AdoptionMark:
    """The `segment`, and the wall clock, in milliseconds, when its adoption was begun; for people."""

    segment: str
    made_ms: int

    @property
    def key(self) -> bytes:
        """Where it lies."""
        return adoption_key(self.segment)

    def encode(self) -> bytes:
        """Return its stored bytes."""
        body = _HEAD.pack(_FORMAT_VERSION, _KIND_ADOPTED, self.made_ms) + self.segment.encode()
        return body + _CHECKSUM.pack(crc32c(body, 0))

    @classmethod
    def decode(cls, key: bytes, data: bytes) -> AdoptionMark:
        """Read what `encode` made. Raises `CorruptionError` for anything else."""
        where = f"storage adoption record {key[len(ADOPTED_PREFIX) :].decode(errors='replace')!r}"
        body = bytes(data[: -_CHECKSUM.size])
        if len(body) < _HEAD.size or _CHECKSUM.pack(crc32c(body, 0)) != data[len(body) :]:
            raise CorruptionError(where, 0, "its checksum does not match")
        version, kind, made_ms = _HEAD.unpack_from(body)
        if (version, kind) != (_FORMAT_VERSION, _KIND_ADOPTED):
            raise CorruptionError(where, 0, f"format version {version} and kind {kind} are unknown")
        if ADOPTED_PREFIX + body[_HEAD.size :] != key:
            raise CorruptionError(where, _HEAD.size, "it is about another segment")
        return cls(body[_HEAD.size :].decode(), made_ms)


def adoption_key(segment: str) -> bytes:
    """Return where the mark of a segment lies."""
    return ADOPTED_PREFIX + segment.encode()
