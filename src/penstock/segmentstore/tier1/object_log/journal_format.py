"""Objects of a journal, and the addresses of the frames in them. Pure functions.

A *journal* is the series of objects that one process writes for all of its containers. Its *slots* are numbered from 0;
a slot holds one object, either data or a seal. A data object has a header, a table with one entry for each container
that has frames in it, and the sections of frames in the order of the table. A seal is a header alone.

Formats: docs/formats.md, "Journals in a bucket".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from penstock.model.checksum import crc32c_at_once
from penstock.model.errors import CorruptionError, InvalidArgumentError, LaterVersionError
from penstock.model.segments import Buffer
from penstock.segmentstore.tier1.durable_log import LogAddress

FORMAT_VERSION = 1
HEADER_LENGTH = 64
ENTRY_LENGTH = 32
#: Frames of one container in one slot, at most.
FRAMES_MAX = 1 << 12
#: A journal has fewer slots than this; an address has room for twice as many.
SLOTS_MAX = 1 << 27
ORDINAL_MAX = (1 << 23) - 1
ID_LENGTH = 16

_MAGIC = b"PNSTKJRN"
#: Magic, version, kind, zero, number of sections, journal, slot, nonce, checksum of the table.
_HEADER = struct.Struct(">8sHBBI16sQ16sI")
#: Container, epoch, number of frames, offset and length of the section, its checksum.
_ENTRY = struct.Struct(">IQIQII")
_U32 = struct.Struct(">I")
_SLOT_BITS, _FRAME_BITS = 28, 12


class ObjectKind(IntEnum):
    """What a slot holds: frames, or the end of the journal."""

    DATA = 1
    SEAL = 2


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """The first 64 bytes of an object. `nonce` (16 bytes): its writer recognises its own object by it.

    `table_checksum`: CRC32C of the table; 0 for a seal, which has no sections.
    """

    kind: ObjectKind
    journal: bytes
    slot: int
    nonce: bytes
    section_count: int = 0
    table_checksum: int = 0

    @property
    def table_end(self) -> int:
        """Offset after the table."""
        return HEADER_LENGTH + self.section_count * ENTRY_LENGTH


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the table: `frame_count` frames that epoch `epoch` of a container has appended.

    They have `length` bytes from `offset` of the object on, their lengths included; `checksum` is their CRC32C.
    """

    container: int
    epoch: int
    frame_count: int
    offset: int
    length: int
    checksum: int


@dataclass(frozen=True, slots=True)
class SectionFrames:
    """Frames of a container to be encoded: each is a list of buffers."""

    container: int
    epoch: int
    frames: Sequence[Sequence[Buffer]]


def journal_key(prefix: str, journal: bytes, slot: int) -> str:
    """Return the key of a slot below `prefix` (empty, or without a trailing slash)."""
    return f"{journal_folder(prefix, journal)}/{slot:016x}"


def journal_folder(prefix: str, journal: bytes) -> str:
    """Return the folder of a journal's objects."""
    return f"{prefix}/j/{journal.hex()}" if prefix else f"j/{journal.hex()}"


def frame_address(ordinal: int, slot: int, frame: int) -> LogAddress:
    """Return the address of a frame. `ordinal`: of the piece of the container's log, see `LogPiece`."""
    if not (0 <= ordinal <= ORDINAL_MAX and 0 <= slot < 1 << _SLOT_BITS and 0 <= frame < FRAMES_MAX):
        raise InvalidArgumentError(f"there is no address for piece {ordinal}, slot {slot}, frame {frame}")
    return LogAddress(ordinal << (_SLOT_BITS + _FRAME_BITS) | slot << _FRAME_BITS | frame)


def split_address(address: int) -> tuple[int, int, int]:
    """Return ordinal, slot and frame of an address."""
    return (
        address >> (_SLOT_BITS + _FRAME_BITS),
        address >> _FRAME_BITS & ((1 << _SLOT_BITS) - 1),
        address & (FRAMES_MAX - 1),
    )


def encode_seal(journal: bytes, slot: int, nonce: bytes) -> bytes:
    """Return a seal. `nonce`: the token of the process that seals."""
    return _encode_header(ObjectHeader(ObjectKind.SEAL, journal, slot, nonce))


