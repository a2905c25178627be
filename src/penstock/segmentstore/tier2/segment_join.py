"""Join small chunks of a stored segment: find them, copy them into a new chunk, replace their records by its record.

1. `find_join` scans the records from the end of a range downwards, and selects only what is adjacent in one run:
chunks, and small merged runs with all their contents. The chunk to which the next write is appended, and chunks adopted
from an older store, are left alone.
2. `copy_chunks` reads the chunks, verified, writes the new one, and reads that back. It blocks no other operation.
3. `commit_join`, with the segment's lock, checks that all those records are unchanged, replaces them by one commit, and
moves the old chunks to the garbage in the same commit. Nothing is deleted before.

See docs/defragmentation.md for the failure cases.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.model.block_checksums import verify_blocks
from penstock.model.errors import (
    ChunkError,
    CorruptionError,
    StorageConflictError,
    StorageError,
    StorageNotPrimaryError,
)
from penstock.model.segments import Buffer
from penstock.segmentstore.container_settings import JoinSettings
from penstock.segmentstore.tier2.chunk_creation import create_chunk, demand_all, discard_chunks
from penstock.segmentstore.tier2.chunk_lookup import ExtentGoneError
from penstock.segmentstore.tier2.chunk_run import ChunkRun
from penstock.segmentstore.tier2.join_choice import choose_pieces
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.records import ChunkRecord, Extent, MergedRun, StoredSegmentRecord, check
from penstock.segmentstore.tier2.segment_adoption import ADOPTED_EPOCH
from penstock.segmentstore.tier2.segment_read import read_chunk
from penstock.segmentstore.tier2.storage_context import StorageContext, missing_extent
from penstock.segmentstore.tier2.turns import run_bounded, yield_to_loop
from penstock.segmentstore.tier2.written_checksums import Growth, sum_written

#: One search scans this many times as many records as one join may have, so it always makes progress.
_SEARCH_FACTOR = 4
#: Blocks of the new chunk that are read back together.
_BLOCKS_READ = 4


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """Chunks to be joined into one.

    Attributes:
        segment: the segment.
        root: its run.
        run: the run of the adjacent records: the root, or a run that was merged.
        base: segment offset of that run's offset 0.
        start: offset in the run of the first byte.
        length: total bytes.
        records: all records to remove, those in merged runs included; the one that begins at `start` first.
        chunks: the chunk records among them, in order.
    """

    segment: str
    root: ChunkRun
    run: ChunkRun
    base: int
    start: int
    length: int
    records: tuple[Extent, ...]
    chunks: tuple[ChunkRecord, ...]

    @property
    def end_offset(self) -> int:
        """Segment offset after the last byte."""
        return self.base + self.start + self.length


@dataclass(frozen=True, slots=True)
class JoinSearch:
    """An optional plan; the offset from which the next search goes down; the number of records scanned."""

    plan: JoinPlan | None
    upper: int
    scanned_count: int


@dataclass(frozen=True, slots=True)
class JoinStep:
    """The result of `ChunkedStorage.join_chunks`: `chunk_count` chunks became one.

    Attributes:
        upper: the next step goes down from here; the search is complete if this is not above its `low`.
        scanned_count: records scanned.
        chunk_count: 0 if there was nothing to join, or it changed meanwhile.
        copied_bytes: bytes copied, including discarded copies.
    """

    upper: int
    scanned_count: int
    chunk_count: int
    copied_bytes: int


@dataclass(frozen=True, slots=True)
class _Span:
    """Offsets [`begin`, `end`) of a run whose offset 0 is the segment's offset `base`."""

    run: ChunkRun
    base: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A candidate: a chunk, or a merged run with all its contents."""

    extent: Extent
    records: tuple[Extent, ...]
    chunks: tuple[ChunkRecord, ...]


async def find_join(context: StorageContext, segment: str, low: int, upper: int, settings: JoinSettings) -> JoinSearch:
    """Search for chunks to join in [`low`, `upper`) of a segment, from the end down. Takes no lock.

    Without a plan the search continues from `upper`, until that is not above `low`. Raises `CorruptionError`.
    """
    transaction = context.transaction(is_cached=False)
    record = await transaction.segment(segment)
    if record is None or not record.is_active:
        return JoinSearch(None, low, 1)
    check(record)
    begin, end = max(low, record.start_offset), min(upper, record.length)
    if begin >= end:
        return JoinSearch(None, low, 1)
    search = _Search(transaction, record, settings, context.settings.page_length)
    try:
        return await search.find(begin, end) or JoinSearch(None, low, search.scanned_count)
    except ExtentGoneError as error:
        if await context.transaction(is_cached=False).segment(segment) == record:
            raise error.cause from error
        return JoinSearch(None, low, search.scanned_count)


class _Search:
    """One search. The records it scans are not cached."""

    def __init__(
        self, transaction: MetadataTransaction, record: StoredSegmentRecord, settings: JoinSettings, page_length: int
    ) -> None:
        self.scanned_count = 0
        self._transaction = transaction
        self._record = record
        self._settings = settings
        self._page_length = page_length
        self._length_max = min(settings.target_bytes, record.chunk_length_max)
        #: Longer chunks are not joined.
        self._small_max = self._length_max // 2
        #: Adjacent candidates in one run, in order.
        self._window: deque[_Piece] = deque()

    async def find(self, begin: int, end: int) -> JoinSearch | None:
        """Return what was found; None if nothing."""
        scans_max = self._settings.chunks_max * _SEARCH_FACTOR
        spans = [_Span(self._record.run, 0, begin, end)]
        while spans:
            span = spans.pop()
            position = span.end
            while position > span.begin:
                resume = span.base + (_end(self._window[-1].extent) if self._window else position)
                if self.scanned_count >= scans_max and resume < end:
                    return JoinSearch(None, resume, self.scanned_count)
                for extent in await self._page(span, position):
                    if position <= span.begin:
                        break
                    piece = await self._piece(span, extent, position)
                    if piece is None or not self._fits(piece):
                        plan = self._plan(span)
                        if plan is not None:
                            return JoinSearch(plan, plan.end_offset, self.scanned_count)
                    if piece is not None:
                        self._add(piece)
                        position = extent.start
                        continue
                    self._window.clear()
                    if isinstance(extent, MergedRun):
                        # Its contents come next, then the extents before it.
                        spans.append(_Span(span.run, span.base, span.begin, extent.start))
                        spans.append(
                            _Span(
                                extent.source,
                                span.base + extent.start,
                                max(0, span.begin - extent.start),
                                min(position - extent.start, extent.length),
                            )
                        )
                        position = span.begin
                        break
                    position = extent.start
            plan = self._plan(span)
            if plan is not None:
                return JoinSearch(plan, plan.end_offset, self.scanned_count)
            self._window.clear()
        return None

    async def _page(self, span: _Span, position: int) -> Sequence[Extent]:
        """Return some extents of a span, from `position` down."""
        limit = min(self._page_length, self._settings.chunks_max)
        extents = await self._transaction.extents_down(span.run, position - 1, limit=limit, is_remembered=False)
        if not extents:
            raise ExtentGoneError(missing_extent(self._record, span.run, position - 1))
        small = [each.source for each in extents if isinstance(each, MergedRun) and each.length <= self._small_max]
        await self._transaction.load_first_extents(small, is_remembered=False)
        return extents

    async def _piece(self, span: _Span, extent: Extent, upper: int) -> _Piece | None:
        """Return a candidate; None if it is long, cut by the range, adopted, or may be appended to."""
        self.scanned_count += 1
        await yield_to_loop(self.scanned_count)
        record = self._record
        is_growing = span.run == record.run and extent.start == record.last_start and not record.is_sealed
        if is_growing or extent.length > self._small_max or extent.start < span.begin or _end(extent) > upper:
            return None
        if isinstance(extent, ChunkRecord):
            return None if extent.epoch == ADOPTED_EPOCH else _Piece(extent, (extent,), (extent,))
        records: list[Extent] = [extent]
        chunks: list[ChunkRecord] = []
        ahead = [(extent.source, 0, extent.length)]
        while ahead:
            run, position, end = ahead.pop()
            if position == end:
                continue
            inner = await self._transaction.extent(run, position)
            if inner is None or _end(inner) > end:
                raise ExtentGoneError(missing_extent(record, run, position))
            self.scanned_count += 1
            ahead.append((run, _end(inner), end))
            records.append(inner)
            if isinstance(inner, MergedRun):
                ahead.append((inner.source, 0, inner.length))
            elif inner.epoch == ADOPTED_EPOCH:
                return None
            else:
                chunks.append(inner)
            if len(records) > self._settings.chunks_max:
                return None
        return _Piece(extent, tuple(records), tuple(chunks))

    def _fits(self, piece: _Piece) -> bool:
        length = piece.extent.length + sum(each.extent.length for each in self._window)
        count = len(piece.records) + sum(len(each.records) for each in self._window)
        return length <= self._length_max and count <= self._settings.chunks_max

    def _add(self, piece: _Piece) -> None:
        """Add a piece before all others; the last ones are dropped until it fits."""
        while not self._fits(piece):
            self._window.pop()
        self._window.appendleft(piece)

    def _plan(self, span: _Span) -> JoinPlan | None:
        """Return a plan for the part of the window that is worth joining."""
        pieces = list(self._window)
        chosen = choose_pieces(
            [[chunk.length for chunk in piece.chunks] for piece in pieces],
            count_min=self._settings.chunks_min,
            full_length=self._small_max,
        )
        if chosen is None:
            return None
        pieces = pieces[chosen[0] : chosen[1]]
        return JoinPlan(
            segment=self._record.name,
            root=self._record.run,
            run=span.run,
            base=span.base,
            start=pieces[0].extent.start,
            length=sum(piece.extent.length for piece in pieces),
            records=tuple(record for piece in pieces for record in piece.records),
            chunks=tuple(chunk for piece in pieces for chunk in piece.chunks),
        )


async def copy_chunks(context: StorageContext, plan: JoinPlan, settings: JoinSettings) -> ChunkRecord:
    """Create the new chunk, and return its record. Takes no lock.

    Raises `ExtentGoneError` if an old chunk is missing, `CorruptionError` if one is damaged, the errors of creations,
    `ChunkError` if the new one does not read back correctly. Nothing is left behind then.
    """

    async def read(chunk: ChunkRecord) -> memoryview:
        return await read_chunk(context, chunk, 0, chunk.length)

    pieces: list[Buffer] = [*await run_bounded(read, plan.chunks, settings.reads_max)]
    blocks = [
        (memoryview(piece)[at : at + chunk.block_length], checksum)
        for chunk, piece in zip(plan.chunks, pieces, strict=True)
        for at, checksum in zip(range(0, chunk.length, chunk.block_length), chunk.block_checksums, strict=True)
    ]
    growth = Growth((), 0, context.settings.block_length, pieces)
    # First compute the new checksums, then verify the old ones again: see `written_checksums`.
    (checksums,) = await sum_written(context.runtime.work, plan.segment, plan.base + plan.start, [growth], blocks)
    name, count = await create_chunk(context, plan.run.segment, plan.start, pieces)
    joined = ChunkRecord(
        run=plan.run,
        start=plan.start,
        name=name,
        length=plan.length,
        epoch=context.epoch,
        block_length=growth.block_length,
        block_checksums=checksums,
    )
    try:
        demand_all(name, count, pieces)
        await _read_again(context, joined)
    except StorageError:
        await context.delete_chunks([name])
        raise
    except BaseException:
        context.orphans.add(name)
        raise
    return joined


async def _read_again(context: StorageContext, joined: ChunkRecord) -> None:
    """Raise `ChunkError` unless storage returns the bytes written: soon there is no other copy of them."""
    step = _BLOCKS_READ * joined.block_length
    for at in range(0, joined.length, step):
        wanted = min(step, joined.length - at)
        data = await context.chunks.read(joined.name, at, wanted)
        if len(data) != wanted:
            raise ChunkError(
                joined.name, f"{len(data)} of {wanted} bytes were returned from offset {at} soon after its creation"
            )
        try:
            verify_blocks(joined.name, at, data, joined.block_checksums, block_length=joined.block_length)
        except CorruptionError as error:
            raise ChunkError(joined.name, f"its content differs from that of its creation: {error}") from error
        await asyncio.sleep(0)


async def commit_join(context: StorageContext, plan: JoinPlan, joined: ChunkRecord) -> bool:
    """Replace the old chunks by the new one; False, with the new one deleted, if they have changed.

    The caller holds the segment's lock. After any error except refusals the outcome is unknown.
    """
    try:
        transaction = await _stage(context, plan, joined)
    except BaseException:
        context.orphans.add(joined.name)
        raise
    if transaction is None:
        await context.delete_chunks([joined.name])
        return False
    try:
        await context.commit(transaction, plan.segment)
    except (StorageConflictError, StorageNotPrimaryError) as error:
        await discard_chunks(context, [joined], error)
        raise
    context.orphans.note_recorded(1)
    await context.garbage.settle()
    return True


async def is_still_there(context: StorageContext, plan: JoinPlan) -> bool:
    """Return whether the records of the old chunks are unchanged. The caller holds the segment's lock."""
    return await _unchanged(context.transaction(is_cached=False), context, plan) is not None


