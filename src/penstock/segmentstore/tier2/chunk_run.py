"""`ChunkRun`: what the records of a segment's chunks are found by.

The key of a record is the segment's name, a zero byte, which no name has, the run's epoch and number, and the distance
of the record's offset from the greatest one. All records about a segment lie side by side, its own first. A scan in
ascending order that begins at the key of an offset comes first upon the record of what holds that offset, and then upon
what lies before it: one look-up, without any step along a list.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

#: Greatest offset in a segment.
OFFSET_MAX: Final = (1 << 63) - 1

_RUN = struct.Struct(">QQ")
_OFFSET_BYTES: Final = 8
#: What a key has behind the segment's name: a zero byte, epoch, number, distance.
_RUN_KEY_BYTES: Final = 1 + _RUN.size + _OFFSET_BYTES


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """All that was written to one stored segment in its life: where records of its chunks lie, whoever has them now.

    Attributes:
        segment: the segment's name.
        epoch: the container epoch in which it was stored first, and ...
        number: ... which of that epoch's segments it was: a segment that is made anew under an old name is another run.
    """

    segment: str
    epoch: int
    number: int

    @property
    def prefix(self) -> bytes:
        """What the keys of all its records begin with, and no others."""
        return b"%b\0%b" % (self.segment.encode(), _RUN.pack(self.epoch, self.number))

    def key(self, start: int) -> bytes:
        """Return the key of the record of what begins at `start`. Keys descend as offsets ascend."""
        return self.prefix + (OFFSET_MAX - start).to_bytes(_OFFSET_BYTES)

    @property
    def last_key(self) -> bytes:
        """The greatest key that a record of it may have."""
        return self.key(0)


def runs_of(segment: str) -> tuple[bytes, bytes]:
    """Return the first and the last key that records of runs of `segment` may have."""
    name = segment.encode()
    return name + bytes(_RUN_KEY_BYTES), name + b"\0" + b"\xff" * (_RUN_KEY_BYTES - 1)


def run_of(key: bytes) -> ChunkRun | None:
    """Return the run of a record by its key; None for the key of a segment's record, a name without a zero byte."""
    name, end = key[:-_RUN_KEY_BYTES], key[-_RUN_KEY_BYTES:]
    if len(end) < _RUN_KEY_BYTES or not name or end[0] or b"\0" in name:
        return None
    epoch, number = _RUN.unpack_from(end, 1)
    return ChunkRun(name.decode(errors="surrogateescape"), epoch, number)


def describe_key(key: bytes) -> str:
    """Say for people whose record lies under `key`."""
    run = run_of(key)
    if run is None:
        return f"storage metadata record {key.decode(errors='replace')!r}"
    start = OFFSET_MAX - int.from_bytes(key[-_OFFSET_BYTES:])
    return f"storage metadata record {run.segment!r} ({run.epoch}.{run.number}) at {start}"
