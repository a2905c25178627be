"""`ChunkedStorage`: segments in long-term storage, as chunks (PDP-34).

Chunks hold the bytes; records in a `MetadataTable` define which bytes are valid. The table is fenced by tier 1, so only
the newest epoch of a container changes records. An older one that still runs may write bytes, but they are never read:

1. A chunk is appended to only by the epoch that created it.
2. The first write after a claim begins a new chunk.
3. Bytes after a chunk's recorded length are never read.

Changes of one segment are serialised; those of different segments, and all reads, run concurrently. Every byte read is
verified against the checksum of its block.

Deliberately omitted: relocation of a partly truncated first chunk. A merged segment keeps its chunks until small ones
are joined in the background (`chunk_joiner`). Source: segment-store 8.1 to 8.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchSegmentError,
    PenstockError,
    SegmentError,
    StorageConflictError,
    StorageNotPrimaryError,
    UnreadableDataError,
)
from penstock.model.segments import Buffer
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container_settings import GarbageSettings, JoinSettings
from penstock.segmentstore.tier2.chunk_lookup import ExtentGoneError
from penstock.segmentstore.tier2.chunk_name import check_chunk_name, chunk_origin
from penstock.segmentstore.tier2.chunk_run import ChunkRun, run_of, runs_of
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.garbage import GarbageQueue
from penstock.segmentstore.tier2.garbage_records import SEGMENTS_FIRST, CreationOrder
from penstock.segmentstore.tier2.metadata import MetadataTable
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.records import StoredSegmentRecord, decode_record, leads_to
from penstock.segmentstore.tier2.rolling_layout import RollingLayout
from penstock.segmentstore.tier2.segment_adoption import adopt_segment, adopted_as, reserve_segment
from penstock.segmentstore.tier2.segment_concat import concat_segment
from penstock.segmentstore.tier2.segment_join import JoinStep, commit_join, copy_chunks, find_join, is_still_there
from penstock.segmentstore.tier2.segment_read import load_existing, placed_chunks, read_segment
from penstock.segmentstore.tier2.segment_removal import delete_segment, truncate_segment
from penstock.segmentstore.tier2.segment_skip import skip_segment
from penstock.segmentstore.tier2.segment_write import write_segment
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings, StorageContext
from penstock.segmentstore.tier2.turns import yield_to_loop
from penstock.segmentstore.tier2.write_ahead import NextWrite, TakeNext, write_segment_ahead

#: Records read at a time when only the first is needed; more than one because a table page may skip deleted keys.
_RUNS_PAGE_LENGTH = 16


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment in long-term storage: bytes [`start_offset`, `length`) can be read."""

    name: str
    start_offset: int
    length: int
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """A chunk's place in its segment, for readers that read chunks themselves.

    The chunk's first `length` bytes are the segment's bytes from `start_offset` on; further bytes in the chunk are not
    part of the segment. The first chunk of a truncated segment may begin before the segment's start. `block_checksums`
    are the CRC32C of its blocks of `block_length` bytes: see `block_checksums.verify_blocks`.
    """

    name: str
    start_offset: int
    length: int
    block_length: int
    block_checksums: tuple[int, ...]


