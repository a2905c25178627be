"""`LogRewriter`: bounds the length of a container's log when segments cannot be flushed.

Unflushed data that pins the log is logged again after a durable checkpoint, so that the log can be truncated there. See
docs/log-length.md for the failure cases.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.model.checksum import crc32c_at_once
from penstock.model.errors import CorruptionError, InconsistentStateError
from penstock.segmentstore.container.log.checkpoints import Checkpoints, Spawn
from penstock.segmentstore.container.log.operations import CarriedBytes, CarriedMerge, NonAppendOperation, Truncate
from penstock.segmentstore.container.log.pipeline import OperationPipeline, completer
from penstock.segmentstore.container.pending import (
    PendingAppend,
    PendingMerge,
    PendingStorage,
    PendingTruncate,
)
from penstock.segmentstore.container.reads.read_index import UnflushedBytes
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container_settings import ContainerSettings

logger: logging.Logger = logging.getLogger(__name__)

#: Interval between two searches for small amounts of data that pin the log.
_TIDY_S = 1.0
#: Segments inspected before yielding to the event loop.
_SLICE_SEGMENTS = 1024
#: Overhead of a record that carries data, besides the bytes.
_RECORD_BYTES = 64
#: On a full disk, copies are at most this share of the bytes truncated.
_ROOM_PERCENT = 12
#: The same for a log that is long to open: the copies are not longer than what is truncated.
_OPEN_PERCENT = 100
#: Maximum number of records in one batch.
_BATCH_RECORDS_MAX = 256
#: Segments named in one warning.
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class _Little:
    """Limits of a copy: at most `percent` of the truncated bytes and `bytes_max`; frees at least `cut_bytes_min`."""

    percent: int
    bytes_max: int
    cut_bytes_min: int


class LogRewriter:
    """Monitors the length of one container's log and carries forward the data that pins it. Runs one job at a time.

    Attributes:
        carried_bytes: bytes logged again so far.
        carried_count: records logged again so far, including those without bytes.
    """

    def __init__(
        self,
        state: ContainerState,
        pipeline: OperationPipeline,
        checkpoints: Checkpoints,
        *,
        settings: ContainerSettings,
        spawn: Spawn,
    ) -> None:
        self.carried_bytes: int = 0
        self.carried_count: int = 0
        self._state = state
        self._pipeline = pipeline
        self._checkpoints = checkpoints
        self._settings = settings
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._is_carrying = False
        self._is_searching = False
        self._is_checking = False
        #: Segments found overdue by the last inspection of a long log.
        self._late_count = 0
        self._warned_at_s = float("-inf")
        self._tidied_at_s = float("-inf")

    @property
    def is_long(self) -> bool:
        """Whether the log is longer than the alarm threshold."""
        settings = self._settings
        return self._checkpoints.log_bytes > settings.log_bytes_max * settings.log_alarm_percent // 100

    @property
    def is_alarmed(self) -> bool:
        """Whether the log is long because of segments that storage does not accept; an operator should inspect them.

        A log that is long only because of a high write rate does not raise the alarm: its segments are flushed in turn.
        """
        return self._late_count > 0 and self.is_long

    def check(self) -> None:
        """Warn if the log is long; shorten it if it is too long or if that is cheap. Cheap when neither applies."""
        now_s = self._loop.time()
        if now_s >= self._tidied_at_s + _TIDY_S:
            self._tidied_at_s = now_s
            self._tidy()
        if not self.is_long:
            self._late_count = 0
            return
        if not self._is_checking:
            self._is_checking = True
            self._spawn(self._check_long_log())

    def _tidy(self) -> None:
        """Copy little data that pins many bytes of the log, or many places that the next open would read."""
        checkpoints, settings = self._checkpoints, self._settings
        if checkpoints.log_bytes > settings.checkpoint_log_bytes:
            self._begin_search(_Little(settings.carry_little_percent, 1 << 62, settings.checkpoint_log_bytes))
        elif checkpoints.is_long_to_open:
            # Its bytes do not matter: each place costs a request, and most of what is in them is of other containers.
            checkpoints.write_to_shorten_open()
            self._begin_search(_Little(_OPEN_PERCENT, settings.checkpoint_log_bytes_idle, 1))

    async def _check_long_log(self) -> None:
        try:
            mark = self._checkpoints.newest
            pinned = await self._pinned(mark.sequence_number) if mark is not None else []
            late = await self._late(pinned)
            self._late_count = len(late)
            now_s = self._loop.time()
            if late and self.is_long and now_s - self._warned_at_s >= self._settings.log_alarm_interval_s:
                self._warned_at_s = now_s
                self._warn(late)
        finally:
            self._is_checking = False
        log_bytes = self._checkpoints.log_bytes
        if self._is_carrying or log_bytes <= self._settings.log_bytes_max:
            return
        cut_bytes = 0 if mark is None else self._checkpoints.cut_bytes(mark)
        if mark is None or cut_bytes < log_bytes * 3 // 4:
            # Truncated at this mark the log would still be long; write a more useful checkpoint first.
            self._checkpoints.write_now()
            return
        # The bytes truncated are at least twice the bytes copied. The log therefore shrinks by at least the cost of the
        # copies, and other data must be written before it reaches this length again.
        if pinned and 2 * sum(map(_appended_bytes, pinned)) <= cut_bytes:
            self._is_carrying = True
            await self._carry_all(pinned, mark.sequence_number)

    def make_room(self, free_bytes: int) -> None:
        """Shorten the log, whatever its length, by copying small amounts of data that pin much of it.

        For a disk that is nearly full.

        `free_bytes`: free space on that disk. Copies use a small part of it, or of the log's reserve, and free at least
        eight times as much.
        """
        bytes_max = self._settings.carry_record_bytes_max
        self._begin_search(_Little(_ROOM_PERCENT, max(free_bytes // 8, bytes_max), bytes_max))

    def _begin_search(self, little: _Little) -> None:
        if not self._is_searching and self._checkpoints.marks:
            self._is_searching = True
            self._spawn(self._carry_little(little))

    async def _carry_little(self, little: _Little) -> None:
        """Log again data that pins a large part of the log, if it is very small: flushing it would cost far more.

        Most of it is offset indexes, and segments that receive a few bytes now and then.
        """
        try:
            before = await self._number_to_carry_to(little)
        finally:
            self._is_searching = False
        pinned = await self._pinned(before) if before else []
        if pinned and not self._is_carrying:
            self._is_carrying = True
            await self._carry_all(pinned, before)

    async def _number_to_carry_to(self, little: _Little) -> int:
        """Return the number of the newest checkpoint before which only little data pins the log; 0 if there is none."""
        checkpoints = self._checkpoints
        marks = list(checkpoints.marks)
        if not marks:
            return 0  # The log was truncated at the last mark meanwhile.
        numbers = [mark.sequence_number for mark in marks]
        # Bytes that prevent truncation at each mark but not at any earlier one.
        kept_bytes = [0] * (len(marks) + 1)
        for number, segment in enumerate(list(self._state.unflushed.values())):
            if number % _SLICE_SEGMENTS == _SLICE_SEGMENTS - 1:
                await asyncio.sleep(0)
            segment.pending.flushed(segment.storage_length)
            for piece in segment.pending.before(numbers[-1]):
                length = piece.end - piece.start if isinstance(piece, PendingAppend) else 0
                kept_bytes[bisect_right(numbers, piece.sequence_number)] += length + _RECORD_BYTES
        best = byte_count = 0
        for mark, kept in zip(marks, kept_bytes, strict=False):
            byte_count += kept
            cut_bytes = checkpoints.cut_bytes(mark)
            is_little = byte_count <= little.bytes_max and byte_count * 100 <= cut_bytes * little.percent
            if byte_count and is_little and cut_bytes >= little.cut_bytes_min:
                best = mark.sequence_number
        return best

    async def _pinned(self, before: int) -> list[Segment]:
        """Return the segments that prevent truncation at a durable checkpoint. Yields to the event loop meanwhile."""
        found: list[Segment] = []
        for number, segment in enumerate(list(self._state.unflushed.values())):
            if number % _SLICE_SEGMENTS == _SLICE_SEGMENTS - 1:
                await asyncio.sleep(0)
            if segment.pending.first_unflushed(segment.storage_length) < before:
                found.append(segment)
        return found

    async def _late(self, pinned: Sequence[Segment]) -> list[Segment]:
        """Return the segments that storage does not accept: their flush fails, hangs or is long overdue."""
        settings = self._settings
        late: list[Segment] = []
        for number, segment in enumerate(pinned):
            if number % _SLICE_SEGMENTS == _SLICE_SEGMENTS - 1:
                await asyncio.sleep(0)
            since_s = segment.pending.waits_since_s()
            due_age_s = settings.flush_age_index_s if segment.is_offset_index else settings.flush_age_s
            if segment.is_stuck or self._loop.time() - since_s > due_age_s + settings.log_alarm_age_s:
                late.append(segment)
        return late

    def _warn(self, late: list[Segment]) -> None:
        names = ", ".join(segment.name for segment in late[:_NAMED_MAX])
        logger.warning(
            "container %d: its log has %d bytes, of at most %d; long-term storage accepts nothing of %d segments that "
            "prevent its truncation: %s%s",
            self._state.metadata.container_id,
            self._checkpoints.log_bytes,
            self._settings.log_bytes_max,
            len(late),
            names,
            ", ..." if len(late) > _NAMED_MAX else "",
        )

    async def rewrite_before(self, before: int) -> bool:
        """Log again all data that prevents truncation at a durable checkpoint; False if there is none.

        False is final: data that becomes pending later lies after the checkpoint. If True, call again later.
        """
        pinned = await self._pinned(before)
        if pinned and not self._is_carrying:
            self._is_carrying = True
            await self._carry_all(pinned, before)
        return bool(pinned)

    async def _carry_all(self, segments: list[Segment], before: int) -> None:
        """Log again the segments' data with sequence numbers below `before`, then request truncation there."""
        for segment in segments:
            # Separate data that arrives from now on: under continuous load this would not terminate otherwise.
            segment.pending.begin_flush()
        try:
            # One piece may need several records; each pass continues with the remainder.
            while await self._carry_once(segments, before):
                pass
            self._checkpoints.truncate_log()
        finally:
            self._is_carrying = False

    async def _carry_once(self, segments: list[Segment], before: int) -> bool:
        """Make one pass over the segments and log their data again; False if there is none."""
        at, count = 0, self.carried_count
        while at < len(segments):
            at = await self._carry_some(segments, at, before)
        return self.carried_count > count

    async def _carry_some(self, segments: list[Segment], at: int, before: int) -> int:
        """Log one batch from the segments from `at` on, as many as fit; return the index of the next segment."""
        batch: list[tuple[Segment, Callable[[], None]]] = []
        byte_count = 0
        end = min(at + _SLICE_SEGMENTS, len(segments))
        with self._pipeline.critical_section():
            while at < end and byte_count < self._settings.carry_record_bytes_max and len(batch) < _BATCH_RECORDS_MAX:
                segment = segments[at]
                for piece in _pieces(segment, before):
                    settles: list[Callable[[], None]] = []
                    byte_count += self._carry_piece(segment, piece, settles)
                    batch += ((segment, settle) for settle in settles)
                    if byte_count >= self._settings.carry_record_bytes_max or len(batch) >= _BATCH_RECORDS_MAX:
                        break
                else:
                    at += 1
        if not batch:
            await asyncio.sleep(0)
            return at
        durable: asyncio.Future[None] = self._loop.create_future()
        self._pipeline.when_durable(completer(durable))
        await durable
        for segment, settle in batch:
            if not (segment.is_deleted or segment.is_inactive):
                settle()
        self.carried_count += len(batch)
        self.carried_bytes += byte_count
        return at

    def _carry_piece(self, segment: Segment, piece: PendingStorage[Segment], batch: list[Callable[[], None]]) -> int:
        """Log a piece, or its first part, again; add the action to run once that is durable to `batch`."""
        match piece:
            case PendingAppend():
                start = max(piece.start, segment.storage_length)
                length = min(piece.end - start, self._settings.carry_record_bytes_max)
                if length <= 0:
                    segment.pending.remove(piece)  # Queued after pending data, but storage already has it.
                    return 0
                found = segment.index.arrived(start, length)
                if found is None:
                    raise CorruptionError(segment.name, start, "bytes left memory before long-term storage had them")
                end = start + found.length
                number = self._log(CarriedBytes(segment.id, start, _as_arrived(segment, start, found)))
                batch.append(lambda: self._settle(segment, number, start, end))
                return found.length
            case PendingTruncate():
                number = self._log(Truncate(segment.id, piece.offset, segment.last_modified_ms))
                batch.append(lambda: _renumber(segment, piece, number))
            case PendingMerge():
                number = self._log(CarriedMerge(segment.id, piece.source.id, piece.start))
                batch.append(lambda: _renumber(segment, piece, number))
        return 0

    def _log(self, operation: NonAppendOperation) -> int:
        before = self._pipeline.logged_bytes
        number = self._pipeline.add_operation(operation, lambda _: None)
        self._checkpoints.disregard(self._pipeline.logged_bytes - before)
        return number

    def _settle(self, segment: Segment, number: int, start: int, end: int) -> None:
        start = max(start, segment.storage_length)
        if start < end and segment.pending:
            segment.pending.rewrite(number, start, end, self._loop.time(), self._settings.flush_bytes)


def _as_arrived(segment: Segment, start: int, found: UnflushedBytes) -> bytes:
    """Return the bytes as one buffer. Raises `InconsistentStateError` if a checksum differs from the one on arrival."""
    data = b"".join(found.data)
    for whole, arrived in found.checksummed_blocks:
        checksum = crc32c_at_once(whole, 0)
        if checksum != arrived:
            raise InconsistentStateError(
                segment.name,
                start,
                f"bytes to be rewritten have checksum {checksum:08x}, they arrived with {arrived:08x}: "
                "the memory of this process is not sound",
            )
    return data


def _pieces(segment: Segment, before: int) -> list[PendingStorage[Segment]]:
    return [] if segment.is_deleted or segment.is_inactive else list(segment.pending.before(before))


def _renumber(segment: Segment, piece: PendingTruncate | PendingMerge[Segment], number: int) -> None:
    piece.sequence_number = number
    segment.pending.is_carried = True


def _appended_bytes(segment: Segment) -> int:
    return segment.pending.byte_count
