"""`bytes_in_chunks`: bytes of a container's table of storage records, from chunks whose own records were lost.

A log is truncated once storage has these bytes. Where they are is recorded in the log only. If those records are lost
with a damaged part of the log, the chunks are still there: their names have the segment, the offset and the epoch.
A chunk may also have bytes after its recorded end, or may be the remains of a creation that failed. So the bytes count
only if the whole table up to them consists of entries, each with a valid checksum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.model.errors import CorruptionError
from penstock.segmentstore.container.tables.entries import parse_entries
from penstock.segmentstore.tier2.chunk_name import chunk_origin
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.garbage_records import check_garbage
from penstock.segmentstore.tier2.records import decode_record

#: The longest table that is read for this, in bytes; it is in memory meanwhile.
TABLE_BYTES_MAX = 64 * 1024 * 1024
#: Combinations of chunks that are tried, if several have bytes of the same offsets.
_TRIES_MAX = 64


@dataclass(frozen=True, slots=True)
class MissingBytes:
    """Bytes ``[start, end)`` of a system segment that neither the log nor the recorded chunks have.

    `before`: the segment's bytes from its start offset to `start`.
    """

    segment_id: int
    segment: str
    start: int
    end: int
    before: bytes


@dataclass(frozen=True, slots=True)
class _Chunk:
    name: str
    epoch: int
    start: int
    end: int


async def bytes_in_chunks(chunks: ChunkStorage, missing: MissingBytes, *, epoch_max: int) -> bytes | None:
    """Return the missing bytes; None if no chunks certainly have them. Changes nothing.

    `epoch_max`: last epoch of the log; chunks of later ones belong to another history. Raises `StorageError`.
    """
    if missing.end - missing.start + len(missing.before) > TABLE_BYTES_MAX:
        return None
    found: list[_Chunk] = []
    for info in await chunks.list(missing.segment):
        origin = chunk_origin(info.name)
        if origin is None or origin.segment != missing.segment or origin.epoch > epoch_max:
            continue
        chunk = _Chunk(info.name, origin.epoch, origin.offset, origin.offset + info.length)
        if chunk.start < missing.end and missing.start < chunk.end:
            found.append(chunk)
    for _, pieces in zip(range(_TRIES_MAX), _ways(found, missing.start, missing.end), strict=False):
        data = b"".join([await chunks.read(each.name, start - each.start, end - start) for each, start, end in pieces])
        if len(data) == missing.end - missing.start and _is_whole(missing, data):
            return data
    return None


#: A chunk, and the offsets in the segment from which and to which it is used.
_Piece = tuple[_Chunk, int, int]


def _ways(chunks: Sequence[_Chunk], start: int, end: int) -> Iterator[list[_Piece]]:
    """Yield the ways to put ``[start, end)`` together; first with the chunks that were begun last.

    A chunk is used up to where another one begins: that one was begun at the recorded end of the first.
    """
    if start >= end:
        yield []
        return
    fitting = [chunk for chunk in chunks if chunk.start <= start < chunk.end]
    for chunk in sorted(fitting, key=lambda each: (each.start, each.epoch), reverse=True):
        stop = min([chunk.end, end, *[each.start for each in chunks if each.start > start]])
        for rest in _ways(chunks, stop, end):
            yield [(chunk, start, stop), *rest]


def _is_whole(missing: MissingBytes, data: bytes) -> bool:
    """Return whether the table, from its start to the end of the missing bytes, consists of valid entries."""
    whole = missing.before + data
    first = position = missing.start - len(missing.before)
    try:
        for entry in parse_entries(missing.segment, whole, first):
            if entry.value_length >= 0:
                value_at = entry.value_offset - first
                value = whole[value_at : value_at + entry.value_length]
                # Each value ends with its checksum.
                (check_garbage if entry.key.startswith(b"\0") else decode_record)(entry.key, value)
            position = entry.end
    except CorruptionError:
        return False
    return position == missing.end
