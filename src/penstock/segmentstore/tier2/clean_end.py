"""`CleanEnd`: the note of a container's incarnation that it left no chunk behind which no record leads to.

The last record of its log. The next incarnation need not look for such chunks then. See docs/orphan-chunks.md.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_FORMAT_VERSION: Final = 1
_NOTE = struct.Struct(">Bqq")


@dataclass(frozen=True, slots=True)
class CleanEnd:
    """That nothing was left behind up to the end of `epoch`.

    Attributes:
        epoch: of the incarnation that wrote it. The next one alone may believe it: each claim of the log takes one.
        swept_ms: wall clock when the last sweep along all chunks began, milliseconds.
    """

    epoch: int
    swept_ms: int

    def encode(self) -> bytes:
        """Return its stored bytes."""
        return _NOTE.pack(_FORMAT_VERSION, self.epoch, self.swept_ms)

    @classmethod
    def decode(cls, data: bytes | None) -> CleanEnd | None:
        """Read what `encode` made; None for anything else: without a note there is but more to look at."""
        if data is None or len(data) != _NOTE.size:
            return None
        version, epoch, swept_ms = _NOTE.unpack(data)
        return cls(epoch, swept_ms) if version == _FORMAT_VERSION else None
