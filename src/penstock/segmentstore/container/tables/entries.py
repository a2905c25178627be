"""Entries of a table segment's log, and slots, which locate a key's live entry.

A table segment is a log of entries. An entry's version is its offset, unless compaction copied it: a copy has the
version of the original entry. Pure: bytes in, values out.

Source: segment-store 6.2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.model.errors import CorruptionError
from penstock.model.segments import NO_VALUE, TABLE_KEY_LENGTH_MAX, TABLE_VALUE_LENGTH_MAX
from penstock.segmentstore.later_format import version_error

#: Serialisation version u8, key length u32, value length i32 (-1 = removal), explicit version i64 (NO_VALUE = offset).
ENTRY_HEADER: Final = struct.Struct(">BIiq")
ENTRY_FORMAT_VERSION: Final = 1
#: An entry has no checksum of its own, so only the next few versions, with valid lengths, are recognised as later
#: versions. Anything else is corruption.
_LATER_VERSIONS: Final = range(ENTRY_FORMAT_VERSION + 1, 16)
ENTRY_LENGTH_MAX: Final = ENTRY_HEADER.size + TABLE_KEY_LENGTH_MAX + TABLE_VALUE_LENGTH_MAX
BATCH_LENGTH_MAX: Final = 32 * 1024 * 1024

#: A slot: version i64, entry's offset i64, entry's length u32. Kept packed in memory as in the index: a third of the
#: memory of a tuple of three, and no conversion.
_SLOT: Final = struct.Struct(">qqI")
SLOT_LENGTH: Final = _SLOT.size
pack_slot: Callable[[int, int, int], bytes] = _SLOT.pack
#: Lookup result for a key without an answer; a slot is never empty. None means that the key is not in the table.
MISSING: Final = b""


@dataclass(frozen=True, slots=True)
class Slot:
    """Location of the live entry of a key."""

    version: int
    offset: int
    length: int

    def value_range(self, key: bytes) -> tuple[int, int]:
        """Return offset and length of the value of `key`'s entry."""
        skipped = ENTRY_HEADER.size + len(key)
        return self.offset + skipped, self.length - skipped


def unpack_slot(packed: bytes) -> Slot:
    """Unpack the result of `pack_slot`."""
    return Slot(*_SLOT.unpack(packed))


def slot_version(packed: bytes) -> int:
    """Return a packed slot's version."""
    return int.from_bytes(packed[:8], "big", signed=True)


def unpack_slots(packed: Iterable[bytes]) -> list[tuple[int, int, int]]:
    """Return version, offset and length of many slots."""
    return list(_SLOT.iter_unpack(b"".join(packed)))


def slot_length(packed: bytes) -> int:
    """Return the length in bytes of a packed slot's entry."""
    return int.from_bytes(packed[16:], "big")


class ParsedEntry(NamedTuple):
    """One entry of the log. `value_length` -1 is a removal. A tuple, because a scan creates one per entry."""

    offset: int
    end: int
    key: bytes
    version: int
    value_offset: int
    value_length: int

    @property
    def is_copy(self) -> bool:
        """Whether compaction wrote the entry."""
        return self.version != self.offset

    @property
    def slot(self) -> bytes | None:
        """The packed slot of this entry; None for a removal."""
        return None if self.value_length < 0 else pack_slot(self.version, self.offset, self.end - self.offset)


def encode_put(key: bytes, value: bytes, version: int = NO_VALUE) -> bytes:
    """Return the entry of a put; `version` only for copies."""
    return ENTRY_HEADER.pack(ENTRY_FORMAT_VERSION, len(key), len(value), version) + key + value


def encode_removal(key: bytes) -> bytes:
    """Return the entry of a removal."""
    return ENTRY_HEADER.pack(ENTRY_FORMAT_VERSION, len(key), -1, NO_VALUE) + key


def parse_entries(segment: str, data: bytes, offset: int) -> Iterator[ParsedEntry]:
    """Yield the whole entries in `data`, which begins at an entry's start at `offset`.

    A truncated entry ends the iteration. Raises `CorruptionError` for bytes that are not an entry, `LaterVersionError`
    for an entry of one of the next versions.
    """
    position = 0
    end = len(data)
    header_length = ENTRY_HEADER.size
    while end - position >= header_length:
        format_version, key_length, value_length, version = ENTRY_HEADER.unpack_from(data, position)
        has_lengths = 0 < key_length <= TABLE_KEY_LENGTH_MAX and -1 <= value_length <= TABLE_VALUE_LENGTH_MAX
        if format_version != ENTRY_FORMAT_VERSION or not has_lengths:
            if has_lengths and format_version in _LATER_VERSIONS:
                path = f"the entry at byte {offset + position} of table segment {segment}"
                raise version_error(path, format_version, (ENTRY_FORMAT_VERSION,))
            raise CorruptionError(segment, offset + position, "these bytes are not a table entry")
        key_at = position + header_length
        value_at = key_at + key_length
        after = value_at + max(value_length, 0)
        if after > end:
            return
        yield ParsedEntry(
            offset + position,
            offset + after,
            data[key_at:value_at],
            offset + position if version == NO_VALUE else version,
            offset + value_at,
            value_length,
        )
        position = after
