"""`StoredSegmentRecord`, `ChunkRecord` and `MergedRun`: the records of a segment and its chunks in long-term storage.

The chunks that were written to one stored segment are its *run*. Their records have ordered keys: the run, then the
offset at which the chunk begins, as its distance from the greatest offset. So the chunk that holds an offset is the
first record at or after that offset's own key, and the preceding chunks of the segment follow it. A merge leaves all
records of the source unchanged: one `MergedRun` among the target's represents them. Records are values; their table
adds versions. Rationale: ``docs/chunk-records.md``; bytes: ``docs/formats.md``.

Beyond segment-store 8.4 a chunk record contains the epoch that created the chunk, so that no other incarnation appends
to it, and a CRC32C for each block of the chunk's bytes, so that every read of user data is verified although chunks
contain only user bytes.

Source: segment-store 8.4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.segmentstore.later_format import version_error
from penstock.segmentstore.tier2.chunk_run import ChunkRun, describe_key

RECORD_FORMAT_VERSION: Final = 2
_KIND_SEGMENT: Final = 1
_KIND_CHUNK: Final = 2
_KIND_MERGED_RUN: Final = 3

_HEAD = struct.Struct(">BBB")
_SEGMENT = struct.Struct(">qqqqqqqqqq")
_CHUNK = struct.Struct(">qqqqqII")
_MERGED_RUN = struct.Struct(">qqqqqq")
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
class StoredSegmentRecord:
    """A segment in long-term storage. Offsets are bytes from the segment's first byte ever.

    Attributes:
        name: the segment, and the record's key.
        run: the run of its chunks' records; it has the segment's own name.
        start_offset: first readable byte.
        length: end of the stored bytes.
        first_chunk_start: segment offset of the first chunk's first byte; at most `start_offset`.
        last_start: segment offset of the first byte of the last record in the run, a chunk or a merged run.
        chunk_count: chunks, those of merged runs included.
        chunk_length_max: a chunk of this length is not appended to.
        owner_epoch: the container epoch that may change the segment.
        last_modified_ms: wall clock of the last change, milliseconds.
        is_active: False while the segment is being deleted; to other operations it does not exist.
        is_sealed: no more bytes can be written.
        is_ownership_changed: claimed from an earlier epoch and not written since.
        is_system: the segment holds the container's own metadata.
    """

    name: str
    run: ChunkRun
    start_offset: int
    length: int
    first_chunk_start: int
    last_start: int
    chunk_count: int
    chunk_length_max: int
    owner_epoch: int
    last_modified_ms: int
    is_active: bool = True
    is_sealed: bool = False
    is_ownership_changed: bool = False
    is_system: bool = False

    @property
    def key(self) -> bytes:
        """The key of the record."""
        return self.name.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRecord:
    """A chunk: its valid length and the checksums of its bytes.

    Attributes:
        run: the run it was written to; with `start` the record's key.
        start: offset in the run of the chunk's first byte.
        name: name of the chunk.
        length: bytes that belong to the segment; the file may have more after them, left by failed writes.
        epoch: the container epoch that created the chunk, the only one that may append to it.
        block_length: length of a checksummed block; the last block may be shorter.
        block_checksums: one CRC32C per started block, in order.
        is_active: False once the chunk must be deleted.
    """

    run: ChunkRun
    start: int
    name: str
    length: int
    epoch: int
    block_length: int
    block_checksums: tuple[int, ...]
    is_active: bool = True

    @property
    def key(self) -> bytes:
        """The key of the record."""
        return self.run.key(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRun:
    """A run that was merged whole into another one: offset 0 of `source` is offset `start` of `run`.

    Attributes:
        run: the run it was merged into; with `start` the record's key.
        start: offset in `run`.
        length: bytes of `source`.
        source: the merged run.
        is_active: False once its last chunk was truncated.
    """

    run: ChunkRun
    start: int
    length: int
    source: ChunkRun
    is_active: bool = True

    @property
    def key(self) -> bytes:
        """The key of the record."""
        return self.run.key(self.start)


#: A run consists of extents, from its first offset to its last without a gap.
Extent = ChunkRecord | MergedRun
Record = StoredSegmentRecord | Extent


def empty_segment(
    name: str,
    offset: int,
    *,
    epoch: int,
    run_number: int = 0,
    chunk_length_max: int,
    now_ms: int,
    is_system: bool = False,
) -> StoredSegmentRecord:
    """Return the record of a segment without chunks whose first stored byte will be at `offset`."""
    return StoredSegmentRecord(
        name=name,
        run=ChunkRun(name, epoch, run_number),
        start_offset=offset,
        length=offset,
        first_chunk_start=offset,
        last_start=offset,
        chunk_count=0,
        chunk_length_max=chunk_length_max,
        owner_epoch=epoch,
        last_modified_ms=now_ms,
        is_system=is_system,
    )


def encode_record(record: Record) -> bytes:
    """Return a record's stored bytes. Raises `InvalidArgumentError` for a name beyond 65535 bytes."""
    match record:
        case StoredSegmentRecord():
            parts = [
                _HEAD.pack(RECORD_FORMAT_VERSION, _KIND_SEGMENT, _status(record)),
                _SEGMENT.pack(
                    record.start_offset,
                    record.length,
                    record.first_chunk_start,
                    record.last_start,
                    record.chunk_count,
                    record.chunk_length_max,
                    record.owner_epoch,
                    record.last_modified_ms,
                    record.run.epoch,
                    record.run.number,
                ),
                *_texts(record.name),
            ]
        case ChunkRecord():
            count = len(record.block_checksums)
            parts = [
                _HEAD.pack(RECORD_FORMAT_VERSION, _KIND_CHUNK, _status(record)),
                _CHUNK.pack(
                    record.run.epoch,
                    record.run.number,
                    record.start,
                    record.length,
                    record.epoch,
                    record.block_length,
                    count,
                ),
                *_texts(record.run.segment, record.name),
                struct.pack(f">{count}I", *record.block_checksums),
            ]
        case MergedRun():
            parts = [
                _HEAD.pack(RECORD_FORMAT_VERSION, _KIND_MERGED_RUN, _status(record)),
                _MERGED_RUN.pack(
                    record.run.epoch,
                    record.run.number,
                    record.start,
                    record.length,
                    record.source.epoch,
                    record.source.number,
                ),
                *_texts(record.run.segment, record.source.segment),
            ]
    body = b"".join(parts)
    return body + _CHECKSUM.pack(crc32c(body, 0))


