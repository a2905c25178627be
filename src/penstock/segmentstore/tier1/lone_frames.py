"""`lone_frames`: frames that each are a batch, and so begin a block each, read by the column.

A lone append is such a frame, and a log may hold millions of them. What is read so is exactly what would be read frame
by frame: a column is taken only if all of it is as it should be, and all checksums hold. Of anything else, damage, the
end of the log, a longer batch, the reading frame by frame tells what it is. A pure function over bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from penstock.model.checksum import crc32c
from penstock.segmentstore.tier1.frame_format import (
    BLOCK_LENGTH,
    FRAME_HEADER_LENGTH,
    FRAME_SUMMED_LENGTH,
    FileHeader,
    encode_lone_frame_constants,
)

#: So many frames at least are worth a column.
COLUMN_LENGTH_MIN = 16
#: And so many at most are one: they are a run of the log's user, who has to give others a turn behind it.
COLUMN_LENGTH_MAX = 1024
#: A block's frame: what its checksum covers of its header, the checksum, and the rest.
_BLOCK = struct.Struct(f"{FRAME_SUMMED_LENGTH}s{FRAME_HEADER_LENGTH - FRAME_SUMMED_LENGTH}s")
_BLOCKS = struct.Struct(f"{_BLOCK.format}{BLOCK_LENGTH - FRAME_HEADER_LENGTH}x")
_WORDS = FRAME_SUMMED_LENGTH // 4
#: Words of a header: those that are the same in all frames of a column, and those that are not.
_CONSTANT_WORDS = (0, 1, 2, 3, 6, 7, 8)
_LENGTH_WORD, _OFFSET_WORD, _SEQUENCE_WORD, _SYNCED_WORD = 4, 5, 9, 10
_LONE_LENGTH_MAX = BLOCK_LENGTH - FRAME_HEADER_LENGTH


@dataclass(frozen=True, slots=True)
class LoneFrames:
    """Data frames from one block to the next. `synced_offset`: up to where they say that their file was synced."""

    payloads: Sequence[bytes]
    synced_offset: int


def lone_frames(
    window: bytes, start: int, offset: int, file: FileHeader, sequence: int, count_max: int
) -> LoneFrames | None:
    """Read the frames of whole blocks from byte `start` of `window` on, which is byte `offset` of a file.

    The first should be frame `sequence`; at most `count_max` are read. None unless all of them are good data frames of
    that file, each last of its batch, and there are enough of them.
    """
    count = min((len(window) - start) // BLOCK_LENGTH, count_max, COLUMN_LENGTH_MAX)
    last_start = start + (count - 1) * BLOCK_LENGTH
    if count < COLUMN_LENGTH_MIN or offset % BLOCK_LENGTH:
        return None
    constants = encode_lone_frame_constants(file, sequence)
    if window[last_start : last_start + 4 * 4] != constants[: 4 * 4] or (sequence ^ (sequence + count)) >> 32:
        return None
    blocks = memoryview(window)[start : start + count * BLOCK_LENGTH]
    heads, sums = zip(*_BLOCKS.iter_unpack(blocks), strict=True)
    words = memoryview(b"".join(heads)).cast("I")
    columns = [words[word::_WORDS].tobytes() for word in range(_WORDS)]
    numbers = struct.Struct(f">{count}I")
    low = sequence & 0xFFFFFFFF
    if (
        any(columns[word] != constants[4 * word : 4 * word + 4] * count for word in _CONSTANT_WORDS)
        or columns[_OFFSET_WORD] != numbers.pack(*range(offset, offset + count * BLOCK_LENGTH, BLOCK_LENGTH))
        or columns[_SEQUENCE_WORD] != numbers.pack(*range(low, low + count))
    ):
        return None
    lengths: tuple[int, ...] = numbers.unpack(columns[_LENGTH_WORD])
    if max(lengths) > _LONE_LENGTH_MAX:
        return None
    first = start + FRAME_HEADER_LENGTH
    payloads = [
        window[at : at + length]
        for at, length in zip(range(first, first + count * BLOCK_LENGTH, BLOCK_LENGTH), lengths, strict=True)
    ]
    found = numbers.pack(*map(crc32c, payloads, map(crc32c, heads, repeat(0))))
    if found != b"".join(sums):
        return None
    return LoneFrames(payloads, max(numbers.unpack(columns[_SYNCED_WORD])))
