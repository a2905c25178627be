"""`SegmentRecord` and `ChunkRecord`: what long-term storage knows about a segment and its chunks.

A segment's chunks are a linked list: the segment record names the first and the last chunk, each chunk record names
the next. Records are values; the table they lie in gives them versions. Their bytes are in ``docs/formats.md``.

Beyond the specification a chunk record keeps the epoch that created the chunk, so that nobody appends to the chunk of
another incarnation even after merges moved it about, and a CRC32C for each block of the chunk's bytes, so that every
read of user data is verified although chunks hold user bytes alone.

Source: segment store specification, section 8.4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, InvalidArgumentError

RECORD_FORMAT_VERSION: Final = 1
_KIND_SEGMENT: Final = 1
_KIND_CHUNK: Final = 2

_HEAD = struct.Struct(">BBB")
_SEGMENT = struct.Struct(">qqqqqqqq")
_CHUNK = struct.Struct(">qqII")
_TEXT_LENGTH = struct.Struct(">H")
_CHECKSUM = struct.Struct(">I")


class RecordStatus(IntFlag):
    """Status bits as stored. `ATOMIC_WRITES` is always set: lengths are committed with every write."""

    ACTIVE = 1
    SEALED = 2
    ATOMIC_WRITES = 4
    OWNERSHIP_CHANGED = 8
    SYSTEM = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """A segment in long-term storage. Offsets are bytes from the segment's first byte ever.

    Attributes:
        name: the segment, and the record's key.
        start_offset: first byte that may be read.
        length: end of the stored bytes.
        first_chunk: name of the first chunk, None without chunks.
        last_chunk: name of the last chunk, None without chunks.
        first_chunk_start: segment offset of the first chunk's first byte; at most `start_offset`.
        last_chunk_start: segment offset of the last chunk's first byte.
        chunk_count: chunks in the list.
        chunk_length_max: a chunk of this length is not appended to.
        owner_epoch: the container epoch that may change the segment.
        last_modified_ms: wall clock of the last change, milliseconds.
        is_active: False while the segment is being deleted; such a segment does not exist for anybody else.
        is_sealed: no more bytes.
        is_ownership_changed: claimed from an earlier epoch and not written since.
        is_system: the segment holds the container's own metadata.
    """

    name: str
    start_offset: int
    length: int
    first_chunk: str | None
    last_chunk: str | None
    first_chunk_start: int
    last_chunk_start: int
    chunk_count: int
    chunk_length_max: int
    owner_epoch: int
    last_modified_ms: int
    is_active: bool = True
    is_sealed: bool = False
    is_ownership_changed: bool = False
    is_system: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRecord:
    """A chunk: how many of its bytes count, and what they must be.

    Attributes:
        name: the chunk, and the record's key.
        length: bytes that belong to the segment; the file may have more behind them, left by failed writes.
        next_chunk: the chunk that follows in the segment, None for the last one.
        epoch: the container epoch that created the chunk, the only one that may append to it.
        block_length: length of a checksummed block; the last block may be shorter.
        block_checksums: one CRC32C per begun block, in order.
        is_active: False once the chunk is to be deleted.
    """

    name: str
    length: int
    next_chunk: str | None
    epoch: int
    block_length: int
    block_checksums: tuple[int, ...]
    is_active: bool = True


Record = SegmentRecord | ChunkRecord


def empty_segment(
    name: str, offset: int, *, epoch: int, chunk_length_max: int, now_ms: int, is_system: bool = False
) -> SegmentRecord:
    """Return the record of a segment without chunks whose first stored byte will be at `offset`."""
    return SegmentRecord(
        name=name,
        start_offset=offset,
        length=offset,
        first_chunk=None,
        last_chunk=None,
        first_chunk_start=offset,
        last_chunk_start=offset,
        chunk_count=0,
        chunk_length_max=chunk_length_max,
        owner_epoch=epoch,
        last_modified_ms=now_ms,
        is_system=is_system,
    )


def encode_record(record: Record) -> bytes:
    """Return a record's stored bytes. Raises `InvalidArgumentError` for a name beyond 65535 bytes."""
    match record:
        case SegmentRecord():
            body = b"".join(
                (
                    _HEAD.pack(RECORD_FORMAT_VERSION, _KIND_SEGMENT, _segment_status(record)),
                    _SEGMENT.pack(
                        record.start_offset,
                        record.length,
                        record.first_chunk_start,
                        record.last_chunk_start,
                        record.chunk_count,
                        record.chunk_length_max,
                        record.owner_epoch,
                        record.last_modified_ms,
                    ),
                    *_texts(record.name, record.first_chunk, record.last_chunk),
                )
            )
        case ChunkRecord():
            count = len(record.block_checksums)
            body = b"".join(
                (
                    _HEAD.pack(RECORD_FORMAT_VERSION, _KIND_CHUNK, RecordStatus.ACTIVE if record.is_active else 0),
                    _CHUNK.pack(record.length, record.epoch, record.block_length, count),
                    *_texts(record.name, record.next_chunk),
                    struct.pack(f">{count}I", *record.block_checksums),
                )
            )
    return body + _CHECKSUM.pack(crc32c(body, 0))


