"""What the operations on stored segments share: the two stores below, the epoch, caches, settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from penstock.model.errors import (
    CorruptionError,
    NoSuchChunkError,
    StorageConflictError,
    StorageError,
    StorageNotPrimaryError,
)
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier2.chunk_index import ChunkIndex, ChunkStarts
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.metadata import MetadataTable, MetadataTransaction, RecordCache
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.records import ChunkRecord, SegmentRecord, check

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)

#: Steps along a chunk list before other tasks get a turn.
_SLICE_STEPS = 64


@dataclass(frozen=True, slots=True)
class ChunkedStorageSettings:
    """Bounds of `ChunkedStorage`. Defaults are those of the specification, section 8.13, where it has one.

    Attributes:
        chunk_length_max: a chunk of this length is not appended to; a segment may ask for less.
        block_length: length of a checksummed block. Reads are extended to whole blocks; a chunk's record grows by
            four bytes for each.
        records_cached_max: segment and chunk records kept in memory.
        indexed_segments_max: segments whose chunk starts are kept in memory ...
        indexed_chunks_max: ... and chunks of all of them together.
        chunk_reads_max: chunks that one read reads at the same time.
        chunk_deletions_max: chunks that one operation deletes at the same time.
        indexed_chunk_step: of a list that is walked along every so-manieth chunk is remembered.
        chunks_per_commit_max: chunk records that one commit removes; longer lists go in several commits, so that none
            holds the event loop for long.
        written_chunks_per_commit_max: chunks that one commit adds; a longer write goes in several commits.
        operations_max: changes under way or waiting for their segment; more wait outside, in order.
        read_attempts_max: how often a read looks again when chunks vanish under it.
        chunk_read_attempts: how often a read of a chunk is tried when the storage fails it, with a pause of ...
        chunk_read_retry_s: ... this, and longer after each.
        page_length: records read at a time when all are listed.
    """

    chunk_length_max: int = 128 * 1024 * 1024
    block_length: int = 256 * 1024
    records_cached_max: int = 4096
    indexed_segments_max: int = 1024
    indexed_chunks_max: int = 16384
    chunk_reads_max: int = 16
    chunk_deletions_max: int = 8
    indexed_chunk_step: int = 16
    chunks_per_commit_max: int = 128
    written_chunks_per_commit_max: int = 64
    operations_max: int = 256
    read_attempts_max: int = 5
    chunk_read_attempts: int = 3
    chunk_read_retry_s: float = 0.1
    page_length: int = 256


class StorageContext:
    """Shared by the operations of one `ChunkedStorage`. Attributes are read, not replaced."""

    __slots__ = ("cache", "chunks", "epoch", "index", "orphans", "runtime", "settings", "table")

    def __init__(
        self,
        chunks: ChunkStorage,
        table: MetadataTable,
        *,
        epoch: int,
        runtime: Runtime,
        settings: ChunkedStorageSettings,
        orphans: OrphanChunks,
    ) -> None:
        self.chunks: ChunkStorage = chunks
        self.orphans: OrphanChunks = orphans
        self.table: MetadataTable = table
        self.epoch: int = epoch
        self.runtime: Runtime = runtime
        self.settings: ChunkedStorageSettings = settings
        self.cache: RecordCache = RecordCache(settings.records_cached_max)
        self.index: ChunkIndex = ChunkIndex(
            segments_max=settings.indexed_segments_max, chunks_max=settings.indexed_chunks_max
        )

    def transaction(self, *, is_cached: bool = True) -> MetadataTransaction:
        """Begin a transaction. Without the cache it sees what is in the table at this moment."""
        return MetadataTransaction(self.table, epoch=self.epoch, cache=self.cache if is_cached else None)

    def step_index(self, starts: ChunkStarts | None) -> Callable[[int, int, str], None] | None:
        """Return what remembers in `starts` some of the chunks that a walk comes by: the next begins nearby."""
        if starts is None:
            return None
        every = self.settings.indexed_chunk_step

        def passed(step: int, start: int, name: str) -> None:
            if step % every == every - 1:
                starts.add(start, name)

        return passed

    async def load_owned(self, transaction: MetadataTransaction, segment: str) -> SegmentRecord | None:
        """Return the record of a segment, even of an inactive one, with this epoch as its owner; None without one.

        The new owner is not staged: the caller puts the record if it changes anything. Raises
        `StorageNotPrimaryError` when a later epoch owns the segment, `CorruptionError`.
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

    async def load_last(self, transaction: MetadataTransaction, record: SegmentRecord) -> ChunkRecord | None:
        """Return the record of a segment's last chunk, both checked together; None without chunks."""
        if record.last_chunk is None:
            return None
        last = await transaction.chunk(record.last_chunk)
        if last is None:
            raise missing_chunk_record(record, record.last_chunk)
        check(record, last)
        return last

    async def commit(self, transaction: MetadataTransaction, segment: str) -> None:
        """Commit; a conflict with a later epoch's change raises `StorageNotPrimaryError`. See its `commit`."""
        try:
            await transaction.commit()
        except StorageConflictError as conflict:
            record = await self.transaction(is_cached=False).segment(segment)
            if record is not None and record.owner_epoch > self.epoch:
                raise StorageNotPrimaryError(segment, owner_epoch=record.owner_epoch, epoch=self.epoch) from conflict
            raise

    async def delete_chunks(self, names: Sequence[str]) -> None:
        """Delete chunks that no record leads to any more. One that cannot be deleted is tried again later."""

        async def delete(name: str) -> None:
            try:
                await self.chunks.delete(name)
            except NoSuchChunkError:
                return  # Deleted before, by a call that failed later.
            except StorageError as error:
                _log.info("chunk %s is no longer used and could not be deleted, it is tried again: %s", name, error)
                self.orphans.add(name)

        try:
            await run_bounded(delete, names, self.settings.chunk_deletions_max)
        except BaseException:
            # Nobody has begun with some of them. Those that are gone cost a look each.
            for name in names:
                self.orphans.add(name)
            raise


async def let_others_go_on(number: int) -> None:
    """Give other tasks a turn after so many steps of long work. `number`: of the step, from 0.

    A step costs up to some 60 us, and without it nothing in a walk need ever wait.
    """
    if number % _SLICE_STEPS == _SLICE_STEPS - 1:
        await asyncio.sleep(0)


def missing_chunk_record(record: SegmentRecord, name: str) -> CorruptionError:
    """Return the error for a chunk that a segment's list names and that has no record."""
    return CorruptionError(
        f"storage metadata record {name!r}", 0, f"the chunk list of segment {record.name!r} leads here, and it is gone"
    )


async def run_bounded(function: Callable[[T], Awaitable[R]], items: Sequence[T], limit: int) -> list[R]:
    """Apply `function` to all items, `limit` at a time, and return the results in order.

    The first error, or a cancellation, stops the others and is raised after they ended.
    """
    if len(items) == 1:
        return [await function(items[0])]
    results: dict[int, R] = {}
    pending: Iterator[tuple[int, T]] = iter(enumerate(items))

    async def work() -> None:
        for index, item in pending:
            results[index] = await function(item)
            await let_others_go_on(index)  # Not each of them need wait for something.

    workers = [asyncio.ensure_future(work()) for _ in range(min(limit, len(items)))]
    try:
        await asyncio.gather(*workers)
    except BaseException:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    return [results[index] for index in range(len(items))]
