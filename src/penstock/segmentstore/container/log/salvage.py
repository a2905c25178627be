"""`LogSalvage`: builds the records of a new log from the intact frames of a damaged container log. A pure core.

Input: frames and lost ranges, in the order of the log. Output: records of the new log, renumbered from 1. The new log
begins with the first complete checkpoint. Everything up to the first lost operation is kept. After it an operation is
kept only if the remaining records show that nothing before it is missing, see `SalvagedSegments`. Alternatively, the
new log begins with a checkpoint after all losses: then only segments with lost bytes lose anything. All rules:
docs/recovery.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from penstock.model.segments import Buffer
from penstock.segmentstore.container.log.frames import RecordReader, check_frame_version
from penstock.segmentstore.container.log.operations import (
    Append,
    CarriedBytes,
    Checkpoint,
    NonAppendOperation,
    Operation,
    UpdatePinned,
    decode_operation,
    encode_append_header,
    encode_operation,
)
from penstock.segmentstore.container.log.recovery import record_number
from penstock.segmentstore.container.log.salvage_report import SalvageReport
from penstock.segmentstore.container.log.salvage_state import SalvagedSegments
from penstock.segmentstore.container.metadata import ContainerSnapshot, decode_snapshot, encode_snapshot
from penstock.segmentstore.container.segment import SegmentFlags
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.tier1.damaged_log import LostRange

#: Maximum number of bytes in one record of carried bytes.
_CARRIED_BYTES_MAX = 1024 * 1024


class LogSalvage:
    """One salvage. Call `take` and `lose` in the order of the log, then `finish`.

    `mark_key`: key of the pinned record with the container's mark. Without the mark, no sweep of the new log's owner
    mistakes chunks whose records were lost for orphans. `start_at`: minimum number of the checkpoint that the new log
    begins with; the bytes of all intact appends before it are kept in memory until then. `keeps_system`: see
    `SalvagedSegments`. `found`: bytes of system segments before the base that storage has without a record, by segment:
    offset and bytes. They are restated after the base.

    Attributes:
        whole_checkpoints: numbers of the whole checkpoints after the last loss, ascending.
    """

    def __init__(
        self,
        container_id: int,
        *,
        mark_key: bytes,
        base: str = "log",
        start_at: int = 0,
        keeps_system: bool = False,
        found: Mapping[int, Sequence[tuple[int, bytes]]] | None = None,
    ) -> None:
        self.report: SalvageReport = SalvageReport(container_id)
        #: Number of the last record read before any loss; 0 if none was.
        self.whole_until: int = 0
        self.whole_checkpoints: list[int] = []
        self._start_at = start_at
        self._container_id = container_id
        self._mark_key = mark_key
        self._base = base
        self._segments = SalvagedSegments(self.report, keeps_system=keeps_system)
        self._reader = RecordReader()
        self._number = 0
        self._last = 0
        #: Whether frames were lost since the last record.
        self._is_gap = False
        #: Whether an operation was lost, before the base or after it.
        self._has_lost = False
        #: Parts of the checkpoint being read, either as the base or as evidence.
        self._parts: list[ContainerSnapshot] = []
        self._part_number = -1
        #: Whether an operation was lost after its first part.
        self._has_lost_since_part = False
        #: The last checkpoint whose first part is in the new log: its number in the old log, and in the new one.
        self._new_part_number = (-1, -1)
        self._has_base = False
        #: Records between the parts of the base.
        self._later: list[Buffer] = []
        #: Known bytes of segments before the base, by segment: offset and bytes.
        self._bytes: dict[int, list[tuple[int, bytes]]] = {}
        self._found = found or {}

    # Input.

    def lose(self, lost: LostRange) -> None:
        """Record that part of the log is damaged."""
        self.report.note_lost(lost)
        self._is_gap = True
        # A record that began before the range is incomplete; the rest of one that ends after it is ignored.
        self._reader = RecordReader()

    def take(self, frame: bytes) -> Iterator[Buffer]:
        """Process an intact frame; yield the records of the new log that result from it.

        Raises `LaterFormatError` for formats that only a later version can read.
        """
        view = memoryview(frame)
        position = 1
        try:
            check_frame_version(frame)
            while position < len(frame):
                record, position = self._reader.feed_entry(view, position)
                if record is not None:
                    yield from self._take_record(record)
        except LaterFormatError:
            raise
        except ValueError as error:
            self.lose(LostRange(f"record {self._last + 1}", 0, 0, f"a frame cannot be read: {error}"))

    def finish(self) -> Iterator[Buffer]:
        """Finish the new log; yield its last records. `report` is then complete."""
        if self._is_gap:
            self._note_lost_records(None)
        report = self.report
        report.base = self._base if self._has_base else ""
        if self._has_base and not report.loses_nothing:
            yield self._encode(UpdatePinned({self._mark_key: None}))

    @property
    def forgotten_names(self) -> set[str]:
        """See `SalvagedSegments`."""
        return self._segments.forgotten_names

    def add(self, operation: NonAppendOperation) -> bytes:
        """Return the record of one more operation, which ends the new log."""
        return self._encode(operation)

    # Records.

    def _take_record(self, record: Buffer) -> Iterator[Buffer]:
        number = record_number(record)
        if number <= self._last:
            return  # A log may write a frame twice.
        if self._is_gap:
            self._note_lost_records(number - self._last - 1 if self._last else None)
        self._last = number
        if not self._has_lost:
            self.whole_until = number
        try:
            yield from self._take_operation(record)
        except LaterFormatError:
            raise
        except (KeyError, ValueError) as error:
            # It depends on a record that is missing, although no frame is missing.
            self.lose(LostRange(f"record {number}", 0, 0, f"it does not follow what is before it: {error!r}"))
            self._note_lost_records(None)
            yield from self._take_after_loss(record)

    def _take_after_loss(self, record: Buffer) -> Iterator[Buffer]:
        try:
            if self._has_base:
                yield from self._take_operation(record)
        except (KeyError, ValueError):
            self.report.dropped["unreadable record"] += 1

    def _note_lost_records(self, count: int | None) -> None:
        self._is_gap = False
        if count == 0:
            return
        self._has_lost = True
        self._has_lost_since_part = True
        self.report.note_operations(count)
        self.report.is_truth_known = False
        self.whole_checkpoints.clear()
        self._segments.is_behind = self._has_base
        for loss in self.report.segments.values():
            loss.is_exact = False
        if self._has_base:
            # A checkpoint that began before the loss does not show operations lost after its beginning.
            self._part_number = -1

    def _take_operation(self, record: Buffer) -> Iterator[Buffer]:
        _, operation = decode_operation(record)
        if not self._has_base:
            yield from self._take_before_base(record, operation)
        elif not self._has_lost:
            if isinstance(operation, Checkpoint):
                yield from self._renumbered_part(operation)
                return
            if self._segments.concerns_cut(operation):
                yield from map(self._encode, self._segments.apply_after_loss(operation))
                return
            self._segments.apply(operation)
            yield self._renumbered(record)
        else:
            if isinstance(operation, Checkpoint):
                self._learn(operation)
            for kept in self._segments.apply_after_loss(operation):
                yield self._renumbered(record) if kept is operation else self._encode(kept)

    def _renumbered_part(self, operation: Checkpoint) -> Iterator[Buffer]:
        """Yield a part of a checkpoint after the base, if its first part is also in the new log.

        Skips parts that show segments longer than they are now: the new log could be truncated there.
        """
        decode_snapshot(operation.snapshot, self._container_id)
        if self._segments.has_cut:
            return
        if operation.part == 0:
            self._new_part_number = operation.number, self._number + 1
        old, new = self._new_part_number
        if operation.number == old:
            yield self._encode(Checkpoint(new, operation.part, operation.is_last, operation.snapshot))

    def _renumbered(self, record: Buffer) -> Buffer:
        self._number += 1
        self.report.kept_operation_count += 1
        return bytes(record[:1]) + self._number.to_bytes(8, "big") + bytes(record[9:])

    def _encode(self, operation: Operation) -> bytes:
        self._number += 1
        self.report.kept_operation_count += 1
        if isinstance(operation, Append):
            header = encode_append_header(
                self._number,
                operation.segment_id,
                operation.offset,
                operation.time_ms,
                operation.event_count,
                operation.event_number,
                operation.writer_id,
            )
            return header + bytes(operation.data)
        return encode_operation(self._number, operation)

    def _gather(self, operation: Checkpoint) -> bool:
        """Add a part of a checkpoint; return whether all its parts are present."""
        if operation.part == 0:
            self._parts, self._later = [], []
            self._part_number = operation.number
            self._has_lost_since_part = False
        elif operation.number != self._part_number or operation.part != len(self._parts):
            self._parts, self._later = [], []
            self._part_number = -1
            return False
        self._parts.append(decode_snapshot(operation.snapshot, self._container_id))
        return operation.is_last

    def _learn(self, operation: Checkpoint) -> None:
        """Learn the lengths of segments from a checkpoint after a loss."""
        is_whole = self._gather(operation)
        snapshot = decode_snapshot(operation.snapshot, self._container_id)
        self._segments.note_truths(snapshot, is_exact=bool(self._parts))
        if is_whole:
            self.report.is_truth_known = True
            self.whole_checkpoints.append(operation.number)

    # The base.

    def _take_before_base(self, record: Buffer, operation: Operation) -> Iterator[Buffer]:
        match operation:
            case Checkpoint() if operation.number < self._start_at:
                pass
            case Checkpoint():
                if self._gather(operation):
                    yield from self._begin()
            case Append():
                self._bytes.setdefault(operation.segment_id, []).append((operation.offset, bytes(operation.data)))
            case CarriedBytes():
                self._bytes.setdefault(operation.segment_id, []).append((operation.offset, operation.data))
        if not self._has_base and self._parts and not isinstance(operation, Checkpoint):
            self._later.append(bytes(record))

    def _begin(self) -> Iterator[Buffer]:
        """Begin the new log with the now complete checkpoint, if it covers everything it needs."""
        parts, later = self._parts, self._later
        self._parts, self._later = [], []
        carried: list[CarriedBytes] = []
        if self._has_lost or self._start_at:
            completed = self._completed(parts)
            if completed is None:
                return
            parts, carried = completed
        self._has_base = self.report.is_truth_known = True
        self._bytes.clear()
        cut_ids = set(self.report.segments)
        self._has_lost = self._has_lost and self._has_lost_since_part
        self._segments.is_behind = self._has_lost
        if not (cut_ids or self._has_lost):
            # The checkpoint includes the effect of all lost operations, and no bytes are missing.
            self.report.lost_operation_count = 0
        self._segments.restore(parts)
        for segment_id in cut_ids:
            self._segments.cut(segment_id)
        first = self._number + 1
        for index, part in enumerate(parts):
            yield self._encode(Checkpoint(first, index, index == len(parts) - 1, encode_snapshot(part)))
        for segment_id, pieces in self._found.items():
            for offset, data in pieces:
                for start in range(0, len(data), _CARRIED_BYTES_MAX):
                    piece = data[start : start + _CARRIED_BYTES_MAX]
                    carried.append(CarriedBytes(segment_id, offset + start, piece))
        for one in carried:
            yield self._encode(one)
        for record in later:
            yield from self._take_operation(record)

    def _completed(
        self, parts: Sequence[ContainerSnapshot]
    ) -> tuple[list[ContainerSnapshot], list[CarriedBytes]] | None:
        """Return a checkpoint after lost operations, and the bytes that neither it nor long-term storage has.

        A segment with missing bytes ends at the first missing one. None if the checkpoint is unusable: a system segment
        is incomplete, or merges before it are not in long-term storage.
        """
        stored_lengths = {each.segment_id: each.storage_length for part in parts for each in part.segments}
        lengths = {each.segment_id: each.length for part in parts for each in part.segments}
        for part in parts:
            for target, source, offset in part.merges:
                if stored_lengths.get(target, 0) < offset + lengths.get(source, 0):
                    return None
        losses: list[tuple[int, str, int, int]] = []
        carried: list[CarriedBytes] = []
        completed: list[ContainerSnapshot] = []
        for part in parts:
            segments = []
            for stored in part.segments:
                if not (stored.is_deleted or stored.is_merged):
                    first = max(stored.storage_length, stored.start_offset)
                    end, pieces = self._carried(stored.segment_id, first, stored.length)
                    if end < stored.length:
                        if stored.flags & SegmentFlags.SYSTEM:
                            return None
                        losses.append((stored.segment_id, stored.name, end, stored.length))
                        stored = msgspec.structs.replace(stored, length=end, storage_sealed=False)
                    carried += pieces
                segments.append(stored)
            completed.append(msgspec.structs.replace(part, segments=segments))
        for segment_id, name, start, end in losses:
            self.report.loss_of(segment_id, name, start).end = end
        return completed, carried

    def _carried(self, segment_id: int, start: int, end: int) -> tuple[int, list[CarriedBytes]]:
        """Return up to where the bytes of a segment from `start` to `end` are known, and those bytes."""
        pieces: list[CarriedBytes] = []
        for offset, data in sorted(self._bytes.get(segment_id, ()), key=_offset_of):
            stop = min(offset + len(data), end)
            if offset > start or stop <= start:
                continue
            while start < stop:
                piece = data[start - offset : min(stop - offset, start - offset + _CARRIED_BYTES_MAX)]
                pieces.append(CarriedBytes(segment_id, start, piece))
                start += len(piece)
        return start, pieces


def _offset_of(piece: tuple[int, bytes]) -> int:
    return piece[0]