def decode_record(key: str, data: bytes) -> Record:
    """Read a record stored under `key`. Raises `CorruptionError` unless every byte is as `encode_record` wrote it."""
    where = f"storage metadata record {key!r}"
    if len(data) < _HEAD.size + _CHECKSUM.size:
        raise CorruptionError(where, 0, f"{len(data)} bytes are too short for a record")
    body = bytes(data[: -_CHECKSUM.size])
    (stored,) = _CHECKSUM.unpack_from(data, len(body))
    if crc32c(body, 0) != stored:
        raise CorruptionError(where, 0, f"checksum is {crc32c(body, 0):08x}, stored {stored:08x}")
    version, kind, status = _HEAD.unpack_from(body)
    if version != RECORD_FORMAT_VERSION:
        raise CorruptionError(
            where, 0, f"format version {version} is not {RECORD_FORMAT_VERSION}; a newer release may have written it"
        )
    try:
        record: Record
        if kind == _KIND_SEGMENT:
            record = _decode_segment(body, RecordStatus(status))
        elif kind == _KIND_CHUNK:
            record = _decode_chunk(body, RecordStatus(status))
        else:
            raise CorruptionError(where, 1, f"record kind {kind} is unknown")
    except (struct.error, ValueError) as error:
        raise CorruptionError(where, _HEAD.size, f"fields do not fit the record ({error})") from error
    if record.name != key:
        raise CorruptionError(where, _HEAD.size, f"the record is about {record.name!r}")
    return record


def check(segment: SegmentRecord, last: ChunkRecord | None = None) -> None:
    """Raise `CorruptionError` when a segment's record, or with `last` its last chunk's too, breaks an invariant."""

    def demand(holds: bool, what: str) -> None:
        if not holds:
            raise CorruptionError(f"storage metadata record {segment.name!r}", 0, f"{what} does not hold in {segment}")

    demand(
        0 <= segment.first_chunk_start <= segment.start_offset <= segment.length,
        "0 <= first_chunk_start <= start_offset <= length",
    )
    demand(
        segment.first_chunk_start <= segment.last_chunk_start <= segment.length,
        "first_chunk_start <= last_chunk_start <= length",
    )
    demand(segment.chunk_count >= 0, "chunk_count >= 0")
    demand(segment.chunk_length_max > 0, "chunk_length_max > 0")
    if segment.chunk_count == 0:
        demand(segment.first_chunk is None and segment.last_chunk is None, "without chunks: no first or last chunk")
        demand(
            segment.first_chunk_start == segment.last_chunk_start == segment.start_offset == segment.length,
            "without chunks: first_chunk_start = last_chunk_start = start_offset = length",
        )
        demand(last is None, "without chunks: no last chunk's record")
        return
    demand(segment.first_chunk is not None and segment.last_chunk is not None, "with chunks: first and last are named")
    demand(
        (segment.chunk_count == 1) == (segment.first_chunk == segment.last_chunk), "one chunk: first is last, else not"
    )
    demand(
        (segment.chunk_count == 1) == (segment.first_chunk_start == segment.last_chunk_start),
        "one chunk: its start is first and last, else not",
    )
    if last is not None:
        demand(last.name == segment.last_chunk, "the last chunk is the one named")
        demand(last.next_chunk is None, "nothing follows the last chunk")
        demand(segment.last_chunk_start + last.length == segment.length, "last_chunk_start + last length = length")
    return