def decode_record(key: bytes, data: bytes) -> Record:
    """Decode a record stored under `key`.

    Raises `CorruptionError` unless every byte is as `encode_record` wrote it, `LaterVersionError` for an intact record
    of a version or kind that only a later version can read.
    """
    where = describe_key(key)
    if len(data) < _HEAD.size + _CHECKSUM.size:
        raise CorruptionError(where, 0, f"{len(data)} bytes are too short for a record")
    body = bytes(data[: -_CHECKSUM.size])
    (stored,) = _CHECKSUM.unpack_from(data, len(body))
    if crc32c(body, 0) != stored:
        raise CorruptionError(where, 0, f"checksum is {crc32c(body, 0):08x}, stored {stored:08x}")
    version, kind, status = _HEAD.unpack_from(body)
    if version != RECORD_FORMAT_VERSION:
        raise version_error(where, version, (RECORD_FORMAT_VERSION,))
    try:
        record: Record
        if kind == _KIND_SEGMENT:
            record = _decode_segment(body, RecordStatus(status))
        elif kind == _KIND_CHUNK:
            record = _decode_chunk(body, RecordStatus(status))
        elif kind == _KIND_MERGED_RUN:
            record = _decode_merged_run(body, RecordStatus(status))
        else:
            raise version_error(where, kind, (_KIND_SEGMENT, _KIND_CHUNK, _KIND_MERGED_RUN), "record kind")
        own_key = record.key
    except (struct.error, ValueError, OverflowError) as error:
        raise CorruptionError(where, _HEAD.size, f"fields do not match the record ({error})") from error
    if own_key != key:
        raise CorruptionError(where, _HEAD.size, f"the record belongs to {describe_key(own_key)}")
    if status != _status(record):
        raise CorruptionError(where, 2, f"status {status:#04x} is none that this record can have")
    return record


def leads_to(key: bytes, data: bytes, chunk: str) -> bool:
    """Return whether the record under `key` is live and of a chunk with this name. Raises `CorruptionError`."""
    record = decode_record(key, data)
    return isinstance(record, ChunkRecord) and record.is_active and record.name == chunk


