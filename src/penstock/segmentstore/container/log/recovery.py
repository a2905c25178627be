"""Recovery: rebuilds a container's state from its log.

Source: segment-store 2.7.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import lt
from typing import Protocol

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError
from penstock.model.segments import Buffer
from penstock.runtime.collector import let_live
from penstock.segmentstore.container.log.append_runs import TAKEN_COUNT_MAX, AppendRuns
from penstock.segmentstore.container.log.frames import ENTRY_HEADER, FIRST, RecordReader, check_frame_version
from penstock.segmentstore.container.log.operations import RECORD_HEADER, Checkpoint, decode_operation
from penstock.segmentstore.container.log.single_appends import record_of
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.tier1.durable_log import LogAddress, LogFrameRun

logger: logging.Logger = logging.getLogger(__name__)

#: A record may repeat, byte for byte, while it is among this many latest records: some logs write a frame twice when
#: the answer to the first write was lost. Any other step back is corruption.
REPEATED_RECORDS_MAX = 25
#: For longer records only length and checksum are kept for the comparison.
_KEPT_RECORD_LENGTH_MAX = 1024 * 1024
#: Records replayed one by one (not appends, or between the parts of a checkpoint) before yielding to the event loop.
_REPLAY_STEP = 256
#: Bytes of frames replayed before yielding to the event loop, and a frame's overhead in bytes.
_TURN_BYTES = 64 * 1024
_FRAME_COST_BYTES = 256
#: Overhead of a frame that is read by column together with others.
_LONE_FRAME_COST_BYTES = 32
_unpack_record_header = RECORD_HEADER.unpack_from


class ReplayedLog(Protocol):
    """The interface of a log that recovery needs: an opened `DurableLog`, or a `ReadOnlyLog`."""

    @property
    def is_truncated(self) -> bool:
        """See `DurableLog.is_truncated`."""

    def frame_runs(self) -> AsyncIterator[LogFrameRun]:
        """See `DurableLog.frame_runs`."""


@dataclass(frozen=True, slots=True)
class ReplayedCheckpoint:
    """A complete checkpoint that recovery passed; the log can still be truncated there.

    `sequence_number` is the number of its first part, `address` the address of the last frame before it, and
    `bytes_before` the number of bytes read up to there.
    """

    sequence_number: int
    address: LogAddress
    bytes_before: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """Result of a recovery: the last record's number, the last frame's address (None for an empty log), and counts.

    `checkpoints`: checkpoints after the one recovery started from, in order.
    """

    last_sequence_number: int
    last_address: LogAddress | None
    operation_count: int
    frame_count: int
    byte_count: int
    has_checkpoint: bool
    repeated_count: int = 0
    checkpoints: tuple[ReplayedCheckpoint, ...] = ()


class RepeatedRecords:
    """The latest records, to distinguish a harmless repetition from corruption. Costs nothing per record."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        #: Records, or frames with the positions of their entries; lookups are rare. Each item holds at least one
        #: record; only the last `REPEATED_RECORDS_MAX` records count.
        self._latest: deque[Buffer | _Fingerprint | tuple[memoryview, list[int]]] = deque(maxlen=REPEATED_RECORDS_MAX)

    def add(self, records: Sequence[Buffer]) -> None:
        """Remember the records of a frame. They must not be modified."""
        self._latest.extend(map(_kept, records[-REPEATED_RECORDS_MAX:]))

    def add_entries(self, frame: memoryview, starts: list[int]) -> None:
        """Remember the records of the entries at `starts` of a frame. Neither may be modified."""
        self._latest.append((frame, starts[-REPEATED_RECORDS_MAX:]))

    def _last(self) -> Iterator[Buffer | _Fingerprint]:
        """Yield the latest records, newest first."""
        for item in reversed(self._latest):
            if isinstance(item, tuple):
                frame, starts = item
                for start in reversed(starts):
                    yield _kept(_entry_at(frame, start))
            else:
                yield item

    def check(self, sequence_number: int, last: int, record: Buffer) -> None:
        """Raise `ValueError` unless `record` equals one of the latest records, byte for byte."""
        for kept in islice(self._last(), REPEATED_RECORDS_MAX):
            known = kept.sequence_number if isinstance(kept, _Fingerprint) else record_number(kept)
            if known == sequence_number:
                if kept == _kept(record):
                    return
                raise ValueError(f"sequence number {sequence_number} occurs twice, with different records")
        raise ValueError(f"sequence number {sequence_number} does not follow {last}")


@dataclass(frozen=True, slots=True)
class _Fingerprint:
    """Fingerprint of a long record."""

    sequence_number: int
    length: int
    checksum: int


def record_number(record: Buffer) -> int:
    """Return a record's sequence number. Raises `ValueError` if the record is too short."""
    try:
        number: int = _unpack_record_header(record)[1]
    except struct.error as error:
        raise ValueError(f"cannot decode an operation of {len(record)} bytes") from error
    return number


def _kept(record: Buffer) -> Buffer | _Fingerprint:
    if len(record) <= _KEPT_RECORD_LENGTH_MAX:
        return record
    return _Fingerprint(record_number(record), len(record), crc32c(record, 0))