def check_chunk(chunk: ChunkRecord) -> None:
    """Raise `CorruptionError` when a chunk's record contradicts itself."""
    if chunk.length <= 0 or chunk.block_length <= 0:
        problem = f"length {chunk.length} and block length {chunk.block_length} must be positive"
    elif len(chunk.block_checksums) != -(-chunk.length // chunk.block_length):
        problem = (
            f"{len(chunk.block_checksums)} checksums do not fit {chunk.length} bytes in blocks of {chunk.block_length}"
        )
    else:
        return
    raise CorruptionError(f"storage metadata record {chunk.name!r}", 0, problem)


def _segment_status(record: SegmentRecord) -> int:
    status = RecordStatus.ATOMIC_WRITES
    if record.is_active:
        status |= RecordStatus.ACTIVE
    if record.is_sealed:
        status |= RecordStatus.SEALED
    if record.is_ownership_changed:
        status |= RecordStatus.OWNERSHIP_CHANGED
    if record.is_system:
        status |= RecordStatus.SYSTEM
    return status


def _texts(*texts: str | None) -> Iterable[bytes]:
    for text in texts:
        encoded = (text or "").encode()
        if len(encoded) > 0xFFFF:
            raise InvalidArgumentError(f"name of {len(encoded)} bytes is too long for a record")
        yield _TEXT_LENGTH.pack(len(encoded))
        yield encoded


class _Texts:
    """Reads length-prefixed texts one after another; an empty one is None."""

    def __init__(self, body: bytes, position: int) -> None:
        self._body = body
        self.position = position

    def optional(self) -> str | None:
        (length,) = _TEXT_LENGTH.unpack_from(self._body, self.position)
        start = self.position + _TEXT_LENGTH.size
        self.position = start + length
        if self.position > len(self._body):
            raise ValueError(f"text of {length} bytes at {start} is cut")
        return self._body[start : self.position].decode() or None

    def required(self) -> str:
        text = self.optional()
        if text is None:
            raise ValueError("a name is empty")
        return text

    def demand_end(self) -> None:
        if self.position != len(self._body):
            raise ValueError(f"{len(self._body) - self.position} bytes follow the last field")


def _decode_segment(body: bytes, status: RecordStatus) -> SegmentRecord:
    start_offset, length, first_start, last_start, count, chunk_length_max, epoch, modified_ms = _SEGMENT.unpack_from(
        body, _HEAD.size
    )
    texts = _Texts(body, _HEAD.size + _SEGMENT.size)
    record = SegmentRecord(
        name=texts.required(),
        start_offset=start_offset,
        length=length,
        first_chunk=texts.optional(),
        last_chunk=texts.optional(),
        first_chunk_start=first_start,
        last_chunk_start=last_start,
        chunk_count=count,
        chunk_length_max=chunk_length_max,
        owner_epoch=epoch,
        last_modified_ms=modified_ms,
        is_active=RecordStatus.ACTIVE in status,
        is_sealed=RecordStatus.SEALED in status,
        is_ownership_changed=RecordStatus.OWNERSHIP_CHANGED in status,
        is_system=RecordStatus.SYSTEM in status,
    )
    texts.demand_end()
    return record


def _decode_chunk(body: bytes, status: RecordStatus) -> ChunkRecord:
    length, epoch, block_length, count = _CHUNK.unpack_from(body, _HEAD.size)
    texts = _Texts(body, _HEAD.size + _CHUNK.size)
    name = texts.required()
    next_chunk = texts.optional()
    if texts.position + 4 * count != len(body):
        raise ValueError(f"{count} checksums do not fill the record")
    checksums: tuple[int, ...] = struct.unpack_from(f">{count}I", body, texts.position)
    return ChunkRecord(
        name=name,
        length=length,
        next_chunk=next_chunk,
        epoch=epoch,
        block_length=block_length,
        block_checksums=checksums,
        is_active=RecordStatus.ACTIVE in status,
    )
