"""`WireSegments`: the `Segments` seam over the wire protocol.

Read-only requests are retried, with bounded back-off, when the connection is lost, until the deadline of the enclosing
call, or for `retry_time_max_s`. Requests that change something are retried only if they cannot have been applied (no
connection, wrong host); a lost reply raises `OutcomeUnknownError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from penstock.client.common.deadline import within
from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool, Purpose
from penstock.client.transport.delegation_tokens import Tokens
from penstock.client.transport.exchanges import Exchanges, in_time
from penstock.client.transport.known_ends import KnownEnds
from penstock.client.transport.replies import error_of, expect, unexpected
from penstock.model.errors import (
    BadOffsetError,
    OutcomeUnknownError,
    PenstockError,
    PositionBeyondEndError,
    SegmentTruncatedError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableReadTooLongError,
)
from penstock.model.names import primary_name
from penstock.model.segments import (
    NO_VALUE,
    READ_LENGTH_MAX,
    TABLE_READ_KEY_COUNT_MAX,
    TABLE_READ_KEY_COUNT_SURE,
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
    table_entry_of,
)
from penstock.runtime.bulk import for_each
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    CreateSegment,
    CreateTableSegment,
    DataAppended,
    DeleteSegment,
    DeleteTableSegment,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    GetTableSegmentInfo,
    LocateOffset,
    MergeSegmentsBatch,
    OffsetLocated,
    ReadSegment,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    SealSegment,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentPolicyUpdated,
    SegmentRead,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentTruncated,
    SetupAppend,
    StreamSegmentInfo,
    TableEntriesDeltaRead,
    TableEntriesRead,
    TableEntriesUpdated,
    TableKey,
    TableKeysRead,
    TableKeysRemoved,
    TableKeyValue,
    TableRead,
    TableSegmentInfo,
    TruncateSegment,
    UpdateSegmentAttribute,
    UpdateSegmentPolicy,
    UpdateTableEntries,
    WireCommand,
    WrongHost,
)
from penstock.wire.connection import WireConnection

#: Servers of earlier wire versions do not support LocateOffset.
LOCATE_OFFSET_VERSION = 17
#: Initial distance of the backward search for a boundary: about the distance between two.
_BORDER_DISTANCE = 2 * 1024 * 1024
#: Bytes of keys in one request to read a table, and the wire's overhead per key.
_REQUEST_KEY_BYTES_MAX = 8 * 1024 * 1024
_KEY_HEADER_BYTES = 16
#: Makes the request from a request id.
_Make = Callable[[int], WireCommand]


class WireSegments:
    """See `penstock.model.segments.Segments` for the calls and their errors.

    Use within one event loop.

    Args:
        token: the access token sent with each request; empty: that of the segment's stream, from the pool.
        waits_for_space: whether requests rejected because of a full disk are retried; otherwise `StorageFullError` is
            raised immediately, for a caller with retries of its own.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        settings: ClientSettings,
        rng: Random,
        *,
        token: str = "",
        waits_for_space: bool = True,
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._rng = rng
        self._fixed_token = token
        self._known_ends = KnownEnds()
        self._exchanges = Exchanges(pool, settings, rng, waits_for_space=waits_for_space)

    @property
    def controller(self) -> str:
        """URI of the cluster; empty: not known."""
        return self._pool.controller

    @property
    def tokens(self) -> Tokens:
        """The tokens of requests."""
        return self._pool.tokens

    def _token(self, segment: str) -> str:
        return self._fixed_token or self._pool.tokens.of(segment)

    # -- segments -----------------------------------------------------------------------------------------------

    async def create_segment(
        self, segment: str, *, scale_type: int = 0, target_rate: int = 0, rollover_bytes: int = 0
    ) -> None:
        """See `Segments.create_segment`."""
        reply = await self._change(
            segment,
            lambda request_id: CreateSegment(
                request_id, segment, target_rate, scale_type, self._token(segment), rollover_bytes
            ),
        )
        expect(reply, SegmentCreated, segment)

    async def delete_segment(self, segment: str) -> None:
        """See `Segments.delete_segment`."""
        reply = await self._change(segment, lambda request_id: DeleteSegment(request_id, segment, self._token(segment)))
        expect(reply, SegmentDeleted, segment)

    async def seal_segment(self, segment: str) -> None:
        """See `Segments.seal_segment`."""
        reply = await self._change(segment, lambda request_id: SealSegment(request_id, segment, self._token(segment)))
        expect(reply, SegmentSealed, segment)

    async def truncate_segment(self, segment: str, offset: int) -> None:
        """See `Segments.truncate_segment`."""
        reply = await self._change(
            segment, lambda request_id: TruncateSegment(request_id, segment, offset, self._token(segment))
        )
        expect(reply, SegmentTruncated, segment)

    async def update_policy(self, segment: str, *, scale_type: int, target_rate: int) -> None:
        """See `Segments.update_policy`."""
        reply = await self._change(
            segment,
            lambda request_id: UpdateSegmentPolicy(request_id, segment, target_rate, scale_type, self._token(segment)),
        )
        expect(reply, SegmentPolicyUpdated, segment)

    async def segment_info(self, segment: str) -> SegmentInfo:
        """See `Segments.segment_info`."""
        reply = expect(
            await self._ask(
                segment, lambda request_id: GetStreamSegmentInfo(request_id, segment, self._token(segment))
            ),
            StreamSegmentInfo,
            segment,
        )
        return SegmentInfo(segment, reply.start_offset, reply.write_offset, reply.is_sealed, reply.last_modified)

    async def segment_infos(self, segments: Sequence[str]) -> Sequence[SegmentInfo | PenstockError]:
        """See `Segments.segment_infos`."""
        homes = _one_name_per_home(segments)

        async def ask(segment: str) -> SegmentInfo:
            reply = await self._once(
                segment, homes, lambda request_id: GetStreamSegmentInfo(request_id, segment, self._token(segment))
            )
            info = expect(reply, StreamSegmentInfo, segment)
            return SegmentInfo(segment, info.start_offset, info.write_offset, info.is_sealed, info.last_modified)

        return await for_each(segments, ask, self._settings.bulk_request_count_max)

    async def delete_segments(self, segments: Sequence[str]) -> Sequence[PenstockError | None]:
        """See `Segments.delete_segments`. `OutcomeUnknownError` for a name: its reply was lost."""
        homes = _one_name_per_home(segments)

        async def ask(segment: str) -> None:
            reply = await self._once(
                segment, homes, lambda request_id: DeleteSegment(request_id, segment, self._token(segment))
            )
            expect(reply, SegmentDeleted, segment)

        return await for_each(segments, ask, self._settings.bulk_request_count_max)

    async def truncate_segments(self, offsets: Sequence[tuple[str, int]]) -> Sequence[PenstockError | None]:
        """See `Segments.truncate_segments`. `OutcomeUnknownError` for a name: its reply was lost."""
        homes = _one_name_per_home([segment for segment, _ in offsets])

        async def ask(one: tuple[str, int]) -> None:
            segment, offset = one
            reply = await self._once(
                segment, homes, lambda request_id: TruncateSegment(request_id, segment, offset, self._token(segment))
            )
            expect(reply, SegmentTruncated, segment)

        return await for_each(offsets, ask, self._settings.bulk_request_count_max)

    async def _once(self, segment: str, homes: dict[str, str], make: _Make) -> WireCommand:
        """Send a request, once. The resolver is queried once for all segments of the same home."""
        home = homes[primary_name(segment)]
        try:
            connection = await self._pool.connection(home, Purpose.REQUEST)
            request_id = connection.next_request_id()
            reply = await in_time(segment, connection.request(request_id, make(request_id)))
        except OutcomeUnknownError:
            self._pool.forget(home)
            raise
        if isinstance(reply, WrongHost):
            self._pool.forget(home)
        return reply

    async def locate_offset(self, segment: str, offset: int, *, before: bool = False) -> int:
        """See `Segments.locate_offset`. `before` costs tens of requests: the wire protocol only searches forwards.

        Segment stores too old for LocateOffset are treated as if they had no boundaries.
        """
        if not before:
            return await self._border_behind(segment, offset)
        info = await self.segment_info(segment)
        if offset < info.start_offset:
            raise SegmentTruncatedError(segment, start_offset=info.start_offset, offset=offset)
        if offset >= info.length:
            return info.length
        # `low` is a boundary; between `high` and `offset` there is none except, perhaps, at `offset`.
        low, high = info.start_offset, offset + 1
        step = _BORDER_DISTANCE
        at = offset
        while at > low:
            border = await self._border_behind(segment, at)
            if border <= offset:
                low = border
                break
            high = at
            at -= step
            step *= 2
        while high - low > 1:
            at = (low + high) // 2
            border = await self._border_behind(segment, at)
            if border <= offset:
                low = border
            else:
                high = at
        return low

    async def _border_behind(self, segment: str, offset: int) -> int:
        async def exchange(connection: WireConnection) -> WireCommand:
            request_id = connection.next_request_id()
            if connection.wire_version < LOCATE_OFFSET_VERSION:
                command: WireCommand = GetStreamSegmentInfo(request_id, segment, self._token(segment))
            else:
                command = LocateOffset(request_id, segment, offset, self._token(segment))
            return await connection.request(request_id, command)

        reply = await self._exchanges.run(segment, exchange, Purpose.REQUEST, is_repeatable=True)
        if isinstance(reply, StreamSegmentInfo):
            if offset < reply.start_offset:
                raise SegmentTruncatedError(segment, start_offset=reply.start_offset, offset=offset)
            return reply.start_offset if offset == reply.start_offset else reply.write_offset
        if isinstance(reply, SegmentTruncated):
            info = await self.segment_info(segment)
            raise SegmentTruncatedError(segment, start_offset=info.start_offset, offset=offset)
        return expect(reply, OffsetLocated, segment).offset

    async def merge_segments(self, target: str, sources: Sequence[str]) -> Sequence[int]:
        """See `Segments.merge_segments`."""
        reply = expect(
            await self._change(
                target, lambda request_id: MergeSegmentsBatch(request_id, target, tuple(sources), self._token(target))
            ),
            SegmentsBatchMerged,
            target,
        )
        return [merged.new_target_write_offset for merged in reply.merged]

    async def append(self, segment: str, data: Buffer, *, expected_offset: int | None = None) -> int:
        """See `Segments.append`. Each call uses a new writer id."""
        writer_id = self._rng.randbytes(16)

        def make(request_id: int) -> WireCommand:
            if expected_offset is not None:
                return ConditionalBlockEnd(writer_id, 1, expected_offset, data, request_id)
            return AppendBlockEnd(writer_id, len(data), data, 1, 1, request_id)

        async def exchange(connection: WireConnection) -> WireCommand:
            request_id = connection.next_request_id()
            setup = await connection.request(
                request_id, SetupAppend(request_id, writer_id, segment, self._token(segment))
            )
            if not isinstance(setup, AppendSetup):
                return setup
            return await connection.request(request_id, make(request_id))

        reply = await self._exchanges.run(segment, exchange, Purpose.APPEND, is_repeatable=False)
        if isinstance(reply, ConditionalCheckFailed):
            info = await self.segment_info(segment)
            raise BadOffsetError(segment, expected=expected_offset or 0, actual=info.length)
        return expect(reply, DataAppended, segment).current_segment_write_offset

    async def read(self, segment: str, offset: int, length: int, *, wait: bool = False) -> SegmentData:
        """See `Segments.read`. Without `wait` this costs a second request, because a server always waits."""
        if not wait:
            with within(f"read {segment} at {offset}", self._settings.retry_time_max_s, "retry_time_max_s"):
                info = await self.segment_info(segment)
                if offset >= info.length and not info.is_sealed:
                    return SegmentData(offset, (), is_at_tail=True, is_end_of_segment=False)
                length = min(length, max(info.length - offset, 0) or length)
                return await self._read(segment, offset, min(length, READ_LENGTH_MAX), wait=False)
        return await self._read(segment, offset, min(length, READ_LENGTH_MAX), wait=True)

    async def _read(self, segment: str, offset: int, length: int, *, wait: bool) -> SegmentData:
        async def exchange(connection: WireConnection) -> WireCommand:
            if not self._known_ends.reaches(connection, segment, offset):
                # A read beyond the end gets no reply before the segment has grown past it.
                request_id = connection.next_request_id()
                found = await connection.request(
                    request_id, GetStreamSegmentInfo(request_id, segment, self._token(segment))
                )
                if isinstance(found, WrongHost):
                    return found
                # For all other replies of the segment store, the read gets the same.
                if isinstance(found, StreamSegmentInfo):
                    if offset > found.write_offset:
                        raise PositionBeyondEndError(segment, position=offset, end=found.write_offset)
                    self._known_ends.note(connection, segment, found.write_offset)
            request_id = connection.next_request_id()
            command = ReadSegment(segment, offset, length, self._token(segment), request_id)
            reply = await connection.request(request_id, command, timeout_s=None)
            if isinstance(reply, SegmentRead):
                self._known_ends.note(connection, segment, offset + len(reply.buffer))
            return reply

        while True:
            reply = await self._exchanges.run(segment, exchange, Purpose.READ, is_repeatable=True, is_long_poll=True)
            if isinstance(reply, SegmentIsSealed):
                # Sealed while waiting at the tail.
                return SegmentData(offset, (), is_at_tail=False, is_end_of_segment=True)
            read = expect(reply, SegmentRead, segment)
            data = read.buffer
            if len(data) > length:
                # A server may return somewhat more than the requested bytes if few were requested.
                return SegmentData(read.offset, (data[:length],), is_at_tail=False, is_end_of_segment=False)
            # An empty reply that is not the end means that the server's wait timed out: request again.
            if len(data) or read.end_of_segment or not wait:
                return SegmentData(
                    read.offset, (data,) if len(data) else (), read.at_tail, is_end_of_segment=read.end_of_segment
                )

    async def get_attribute(self, segment: str, attribute_id: bytes) -> int:
        """See `Segments.get_attribute`."""
        reply = await self._ask(
            segment, lambda request_id: GetSegmentAttribute(request_id, segment, attribute_id, self._token(segment))
        )
        return expect(reply, SegmentAttribute, segment).value

    async def update_attribute(self, segment: str, attribute_id: bytes, *, value: int, expected: int) -> bool:
        """See `Segments.update_attribute`."""
        reply = await self._change(
            segment,
            lambda request_id: UpdateSegmentAttribute(
                request_id, segment, attribute_id, value, expected, self._token(segment)
            ),
        )
        return expect(reply, SegmentAttributeUpdated, segment).success

    # -- tables -------------------------------------------------------------------------------------------------

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

    # -- inside -------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        segment: str,
        make: _Make,
        *,
        purpose: Purpose = Purpose.REQUEST,
        timeout_s: float | None = -1.0,
    ) -> WireCommand:
        """Send a request that may be repeated; return its reply, which is never `WrongHost`."""

        async def exchange(connection: WireConnection) -> WireCommand:
            request_id = connection.next_request_id()
            return await connection.request(request_id, make(request_id), timeout_s=timeout_s)

        return await self._exchanges.run(segment, exchange, purpose, is_repeatable=True, is_long_poll=timeout_s is None)

    async def _change(self, segment: str, make: _Make) -> WireCommand:
        """Send a request that must not be applied twice; return its reply, which is never `WrongHost`."""

        async def exchange(connection: WireConnection) -> WireCommand:
            request_id = connection.next_request_id()
            return await connection.request(request_id, make(request_id))

        return await self._exchanges.run(segment, exchange, Purpose.REQUEST, is_repeatable=False)


def _of_one_request(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Split keys into groups for one request each."""
    start = byte_count = 0
    for at, key in enumerate(keys):
        byte_count += len(key) + _KEY_HEADER_BYTES
        if at > start and (at - start == TABLE_READ_KEY_COUNT_MAX or byte_count > _REQUEST_KEY_BYTES_MAX):
            yield keys[start:at]
            start, byte_count = at, len(key) + _KEY_HEADER_BYTES
    yield keys[start:]


def _one_name_per_home(segments: Sequence[str]) -> dict[str, str]:
    """Return one of the names for each home: names with the same part that determines the home share one."""
    homes: dict[str, str] = {}
    for segment in segments:
        homes.setdefault(primary_name(segment), segment)
    return homes


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
