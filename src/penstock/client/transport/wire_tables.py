"""`WireTables`: the calls on table segments of the `Segments` seam over the wire protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.client.transport.replies import error_of, expect, unexpected
from penstock.client.transport.wire_requests import WireRequests
from penstock.model.errors import (
    BadOffsetError,
    PenstockError,
    SegmentTruncatedError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableReadTooLongError,
)
from penstock.model.segments import (
    NO_VALUE,
    TABLE_READ_KEY_COUNT_MAX,
    TABLE_READ_KEY_COUNT_SURE,
    VERSION_ANY,
    TableDelta,
    TableEntry,
    TableInfo,
    TableKeyPage,
    TablePage,
    TableRemoval,
    TableUpdate,
    table_entry_of,
)
from penstock.wire.commands import (
    CreateTableSegment,
    DeleteTableSegment,
    GetTableSegmentInfo,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    SegmentCreated,
    SegmentDeleted,
    TableEntriesDeltaRead,
    TableEntriesRead,
    TableEntriesUpdated,
    TableKey,
    TableKeysRead,
    TableKeysRemoved,
    TableKeyValue,
    TableRead,
    TableSegmentInfo,
    UpdateTableEntries,
    WireCommand,
)

#: Bytes of keys in one request to read a table, and the wire's overhead per key.
_REQUEST_KEY_BYTES_MAX = 8 * 1024 * 1024
_KEY_HEADER_BYTES = 16


class WireTables(WireRequests):
    """See `penstock.model.segments.Segments` for the calls and their errors, and `WireRequests` for retries."""

    async def create_table(self, segment: str, *, key_length: int = 0, rollover_bytes: int = 0) -> None:
        """See `Segments.create_table`."""
        reply = await self._change(
            segment,
            lambda request_id: CreateTableSegment(
                request_id, segment, self._token(segment), False, key_length, rollover_bytes
            ),
        )
        expect(reply, SegmentCreated, segment)

    async def delete_table(self, segment: str, *, must_be_empty: bool = False) -> None:
        """See `Segments.delete_table`."""
        reply = await self._change(
            segment, lambda request_id: DeleteTableSegment(request_id, segment, must_be_empty, self._token(segment))
        )
        expect(reply, SegmentDeleted, segment)

    async def table_info(self, segment: str) -> TableInfo:
        """See `Segments.table_info`."""
        reply = expect(
            await self._ask(segment, lambda request_id: GetTableSegmentInfo(request_id, segment, self._token(segment))),
            TableSegmentInfo,
            segment,
        )
        return TableInfo(segment, reply.start_offset, reply.length, reply.entry_count, reply.key_length)

    async def table_put(
        self, segment: str, updates: Sequence[TableUpdate], *, expected_offset: int = -1
    ) -> Sequence[int]:
        """See `Segments.table_put`."""
        entries = tuple(TableKeyValue(update.key, update.version, update.value) for update in updates)
        reply = await self._change(
            segment,
            lambda request_id: UpdateTableEntries(request_id, segment, self._token(segment), entries, expected_offset),
        )
        if isinstance(reply, TableEntriesUpdated):
            return reply.versions
        raise _table_error(reply, segment, [(update.key, update.version) for update in updates], expected_offset)

    async def table_remove(self, segment: str, removals: Sequence[TableRemoval], *, expected_offset: int = -1) -> None:
        """See `Segments.table_remove`."""
        keys = tuple(TableKey(removal.key, removal.version) for removal in removals)
        reply = await self._change(
            segment,
            lambda request_id: RemoveTableKeys(request_id, segment, self._token(segment), keys, expected_offset),
        )
        if not isinstance(reply, TableKeysRemoved):
            raise _table_error(reply, segment, [(key.key, key.version) for key in keys], expected_offset)

    async def table_get(self, segment: str, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        """See `Segments.table_get`.

        Keys that exceed one request or one reply are read by several requests, one after the other.
        """
        if len(keys) <= TABLE_READ_KEY_COUNT_SURE:
            return await self._read_table(segment, keys)
        found: list[TableEntry | None] = []
        for some in _of_one_request(keys):
            try:
                found += await self._read_table(segment, some)
            except TableReadTooLongError:
                if len(some) <= TABLE_READ_KEY_COUNT_SURE:
                    raise
                for start in range(0, len(some), TABLE_READ_KEY_COUNT_SURE):
                    found += await self._read_table(segment, some[start : start + TABLE_READ_KEY_COUNT_SURE])
        return found

    async def _read_table(self, segment: str, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        wanted = tuple(TableKey(key, VERSION_ANY) for key in keys)
        reply = expect(
            await self._ask(segment, lambda request_id: ReadTable(request_id, segment, self._token(segment), wanted)),
            TableRead,
            segment,
        )
        return [None if entry.version < 0 else _entry(entry) for entry in reply.entries]

    async def table_entries(
        self, segment: str, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None
    ) -> TablePage:
        """See `Segments.table_entries`."""
        if last == b"":
            return TablePage((), token)  # On the wire an empty bound means no bound.
        reply = expect(
            await self._ask(
                segment,
                lambda request_id: ReadTableEntries(
                    request_id, segment, self._token(segment), limit, token, first, last or b""
                ),
            ),
            TableEntriesRead,
            segment,
        )
        entries = [table_entry_of((key, value, version)) for key, version, value in reply.entries]
        return TablePage(entries, reply.continuation_token)

    async def table_keys(
        self, segment: str, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None
    ) -> TableKeyPage:
        """See `Segments.table_keys`."""
        if last == b"":
            return TableKeyPage((), token)
        reply = expect(
            await self._ask(
                segment,
                lambda request_id: ReadTableKeys(
                    request_id, segment, self._token(segment), limit, token, first, last or b""
                ),
            ),
            TableKeysRead,
            segment,
        )
        return TableKeyPage([(key.key, key.version) for key in reply.keys], reply.continuation_token)

    async def table_delta(self, segment: str, *, position: int, limit: int) -> TableDelta:
        """See `Segments.table_delta`."""
        reply = expect(
            await self._ask(
                segment,
                lambda request_id: ReadTableEntriesDelta(request_id, segment, self._token(segment), position, limit),
            ),
            TableEntriesDeltaRead,
            segment,
        )
        entries = [_entry(entry) for entry in reply.entries]
        return TableDelta(entries, reply.should_clear, reply.reached_end, reply.last_position)


def _of_one_request(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split keys into groups for one request each."""
    start = byte_count = 0
    for at, key in enumerate(keys):
        byte_count += len(key) + _KEY_HEADER_BYTES
        if at > start and (at - start == TABLE_READ_KEY_COUNT_MAX or byte_count > _REQUEST_KEY_BYTES_MAX):
            yield keys[start:at]
            start, byte_count = at, len(key) + _KEY_HEADER_BYTES
    yield keys[start:]


def _entry(entry: TableKeyValue) -> TableEntry:
    return TableEntry(entry.key, entry.value, entry.version)


def _table_error(
    reply: WireCommand, segment: str, keys: Sequence[tuple[bytes, int]], expected_offset: int
) -> PenstockError:
    """Return the error of a table update, naming the first conditional key: the failing one is not in the reply."""
    error = error_of(reply, segment) or unexpected(reply, segment)
    key, version = next(((key, version) for key, version in keys if version != VERSION_ANY), (b"", NO_VALUE))
    match error:
        case TableKeyMissingError():
            return TableKeyMissingError(segment, key=key)
        case TableKeyVersionError():
            return TableKeyVersionError(segment, key=key, expected=version, actual=NO_VALUE)
        case SegmentTruncatedError():
            return BadOffsetError(segment, expected=expected_offset, actual=error.start_offset)
        case _:
            return error
