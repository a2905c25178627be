"""Table segments of one container: conditional updates, reads, iteration, deltas, compaction.

Source: segment store specification, section 6; wire protocol specification, section 6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.model.errors import (
    BadOffsetError,
    CorruptionError,
    InvalidArgumentError,
    NoSuchSegmentError,
    SegmentTruncatedError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    UnsupportedOperationError,
)
from penstock.model.segments import (
    Buffer,
    TableDelta,
    TableEntry,
    TableInfo,
    TablePage,
    TableRemoval,
    TableUpdate,
)
from penstock.segmentstore.container.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.table_index import ParsedEntry, TableIndex, parse_entries
from penstock.segmentstore.settings import ContainerSettings

_SCAN_LENGTH = 1024 * 1024
#: An iteration or delta page stops growing at this many bytes of keys and values.
_PAGE_BYTES_MAX = 2 * 1024 * 1024
_DELTA_READ_LENGTH = 64 * 1024


class AppendAccepted(Protocol):
    """Accepts bytes at the end of a segment and returns an awaitable of their durability."""

    def __call__(self, segment: Segment, data: Buffer) -> asyncio.Future[None]:
        """Accept at once; the future ends when the bytes are durable."""


class Tables:
    """Table operations. `append` and `truncate` accept operations; `barrier` waits for durability."""

    def __init__(
        self,
        settings: ContainerSettings,
        reader: SegmentReader,
        *,
        append: AppendAccepted,
        truncate: Callable[[Segment, int], None],
        barrier: Callable[[], asyncio.Future[None]],
        spawn: Callable[[str, Segment], None],
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._append = append
        self._truncate = truncate
        self._barrier = barrier
        self._spawn_compaction = spawn
        self._loading: dict[int, tuple[asyncio.Lock, int]] = {}

    async def index_of(self, segment: Segment) -> TableIndex:
        """Return the index of a table segment, built from its log on first use.

        Raises `UnsupportedOperationError` for a segment that is no table.
        """
        if not segment.is_table:
            raise UnsupportedOperationError(f"{segment.name} is not a table segment")
        if segment.table is not None:
            return segment.table
        # The lock stays as long as somebody waits for it: two scans would make two indexes.
        lock, waiting = self._loading.get(segment.id, (None, 0))
        if lock is None:
            lock = asyncio.Lock()
        self._loading[segment.id] = lock, waiting + 1
        try:
            async with lock:
                if segment.table is None:
                    segment.table = await self._scan(segment)
                return segment.table
        finally:
            lock, waiting = self._loading.pop(segment.id)
            if waiting > 1:
                self._loading[segment.id] = lock, waiting - 1

    async def _scan(self, segment: Segment) -> TableIndex:
        index = TableIndex(segment.name, segment.key_length)
        position = segment.start_offset
        carried = b""
        end = segment.length
        while position + len(carried) < end:
            at = position + len(carried)
            data = carried + await self._reader.read_exactly(segment, at, min(_SCAN_LENGTH, end - at))
            consumed = position
            for entry in parse_entries(segment.name, data, position):
                index.apply(entry)
                consumed = entry.end
            carried = data[consumed - position :]
            position = consumed
        if carried:
            raise CorruptionError(segment.name, position, "the table's log ends inside an entry")
        index.finish_scan()
        return index

    async def _durable(self, segment: Segment) -> None:
        if segment.durable_length < segment.length:
            await self._barrier()

    async def put(self, segment: Segment, updates: Sequence[TableUpdate], expected_offset: int) -> Sequence[int]:
        """See `Segments.table_put`."""
        index = await self.index_of(segment)
        try:
            self._check_offset(segment, expected_offset)
            data, versions = index.plan_puts(updates, segment.length)
        except (BadOffsetError, TableKeyMissingError, TableKeyVersionError):
            await self._durable(segment)  # What the refusal rests on must not be undone by a crash.
            raise
        await self._write(segment, index, data)
        return versions

    async def remove(self, segment: Segment, removals: Sequence[TableRemoval], expected_offset: int) -> None:
        """See `Segments.table_remove`."""
        index = await self.index_of(segment)
        try:
            self._check_offset(segment, expected_offset)
            data = index.plan_removals(removals)
        except (BadOffsetError, TableKeyMissingError, TableKeyVersionError):
            await self._durable(segment)
            raise
        if data:
            await self._write(segment, index, data)
        else:
            await self._durable(segment)

    def _check_offset(self, segment: Segment, expected_offset: int) -> None:
        if segment.is_deleted:
            raise NoSuchSegmentError(segment.name)
        if expected_offset >= 0 and expected_offset != segment.length:
            raise BadOffsetError(segment.name, expected=expected_offset, actual=segment.length)

    async def _write(self, segment: Segment, index: TableIndex, data: bytes) -> None:
        offset = segment.length
        durable = self._append(segment, data)
        for entry in parse_entries(segment.name, data, offset):
            index.apply(entry)
        if self._is_compaction_due(segment, index):
            index.is_compacting = True
            self._spawn_compaction("compaction", segment)
        await durable

    def _is_compaction_due(self, segment: Segment, index: TableIndex) -> bool:
        log_bytes = segment.length - segment.start_offset
        return (
            not index.is_compacting
            and log_bytes >= self._settings.table_compact_bytes
            and index.live_bytes * 100 < log_bytes * self._settings.table_utilisation_percent
        )

    async def compact(self, segment: Segment) -> None:
        """Copy live entries from the head of the log to its end and truncate, until enough of it is alive.

        A crash between the two leaves the entries twice, with one version: harmless.
        """
        index = await self.index_of(segment)
        index.is_compacting = True
        try:
            stop = segment.length
            while segment.start_offset < stop and self._worth_compacting(segment, index) and not segment.is_deleted:
                start = segment.start_offset
                length = min(self._settings.table_compact_step_bytes, stop - start)
                data = await self._reader.read_exactly(segment, start, length)
                entries = list(parse_entries(segment.name, data, start))
                if not entries:
                    # One entry longer than a step.
                    data = await self._reader.read_exactly(segment, start, min(2 * _PAGE_BYTES_MAX, stop - start))
                    entries = list(parse_entries(segment.name, data, start))
                copies = index.copies(entries, data, start)
                if copies:
                    offset = segment.length
                    durable = self._append(segment, copies)
                    for entry in parse_entries(segment.name, copies, offset):
                        index.apply(entry)
                    await durable
                self._truncate(segment, entries[-1].end)
                if not copies:
                    await asyncio.sleep(0)  # All of it may have come from the cache: let others run.
        finally:
            index.is_compacting = False

    def _worth_compacting(self, segment: Segment, index: TableIndex) -> bool:
        log_bytes = segment.length - segment.start_offset
        return index.live_bytes * 100 < log_bytes * self._settings.table_utilisation_percent

    async def get(self, segment: Segment, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """See `Segments.table_get`."""
        index = await self.index_of(segment)
        for key in keys:
            index.check_key(key)
        found = [await self._entry(segment, index, key) for key in keys]
        await self._durable(segment)
        return found

    async def _entry(self, segment: Segment, index: TableIndex, key: bytes) -> TableEntry | None:
        while True:
            slot = index.slots.get(key)
            if slot is None:
                return None
            if not slot.value_length:
                return TableEntry(key, b"", slot.version)
            try:
                value = await self._reader.read_exactly(segment, slot.value_offset, slot.value_length)
            except SegmentTruncatedError:
                if index.slots.get(key) == slot:
                    raise
                continue  # Compaction moved the entry meanwhile.
            return TableEntry(key, value, slot.version)

    async def entries(self, segment: Segment, *, limit: int, token: bytes) -> TablePage:
        """See `Segments.table_entries`. Keys come in ascending order; the token is the last key."""
        if limit <= 0:
            raise InvalidArgumentError(f"{segment.name}: a page of {limit} entries was asked for")
        index = await self.index_of(segment)
        entries: list[TableEntry] = []
        page_bytes = 0
        last = token
        while not entries:
            keys = index.keys_after(last, limit)
            if not keys:
                break
            for key in keys:
                last = key
                entry = await self._entry(segment, index, key)
                if entry is not None:
                    entries.append(entry)
                    page_bytes += len(entry.key) + len(entry.value)
                    if page_bytes >= _PAGE_BYTES_MAX:
                        break
        await self._durable(segment)
        return TablePage(entries, last)

    async def delta(self, segment: Segment, *, position: int, limit: int) -> TableDelta:
        """See `Segments.table_delta`. `position` must be 0, or one that an earlier delta returned."""
        if not segment.is_table:
            raise UnsupportedOperationError(f"{segment.name} is not a table segment")
        if segment.key_length:
            raise UnsupportedOperationError(f"{segment.name}: delta reads are for hash tables only")
        end = segment.durable_length
        if position < 0 or position > end:
            raise InvalidArgumentError(f"{segment.name}: delta from byte {position}, but the table has {end}")
        while True:
            start = segment.start_offset
            try:
                return await self._delta(segment, max(position, start), limit, should_clear=0 < position < start)
            except SegmentTruncatedError:
                if segment.start_offset == start:
                    raise
                # Compaction has moved what lived there to the end: begin at the new start.

    async def _delta(self, segment: Segment, at: int, limit: int, *, should_clear: bool) -> TableDelta:
        end = segment.durable_length
        found: dict[bytes, TableEntry] = {}
        found_bytes = 0
        length = _DELTA_READ_LENGTH
        while at < end and len(found) < max(limit, 1) and found_bytes < _PAGE_BYTES_MAX:
            data = await self._reader.read_exactly(segment, at, min(length, end - at))
            base = at
            for entry in parse_entries(segment.name, data, base):
                self._bring_in(found, entry, data, base)
                found_bytes += entry.end - entry.offset
                at = entry.end
                if len(found) >= max(limit, 1) or (found and found_bytes >= _PAGE_BYTES_MAX):
                    break
            if not found:
                found_bytes = 0
            # More at a time for an entry that is longer than what was read.
            length = 2 * length if at == base else _DELTA_READ_LENGTH
        return TableDelta(tuple(found.values()), should_clear, at >= end, at)

    @staticmethod
    def _bring_in(found: dict[bytes, TableEntry], entry: ParsedEntry, data: bytes, at: int) -> None:
        old = found.get(entry.key)
        if old is not None and old.version > entry.version:
            return
        if entry.value_length < 0:
            found.pop(entry.key, None)
        else:
            found[entry.key] = TableEntry(entry.key, data[entry.value_offset - at : entry.end - at], entry.version)

    async def info(self, segment: Segment) -> TableInfo:
        """See `Segments.table_info`."""
        index = await self.index_of(segment)
        await self._durable(segment)
        return TableInfo(
            segment.name, segment.durable_start_offset, segment.durable_length, len(index.slots), segment.key_length
        )

    async def check_empty(self, segment: Segment) -> None:
        """Raise `TableNotEmptyError` if the table holds keys, `UnsupportedOperationError` for fixed-key tables."""
        if segment.key_length:
            raise UnsupportedOperationError(f"{segment.name}: delete-if-empty is for hash tables only")
        index = await self.index_of(segment)
        if index.slots:
            await self._durable(segment)
            raise TableNotEmptyError(segment.name)
