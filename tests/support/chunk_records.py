"""Stored segments over chunks and records in memory, and walks of their records.

The walks go key by key and are independent of the look-ups under test.
"""

from __future__ import annotations

import random

from penstock.model.segments import TableUpdate
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.tier2.chunk_run import OFFSET_MAX, ChunkRun, run_of
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable, MetadataTransaction
from penstock.segmentstore.tier2.records import (
    ChunkRecord,
    Extent,
    Record,
    StoredSegmentRecord,
    check,
    decode_record,
    encode_record,
)
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings

SEGMENT = "scope/stream/0.#epoch.0"
OTHER = f"{SEGMENT}#transaction.{7:032x}"
SMALL = ChunkedStorageSettings(chunk_length_max=10, block_length=4, chunks_per_commit_max=2, page_length=2)


def seeded_runtime(seed: int = 1) -> Runtime:
    runtime = real_runtime(1)
    return Runtime(disk=runtime.disk, work=runtime.work, rng=random.Random(seed), wall_clock_ms=lambda: 1234)


class World:
    """Chunks and records that outlive the instances over them."""

    def __init__(self, *, supports_append: bool = True) -> None:
        self.chunks = MemoryChunkStorage(supports_append=supports_append, supports_concat=False)
        self.table = MemoryMetadataTable()
        self.runtime = seeded_runtime()

    def storage(self, epoch: int = 1, settings: ChunkedStorageSettings = SMALL) -> ChunkedStorage:
        return ChunkedStorage(self.chunks, self.table, epoch=epoch, runtime=self.runtime, settings=settings)

    async def record(self, segment: str = SEGMENT) -> StoredSegmentRecord:
        record = await MetadataTransaction(self.table, epoch=0).segment(segment)
        assert record is not None
        return record

    async def chunk_records(self, segment: str = SEGMENT) -> list[ChunkRecord]:
        """Return the chunks in sequence; checks every invariant of segment-store 8.4 on the way."""
        return (await checked_chunks(self.table, segment))[1]

    async def chunk_names(self) -> list[str]:
        return [info.name for info in await self.chunks.list()]

    async def put(self, *records: Record) -> None:
        """Overwrite records without notice to the storage."""
        await self.table.commit([TableUpdate(r.key, encode_record(r)) for r in records], [])


async def checked_chunks(table: MemoryMetadataTable, segment: str) -> tuple[StoredSegmentRecord, list[ChunkRecord]]:
    """Return a segment's record and its chunks in sequence; checks every invariant of segment-store 8.4."""
    record = await MetadataTransaction(table, epoch=0).segment(segment)
    assert record is not None
    found: list[ChunkRecord] = []
    top = _live(table, record.run)
    _gather(table, top, 0, record.length, found)
    check(record, top[-1] if top else None)
    assert len(found) == record.chunk_count
    assert sum(chunk.length for chunk in found) == record.length - record.first_chunk_start
    return record, found


def _live(table: MemoryMetadataTable, run: ChunkRun) -> list[Extent]:
    found: list[Extent] = []
    for entry in table.entries():
        if run_of(entry.key) != run:
            continue
        extent = decode_record(entry.key, entry.value)
        assert not isinstance(extent, StoredSegmentRecord)
        assert extent.start == OFFSET_MAX - int.from_bytes(entry.key[-8:])
        if extent.is_active:
            found.append(extent)
    return found[::-1]


def _gather(
    table: MemoryMetadataTable, extents: list[Extent], base: int, length: int, found: list[ChunkRecord]
) -> None:
    """Gather the chunks of a run; without a gap from its first to `length`."""
    end = extents[0].start if extents else length
    for extent in extents:
        assert extent.start == end
        end += extent.length
        if isinstance(extent, ChunkRecord):
            found.append(extent)
        else:
            inner = _live(table, extent.source)
            assert inner, "a merged run without chunks is left"
            _gather(table, inner, base + extent.start, extent.length, found)
    assert end == length
