"""`RollingLayout`: a segment of RollingStorage in long-term storage, its header compared with its chunks.

Nothing is changed, and no byte of a chunk is read. Leftovers of the older store are recognised, anything else is
damage: see the table in docs/formats.md. The older store must not be running: a chunk that it still appends to has no
fixed length.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from penstock.model.errors import CorruptionError, MissingChunkError, NoSuchChunkError
from penstock.segmentstore.tier2.chunk_name import check_chunk_name
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.rolling_header import (
    RollingHeader,
    decode_header,
    header_name,
    segment_of_header,
)
from penstock.segmentstore.tier2.turns import run_bounded, yield_to_loop

#: Longer texts are not a header: this is some 300 000 chunks.
HEADER_LENGTH_MAX = 32 * 1024 * 1024

_LOOKUPS_MAX = 16
_NAMES_PAGE_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A chunk whose first `length` bytes, at least one, are the segment's from `start` on."""

    name: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class RollingLayout:
    """Bytes [`start_offset`, `length`) of a segment, in `chunks` without a gap.

    Attributes:
        segment: its name.
        start_offset: start of the first existing chunk. The older store knew the segment's exact start, but did not
            keep it in long-term storage.
        length: end of the last chunk.
        chunks: in order; empty ones are left out.
        gone_count: truncated chunks at the front.
        surplus_bytes: bytes in chunks beyond their range in the header; they were never valid.
    """

    segment: str
    start_offset: int
    length: int
    chunks: tuple[PlacedFile, ...]
    gone_count: int
    surplus_bytes: int


async def rolling_segments(chunks: ChunkStorage) -> AsyncIterator[str]:
    """Yield the names of all segments that have a header, unordered."""
    after = ""
    while names := await chunks.names(limit=_NAMES_PAGE_LENGTH, after=after):
        after = names[-1]
        for number, name in enumerate(names):
            await yield_to_loop(number)
            segment = segment_of_header(name)
            if segment is not None:
                yield segment


async def read_layout(chunks: ChunkStorage, segment: str) -> RollingLayout | None:
    """Read a segment's header and the lengths of its chunks; None without a header, or if nothing it lists is left.

    Raises:
        CorruptionError: the header is damaged, or a chunk is shorter than the header says.
        MissingChunkError: a chunk is missing that was not truncated.
        StorageError: the state could not be determined.
    """
    name = check_chunk_name(header_name(segment))
    try:
        length = (await chunks.info(name)).length
        if length > HEADER_LENGTH_MAX:
            raise CorruptionError(name, HEADER_LENGTH_MAX, f"{length} bytes are too many for a header")
        data = await chunks.read(name, 0, length) if length else b""
    except NoSuchChunkError:
        return None
    if len(data) != length:
        raise CorruptionError(name, len(data), f"the header ends here, it should have {length} bytes")
    header = decode_header(name, data)
    if header is None:
        return None
    return _placed(segment, header, await _lengths(chunks, header))


async def _lengths(chunks: ChunkStorage, header: RollingHeader) -> Sequence[int | None]:
    """Return the chunks' true lengths; None for missing chunks."""

    async def length_of(name: str) -> int | None:
        try:
            return (await chunks.info(check_chunk_name(name))).length
        except NoSuchChunkError:
            return None

    return await run_bounded(length_of, [chunk.name for chunk in header.chunks], _LOOKUPS_MAX) if header.chunks else ()


def _placed(segment: str, header: RollingHeader, lengths: Sequence[int | None]) -> RollingLayout | None:
    if not header.chunks:
        return RollingLayout(segment, 0, 0, (), 0, 0)
    if all(length is None for length in lengths):
        return None
    last = header.chunks[-1]
    placed: list[PlacedFile] = []
    gone_count = surplus = 0
    for index, (chunk, there) in enumerate(zip(header.chunks, lengths, strict=True)):
        if chunk is last:
            length = there or 0
        else:
            length = header.chunks[index + 1].start - chunk.start
        if there is None:
            if chunk is last:
                raise MissingChunkError(chunk.name, f"the last chunk of {segment} is missing, others exist")
            if not length:
                continue
            if placed:
                raise MissingChunkError(
                    chunk.name, f"the chunk is missing, but its predecessor {placed[-1].name} in {segment} exists"
                )
            gone_count += 1
            continue
        if there < length:
            raise CorruptionError(chunk.name, there, f"the chunk ends here, the header of {segment} says {length}")
        surplus += there - length
        if length:
            placed.append(PlacedFile(chunk.name, chunk.start, length))
    end = placed[-1].start + placed[-1].length if placed else last.start
    start = placed[0].start if placed else end
    return RollingLayout(segment, start, end, tuple(placed), gone_count, surplus)