class FirstCheckpoint:
    """Finds the checkpoint that recovery starts from, and keeps the records logged between its parts.

    A truncated log begins with part 0. Other logs may first contain parts of a checkpoint that its incarnation did not
    complete. Records before the parts of a complete checkpoint are covered by it.
    """

    __slots__ = ("_is_begun", "_number", "is_complete", "later", "parts")

    def __init__(self) -> None:
        self.is_complete: bool = False
        self.parts: list[bytes] = []
        #: Records after part 0, replayed once the last part is read.
        self.later: list[Buffer] = []
        self._is_begun = False
        self._number = 0

    def add(self, record: Buffer) -> bool:
        """Process the next record; return whether it completes the checkpoint. Raises `ValueError`."""
        if record[0] == Checkpoint.TYPE:
            number, operation = decode_operation(record)
            assert isinstance(operation, Checkpoint)
            if operation.part == 0:
                self._is_begun, self._number = True, number
                self.parts, self.later = [], []
            if self._is_begun and (operation.number != self._number or operation.part != len(self.parts)):
                raise ValueError(
                    f"part {operation.part} of checkpoint {operation.number} after part {len(self.parts) - 1} of "
                    f"checkpoint {self._number}"
                )
            if self._is_begun:
                self.parts.append(operation.snapshot)
                self.is_complete = operation.is_last
        elif self._is_begun:
            self.later.append(record)
        return self.is_complete


class LaterCheckpoints:
    """Finds the complete checkpoints after the one recovery starts from, at most `count_max`.

    Without them, a log that a crash left long could only be truncated at its end, after long-term storage has all of
    it; a nearly full disk may not have room for both.
    """

    __slots__ = ("_count_max", "_next_part", "_open", "found")

    def __init__(self, count_max: int) -> None:
        self.found: list[ReplayedCheckpoint] = []
        self._count_max = count_max
        #: The checkpoint whose last part is still missing, and the number of its next part.
        self._open: ReplayedCheckpoint | None = None
        self._next_part = 0

    def add(self, part: Checkpoint, before: LogAddress | None, bytes_before: int) -> None:
        """Process the next part. `before`: the frame before the checkpoint; None: it cannot be truncated here."""
        if part.part == 0:
            self._next_part = 0
            self._open = None if before is None else ReplayedCheckpoint(part.number, before, bytes_before)
        if self._open is None or (part.number, part.part) != (self._open.sequence_number, self._next_part):
            self._open = None
            return
        self._next_part += 1
        if part.is_last:
            self.found.append(self._open)
            self._open = None
            if len(self.found) > self._count_max:
                self.found = self.found[::2]


def _entry_at(frame: memoryview, position: int) -> memoryview:
    """Return the record of the entry at a position."""
    start = position + ENTRY_HEADER.size
    length: int = ENTRY_HEADER.unpack_from(frame, position)[1]
    return frame[start : start + length]


async def recover(
    log: ReplayedLog,
    state: ContainerState,
    progress: Callable[[], None] = lambda: None,
    *,
    checkpoints_max: int = 64,
) -> Recovered:
    """Replay every frame of an opened log into an empty `state`; call `progress` after every frame or few frames.

    At most `checkpoints_max` positions are remembered at which the log can still be truncated.

    Raises `CorruptionError` if the frames are not what was written, `LaterVersionError` if a later version wrote them.
    The container must not serve in either case.
    """
    replay = _Replay(state, progress, checkpoints_max)
    async for run in log.frame_runs():
        await replay.take_run(run)
    return replay.finish(is_truncated=log.is_truncated)


