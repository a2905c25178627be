"""Entries of a ledger: a header and a frame, or a beat without one. Format: docs/formats.md, "Entries of ledgers"."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.model.checksum import crc32c_at_once
from penstock.model.errors import CorruptionError
from penstock.model.segments import Buffer
from penstock.segmentstore.later_format import version_error

FORMAT_VERSION = 1
FRAME = 1
BEAT = 2

_HEAD = struct.Struct("<BBH")
_CRC = struct.Struct("<I")
HEADER_LENGTH: int = _HEAD.size + _CRC.size

_FRAME_HEAD = _HEAD.pack(FORMAT_VERSION, FRAME, 0)
_FRAME_SEED = crc32c_at_once(_FRAME_HEAD, 0)
_BEAT_HEAD = _HEAD.pack(FORMAT_VERSION, BEAT, 0)

#: The bytes of the entry of a beat.
BEAT_PARTS: Sequence[Buffer] = (_BEAT_HEAD + _CRC.pack(crc32c_at_once(_BEAT_HEAD, 0)),)

_ORDINAL_SHIFT = 32
_ENTRY_MASK = (1 << _ORDINAL_SHIFT) - 1


def frame_parts(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return the bytes of the entry of a frame, in parts.

    The checksum is computed here: for a long frame that takes as long as all other work for it.
    """
    checksum = _FRAME_SEED
    for buffer in buffers:
        checksum = crc32c_at_once(buffer, checksum)
    return (_FRAME_HEAD, _CRC.pack(checksum), *buffers)


class FrameEntry:
    """`LedgerEntry` of a frame made of `buffers`, which have `length` bytes in all."""

    __slots__ = ("_buffers", "length")

    def __init__(self, buffers: Sequence[Buffer], length: int) -> None:
        self.length: int = HEADER_LENGTH + length
        self._buffers = buffers

    def parts(self) -> Sequence[Buffer]:
        """See `LedgerEntry.parts`."""
        return frame_parts(self._buffers)


class BeatEntry:
    """`LedgerEntry` without a frame, by which an idle log confirms its ownership."""

    __slots__ = ("length",)

    def __init__(self) -> None:
        self.length: int = HEADER_LENGTH

    def parts(self) -> Sequence[Buffer]:
        """See `LedgerEntry.parts`."""
        return BEAT_PARTS


def decode_entry(entry: bytes, ledger: str, number: int) -> bytes | None:
    """Return the frame of an entry; None for a beat. `ledger`: for messages.

    Raises `CorruptionError` and `LaterVersionError`, with the number of the entry as offset.
    """
    if len(entry) < HEADER_LENGTH:
        raise CorruptionError(ledger, number, f"entry {number} has {len(entry)} bytes")
    version, kind, _ = _HEAD.unpack_from(entry)
    (checksum,) = _CRC.unpack_from(entry, _HEAD.size)
    frame = entry[HEADER_LENGTH:]
    if crc32c_at_once(frame, crc32c_at_once(entry[: _HEAD.size], 0)) != checksum:
        raise CorruptionError(ledger, number, f"the checksum of entry {number} does not match")
    if version != FORMAT_VERSION:
        raise version_error(ledger, version, (FORMAT_VERSION,))
    if kind not in (FRAME, BEAT):
        raise version_error(ledger, kind, (FRAME, BEAT), "kind of entry")
    return frame if kind == FRAME else None


def frame_address(ordinal: int, entry: int) -> int:
    """Return the address of the frame in an entry of the ledger with this ordinal (from 1)."""
    return ordinal << _ORDINAL_SHIFT | entry


def split_address(address: int) -> tuple[int, int]:
    """Return the ordinal and the entry of an address."""
    return address >> _ORDINAL_SHIFT, address & _ENTRY_MASK
