"""`export_rolling`: writes headers by which an older Pravega reads this store's long-term storage (PDP-34).

An older store reads chunks of any name given in a header, so a header refers to the existing chunks. Of the last chunk
it reads all bytes of the file: if that has extra bytes, it is copied to a chunk that has none. A header describes the
state when it was written, without what this store writes or deletes later. After switching to the older store this
one must not be started again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace

from penstock.administration.rolling_storage import RollingProblem, is_chosen
from penstock.administration.stopped_store import stopped_store
from penstock.administration.storage_administration import ShowProgress
from penstock.model.block_checksums import verify_blocks
from penstock.model.errors import (
    AdoptionError,
    CorruptionError,
    InvalidArgumentError,
    NoSuchChunkError,
    NoSuchSegmentError,
    UnsupportedOperationError,
)
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.storage.adoptions import is_adoptable
from penstock.segmentstore.tier2.chunk_name import chunk_origin, new_chunk_name
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.chunked_storage import ChunkLayout
from penstock.segmentstore.tier2.rolling_header import (
    RollingChunk,
    RollingHeader,
    decode_header,
    encode_header,
    header_name,
    rolling_chunk_name,
)
from penstock.segmentstore.tier2.rolling_layout import HEADER_LENGTH_MAX, PlacedFile, read_layout
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings
from penstock.server.settings import StandaloneSettings

#: A copy is read, verified and written in pieces of this size, or of one block, ...
_COPY_BYTES = 8 * 1024 * 1024
#: ... but in one piece when it is not longer than this: some storage cannot append.
_WHOLE_BYTES = 256 * 1024 * 1024

#: Errors that concern one segment, and do not prevent the export of others.
_SEGMENTS_OWN = (AdoptionError, CorruptionError, InvalidArgumentError, NoSuchChunkError, UnsupportedOperationError)


@dataclass(frozen=True, slots=True)
class ExportedSegment:
    """A segment that an older store can read now.

    Attributes:
        start_offset, length: its start and end. The older store also serves bytes of the first chunk before
            `start_offset`, until it truncates the segment.
        is_sealed: the older store sees that by the header's file being read-only, which is not done here.
        chunk_count: chunks named by its header.
        copied: the copy of its last chunk, if one was needed.
    """

    name: str
    start_offset: int
    length: int
    is_sealed: bool
    chunk_count: int
    copied: str


@dataclass(slots=True)
class ExportReport:
    """The result of an export.

    Attributes:
        place: of long-term storage.
        exported: segments whose header was written.
        unchanged_count: segments whose header was up to date.
        skipped_count: tables, indexes and transactions, which an older store could not read.
        problems: segments for which no header was written.
    """

    place: str
    exported: list[ExportedSegment] = field(default_factory=list)
    unchanged_count: int = 0
    skipped_count: int = 0
    problems: list[RollingProblem] = field(default_factory=list)


async def export_rolling(
    settings: StandaloneSettings,
    runtime: Runtime,
    show_progress: ShowProgress,
    *,
    names: Collection[str] = (),
    container_id: int | None = None,
) -> ExportReport:
    """Flush a stopped server's segments, and write a header for each; of one container, or of all.

    Headers are durable when this returns; it can be interrupted anywhere and repeated. Chunks of segments are not
    changed. Raises as `stopped_store`, and `InvalidArgumentError` for a container that does not exist.
    """
    async with stopped_store(settings, runtime, settings.segment_store.container.layout) as (store, chunks):
        containers = [one for one in store.containers if container_id in (None, one.id)]
        if not containers:
            raise InvalidArgumentError(f"there is no container {container_id}: the store has {len(store.containers)}")
        report = ExportReport(chunks.place)
        wanted: list[tuple[SegmentContainer, str]] = []
        for container in containers:
            await container.flush()
            async for name in container.catalog.names():
                if not is_chosen(name, names):
                    continue
                if is_adoptable(name):
                    wanted.append((container, name))
                else:
                    report.skipped_count += 1
        with show_progress(0) as progress:
            for number, (container, name) in enumerate(sorted(wanted, key=lambda one: one[1]), 1):
                try:
                    await _export(container, chunks, name, runtime, report)
                except NoSuchSegmentError:
                    continue
                except _SEGMENTS_OWN as error:
                    report.problems.append(RollingProblem(name, str(error)))
                progress.note(number, 0)
        return report


async def _export(
    container: SegmentContainer, chunks: ChunkStorage, name: str, runtime: Runtime, report: ExportReport
) -> None:
    segment = await container.find(name)
    if segment.is_table:
        report.skipped_count += 1
        return
    with segment.in_use():
        try:
            layout = list(await container.storage.layout(segment))
        except NoSuchSegmentError:
            layout = []  # It never had any bytes.
        end = layout[-1].start_offset + layout[-1].length if layout else segment.start_offset
        if end != segment.length:
            raise CorruptionError(name, end, f"long-term storage ends here, the segment at {segment.length}")
        files = [PlacedFile(chunk.name, chunk.start_offset, chunk.length) for chunk in layout]
        entries = [RollingChunk(chunk.start, chunk.name) for chunk in files]
        copied = ""
        if layout and not await _ends_with(chunks, layout[-1]):
            copied = await _copy_of_last(container, chunks, segment, layout[-1], runtime)
            files[-1] = replace(files[-1], name=copied)
            entries[-1] = replace(entries[-1], name=copied)
        elif not layout and segment.length:
            # The name gives the older store the end of the segment.
            copied = rolling_chunk_name(name, segment.length)
            entries = [RollingChunk(segment.length, copied)]
            if not await chunks.exists(copied):
                await chunks.create(copied)
        length_max = segment.rollover_bytes or ChunkedStorageSettings().chunk_length_max
        new = encode_header(RollingHeader(length_max, tuple(entries)))
        if await _check_replaceable(container, chunks, segment, new, {chunk.name for chunk in files}):
            if await chunks.read(header_name(name), 0, len(new) + 1) == new:
                report.unchanged_count += 1
                return
            await chunks.delete(header_name(name))
        await chunks.create_with_content(header_name(name), [new])
        await _check_read(chunks, segment, files)
        report.exported.append(
            ExportedSegment(name, segment.start_offset, segment.length, segment.is_sealed, len(entries), copied)
        )


async def _ends_with(chunks: ChunkStorage, chunk: ChunkLayout) -> bool:
    """Return whether a chunk's file has no bytes after the chunk's own."""
    there = (await chunks.info(chunk.name)).length
    if there < chunk.length:
        raise CorruptionError(chunk.name, there, f"the chunk ends here, its record says {chunk.length}")
    return there == chunk.length


async def _check_replaceable(
    container: SegmentContainer, chunks: ChunkStorage, segment: Segment, new: bytes, ours: Collection[str]
) -> bool:
    """Return whether there is a header that may be replaced.

    Raises `AdoptionError` for one that an older store may have left of a segment that was never imported.
    """
    name = header_name(segment.name)
    try:
        length = (await chunks.info(name)).length
    except NoSuchChunkError:
        return False
    stored = await chunks.read(name, 0, min(length, HEADER_LENGTH_MAX)) if length else b""
    # A header whose write was interrupted here is a prefix of the new one.
    if new.startswith(stored) or await container.storage.is_adopted(segment):
        return True
    try:
        header = decode_header(name, stored)
        strange = [] if header is None else [chunk.name for chunk in header.chunks if chunk.name not in ours]
    except CorruptionError:
        strange = [name]
    if all(chunk_origin(chunk) is not None for chunk in strange):
        return True
    raise AdoptionError(
        segment.name,
        f"another header of that name exists and refers to {strange[0]}: an older store may have left it; move it "
        "away if it is not needed",
    )


async def _copy_of_last(
    container: SegmentContainer, chunks: ChunkStorage, segment: Segment, chunk: ChunkLayout, runtime: Runtime
) -> str:
    """Return the name of a chunk with the valid bytes of `chunk` only; create it unless the header names one."""
    try:
        name = header_name(segment.name)
        stored = decode_header(name, await chunks.read(name, 0, HEADER_LENGTH_MAX))
        if stored is not None and stored.chunks and stored.chunks[-1].start == chunk.start_offset:
            known = stored.chunks[-1].name
            if known != chunk.name and (await chunks.info(known)).length == chunk.length:
                async for _ in _pieces(chunks, known, chunk):
                    pass
                return known
    except (NoSuchChunkError, CorruptionError):
        pass  # No header, or it names no valid copy.
    # Without the container's mark: no sweep takes it for an orphan.
    made = new_chunk_name(segment.name, epoch=container.epoch, offset=chunk.start_offset, rng=runtime.rng)
    at = 0
    async for data in _pieces(chunks, chunk.name, chunk):
        if not at:
            await chunks.create_with_content(made, [data])
        else:
            await chunks.write(made, at, [data])
        at += len(data)
    return made


async def _pieces(chunks: ChunkStorage, name: str, chunk: ChunkLayout) -> AsyncIterator[bytes]:
    """Yield the valid bytes of `chunk`, read from chunk `name` and verified. Raises `CorruptionError`."""
    block_length = chunk.block_length
    step = max(1, _COPY_BYTES // block_length) * block_length if chunk.length > _WHOLE_BYTES else chunk.length
    for at in range(0, chunk.length, step):
        wanted = min(step, chunk.length - at)
        data = await chunks.read(name, at, wanted)
        if len(data) != wanted:
            raise CorruptionError(name, at + len(data), f"the chunk ends here, {chunk.length} bytes are wanted")
        verify_blocks(name, at, data, chunk.block_checksums, block_length=block_length)
        yield data


async def _check_read(chunks: ChunkStorage, segment: Segment, expected: Sequence[PlacedFile]) -> None:
    """Read the header as an older store would, and compare."""
    found = await read_layout(chunks, segment.name)
    if found is None or found.length != segment.length or found.chunks != tuple(expected):
        raise CorruptionError(
            header_name(segment.name), 0, f"reading it back does not return what was exported: {found}"
        )
