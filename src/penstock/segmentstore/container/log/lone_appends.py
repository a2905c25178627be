"""`lone_appends`: the appends of many frames that have one each, read by the column.

So a log lies that was written append by append. What is read so is what a reading frame by frame finds: anything that
is not as in the frame before, damage among it, is left to that. A pure function over bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from penstock.model.segments import NO_VALUE, Buffer
from penstock.segmentstore.container.log.frames import ENTRY_HEADER, FIRST, LAST
from penstock.segmentstore.container.log.operations import (
    APPEND_HEADER,
    APPEND_TYPE,
    FORMAT_VERSION,
    RECORD_HEADER,
)

#: Before the number of the record: the frame's version, the entry's flags and length, the record's type.
_BEGIN = struct.Struct(">BBIB")
#: Number, segment id, offset and time; then event count, event number and writer id; then the data.
_FRONT_START = 1 + ENTRY_HEADER.size + RECORD_HEADER.size - 8
_BACK_START = _FRONT_START + 4 * 8
_DATA_START = 1 + ENTRY_HEADER.size + APPEND_HEADER.size
_FRONT = struct.Struct(">QQqq")
_BACK = struct.Struct(">iq16s")
#: The back in words: event count, event number (2), writer id (4).
_BACK_WORDS = _BACK.size // 4
_FRONT_LONGS = _FRONT.size // 8
_NO_EVENT_NUMBER = struct.pack(">q", NO_VALUE)


@dataclass(frozen=True, slots=True)
class LoneAppends:
    """Appends to one segment without a gap. `number` is that of the first; what is not a sum is of the last."""

    number: int
    segment_id: int
    start: int
    end: int
    time_ms: int
    event_count: int
    event_number: int
    writer_id: bytes
    data: bytes


def lone_appends(frames: Sequence[bytes]) -> LoneAppends | None:
    """Read frames that each have one whole append with data.

    None unless all of them are to one segment, each behind the one before, have record numbers without a gap, and
    either all have one writer's event numbers or none has any.
    """
    count = len(frames)
    lengths = list(map(len, frames))
    if min(lengths) <= _DATA_START:
        return None
    number, segment_id, start, _ = _FRONT.unpack_from(frames[0], _FRONT_START)
    last_number, last_segment_id, _, time_ms = _FRONT.unpack_from(frames[-1], _FRONT_START)
    if last_number != number + count - 1 or last_segment_id != segment_id or start < 0:
        return None
    offsets = list(accumulate([length - _DATA_START for length in lengths], initial=start))
    begins = {
        length: _BEGIN.pack(FORMAT_VERSION, FIRST | LAST, length - 1 - ENTRY_HEADER.size, APPEND_TYPE)
        for length in set(lengths)
    }
    fronts = memoryview(b"".join([frame[_FRONT_START:_BACK_START] for frame in frames])).cast("Q")
    backs = memoryview(b"".join([frame[_BACK_START:_DATA_START] for frame in frames])).cast("I")
    longs = struct.Struct(f">{count}Q")
    is_run = (
        [frame[: _BEGIN.size] for frame in frames] == [begins[length] for length in lengths]
        and fronts[0::_FRONT_LONGS].tobytes() == longs.pack(*range(number, number + count))
        and fronts[1::_FRONT_LONGS].tobytes() == segment_id.to_bytes(8, "big") * count
        and fronts[2::_FRONT_LONGS].tobytes() == longs.pack(*offsets[:-1])
    )
    if not is_run:
        return None
    _, event_number, writer_id = _BACK.unpack_from(frames[-1], _BACK_START)
    words = [backs[word::_BACK_WORDS].tobytes() for word in range(_BACK_WORDS)]
    if event_number == NO_VALUE:
        is_one_writer = all(words[1 + part] == _NO_EVENT_NUMBER[4 * part : 4 * part + 4] * count for part in (0, 1))
    else:
        is_one_writer = all(
            words[3 + part] == writer_id[4 * part : 4 * part + 4] * count for part in range(4)
        )
    if not is_one_writer:
        return None
    return LoneAppends(
        number,
        segment_id,
        start,
        offsets[-1],
        time_ms,
        sum(struct.unpack(f">{count}i", words[0])),
        event_number,
        writer_id,
        b"".join([frame[_DATA_START:] for frame in frames]),
    )


def record_of(frame: Buffer) -> memoryview:
    """Return the record of a frame that `lone_appends` has read."""
    return memoryview(frame)[1 + ENTRY_HEADER.size :]
