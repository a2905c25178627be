"""`ContainerStorage`: a container's view of long-term storage.

User segments have their records in the container's storage metadata table, system segments in the container's log. In
both cases a change of a record is an append to the fenced log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from penstock.model.errors import (
    ContainerOfflineError,
    CorruptionError,
    MissingChunkError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    UnreadableDataError,
)
from penstock.model.segments import Buffer, TableEntry, TableRemoval, TableUpdate
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.log.checkpoints import Spawn
from penstock.segmentstore.container.log.operations import NonAppendOperation, UpdatePinned
from penstock.segmentstore.container.reads.read_index import UnflushedBytes
from penstock.segmentstore.container.reads.reader import StorageReadTimeoutError
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage.storage_lookups import StorageLookups
from penstock.segmentstore.container.storage.storage_records import SegmentMetadataTable
from penstock.segmentstore.container.tables.tables import Tables
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.layout_settings import LAYOUT_KEY, LayoutMode, layout_of, next_mode
from penstock.segmentstore.tier2.chunk_joiner import ChunkJoiner
from penstock.segmentstore.tier2.chunk_name import CHUNK_MARK_BYTES
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.chunked_storage import (
    ChunkedStorage,
    ChunkLayout,
    StoredSegment,
)
from penstock.segmentstore.tier2.clean_end import CleanEnd
from penstock.segmentstore.tier2.deferred_deletions import DeferredDeletions
from penstock.segmentstore.tier2.garbage import GarbageQueue
from penstock.segmentstore.tier2.garbage_records import CreationOrder
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable, MetadataTable
from penstock.segmentstore.tier2.orphans import OrphanChunks, Refuse
from penstock.segmentstore.tier2.rolling_layout import RollingLayout
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings
from penstock.segmentstore.tier2.storage_health import StorageHealth

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)

#: Maximum number of damages remembered.
_DAMAGES_MAX = 1000
#: Key of the container's mark among the records of system segments, whose names contain no NUL.
MARK_KEY = b"\0mark"
#: Key of the note that the last incarnation left no chunk without a record when it stopped.
_END_KEY = b"\0end"


class CreateSegment(Protocol):
    """Creates a segment in the container."""

    def __call__(self, name: str, *, flags: SegmentFlags) -> Awaitable[Segment]:
        """Create the segment durably."""


class Submit(Protocol):
    """Accepts an operation and makes it durable, with no await between acceptance and logging."""

    def __call__(self, operation: NonAppendOperation, accept: Callable[[], object]) -> Awaitable[None]:
        """Call `accept` to change the accepted state, log the operation, and return when it is durable."""


def storage_metadata_segment(container_id: int) -> str:
    """Return the name of a container's table of storage records."""
    return f"_system/containers/storage_metadata_{container_id}"


#: Maximum length that the names of index segments add to the name of their segment.
INDEX_SUFFIX_BYTES_MAX = len("$attributes-") + 16


def attribute_index_segment(segment: Segment) -> str:
    """Return the name of a segment's attribute index in long-term storage, unique to the segment."""
    return f"{segment.name}$attributes-{segment.id:x}"


def table_index_segment(segment: Segment) -> str:
    """Return the name of a table's index in long-term storage."""
    return f"{segment.name}$table-{segment.id:x}"


def is_mark(key: bytes) -> bool:
    """Return whether a key among the records of system segments belongs to the container itself, not to a segment."""
    return key in (MARK_KEY, LAYOUT_KEY, _END_KEY)


class Judged(Protocol):
    """Makes a call to long-term storage; accepts reported damage only after confirming ownership of the container."""

    def __call__(self, call: Awaitable[T]) -> Awaitable[T]:
        """Return or raise what `call` does, or `ContainerOfflineError`."""


class ChunkedIndexStorage:
    """`IndexStorage` over one segment of chunked storage that only the storage writer uses."""

    def __init__(
        self,
        storage: ChunkedStorage,
        name: str,
        *,
        chunk_length_max: int,
        judged: Judged,
        read_timeout_s: float,
    ) -> None:
        self._storage = storage
        self._judged = judged
        self._name = name
        self._chunk_length_max = chunk_length_max
        self._read_timeout_s = read_timeout_s

    async def open(self) -> tuple[int, int]:
        """See `IndexStorage.open`."""
        stored = await self._in_time(self._judged(self._storage.open(self._name)), "open it")
        return (0, 0) if stored is None else (stored.start_offset, stored.length)

    async def read(self, offset: int, length: int) -> bytes:
        """See `IndexStorage.read`."""
        data = await self._in_time(
            self._judged(self._storage.read(self._name, offset, length)), f"return {length} bytes at {offset}"
        )
        if len(data) != length:
            raise CorruptionError(
                self._name, offset + len(data), f"{length - len(data)} bytes of the index are missing"
            )
        return data

    async def _in_time(self, call: Awaitable[T], what: str) -> T:
        """Await `call` with a timeout: client calls wait for it, and some of them hold resources that others need."""
        timeout_s = self._read_timeout_s
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                return await call
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise StorageReadTimeoutError(
                f"{self._name}: long-term storage did not {what} within {timeout_s:g} s"
            ) from error

    async def append(self, offset: int, data: Sequence[Buffer]) -> int:
        """See `IndexStorage.append`."""
        return await self._judged(
            self._storage.write(self._name, offset, data, chunk_length_max=self._chunk_length_max)
        )

    async def truncate(self, offset: int) -> None:
        """See `IndexStorage.truncate`."""
        await self._judged(self._storage.truncate(self._name, offset))


