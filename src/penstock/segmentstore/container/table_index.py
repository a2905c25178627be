"""`TableIndex`: which entry of a table segment's log is the live one of each key.

A table segment is a log of entries; the index maps each live key to the version and place of its last write. It is
kept in memory and rebuilt from the log on first use after a start. An entry's version is its offset, unless it was
copied by compaction: copies carry the original version. Pure: bytes in, decisions out.

Source: segment store specification, sections 6.2, 6.5, 6.6; wire protocol specification, section 6.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.segments import (
    NO_VALUE,
    TABLE_KEY_LENGTH_MAX,
    TABLE_VALUE_LENGTH_MAX,
    VERSION_ABSENT,
    VERSION_ANY,
    TableRemoval,
    TableUpdate,
)

#: Serialisation version u8, key length u32, value length i32 (-1 = removal), explicit version i64 (NO_VALUE = offset).
ENTRY_HEADER = struct.Struct(">BIiq")
ENTRY_FORMAT_VERSION = 1
BATCH_LENGTH_MAX = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the live entry of a key lies: its version, and its value's place in the segment."""

    version: int
    value_offset: int
    value_length: int


@dataclass(frozen=True, slots=True)
class ParsedEntry:
    """One entry of the log. `value_length` -1 is a removal."""

    offset: int
    end: int
    key: bytes
    version: int
    value_offset: int
    value_length: int


def encode_put(key: bytes, value: bytes, version: int = NO_VALUE) -> bytes:
    """Return the entry of a put; `version` only for copies."""
    return ENTRY_HEADER.pack(ENTRY_FORMAT_VERSION, len(key), len(value), version) + key + value


def encode_removal(key: bytes) -> bytes:
    """Return the entry of a removal."""
    return ENTRY_HEADER.pack(ENTRY_FORMAT_VERSION, len(key), -1, NO_VALUE) + key


def parse_entries(segment: str, data: bytes, offset: int) -> Iterator[ParsedEntry]:
    """Yield the whole entries in `data`, which begins at an entry's start at `offset`.

    An entry that is cut off ends the iteration. Raises `CorruptionError` for bytes that cannot be an entry.
    """
    position = 0
    end = len(data)
    header_length = ENTRY_HEADER.size
    while end - position >= header_length:
        format_version, key_length, value_length, version = ENTRY_HEADER.unpack_from(data, position)
        if (
            format_version != ENTRY_FORMAT_VERSION
            or not 0 < key_length <= TABLE_KEY_LENGTH_MAX
            or not -1 <= value_length <= TABLE_VALUE_LENGTH_MAX
        ):
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


