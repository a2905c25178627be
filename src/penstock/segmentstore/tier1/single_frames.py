"""`single_frames`: reads columns of frames that are each a batch, and so each begin a block.

A single append is such a frame, and a log may hold millions of them. The result is exactly that of reading frame by
frame: of a column, frames are taken up to the first one that fails a check, its checksum included. What that one is
(damage, the end of the log, a longer batch) is left to the frame-by-frame reader. A pure function over bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from penstock.model.checksum import crc32c
from penstock.segmentstore.columns import (
    COLUMN_LENGTH_MIN,
    NUMBER_LENGTH,
    Table,
    agreeing,
    agreeing_with,
    first_difference,
    packed,
    progression,
)
from penstock.segmentstore.tier1.frame_format import (
    BLOCK_LENGTH,
    FRAME_HEADER_LENGTH,
    FRAME_SUMMED_LENGTH,
    FileHeader,
    encode_single_frame_constants,
)

#: Offsets of the 64-bit numbers in a frame's header: those that are the same in all frames of a column; length and
#: offset; and the sequence number. The synced offset follows.
_CONSTANTS = (0, 8, 24)
_LENGTH_AND_OFFSET, _SEQUENCE, _SYNCED = 16, 32, 40
_LONE_LENGTH_MAX = BLOCK_LENGTH - FRAME_HEADER_LENGTH


@dataclass(frozen=True, slots=True)
class SingleFrames:
    """Data frames from one block to the next. `synced_offset`: greatest synced offset that they record."""

    payloads: Sequence[bytes]
    synced_offset: int


def single_frames(
    window: bytes, start: int, offset: int, file: FileHeader, sequence: int, count: int
) -> SingleFrames | None:
    """Read the frames of `count` whole blocks from byte `start` of `window` on, which is byte `offset` of a file.

    The first is expected to be frame `sequence`, at a block boundary; `count` is at most `COLUMN_LENGTH_MAX`. All
    returned frames are good data frames of that file, each the last of its batch; None if the first is anything else.
    """
    constants = encode_single_frame_constants(file)
    if window[start : start + _LENGTH_AND_OFFSET] != constants[:_LENGTH_AND_OFFSET]:
        return None
    # Most frames are as long as the first one.
    length = int.from_bytes(window[start + _LENGTH_AND_OFFSET : start + _LENGTH_AND_OFFSET + 4], "big")
    if length > _LONE_LENGTH_MAX:
        return None
    block = struct.Struct(f">{FRAME_SUMMED_LENGTH}sI{length}s{_LONE_LENGTH_MAX - length}x")
    blocks = memoryview(window)[start : start + count * BLOCK_LENGTH]
    heads, checksums, payloads = map(list, zip(*block.iter_unpack(blocks), strict=True))
    table = Table(heads)
    good = min(
        *[agreeing_with(table.numbers(at), constants[at : at + NUMBER_LENGTH]) for at in _CONSTANTS],
        agreeing(table.numbers(_SEQUENCE), progression(sequence, 1, count)),
    )
    lengths_and_offsets = table.numbers(_LENGTH_AND_OFFSET)
    alike = agreeing(lengths_and_offsets, progression(length << 32 | offset, BLOCK_LENGTH, count))
    if alike >= COLUMN_LENGTH_MIN:
        # True of most logs; a different length is likely to be something else there.
        good = min(good, alike)
    else:
        lengths = table.halves(_LENGTH_AND_OFFSET)
        offsets = range(offset, offset + count * BLOCK_LENGTH, BLOCK_LENGTH)
        expected = packed(length << 32 | at for length, at in zip(lengths, offsets, strict=True))
        good = min(good, agreeing(lengths_and_offsets, expected))
        if max(lengths) > _LONE_LENGTH_MAX:
            good = min(good, next(index for index, length in enumerate(lengths) if length > _LONE_LENGTH_MAX))
        first = start + FRAME_HEADER_LENGTH
        payloads = [
            window[at : at + length]
            for at, length in zip(range(first, first + good * BLOCK_LENGTH, BLOCK_LENGTH), lengths, strict=False)
        ]
    found = list(map(crc32c, payloads[:good], map(crc32c, heads, repeat(0))))
    good = first_difference(found, checksums[:good])
    if not good:
        return None
    return SingleFrames(payloads[:good], max(table.halves(_SYNCED)[:good]))