async def _unchanged(
    transaction: MetadataTransaction, context: StorageContext, plan: JoinPlan
) -> StoredSegmentRecord | None:
    """Return the segment's record; None if it is another segment, or one of the old records has changed."""
    record = await context.load_owned(transaction, plan.segment)
    if record is None or not record.is_active or record.run != plan.root:
        return None
    for number, extent in enumerate(plan.records):
        if await transaction.extent(extent.run, extent.start) != extent:
            return None
        await yield_to_loop(number)
    await asyncio.sleep(0)
    return record


async def _stage(context: StorageContext, plan: JoinPlan, joined: ChunkRecord) -> MetadataTransaction | None:
    """Return the transaction that replaces the old records; None if they have changed."""
    transaction = context.transaction()
    record = await _unchanged(transaction, context, plan)
    if record is None:
        return None
    # The new record has the key of the first of them.
    for extent in plan.records[1:]:
        transaction.remove(extent)
    transaction.put(joined)
    is_last = plan.run == plan.root and plan.start <= record.last_start < plan.start + plan.length
    record = replace(
        record,
        last_start=plan.start if is_last else record.last_start,
        chunk_count=record.chunk_count - len(plan.chunks) + 1,
        last_modified_ms=context.runtime.wall_clock_ms(),
    )
    check(record, joined if is_last else None)
    transaction.put(record)
    context.garbage.stage(transaction, [chunk.name for chunk in plan.chunks])
    return transaction


def _end(extent: Extent) -> int:
    return extent.start + extent.length
