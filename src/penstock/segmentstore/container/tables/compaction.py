"""Compaction of table segments: copies live entries at the head of the log to its end, then truncates the head.

Only the part covered by the index is compacted; without an index, the whole log. A crash between copy and truncation
leaves an entry twice, with one version, which is harmless. Truncated entries are not needed, because the copies are
durable and found again when the log is scanned.

Source: segment-store 6.6.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence

from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.tables.entries import (
    ENTRY_LENGTH_MAX,
    MISSING,
    ParsedEntry,
    encode_put,
    pack_slot,
    parse_entries,
)
from penstock.segmentstore.container.tables.index import Loaded, TableIndex
from penstock.segmentstore.container_settings import ContainerSettings

#: Entries processed, and bytes read, before yielding to the event loop: a few milliseconds of work.
_ENTRIES_PER_TURN = 128
_READ_BYTES = 64 * 1024


class TableCompactor:
    """Compacts tables. `append` and `truncate` accept operations on a segment."""

    def __init__(
        self,
        settings: ContainerSettings,
        reader: SegmentReader,
        *,
        append: Callable[[Segment, bytes], asyncio.Future[None]],
        truncate: Callable[[Segment, int], None],
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._append = append
        self._truncate = truncate

    def is_due(self, segment: Segment, table: TableIndex) -> bool:
        """Whether the log's head is worth compacting."""
        return (
            not table.is_compacting
            and self._stop(segment, table) - segment.start_offset >= self._settings.table_compact_bytes
            and self._is_mostly_dead(segment, table)
        )

    @staticmethod
    def _stop(segment: Segment, table: TableIndex) -> int:
        """Return the end offset of compaction: a truncation must never pass the part that the index covers."""
        return segment.length if table.index is None else table.mark.indexed_offset

    def _is_mostly_dead(self, segment: Segment, table: TableIndex) -> bool:
        if table.index is None:
            log_bytes, live_bytes = segment.length - segment.start_offset, table.live_bytes
        else:
            # Entries replaced by the tails still count as live, and so do copies: compaction is late rather than too
            # frequent.
            log_bytes, live_bytes = table.mark.indexed_offset - segment.start_offset, table.mark.live_bytes
        return live_bytes * 100 < log_bytes * self._settings.table_utilisation_percent

    async def compact(self, segment: Segment, table: TableIndex) -> None:
        """Compact the head step by step until enough of the log is live. Ends early when the table is released."""
        end = segment.length
        while self._is_mostly_dead(segment, table) and segment.table is table and not segment.is_deleted:
            start = segment.start_offset
            stop = min(end, self._stop(segment, table))
            if start >= stop:
                return
            data = await self._read(segment, start, min(self._settings.table_compact_step_bytes, stop - start))
            entries = await _parsed(segment.name, data, start)
            if not entries:  # One entry longer than a step.
                data = await self._read(segment, start, min(ENTRY_LENGTH_MAX, stop - start))
                entries = await _parsed(segment.name, data, start)
            appended: list[Awaitable[None]] = []
            for batch in _batches(entries):
                loaded = await table.load([entry.key for entry in batch if self._may_live(table, entry)])
                if segment.table is not table:
                    break
                copies, slots = self._copies(table, batch, loaded, data, start, segment.length)
                if copies:
                    appended.append(self._append(segment, copies))
                    table.apply_copies_made(slots, segment.length, loaded)
                await asyncio.sleep(0)  # All of it may have come from the cache: yield.
            for durable in appended:
                await durable
            if segment.table is not table:
                return
            if segment.start_offset == start and not segment.is_deleted:
                self._truncate(segment, entries[-1].end)
                table.note_compacted(len(entries))

    async def _read(self, segment: Segment, offset: int, length: int) -> bytes:
        """Return the range, read in pieces: it may be in memory as thousands of small appends."""
        pieces = []
        for start in range(offset, offset + length, _READ_BYTES):
            count = min(_READ_BYTES, offset + length - start)
            pieces.append(await self._reader.read_exactly(segment, start, count))
            await asyncio.sleep(0)
        return b"".join(pieces)

    @staticmethod
    def _may_live(table: TableIndex, entry: ParsedEntry) -> bool:
        slot = table.find(entry.key)
        return entry.value_length >= 0 and (slot == MISSING or slot == entry.slot)

    @staticmethod
    def _copies(
        table: TableIndex, entries: Sequence[ParsedEntry], loaded: Loaded, data: bytes, start: int, offset: int
    ) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Return copies of the live entries, to be appended at `offset`, with their keys and new slots."""
        parts: list[bytes] = []
        slots: list[tuple[bytes, bytes]] = []
        for entry in entries:
            packed = entry.slot
            if packed is None:
                continue
            live = table.find(entry.key)
            if live == MISSING:
                # Not looked up: a newer entry hid it then, so this one is dead.
                live = loaded.get(entry.key)
            if live == packed:
                copy = encode_put(entry.key, data[entry.value_offset - start : entry.end - start], entry.version)
                slots.append((entry.key, pack_slot(entry.version, offset, len(copy))))
                parts.append(copy)
                offset += len(copy)
        return b"".join(parts), slots


def _batches(entries: Sequence[ParsedEntry]) -> Iterator[Sequence[ParsedEntry]]:
    return (entries[at : at + _ENTRIES_PER_TURN] for at in range(0, len(entries), _ENTRIES_PER_TURN))


async def _parsed(segment: str, data: bytes, offset: int) -> list[ParsedEntry]:
    """Return the whole entries in `data`; yields to the event loop. See `parse_entries`."""
    entries: list[ParsedEntry] = []
    parsing = parse_entries(segment, data, offset)
    while batch := list(itertools.islice(parsing, _ENTRIES_PER_TURN)):
        entries += batch
        await asyncio.sleep(0)
    return entries
