"""`ChunkRun`: the keys of the records of a segment's chunks.

The key of a record is the segment's name, a zero byte, which names do not contain, the run's epoch and number, and the
distance of the record's offset from the greatest offset. All records of a segment are adjacent, its own first. An
ascending scan from the key of an offset first returns the record that holds that offset, and then the preceding ones:
one lookup, without following a list.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

#: Greatest offset in a segment.
OFFSET_MAX: Final = (1 << 63) - 1

_RUN = struct.Struct(">QQ")
_OFFSET_BYTES: Final = 8
#: Length of a key's part after the segment's name: a zero byte, epoch, number, distance.
_RUN_KEY_BYTES: Final = 1 + _RUN.size + _OFFSET_BYTES


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """All data written to one stored segment in its life; identifies its chunk records, even after a merge.

    Attributes:
        segment: the segment's name.
        epoch: the container epoch in which it was first stored, and ...
        number: ... its number among the segments of that epoch: a segment recreated under an old name is another run.
    """

    segment: str
    epoch: int
    number: int

    @property
    def prefix(self) -> bytes:
        """Common prefix of the keys of all its records, and of no others."""
        return b"%b\0%b" % (self.segment.encode(), _RUN.pack(self.epoch, self.number))

    def key(self, start: int) -> bytes:
        """Return the key of the record that begins at `start`. Keys descend as offsets ascend."""
        return self.prefix + (OFFSET_MAX - start).to_bytes(_OFFSET_BYTES)

    @property
    def last_key(self) -> bytes:
        """The greatest possible key of its records."""
        return self.key(0)


def runs_of(segment: str) -> tuple[bytes, bytes]:
    """Return the first and the last possible key of records of runs of `segment`."""
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
    """Describe the record under `key`, for messages."""
    run = run_of(key)
    if run is None:
        return f"storage metadata record {key.decode(errors='replace')!r}"
    start = OFFSET_MAX - int.from_bytes(key[-_OFFSET_BYTES:])
    return f"storage metadata record {run.segment!r} ({run.epoch}.{run.number}) at {start}"
