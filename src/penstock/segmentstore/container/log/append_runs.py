"""`AppendRuns`: coalesces consecutive appends to a segment and replays each run as one append.

A run may span several frames.

Most of a log is appends, often short ones. A run has the same effect on the state as its appends: the bytes, the
events, the writer's last event number. There are three ways to find runs; two work on the bytes of one frame:

- Records of equal length for one segment, as a single busy writer produces them, are unpacked and compared by column,
  without Python code per record.
- All other records are unpacked one by one and appended to the run of their segment.
- Frames with one append each, as written by clients that wait for each append, are read by column: `single_appends`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.model.segments import NO_VALUE, Buffer
from penstock.segmentstore.columns import COLUMN_LENGTH_MIN, BatchSizer
from penstock.segmentstore.container.log.frames import ENTRY_HEADER, FIRST, LAST
from penstock.segmentstore.container.log.operations import APPEND_HEADER, APPEND_TYPE, Append
from penstock.segmentstore.container.log.single_appends import single_appends
from penstock.segmentstore.container.state import ContainerState

#: An entry's header and an append's, up to the data: flags, length, type, number, segment id, offset, time, event
#: count, event number, writer id.
_HEADERS = struct.Struct(ENTRY_HEADER.format + APPEND_HEADER.format.lstrip(">"))
_unpack = _HEADERS.unpack_from
_WHOLE = FIRST | LAST
_NO_VALUE_UNSIGNED = NO_VALUE & 0xFFFFFFFFFFFFFFFF
_COLUMN_LENGTH_MAX = 4096
#: Records of differing lengths are read one by one; after this many, reading by column is tried again.
_SINGLES = 64
#: `AppendRuns.take` returns after this many appends.
TAKEN_COUNT_MAX = 4096


@dataclass(slots=True)
class _Run:
    """Contiguous appends to one segment. `number` is the first one's; fields that are not sums are the last one's."""

    number: int
    start: int
    end: int
    time_ms: int
    event_count: int
    event_number: int
    writer_id: bytes
    data: list[Buffer]


class AppendRuns:
    """See the module. Call `flush` before replaying anything else."""

    __slots__ = ("_pace", "_runs", "_state", "_structs")

    def __init__(self, state: ContainerState) -> None:
        self._state = state
        self._runs: dict[int, _Run] = {}
        self._structs: dict[int, struct.Struct] = {}
        #: For frames with one append each.
        self._pace = BatchSizer()

    def take(self, frame: memoryview, position: int, last: int, starts: list[int]) -> tuple[int, int]:
        """Add consecutive whole appends of a frame from `position` on; return the next entry's position and a number.

        The number is that of the last append taken (`last` if none was). Stops before any other entry, and before an
        append whose number is not above the previous one (initially `last`). Also stops after `TAKEN_COUNT_MAX`
        appends: yield to the event loop, then call it again. `starts` receives the positions of the entries taken. This
        method or `flush` raises what `ContainerState.replay` raises.
        """
        column_length = COLUMN_LENGTH_MIN
        end = len(frame)
        while position < end and len(starts) < TAKEN_COUNT_MAX:
            before = position
            position, last = self._take_column(frame, position, last, starts, column_length)
            if position > before:
                column_length = min(4 * column_length, _COLUMN_LENGTH_MAX)
                continue
            column_length = COLUMN_LENGTH_MIN
            position, last = self._take_singles(frame, position, last, starts)
            if position == before:
                break
        return position, last

    def take_frames(self, frames: Sequence[bytes], index: int, last: int) -> tuple[int, int]:
        """Add the appends of the frames from `index` on that `single_appends` can read.

        Return the number of frames taken and the number of the last append. That is 0 and `last` if there are none, if
        the attempt is not worthwhile, or if the first number is not above `last`; then call `take` on the frame at
        `index`. Raises as `take`.
        """
        if self._pace.takes_single():
            return 0, last
        scanned = frames[index : index + self._pace.length]
        if len(scanned) < COLUMN_LENGTH_MIN:
            return 0, last
        single = single_appends(scanned)
        if single is not None and single.number <= last:
            single = None
        self._pace.note(0 if single is None else single.count, len(scanned))
        if single is None:
            return 0, last
        self._add(
            _Run(
                single.number,
                single.start,
                single.end,
                single.time_ms,
                single.event_count,
                single.event_number,
                single.writer_id,
                [single.data],
            ),
            single.segment_id,
        )
        return single.count, single.number + single.count - 1

    def _take_column(
        self, frame: memoryview, position: int, last: int, starts: list[int], count_max: int
    ) -> tuple[int, int]:
        """Add appends of one length to one segment by one writer, or nothing if there are too few."""
        room = len(frame) - position
        if room < COLUMN_LENGTH_MIN * _HEADERS.size:
            return position, last
        _, length, _, number, segment_id, offset, _, _, event_number, writer_id = _unpack(frame, position)
        data_length = length - APPEND_HEADER.size
        stride = ENTRY_HEADER.size + length
        count = min(room // stride, count_max)
        if data_length <= 0 or count < COLUMN_LENGTH_MIN or number <= last:
            return position, last
        # If lengths differ, the last record usually shows it early.
        probe = _unpack(frame, position + (count - 1) * stride)
        if probe[:3] != (_WHOLE, length, APPEND_TYPE) or probe[3] != number + count - 1 or probe[4] != segment_id:
            return position, last
        layout = self._structs.get(data_length)
        if layout is None:
            layout = struct.Struct(f"{_HEADERS.format}{data_length}s")
            if len(self._structs) < _COLUMN_LENGTH_MAX:
                self._structs[data_length] = layout
        stop = position + count * stride
        columns = tuple(zip(*layout.iter_unpack(frame[position:stop]), strict=True))
        flags, lengths, kinds, numbers, segment_ids, offsets, times, event_counts, event_numbers, writer_ids, data = (
            columns
        )
        is_run = (
            flags.count(_WHOLE) == lengths.count(length) == kinds.count(APPEND_TYPE) == count
            and segment_ids.count(segment_id) == count
            and numbers == tuple(range(number, number + count))
            and offsets == tuple(range(offset, offset + count * data_length, data_length))
            and (writer_ids.count(writer_id) == count or event_numbers.count(_NO_VALUE_UNSIGNED) == count)
        )
        if not is_run:
            return position, last
        numbered = count
        # Not every append of a writer has an event number; the last one that has counts.
        while numbered and event_numbers[numbered - 1] == _NO_VALUE_UNSIGNED:
            numbered -= 1
        event_number = event_numbers[numbered - 1] if numbered else _NO_VALUE_UNSIGNED
        self._add(
            _Run(
                number,
                offset,
                offset + count * data_length,
                times[-1],
                sum(event_counts),
                _signed(event_number),
                writer_id,
                [b"".join(data)],
            ),
            segment_id,
        )
        starts.extend(range(position, stop, stride))
        return stop, number + count - 1

    def _take_singles(self, frame: memoryview, position: int, last: int, starts: list[int]) -> tuple[int, int]:
        """Add at most `_SINGLES` appends one by one."""
        end = len(frame)
        runs = self._runs
        for _ in range(_SINGLES):
            if end - position < _HEADERS.size:
                break
            flags, length, kind, number, segment_id, offset, time_ms, event_count, event_number, writer_id = _unpack(
                frame, position
            )
            data_start = position + _HEADERS.size
            stop = position + ENTRY_HEADER.size + length
            if flags != _WHOLE or kind != APPEND_TYPE or number <= last or not data_start <= stop <= end:
                break
            starts.append(position)
            position = stop
            last = number
            event_number = _signed(event_number)
            data = frame[data_start:stop]
            run = runs.get(segment_id)
            if (
                run is not None
                and offset == run.end
                and (event_number == NO_VALUE or run.event_number == NO_VALUE or writer_id == run.writer_id)
            ):
                run.data.append(data)
                run.end = offset + len(data)
                run.time_ms = time_ms
                run.event_count += event_count
                if event_number != NO_VALUE:
                    run.event_number = event_number
                    run.writer_id = writer_id
                continue
            self._begin(segment_id, offset)
            runs[segment_id] = _Run(
                number, offset, offset + len(data), time_ms, event_count, event_number, writer_id, [data]
            )
        return position, last

    def _add(self, added: _Run, segment_id: int) -> None:
        run = self._runs.get(segment_id)
        if run is None:
            self._begin(segment_id, added.start)
            self._runs[segment_id] = added
        elif added.start == run.end and (
            added.event_number == NO_VALUE or run.event_number == NO_VALUE or added.writer_id == run.writer_id
        ):
            run.data += added.data
            run.end = added.end
            run.time_ms = added.time_ms
            run.event_count += added.event_count
            if added.event_number != NO_VALUE:
                run.event_number = added.event_number
                run.writer_id = added.writer_id
        else:
            self._begin(segment_id, added.start)
            self._runs[segment_id] = added

    def _begin(self, segment_id: int, start: int) -> None:
        """Replay the segment's current run, because a run at `start` does not continue it.

        Raises the `KeyError` or `ValueError` of its replay here, while the frame at fault is known.
        """
        run = self._runs.pop(segment_id, None)
        if run is not None:
            self._replay(segment_id, run)
        self._state.check_append(segment_id, start)

    def flush(self) -> None:
        """Replay all runs added so far."""
        if self._runs:
            for segment_id, run in self._runs.items():
                self._replay(segment_id, run)
            self._runs.clear()

    def _replay(self, segment_id: int, run: _Run) -> None:
        data: Buffer = run.data[0] if len(run.data) == 1 else b"".join(run.data)
        append = Append(segment_id, run.start, run.time_ms, run.event_count, run.event_number, run.writer_id, data)
        self._state.replay(run.number, append)


def _signed(event_number: int) -> int:
    return event_number - (1 << 64) if event_number >= 1 << 63 else event_number
