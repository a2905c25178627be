"""`SalvagedSegments`: the segments of a log being salvaged, with the state that decides which operations apply.

Names, lengths and flags, without bytes. `apply` rejects what `ContainerState.replay` would reject, so that the new log
can be replayed. `apply_after_loss` is for operations after lost ones; its rules are in docs/recovery.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from penstock.model.names import TRANSACTION_DELIMITER, TRANSIENT_DELIMITER
from penstock.segmentstore.container.log.operations import (
    Activate,
    Append,
    CarriedBytes,
    CarriedMerge,
    Checkpoint,
    Create,
    Deactivate,
    Delete,
    Forget,
    Merge,
    Operation,
    Seal,
    SpillAttributes,
    Truncate,
    TruncateMany,
    UpdateAttributes,
    UpdatePinned,
    UpdatePolicy,
)
from penstock.segmentstore.container.log.salvage_report import SalvageReport, SegmentLoss
from penstock.segmentstore.container.metadata import ContainerSnapshot, SegmentSnapshot, decode_record
from penstock.segmentstore.container.segment import SegmentFlags

#: Records of the container about its own storage: only valid together.
_BOOKKEEPING = (
    UpdatePinned,
    Forget,
    Deactivate,
    Activate,
    SpillAttributes,
    CarriedBytes,
    CarriedMerge,
    Checkpoint,
)


@dataclass(slots=True)
class SalvagedSegment:
    """A segment as of the last kept operation. `is_cut`: its later operations were lost."""

    id: int
    name: str
    flags: SegmentFlags
    start: int
    length: int
    event_count: int
    is_sealed: bool
    is_deleted: bool
    is_merged: bool
    is_cut: bool = False

    @property
    def is_system(self) -> bool:
        """Whether it is a system segment."""
        return bool(self.flags & SegmentFlags.SYSTEM)

    @property
    def is_gone(self) -> bool:
        """Whether it was deleted or merged."""
        return self.is_deleted or self.is_merged


class SalvagedSegments:
    """All segments of one container; losses are added to `report`.

    `keeps_system`: after a loss, operations on system segments are kept by the same rules as those on other segments,
    and so are the records of how they are stored. Otherwise none is.
    """

    def __init__(self, report: SalvageReport, *, keeps_system: bool) -> None:
        self._report = report
        self._keeps_system = keeps_system
        self._by_id: dict[int, SalvagedSegment] = {}
        self._by_name: dict[str, SalvagedSegment] = {}
        self._merges: dict[int, tuple[int, int]] = {}
        #: The highest segment id before any loss; and segments that were activated after one.
        self._id_max = 0
        self._activated: dict[int, SegmentSnapshot] = {}
        #: Whether a system segment has lost something.
        self._is_system_cut = False
        #: Names of segments that were forgotten after a loss: storage should have nothing under these names.
        self.forgotten_names: set[str] = set()
        #: Whether a segment was cut short.
        self.has_cut: bool = False
        #: Whether records of the container about its own storage were lost: long-term storage is newer than the
        #: remaining ones.
        self.is_behind: bool = False

    def restore(self, snapshots: Iterable[ContainerSnapshot]) -> None:
        """Begin with the segments of a complete checkpoint."""
        self._by_id.clear()
        self._by_name.clear()
        self._merges.clear()
        for snapshot in snapshots:
            self._id_max = max(self._id_max, snapshot.next_segment_id - 1)
            self._merges.update({source: (target, offset) for target, source, offset in snapshot.merges})
            for stored in snapshot.segments:
                self._add(stored)

    def cut(self, segment_id: int) -> None:
        """Mark a segment as cut: its later operations were lost, and it accepts no more."""
        self._by_id[segment_id].is_cut = self.has_cut = True

    def concerns_cut(self, operation: Operation) -> bool:
        """Return whether an operation is on a segment that was cut."""
        if not self.has_cut or isinstance(operation, (Create, Activate, Deactivate, Forget, UpdatePinned, Checkpoint)):
            return False
        if isinstance(operation, TruncateMany):
            ids = operation.segment_ids
        elif isinstance(operation, (Merge, CarriedMerge)):
            ids = [operation.target_id, operation.source_id]
        else:
            ids = [operation.segment_id]
        found = [self._by_id.get(segment_id) for segment_id in ids]
        return any(segment is not None and segment.is_cut for segment in found)

    def _add(self, stored: SegmentSnapshot) -> None:
        segment = SalvagedSegment(
            stored.segment_id,
            stored.name,
            SegmentFlags(stored.flags),
            stored.start_offset,
            stored.length,
            stored.event_count,
            stored.is_sealed,
            stored.is_deleted,
            stored.is_merged,
        )
        self._by_id[segment.id] = segment
        if not segment.is_gone:
            self._by_name[segment.name] = segment

    def _unname(self, segment: SalvagedSegment) -> None:
        if self._by_name.get(segment.name) is segment:
            del self._by_name[segment.name]

    def _forget(self, segment_id: int) -> None:
        segment = self._by_id.pop(segment_id)
        self._merges.pop(segment_id, None)
        self._unname(segment)

    # Before any loss.

    def apply(self, operation: Operation) -> None:
        """Apply the next operation. Raises `KeyError`, `ValueError` if it does not apply."""
        by_id = self._by_id
        match operation:
            case Append():
                segment = by_id[operation.segment_id]
                _check(operation.offset == segment.length and not segment.is_sealed, "append", segment)
                segment.length += len(operation.data)
                segment.event_count += operation.event_count
            case Create():
                if operation.segment_id in by_id or operation.name in self._by_name:
                    raise ValueError(f"segment {operation.name} (id {operation.segment_id}) created twice")
                self._create(operation)
                self._id_max = max(self._id_max, operation.segment_id)
            case Seal():
                segment = by_id[operation.segment_id]
                _check(operation.length == segment.length, "seal", segment)
                segment.is_sealed = True
            case Truncate():
                self._truncate(by_id[operation.segment_id], operation.offset)
            case TruncateMany():
                for segment_id, offset in zip(operation.segment_ids, operation.offsets, strict=True):
                    self._truncate(by_id[segment_id], offset)
            case Delete():
                self._delete(by_id[operation.segment_id])
            case Merge():
                target, source = by_id[operation.target_id], by_id[operation.source_id]
                _check(operation.offset == target.length and operation.length == source.length, "merge", target)
                self._merge(target, source, operation)
            case UpdateAttributes() | UpdatePolicy() | SpillAttributes():
                by_id[operation.segment_id]
            case Forget():
                found = by_id.get(operation.segment_id)
                if found is not None and found.is_gone:
                    self._forget(found.id)
            case Deactivate():
                for segment_id in operation.segment_ids:
                    self._forget(segment_id)
                    # Long-term storage has all of it, according to its record.
                    self._report.segments.pop(segment_id, None)
            case Activate():
                self._add(decode_record(operation.record))
            case CarriedBytes():
                segment = by_id[operation.segment_id]
                _check(operation.offset + len(operation.data) <= segment.length, "carried bytes", segment)
            case CarriedMerge():
                target, source = by_id[operation.target_id], by_id[operation.source_id]
                known = self._merges.get(source.id)
                _check(target.is_deleted or known == (target.id, operation.offset), "carried merge", target)
            case UpdatePinned() | Checkpoint():
                pass

    def _create(self, operation: Create) -> None:
        segment = SalvagedSegment(
            operation.segment_id, operation.name, SegmentFlags(operation.flags), 0, 0, 0, False, False, False
        )
        self._by_id[segment.id] = self._by_name[segment.name] = segment

    @staticmethod
    def _truncate(segment: SalvagedSegment, offset: int) -> None:
        _check(offset <= segment.length, "truncation", segment)
        segment.start = max(segment.start, offset)

    def _delete(self, segment: SalvagedSegment) -> None:
        segment.is_deleted = True
        self._unname(segment)
        self._report.segments.pop(segment.id, None)
        for source_id in [source for source, (target, _) in self._merges.items() if target == segment.id]:
            del self._merges[source_id]
            self._delete(self._by_id[source_id])

    def _merge(self, target: SalvagedSegment, source: SalvagedSegment, operation: Merge) -> None:
        source.is_sealed = source.is_merged = True
        self._unname(source)
        self._merges[source.id] = (target.id, operation.offset)
        target.length += operation.length
        target.event_count += operation.event_count

    # After a loss.

    def apply_after_loss(self, operation: Operation) -> Sequence[Operation]:
        """Apply the operation, or the part of it, that certainly applies, and return it. Losses are recorded."""
        match operation:
            case Append():
                if self._follows(operation.segment_id, operation.offset):
                    self.apply(operation)
                    return [operation]
                end = operation.offset + len(operation.data)
                self._lose(operation.segment_id, operation.offset, end, operation.event_count)
            case Create():
                return self._create_after_loss(operation)
            case TruncateMany():
                pairs = zip(operation.segment_ids, operation.offsets, strict=True)
                kept = [pair for pair in pairs if self._may_truncate(*pair)]
                if len(kept) < len(operation.segment_ids):
                    self._report.dropped["Truncate"] += len(operation.segment_ids) - len(kept)
                if kept:
                    operation = msgspec.structs.replace(
                        operation, segment_ids=[pair[0] for pair in kept], offsets=[pair[1] for pair in kept]
                    )
                    self.apply(operation)
                    return [operation]
            case UpdatePinned() if self._keeps_system:
                return [operation]
            case Forget() if self._keeps_system and not self._is_system_cut:
                return self._forget_after_loss(operation)
            case Activate() if self._keeps_system and self._may_activate(decode_record(operation.record)):
                self.apply(operation)
                return [operation]
            case _ if isinstance(operation, _BOOKKEEPING):
                self._note_evidence(operation)
            case _:
                if self._is_certain(operation):
                    self.apply(operation)
                    return [operation]
                self._note_dropped(operation)
        return []

    def _create_after_loss(self, operation: Create) -> Sequence[Operation]:
        """Create a segment if its id and name are free. If a segment has the name, its deletion was lost.

        The name of a segment that is merged, of a transaction, is never given again.
        """
        is_system = bool(operation.flags & SegmentFlags.SYSTEM)
        holder = self._by_name.get(operation.name)
        earlier: list[Operation] = []
        if holder is not None and not (holder.is_system or _is_merged_later(operation.name)):
            earlier = [Delete(holder.id)]
        is_free = operation.segment_id not in self._by_id and (holder is None or bool(earlier))
        if is_free and (self._keeps_system or not is_system):
            for each in earlier:
                self.apply(each)
            self._create(operation)
            return [*earlier, operation]
        if not is_system:
            self._report.dropped["Create"] += 1
            loss = self._report.loss_of(operation.segment_id, operation.name, 0)
            loss.name, loss.is_whole = operation.name, True
        return []

    def _forget_after_loss(self, operation: Forget) -> Sequence[Operation]:
        """Forget a segment that long-term storage has nothing of, even if its deletion or merge was lost."""
        segment = self._by_id.get(operation.segment_id)
        if segment is None or segment.is_system:
            return []
        before: list[Operation] = [] if segment.is_gone else [Delete(segment.id)]
        self.forgotten_names.add(segment.name)
        for one in before:
            self.apply(one)
        self.apply(operation)
        return [*before, operation]

    def _may_activate(self, stored: SegmentSnapshot) -> bool:
        is_old = stored.segment_id <= self._id_max and stored.segment_id not in self._by_id
        return is_old and stored.name not in self._by_name

    def _whole(self, segment_id: int) -> SalvagedSegment | None:
        """Return a segment without losses whose operations are kept."""
        segment = self._by_id.get(segment_id)
        if segment is None or segment.is_cut or segment.is_gone or (segment.is_system and not self._keeps_system):
            return None
        return segment

    def _follows(self, segment_id: int, offset: int) -> bool:
        segment = self._whole(segment_id)
        return segment is not None and offset == segment.length and not segment.is_sealed

    def _may_truncate(self, segment_id: int, offset: int) -> bool:
        segment = self._whole(segment_id)
        # A table's index is as old as the container's storage records: it refers to entries truncated since.
        is_old_index = segment is not None and self.is_behind and bool(segment.flags & SegmentFlags.TABLE)
        return segment is not None and not is_old_index and offset <= segment.length

    def _is_certain(self, operation: Operation) -> bool:
        match operation:
            case Seal():
                segment = self._whole(operation.segment_id)
                return segment is not None and operation.length == segment.length
            case Truncate():
                return self._may_truncate(operation.segment_id, operation.offset)
            case UpdateAttributes() | UpdatePolicy():
                return self._whole(operation.segment_id) is not None
            case Delete():
                segment = self._by_id.get(operation.segment_id)
                return segment is not None and not segment.is_system and not segment.is_gone
            case Merge():
                target, source = self._whole(operation.target_id), self._whole(operation.source_id)
                return (
                    target is not None
                    and source is not None
                    and operation.offset == target.length
                    and operation.length == source.length
                )
        return False

    def _note_dropped(self, operation: Operation) -> None:
        segment_id = operation.target_id if isinstance(operation, Merge) else getattr(operation, "segment_id", 0)
        segment = self._by_id.get(segment_id)
        if segment is not None and segment.is_system:
            return
        if isinstance(operation, Delete):
            self._report.segments.pop(segment_id, None)  # The segment is deleted in the new log, too.
            return
        self._report.dropped[type(operation).__name__] += 1
        match operation:
            case Merge():
                end = operation.offset + operation.length
                self._lose(segment_id, operation.offset, end, operation.event_count)
            case Seal() if segment is None or operation.length > segment.length:
                self._lose(segment_id, operation.length, operation.length, 0)

    def _lose(self, segment_id: int, offset: int, end: int, event_count: int) -> None:
        """Record that ``[offset, end)`` of a segment does not follow its remaining bytes."""
        segment = self._by_id.get(segment_id)
        if segment is not None and (segment.is_system or segment.is_gone):
            segment.is_cut = True  # Its end is determined by its length in long-term storage.
            self._is_system_cut = self._is_system_cut or segment.is_system
            return
        if segment is not None:
            segment.is_cut = self.has_cut = True
            loss = self._report.loss_of(segment_id, segment.name, segment.length)
        elif (activated := self._activated.get(segment_id)) is not None:
            loss = self._report.loss_of(segment_id, activated.name, activated.length)
        else:
            loss = self._report.loss_of(segment_id, f"segment {segment_id}", 0)
            loss.is_whole = True
        loss.is_exact = loss.is_exact and offset == loss.end
        loss.end = max(loss.end, end)
        loss.event_count += event_count

    def _note_evidence(self, operation: Operation) -> None:
        """Learn from a record that is not kept which segments existed, and their lengths."""
        match operation:
            case Activate():
                stored = decode_record(operation.record)
                if stored.segment_id <= self._id_max and stored.segment_id not in self._by_id:
                    # It was deactivated before the loss, or its record was lost: long-term storage has all of its bytes
                    # so far.
                    self._activated[stored.segment_id] = stored
                else:
                    self._note_truth(stored, is_exact=False)
            case CarriedBytes():
                segment = self._by_id.get(operation.segment_id)
                end = operation.offset + len(operation.data)
                if segment is None or end > segment.length:
                    self._lose(operation.segment_id, end, end, 0)

    def note_truths(self, snapshot: ContainerSnapshot, *, is_exact: bool) -> None:
        """Learn from a part of a checkpoint that is not kept. `is_exact`: it began after the last loss."""
        for stored in snapshot.segments:
            self._note_truth(stored, is_exact=is_exact)

    def _note_truth(self, stored: SegmentSnapshot, *, is_exact: bool) -> None:
        if stored.flags & SegmentFlags.SYSTEM or stored.is_deleted or stored.is_merged:
            return
        segment = self._by_id.get(stored.segment_id)
        activated = self._activated.get(stored.segment_id)
        if segment is None and activated is not None:
            if stored.length == activated.length:
                return
            loss = self._report.loss_of(stored.segment_id, stored.name, activated.length)
            loss.event_count = stored.event_count - activated.event_count
        elif segment is None:
            loss = self._report.loss_of(stored.segment_id, stored.name, 0)
            loss.name, loss.is_whole, loss.event_count = stored.name, True, stored.event_count
        elif stored.length > segment.length and not segment.is_gone:
            segment.is_cut = self.has_cut = True
            loss = self._report.loss_of(segment.id, segment.name, segment.length)
            loss.event_count = stored.event_count - segment.event_count
        else:
            return
        loss.end = max(loss.end, stored.length)
        loss.is_exact = is_exact


def _is_merged_later(name: str) -> bool:
    return TRANSACTION_DELIMITER in name or TRANSIENT_DELIMITER in name


def _check(fits: bool, what: str, segment: SalvagedSegment) -> None:
    if not fits:
        raise ValueError(f"{what} does not match {segment.name}, whose length is {segment.length}")


__all__ = ["SalvagedSegment", "SalvagedSegments", "SegmentLoss"]
