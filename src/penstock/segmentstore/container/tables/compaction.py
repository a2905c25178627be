"""Compaction of table segments: live entries at the head of the log are copied to its end, then the head goes.

Only what the index covers is compacted; of a table without an index, everything. A crash between copy and truncation
leaves an entry twice, with one version: harmless. What truncation takes away nobody needs, since the copies are
durable and found again when the log is scanned.

Source: segment store specification, section 6.6.
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

#: Entries gone over, and bytes read, before others have their turn: a few milliseconds of work.
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
        """Whether the log's head is worth going over."""
        return (
            not table.is_compacting
            and self._stop(segment, table) - segment.start_offset >= self._settings.table_compact_bytes
            and self._is_mostly_dead(segment, table)
        )

    @staticmethod
    def _stop(segment: Segment, table: TableIndex) -> int:
        """Return where compaction has to stop: a truncation must never go beyond what the index covers."""
        return segment.length if table.index is None else table.mark.indexed_offset

    def _is_mostly_dead(self, segment: Segment, table: TableIndex) -> bool:
        if table.index is None:
            log_bytes, live_bytes = segment.length - segment.start_offset, table.live_bytes
        else:
            # Entries that the tails have replaced still count, and so do copies: rather too late than too often.
            log_bytes, live_bytes = table.mark.indexed_offset - segment.start_offset, table.mark.live_bytes
        return live_bytes * 100 < log_bytes * self._settings.table_utilisation_percent

    async def compact(self, segment: Segment, table: TableIndex) -> None:
        """Go over the head step by step until enough of the log is alive. Ends early when the table is released."""
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
                await asyncio.sleep(0)  # All of it may have come from the cache: let others run.
            for durable in appended:
                await durable
            if segment.table is not table:
                return
            if segment.start_offset == start and not segment.is_deleted:
                self._truncate(segment, entries[-1].end)
                table.note_compacted(len(entries))

    async def _read(self, segment: Segment, offset: int, length: int) -> bytes:
        """Return these bytes, in pieces: they may lie in memory as thousands of small appends."""
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
        """Return copies, to be appended at `offset`, of those entries that live, with their keys and new slots."""
        parts: list[bytes] = []
        slots: list[tuple[bytes, bytes]] = []
        for entry in entries:
            packed = entry.slot
            if packed is None:
                continue
            live = table.find(entry.key)
            if live == MISSING:
                # Not looked up: it was hidden by a newer entry then, so this one is dead.
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
    """Return the whole entries in `data`; others have their turns in between. See `parse_entries`."""
    entries: list[ParsedEntry] = []
    parsing = parse_entries(segment, data, offset)
    while batch := list(itertools.islice(parsing, _ENTRIES_PER_TURN)):
        entries += batch
        await asyncio.sleep(0)
    return entries