class _Replay:
    """The replay of one log into a state.

    Frames with one append each are read by column, several at a time. Other appends go through `AppendRuns` as well,
    and all other records are replayed one by one.
    """

    def __init__(self, state: ContainerState, progress: Callable[[], None], checkpoints_max: int) -> None:
        self._state = state
        self._progress = progress
        self._log_name = f"log of container {state.metadata.container_id}"
        self._reader = RecordReader()
        self._latest = RepeatedRecords()
        self._appends = AppendRuns(state)
        self._first = FirstCheckpoint()
        self._later = LaterCheckpoints(checkpoints_max)
        #: The number of the last record, and the address of the last frame.
        self._last = 0
        self._address: LogAddress | None = None
        self._operation_count = self._frame_count = self._byte_count = self._repeated_count = 0
        #: Records replayed one by one.
        self._single_count = 0
        #: Bytes of frames, with their overhead, since the last yield to the event loop.
        self._turn_bytes = 0
        #: The last frame before the current record, if that record begins its frame, and the bytes up to there.
        self._cut: LogAddress | None = None
        self._cut_bytes = 0

    async def take_run(self, run: LogFrameRun) -> None:
        """Replay frames that the log returned together. Raises as `recover`."""
        index = 0
        is_in_order = all(map(lt, run.addresses, run.addresses[1:]))
        while index < len(run.data):
            before, bytes_before = self._address, self._byte_count
            address = self._address = LogAddress(run.addresses[index])
            if before is not None and address <= before:
                raise CorruptionError(self._log_name, address, f"frame address does not follow {before}")
            try:
                count = self._take_single_appends(run, index) if self._first.is_complete and is_in_order else 0
                if not count:
                    count = 1
                    await self._take_frame(run.data[index], before, bytes_before)
                if self._turn_bytes >= _TURN_BYTES:
                    self._appends.flush()
                    let_live()
                self._progress()
            except LaterFormatError as error:
                raise error.at(f"{self._log_name}, frame {self._address},") from error
            except (KeyError, ValueError) as error:
                raise CorruptionError(self._log_name, self._address, f"record cannot be replayed: {error!r}") from error
            index += count
            if self._turn_bytes >= _TURN_BYTES:
                # Let other containers serve, and let the next frames be read.
                self._turn_bytes = 0
                await asyncio.sleep(0)

    def _take_single_appends(self, run: LogFrameRun, index: int) -> int:
        """Replay the frames from `index` on that have one append each; return how many there were."""
        count, self._last = self._appends.take_frames(run.data, index, self._last)
        if count:
            frames = run.data[index : index + count]
            self._address = LogAddress(run.addresses[index + count - 1])
            length = sum(map(len, frames))
            self._frame_count += count
            self._operation_count += count
            self._byte_count += length
            self._turn_bytes += length + _LONE_FRAME_COST_BYTES * count
            self._reader.pass_whole()
            self._latest.add([record_of(frame) for frame in frames[-REPEATED_RECORDS_MAX:]])
        return count

    async def _take_frame(self, data: bytes, before: LogAddress | None, bytes_before: int) -> None:
        """Replay a frame with any records. `before`: the address of the last frame, after `bytes_before` bytes."""
        self._frame_count += 1
        self._byte_count += len(data)
        check_frame_version(data)
        view = memoryview(data)
        position = 1
        records: list[Buffer] = []
        while position < len(view):
            if self._first.is_complete:
                starts: list[int] = []
                position, self._last = self._appends.take(view, position, self._last, starts)
                if starts:
                    self._operation_count += len(starts)
                    self._reader.pass_whole()
                    if records:
                        self._latest.add(records)
                        records = []
                    self._latest.add_entries(view, starts)
                    if len(starts) >= TAKEN_COUNT_MAX:
                        self._appends.flush()
                        await asyncio.sleep(0)
                    continue
            if view[position] & FIRST:
                self._cut, self._cut_bytes = before if position == 1 else None, bytes_before
            record, position = self._reader.feed_entry(view, position)
            if record is None:
                continue
            number = record_number(record)
            if number <= self._last:
                # Rare: earlier records of this frame also count among the latest.
                self._latest.add(records)
                records = []
                self._skip_repeated(number, record)
                continue
            self._last = number
            records.append(record)
            if self._first.is_complete:
                self._replay_record(record)
                if self._single_count % _REPLAY_STEP == 0:  # A frame may hold many of these, about 10 us each.
                    await asyncio.sleep(0)
            elif self._first.add(record):
                await self._begin_from_checkpoint()
        self._latest.add(records)
        self._turn_bytes += len(view) + _FRAME_COST_BYTES

    def _skip_repeated(self, number: int, record: Buffer) -> None:
        """Raise `ValueError` unless a record that does not follow the last one repeats one of the latest."""
        self._latest.check(number, self._last, record)
        self._repeated_count += 1
        logger.warning(
            "%s: record %d is repeated at %d, byte for byte; the repetition is skipped",
            self._log_name,
            number,
            self._address,
        )

    def _replay_record(self, record: Buffer) -> None:
        """Apply a record after the first checkpoint."""
        self._appends.flush()
        number, operation = decode_operation(record)
        self._state.replay(number, operation)
        self._operation_count += 1
        self._single_count += 1
        if isinstance(operation, Checkpoint):
            self._later.add(operation, self._cut, self._cut_bytes)

    async def _begin_from_checkpoint(self) -> None:
        """Apply the first checkpoint, and the records that were logged between its parts."""
        first = self._first
        for _ in self._state.restore(*first.parts):
            let_live()
            await asyncio.sleep(0)
        for step, between in enumerate(first.later):
            self._state.replay(*decode_operation(between))
            if step % _REPLAY_STEP == _REPLAY_STEP - 1:
                await asyncio.sleep(0)
        self._operation_count += len(first.later)
        first.later.clear()

    def finish(self, *, is_truncated: bool) -> Recovered:
        """Apply what is left at the end of the log. Raises `CorruptionError` if its first checkpoint is missing."""
        self._appends.flush()
        let_live()
        if is_truncated and not self._first.is_complete:
            # A log is truncated right before a durable checkpoint. Without that checkpoint the container would start
            # empty.
            raise CorruptionError(
                self._log_name,
                self._address or 0,
                "the log was truncated, but the checkpoint at its new start is missing",
            )
        return Recovered(
            self._last,
            self._address,
            self._operation_count,
            self._frame_count,
            self._byte_count,
            self._first.is_complete,
            self._repeated_count,
            checkpoints=tuple(self._later.found),
        )
