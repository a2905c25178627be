"""`ContainerInspection`: the storage records of a container that is not running, from its log and long-term storage.

The log is replayed into memory as at a start, and the tables of records are read as by a running container. All writes
this needs stay in memory: neither the log nor storage is changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace

from penstock.model.errors import CorruptionError, PenstockError, UnreadableDataError, UnsupportedOperationError
from penstock.model.segments import Buffer, TableEntry
from penstock.runtime.runtime import Runtime
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.container.btree.sorted_index import SortedIndex
from penstock.segmentstore.container.btree.tree import BTreeIndex
from penstock.segmentstore.container.log.operations import Create, NonAppendOperation
from penstock.segmentstore.container.log.recovery import ReplayedLog, recover
from penstock.segmentstore.container.pending import PendingMerge
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.reads.read_index import Missing
from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage.bytes_in_chunks import TABLE_BYTES_MAX, MissingBytes
from penstock.segmentstore.container.storage.container_storage import (
    ContainerStorage,
    is_mark,
    table_index_segment,
)
from penstock.segmentstore.container.storage.storage_records import SegmentMetadataTable
from penstock.segmentstore.container.tables.entries import SLOT_LENGTH
from penstock.segmentstore.container.tables.tables import Tables
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.chunked_storage import StoredSegment
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable, MetadataTable
from penstock.segmentstore.tier2.storage_health import UnwatchedStorage
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage

logger: logging.Logger = logging.getLogger(__name__)

#: No limit on the part of a table's log kept in memory: it cannot be moved to the index.
UNBOUNDED_BYTES = 1 << 62
#: No timeout: there are no other operations to wait for.
_UNBOUNDED_S = 1e9


class ReadOnlyChunkStorage(WrappedChunkStorage):
    """`ChunkStorage` that rejects every change with `UnsupportedOperationError`."""

    async def create_identity(self, identity: bytes) -> None:
        """Refuse."""
        raise self._refusal("the identity")

    async def create(self, name: str) -> None:
        """Refuse."""
        raise self._refusal(name)

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """Refuse."""
        raise self._refusal(name)

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """Refuse."""
        raise self._refusal(name)

    async def delete(self, name: str) -> None:
        """Refuse."""
        raise self._refusal(name)

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """Refuse."""
        raise self._refusal(target)

    @staticmethod
    def _refusal(name: str) -> UnsupportedOperationError:
        return UnsupportedOperationError(f"{name} is not changed: long-term storage is only read")


@dataclass(frozen=True, slots=True)
class UnfitSegment:
    """A segment for which a log that lost operations disagrees with long-term storage.

    Attributes:
        length: the only possible end: storage has all bytes up to it, and the log none. None: it ends where it does.
        stored: its state in storage. It may begin later, if a truncation was lost.
    """

    segment: Segment
    length: int | None
    stored: StoredSegment


class ContainerInspection:
    """One container as of the end of its log. Call `open` first, `close` at the end.

    Attributes:
        index_problem: why the index of the table of records is unusable, if it is; the table was then read whole.
    """

    def __init__(
        self,
        container_id: int,
        log: ReplayedLog,
        chunks: ChunkStorage,
        *,
        epoch: int,
        cache: Cache,
        runtime: Runtime,
        settings: ContainerSettings,
    ) -> None:
        self.id: int = container_id
        self.epoch: int = epoch
        self.index_problem: UnreadableDataError | None = None
        self._log = log
        self._chunks = ReadOnlyChunkStorage(chunks)
        self._cache = cache
        self._runtime = runtime
        self._settings = replace(
            settings, table_unindexed_bytes_max_system=UNBOUNDED_BYTES, table_load_timeout_s=_UNBOUNDED_S
        )
        self._loop = asyncio.get_running_loop()
        self._jobs: set[asyncio.Task[None]] = set()
        self._state = ContainerState(container_id, cache, settings)
        self._state.events.on_damage = self._note_damage
        self._damage: BaseException | None = None
        self._reader = SegmentReader(container_id, settings, self._read, self._state.waits)
        self._tables = self._new_tables(self._open_index)
        self._storage: ContainerStorage

    @property
    def mark(self) -> bytes:
        """The container's mark in the names of its chunks, once it is open; see `OrphanChunks`."""
        return self._storage.orphans.mark

    async def open(self) -> Sequence[MetadataTable]:
        """Replay the log; return the records of system segments, and those of user segments.

        Raises `CorruptionError` when the log, or the table of records, is damaged, `StorageError`.
        """
        await self.replay()
        return await self.open_tables()

    async def replay(self) -> None:
        """Replay the log, the first half of `open`."""
        await recover(self._log, self._state)
        self._storage = ContainerStorage(
            self.id,
            self._chunks,
            state=self._state,
            submit=self._submit,
            epoch=self.epoch,
            runtime=self._runtime,
            settings=self._settings,
            health=UnwatchedStorage(),
            spawn=self._spawn,
        )

    async def open_tables(self) -> Sequence[MetadataTable]:
        """Open the tables of records, the second half of `open`."""
        # Copied from the log, because inspection may claim segments in memory.
        pinned = MemoryMetadataTable(
            TableEntry(key, value, 0) for key, value in self._state.metadata.pinned.items() if not is_mark(key)
        )
        table = await self._storage.open_records(self._create, self._tables)
        try:
            await self._tables.index_of(table)
        except UnreadableDataError as error:
            # The table's log alone is complete.
            self.index_problem = error
            self._tables = self._new_tables(None)
            await self._tables.index_of(table)
        return (pinned, SegmentMetadataTable(self._tables, table, self._spawn))

    def names(self) -> tuple[set[str], set[str]]:
        """Return the names of live segments, and of deleted or merged ones whose storage is still to be freed."""
        return set(self._state.metadata.by_name), {segment.name for segment in self._state.gone.values()}

    async def is_stored(self, name: str) -> bool:
        """Return whether storage has records of a user segment of that name."""
        return await self._storage.user_info(name) is not None

    async def unfit_system(self) -> Sequence[UnfitSegment]:
        """Return the system segments of which long-term storage has more than the log. Call after `replay`."""
        found: list[UnfitSegment] = []
        for segment in list(self._state.metadata.by_name.values()):
            if segment.is_system and (stored := await self._stored(segment)).length > segment.length:
                found.append(UnfitSegment(segment, stored.length, stored))
        return found

    async def missing_system(self) -> Sequence[MissingBytes]:
        """Return the bytes of system segments that neither log nor storage has. Call after `replay`."""
        found: list[MissingBytes] = []
        for segment in list(self._state.metadata.by_name.values()):
            if not segment.is_system:
                continue
            first = max((await self._stored(segment)).length, segment.start_offset)
            if first >= segment.length:
                continue
            piece = segment.index.lookup(first, segment.length - first)
            if isinstance(piece, Missing) and first - segment.start_offset <= TABLE_BYTES_MAX:
                before = await self._storage.of(segment).read(
                    segment.name, segment.start_offset, first - segment.start_offset
                )
                found.append(MissingBytes(segment.id, segment.name, first, piece.end, before))
        return found

    async def unfit(self) -> Sequence[UnfitSegment]:
        """Return the user segments whose bytes are not all in the log or long-term storage.

        Raises as `open`, and `CorruptionError` if storage has less of a segment than the log says. Looks up every
        segment in memory, including those whose logged bytes are all stored.
        """
        found: dict[int, UnfitSegment] = {}
        metadata = self._state.metadata
        for segment in list(metadata.by_name.values()):
            if not segment.is_system and (unfit := await self._unfit(segment)) is not None:
                found[segment.id] = unfit
            await asyncio.sleep(0)
        for source_id, (target_id, _) in metadata.merges.items():
            target, source = metadata.by_id.get(target_id), metadata.by_id.get(source_id)
            if target is None or source is None or target.is_deleted or target.is_merged or target_id in found:
                continue
            is_pending = any(isinstance(piece, PendingMerge) and piece.source is source for piece in target.pending)
            if is_pending and await self._unfit(source) is not None:
                stored = await self._stored(target)
                found[target_id] = UnfitSegment(target, max(stored.length, target.start_offset), stored)
        return list(found.values())

    async def _unfit(self, segment: Segment) -> UnfitSegment | None:
        stored = await self._stored(segment)
        if stored.length > segment.length:
            return UnfitSegment(segment, stored.length, stored)
        if stored.length < segment.storage_length and not self._state.is_name_taken(segment):
            raise CorruptionError(
                segment.name, stored.length, f"long-term storage should have {segment.storage_length} bytes of it"
            )
        first = max(stored.length, segment.storage_length, segment.start_offset)
        while first < segment.length:
            piece = segment.index.lookup(first, segment.length - first)
            if isinstance(piece, Missing):
                length = max(stored.length, segment.start_offset)
                return UnfitSegment(segment, length, stored)
            first += piece.length
        return UnfitSegment(segment, None, stored) if stored.start_offset > segment.start_offset else None

    async def _stored(self, segment: Segment) -> StoredSegment:
        """Return the stored state of a segment."""
        stored: StoredSegment | None = None
        if not self._state.is_name_taken(segment):
            stored = await self._storage.of(segment).info(segment.name)
        return stored or StoredSegment(segment.name, 0, 0, False)

    async def close(self) -> None:
        """Release the memory. The caller that opened the log closes it."""
        await cancel_and_wait(*self._jobs)
        await self._reader.close()
        for segment in self._state.metadata.by_id.values():
            segment.index.clear()
            segment.close_indexes()
        self._state.backlog.close()

    def _new_tables(self, open_index: Callable[[Segment], SortedIndex] | None) -> Tables:
        return Tables(
            self._settings,
            self._reader,
            append=self._append,
            truncate=self._truncate,
            barrier=self._barrier,
            spawn=self._spawn_job,
            open_index=open_index,
        )

    def _open_index(self, segment: Segment) -> SortedIndex:
        return BTreeIndex(
            self._storage.table_index(segment),
            name=table_index_segment(segment),
            value_length=SLOT_LENGTH,
            cache=self._cache,
            settings=self._settings.index,
        )

    async def _read(self, segment: Segment, offset: int, length: int) -> bytes:
        if self._damage is not None:
            raise self._damage
        return await self._storage.read(segment, offset, length)

    def _note_damage(self, error: BaseException) -> None:
        self._damage = error

    async def _submit(self, operation: NonAppendOperation, accept: Callable[[], object]) -> None:
        accept()

    async def _create(self, name: str, *, flags: SegmentFlags) -> Segment:
        metadata = self._state.metadata
        segment = self._state.accept_create(Create(metadata.next_segment_id, name, int(flags), 0, 0, 0, 0, 0))
        self._state.new_table(segment)
        return segment

    def _append(self, segment: Segment, data: Buffer) -> asyncio.Future[None]:
        raise UnsupportedOperationError(f"{segment.name} is not changed: the container is only read")

    def _truncate(self, segment: Segment, offset: int) -> None:
        raise UnsupportedOperationError(f"{segment.name} is not changed: the container is only read")

    def _barrier(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        future.set_result(None)
        return future

    def _spawn_job(self, what: str, segment: Segment) -> None:
        async def run() -> None:
            try:
                await self._tables.run(what, segment)
            except (PenstockError, OSError) as error:
                logger.info("container %d: %s of %s ended: %s", self.id, what, segment.name, error)

        self._spawn(run())

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