def encode_data(journal: bytes, slot: int, nonce: bytes, sections: Sequence[SectionFrames]) -> bytes:
    """Return a data object. There is at least one section, each of another container, with at least one frame."""
    offset = HEADER_LENGTH + len(sections) * ENTRY_LENGTH
    table = bytearray()
    body: list[Buffer] = []
    for section in sections:
        start = len(body)
        for frame in section.frames:
            body.append(_U32.pack(sum(map(len, frame))))
            body.extend(frame)
        length = checksum = 0
        for part in body[start:]:
            length += len(part)
            checksum = crc32c_at_once(part, checksum)
        table += _ENTRY.pack(section.container, section.epoch, len(section.frames), offset, length, checksum)
        offset += length
    header = ObjectHeader(ObjectKind.DATA, journal, slot, nonce, len(sections), crc32c_at_once(table, 0))
    return b"".join((_encode_header(header), table, *body))


def _encode_header(header: ObjectHeader) -> bytes:
    body = _HEADER.pack(
        _MAGIC,
        FORMAT_VERSION,
        header.kind,
        0,
        header.section_count,
        header.journal,
        header.slot,
        header.nonce,
        header.table_checksum,
    )
    return body + _U32.pack(crc32c_at_once(body, 0))


def decode_header(data: Buffer, key: str, journal: bytes, slot: int) -> ObjectHeader:
    """Decode the header of the object `key`, which must be that of this journal and slot.

    Raises `CorruptionError`, `LaterVersionError`.
    """
    if len(data) < HEADER_LENGTH:
        raise CorruptionError(key, 0, f"it has {len(data)} bytes, a header has {HEADER_LENGTH}")
    head = bytes(data[:HEADER_LENGTH])
    magic, version, kind, zero, section_count, *place, nonce, table_checksum = _HEADER.unpack_from(head)
    if _U32.unpack_from(head, _HEADER.size)[0] != crc32c_at_once(head[: _HEADER.size], 0):
        raise CorruptionError(key, 0, "the checksum of its header does not match")
    if magic != _MAGIC:
        raise CorruptionError(key, 0, "it does not start with the magic number of a journal object")
    if version > FORMAT_VERSION:
        raise LaterVersionError(key, found=version, known=FORMAT_VERSION)
    if version < FORMAT_VERSION or zero:
        raise CorruptionError(key, 0, f"format version {version} is not read by this version")
    if place != [journal, slot]:
        raise CorruptionError(key, 0, f"it is a copy of slot {place[1]} of journal {place[0].hex()}")
    if kind > max(ObjectKind):
        raise LaterVersionError(key, found=kind, known=max(ObjectKind), what="kind")
    if kind not in (ObjectKind.DATA, ObjectKind.SEAL) or (kind == ObjectKind.SEAL) != (section_count == 0):
        raise CorruptionError(key, 0, f"an object of kind {kind} does not have {section_count} sections")
    return ObjectHeader(ObjectKind(kind), journal, slot, nonce, section_count, table_checksum)


def decode_table(header: ObjectHeader, data: Buffer, key: str) -> list[Section]:
    """Decode the table of an object from its first `header.table_end` bytes. Raises `CorruptionError`."""
    table = bytes(data[HEADER_LENGTH : header.table_end])
    if len(table) != header.table_end - HEADER_LENGTH or crc32c_at_once(table, 0) != header.table_checksum:
        raise CorruptionError(key, HEADER_LENGTH, "its table is truncated, or its checksum does not match")
    sections = [Section(*fields) for fields in _ENTRY.iter_unpack(table)]
    offset = header.table_end
    for section in sections:
        if section.offset != offset or not 0 < section.frame_count <= FRAMES_MAX:
            raise CorruptionError(key, HEADER_LENGTH, f"its table has an impossible entry: {section}")
        offset += section.length
    return sections


def decode_section(section: Section, data: bytes, key: str) -> list[bytes]:
    """Return the frames of a section from its bytes. Raises `CorruptionError`."""
    if len(data) != section.length or crc32c_at_once(data, 0) != section.checksum:
        raise CorruptionError(
            key,
            section.offset,
            f"the frames of container {section.container} are truncated or their checksum does not match",
        )
    frames: list[bytes] = []
    offset = 0
    while offset < len(data):
        if offset + _U32.size > len(data):
            raise CorruptionError(key, section.offset + offset, "a frame begins after the end of its section")
        (length,) = _U32.unpack_from(data, offset)
        offset += _U32.size
        if offset + length > len(data):
            raise CorruptionError(key, section.offset + offset, "a frame is longer than its section")
        frames.append(data[offset : offset + length])
        offset += length
    if len(frames) != section.frame_count:
        raise CorruptionError(key, section.offset, f"it has {len(frames)} frames, its table says {section.frame_count}")
    return frames