class ContainerStorage:
    """Reads and writes of one container's segments in long-term storage."""

    def __init__(
        self,
        container_id: int,
        chunks: ChunkStorage,
        *,
        state: ContainerState,
        submit: Submit,
        epoch: int,
        runtime: Runtime,
        settings: ContainerSettings,
        health: StorageHealth,
        spawn: Spawn,
        refuse: Refuse | None = None,
        is_room_short: Callable[[], bool] = lambda: False,
    ) -> None:
        """`refuse`: raises the error for a chunk of a later epoch, see `StaleLogCheck`. An inspection passes None."""
        #: Damaged or missing chunks, records or segments found in storage; the latest ones.
        self.damages: OrderedDict[str, str] = OrderedDict()
        #: Health of long-term storage as a whole.
        self.health = health
        self._container_id = container_id
        self._chunks = chunks
        self._state = state
        self._submit = submit
        self._spawn = spawn
        self._epoch = epoch
        self._runtime = runtime
        self._settings = settings
        self._storage_settings = ChunkedStorageSettings()
        pinned = state.metadata.pinned
        end = CleanEnd.decode(pinned.get(_END_KEY))
        #: Chunks left without a record.
        self.orphans: OrphanChunks = OrphanChunks(
            chunks,
            settings.orphans,
            mark=pinned.get(MARK_KEY, b""),
            swept_ms=end.swept_ms if end is not None and end.epoch + 1 == epoch else None,
            refuse=refuse,
        )
        self._is_room_short = is_room_short
        table = MemoryMetadataTable(
            [TableEntry(key, value, 0) for key, value in pinned.items() if not is_mark(key)],
            persist=self._persist_pinned,
        )
        self._system = ChunkedStorage(
            chunks,
            table,
            epoch=epoch,
            runtime=runtime,
            settings=self._storage_settings,
            orphans=self.orphans,
            garbage=self._garbage(table),
        )
        self._user: ChunkedStorage
        #: Joiners of small chunks, for system and user segments; empty if joins are disabled.
        self.joiners: Sequence[ChunkJoiner] = ()
        #: Known once `open` has returned.
        self.layout_mode: LayoutMode = LayoutMode.INSTALL_NEW
        #: Stored lengths of the segments in the log. Nothing is flushed before these lookups are complete.
        self.lookups: StorageLookups = StorageLookups(
            container_id,
            state,
            info=lambda segment: self.of(segment).info(segment.name),
            settings=settings,
            note_damage=self.note_damage,
        )

    async def _persist_pinned(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> None:
        values: dict[bytes, bytes | None] = {update.key: update.value for update in updates}
        values.update((removal.key, None) for removal in removals)
        await self._submit(UpdatePinned(values), lambda: self._state.accept_pinned(values))

    async def open(self, create: CreateSegment, tables: Tables, progress: Callable[[], None] = lambda: None) -> None:
        """Find out the stored length of every segment that the log may not show; call `progress` after each.

        Does not wait longer than `recovery_lookup_s` for storage: see `StorageLookups`. Raises as that, and
        `StorageLayoutError` if the layout of storage contradicts the settings.
        """
        await self._settle_layout()
        table = await self.open_records(create, tables)
        by_name = self._state.metadata.by_name
        await self.lookups.begin([segment for segment in by_name.values() if segment is not table], progress)

    async def _settle_layout(self) -> None:
        """Determine the layout mode of this incarnation, and record it."""
        try:
            before = layout_of(self._state.metadata.pinned)
        except LaterFormatError as error:
            raise error.at(f"the log of container {self._container_id}") from error
        self.layout_mode = next_mode(before, self._settings.layout.mode)
        if self.layout_mode is not before:
            await self._persist_pinned([TableUpdate(LAYOUT_KEY, self.layout_mode.encode())], [])

    async def open_records(self, create: CreateSegment, tables: Tables) -> Segment:
        """Open the records of stored segments, the first part of `open`; return the table with those of user segments.

        Raises `CorruptionError` if it cannot be read.
        """
        if not self.orphans.mark:
            mark = self._runtime.rng.randbytes(CHUNK_MARK_BYTES)
            await self._persist_pinned([TableUpdate(MARK_KEY, mark)], [])
            self.orphans.mark = mark
            # No chunks have been created with it.
            self.orphans.swept_ms = self._runtime.wall_clock_ms()
        name = storage_metadata_segment(self._container_id)
        table = self._state.metadata.by_name.get(name)
        if table is None:
            table = await create(name, flags=SegmentFlags.TABLE | SegmentFlags.SYSTEM)
        else:
            await self.lookups.resolve(table)
        records = SegmentMetadataTable(tables, table, self._spawn)
        self._user = ChunkedStorage(
            self._chunks,
            records,
            epoch=self._epoch,
            runtime=self._runtime,
            settings=self._storage_settings,
            orphans=self.orphans,
            garbage=self._garbage(records),
        )
        return table

    def _garbage(self, table: MetadataTable) -> GarbageQueue:
        return GarbageQueue(
            self._chunks,
            table,
            epoch=self._epoch,
            settings=self._settings.garbage,
            wall_clock_ms=self._runtime.wall_clock_ms,
            check_owner=self.check_owner,
            is_room_short=self._is_room_short,
        )

    def of(self, segment: Segment) -> ChunkedStorage:
        """Return the storage that holds a segment's records."""
        return self._system if segment.is_system else self._user

    async def user_info(self, name: str) -> StoredSegment | None:
        """Return the stored state of a user segment, whether or not the log has the segment."""
        return await self._user.info(name)

    def first_unflushed(self, segment: Segment) -> int:
        """Return the sequence number of the first operation whose bytes storage does not have (huge if none).

        Removes stored pieces from the segment's pending list. A truncation counts like bytes, because otherwise the
        chunks it frees would be forgotten when the log is truncated. A seal is part of every checkpoint.
        """
        return segment.pending.first_unflushed(segment.storage_length)

    async def open_for_write(self, segment: Segment) -> StoredSegment | None:
        """Claim a segment's storage for this incarnation."""
        return await self.of(segment).open(segment.name)

    async def read(self, segment: Segment, offset: int, length: int) -> bytes:
        """Return exactly `length` verified bytes."""
        return await self._judged(self.of(segment).read(segment.name, offset, length))

    async def write(self, segment: Segment, offset: int, data: UnflushedBytes) -> int:
        """Append at the stored length; return the new stored length.

        Raises `InconsistentStateError`, with nothing stored, if a checksum differs from the one on arrival.
        """
        return await self.of(segment).write(
            segment.name,
            offset,
            data.data,
            chunk_length_max=self._chunk_length_max(segment),
            arrived=data.checksummed_blocks,
        )

    async def write_ahead(
        self, segment: Segment, offset: int, take: Callable[[int], UnflushedBytes | None], stored: Callable[[int], None]
    ) -> None:
        """Append the pieces that `take` returns, in consecutive writes. See `ChunkedStorage.write_ahead`."""
        await self.of(segment).write_ahead(
            segment.name,
            offset,
            take,
            stored,
            writes_max=self._settings.flush_writes_max,
            chunk_length_max=self._chunk_length_max(segment),
        )

    def _chunk_length_max(self, segment: Segment) -> int | None:
        rollover_bytes = segment.rollover_bytes
        return max(rollover_bytes, self._settings.rollover_bytes_min) if rollover_bytes else None

    async def check_owner(self) -> None:
        """Return if this incarnation still owns the container, or raise `ContainerOfflineError`.

        Call this before reporting corruption: a fenced incarnation finds chunks missing that its successor has freed.
        The log determines the owner.
        """
        try:
            await self._submit(UpdatePinned({}), _nothing)
        except OutcomeUnknownError as error:
            raise ContainerOfflineError(self._container_id, str(error)) from error

    async def judge(self, error: UnreadableDataError) -> None:
        """Return if `error` is real; the caller then raises it. Raises `ContainerOfflineError` if not the owner."""
        await self.check_owner()
        self.note_damage(error)
        if isinstance(error, MissingChunkError):
            self.health.note_missing(error.path)

    def note_damage(self, error: UnreadableDataError) -> None:
        """Record damage of one segment, for operators and probes."""
        if error.path not in self.damages:
            logger.error("container %d: %s", self._container_id, error)
            self.damages[error.path] = str(error)
            if len(self.damages) > _DAMAGES_MAX:
                self.damages.popitem(last=False)

    async def _judged(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except UnreadableDataError as error:
            await self.judge(error)
            raise

    def attribute_index(self, segment: Segment) -> ChunkedIndexStorage:
        """Return where a segment's attribute index is stored."""
        return self._index(segment, attribute_index_segment(segment))

    def table_index(self, segment: Segment) -> ChunkedIndexStorage:
        """Return where a table's index is stored."""
        return self._index(segment, table_index_segment(segment))

    def _index(self, segment: Segment, name: str) -> ChunkedIndexStorage:
        return ChunkedIndexStorage(
            self.of(segment),
            name,
            chunk_length_max=self._settings.index_chunk_bytes_max,
            judged=self._judged,
            read_timeout_s=self._settings.storage_read_timeout_s,
        )

    async def delete_indexes(self, segment: Segment) -> None:
        """Free the indexes of a deleted or merged segment. May be repeated."""
        for name in self._index_names(segment):
            try:
                await self.of(segment).delete(name)
            except NoSuchSegmentError:
                pass  # The index was never written, or was freed before a crash.

    @staticmethod
    def _index_names(segment: Segment) -> Iterator[str]:
        if segment.has_attribute_index:
            yield attribute_index_segment(segment)
        if segment.is_table:
            yield table_index_segment(segment)

    def start_collecting(self) -> None:
        """Start the periodic deletion of unlinked chunks, which runs as long as the container."""
        for storage in (self._system, self._user):
            self._spawn(storage.garbage.run(self.judge))

    def start_joining(self, is_pressed: Callable[[], bool]) -> None:
        """Start joining small chunks, if enabled, for as long as the container runs; pauses while `is_pressed`."""
        settings = self._settings.joins
        if settings.interval_s <= 0 or (self._chunks.supports_append and not settings.is_for_appending):
            return

        def is_busy() -> bool:
            return is_pressed() or self._is_room_short() or not self.health.is_available

        self.joiners = [ChunkJoiner(storage, settings, is_busy=is_busy) for storage in (self._system, self._user)]
        for joiner in self.joiners:
            self._spawn(joiner.run(self.judge))

    async def run_sweeps(self) -> None:
        """Sweep periodically for chunks that earlier incarnations left without a record."""
        await self.orphans.run_sweeps(self._epoch, self.unrecorded, self._runtime.wall_clock_ms)

    def close(self) -> UpdatePinned | None:
        """Stop the creation of chunks; return the operation to log if no chunk is left without a record.

        Called when the container stops. See docs/orphan-chunks.md.
        """
        is_clean = self.orphans.close()
        held = self._chunks
        if isinstance(held, DeferredDeletions) and (len(held) or held.has_forgotten):
            is_clean = False
        if not is_clean or self.orphans.swept_ms is None:
            return None
        return UpdatePinned({_END_KEY: CleanEnd(self._epoch, self.orphans.swept_ms).encode()})

    async def unrecorded(self, names: Sequence[str]) -> Sequence[str]:
        """Return those of the named chunks of earlier epochs that no record refers to, or ever will.

        Raises `ContainerOfflineError` if this incarnation was fenced.
        """
        left = await self._system.unrecorded(names)
        if left:
            left = await self._user.unrecorded(left)
        if left:
            # A record may be removed in memory only. If the removal is never logged, the next incarnation has the
            # record.
            await self.check_owner()
        return left

    async def leased_layout(
        self,
        segment: Segment,
        lease_s: float,
        *,
        holder: str,
        start: int | None = None,
        end: int | None = None,
        limit: int | None = None,
    ) -> tuple[CreationOrder, list[ChunkLayout]]:
        """Return the same as `layout`, with a lease that prevents deletion of these chunks. See `ChunkedStorage`."""
        return await self.of(segment).leased_layout(
            segment.name, lease_s, holder=holder, offset=start, end=end, limit=limit
        )

    async def release_layout(self, lease: CreationOrder) -> None:
        """Release a lease of `leased_layout` on a user segment."""
        await self._user.garbage.leases.release(lease)

    async def adopt(self, layout: RollingLayout, progress: Callable[[int], None]) -> StoredSegment | None:
        """Store records of a segment from an older store. See `ChunkedStorage.adopt`."""
        return await self._user.adopt(layout, progress)

    async def reserve(self, name: str, became: str) -> None:
        """Reserve `name` of an older store for adoption as another segment. See `ChunkedStorage.reserve`."""
        await self._user.reserve(name, became)

    async def is_adopted(self, segment: Segment) -> bool:
        """Return whether a segment of this name was ever adopted from an older store."""
        return await self._user.is_adopted(segment.name)

    async def layout(
        self, segment: Segment, *, start: int | None = None, end: int | None = None, limit: int | None = None
    ) -> list[ChunkLayout]:
        """Return the chunks that hold a segment, for readers that access storage directly. See `ChunkedStorage`."""
        return await self.of(segment).chunks_of(segment.name, offset=start, end=end, limit=limit)


def _nothing() -> None:
    """Do nothing: an empty operation changes no state."""
