"""`CleanEnd`: an incarnation's note that it left no chunk behind without a record.

It is the last record of the log. With it the next incarnation need not search for such chunks. See
docs/orphan-chunks.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_FORMAT_VERSION: Final = 1
_NOTE = struct.Struct(">Bqq")


@dataclass(frozen=True, slots=True)
class CleanEnd:
    """Nothing was left behind up to the end of `epoch`.

    Attributes:
        epoch: the incarnation that wrote it. Valid only for the next one: each claim of the log takes an epoch.
        swept_ms: wall clock when the last sweep of all chunks began, milliseconds.
    """

    epoch: int
    swept_ms: int

    def encode(self) -> bytes:
        """Return the stored bytes."""
        return _NOTE.pack(_FORMAT_VERSION, self.epoch, self.swept_ms)

    @classmethod
    def decode(cls, data: bytes | None) -> CleanEnd | None:
        """Decode the output of `encode`; None for anything else: a missing note only causes a longer search."""
        if data is None or len(data) != _NOTE.size:
            return None
        version, epoch, swept_ms = _NOTE.unpack(data)
        return cls(epoch, swept_ms) if version == _FORMAT_VERSION else None
