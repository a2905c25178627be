"""`single_appends`: reads the appends of many frames that hold one append each, by column.

A log written append by append consists of such frames. The result equals that of reading frame by frame, up to the
first frame that differs from the ones before; that one, damaged or not, is left to the frame reader. A pure function
over bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

from penstock.model.segments import NO_VALUE, Buffer
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
from penstock.segmentstore.container.log.frames import ENTRY_HEADER, FIRST, LAST
from penstock.segmentstore.container.log.operations import (
    APPEND_HEADER,
    APPEND_TYPE,
    FORMAT_VERSION,
)

#: Before an append's data: the frame's version, the entry's header, the append's.
_DATA_START = 1 + ENTRY_HEADER.size + APPEND_HEADER.size
#: With an indent of one zero byte, its numbers are at multiples of 8 or 4, the type at the end of the first.
_INDENT = 1
_BEGIN, _NUMBER, _SEGMENT_ID, _OFFSET, _EVENT_COUNT, _EVENT_NUMBER, _WRITER = 0, 8, 16, 24, 40, 44, 52
#: From the number on: number, segment id, offset, time, event count, event number, writer id.
_HEAD = struct.Struct(">QQqqiq16s")
_WHOLE_LENGTH_MAX = 512
_NO_EVENT_NUMBER = struct.pack(">q", NO_VALUE)


@dataclass(frozen=True, slots=True)
class SingleAppends:
    """Contiguous appends to one segment. `number` is the first one's; fields that are not sums are the last one's."""

    count: int
    number: int
    segment_id: int
    start: int
    end: int
    time_ms: int
    event_count: int
    event_number: int
    writer_id: bytes
    data: bytes


def single_appends(frames: Sequence[bytes]) -> SingleAppends | None:
    """Read the leading frames that each have one whole append with data; at most `COLUMN_LENGTH_MAX` of them.

    The appends are to one segment and contiguous, have consecutive record numbers, and either all have event numbers of
    one writer or none has any. None if the first frame does not qualify.
    """
    lengths = list(map(len, frames))
    if min(lengths) <= _DATA_START:
        lengths = list(takewhile(lambda length: length > _DATA_START, lengths))
    alike = first_difference(lengths, lengths[:1] * len(lengths))
    if alike >= COLUMN_LENGTH_MIN:
        # The usual case; a frame of another length is likely to hold something else.
        lengths = lengths[:alike]
    count = len(lengths)
    if not count:
        return None
    number, segment_id, start, _, _, event_number, writer_id = _HEAD.unpack_from(frames[0], _NUMBER - _INDENT)
    if start < 0 or (number + count) >> 64:
        return None
    # Short frames are joined whole, without slicing.
    is_whole = alike >= count and lengths[0] <= _WHOLE_LENGTH_MAX
    rows = frames[:count] if is_whole else [frame[:_DATA_START] for frame in frames[:count]]
    table = Table(rows, indent=_INDENT)
    if alike >= count:
        begins = _begin_of(lengths[0]).to_bytes(NUMBER_LENGTH, "big") * count
        offsets = progression(start, lengths[0] - _DATA_START, count)
    else:
        begins = packed(map(_begin_of, lengths))
        offsets = packed(accumulate([length - _DATA_START for length in lengths[:-1]], initial=start))
    has_numbers = event_number != NO_VALUE
    good = min(
        agreeing(table.numbers(_BEGIN), begins),
        agreeing(table.numbers(_NUMBER), progression(number, 1, count)),
        agreeing_with(table.numbers(_SEGMENT_ID), segment_id.to_bytes(NUMBER_LENGTH, "big")),
        agreeing(table.numbers(_OFFSET), offsets),
        _same_writer(table, writer_id, count) if has_numbers else _without_number(table, count),
    )
    if not good:
        return None
    time_ms, _, event_number, writer_id = _HEAD.unpack_from(frames[good - 1], _NUMBER - _INDENT)[3:]
    if has_numbers and event_number == NO_VALUE:
        return None  # The writer's last append has no number, but earlier ones have.
    data = b"".join([frame[_DATA_START:] for frame in frames[:good]])
    return SingleAppends(
        good,
        number,
        segment_id,
        start,
        start + len(data),
        time_ms,
        sum(table.halves(_EVENT_COUNT, is_signed=True)[:good]),
        event_number,
        writer_id,
        data,
    )


def _begin_of(length: int) -> int:
    """Return the bytes before the number, as an integer, in a frame of `length` bytes that has one append."""
    return (FORMAT_VERSION << 8 | FIRST | LAST) << 40 | (length - 1 - ENTRY_HEADER.size) << 8 | APPEND_TYPE


def _same_writer(table: Table, writer_id: bytes, count: int) -> int:
    """Return how many leading rows have this writer id."""
    first, last = int.from_bytes(writer_id[:4], "big"), int.from_bytes(writer_id[12:], "big")
    return min(
        first_difference(table.halves(_WRITER), (first,) * count),
        agreeing_with(table.numbers(_WRITER + 4), writer_id[4:12]),
        first_difference(table.halves(_WRITER + 12), (last,) * count),
    )


def _without_number(table: Table, count: int) -> int:
    """Return how many leading rows have no event number."""
    return min(
        first_difference(table.halves(_EVENT_NUMBER + 4 * half), (int.from_bytes(part, "big"),) * count)
        for half, part in enumerate((_NO_EVENT_NUMBER[:4], _NO_EVENT_NUMBER[4:]))
    )


def record_of(frame: Buffer) -> memoryview:
    """Return the record of a frame that `single_appends` has read."""
    return memoryview(frame)[1 + ENTRY_HEADER.size :]
