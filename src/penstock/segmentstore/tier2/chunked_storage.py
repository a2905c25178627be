"""`ChunkedStorage`: segments in long-term storage, as chunks (PDP-34).

Chunks hold the bytes, records in a `MetadataTable` say which bytes count. The table is fenced by tier 1, so only the
newest epoch of a container changes records; an older one that still runs may write bytes, but nobody reads them:

1. A chunk is appended to only by the epoch that created it.
2. The first write after a claim begins a new chunk.
3. Bytes behind a chunk's recorded length are never read.

Changes of one segment follow each other, those of different segments and all reads run side by side. Every byte read
is verified against the checksums of its block.

Left out on purpose: relocation of a half truncated first chunk. A merged segment keeps the chunks it came with, until
small ones are joined in the background (`chunk_joiner`). Source: segment store specification, sections 8.1 to 8.8.
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
from penstock.segmentstore.tier2.garbage_records import SEGMENTS_FIRST, Place
from penstock.segmentstore.tier2.metadata import MetadataTable
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.records import SegmentRecord, decode_record, leads_to
from penstock.segmentstore.tier2.rolling_layout import RollingLayout
from penstock.segmentstore.tier2.segment_adoption import adopt_segment, adopted_as, reserve_segment
from penstock.segmentstore.tier2.segment_concat import concat_segment
from penstock.segmentstore.tier2.segment_join import JoinStep, commit_join, copy_chunks, find_join, is_still_there
from penstock.segmentstore.tier2.segment_read import load_existing, placed_chunks, read_segment
from penstock.segmentstore.tier2.segment_removal import delete_segment, truncate_segment
from penstock.segmentstore.tier2.segment_skip import skip_segment
from penstock.segmentstore.tier2.segment_write import write_segment
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings, StorageContext
from penstock.segmentstore.tier2.turns import let_others_go_on
from penstock.segmentstore.tier2.write_ahead import NextWrite, TakeNext, write_segment_ahead

#: Records taken at a time where the first is wanted. Some, since a table passes over keys that went by so many.
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

    The chunk's first `length` bytes are the segment's bytes from `start_offset` on; there may be more in the chunk,
    which count for nothing. The first chunk of a truncated segment may begin before the segment's start.
    `block_checksums` are the CRC32C of its blocks of `block_length` bytes: see `block_checksums.verify_blocks`.
    """

    name: str
    start_offset: int
    length: int
    block_length: int
    block_checksums: tuple[int, ...]


