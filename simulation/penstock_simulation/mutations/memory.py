"""Planted bugs in the eviction of segments, attributes and table keys from memory. See `mutations`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from penstock.model.errors import BadOffsetError, NoSuchSegmentError, SegmentInactiveError
from penstock.model.segments import NO_VALUE, TableUpdate
from penstock.segmentstore.container import segment_merges
from penstock.segmentstore.container.attributes.attributes import Attributes
from penstock.segmentstore.container.attributes.updates import AttributeUpdate, evaluate
from penstock.segmentstore.container.catalog import SegmentCatalog
from penstock.segmentstore.container.log.operations import Activate, Deactivate
from penstock.segmentstore.container.metadata import encode_record
from penstock.segmentstore.container.pending import PendingMerge
from penstock.segmentstore.container.reads.read_index import UnflushedBytes
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.storage import segment_flusher
from penstock.segmentstore.container.storage.container_storage import ContainerStorage
from penstock.segmentstore.container.tables.compaction import TableCompactor
from penstock.segmentstore.container.tables.entries import MISSING, ParsedEntry, encode_put, pack_slot
from penstock.segmentstore.container.tables.index import Loaded, TableIndex, TableMark
from penstock.segmentstore.container.tables.indexer import TableIndexer
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile

# Active and inactive segments.


def _drop_before_the_record() -> AbstractContextManager[None]:
    async def deactivate(self: SegmentCatalog, candidates: Iterable[Segment], count: int) -> int:
        async with self._put_away:
            leaving = [segment for segment in candidates if self._can_leave(segment)][:count]
            if not leaving:
                return 0
            updates = [TableUpdate(segment.name.encode(), encode_record(segment)) for segment in leaving]
            for segment in leaving:
                if segment.is_table:
                    self._tables.release(segment)
            self._log(Deactivate([segment.id for segment in leaving]))
            self._state.accept_deactivate(leaving)
            self.deactivated_count += len(leaving)
            await self._tables._barrier()
            await self._tables.put(self._table, updates, -1)
            return len(leaving)

    return patched(SegmentCatalog, "deactivate", deactivate)


def _keep_records_of_deleted() -> AbstractContextManager[None]:
    async def forget_record(self: SegmentCatalog, segment: Segment) -> None:
        segment.has_record = False

    return patched(SegmentCatalog, "forget_record", forget_record)


@contextmanager
def _activate_by_stale_records() -> Iterator[None]:
    async def activate(self: SegmentCatalog, name: str) -> Segment:
        record = await self._record(name)
        if record is None:
            raise NoSuchSegmentError(name)
        await asyncio.sleep(0.002)  # A slow read, so that the bug shows soon.
        await self.make_room(name)
        operation = Activate(record)
        segment = self._state.accept_activate(operation)
        self._log(operation)
        return segment

    async def find(self: SegmentCatalog, name: str) -> Segment:
        try:
            return self.get(name)
        except SegmentInactiveError:
            return await activate(self, name)

    with patched(SegmentCatalog, "find", find):
        yield


def _put_away_what_has_changed() -> AbstractContextManager[None]:
    async def deactivate(self: SegmentCatalog, candidates: Iterable[Segment], count: int) -> int:
        async with self._put_away:
            leaving = [segment for segment in candidates if self._can_leave(segment)][:count]
            if not leaving:
                return 0
            updates = [TableUpdate(segment.name.encode(), encode_record(segment)) for segment in leaving]
            await self._tables.put(self._table, updates, -1)
            await asyncio.sleep(0.02)  # A slow write, so that the bug shows soon.
            # The second check is left out.
            for segment in leaving:
                if segment.is_table:
                    self._tables.release(segment)
            self._log(Deactivate([segment.id for segment in leaving]))
            self._state.accept_deactivate(leaving)
            self.deactivated_count += len(leaving)
            return len(leaving)

    return patched(SegmentCatalog, "deactivate", deactivate)


# Attributes.


@contextmanager
def _forget_changed_attributes_early() -> Iterator[None]:
    original = Attributes.flush

    async def flush(self: Attributes, segment: Segment) -> None:
        if not segment.flush_lock.locked():
            dirty = segment.dirty_attributes
            segment.dirty_attributes = {}
            changes = {
                attribute_id: None if (value := segment.attributes[attribute_id]) == NO_VALUE
                else value.to_bytes(8, "big", signed=True)
                for attribute_id in dirty
            }  # fmt: skip
            async with segment.flush_lock:
                index = await self._index(segment)
                try:
                    await index.update(changes, b"")
                except BadOffsetError:
                    segment.attribute_index = None
            self.trim(segment)
        await original(self, segment)

    with patched(Attributes, "flush", flush):
        yield


@contextmanager
def _load_over_newer_attributes() -> Iterator[None]:
    async def load(self: Attributes, segment: Segment, attribute_ids: Iterable[bytes]) -> None:
        if not segment.has_attribute_index:
            return
        missing = [attribute_id for attribute_id in attribute_ids if attribute_id not in segment.attributes]
        if missing:
            with segment.in_use():
                values = await (await self._index(segment)).get(missing)
                await asyncio.sleep(0.002)  # A slow read, so that the bug shows soon.
            self.trim(segment)
            for attribute_id, value in zip(missing, values, strict=True):
                found = NO_VALUE if value is None else int.from_bytes(value, "big", signed=True)
                segment.attributes[attribute_id] = found

    with patched(Attributes, "load", load):
        yield


def _merge_without_attributes() -> AbstractContextManager[None]:
    def check_only(
        segment: str, attributes: Mapping[bytes, int], updates: Sequence[AttributeUpdate]
    ) -> dict[bytes, int]:
        evaluate(segment, attributes, updates)
        return {}

    return patched(segment_merges, "evaluate", check_only)


def _begin_merged_segments_again() -> AbstractContextManager[None]:
    original = segment_flusher._waiting

    def waiting(segment: Segment, start: int, limit: int) -> UnflushedBytes | None:
        found = original(segment, start, limit)
        head = segment.pending[0] if segment.pending else None
        if found is None or not isinstance(head, PendingMerge) or start <= head.start:
            return found
        return head.source.index.arrived(0, min(found.length, start - head.start))

    return patched(segment_flusher, "_waiting", waiting)


# Indexes.


def _leave_indexes_of_deleted() -> AbstractContextManager[None]:
    async def delete_indexes(self: ContainerStorage, segment: Segment) -> None:
        """Leave the indexes."""

    return patched(ContainerStorage, "delete_indexes", delete_indexes)


@contextmanager
def _mark_ahead_of_entries() -> Iterator[None]:
    original = TableIndex.frozen_mark

    def frozen_mark(self: TableIndex) -> TableMark:
        # Entries added since the tail was frozen are not in the index yet.
        return replace(original(self), indexed_offset=self.end)

    with patched(TableIndex, "frozen_mark", frozen_mark):
        yield


@contextmanager
def _skip_the_tail() -> Iterator[None]:
    original = TableIndexer.load

    async def load(self: TableIndexer, segment: Segment) -> TableIndex:
        table = TableIndex(segment.name, segment.key_length)
        if segment.length >= self._settings.table_index_min_bytes and self._open_index is not None:
            await self._open_existing(segment, table, self._open_index)
        if table.index is None:
            return await original(self, segment)
        table.end = segment.length
        table.finish_scan()
        return table

    with patched(TableIndexer, "load", load):
        yield


@contextmanager
def _copy_over_newer_values() -> Iterator[None]:
    def copies(
        table: TableIndex, entries: Sequence[ParsedEntry], loaded: Loaded, data: bytes, start: int, offset: int
    ) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        parts: list[bytes] = []
        slots: list[tuple[bytes, bytes]] = []
        for entry in entries:
            live = table.find(entry.key)
            if live == MISSING:
                live = loaded.get(entry.key)
            # The key is alive, but perhaps because of a newer entry.
            if entry.value_length >= 0 and live is not None:
                copy = encode_put(entry.key, data[entry.value_offset - start : entry.end - start], entry.version)
                slots.append((entry.key, pack_slot(entry.version, offset, len(copy))))
                parts.append(copy)
                offset += len(copy)
        return b"".join(parts), slots

    with patched(TableCompactor, "_copies", staticmethod(copies)):
        yield


# Corruption of memory.


def _store_what_memory_has() -> AbstractContextManager[None]:
    original = ContainerStorage.write

    async def write(self: ContainerStorage, segment: Segment, offset: int, data: UnflushedBytes) -> int:
        return await original(self, segment, offset, replace(data, checksummed_blocks=[]))

    return patched(ContainerStorage, "write", write)


_SLOW_WORK = 0.3
_TINY_CACHE = 2048

MEMORY_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "drop segments before their records are written", "an inactive segment has a record",
        short_profile("inactive segments", "crowd"), _drop_before_the_record,
    ),
    Mutation(
        "keep the records of deleted segments", "a deleted segment stays away",
        short_profile("inactive segments", "crowd"), _keep_records_of_deleted,
    ),
    Mutation(
        "activate by stale records", "a segment is active once",
        replace(
            short_profile("shared inactive segments", "attributes", "counters", "bytes"), cache_bytes_min=_TINY_CACHE
        ),
        _activate_by_stale_records,
    ),
    Mutation(
        "put segments away that have changed meanwhile", "long-term storage has everything of an inactive segment",
        replace(short_profile("inactive segments", "bytes", "attributes", "keys"), work_stall_rate=_SLOW_WORK),
        _put_away_what_has_changed,
    ),
    Mutation(
        "forget changed attributes before the index has them", "what is not dirty is in the index",
        short_profile("many attributes", "attributes", "writers", kinds=("Crash", "CrashAtDiskCall", "DiskErrors")),
        _forget_changed_attributes_early,
    ),
    Mutation(
        "load attributes over newer values", "a value written meanwhile wins over the loaded one",
        replace(short_profile("slow attributes", "attributes", "writers"), cache_bytes_min=_TINY_CACHE),
        _load_over_newer_attributes,
    ),
    Mutation(
        "merge without the attributes", "a merge and its attributes are one step",
        short_profile("merges", "merges"), _merge_without_attributes,
    ),
    Mutation(
        "store a merged segment from its beginning again", "what is stored of a merge is not stored again",
        short_profile("merges", "merges"), _begin_merged_segments_again,
    ),
    Mutation(
        "leave the indexes of deleted segments", "nothing of a deleted segment stays in storage",
        short_profile("merges", "merges", "crowd"), _leave_indexes_of_deleted,
    ),
    Mutation(
        "mark more of a table as indexed than is", "the index and the tail together are the table",
        short_profile("many keys", "keys"), _mark_ahead_of_entries,
    ),
    Mutation(
        "do not scan a table's tail", "the index and the tail together are the table",
        short_profile("many keys", "keys"), _skip_the_tail,
    ),
    Mutation(
        "store what memory has instead of what arrived", "corrupt data are never stored",
        replace(short_profile("bad memory"), memory_flip_rate=1.0, memory_flip_gap_s=0.3), _store_what_memory_has,
    ),
    Mutation(
        "copy old values over newer ones", "compaction changes no key",
        short_profile("many keys", "keys", "tables"), _copy_over_newer_values,
    ),
)  # fmt: skip
"""Planted bugs, part of `MUTATIONS`."""
