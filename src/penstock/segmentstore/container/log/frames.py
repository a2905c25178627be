"""Frames: packs records of any length into log frames of bounded length, and reads them back.

A frame's payload is a format version byte and entries; an entry is flags (u8), length (u32) and bytes. A record is
one entry with both flags, or several entries in consecutive frames: only the first carries FIRST, only the last
carries LAST. Pure: no I/O. Source: segment-store 2.4 and 2.7 (R2.11-R2.15, R2.30-R2.32).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from penstock.model.segments import Buffer
from penstock.segmentstore.container.log.operations import (
    FORMAT_VERSION,
    TYPE_MAX,
    Checkpoint,
    UpdatePinned,
    check_kind,
)
from penstock.segmentstore.later_format import check_version

ENTRY_HEADER = struct.Struct(">BI")
#: An entry's header and, if a record begins with it, the record's type.
_ENTRY_AND_KIND = struct.Struct(">BIB")
#: Types of records that have versions of their own.
_VERSIONED = (Checkpoint.TYPE, UpdatePinned.TYPE)
FIRST = 1
LAST = 2
_VERSION = bytes((FORMAT_VERSION,))
#: A frame must have room for an entry header and some bytes to start an entry in it.
_ENTRY_ROOM_MIN = ENTRY_HEADER.size + 64


class FrameBuilder:
    """Packs records into the parts of frames. Buffers are referenced, not copied."""

    __slots__ = ("_length_max", "length", "parts")

    def __init__(self, length_max: int) -> None:
        self._length_max = length_max
        self.parts: list[Buffer] = [_VERSION]
        self.length: int = 1

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added since the last `take`."""
        return self.length == 1

    def fits(self, record_length: int) -> bool:
        """Return whether a whole record fits into the current frame."""
        return self.length + ENTRY_HEADER.size + record_length <= self._length_max

    def add(self, header: bytes, data: Buffer | None, record_length: int) -> None:
        """Add a record that `fits`: its header bytes and its data, if any."""
        self.parts.append(ENTRY_HEADER.pack(FIRST | LAST, record_length) + header)
        if data is not None and len(data):
            self.parts.append(data)
        self.length += ENTRY_HEADER.size + record_length

    def take(self) -> tuple[list[Buffer], int]:
        """Return the current frame's parts and length, and begin a new frame."""
        taken = self.parts, self.length
        self.parts = [_VERSION]
        self.length = 1
        return taken

    def add_spanning(self, header: bytes, data: Buffer | None) -> Iterator[tuple[list[Buffer], int]]:
        """Add a record of any length; yield each frame that it fills, in order."""
        pieces = [memoryview(header)]
        if data is not None and len(data):
            pieces.append(memoryview(data).cast("B"))
        rest = sum(map(len, pieces))
        flags = FIRST
        while rest:
            room = self._length_max - self.length - ENTRY_HEADER.size
            if room < _ENTRY_ROOM_MIN:
                yield self.take()
                continue
            count = min(room, rest)
            rest -= count
            if not rest:
                flags |= LAST
            self.parts.append(ENTRY_HEADER.pack(flags, count))
            self.length += ENTRY_HEADER.size + count
            flags = 0
            while count:
                piece = pieces[0][:count]
                self.parts.append(piece)
                count -= len(piece)
                if len(piece) == len(pieces[0]):
                    del pieces[0]
                else:
                    pieces[0] = pieces[0][len(piece) :]


class RecordReader:
    """Reassembles records from frames in log order."""

    __slots__ = ("_open", "_seen_any")

    def __init__(self) -> None:
        self._open: list[memoryview] | None = None
        self._seen_any = False

    def feed(self, frame: bytes) -> list[Buffer]:
        """Return the records that end in `frame`.

        An incomplete record is dropped, whether the log ended there or a later incarnation continued it. Raises
        `ValueError` with the offset in the frame if the bytes are not valid entries.
        """
        check_frame_version(frame)
        records: list[Buffer] = []
        view = memoryview(frame)
        position = 1
        while position < len(frame):
            record, position = self.feed_entry(view, position)
            if record is not None:
                records.append(record)
        return records

    @property
    def is_open(self) -> bool:
        """Whether a record has begun and not ended."""
        return self._open is not None

    def pass_whole(self) -> None:
        """Note entries that were whole records and were decoded elsewhere."""
        self._open = None
        self._seen_any = True

    def feed_entry(self, frame: memoryview, position: int) -> tuple[Buffer | None, int]:
        """Return the record that ends with the entry at `position` of a frame, if any, and the next entry's position.

        Raises as `feed`.
        """
        end = len(frame)
        if end - position < ENTRY_HEADER.size:
            raise ValueError(f"entry header cut off at byte {position} of the frame")
        flags, length = ENTRY_HEADER.unpack_from(frame, position)
        start = position + ENTRY_HEADER.size
        position = start + length
        if flags & ~(FIRST | LAST) or position > end or not length:
            raise ValueError(f"bad entry (flags {flags}, length {length}) at byte {start} of the frame")
        record: Buffer | None = None
        body = frame[start:position]
        if flags & FIRST:
            self._open = None  # An incomplete record before it was never acknowledged.
            if flags & LAST:
                record = body
            else:
                self._open = [body]
        elif self._open is not None:
            self._open.append(body)
            if flags & LAST:
                record = b"".join(self._open)
                self._open = None
        elif self._seen_any:
            raise ValueError(f"entry at byte {start} of the frame continues a record that never began")
        # Else the log was truncated inside this record; its tail is ignored.
        if flags:
            self._seen_any = True
        return record, position


def check_frame_version(frame: bytes) -> None:
    """Raise `ValueError` for a frame format this version cannot read, `LaterFormatError` for one of a later version."""
    if not frame:
        raise ValueError("a frame without a format version")
    if frame[0] != FORMAT_VERSION:
        check_version(frame[0], (FORMAT_VERSION,), "frame format version")


def check_later_formats(frame: bytes) -> bool:
    """Raise `LaterFormatError` if a frame, or a record that begins in it, has a format of a later version.

    For frames of a log that is not claimed yet. Other errors in a frame are reported by replay. Return whether a record
    begins in it that has versions of its own: see `LaterFormats`.
    """
    if not frame:
        return False
    if frame[0] > FORMAT_VERSION:
        check_frame_version(frame)
    is_versioned = False
    position, end = 1, len(frame)
    while end - position >= _ENTRY_AND_KIND.size:
        flags, length, kind = _ENTRY_AND_KIND.unpack_from(frame, position)
        if flags & FIRST and length:
            if kind > TYPE_MAX:
                check_kind(kind)
            is_versioned |= kind in _VERSIONED
        position += ENTRY_HEADER.size + length
    return is_versioned