def check(segment: StoredSegmentRecord, last: Extent | None = None) -> None:
    """Raise `CorruptionError` if a segment's record, or with `last` also its run's last one, breaks an invariant."""

    def demand(holds: bool, what: str) -> None:
        if not holds:
            raise CorruptionError(describe_key(segment.key), 0, f"{what} is violated in {segment}")

    demand(
        0 <= segment.first_chunk_start <= segment.start_offset <= segment.length,
        "0 <= first_chunk_start <= start_offset <= length",
    )
    demand(segment.chunk_count >= 0, "chunk_count >= 0")
    demand(segment.chunk_length_max > 0, "chunk_length_max > 0")
    if segment.chunk_count == 0:
        demand(
            segment.first_chunk_start == segment.last_start == segment.start_offset == segment.length,
            "without chunks: first_chunk_start = last_start = start_offset = length",
        )
        demand(last is None, "without chunks: no last record")
        return
    demand(
        segment.first_chunk_start < segment.length and 0 <= segment.last_start < segment.length,
        "with chunks: first_chunk_start and last_start lie before length",
    )
    if last is None:
        return
    demand(last.run == segment.run and last.start == segment.last_start, "the last record is the one named")
    demand(last.start + last.length == segment.length, "last_start + length of the last = length")
    if isinstance(last, ChunkRecord):
        demand(segment.first_chunk_start <= last.start, "first_chunk_start <= last_start")
        demand(
            (segment.chunk_count == 1) == (segment.first_chunk_start == last.start),
            "one chunk: its start is first and last, else not",
        )
    else:
        demand(
            segment.chunk_count > 1 or last.start <= segment.first_chunk_start,
            "one chunk, of a merged run: it lies there",
        )


def check_extent(extent: Extent) -> None:
    """Raise `CorruptionError` if the record of a chunk or a merged run is inconsistent."""
    if isinstance(extent, MergedRun):
        if extent.length > 0:
            return
        problem = f"length {extent.length} must be positive"
    elif extent.length <= 0 or extent.block_length <= 0:
        problem = f"length {extent.length} and block length {extent.block_length} must be positive"
    elif len(extent.block_checksums) != -(-extent.length // extent.block_length):
        problem = (
            f"{len(extent.block_checksums)} checksums do not fit {extent.length} bytes in blocks of "
            f"{extent.block_length}"
        )
    else:
        return
    raise CorruptionError(describe_key(extent.key), 0, problem)


def _status(record: Record) -> int:
    if not isinstance(record, StoredSegmentRecord):
        return int(record.is_active)
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


def _texts(*texts: str) -> Iterable[bytes]:
    for text in texts:
        encoded = text.encode()
        if len(encoded) > 0xFFFF:
            raise InvalidArgumentError(f"name of {len(encoded)} bytes is too long for a record")
        yield _TEXT_LENGTH.pack(len(encoded))
        yield encoded


class _Texts:
    """Reads length-prefixed texts one after another; none of them is empty."""

    def __init__(self, body: bytes, position: int) -> None:
        self._body = body
        self.position = position

    def required(self) -> str:
        (length,) = _TEXT_LENGTH.unpack_from(self._body, self.position)
        start = self.position + _TEXT_LENGTH.size
        self.position = start + length
        if self.position > len(self._body):
            raise ValueError(f"text of {length} bytes at {start} is truncated")
        if not length:
            raise ValueError("a name is empty")
        return self._body[start : self.position].decode()

    def demand_end(self) -> None:
        if self.position != len(self._body):
            raise ValueError(f"{len(self._body) - self.position} bytes follow the last field")


def _decode_segment(body: bytes, status: RecordStatus) -> StoredSegmentRecord:
    start_offset, length, first_start, last_start, count, chunk_length_max, epoch, modified_ms, run_epoch, number = (
        _SEGMENT.unpack_from(body, _HEAD.size)
    )
    texts = _Texts(body, _HEAD.size + _SEGMENT.size)
    name = texts.required()
    record = StoredSegmentRecord(
        name=name,
        run=ChunkRun(name, run_epoch, number),
        start_offset=start_offset,
        length=length,
        first_chunk_start=first_start,
        last_start=last_start,
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
    run_epoch, number, start, length, epoch, block_length, count = _CHUNK.unpack_from(body, _HEAD.size)
    texts = _Texts(body, _HEAD.size + _CHUNK.size)
    run = ChunkRun(texts.required(), run_epoch, number)
    name = texts.required()
    if texts.position + 4 * count != len(body):
        raise ValueError(f"{count} checksums do not fill the record")
    checksums: tuple[int, ...] = struct.unpack_from(f">{count}I", body, texts.position)
    return ChunkRecord(
        run=run,
        start=start,
        name=name,
        length=length,
        epoch=epoch,
        block_length=block_length,
        block_checksums=checksums,
        is_active=RecordStatus.ACTIVE in status,
    )


def _decode_merged_run(body: bytes, status: RecordStatus) -> MergedRun:
    run_epoch, number, start, length, source_epoch, source_number = _MERGED_RUN.unpack_from(body, _HEAD.size)
    texts = _Texts(body, _HEAD.size + _MERGED_RUN.size)
    record = MergedRun(
        run=ChunkRun(texts.required(), run_epoch, number),
        start=start,
        length=length,
        source=ChunkRun(texts.required(), source_epoch, source_number),
        is_active=RecordStatus.ACTIVE in status,
    )
    texts.demand_end()
    return record
