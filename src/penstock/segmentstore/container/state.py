"""`ContainerState`: the effects of operations on a container's state, live and in recovery.

Every operation has two effects: `accept_*` once it is validated (later operations build on it) and `durable_*` once its
record is synced (readers see it). Recovery calls both in succession for each record of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import msgspec

from penstock.model.names import is_written_for_readers
from penstock.model.segments import NO_VALUE
from penstock.segmentstore.container.activity.activity import Activity
from penstock.segmentstore.container.append_request import AppendedBytes
from penstock.segmentstore.container.events import ContainerEvents
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
from penstock.segmentstore.container.metadata import ContainerMetadata, MetadataSnapshot
from penstock.segmentstore.container.pending import (
    Backlog,
    PendingMerge,
    PendingQueue,
)
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.reads.read_index import ReadIndex
from penstock.segmentstore.container.reads.tail_waits import TailWaits
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.tables.index import TableIndex
from penstock.segmentstore.container_settings import ContainerSettings

#: Merged segments whose names are remembered, for clients that retry because they lost the reply.
_LATELY_MERGED_MAX = 10_000
#: Restored segments processed before yielding to the event loop.
_RESTORE_STEP = 4096


class ContainerState:
    """A container's segments and the effects of operations on them.

    Attributes:
        unflushed: segments with durable data or changes that long-term storage does not have yet.
            backlog: the amount of that data.
        gone: deleted and merged segments that storage may still hold something of.
        attribute_work: segments with more attributes than may stay in memory, or with dirty ones.
        events: reports what other parts must do.
        waits: reads that wait for bytes beyond the ends of segments, in memory or not.
    """

    def __init__(
        self, container_id: int, cache: Cache, settings: ContainerSettings, events: ContainerEvents | None = None
    ) -> None:
        self.metadata: ContainerMetadata = ContainerMetadata(container_id, self._attach_indexes)
        self.cache = cache
        self.activity: Activity = Activity(settings.activity.index_entry_bytes)
        self.events: ContainerEvents = events or ContainerEvents()
        self._lately_merged: dict[str, int] = {}
        self.unflushed: dict[int, Segment] = {}
        self.backlog: Backlog = Backlog(cache)
        self.gone: dict[int, Segment] = {}
        self._gone_ids: dict[str, dict[int, None]] = {}
        self.attribute_work: dict[int, Segment] = {}
        self.waits: TailWaits = TailWaits()
        self._attributes_in_memory_max = settings.attributes_in_memory_max
        self._flush_piece_max = settings.flush_bytes
        #: The remaining part of a checkpoint being written: segments are copied to it before they change.
        self.cut: MetadataSnapshot | None = None
        self._loop = asyncio.get_running_loop()

    def _attach_indexes(self, segment: Segment) -> None:
        segment.index = ReadIndex(self.cache, segment, self.events)
        is_urgent = is_written_for_readers(segment.name) and not segment.is_system
        segment.pending = PendingQueue(self.backlog.urgent if is_urgent else self.backlog)

    def is_name_taken(self, segment: Segment) -> bool:
        """Whether storage may still hold an earlier segment of this name; it then holds nothing of this segment."""
        return self.holder_of_name(segment) is not None

    def holder_of_name(self, segment: Segment) -> Segment | None:
        """Return the earliest deleted or merged segment of this name that storage may still hold; None if none does."""
        ids = self._gone_ids.get(segment.name)
        if ids is None or (first := min(ids)) >= segment.id:
            return None
        return self.gone[first]

    def _note_gone(self, segment: Segment) -> None:
        self.gone[segment.id] = segment
        self._gone_ids.setdefault(segment.name, {})[segment.id] = None

    # Accepted effects.

    def accept_create(self, operation: Create) -> Segment:
        """Add the segment to the accepted state."""
        segment = Segment(
            operation.segment_id,
            operation.name,
            flags=SegmentFlags(operation.flags),
            key_length=operation.key_length,
            created_ms=operation.time_ms,
        )
        segment.scale_type = operation.scale_type
        segment.target_rate = operation.target_rate
        segment.rollover_bytes = operation.rollover_bytes
        self.metadata.add(segment)
        if segment.scale_type:
            self.activity.created(segment)
        self._lately_merged.pop(operation.name, None)
        return segment

    def accept_append(self, segment: Segment, append: AppendedBytes, time_ms: int) -> None:
        """Add bytes at the accepted end."""
        if self.cut is not None:
            self.cut.keep(segment)
        touched = self.activity.before(segment)
        data, event_number = append.data, append.event_number
        offset = segment.length
        segment.length = offset + len(data)
        segment.event_count += append.event_count
        segment.last_modified_ms = time_ms
        self.activity.behind(touched)
        if event_number != NO_VALUE:
            attributes = segment.attributes
            attributes[append.writer_id] = event_number
            if segment.has_attribute_index:
                segment.dirty_attributes[append.writer_id] = None
                self.attribute_work[segment.id] = segment
            elif len(attributes) > self._attributes_in_memory_max:
                self.attribute_work[segment.id] = segment
        segment.index.append(offset, data)

    def accept_seal(self, segment: Segment, time_ms: int) -> None:
        """Accept no more appends to the segment."""
        if self.cut is not None:
            self.cut.keep(segment)
        segment.is_sealed = True
        segment.last_modified_ms = time_ms
        self.activity.ended(segment)

    def accept_truncations(self, offsets: Iterable[tuple[Segment, int]], time_ms: int) -> None:
        """Advance the accepted start offsets."""
        for segment, offset in offsets:
            if self.cut is not None:
                self.cut.keep(segment)
            if offset > segment.start_offset:
                segment.start_offset = offset
            segment.last_modified_ms = time_ms

    def accept_attributes(self, segment: Segment, values: dict[bytes, int]) -> None:
        """Set attributes; `NO_VALUE` removes."""
        if not values:
            return
        if self.cut is not None:
            self.cut.keep(segment)
        if segment.has_attribute_index:
            segment.attributes.update(values)
            segment.dirty_attributes.update(dict.fromkeys(values))
            self.attribute_work[segment.id] = segment
            return
        for attribute_id, value in values.items():
            if value == NO_VALUE:
                segment.attributes.pop(attribute_id, None)
            else:
                segment.attributes[attribute_id] = value
        if len(segment.attributes) > self._attributes_in_memory_max:
            self.attribute_work[segment.id] = segment

    def accept_spill(self, segment: Segment) -> None:
        """Keep attributes in the attribute index from here on, except dirty ones; initially all are dirty."""
        if self.cut is not None:
            self.cut.keep(segment)
        segment.has_attribute_index = True
        segment.dirty_attributes = dict.fromkeys(segment.attributes)
        self.attribute_work[segment.id] = segment

    def accept_deactivate(self, segments: Iterable[Segment]) -> None:
        """Drop segments from memory. Long-term storage and their records are complete."""
        metadata = self.metadata
        for segment in segments:
            if self.cut is not None:
                self.cut.keep(segment)
            metadata.forget(segment.id)
            segment.is_inactive = True
            # For code that still holds the object: nothing can be appended to it any more.
            segment.is_sealed = True
            segment.attributes = {}
            self.waits.deactivated(segment)
            segment.index.clear()
            segment.close_indexes()
            self.attribute_work.pop(segment.id, None)

    def accept_activate(self, operation: Activate) -> Segment:
        """Return a segment to memory. Raises `ValueError` if the record is invalid."""
        segment = self.metadata.activate(operation.record)
        self.waits.activated(segment)
        if segment.dirty_attributes:
            self.attribute_work[segment.id] = segment
        return segment

    def accept_policy(self, segment: Segment, scale_type: int, target_rate: int) -> None:
        """Store the scaling policy."""
        if self.cut is not None:
            self.cut.keep(segment)
        segment.scale_type = scale_type
        segment.target_rate = target_rate

    def accept_delete(self, segment: Segment) -> None:
        """Release the name; storage is freed later. Segments with merges into it pending are deleted as well."""
        if self.cut is not None:
            self.cut.keep(segment)
        segment.is_deleted = True
        self.activity.ended(segment)
        self.metadata.unname(segment)
        for source in self._sources_of(segment):
            self.accept_delete(source)

    def _sources_of(self, target: Segment) -> list[Segment]:
        """Return the segments whose merge into `target` long-term storage has not done."""
        metadata = self.metadata
        return [metadata.by_id[source] for source, (into, _) in metadata.merges.items() if into == target.id]

    def accept_merge(self, target: Segment, source: Segment, operation: Merge) -> None:
        """Make the source's bytes part of the target."""
        if self.cut is not None:
            self.cut.keep(target)
            self.cut.keep(source)
        source.is_sealed = True
        source.is_merged = True
        self.metadata.unname(source)
        self.metadata.merges[source.id] = (target.id, operation.offset)
        self._remember_merge(source.name, target.id)
        touched = self.activity.before(target)
        target.length = operation.offset + operation.length
        target.event_count += operation.event_count
        target.last_modified_ms = operation.time_ms
        touched.merge(operation.event_count, operation.length, (operation.time_ms - source.created_ms) / 1000)
        self.activity.behind(touched)
        self.accept_attributes(target, operation.attributes)
        target.index.add_redirect(operation.offset, operation.offset + operation.length, source)

    def _remember_merge(self, source: str, target_id: int) -> None:
        merged = self._lately_merged
        merged[source] = target_id
        if len(merged) > _LATELY_MERGED_MAX:
            del merged[next(iter(merged))]

    def was_merged(self, source: str, target: Segment) -> bool:
        """Return whether a segment called `source` was recently merged into `target`, as far as the log still shows."""
        return self._lately_merged.get(source) == target.id

    def accept_pinned(self, values: dict[bytes, bytes | None]) -> None:
        """Set storage records of system segments; None removes."""
        for key, value in values.items():
            if value is None:
                self.metadata.pinned.pop(key, None)
            else:
                self.metadata.pinned[key] = value

    # Durable effects.

    def durable_append(self, segment: Segment, sequence_number: int, start: int, end: int) -> None:
        """Make the bytes visible to readers and queue them for the storage writer."""
        segment.durable_length = end
        if end > start and not segment.is_deleted:
            segment.pending.note_append(sequence_number, start, end, self._loop.time(), self._flush_piece_max)
            self.unflushed[segment.id] = segment
        if segment.waits is not None:
            segment.wake_readers()

    def durable_seal(self, segment: Segment, sequence_number: int) -> None:
        """Make the seal visible to readers."""
        segment.durable_sealed = True
        segment.pending.note_seal(sequence_number)
        self.unflushed[segment.id] = segment
        segment.wake_readers()
        self.events.on_storage_work()

    def durable_truncations(self, offsets: Iterable[tuple[Segment, int]], sequence_number: int) -> None:
        """Reject reads before the new starts and free the memory before them."""
        now_s = self._loop.time()
        for segment, offset in offsets:
            if offset > segment.durable_start_offset:
                segment.durable_start_offset = offset
            segment.index.truncate(segment.durable_start_offset)
            segment.pending.note_truncate(sequence_number, offset, now_s)
            self.unflushed[segment.id] = segment
        self.events.on_truncation()

    def durable_delete(self, segment: Segment) -> None:
        """End all waits and free the memory; from now on storage may be freed as well."""
        for source in self._sources_of(segment):
            del self.metadata.merges[source.id]
            self.durable_delete(source)
        self._note_gone(segment)
        self.unflushed.pop(segment.id, None)
        self.attribute_work.pop(segment.id, None)
        segment.pending.clear()
        segment.index.clear()
        segment.wake_readers()
        self.events.on_storage_work()

    def durable_merge(self, target: Segment, source: Segment, sequence_number: int, start: int, end: int) -> None:
        """Make the merged bytes visible to the target's readers."""
        target.durable_length = end
        source.durable_sealed = True
        target.pending.note_merge(sequence_number, source, start, end, self._loop.time())
        self._note_gone(source)
        self.attribute_work.pop(source.id, None)
        self.unflushed[target.id] = target
        target.wake_readers()
        source.wake_readers()
        self.events.on_merge()

    def accept_forget(self, segment: Segment) -> None:
        """Drop a segment that storage holds nothing of. Its name remains taken in storage until that is durable.

        A checkpoint after the record must not contain it: a later segment of its name would otherwise be freed with it.
        """
        self.metadata.forget(segment.id)
        segment.index.clear()
        segment.close_indexes()
        segment.pending.clear()
        self.unflushed.pop(segment.id, None)
        self.attribute_work.pop(segment.id, None)

    def durable_forget(self, segment_id: int) -> None:
        """Drop the remaining state of a segment that storage holds nothing of."""
        segment = self.gone.pop(segment_id, None)
        if segment is not None:
            ids = self._gone_ids[segment.name]
            del ids[segment_id]
            if not ids:
                del self._gone_ids[segment.name]

    # Recovery.

    def check_append(self, segment_id: int, offset: int) -> Segment:
        """Return the segment of an append record. Raises as `replay` if the append does not apply."""
        segment = self.metadata.by_id[segment_id]
        if offset != segment.length or segment.is_sealed:
            raise ValueError(
                f"append at {offset} to {segment.name}, which is "
                f"{'sealed' if segment.is_sealed else 'open'} at length {segment.length}"
            )
        return segment

    def replay(self, sequence_number: int, operation: Operation) -> None:
        """Apply an operation from the log, accepted and durable at once.

        Raises `KeyError` or `ValueError` if it does not apply to the state before it: the log is corrupt.
        """
        by_id = self.metadata.by_id
        match operation:
            case Append():
                self._replay_append(sequence_number, operation)
            case Create():
                self._replay_create(operation)
            case Seal():
                self._replay_seal(sequence_number, operation)
            case Truncate():
                self._replay_truncate(sequence_number, operation.segment_id, operation.offset, operation.time_ms)
            case TruncateMany():
                for segment_id, offset in zip(operation.segment_ids, operation.offsets, strict=True):
                    self._replay_truncate(sequence_number, segment_id, offset, operation.time_ms)
            case UpdateAttributes():
                self.accept_attributes(by_id[operation.segment_id], operation.values)
            case UpdatePolicy():
                self.accept_policy(by_id[operation.segment_id], operation.scale_type, operation.target_rate)
            case Delete():
                segment = by_id[operation.segment_id]
                self.accept_delete(segment)
                self.durable_delete(segment)
            case Merge():
                self._replay_merge(sequence_number, operation)
            case Forget():
                self._replay_forget(operation)
            case UpdatePinned():
                self.accept_pinned(operation.values)
            case Deactivate():
                self._replay_deactivate(operation)
            case Activate():
                self.accept_activate(operation)
            case SpillAttributes():
                self.accept_spill(by_id[operation.segment_id])
            case CarriedBytes():
                self._replay_carried(sequence_number, operation)
            case CarriedMerge():
                self._replay_carried_merge(sequence_number, operation)
            case Checkpoint():
                # Equal to the replay of everything before it, except for the stored lengths. They allow the cache to
                # evict bytes that it would otherwise have to hold during the replay of a long log.
                self.metadata.refresh_storage(operation.snapshot)

    def _replay_append(self, sequence_number: int, operation: Append) -> None:
        segment = self.check_append(operation.segment_id, operation.offset)
        if type(operation.data) is not bytes:
            # A view would keep the whole buffer read from the log alive.
            operation = msgspec.structs.replace(operation, data=bytes(operation.data))
        self.accept_append(segment, operation, operation.time_ms)
        self.durable_append(segment, sequence_number, operation.offset, segment.length)

    def _replay_create(self, operation: Create) -> None:
        if operation.segment_id in self.metadata.by_id or operation.name in self.metadata.by_name:
            raise ValueError(f"segment {operation.name} (id {operation.segment_id}) created twice")
        self.accept_create(operation)

    def _replay_seal(self, sequence_number: int, operation: Seal) -> None:
        segment = self.metadata.by_id[operation.segment_id]
        if operation.length != segment.length:
            raise ValueError(f"seal of {segment.name} at {operation.length}, its length is {segment.length}")
        self.accept_seal(segment, operation.time_ms)
        self.durable_seal(segment, sequence_number)

    def _replay_merge(self, sequence_number: int, operation: Merge) -> None:
        target, source = self.metadata.by_id[operation.target_id], self.metadata.by_id[operation.source_id]
        if operation.offset != target.length or operation.length != source.length:
            raise ValueError(
                f"merge of {source.name} ({source.length} bytes) into {target.name} at {operation.offset}, "
                f"but its length is {target.length}"
            )
        self.accept_merge(target, source, operation)
        self.durable_merge(target, source, sequence_number, operation.offset, target.length)

    def _replay_forget(self, operation: Forget) -> None:
        segment = self.gone.get(operation.segment_id)
        if segment is not None:
            self._replay_merged(segment)
            self.accept_forget(segment)
            self.durable_forget(segment.id)

    def _replay_deactivate(self, operation: Deactivate) -> None:
        segments = [self.metadata.by_id[segment_id] for segment_id in operation.segment_ids]
        for segment in segments:
            # Storage had all of it, whatever earlier records of the log show.
            segment.pending.clear()
            self.unflushed.pop(segment.id, None)
        self.accept_deactivate(segments)

    def _replay_carried(self, sequence_number: int, operation: CarriedBytes) -> None:
        """Restore bytes of the segment whose original record may have been truncated; nothing else changes."""
        segment = self.metadata.by_id[operation.segment_id]
        end = operation.offset + len(operation.data)
        if end > segment.length:
            raise ValueError(f"rewritten bytes of {segment.name} up to {end}, its length is {segment.length}")
        start = max(operation.offset, segment.storage_length)
        if segment.is_deleted or start >= end:
            return
        segment.index.restore(start, operation.data[start - operation.offset :])
        segment.pending.rewrite(sequence_number, start, end, self._loop.time(), self._flush_piece_max)
        self.unflushed[segment.id] = segment

    def _replay_truncate(self, sequence_number: int, segment_id: int, offset: int, time_ms: int) -> None:
        segment = self.metadata.by_id[segment_id]
        if offset > segment.length:
            raise ValueError(f"truncation of {segment.name} at {offset}, beyond {segment.length}")
        truncated = ((segment, offset),)
        self.accept_truncations(truncated, time_ms)
        self.durable_truncations(truncated, sequence_number)

    def _replay_carried_merge(self, sequence_number: int, operation: CarriedMerge) -> None:
        target, source = self.metadata.by_id[operation.target_id], self.metadata.by_id[operation.source_id]
        if target.is_deleted:
            return
        if self.metadata.merges.get(source.id) != (target.id, operation.offset):
            raise ValueError(f"merge of {source.name} into {target.name} at {operation.offset} rewritten, but unknown")
        end = operation.offset + source.length
        if not target.pending.restate_merge(sequence_number, source, operation.offset, end, self._loop.time()):
            target.index.restore_redirect(operation.offset, end, source)
        self.unflushed[target.id] = target

    def _replay_merged(self, source: Segment) -> None:
        """Apply that storage has merged `source`, if it was merged and is now forgotten."""
        target_id, offset = self.metadata.merges.pop(source.id, (0, 0))
        target = self.metadata.by_id.get(target_id)
        if target is not None:
            before = target.storage_length
            target.storage_length = max(before, offset + source.length)
            target.index.complete_merge(source)
            target.index.stored(before)
            for piece in target.pending:
                if isinstance(piece, PendingMerge) and piece.source is source:
                    target.pending.remove(piece)
                    break

    def restore(self, *parts: bytes) -> Iterator[None]:
        """Begin from all parts of the log's first checkpoint, in steps at which the caller may yield to the event loop.

        Everything before that checkpoint was in long-term storage when the log was truncated at it, or was never
        logged. Raises `ValueError` if it belongs to another container.
        """
        yield from self.metadata.restore(*parts)
        for segment in self.metadata.gone_segments():
            self._note_gone(segment)
        yield
        for number, segment in enumerate(self.metadata.by_id.values()):
            if number % _RESTORE_STEP == _RESTORE_STEP - 1:
                yield
            if segment.id in self.gone:
                continue
            if segment.is_sealed and not segment.storage_sealed:
                segment.pending.note_seal(0)
                self.unflushed[segment.id] = segment
            if segment.dirty_attributes or len(segment.attributes) > self._attributes_in_memory_max:
                self.attribute_work[segment.id] = segment
            if segment.is_table:
                segment.table = None

    def new_table(self, segment: Segment) -> None:
        """Give a new table segment an empty index; existing tables are loaded from their log."""
        segment.table = TableIndex(segment.name, segment.key_length)
        segment.table.finish_scan()
