"""Bytes of the local log's files: file header, frames, link. Pure functions over bytes, no I/O.

A log file is a header block of `BLOCK_LENGTH` bytes and then frames. Byte tables: docs/formats.md, "Tier 1".

Three properties make recovery decidable:

- A frame carries its file's random salt and its own offset, both under its checksum. Stale frames of a recycled
  file, zeros, and copies of log files inside a payload never look like frames of this file.
- A frame carries `synced_offset`: up to where its file had been synced when the frame was written. A bad frame that
  lies before the `synced_offset` of a later good frame was durable once, so it is corrupt, not torn.
- The first frame of a file is a link: it says where the previous file ended. It is written only after the previous
  file was synced up to there. Bytes that a fenced owner adds later lie beyond it and are never read.

A batch (what one sync covers) starts on a block boundary, so a block with acknowledged frames is never written again.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, LaterVersionError
from penstock.model.segments import Buffer
from penstock.segmentstore.later_format import LaterFormatError

#: Files, and batches of frames within them, are laid out in blocks of this many bytes.
BLOCK_LENGTH = 4096
FORMAT_VERSION = 2
#: Before version 2 the header had no id of a cluster.
_VERSION_WITHOUT_CLUSTER = 1

_FILE_MAGIC = b"PNSTKLOG"
_FILE_HEADER = struct.Struct(">8sHHiQIQ48s")
_FILE_HEADER_WITHOUT_CLUSTER = struct.Struct(">8sHHiQIQ")
_FILE_HEADERS = {FORMAT_VERSION: _FILE_HEADER, _VERSION_WITHOUT_CLUSTER: _FILE_HEADER_WITHOUT_CLUSTER}
_FRAME_MAGIC = b"PSfr"
_FRAME_HEADER = struct.Struct(">4sQBBHIIQQI")
_LINK = struct.Struct(">QIQ")
_CRC = struct.Struct(">I")

FRAME_HEADER_LENGTH = _FRAME_HEADER.size + _CRC.size
#: Length of the part of a frame's header that the checksum covers; the checksum follows.
FRAME_SUMMED_LENGTH = _FRAME_HEADER.size
LINK_LENGTH = _LINK.size

_OPENS_INCARNATION = 1
_LAST_OF_BATCH = 1
_CLEAN_CLOSE = 2
_FLAGS_KNOWN = _LAST_OF_BATCH | _CLEAN_CLOSE
#: Payload parts shorter than this on average are joined.
_JOIN_LENGTH_MAX = 16 * 1024
_ZEROS = memoryview(bytes(BLOCK_LENGTH))


class FrameKind(IntEnum):
    """Type of a frame. Only `DATA` frames are returned to the user of the log."""

    DATA = 1
    LINK = 2
    TRAILER = 3


_KINDS: dict[int, FrameKind] = {int(kind): kind for kind in FrameKind}


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Identity of a log file. `opens_incarnation`: made by `open`, not by a rollover.

    `cluster_id`: in UTF-8; empty in files of versions that did not record it.
    """

    container_id: int
    epoch: int
    number: int
    salt: int
    opens_incarnation: bool
    cluster_id: bytes = b""


class FrameHeader(msgspec.Struct, frozen=True, gc=False):
    """A frame's fields. `offset` is where the frame starts in its file; `length` counts only the payload.

    A struct, not a dataclass: reading a log of short frames creates one per frame.
    """

    kind: FrameKind
    is_last_of_batch: bool
    is_clean_close: bool
    length: int
    offset: int
    epoch: int
    sequence: int
    synced_offset: int

    @property
    def end(self) -> int:
        """Offset just past the payload."""
        return self.offset + FRAME_HEADER_LENGTH + self.length

    @property
    def next_offset(self) -> int:
        """Offset of the next frame: the next block boundary if this frame ended a batch."""
        return block_end(self.end) if self.is_last_of_batch else self.end


@dataclass(frozen=True, slots=True)
class Link:
    """Payload of a link frame: the file before this one, valid in ``[0, end)``. `number` 0: there is none."""

    epoch: int
    number: int
    end: int


