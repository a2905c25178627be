"""Reads of table segments: values of known entries, pages in the order of keys, and deltas in the order of the log.

A page is taken from tails and index at one moment. The values are read afterwards, from a log that does not change. If
compaction has truncated the log meanwhile, the key is looked up again.

Source: segment-store 6.5 and 6.7; wire-protocol 6.4 and 6.5.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from operator import itemgetter

from penstock.model.errors import SegmentTruncatedError, TableReadTooLongError
from penstock.model.segments import (
    TABLE_READ_KEY_COUNT_MAX,
    TABLE_READ_KEY_COUNT_SURE,
    TableDelta,
    TableEntry,
    table_entry_of,
)
from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.tables.entries import (
    ENTRY_HEADER,
    ParsedEntry,
    parse_entries,
    slot_length,
    unpack_slot,
    unpack_slots,
)
from penstock.segmentstore.container.tables.index import TableIndex

#: Limits of an iteration or delta page, in bytes of entries and in entries.
PAGE_BYTES_MAX = 2 * 1024 * 1024
PAGE_ENTRIES_MAX = 4096
_DELTA_READ_LENGTH = 64 * 1024
#: Values not in memory that one call reads concurrently.
_VALUE_READS_MAX = 16

#: Bytes that the wire format adds to the key and the value of an entry, and their excess over those in the log.
WIRE_ENTRY_BYTES = 24
_WIRE_SURPLUS_BYTES = WIRE_ENTRY_BYTES - ENTRY_HEADER.size

#: A key with its packed slot.
PageItem = tuple[bytes, bytes]


async def page_of(
    table: TableIndex, *, after: bytes, first: bytes, last: bytes | None, limit: int
) -> Sequence[PageItem]:
    """Return up to `limit` live keys above `after` (if not empty) and in [`first`, `last`], ascending.

    An empty page means that there are no more; a page shows one moment.
    """
    limit = min(limit, PAGE_ENTRIES_MAX)
    while True:
        for tail in (table.frozen, table.tail):
            if tail is not None:
                await tail.sort()
        table.check_in_memory()
        index = table.index
        generation = table.generation
        stored: Sequence[PageItem] = ()
        if index is not None:
            index_generation = index.generation
            stored = await index.page(after=after, first=first, last=last, limit=limit)
            table.check_in_memory()
            if index.generation != index_generation:
                continue
        if (table.index, table.generation) != (index, generation):
            continue
        merged: dict[bytes, bytes | None] | None = None
        bound = stored[-1][0] if len(stored) == limit else None
        for tail in (table.frozen, table.tail):
            if tail is None:
                continue
            upper = last if bound is None else bound
            keys = tail.keys_between(after=after, first=first, last=upper, limit=limit)
            if not keys:
                continue
            if merged is None:
                merged = dict(stored)
            merged.update((key, tail.slots[key]) for key in keys)
            if len(keys) == limit:
                bound = keys[-1]
        if merged is None:
            return stored
        found: list[PageItem] = []
        for key in sorted(merged):
            if bound is not None and key > bound:
                break
            slot = merged[key]
            if slot is not None:
                found.append((key, slot))
                if len(found) == limit:
                    break
        if found or bound is None:
            return found
        after = bound  # All of them were removed, and very many removed ones may follow.
        await asyncio.sleep(0)


def within_page_bytes(items: Sequence[PageItem]) -> Sequence[PageItem]:
    """Return as many of the first `items` as fit into a page, at least one."""
    lengths = [length for _, _, length in unpack_slots(map(itemgetter(1), items))]
    if sum(lengths) < PAGE_BYTES_MAX:
        return items
    return items[: bisect_left(list(accumulate(lengths)), PAGE_BYTES_MAX) + 1]


def within_key_bytes(items: Sequence[PageItem]) -> Sequence[PageItem]:
    """Return as many of the first `items` as fit into a page of keys only, at least one."""
    page_bytes = 0
    for at, (key, _) in enumerate(items):
        page_bytes += len(key)
        if page_bytes >= PAGE_BYTES_MAX:
            return items[: at + 1]
    return items


def check_key_count(segment: str, keys: Sequence[bytes]) -> None:
    """Raise `TableReadTooLongError` if a read has too many keys."""
    if len(keys) > TABLE_READ_KEY_COUNT_MAX:
        raise TableReadTooLongError(
            f"{segment}: {len(keys)} keys were requested at once, at most {TABLE_READ_KEY_COUNT_MAX} are allowed; "
            "request fewer at a time"
        )


def check_reply_bytes(segment: str, items: Sequence[tuple[bytes, bytes | None]], bytes_max: int) -> None:
    """Raise `TableReadTooLongError` if the reply for keys, given with their slots, exceeds `bytes_max`."""
    length = 0
    for key, packed in items:
        length += WIRE_ENTRY_BYTES + len(key) if packed is None else slot_length(packed) + _WIRE_SURPLUS_BYTES
    if length > bytes_max:
        raise TableReadTooLongError(
            f"{segment}: the entries of these {len(items)} keys take {length} bytes, one reply has at most "
            f"{bytes_max}; request fewer at a time: {TABLE_READ_KEY_COUNT_SURE} always fit"
        )


class TableReader:
    """Reads values. `find` returns a table's state, loading it if necessary."""

    def __init__(self, reader: SegmentReader, find: Callable[[Segment], Awaitable[TableIndex]]) -> None:
        self._reader = reader
        self._find = find

    async def entries(
        self, segment: Segment, items: Sequence[tuple[bytes, bytes | None]]
    ) -> Sequence[TableEntry | None]:
        """Return the entries of keys, given with their packed slots, in order; None for a removed key."""
        found: list[TableEntry | None] = [None] * len(items)
        elsewhere: list[int] = []
        start_offset, header_length = segment.start_offset, ENTRY_HEADER.size
        live = [at for at, (_, packed) in enumerate(items) if packed is not None]
        places = unpack_slots([packed for _, packed in items if packed is not None])
        # The value follows the header and the key.
        skipped = [header_length + len(items[at][0]) for at in live]
        ranges = [(offset + skip, length - skip) for skip, (_, offset, length) in zip(skipped, places, strict=True)]
        values = segment.index.pieces(ranges)
        for at, (version, _, _), (offset, length), value in zip(live, places, ranges, values, strict=True):
            if value is not None and offset >= start_offset:
                found[at] = table_entry_of((items[at][0], value, version))
            elif length:
                elsewhere.append(at)
            else:
                found[at] = TableEntry(items[at][0], b"", version)
        for at in range(0, len(elsewhere), _VALUE_READS_MAX):
            some = elsewhere[at : at + _VALUE_READS_MAX]
            # All reads are awaited before one may fail the call, so that none is left running.
            results = await asyncio.gather(
                *(self._read(segment, *items[place]) for place in some), return_exceptions=True
            )
            for place, result in zip(some, results, strict=True):
                if isinstance(result, BaseException):
                    raise result
                found[place] = result
        return found

    async def _read(self, segment: Segment, key: bytes, packed: bytes | None) -> TableEntry | None:
        while packed is not None:
            slot = unpack_slot(packed)
            offset, length = slot.value_range(key)
            try:
                return TableEntry(key, await self._reader.read_exactly(segment, offset, length), slot.version)
            except SegmentTruncatedError:
                table = await self._find(segment)
                again = table.slot(key, await table.load([key]))
                if again == packed:
                    raise
                packed = again  # Compaction moved the entry meanwhile.
        return None

    async def delta(self, segment: Segment, *, position: int, limit: int) -> TableDelta:
        """Return the latest writes from `position` of the log on, or from its start with `should_clear`."""
        while True:
            start = segment.start_offset
            try:
                return await self._delta(segment, max(position, start), limit, should_clear=0 < position < start)
            except SegmentTruncatedError:
                if segment.start_offset == start:
                    raise
                # Compaction has moved the live entries of the range to the end: begin at the new start.

    async def _delta(self, segment: Segment, at: int, limit: int, *, should_clear: bool) -> TableDelta:
        end = segment.durable_length
        found: dict[bytes, TableEntry] = {}
        found_bytes = 0
        length = _DELTA_READ_LENGTH
        while at < end and len(found) < max(limit, 1) and found_bytes < PAGE_BYTES_MAX:
            data = await self._reader.read_exactly(segment, at, min(length, end - at))
            base = at
            for entry in parse_entries(segment.name, data, base):
                _bring_in(found, entry, data, base)
                found_bytes += entry.end - entry.offset
                at = entry.end
                if len(found) >= max(limit, 1) or (found and found_bytes >= PAGE_BYTES_MAX):
                    break
            if not found:
                found_bytes = 0
            # Read more at a time for an entry longer than the last read.
            length = 2 * length if at == base else _DELTA_READ_LENGTH
        return TableDelta(tuple(found.values()), should_clear, at >= end, at)


def _bring_in(found: dict[bytes, TableEntry], entry: ParsedEntry, data: bytes, at: int) -> None:
    old = found.get(entry.key)
    if old is not None and old.version > entry.version:
        return
    if entry.value_length < 0:
        found.pop(entry.key, None)
    else:
        found[entry.key] = TableEntry(entry.key, data[entry.value_offset - at : entry.end - at], entry.version)
