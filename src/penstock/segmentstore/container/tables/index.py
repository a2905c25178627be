"""`TableIndex`: the live entry of each key in a table segment's log, and the validation of updates.

Three layers, newest first: the *tail*, which grows with each write; while it is being moved to the index, the *frozen*
tail; and the index in long-term storage, which covers the log up to `mark.indexed_offset`. A small table has only a
tail. A key's state is that of the newest layer that contains the key.

The index's values are packed slots (`table_entries`), its mark is a `TableMark`.

Source: segment-store 6.2 to 6.5; wire-protocol 6.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar, Final

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    SegmentError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.segments import (
    TABLE_KEY_LENGTH_MAX,
    TABLE_VALUE_LENGTH_MAX,
    VERSION_ABSENT,
    VERSION_ANY,
    TableRemoval,
    TableUpdate,
)
from penstock.segmentstore.container.btree.sorted_index import SortedIndex
from penstock.segmentstore.container.tables.entries import (
    BATCH_LENGTH_MAX,
    ENTRY_FORMAT_VERSION,
    ENTRY_HEADER,
    MISSING,
    ParsedEntry,
    Slot,
    encode_removal,
    pack_slot,
    slot_version,
    unpack_slot,
)
from penstock.segmentstore.container.tables.tail import Tail
from penstock.segmentstore.later_format import version_error

#: Keys looked up in the index at a time by operations on many keys, which yield to the event loop in between.
LOOKUP_COUNT: Final = 4096

#: Slots by key, as returned by the index; valid until the loop's next turn.
Loaded = Mapping[bytes, bytes | None]
_NOTHING: Final[Loaded] = {}


class TableBusyError(SegmentError):
    """The table cannot accept the request now: its index is being loaded, or lags behind. Nothing was applied."""

    is_retriable = True


@dataclass(frozen=True, slots=True)
class TableMark:
    """The part of the log that a table's index covers, stored with it: the log before `indexed_offset`.

    That part of the log has `live_count` keys with `live_bytes` of live entries, and `entry_count` entries, live or
    dead. After a crash during a compaction `entry_count` may be too high; correctness does not depend on it.
    `indexed_offset` -1: the content of the index is invalid and being cleared.
    """

    indexed_offset: int = 0
    live_count: int = 0
    live_bytes: int = 0
    entry_count: int = 0

    _FORMAT: ClassVar[struct.Struct] = struct.Struct(">Bqqqq")
    _FORMAT_VERSION: ClassVar[int] = 1

    def encode(self) -> bytes:
        """Return the stored form: format version u8, then the four fields as i64."""
        return self._FORMAT.pack(
            self._FORMAT_VERSION, self.indexed_offset, self.live_count, self.live_bytes, self.entry_count
        )

    @classmethod
    def decode(cls, table: str, data: bytes) -> TableMark:
        """Parse a stored mark; an empty one belongs to an index that was never written."""
        if not data:
            return cls()
        if data[0] > cls._FORMAT_VERSION:
            raise version_error(f"the header of the index of {table}", data[0], (cls._FORMAT_VERSION,))
        if len(data) != cls._FORMAT.size or data[0] != cls._FORMAT_VERSION:
            raise CorruptionError(f"index of {table}", 0, f"{data.hex()} is not the header of a table's index")
        _, *fields = cls._FORMAT.unpack(data)
        return cls(*fields)


#: The mark of an index with leftover, useless content.
CLEARING: Final = TableMark(indexed_offset=-1)


class TableIndex:
    """Live keys of one table segment, and the validation of conditional updates.

    Attributes:
        end: end of the applied log; the segment's length, except while the log is scanned.
        frozen_end: `frozen` covers the log from `mark.indexed_offset` up to here.
        generation: incremented when the frozen tail is dropped; earlier lookups are then no longer valid.
        is_over: the table has left memory; without its index, existing keys would seem absent.
        is_index_open: False while the outcome of an update of the index is unknown; it can still be read.
        waiters: updates that wait for the index to catch up.
    """

    __slots__ = (
        "_is_scanning",
        "compact_lock",
        "end",
        "flush_lock",
        "frozen",
        "frozen_end",
        "generation",
        "index",
        "is_compacting",
        "is_flush_spawned",
        "is_index_open",
        "is_over",
        "key_length",
        "mark",
        "retry_at_s",
        "segment",
        "tail",
        "waiters",
    )

    def __init__(self, segment: str, key_length: int) -> None:
        self.segment: str = segment
        self.key_length: int = key_length
        self.index: SortedIndex | None = None
        self.is_index_open: bool = False
        self.is_over: bool = False
        self.mark: TableMark = TableMark()
        self.tail: Tail = Tail()
        self.frozen: Tail | None = None
        self.frozen_end: int = 0
        self.end: int = 0
        self.generation: int = 0
        self.is_compacting: bool = False
        self.is_flush_spawned: bool = False
        self.retry_at_s: float = 0.0
        self.flush_lock: asyncio.Lock = asyncio.Lock()
        self.compact_lock: asyncio.Lock = asyncio.Lock()
        self.waiters: list[asyncio.Future[None]] = []
        self._is_scanning = True

    # Counts.

    @property
    def live_bytes(self) -> int:
        """Bytes of live entries, exact when no key of a tail is unresolved."""
        frozen = self.frozen.live_bytes_delta if self.frozen is not None else 0
        return self.mark.live_bytes + frozen + self.tail.live_bytes_delta

    @property
    def entry_count(self) -> int:
        """Number of entries in the log, live or dead."""
        frozen = self.frozen.entry_count if self.frozen is not None else 0
        return self.mark.entry_count + frozen + self.tail.entry_count

    async def live_count(self) -> int:
        """Return the exact number of live keys; looks up keys that are unresolved."""
        while True:
            if self.frozen is not None and self.frozen.unresolved:
                await self.resolve(self.frozen)
            elif self.tail.unresolved:
                await self.resolve(self.tail)
            else:
                frozen = self.frozen.count_delta if self.frozen is not None else 0
                return self.mark.live_count + frozen + self.tail.count_delta

    async def resolve(self, tail: Tail) -> None:
        """Look up every unresolved key of `tail` in the layers below, and count it."""
        # None of them is in the frozen tail: `set` checks that.
        while tail.unresolved and (tail is self.tail or tail is self.frozen):
            self.check_in_memory()
            assert self.index is not None
            keys = list(islice(tail.unresolved, LOOKUP_COUNT))
            generation = self.generation
            below = await self.index.get(keys)
            if self.generation != generation:
                continue
            for key, slot in zip(keys, below, strict=True):
                if key in tail.unresolved:
                    tail.resolve(key, slot)
            if tail.unresolved:
                await asyncio.sleep(0)

    # Look-ups.

    def find(self, key: bytes) -> bytes | None:
        """Return a key's packed slot, None for an absent key, `MISSING` if only the index has the answer."""
        slot = self.tail.slots.get(key, MISSING)
        if slot == MISSING:
            if self.frozen is not None:
                slot = self.frozen.slots.get(key, MISSING)
            if slot == MISSING and self.index is None:
                return None
        return slot

    def slot(self, key: bytes, loaded: Loaded) -> bytes | None:
        """Return a key's packed slot, None for an absent key. `loaded` is the current result of `load` for it."""
        slot = self.find(key)
        return loaded[key] if slot == MISSING else slot

    async def load(self, keys: Sequence[bytes]) -> Loaded:
        """Look up in the index those of `keys` that only the index knows, all at one moment.

        Does not wait if everything is in memory. The result is valid until the caller awaits anything.
        """
        self.check_in_memory()
        if self.index is None:
            return _NOTHING
        while True:
            index, index_generation, generation = self.index, self.index.generation, self.generation
            wanted = [key for key in keys if self.find(key) == MISSING]
            loaded: dict[bytes, bytes | None] = {}
            for key in wanted:
                is_known, value = index.get_cached(key)
                if not is_known:
                    break
                loaded[key] = value
            else:
                return loaded
            values = await index.get(wanted)
            self.check_in_memory()
            if (index.generation, self.generation) == (index_generation, generation):
                return dict(zip(wanted, values, strict=True))

    # Changes.

    def scan(self, entry: ParsedEntry, copies: dict[bytes, bytes]) -> None:
        """Apply an entry during the scan of the log, in the order of the log.

        A copy only counts where the entry it was made from would count: a newer entry of the key may precede it in the
        log. Copies of keys that the tail does not contain are left in `copies`, for the index to decide
        (`apply_copies`).
        """
        self.end = entry.end
        self.tail.entry_count += 1
        slot = entry.slot
        if entry.is_copy and slot is not None:
            old = self.tail.slots.get(entry.key, MISSING)
            if old == MISSING and self.index is not None:
                copies[entry.key] = slot
                return
            # The original entry may be truncated with the log's head; a removal is never followed by a copy that
            # counts.
            if old is None or (old != MISSING and slot_version(old) > entry.version):
                return
        self.set(entry.key, slot, _NOTHING)

    def apply_copies(self, copies: Mapping[bytes, bytes], stored: Loaded, *, is_head_scanned: bool) -> None:
        """Apply copies that `scan` left, if the index (`stored`) has the entries that they were made from.

        With `is_head_scanned` the index has only what was scanned before: the entry of a key that it does not have was
        in the truncated head of the log.
        """
        for key, copy in copies.items():
            if self.find(key) != MISSING:
                continue
            old = stored[key]
            if is_head_scanned if old is None else slot_version(old) == slot_version(copy):
                self.set(key, copy, stored)

    def finish_scan(self) -> None:
        """End the scan of the log: entries now arrive in the order of their versions."""
        self._is_scanning = False
        if self.index is None and self.frozen is None:
            self.tail.drop_removed()

    def set(self, key: bytes, slot: bytes | None, loaded: Loaded) -> None:
        """Set a key's last write to `slot` (None: its removal). `loaded`: known slots of the index."""
        tail = self.tail
        old = tail.slots.get(key, MISSING)
        if old != MISSING:
            if not tail.unresolved or key not in tail.unresolved:
                tail.count(old, slot)
            if slot is not None or self._is_scanning or self.index is not None or self.frozen is not None:
                tail.slots[key] = slot
            else:
                tail.drop(key)
            return
        below: bytes | None = self.frozen.slots.get(key, MISSING) if self.frozen is not None else MISSING
        if below == MISSING:
            below = loaded.get(key, MISSING) if self.index is not None else None
        if below == MISSING:
            tail.unresolved[key] = None
        else:
            tail.count(below, slot)
        tail.add(key, slot)

    # Moving the tail to the index.

    def freeze(self) -> None:
        """Freeze the tail and begin a new one."""
        assert self.frozen is None
        self.frozen, self.frozen_end = self.tail, self.end
        self.tail = Tail()

    def frozen_mark(self) -> TableMark:
        """Return the index's mark after adding the frozen tail, which has no unresolved keys."""
        frozen = self.frozen
        assert frozen is not None
        assert not frozen.unresolved
        mark = self.mark
        return TableMark(
            self.frozen_end,
            mark.live_count + frozen.count_delta,
            mark.live_bytes + frozen.live_bytes_delta,
            mark.entry_count + frozen.entry_count,
        )

    def commit(self, mark: TableMark) -> None:
        """Drop the frozen tail, which the index now has, and adopt `mark`."""
        # Compaction may have removed entries since the mark was made.
        self.mark = replace(mark, entry_count=self.entry_count - self.tail.entry_count)
        self.frozen = None
        self.generation += 1
        self.wake()

    def rebase(self, mark: TableMark) -> None:
        """Continue with an index that another writer has advanced to `mark`.

        The tails are at least as new as the index, so they may stay; only their differences from it must be resolved
        again.
        """
        frozen = self.frozen.slots if self.frozen is not None else {}
        tail = Tail()
        tail.slots = {**frozen, **self.tail.slots}
        tail.unresolved = dict.fromkeys(tail.slots)
        tail.entry_count = self.entry_count - mark.entry_count
        self.tail = tail
        self.mark = mark
        self.frozen = None
        self.generation += 1
        self.wake()

    def close(self) -> None:
        """Release the index's memory, and continue without an index."""
        index, self.index = self.index, None
        if index is not None:
            index.close()

    def end_life(self) -> None:
        """Release all memory: the segment is gone, or its container is ending. Running lookups raise."""
        self.is_over = True
        self.close()

    def check_in_memory(self) -> None:
        """Raise `TableBusyError` once the table has left memory."""
        if self.is_over:
            raise TableBusyError(self.segment, "its state was unloaded meanwhile; try again")

    def wake(self) -> None:
        """Wake the operations that wait for the index."""
        waiters, self.waiters = self.waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def note_compacted(self, count: int) -> None:
        """Count the removal of the log's head with `count` entries."""
        # They are covered by the index, or are in the tail of a table without an index.
        if self.index is None:
            self.tail.entry_count -= count
        else:
            self.mark = replace(self.mark, entry_count=self.mark.entry_count - count)

    # Plans.

    def check_key(self, key: bytes) -> None:
        """Raise `InvalidArgumentError` if `key` is not valid for this table."""
        if self.key_length:
            if len(key) != self.key_length:
                raise InvalidArgumentError(
                    f"{self.segment}: key of {len(key)} bytes, this table's keys have {self.key_length}"
                )
        elif not 0 < len(key) <= TABLE_KEY_LENGTH_MAX:
            raise InvalidArgumentError(
                f"{self.segment}: key of {len(key)} bytes, allowed are 1 to {TABLE_KEY_LENGTH_MAX}"
            )

    def _check_conditions(self, conditions: Sequence[TableUpdate] | Sequence[TableRemoval], loaded: Loaded) -> None:
        failed: TableKeyVersionError | None = None
        for condition in conditions:
            key = condition.key
            expected = condition.version
            if expected == VERSION_ANY:
                continue
            slot = self.slot(key, loaded)
            actual = VERSION_ABSENT if slot is None else slot_version(slot)
            if actual == expected:
                continue
            if slot is None:
                raise TableKeyMissingError(self.segment, key=key)
            if failed is None:
                failed = TableKeyVersionError(self.segment, key=key, expected=expected, actual=actual)
        if failed is not None:
            raise failed

    def conditional_keys(self, conditions: Sequence[TableUpdate] | Sequence[TableRemoval]) -> list[bytes]:
        """Validate the keys of a batch; return those that have a condition on their version."""
        found: list[bytes] = []
        for condition in conditions:
            self.check_key(condition.key)
            if condition.version != VERSION_ANY:
                if condition.version < VERSION_ABSENT:
                    raise InvalidArgumentError(f"{self.segment}: {condition.version} is not a version")
                found.append(condition.key)
        return found

    def plan_puts(
        self, updates: Sequence[TableUpdate], offset: int, loaded: Loaded
    ) -> tuple[bytes, list[int], list[bytes]]:
        """Validate a batch of puts; return the bytes to append at `offset`, the new versions and the slots.

        A key may occur more than once (Rust synchronizers repeat the version cell of a map, each time with the version
        from before the batch): conditions are checked against the table before the batch, and the last put wins.

        Raises `InvalidArgumentError`, `TableKeyMissingError`, `TableKeyVersionError`; then nothing has changed.
        """
        self._check_conditions(updates, loaded)
        parts: list[bytes] = []
        versions: list[int] = []
        slots: list[bytes] = []
        position = offset
        pack_header, header_length = ENTRY_HEADER.pack, ENTRY_HEADER.size
        for update in updates:
            key, value = update.key, update.value
            if len(value) > TABLE_VALUE_LENGTH_MAX:
                raise InvalidArgumentError(
                    f"{self.segment}: value of {len(value)} bytes, at most {TABLE_VALUE_LENGTH_MAX} are allowed"
                )
            parts += (pack_header(ENTRY_FORMAT_VERSION, len(key), len(value), VERSION_ANY), key, value)
            length = header_length + len(key) + len(value)
            versions.append(position)
            slots.append(pack_slot(position, position, length))
            position += length
        if position - offset > BATCH_LENGTH_MAX:
            raise InvalidArgumentError(
                f"{self.segment}: batch of {position - offset} bytes, at most {BATCH_LENGTH_MAX} are allowed"
            )
        return b"".join(parts), versions, slots

    def apply_puts(self, updates: Sequence[TableUpdate], slots: Sequence[bytes], end: int, loaded: Loaded) -> None:
        """Apply puts that were appended."""
        for update, slot in zip(updates, slots, strict=True):
            self.set(update.key, slot, loaded)
        self.tail.entry_count += len(slots)
        self.end = end

    def plan_removals(self, removals: Sequence[TableRemoval], loaded: Loaded) -> tuple[bytes, list[bytes]]:
        """Validate a batch of removals; return the bytes to append and the keys removed. Absent keys add nothing."""
        self._check_conditions(removals, loaded)
        keys = dict.fromkeys(removal.key for removal in removals if self.slot(removal.key, loaded) is not None)
        return b"".join(map(encode_removal, keys)), list(keys)

    def apply_removals(self, keys: Sequence[bytes], end: int, loaded: Loaded) -> None:
        """Apply removals that were appended."""
        for key in keys:
            self.set(key, None, loaded)
        self.tail.entry_count += len(keys)
        self.end = end

    def apply_copies_made(self, copies: Sequence[tuple[bytes, bytes]], end: int, loaded: Loaded) -> None:
        """Apply copies (key and slot) that compaction appended."""
        for key, slot in copies:
            self.set(key, slot, loaded)
        self.tail.entry_count += len(copies)
        self.end = end

    def unpacked(self, key: bytes, loaded: Loaded) -> Slot | None:
        """Return the location of a key's live entry, None for an absent key."""
        slot = self.slot(key, loaded)
        return None if slot is None else unpack_slot(slot)
