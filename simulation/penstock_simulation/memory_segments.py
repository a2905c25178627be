"""`MemorySegments`: the `Segments` seam on plain dictionaries.

Simple rather than fast; nothing survives the object. Every call yields to the loop once, so that concurrent callers
interleave as they would over a network. Table versions are byte offsets in a table's log, as in
wire-protocol 6.2 and 6.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.model.errors import (
    BadOffsetError,
    InvalidArgumentError,
    NoSuchSegmentError,
    PenstockError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    UnsupportedOperationError,
)
from penstock.model.segments import (
    NO_VALUE,
    READ_LENGTH_MAX,
    TABLE_KEY_LENGTH_MAX,
    TABLE_VALUE_LENGTH_MAX,
    VERSION_ABSENT,
    VERSION_ANY,
    Buffer,
    SegmentData,
    SegmentInfo,
    TableDelta,
    TableEntry,
    TableInfo,
    TableKeyPage,
    TablePage,
    TableRemoval,
    TableUpdate,
)
from penstock.runtime.bulk import for_each

#: Overhead of an entry in a table's log, in addition to its key and value.
_ENTRY_OVERHEAD_BYTES = 17


@dataclass(slots=True)
class _Segment:
    scale_type: int
    target_rate: int
    data: bytearray = field(default_factory=bytearray)
    start_offset: int = 0
    is_sealed: bool = False
    attributes: dict[bytes, int] = field(default_factory=dict)
    borders: list[int] = field(default_factory=list)
    #: Set, and replaced, whenever a waiting read should check again.
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass(slots=True)
class _Table:
    key_length: int
    entries: dict[bytes, TableEntry] = field(default_factory=dict)
    #: (version, key) of every write, oldest first; without removals.
    log: list[tuple[int, bytes]] = field(default_factory=list)
    length: int = 0


class MemorySegments:
    """See the module. Implements `penstock.model.segments.Segments`."""

    def __init__(self) -> None:
        self.segments: dict[str, _Segment] = {}
        self.tables: dict[str, _Table] = {}

    def _segment(self, name: str) -> _Segment:
        found = self.segments.get(name)
        if found is None:
            raise NoSuchSegmentError(name)
        return found

    def _table(self, name: str) -> _Table:
        found = self.tables.get(name)
        if found is None:
            if name in self.segments:
                raise UnsupportedOperationError(f"{name} is not a table segment")
            raise NoSuchSegmentError(name)
        return found

    async def create_segment(
        self, segment: str, *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> None:
        """See `Segments.create_segment`."""
        await asyncio.sleep(0)
        if segment in self.segments or segment in self.tables:
            raise SegmentExistsError(segment)
        self.segments[segment] = _Segment(scale_type, target_rate)

    async def delete_segment(self, segment: str) -> None:
        """See `Segments.delete_segment`."""
        await asyncio.sleep(0)
        self._segment(segment).wake()
        del self.segments[segment]

    async def seal_segment(self, segment: str) -> None:
        """See `Segments.seal_segment`."""
        await asyncio.sleep(0)
        found = self._segment(segment)
        if found.is_sealed:
            raise SegmentSealedError(segment)
        found.is_sealed = True
        found.wake()

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """See `Segments.truncate_segment`."""
        await asyncio.sleep(0)
        found = self._segment(segment)
        if not found.start_offset <= offset <= len(found.data):
            raise SegmentTruncatedError(segment, start_offset=found.start_offset, offset=offset)
        found.start_offset = offset

    async def update_policy(self, segment: str, *, scale_type: int, target_rate: int) -> None:
        """See `Segments.update_policy`."""
        await asyncio.sleep(0)
        found = self._segment(segment)
        found.scale_type, found.target_rate = scale_type, target_rate

    async def segment_info(self, segment: str) -> SegmentInfo:
        """See `Segments.segment_info`."""
        await asyncio.sleep(0)
        found = self._segment(segment)
        return SegmentInfo(segment, found.start_offset, len(found.data), found.is_sealed, 0)

    async def segment_infos(self, segments: Sequence[str]) -> Sequence[SegmentInfo | PenstockError]:
        """See `Segments.segment_infos`."""
        return await for_each(segments, self.segment_info, 1)

    async def delete_segments(self, segments: Sequence[str]) -> Sequence[PenstockError | None]:
        """See `Segments.delete_segments`."""
        return await for_each(segments, self.delete_segment, 1)

    async def truncate_segments(self, offsets: Sequence[tuple[str, int]]) -> Sequence[PenstockError | None]:
        """See `Segments.truncate_segments`."""
        return await for_each(offsets, lambda one: self.truncate_segment(*one), 1)

    async def locate_offset(self, segment: str, offset: int, *, before: bool = False) -> int:
        """See `Segments.locate_offset`. This implementation knows the end of each append."""
        await asyncio.sleep(0)
        found = self._segment(segment)
        start, end = found.start_offset, len(found.data)
        if offset < 0:
            raise InvalidArgumentError(f"{segment}: no offset {offset}")
        if offset < start:
            raise SegmentTruncatedError(segment, start_offset=start, offset=offset)
        borders = [start, *(border for border in found.borders if start < border < end), end]
        if before:
            return max(border for border in borders if border <= offset)
        return min((border for border in borders if border >= offset), default=end)

    async def merge_segments(self, target: str, sources: Sequence[str]) -> Sequence[int]:
        """See `Segments.merge_segments`."""
        await asyncio.sleep(0)
        into = self._segment(target)
        lengths = []
        for source in sources:
            found = self.segments.get(source)
            if found is not None:
                if into.is_sealed:
                    raise SegmentSealedError(target)
                into.data += found.data
                into.borders.append(len(into.data))
                del self.segments[source]
                found.wake()
            lengths.append(len(into.data))
        into.wake()
        return lengths

    async def append(self, segment: str, data: Buffer, *, expected_offset: int | None = None) -> int:
        """See `Segments.append`."""
        await asyncio.sleep(0)
        found = self._segment(segment)
        if found.is_sealed:
            raise SegmentSealedError(segment)
        if expected_offset is not None and expected_offset != len(found.data):
            raise BadOffsetError(segment, expected=expected_offset, actual=len(found.data))
        found.data += data
        found.borders.append(len(found.data))
        found.wake()
        return len(found.data)

    async def read(self, segment: str, offset: int, length: int, *, wait: bool = False) -> SegmentData:
        """See `Segments.read`."""
        await asyncio.sleep(0)
        while True:
            found = self._segment(segment)
            end = len(found.data)
            if offset < found.start_offset:
                raise SegmentTruncatedError(segment, start_offset=found.start_offset, offset=offset)
            if found.is_sealed and offset > end:
                raise BadOffsetError(segment, expected=offset, actual=end)
            if offset < end or found.is_sealed or not wait:
                data = bytes(found.data[offset : offset + min(length, READ_LENGTH_MAX)])
                reaches_end = offset + len(data) >= end
                return SegmentData(offset, [data], reaches_end and not found.is_sealed, reaches_end and found.is_sealed)
            await found.changed.wait()

    async def get_attribute(self, segment: str, attribute_id: bytes) -> int:
        """See `Segments.get_attribute`."""
        await asyncio.sleep(0)
        return self._segment(segment).attributes.get(attribute_id, NO_VALUE)

    async def update_attribute(self, segment: str, attribute_id: bytes, *, value: int, expected: int) -> bool:
        """See `Segments.update_attribute`."""
        await asyncio.sleep(0)
        attributes = self._segment(segment).attributes
        if attributes.get(attribute_id, NO_VALUE) != expected:
            return False
        attributes[attribute_id] = value
        return True

    async def create_table(self, segment: str, *, key_length: int = 0, rollover_bytes: int = 0) -> None:
        """See `Segments.create_table`."""
        await asyncio.sleep(0)
        if segment in self.segments or segment in self.tables:
            raise SegmentExistsError(segment)
        self.tables[segment] = _Table(key_length)

    async def delete_table(self, segment: str, *, must_be_empty: bool = False) -> None:
        """See `Segments.delete_table`."""
        await asyncio.sleep(0)
        if self._table(segment).entries and must_be_empty:
            raise TableNotEmptyError(segment)
        del self.tables[segment]

    async def table_info(self, segment: str) -> TableInfo:
        """See `Segments.table_info`."""
        await asyncio.sleep(0)
        table = self._table(segment)
        return TableInfo(segment, 0, table.length, len(table.entries), table.key_length)

    def _check_key(self, name: str, table: _Table, key: bytes) -> None:
        if not 1 <= len(key) <= TABLE_KEY_LENGTH_MAX or (table.key_length and len(key) != table.key_length):
            raise InvalidArgumentError(f"{name}: a key of {len(key)} bytes does not fit this table")

    def _check(self, name: str, table: _Table, conditions: Sequence[TableUpdate | TableRemoval], offset: int) -> None:
        if offset >= 0 and offset != table.length:
            raise BadOffsetError(name, expected=offset, actual=table.length)
        for condition in conditions:
            self._check_key(name, table, condition.key)
            if isinstance(condition, TableUpdate) and len(condition.value) > TABLE_VALUE_LENGTH_MAX:
                raise InvalidArgumentError(f"{name}: a value of {len(condition.value)} bytes is too large")
        # As in the wire protocol: missing keys are reported before version mismatches.
        for condition in conditions:
            if condition.version >= 0 and condition.key not in table.entries:
                raise TableKeyMissingError(name, key=condition.key)
        for condition in conditions:
            entry = table.entries.get(condition.key)
            actual = VERSION_ABSENT if entry is None else entry.version
            if condition.version not in (VERSION_ANY, actual):
                raise TableKeyVersionError(name, key=condition.key, expected=condition.version, actual=actual)

    async def table_put(
        self, segment: str, updates: Sequence[TableUpdate], *, expected_offset: int = -1
    ) -> Sequence[int]:
        """See `Segments.table_put`."""
        await asyncio.sleep(0)
        table = self._table(segment)
        self._check(segment, table, updates, expected_offset)
        versions = []
        for update in updates:
            version = table.length
            table.entries[update.key] = TableEntry(update.key, update.value, version)
            table.log.append((version, update.key))
            table.length += _ENTRY_OVERHEAD_BYTES + len(update.key) + len(update.value)
            versions.append(version)
        return versions

    async def table_remove(self, segment: str, removals: Sequence[TableRemoval], *, expected_offset: int = -1) -> None:
        """See `Segments.table_remove`."""
        await asyncio.sleep(0)
        table = self._table(segment)
        self._check(segment, table, removals, expected_offset)
        for removal in removals:
            if table.entries.pop(removal.key, None) is not None:
                table.length += _ENTRY_OVERHEAD_BYTES + len(removal.key)

    async def table_get(self, segment: str, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """See `Segments.table_get`."""
        await asyncio.sleep(0)
        table = self._table(segment)
        for key in keys:
            self._check_key(segment, table, key)
        return [table.entries.get(key) for key in keys]

    async def table_entries(
        self, segment: str, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None
    ) -> TablePage:
        """See `Segments.table_entries`. Here the token is the last key returned, and pages are in key order."""
        await asyncio.sleep(0)
        table = self._table(segment)
        if table.key_length and token:
            raise InvalidArgumentError(f"{segment}: a fixed-key table is iterated by ranges of keys, not by tokens")
        if not table.key_length and (first or last is not None):
            raise InvalidArgumentError(f"{segment}: a hash table has no ranges of keys")
        keys = sorted(key for key in table.entries if key > token and first <= key and (last is None or key <= last))
        keys = keys[: max(1, limit)]
        return TablePage([table.entries[key] for key in keys], b"" if table.key_length else keys[-1] if keys else token)

    async def table_keys(
        self, segment: str, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None
    ) -> TableKeyPage:
        """See `Segments.table_keys`."""
        page = await self.table_entries(segment, limit=limit, token=token, first=first, last=last)
        return TableKeyPage([(entry.key, entry.version) for entry in page.entries], page.token)

    async def table_delta(self, segment: str, *, position: int, limit: int) -> TableDelta:
        """See `Segments.table_delta`."""
        await asyncio.sleep(0)
        table = self._table(segment)
        if not 0 <= position <= table.length:
            raise InvalidArgumentError(f"{segment}: no position {position}, the table has {table.length} bytes")
        found: list[TableEntry] = []
        for version, key in table.log:
            entry = table.entries.get(key)
            if version < position or entry is None or entry.version != version:
                continue  # Overwritten or removed since: only the last write of a key counts.
            if len(found) == max(1, limit):
                return TableDelta(found, False, False, version)
            found.append(entry)
        return TableDelta(found, False, True, table.length)