def block_end(offset: int) -> int:
    """Return the first block boundary at or after `offset`."""
    return -(-offset // BLOCK_LENGTH) * BLOCK_LENGTH


def padding(offset: int) -> memoryview:
    """Return the zeros from `offset` to the next block boundary."""
    return _ZEROS[: block_end(offset) - offset]


def encode_file_header(header: FileHeader) -> bytes:
    """Return a whole header block."""
    flags = _OPENS_INCARNATION if header.opens_incarnation else 0
    body = _FILE_HEADER.pack(
        _FILE_MAGIC,
        FORMAT_VERSION,
        flags,
        header.container_id,
        header.epoch,
        header.number,
        header.salt,
        header.cluster_id,
    )
    return (body + _CRC.pack(crc32c(body, 0))).ljust(BLOCK_LENGTH, b"\0")


def has_checksum(data: bytes, layout: struct.Struct) -> bool:
    """Return whether `data` begins with a record of that layout and its checksum."""
    if len(data) < layout.size + _CRC.size:
        return False
    return crc32c(data[: layout.size], 0) == int(_CRC.unpack_from(data, layout.size)[0])


def is_version_damaged(data: bytes, layouts: Mapping[int, struct.Struct]) -> bool:
    """Return whether a record of unknown version is one of the known versions with a damaged version number.

    Records of all versions have the version as a u16 at byte 8.
    """
    return any(
        has_checksum(data[:8] + version.to_bytes(2, "big") + data[10:], layout) for version, layout in layouts.items()
    )


def decode_file_header(data: bytes, path: str) -> FileHeader:
    """Decode the header block of the file `path`. Raises `CorruptionError`, `LaterVersionError`."""
    if len(data) < BLOCK_LENGTH:
        raise CorruptionError(path, 0, f"the header of a log file needs {BLOCK_LENGTH} bytes, found {len(data)}")
    if not data.startswith(_FILE_MAGIC):
        raise CorruptionError(path, 0, f"not a log file: it begins with {data[:8]!r}")
    version = int.from_bytes(data[8:10], "big")
    layout = _FILE_HEADERS.get(version)
    if layout is None and version > FORMAT_VERSION and not is_version_damaged(data, _FILE_HEADERS):
        raise LaterVersionError(path, found=version, known=FORMAT_VERSION, oldest=min(_FILE_HEADERS))
    if layout is None or not has_checksum(data, layout):
        raise CorruptionError(path, 0, "checksum of the file header does not match")
    body = data[: layout.size]
    _, _, flags, container_id, epoch, number, salt, *rest = layout.unpack(body)
    cluster_id = rest[0].rstrip(b"\0") if rest else b""
    return FileHeader(container_id, epoch, number, salt, bool(flags & _OPENS_INCARNATION), cluster_id)


def encode_frame(salt: int, frame: FrameHeader, payload: Sequence[Buffer], out: list[Buffer]) -> None:
    """Append the buffers of a frame to `out`: its header, its payload, and zeros to the block's end after a batch.

    Short payload parts are joined, which costs less than checksumming and writing each separately; long ones are not
    copied.
    """
    flags = (_LAST_OF_BATCH if frame.is_last_of_batch else 0) | (_CLEAN_CLOSE if frame.is_clean_close else 0)
    head = _FRAME_HEADER.pack(
        _FRAME_MAGIC,
        salt,
        frame.kind,
        flags,
        0,
        frame.length,
        frame.offset,
        frame.epoch,
        frame.sequence,
        frame.synced_offset,
    )
    crc = crc32c(head, 0)
    parts: Sequence[Buffer] = payload
    if len(payload) > 1 and frame.length <= _JOIN_LENGTH_MAX * len(payload):
        parts = (b"".join(payload),)
    for part in parts:
        crc = crc32c(part, crc)
    out.append(head + _CRC.pack(crc))
    out.extend(parts)
    if frame.is_last_of_batch:
        out.append(padding(frame.end))


def encode_single_frame_constants(file: FileHeader) -> bytes:
    """Return the checksummed part of the header of a data frame that is a batch of its own.

    Payload length, offset, sequence number and synced offset are zeros.
    """
    return _FRAME_HEADER.pack(_FRAME_MAGIC, file.salt, FrameKind.DATA, _LAST_OF_BATCH, 0, 0, 0, file.epoch, 0, 0)


def decode_frame_header(data: bytes, salt: int, offset: int) -> FrameHeader | None:
    """Decode the fixed part of the frame expected at `offset`; None if no frame of this file is there.

    Does not check the checksum: `frame_matches` does, once the payload has been read.
    """
    if len(data) < FRAME_HEADER_LENGTH:
        return None
    magic, found_salt, kind, flags, reserved, length, found_offset, epoch, sequence, synced = _FRAME_HEADER.unpack_from(
        data
    )
    if magic != _FRAME_MAGIC or found_salt != salt or found_offset != offset or reserved:
        return None
    known_kind = _KINDS.get(kind)
    if known_kind is None or flags & ~_FLAGS_KNOWN:
        return None
    return FrameHeader(
        known_kind,
        bool(flags & _LAST_OF_BATCH),
        bool(flags & _CLEAN_CLOSE),
        length,
        offset,
        epoch,
        sequence,
        synced,
    )


def later_frame_length(data: bytes, salt: int, offset: int) -> int | None:
    """Return the payload length of a frame at `offset` that `decode_frame_header` does not know; None if there is none.

    The checksum decides whether it is a frame of a later version or damage.
    """
    if len(data) < FRAME_HEADER_LENGTH:
        return None
    magic, found_salt, _, _, _, length, found_offset, *_ = _FRAME_HEADER.unpack_from(data)
    if magic != _FRAME_MAGIC or found_salt != salt or found_offset != offset:
        return None
    return int(length)


def check_frame_known(header: bytes) -> None:
    """Raise `LaterFormatError` for the header of an intact frame that only a later version can read."""
    _, _, kind, flags, reserved, *_ = _FRAME_HEADER.unpack_from(header)
    if kind not in _KINDS:
        raise LaterFormatError("frame kind", found=kind, known=max(_KINDS), oldest=min(_KINDS))
    if flags & ~_FLAGS_KNOWN:
        raise LaterFormatError("frame flags", found=flags, known=_FLAGS_KNOWN, oldest=0)
    if reserved:
        raise LaterFormatError("reserved field of a frame", found=reserved, known=0, oldest=0)


def frame_matches(header: bytes, payload: bytes) -> bool:
    """Return whether the checksum of a frame (`header`: its first `FRAME_HEADER_LENGTH` bytes) is correct."""
    crc = crc32c(payload, crc32c(header[: _FRAME_HEADER.size], 0))
    return crc == int(_CRC.unpack_from(header, _FRAME_HEADER.size)[0])


def frame_pattern(salt: int) -> bytes:
    """Return the bytes with which every frame of a file begins."""
    return _FRAME_MAGIC + salt.to_bytes(8, "big")


def encode_link(link: Link) -> bytes:
    """Return the payload of a link frame."""
    return _LINK.pack(link.epoch, link.number, link.end)


def decode_link(payload: bytes) -> Link:
    """Decode the payload of a link frame. Raises `ValueError`."""
    if len(payload) != _LINK.size:
        raise ValueError(f"a link has {_LINK.size} bytes, found {len(payload)}")
    return Link(*_LINK.unpack(payload))
