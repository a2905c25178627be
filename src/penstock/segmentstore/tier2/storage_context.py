"""State shared by the operations on stored segments: chunks and records, the epoch, caches, settings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.model.errors import (
    CorruptionError,
    NoSuchChunkError,
    StorageConflictError,
    StorageError,
    StorageNotPrimaryError,
)
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier2.chunk_run import ChunkRun, describe_key
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.metadata import MetadataTable, MetadataTransaction, RecordCache
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.records import Extent, StoredSegmentRecord, check
from penstock.segmentstore.tier2.turns import run_bounded

if TYPE_CHECKING:
    from penstock.segmentstore.tier2.garbage import GarbageQueue

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChunkedStorageSettings:
    """Bounds of `ChunkedStorage`. Defaults are those of segment-store 8.13, where it has one.

    Attributes:
        chunk_length_max: a chunk of this length is not appended to; a segment may request less.
        block_length: length of a checksummed block. Reads are extended to whole blocks; a chunk's record grows by four
            bytes for each.
        records_cached_max: segment and chunk records kept in memory.
        chunk_reads_max: chunks that one read reads concurrently.
        chunk_deletions_max: chunks that one operation deletes concurrently.
        chunks_per_commit_max: chunk records that one commit removes; longer lists need several commits, so that none
            blocks the event loop for long.
        written_chunks_per_commit_max: chunks that one commit adds; a longer write needs several commits.
        operations_max: changes in progress or waiting for their segment; further ones are queued, in order.
        read_attempts_max: how often a read is attempted when chunks disappear during it.
        chunk_read_attempts: how often a read of a chunk is attempted if the storage fails, with a pause of ...
        chunk_read_retry_s: ... this, which grows after each attempt.
        page_length: records read at a time in long scans.
    """

    chunk_length_max: int = 128 * 1024 * 1024
    block_length: int = 256 * 1024
    records_cached_max: int = 4096
    chunk_reads_max: int = 16
    chunk_deletions_max: int = 8
    chunks_per_commit_max: int = 128
    written_chunks_per_commit_max: int = 64
    operations_max: int = 256
    read_attempts_max: int = 5
    chunk_read_attempts: int = 3
    chunk_read_retry_s: float = 0.1
    page_length: int = 256


class StorageContext:
    """Shared by the operations of one `ChunkedStorage`. Attributes are read, not replaced."""

    __slots__ = ("_run_count", "cache", "chunks", "epoch", "garbage", "orphans", "runtime", "settings", "table")

    def __init__(
        self,
        chunks: ChunkStorage,
        table: MetadataTable,
        *,
        epoch: int,
        runtime: Runtime,
        settings: ChunkedStorageSettings,
        orphans: OrphanChunks,
        garbage: GarbageQueue,
    ) -> None:
        self.chunks: ChunkStorage = chunks
        self.orphans: OrphanChunks = orphans
        self.garbage: GarbageQueue = garbage
        self.table: MetadataTable = table
        self.epoch: int = epoch
        self.runtime: Runtime = runtime
        self.settings: ChunkedStorageSettings = settings
        self.cache: RecordCache = RecordCache(settings.records_cached_max)
        self._run_count = 0

    def transaction(self, *, is_cached: bool = True) -> MetadataTransaction:
        """Begin a transaction. Without the cache it reads the current contents of the table."""
        return MetadataTransaction(self.table, epoch=self.epoch, cache=self.cache if is_cached else None)

    def next_run_number(self) -> int:
        """Return a number that is unique among the segments first stored in this epoch."""
        self._run_count += 1
        return self._run_count

    async def load_owned(self, transaction: MetadataTransaction, segment: str) -> StoredSegmentRecord | None:
        """Return the record of a segment, even an inactive one, with this epoch as its owner; None if there is none.

        The new owner is not staged: the caller puts the record if it changes anything. Raises `StorageNotPrimaryError`
        if a later epoch owns the segment, `CorruptionError`.
        """
        record = await transaction.segment(segment)
        if record is None:
            return None
        check(record)
        if record.owner_epoch > self.epoch:
            raise StorageNotPrimaryError(segment, owner_epoch=record.owner_epoch, epoch=self.epoch)
        if record.owner_epoch < self.epoch:
            return replace(record, owner_epoch=self.epoch, is_ownership_changed=True)
        return record

    async def load_last(self, transaction: MetadataTransaction, record: StoredSegmentRecord) -> Extent | None:
        """Return the record of a segment's last chunk or merged run, both checked together; None without chunks."""
        if not record.chunk_count:
            return None
        last = await transaction.extent(record.run, record.last_start)
        if last is None:
            raise missing_extent(record, record.run, record.last_start)
        check(record, last)
        return last

    async def commit(self, transaction: MetadataTransaction, segment: str) -> None:
        """Commit `transaction`; a conflict with a later epoch's change raises `StorageNotPrimaryError`."""
        try:
            await transaction.commit()
        except StorageConflictError as conflict:
            record = await self.transaction(is_cached=False).segment(segment)
            if record is not None and record.owner_epoch > self.epoch:
                raise StorageNotPrimaryError(segment, owner_epoch=record.owner_epoch, epoch=self.epoch) from conflict
            raise

    async def delete_chunks(self, names: Sequence[str]) -> None:
        """Delete chunks that never had a record. Failed deletions are retried later."""

        async def delete(name: str) -> None:
            try:
                await self.chunks.delete(name)
            except NoSuchChunkError:
                return  # Deleted before, by a call that failed later.
            except StorageError as error:
                _log.info("chunk %s is unused but could not be deleted, retrying: %s", name, error)
                self.orphans.add(name)

        try:
            await run_bounded(delete, names, self.settings.chunk_deletions_max)
        except BaseException:
            # Some deletions were not started. For chunks already deleted this costs one lookup each.
            for name in names:
                self.orphans.add(name)
            raise


def missing_extent(record: StoredSegmentRecord, run: ChunkRun, position: int) -> CorruptionError:
    """Return the error for an offset of a run to which a segment's record refers, and which no record covers."""
    return CorruptionError(
        describe_key(run.key(position)), 0, f"segment {record.name!r} has bytes here, but their record is missing"
    )