class ChunkedStorage:
    """Segments of one container incarnation (`epoch`) in `chunks`, with their records in `metadata`.

    Chunks left behind unrecorded are added to `orphans`. Unlinked chunks go to `garbage`, which deletes them at once
    unless one is given.

    Except for the typed refusals named at each call, the outcome of a call that raises is unknown until `open` or
    `info` returns what is recorded. Cancelling has the same effect. Repeating the call is always safe: a write that was
    applied raises `BadOffsetError`.

    Every changing call raises `StorageNotPrimaryError` once a later epoch has claimed the segment, `CorruptionError` if
    records contradict each other or chunks do not match their records, `StorageFullError`.
    """

    def __init__(
        self,
        chunks: ChunkStorage,
        metadata: MetadataTable,
        *,
        epoch: int,
        runtime: Runtime,
        settings: ChunkedStorageSettings | None = None,
        orphans: OrphanChunks | None = None,
        garbage: GarbageQueue | None = None,
    ) -> None:
        self.garbage: GarbageQueue = garbage or GarbageQueue(
            chunks,
            metadata,
            epoch=epoch,
            settings=GarbageSettings(delay_s=0.0),
            wall_clock_ms=runtime.wall_clock_ms,
        )
        self._context = StorageContext(
            chunks,
            metadata,
            epoch=epoch,
            runtime=runtime,
            settings=settings or ChunkedStorageSettings(),
            orphans=OrphanChunks(chunks) if orphans is None else orphans,
            garbage=self.garbage,
        )
        self._locks = _SegmentLocks(self._context.settings.operations_max)

    @property
    def epoch(self) -> int:
        """The epoch under which this instance changes segments."""
        return self._context.epoch

    async def open(self, segment: str) -> StoredSegment | None:
        """Claim a segment for this epoch and return its state; None if nothing of it is stored.

        Raises `StorageNotPrimaryError` if a later epoch has claimed it.
        """
        check_chunk_name(segment)
        async with self._locks.hold(segment):
            # Not from the cache: the caller needs the current state.
            transaction = self._context.transaction(is_cached=False)
            known = await transaction.segment(segment)
            record = await self._context.load_owned(transaction, segment)
            if record is None or not record.is_active:
                return None
            await self._context.load_last(transaction, record)
            if record != known:
                transaction.put(record)
                await self._context.commit(transaction, segment)
            return _stored(record)

    async def write(
        self,
        segment: str,
        offset: int,
        data: Sequence[Buffer],
        *,
        chunk_length_max: int | None = None,
        arrived: Sequence[tuple[Buffer, int]] = (),
    ) -> int:
        """Append `data` at `offset`, which must be the stored length, and return the new length.

        All or nothing, except for data of more than `written_chunks_per_commit_max` chunks: a prefix of these may be
        stored although the call fails.

        A segment of which nothing is stored is created, and may begin at any `offset`. `chunk_length_max` (bytes; None
        or 0: unchanged, or the default) bounds this segment's chunks from now on. The buffers are not copied and must
        not change until the call ends. A segment not yet claimed is claimed by the same commit.

        `arrived`: the buffers of which `data` are (parts), in order, each with the CRC32C that it had when it entered
        this process. They are compared before anything of `data` is committed.

        Raises `BadOffsetError`, `SegmentSealedError`, `StorageFullError`, `InconsistentStateError` (about `arrived`);
        nothing was stored then.
        """
        check_chunk_name(segment)
        if offset < 0 or (chunk_length_max is not None and chunk_length_max < 0):
            raise InvalidArgumentError(
                f"{segment}: offset {offset} and chunk_length_max {chunk_length_max} must not be negative"
            )
        async with self._change(segment):
            return await write_segment(self._context, segment, offset, data, chunk_length_max, arrived)

    async def write_ahead(
        self,
        segment: str,
        offset: int,
        take: TakeNext,
        stored: Callable[[int], None],
        *,
        writes_max: int,
        chunk_length_max: int | None = None,
    ) -> int:
        """Append by several writes, each started while the one before is recorded; return the new length.

        `take` is called for the bytes from an offset on, when the next write can begin, until it returns None or
        another operation waits for this segment. At most `writes_max` writes are started and not yet recorded. `stored`
        is called with the new length once a write is recorded, in order; only these bytes are stored. If an error is
        raised, everything up to there is stored; for the next write the rules of `write` apply, and of later ones
        nothing is stored.

        Everything else as `write`.
        """
        check_chunk_name(segment)

        def next_write(position: int) -> NextWrite | None:
            return None if position != offset and self._locks.is_waited_for(segment) else take(position)

        async with self._change(segment):
            return await write_segment_ahead(
                self._context, segment, offset, next_write, stored,
                writes_max=writes_max, chunk_length_max=chunk_length_max,
            )  # fmt: skip

    async def read(self, segment: str, offset: int, length: int) -> bytes:
        """Return `length` verified bytes from `offset`, fewer only at the stored end. Claims nothing.

        Raises:
            NoSuchSegmentError: nothing is stored.
            SegmentTruncatedError: `offset` is before the start.
            InvalidArgumentError: `offset` is not before the stored end, and `length` is not 0.
            CorruptionError: a chunk is missing, short or changed; names the chunk and the byte. No bytes are returned.
        """
        return await read_segment(self._context, segment, offset, length)

    async def truncate(self, segment: str, offset: int) -> None:
        """Drop the bytes before `offset`, and delete the chunks that lie entirely before it. Also for sealed segments.

        Does nothing if the segment begins there or later. Raises `NoSuchSegmentError`, `BadOffsetError` beyond the
        stored length.
        """
        async with self._change(segment):
            await truncate_segment(self._context, segment, offset)

    async def skip(self, segment: str, offset: int) -> None:
        """Drop all bytes of a segment, and set its start and end to `offset`: bytes in between are never written.

        A segment of which nothing is stored is created. Raises `BadOffsetError` if bytes after `offset` are stored,
        `SegmentSealedError`.
        """
        check_chunk_name(segment)
        async with self._change(segment):
            await skip_segment(self._context, segment, offset)

    async def seal(self, segment: str) -> None:
        """Prevent further writes. Idempotent. Raises `NoSuchSegmentError`."""
        async with self._change(segment):
            transaction = self._context.transaction()
            record = await self._context.load_owned(transaction, segment)
            if record is None or not record.is_active:
                raise NoSuchSegmentError(segment)
            if record.is_sealed and record == await transaction.segment(segment):
                return
            transaction.put(replace(record, is_sealed=True, last_modified_ms=self._context.runtime.wall_clock_ms()))
            await self._context.commit(transaction, segment)

    async def delete(self, segment: str) -> None:
        """Delete a segment: it does not exist from the first commit on; then its chunks are deleted. Idempotent.

        A call that fails or is interrupted is continued by the next one, or by the first write to the same name.
        """
        async with self._change(segment):
            await delete_segment(self._context, segment)

    async def concat(self, target: str, offset: int, source: str) -> int:
        """Append the whole sealed `source` to `target` at `offset`, its stored length; return the new length.

        The source is removed. A target of which nothing is stored is created.

        Raises:
            NoSuchSegmentError: no source; it was already merged, or nothing of it was ever stored.
            BadOffsetError, SegmentSealedError: about the target.
            SegmentTruncatedError: the source's start was truncated.
            InvalidArgumentError: the source is not sealed, or both are the same.
        """
        check_chunk_name(target)
        if target == source or offset < 0:
            raise InvalidArgumentError(f"cannot merge segment {source!r} into {target!r} at {offset}")
        async with self._change(target, source):
            return await concat_segment(self._context, target, offset, source)

    async def adopt(
        self, layout: RollingLayout, progress: Callable[[int], None] = lambda count: None
    ) -> StoredSegment | None:
        """Create records for a segment of RollingStorage; return its state. Its chunks are read, and stay unchanged.

        None if it was adopted before and deleted since. A call that failed or was interrupted is continued by the next
        one; a completed one is not repeated. `progress` is called with the number of bytes read.

        Raises `AdoptionError` if something else is stored under that name.
        """
        async with self._change(layout.segment):
            record = await adopt_segment(self._context, layout, progress)
            return None if record is None else _stored(record)

    async def is_adopted(self, segment: str) -> bool:
        """Return whether `adopt` was ever started for a segment of this name."""
        return await adopted_as(self._context, segment) == segment

    async def reserve(self, segment: str, became: str) -> None:
        """Ensure that the `segment` of an older store is adopted only as `became`, and never under its own name.

        Idempotent. Raises `AdoptionError` if it was adopted, or reserved, as another segment.
        """
        check_chunk_name(segment)
        async with self._change(segment):
            await reserve_segment(self._context, segment, became)

    async def info(self, segment: str) -> StoredSegment | None:
        """Return a segment's state without claiming it; None if nothing of it is stored."""
        try:
            return _stored(await load_existing(self._context.transaction(), segment))
        except NoSuchSegmentError:
            return None

    async def chunks_of(
        self, segment: str, *, offset: int | None = None, end: int | None = None, limit: int | None = None
    ) -> list[ChunkLayout]:
        """Return a segment's chunks in order, as of one moment. Raises `NoSuchSegmentError`.

        From the one that holds `offset` (None: the first) to the one that holds the byte before `end` (None: the last),
        at most `limit` of them (None: all). Request the chunks of a segment with very many in pages, each from the end
        of the last chunk of the previous page.

        The listed bytes never change, also after later writes and merges. Unlinked chunks are kept for some time
        (`GarbageSettings.delay_s`), or for as long as a lease taken before: see `leased_layout`. A reader that misses
        one requests the layout again and continues from its offset, or gets an error if that was truncated or deleted.
        """
        if (offset is not None and offset < 0) or (limit is not None and limit <= 0):
            raise InvalidArgumentError(f"{segment}: {limit} chunks from offset {offset} on were requested")
        async with self._locks.hold(segment):
            layouts: list[ChunkLayout] = []
            for placed in await placed_chunks(self._context, segment, offset, limit, end):
                chunk = placed.chunk
                await yield_to_loop(len(layouts))
                layouts.append(
                    ChunkLayout(
                        chunk.name, placed.start_offset, chunk.length, chunk.block_length, chunk.block_checksums
                    )
                )
            return layouts

    async def leased_layout(
        self,
        segment: str,
        lease_s: float,
        *,
        holder: str,
        offset: int | None = None,
        end: int | None = None,
        limit: int | None = None,
    ) -> tuple[CreationOrder, list[ChunkLayout]]:
        """Return a lease, and a segment's chunks, none of which is deleted before the lease ends.

        The chunks are those of `chunks_of`; the lease also covers the remaining ones, so later pages need no lease.
        Release it with `garbage.leases.release`. Raises `TooManyLeasesError`, and what `chunks_of` raises.
        """
        leases = self.garbage.leases
        lease = await leases.grant(lease_s, holder)
        try:
            async with self._locks.hold(segment):
                await self._settle_doubts(segment)
            return lease, await self.chunks_of(segment, offset=offset, end=end, limit=limit)
        except BaseException as error:  # Also releases the lease on cancellation.
            try:
                await leases.release(lease)
            except PenstockError as second:
                error.add_note(f"and its lease lasts until it expires: {second}")
            raise

    async def _settle_doubts(self, segment: str) -> None:
        """Resolve a commit on `segment` whose outcome is unknown; otherwise it might unlink chunks later."""
        context = self._context
        if not context.cache.is_doubtful(segment):
            return
        transaction = context.transaction()
        record = await context.load_owned(transaction, segment)
        if record is not None:
            transaction.put(record)
            await context.commit(transaction, segment)

    async def list_segments(self) -> AsyncIterator[StoredSegment]:
        """Yield every stored segment. Those that exist throughout are yielded exactly once."""
        token: bytes | None = b""
        while token is not None:
            records, token = await self.segments_after(token)
            for record in records:
                yield _stored(record)

    async def segments_after(self, token: bytes) -> tuple[list[StoredSegmentRecord], bytes | None]:
        """Return the records of some segments after `token`, and the token of the next page; None after the last."""
        page = await self._context.table.page(
            limit=self._context.settings.page_length, token=token, first=SEGMENTS_FIRST
        )
        if not page.entries:
            return [], None
        records = [decode_record(entry.key, entry.value) for entry in page.entries]
        # All records of a segment's chunks are adjacent; skip them.
        run = run_of(page.token)
        found = [record for record in records if isinstance(record, StoredSegmentRecord) and record.is_active]
        return found, page.token if run is None else runs_of(run.segment)[1]

    async def join_chunks(self, segment: str, low: int, upper: int, settings: JoinSettings) -> JoinStep:
        """Copy some small chunks in [`low`, `upper`) of a segment, the uppermost ones, into one; see `segment_join`.

        Reads and writes continue meanwhile. Raises `CorruptionError` for damage of stored data.
        """
        found = await find_join(self._context, segment, low, upper, settings)
        plan = found.plan
        if plan is None:
            return JoinStep(found.upper, found.scanned_count, 0, 0)
        try:
            joined = await copy_chunks(self._context, plan, settings)
        except ExtentGoneError as error:
            async with self._change(segment):
                if await is_still_there(self._context, plan):
                    raise error.cause from error
            return JoinStep(low, found.scanned_count, 0, plan.length)
        async with self._change(segment):
            is_done = await commit_join(self._context, plan, joined)
        if not is_done:
            return JoinStep(low, found.scanned_count, 0, plan.length)
        return JoinStep(found.upper, found.scanned_count, len(plan.chunks), plan.length)

    async def unrecorded(self, names: Sequence[str]) -> list[str]:
        """Return those of `names`, chunks created by earlier epochs, to which no record refers, or ever will.

        Unlinked chunks in the garbage queue are left to it: leases may hold them back.

        As earlier epochs are fenced once this epoch's table responds, no record will ever refer to the returned chunks.
        This does not hold for chunks of this epoch: a commit whose outcome is unknown may still refer to them.
        """
        found: list[str] = []
        runs: dict[str, list[ChunkRun]] = {}
        step = self._context.settings.page_length
        for at in range(0, len(names), step):
            page = names[at : at + step]
            # Wherever a chunk was merged to, its record stays where it was created: in a run of its segment, at its
            # offset.
            keys: list[bytes] = []
            owners: list[str] = []
            for name in page:
                origin = chunk_origin(name)
                if origin is None:
                    continue
                if origin.segment not in runs:
                    runs[origin.segment] = await self._runs(origin.segment)
                keys += (run.key(origin.offset) for run in runs[origin.segment])
                owners += [name] * len(runs[origin.segment])
            entries = await self._context.table.get(keys) if keys else ()
            recorded = {
                name
                for name, entry in zip(owners, entries, strict=True)
                if entry is not None and leads_to(entry.key, entry.value, name)
            }
            found += (name for name in page if name not in recorded)
            await asyncio.sleep(0)
        if found:
            # After the records: a chunk unlinked in between is in the queue, or was and is deleted.
            queued = await self.garbage.queued(found)
            found = [name for name in found if name not in queued]
        return found

    async def _runs(self, segment: str) -> list[ChunkRun]:
        """Return the runs written to segments of this name that still have records."""
        found: list[ChunkRun] = []
        first, last = runs_of(segment)
        while (page := await self._context.table.page(limit=_RUNS_PAGE_LENGTH, first=first, last=last)).entries:
            run = run_of(page.entries[0].key)
            assert run is not None
            found.append(run)
            first = run.last_key + b"\0"
        return found

    @asynccontextmanager
    async def _change(self, *segments: str) -> AsyncIterator[None]:
        """Hold the locks of `segments`. Verifies refusals and damage against the table before they are raised.

        An instance that has lost its segments may have old records cached, whose chunks its successor deleted. It must
        neither refuse for the wrong reason nor report corruption, which stops containers.
        """
        async with self._locks.hold(*segments):
            try:
                yield
            except (SegmentError, UnreadableDataError) as error:
                remembered = {segment: self._context.cache.get(segment.encode()) for segment in segments}
                transaction = self._context.transaction(is_cached=False)
                for segment in segments:
                    record = await transaction.segment(segment)
                    if record is not None and record.owner_epoch > self.epoch:
                        raise StorageNotPrimaryError(
                            segment, owner_epoch=record.owner_epoch, epoch=self.epoch
                        ) from error
                    known = remembered[segment]
                    if known is not None and known.record != record:
                        self._context.cache.forget([segment.encode()])
                        why = "it was changed concurrently; nothing was applied"
                        raise StorageConflictError(segment, why) from error
                raise


class _SegmentLocks:
    """One lock per segment with a change in progress or waiting; at most `operations_max` of these."""

    def __init__(self, operations_max: int) -> None:
        self._slots = asyncio.Semaphore(operations_max)
        self._locks: dict[str, asyncio.Lock] = {}
        self._user_counts: dict[str, int] = {}

    def is_waited_for(self, segment: str) -> bool:
        """Return whether another operation waits for a lock that is held."""
        return self._user_counts.get(segment, 0) > 1

    @asynccontextmanager
    async def hold(self, *segments: str) -> AsyncIterator[None]:
        """Hold the locks of `segments`, taken in the order of their names to prevent deadlock."""
        async with self._slots, AsyncExitStack() as held:
            for segment in sorted(segments):
                await held.enter_async_context(self._hold_one(segment))
            yield

    @asynccontextmanager
    async def _hold_one(self, segment: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(segment, asyncio.Lock())
        self._user_counts[segment] = self._user_counts.get(segment, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._user_counts[segment] -= 1
            if not self._user_counts[segment]:
                del self._user_counts[segment], self._locks[segment]


def _stored(record: StoredSegmentRecord) -> StoredSegment:
    return StoredSegment(record.name, record.start_offset, record.length, record.is_sealed)
