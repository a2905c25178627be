"""Parts of a ledger's row that is too long for one value of a table.

A row that names tens of thousands of transactions is longer than a value may be. Its body is then stored in parts under
keys of their own, before the row is written, and the row holds the body's length and SHA-256. The keys of parts contain
that SHA-256, so a second write of the same body changes nothing. Bytes: ``docs/formats.md``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model.errors import CorruptionError

#: A row longer than this is stored in parts. Half of the maximum length of a table's value.
ROW_LENGTH_MAX = 512 * 1024
#: Length of every part but the last.
PART_LENGTH = 512 * 1024

#: Set in the first number of a part's key, so that parts come after all announcements in a scan.
_IS_PART = 1 << 63
_KEY = struct.Struct(">Q12sI")
#: Number of bytes of the body's SHA-256 in a part's key.
_DIGEST_LENGTH = 12


@dataclass(frozen=True, slots=True)
class BodyReference:
    """Reference to the parts of a row's body.

    Attributes:
        batch: the row's batch, from 0.
        sha256: of the whole body, in 64 hexadecimal digits.
        length_bytes: of the whole body.
        part_length_bytes: of every part but the last.
    """

    batch: int
    sha256: str
    length_bytes: int
    part_length_bytes: int

    @classmethod
    def of(cls, batch: int, body: bytes) -> BodyReference:
        """Return the reference to a body that is stored in parts of `PART_LENGTH` bytes."""
        return cls(batch, hashlib.sha256(body).hexdigest(), len(body), PART_LENGTH)

    @property
    def keys(self) -> list[bytes]:
        """The second parts of the keys of its parts, in order."""
        count = -(-self.length_bytes // self.part_length_bytes)
        digest = bytes.fromhex(self.sha256)[:_DIGEST_LENGTH]
        return [_KEY.pack(_IS_PART | self.batch, digest, number) for number in range(count)]

    def parts(self, body: bytes) -> list[bytes]:
        """Return the parts of a body, in order."""
        step = self.part_length_bytes
        return [body[start : start + step] for start in range(0, len(body), step)]

    def joined(self, parts: Sequence[bytes], source: str) -> bytes:
        """Join the parts of a body. Raises `CorruptionError`, which names `source`."""
        body = b"".join(parts)
        if len(body) != self.length_bytes or hashlib.sha256(body).hexdigest() != self.sha256:
            raise CorruptionError(source, 0, f"its {len(parts)} parts do not have the SHA-256 that the row names")
        return body


def first_part_key() -> bytes:
    """Return the smallest second part that the key of a part can have."""
    return _KEY.pack(_IS_PART, bytes(_DIGEST_LENGTH), 0)


def batch_of_part(secondary: bytes) -> int | None:
    """Return the batch in the key of a part; None: it is not the key of a part."""
    number: int = _KEY.unpack(secondary)[0]
    return number ^ _IS_PART if number & _IS_PART else None