class TableIndex:
    """Live keys of one table segment.

    Invariant: after `apply` of every entry of the log in order, `slots` has exactly the keys whose entry with the
    highest version is a put.
    """

    __slots__ = ("_removed_versions", "_sorted_keys", "is_compacting", "key_length", "live_bytes", "segment", "slots")

    def __init__(self, segment: str, key_length: int) -> None:
        self.segment = segment
        self.key_length = key_length
        self.slots: dict[bytes, Slot] = {}
        self.live_bytes = 0
        self.is_compacting = False
        self._sorted_keys: list[bytes] | None = None
        # Only while the log is scanned: a copy may follow the removal of the entry it was copied from.
        self._removed_versions: dict[bytes, int] | None = {}

    def finish_scan(self) -> None:
        """End the scan of the log: from here on entries come in the order of their versions."""
        self._removed_versions = None

    def apply(self, entry: ParsedEntry) -> None:
        """Bring one entry of the log in."""
        old = self.slots.get(entry.key)
        if old is not None and old.version > entry.version:
            return
        removed = self._removed_versions
        if removed is not None and removed.get(entry.key, -1) > entry.version:
            return
        if old is not None:
            self.live_bytes -= ENTRY_HEADER.size + len(entry.key) + old.value_length
        if entry.value_length < 0:
            if removed is not None:
                removed[entry.key] = entry.version
            if old is not None:
                del self.slots[entry.key]
                self._sorted_keys = None
            return
        self.slots[entry.key] = Slot(entry.version, entry.value_offset, entry.value_length)
        self.live_bytes += ENTRY_HEADER.size + len(entry.key) + entry.value_length
        if old is None:
            self._sorted_keys = None

    def check_key(self, key: bytes) -> None:
        """Raise `InvalidArgumentError` unless `key` may be a key of this table."""
        if self.key_length:
            if len(key) != self.key_length:
                raise InvalidArgumentError(
                    f"{self.segment}: key of {len(key)} bytes, this table's keys have {self.key_length}"
                )
        elif not 0 < len(key) <= TABLE_KEY_LENGTH_MAX:
            raise InvalidArgumentError(
                f"{self.segment}: key of {len(key)} bytes, allowed are 1 to {TABLE_KEY_LENGTH_MAX}"
            )

    def _check_conditions(self, conditions: Sequence[TableUpdate] | Sequence[TableRemoval]) -> None:
        failed: TableKeyVersionError | None = None
        for condition in conditions:
            self.check_key(condition.key)
            expected = condition.version
            if expected == VERSION_ANY:
                continue
            if expected < VERSION_ABSENT:
                raise InvalidArgumentError(f"{self.segment}: {expected} is not a version")
            slot = self.slots.get(condition.key)
            actual = VERSION_ABSENT if slot is None else slot.version
            if actual == expected:
                continue
            if slot is None:
                raise TableKeyMissingError(self.segment, key=condition.key)
            if failed is None:
                failed = TableKeyVersionError(self.segment, key=condition.key, expected=expected, actual=actual)
        if failed is not None:
            raise failed

    def plan_puts(self, updates: Sequence[TableUpdate], offset: int) -> tuple[bytes, list[int]]:
        """Check a batch of puts; return the bytes to append at `offset` and the new versions.

        A key may occur more than once (Rust synchronizers repeat the version cell of a map, each time with the
        version from before the batch): conditions are checked against the table before the batch, the last put wins.

        Raises `InvalidArgumentError`, `TableKeyMissingError`, `TableKeyVersionError`; nothing has changed then.
        """
        self._check_conditions(updates)
        parts: list[bytes] = []
        versions: list[int] = []
        position = offset
        for update in updates:
            if len(update.value) > TABLE_VALUE_LENGTH_MAX:
                raise InvalidArgumentError(
                    f"{self.segment}: value of {len(update.value)} bytes, at most {TABLE_VALUE_LENGTH_MAX} are allowed"
                )
            versions.append(position)
            entry = encode_put(update.key, update.value)
            parts.append(entry)
            position += len(entry)
        if position - offset > BATCH_LENGTH_MAX:
            raise InvalidArgumentError(
                f"{self.segment}: batch of {position - offset} bytes, at most {BATCH_LENGTH_MAX} are allowed"
            )
        return b"".join(parts), versions

    def plan_removals(self, removals: Sequence[TableRemoval]) -> bytes:
        """Check a batch of removals; return the bytes to append. Keys that are absent add nothing."""
        self._check_conditions(removals)
        return b"".join(encode_removal(removal.key) for removal in removals if removal.key in self.slots)

    def keys_after(self, token: bytes, limit: int) -> list[bytes]:
        """Return up to `limit` live keys greater than `token`, in ascending order."""
        if self._sorted_keys is None:
            self._sorted_keys = sorted(self.slots)
        at = bisect_right(self._sorted_keys, token) if token else 0
        return self._sorted_keys[at : at + limit]

    def copies(self, entries: Sequence[ParsedEntry], data: bytes, offset: int) -> bytes:
        """Return copies, with their original versions, of those `entries` (lying in `data` at `offset`) that live."""
        parts: list[bytes] = []
        for entry in entries:
            slot = self.slots.get(entry.key)
            if slot is not None and slot.value_offset == entry.value_offset:
                value = data[entry.value_offset - offset : entry.end - offset]
                parts.append(encode_put(entry.key, value, entry.version))
        return b"".join(parts)
