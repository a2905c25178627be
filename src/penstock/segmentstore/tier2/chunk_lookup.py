"""Finds by key the chunks that hold a range of a stored segment, and those that follow a chunk.

There are two ways. `find_chunks` reads the records of a range in scans of the table, from the last one down.
`ChunkWalk` goes from chunk to chunk towards the end, finding each by the end offset of the previous one. Merged runs
are entered on the way, without recursion. Cached records cost no table lookup.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import CorruptionError
from penstock.segmentstore.tier2.chunk_run import ChunkRun, describe_key
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.records import ChunkRecord, Extent, MergedRun, StoredSegmentRecord
from penstock.segmentstore.tier2.storage_context import missing_extent
from penstock.segmentstore.tier2.turns import yield_to_loop

#: Growth factor of the number of records requested by successive scans.
_SCAN_GROWTH = 4


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """A chunk and the segment offset of its first byte."""

    start_offset: int
    chunk: ChunkRecord

    @property
    def end_offset(self) -> int:
        """Segment offset after its last byte."""
        return self.start_offset + self.chunk.length


class ExtentGoneError(Exception):
    """A record is missing: the segment has changed since its record was read, or is damaged (`cause`)."""

    def __init__(self, cause: CorruptionError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True, slots=True)
class _Span:
    """Offsets [`begin`, `end`) of a run whose offset 0 is the segment's offset `base`."""

    run: ChunkRun
    base: int
    begin: int
    end: int


async def find_chunks(
    transaction: MetadataTransaction,
    record: StoredSegmentRecord,
    offset: int,
    end: int,
    *,
    page_length: int,
    is_remembered: bool = True,
) -> list[PlacedChunk]:
    """Return the chunks that hold [`offset`, `end`), in order. Nothing may be staged in the transaction.

    At most `page_length` records are read at a time; `is_remembered`: they are cached. Raises `ExtentGoneError`,
    `CorruptionError`.
    """
    found: list[PlacedChunk] = []
    ahead: list[PlacedChunk | _Span] = [_Span(record.run, 0, offset, end)]
    step = 0
    while ahead:
        span = ahead.pop()
        if isinstance(span, PlacedChunk):
            if found:
                _check_follows(record, found[-1], span)
            found.append(span)
            await yield_to_loop(len(found))
            continue
        inner: list[PlacedChunk | _Span] = []
        for extent in await _extents(transaction, record, span, page_length, is_remembered=is_remembered):
            start = extent.start
            if isinstance(extent, ChunkRecord):
                inner.append(PlacedChunk(span.base + start, extent))
            else:
                begin, stop = max(span.begin - start, 0), min(span.end - start, extent.length)
                inner.append(_Span(extent.source, span.base + start, begin, stop))
            await yield_to_loop(step)
            step += 1
        # A small merged run, such as a transaction, has only its first record.
        merged = [span.run for span in inner if isinstance(span, _Span) and not span.begin]
        for at in range(0, len(merged), page_length) if len(merged) > 1 else ():
            await transaction.load_first_extents(merged[at : at + page_length], is_remembered=is_remembered)
        ahead += reversed(inner)
    return found


def _check_follows(record: StoredSegmentRecord, before: PlacedChunk, chunk: PlacedChunk) -> None:
    if before.end_offset != chunk.start_offset:
        raise ExtentGoneError(
            CorruptionError(
                describe_key(chunk.chunk.key),
                0,
                f"its chunk begins at {chunk.start_offset} of segment {record.name!r}, the one before it ends at "
                f"{before.end_offset}",
            )
        )


async def _extents(
    transaction: MetadataTransaction, record: StoredSegmentRecord, span: _Span, page_length: int, *, is_remembered: bool
) -> list[Extent]:
    """Return the extents of a span of a run, in order."""
    found: list[Extent] = []
    position = span.begin
    while position < span.end and (known := transaction.known_extent(span.run, position)) is not None:
        found.append(known)
        position = known.start + known.length
        await yield_to_loop(len(found))
    # The remaining extents, from the end down.
    rest: list[Extent] = []
    upper = span.end
    limit = 1
    while upper > position:
        extents = await transaction.extents_down(span.run, upper - 1, limit=limit, is_remembered=is_remembered)
        if not extents:
            raise ExtentGoneError(missing_extent(record, span.run, upper - 1))
        for extent in extents:
            if upper <= position:
                break
            rest.append(extent)
            upper = extent.start
            await yield_to_loop(len(rest))
        limit = min(limit * _SCAN_GROWTH, page_length)
    found += reversed(rest)
    return found


class ChunkWalk:
    """Walks the chunks of a segment from the one that begins at `offset` to the end.

    Sees changes staged by its transaction. Chunks already passed may be removed.
    """

    def __init__(self, transaction: MetadataTransaction, record: StoredSegmentRecord, offset: int) -> None:
        self._transaction = transaction
        self._record = record
        self._offset = offset
        self._run = record.run
        # Segment offset of the run's offset 0.
        self._base = 0
        # The merged runs that contain it, outermost first, each with the base of the enclosing run.
        self._path: list[tuple[MergedRun, int]] = []
        self._is_begun = False

    async def next(self) -> tuple[PlacedChunk, list[MergedRun]] | None:
        """Return the next chunk, and the merged runs that end with it, innermost first; None at the segment's end.

        Raises `ExtentGoneError`, `CorruptionError`.
        """
        if self._offset >= self._record.length:
            return None
        while True:
            position = self._offset - self._base
            if self._is_begun:
                extent = await self._transaction.extent(self._run, position)
            else:
                # It may be within a merged run whose head was truncated.
                extent = await self._transaction.extent_holding(self._run, position)
            if extent is None:
                raise ExtentGoneError(missing_extent(self._record, self._run, position))
            if isinstance(extent, ChunkRecord):
                break
            self._path.append((extent, self._base))
            self._run = extent.source
            self._base += extent.start
        self._is_begun = True
        placed = PlacedChunk(self._base + extent.start, extent)
        self._offset = placed.end_offset
        ended: list[MergedRun] = []
        while self._path:
            merged, base = self._path[-1]
            end = base + merged.start + merged.length
            if end > self._offset:
                break
            if end < self._offset:
                raise ExtentGoneError(
                    CorruptionError(
                        describe_key(merged.key), 0, f"the merged run ends {self._offset - end} bytes before its chunk"
                    )
                )
            self._path.pop()
            self._run, self._base = merged.run, base
            ended.append(merged)
        return placed, ended