class ChunkedStorage:
    """Segments of one container incarnation (`epoch`) in `chunks`, with their records in `metadata`.

    What is left behind of chunks that were never recorded is told to `orphans`; what was unlinked goes to `garbage`,
    which deletes it at once unless one is given.

    Whatever a call raises except for the typed refusals named at each, its outcome is unknown until `open` or `info`
    says what is recorded. Cancelling has the same effect. Repeating the call is always safe: a write that was applied
    raises `BadOffsetError`.

    Every changing call raises `StorageNotPrimaryError` once a later epoch has claimed the segment, `CorruptionError`
    when records contradict each other or chunks are not what records say, `StorageFullError`.
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
        """The epoch that this instance changes segments under."""
        return self._context.epoch

    async def open(self, segment: str) -> StoredSegment | None:
        """Claim a segment for this epoch and return its state; None when nothing of it is stored.

        Raises `StorageNotPrimaryError` when a later epoch has claimed it.
        """
        check_chunk_name(segment)
        async with self._locks.hold(segment):
            # Not from the cache: the caller asks because it wants to know what is true now.
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

        All or nothing, but for data of more than `written_chunks_per_commit_max` chunks: of these some may be stored
        although the call fails, always a head of them.

        A segment of which nothing is stored is created, and may begin at any `offset`. `chunk_length_max` (bytes;
        None or 0 as before, or the default) bounds this segment's chunks from now on. The buffers are not copied and
        must not change until the call ends. A segment not yet claimed is claimed by the same commit.

        `arrived`: what `data` are (parts of), in order, each with the CRC32C that it had when it came into this
        process. They are compared before anything of `data` is committed.

        Raises `BadOffsetError`, `SegmentSealedError`, `StorageFullError`, `InconsistentStateError` (about `arrived`);
        nothing was stored.
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
        """Append by several writes, each under way while the one before is recorded; return the new length.

        `take` is asked for the bytes from an offset on, when the next write can begin, until it returns None, or until
        somebody else waits for this segment. At most `writes_max` writes are begun and not yet recorded. `stored` is
        told the new length once a write is recorded, in order; nothing else counts as stored. Whatever is raised, all
        up to there is stored; of the write behind it `write` says what may be, and of those behind that nothing is.

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
            SegmentTruncatedError: `offset` lies before the start.
            InvalidArgumentError: `offset` is not before the stored end, and `length` is not 0.
            CorruptionError: a chunk is gone, cut or changed; names the chunk and the byte. No bytes are returned.
        """
        return await read_segment(self._context, segment, offset, length)

    async def truncate(self, segment: str, offset: int) -> None:
        """Forget the bytes before `offset`, and delete the chunks that lie before it whole. Sealed ones, too.

        Nothing happens when the segment begins there or later. Raises `NoSuchSegmentError`, `BadOffsetError` beyond
        the stored length.
        """
        async with self._change(segment):
            await truncate_segment(self._context, segment, offset)

    async def skip(self, segment: str, offset: int) -> None:
        """Forget all bytes of a segment, and let it begin, and end, at `offset`: what lies between will never be there.

        A segment of which nothing is stored is created. Raises `BadOffsetError` when bytes behind `offset` are stored,
        `SegmentSealedError`.
        """
        check_chunk_name(segment)
        async with self._change(segment):
            await skip_segment(self._context, segment, offset)

    async def seal(self, segment: str) -> None:
        """Allow no more writes. Idempotent. Raises `NoSuchSegmentError`."""
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
        """Delete a segment: from its first commit on it does not exist; then its chunks go. Idempotent.

        A call that fails or is interrupted is continued by the next one, or by the first write to the same name.
        """
        async with self._change(segment):
            await delete_segment(self._context, segment)

    async def concat(self, target: str, offset: int, source: str) -> int:
        """Append the sealed `source` whole to `target` at `offset`, its stored length; return the new length.

        The source is gone afterwards. A target of which nothing is stored is created.

        Raises:
            NoSuchSegmentError: no source; it was merged already, or nothing of it was ever stored.
            BadOffsetError, SegmentSealedError: about the target.
            SegmentTruncatedError: the source has lost its head.
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
        """Give a segment of RollingStorage records; return its state. Its chunks are read, and stay as they are.

        None if it was adopted before, and deleted since. A call that failed or was interrupted is continued by the next
        one, and one that was done finds nothing to do. `progress` is told of bytes that were read.

        Raises `AdoptionError` when something else is stored under that name.
        """
        async with self._change(layout.segment):
            record = await adopt_segment(self._context, layout, progress)
            return None if record is None else _stored(record)

    async def is_adopted(self, segment: str) -> bool:
        """Say whether `adopt` was begun of a segment of this name, ever."""
        return await adopted_as(self._context, segment) == segment

    async def reserve(self, segment: str, became: str) -> None:
        """Make sure that what an older store left as `segment` is adopted as `became`, and never as itself.

        Idempotent. Raises `AdoptionError` when it was adopted otherwise, or was to be.
        """
        check_chunk_name(segment)
        async with self._change(segment):
            await reserve_segment(self._context, segment, became)

    async def info(self, segment: str) -> StoredSegment | None:
        """Return a segment's state without claiming it; None when nothing of it is stored."""
        try:
            return _stored(await load_existing(self._context.transaction(), segment))
        except NoSuchSegmentError:
            return None

    async def chunks_of(
        self, segment: str, *, offset: int | None = None, end: int | None = None, limit: int | None = None
    ) -> list[ChunkLayout]:
        """Return a segment's chunks in order, as of one moment. Raises `NoSuchSegmentError`.

        From the one that holds `offset` on (None: the first) to the one that holds the byte before `end` (None: the
        last), `limit` of them at most (None: all): of a segment that has very many they are better asked for in pages,
        the next from where the last chunk of a page ends.

        The listed bytes never change, whatever is written or merged later. Chunks that are unlinked stay for a while
        (`GarbageSettings.delay_s`), or for as long as a lease that was taken before: see `leased_layout`. A reader
        that misses one asks again and goes on from its offset, or learns that it is gone.
        """
        if (offset is not None and offset < 0) or (limit is not None and limit <= 0):
            raise InvalidArgumentError(f"{segment}: {limit} chunks from offset {offset} on were asked for")
        async with self._locks.hold(segment):
            layouts: list[ChunkLayout] = []
            for placed in await placed_chunks(self._context, segment, offset, limit, end):
                chunk = placed.chunk
                await let_others_go_on(len(layouts))
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
    ) -> tuple[Place, list[ChunkLayout]]:
        """Return a lease, and a segment's chunks, none of which is deleted while it lasts: whatever becomes of them.

        Those that `chunks_of` returns; the lease keeps the others, too, so the pages behind need none. To be given back
        with `garbage.leases.release`. Raises `TooManyLeasesError`, and what `chunks_of` raises.
        """
        leases = self.garbage.leases
        lease = await leases.grant(lease_s, holder)
        try:
            async with self._locks.hold(segment):
                await self._settle_doubts(segment)
            return lease, await self.chunks_of(segment, offset=offset, end=end, limit=limit)
        except BaseException as error:  # A cancellation, too, leaves nothing behind, and passes.
            try:
                await leases.release(lease)
            except PenstockError as second:
                error.add_note(f"and its lease lasts until its time is over: {second}")
            raise

    async def _settle_doubts(self, segment: str) -> None:
        """Have a commit on `segment` whose outcome is unknown be done or never; else it might unlink chunks later."""
        context = self._context
        if not context.cache.is_doubtful(segment):
            return
        transaction = context.transaction()
        record = await context.load_owned(transaction, segment)
        if record is not None:
            transaction.put(record)
            await context.commit(transaction, segment)

    async def list_segments(self) -> AsyncIterator[StoredSegment]:
        """Yield every segment of which something is stored. Those that stay all the while come exactly once."""
        token: bytes | None = b""
        while token is not None:
            records, token = await self.segments_after(token)
            for record in records:
                yield _stored(record)

    async def segments_after(self, token: bytes) -> tuple[list[SegmentRecord], bytes | None]:
        """Return the records of some segments behind `token`, and the token of what follows; None behind the last."""
        page = await self._context.table.page(
            limit=self._context.settings.page_length, token=token, first=SEGMENTS_FIRST
        )
        if not page.entries:
            return [], None
        records = [decode_record(entry.key, entry.value) for entry in page.entries]
        # All records of a segment's chunks lie side by side; they need not be looked through.
        run = run_of(page.token)
        found = [record for record in records if isinstance(record, SegmentRecord) and record.is_active]
        return found, page.token if run is None else runs_of(run.segment)[1]

    async def join_chunks(self, segment: str, low: int, upper: int, settings: JoinSettings) -> JoinStep:
        """Copy some small chunks in [`low`, `upper`) of a segment, as far up as there are any, into one; see there.

        Reads and writes go on meanwhile. Raises `CorruptionError` for damage of what is stored.
        """
        found = await find_join(self._context, segment, low, upper, settings)
        plan = found.plan
        if plan is None:
            return JoinStep(found.upper, found.looked_count, 0, 0)
        try:
            joined = await copy_chunks(self._context, plan, settings)
        except ExtentGoneError as error:
            async with self._change(segment):
                if await is_still_there(self._context, plan):
                    raise error.cause from error
            return JoinStep(low, found.looked_count, 0, plan.length)
        async with self._change(segment):
            is_done = await commit_join(self._context, plan, joined)
        if not is_done:
            return JoinStep(low, found.looked_count, 0, plan.length)
        return JoinStep(found.upper, found.looked_count, len(plan.chunks), plan.length)

    async def unrecorded(self, names: Sequence[str]) -> list[str]:
        """Return those of `names`, chunks made by earlier epochs, that none of these records leads to, or ever did.

        What was unlinked and waits in the queue is left to it: leases may hold it back.

        As earlier epochs are fenced when this one's table answers, none of these records ever will. Of a chunk of
        this epoch that cannot be said: a commit whose outcome is unknown may still reach it.
        """
        found: list[str] = []
        runs: dict[str, list[ChunkRun]] = {}
        step = self._context.settings.page_length
        for at in range(0, len(names), step):
            page = names[at : at + step]
            # Wherever a chunk was merged to, its record is where it was made: in a run of its segment, at its offset.
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
            # After the records: what is unlinked in between is in there, or was, and is deleted.
            queued = await self.garbage.queued(found)
            found = [name for name in found if name not in queued]
        return found

    async def _runs(self, segment: str) -> list[ChunkRun]:
        """Return the runs that were written to segments of this name and of which something is left."""
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
        """Hold the locks of `segments`. What a refusal or damage rests on is compared with the table first.

        An instance that has lost its segments may remember records of long ago, whose chunks its successor deleted.
        It must neither refuse for the wrong reason nor cry corruption, which stops containers.
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
                        raise StorageConflictError(segment, "somebody else changed it; nothing was applied") from error
                raise


class _SegmentLocks:
    """One lock per segment with a change under way or waiting; at most `operations_max` of these."""

    def __init__(self, operations_max: int) -> None:
        self._slots = asyncio.Semaphore(operations_max)
        self._locks: dict[str, asyncio.Lock] = {}
        self._user_counts: dict[str, int] = {}

    def is_waited_for(self, segment: str) -> bool:
        """Say whether somebody waits for a lock that is held."""
        return self._user_counts.get(segment, 0) > 1

    @asynccontextmanager
    async def hold(self, *segments: str) -> AsyncIterator[None]:
        """Hold the locks of `segments`, taken in the order of their names so that nobody waits in a circle."""
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


def _stored(record: SegmentRecord) -> StoredSegment:
    return StoredSegment(record.name, record.start_offset, record.length, record.is_sealed)
