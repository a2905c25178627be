"""`Segment`: a container's state of one segment, in two versions.

The *accepted* state includes every validated operation, synced or not: later operations are validated against it. The
*durable* state includes only synced operations: readers and repliers see it. One task changes both. A failed log write
ends the container, so accepted changes are never rolled back but lost with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntFlag
from typing import TYPE_CHECKING

from penstock.model.errors import AttributesNotLoadedError, UnreadableDataError
from penstock.model.names import is_index_segment
from penstock.model.segments import NO_VALUE

if TYPE_CHECKING:
    from penstock.segmentstore.container.btree.sorted_index import SortedIndex
    from penstock.segmentstore.container.pending import PendingQueue
    from penstock.segmentstore.container.reads.read_index import ReadIndex
    from penstock.segmentstore.container.reads.tail_waits import SegmentWaits
    from penstock.segmentstore.container.tables.index import TableIndex


class SegmentFlags(IntFlag):
    """Kind of the segment. Fixed at creation; stored."""

    NONE = 0
    TABLE = 1
    SYSTEM = 2
    TRANSIENT = 4


class Segment:
    """One segment of a container.

    Invariants: `start_offset <= length`, `durable_length <= length`, `storage_length <= durable_length`; bytes in
    `[max(storage_length, start_offset), length)` are in the cache.

    Attributes:
        attributes: values by id; all of them, unless `has_attribute_index`. Then the others are in the index, and
            `NO_VALUE` means "known to be absent".
        dirty_attributes: ids whose values in `attributes` the attribute index does not have.
        damage: error if some of its bytes are lost; its flush and reads of these bytes raise it.
        has_record: the container's metadata table may have a record of it, possibly an outdated one.
        is_inactive: it has left memory, and this object is stale. Look the segment up again.
        waits: reads that wait for bytes beyond its end; None without any. They do not keep it in memory.
        use_count: calls that rely on this object across awaits; the segment stays in memory while there are any.
        is_table: the bytes are table entries.
        is_system: it is one of the container's own segments.
        is_offset_index: it is the offset index of another segment: a few bytes, whose flush is not urgent.
        is_transient: it holds the pieces of one large event, and is never deactivated.
        is_stuck: its last flush failed, or the running one makes no progress.
        is_touched: used since the last search for idle segments.
    """

    __slots__ = (
        "__weakref__",
        "attribute_index",
        "attributes",
        "created_ms",
        "damage",
        "deleted_sequence_number",
        "dirty_attributes",
        "durable_length",
        "durable_sealed",
        "durable_start_offset",
        "event_count",
        "flags",
        "flush_lock",
        "has_attribute_index",
        "has_record",
        "id",
        "index",
        "is_deleted",
        "is_inactive",
        "is_merged",
        "is_offset_index",
        "is_sealed",
        "is_storage_open",
        "is_stuck",
        "is_system",
        "is_table",
        "is_touched",
        "is_transient",
        "key_length",
        "last_modified_ms",
        "length",
        "name",
        "pending",
        "rollover_bytes",
        "scale_type",
        "start_offset",
        "storage_length",
        "storage_sealed",
        "table",
        "target_rate",
        "use_count",
        "waits",
    )

    def __init__(self, segment_id: int, name: str, *, flags: SegmentFlags, key_length: int, created_ms: int) -> None:
        self.id: int = segment_id
        self.name: str = name
        self.flags: SegmentFlags = flags
        # Cached: read very often, and an `&` of flags costs as much as ten attribute reads.
        self.is_table: bool = bool(flags & SegmentFlags.TABLE)
        self.is_system: bool = bool(flags & SegmentFlags.SYSTEM)
        self.is_transient: bool = bool(flags & SegmentFlags.TRANSIENT)
        self.is_offset_index: bool = is_index_segment(name)
        self.key_length: int = key_length
        self.created_ms: int = created_ms
        self.damage: UnreadableDataError | None = None
        self.last_modified_ms: int = created_ms
        self.scale_type: int = 0
        self.target_rate: int = 0
        self.rollover_bytes: int = 0
        self.event_count: int = 0
        self.attributes: dict[bytes, int] = {}
        self.dirty_attributes: dict[bytes, None] = {}
        self.has_attribute_index: bool = False
        self.attribute_index: SortedIndex | None = None
        self.has_record: bool = False
        self.is_inactive: bool = False
        self.is_touched: bool = True
        self.use_count: int = 0
        # Accepted state.
        self.start_offset: int = 0
        self.length: int = 0
        self.is_sealed: bool = False
        self.is_merged: bool = False
        self.is_deleted: bool = False
        self.deleted_sequence_number: int = 0
        # Durable state.
        self.durable_length: int = 0
        self.durable_start_offset: int = 0
        self.durable_sealed: bool = False
        # Long-term storage.
        self.storage_length: int = 0
        self.storage_sealed: bool = False
        self.is_storage_open: bool = False
        self.is_stuck: bool = False
        #: Held during changes of this segment in long-term storage.
        self.flush_lock: asyncio.Lock = asyncio.Lock()
        self.pending: PendingQueue[Segment]
        self.index: ReadIndex[Segment]
        self.table: TableIndex | None = None
        self.waits: SegmentWaits | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the segment in memory inside the context."""
        self.use_count += 1
        try:
            yield
        finally:
            self.use_count -= 1

    def attribute(self, attribute_id: bytes) -> int:
        """Return the accepted value of an attribute, or `NO_VALUE`.

        Raises `AttributesNotLoadedError` if only the attribute index has the value.
        """
        value = self.attributes.get(attribute_id)
        if value is not None:
            return value
        if self.has_attribute_index:
            raise AttributesNotLoadedError(self.name, (attribute_id,))
        return NO_VALUE

    def has_ended_before(self, offset: int) -> bool:
        """Whether there will never be a byte at `offset`, because the segment is sealed."""
        return self.durable_sealed and offset >= self.durable_length

    def close_indexes(self) -> None:
        """Release the memory of the segment's cached indexes."""
        if self.table is not None:
            self.table.end_life()
            self.table = None
        if self.attribute_index is not None:
            self.attribute_index.close()
            self.attribute_index = None

    def wake_readers(self) -> None:
        """End the waits for bytes that are now durable; all waits if the segment is sealed or gone."""
        if self.waits is not None:
            is_over = self.durable_sealed or self.is_deleted or self.is_merged
            self.waits.wake(None if is_over else self.durable_length)
