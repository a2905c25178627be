"""All requests except appends: one handler per command, and one table from errors to replies.

Source: wire-protocol 2, 4 and 6.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar, cast

from penstock.model.errors import (
    BadAttributeError,
    BadOffsetError,
    ContainerNotFoundError,
    ContainerOfflineError,
    InconsistentStateError,
    InvalidArgumentError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentExistsError,
    SegmentMergedError,
    SegmentSealedError,
    SegmentStoreBusyError,
    SegmentTruncatedError,
    StorageFullError,
    StorageUnavailableError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    TableReadTooLongError,
    TooManyLeasesError,
    UnreadableDataError,
    UnsupportedOperationError,
)
from penstock.model.names import is_transient_segment, transient_segment_name
from penstock.model.segments import TableRemoval, TableUpdate
from penstock.segmentstore.chunk_layouts import ChunkLayouts
from penstock.segmentstore.container.attributes.updates import AttributeUpdate, UpdateKind
from penstock.segmentstore.host_transients import HostTransients
from penstock.segmentstore.own_transients import OwnTransients
from penstock.segmentstore.scale_advisor import StoreScaleAdvisor
from penstock.segmentstore.statistics_report import store_report, with_advice, with_tables
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.table_names import tables_page
from penstock.wire import commands as wire
from penstock.wire.chunk_layouts import decode_layout_query, encode_layout
from penstock.wire.codec import FRAME_LENGTH_MAX
from penstock.wire.commands import BUSY, NO_ROOM, READ_TOO_LONG, TOO_MANY_LEASES, WireCommand
from penstock.wire.statistics import decode_query, encode_message

_C = TypeVar("_C", bound=WireCommand)
_Handler = Callable[[WireCommand], Awaitable[WireCommand]]

#: ErrorMessage codes.
UNSPECIFIED = -1
ILLEGAL_ARGUMENT = 0
#: Maximum number of keys or entries in one iterator page, whatever the client suggests.
PAGE_COUNT_MAX = 10_000
#: Maximum encoded length of the entries of one reply: a frame less the longest segment name.
_READ_TABLE_BYTES_MAX = FRAME_LENGTH_MAX - 128 * 1024


class RequestProcessor:
    """Answers requests of one connection. Transient segments created here are deleted when it is closed.

    `hosts`, `host`: see `OwnTransients`.
    """

    def __init__(
        self, store: SegmentStore, *, transient_segments_max: int, hosts: HostTransients, host: Callable[[], str]
    ) -> None:
        self._store = store
        self._transients = OwnTransients(store, transient_segments_max, hosts, host)
        self._advisor = StoreScaleAdvisor(store)
        self._layouts = ChunkLayouts(store)
        self._handlers: dict[type[WireCommand], _Handler] = {}
        self._on(wire.GetStreamSegmentInfo, self._segment_info)
        self._on(wire.GetSegmentAttribute, self._get_attribute)
        self._on(wire.UpdateSegmentAttribute, self._update_attribute)
        self._on(wire.CreateSegment, self._create_segment)
        self._on(wire.CreateTransientSegment, self._create_transient_segment)
        self._on(wire.SealSegment, self._seal_segment)
        self._on(wire.DeleteSegment, self._delete_segment)
        self._on(wire.UpdateSegmentPolicy, self._update_policy)
        self._on(wire.TruncateSegment, self._truncate_segment)
        self._on(wire.LocateOffset, self._locate_offset)
        self._on(wire.MergeSegments, self._merge_segments)
        self._on(wire.MergeSegmentsBatch, self._merge_segments_batch)
        self._on(wire.CreateTableSegment, self._create_table)
        self._on(wire.DeleteTableSegment, self._delete_table)
        self._on(wire.GetTableSegmentInfo, self._table_info)
        self._on(wire.UpdateTableEntries, self._update_table)
        self._on(wire.RemoveTableKeys, self._remove_table_keys)
        self._on(wire.ReadTable, self._read_table)
        self._on(wire.ReadTableKeys, self._read_table_keys)
        self._on(wire.ReadTableEntries, self._read_table_entries)
        self._on(wire.ReadTableEntriesDelta, self._read_table_delta)
        self._on(wire.GetStatistics, self._statistics)
        self._on(wire.GetChunkLayout, self._chunk_layout)
        self._on(wire.ReturnChunkLease, self._return_chunk_lease)

    def _on(self, kind: type[_C], handler: Callable[[_C], Awaitable[WireCommand]]) -> None:
        self._handlers[kind] = cast(_Handler, handler)

    async def answer(self, command: WireCommand) -> WireCommand:
        """Return the reply to a request, which may be an error reply.

        Raises `PenstockError` for errors without a reply in the protocol: the connection must be closed.
        """
        handler = self._handlers.get(type(command))
        request_id = getattr(command, "request_id", -1)
        if handler is None:
            return wire.OperationUnsupported(request_id, type(command).__name__)
        segment = str(getattr(command, "segment", None) or getattr(command, "target", ""))
        try:
            return await handler(command)
        except PenstockError as error:
            return error_reply(error, request_id, segment, type(command).__name__)

    @property
    def has_transients(self) -> bool:
        """Whether there may be transient segments that were created here."""
        return self._transients.count > 0

    def release(self) -> None:
        """Begin no further request: the connection is lost. The handlers refer to this object."""
        self._handlers.clear()

    async def close(self) -> None:
        """Delete the transient segments that were never merged."""
        await self._transients.delete_all()

    # Segments.

    async def _segment_info(self, command: wire.GetStreamSegmentInfo) -> WireCommand:
        info = await self._store.segment_info(command.segment)
        return wire.StreamSegmentInfo(
            command.request_id,
            command.segment,
            True,
            info.is_sealed,
            False,
            info.last_modified_ms,
            info.length,
            info.start_offset,
        )

    async def _get_attribute(self, command: wire.GetSegmentAttribute) -> WireCommand:
        value = await self._store.get_attribute(command.segment, command.attribute_id)
        return wire.SegmentAttribute(command.request_id, value)

    async def _update_attribute(self, command: wire.UpdateSegmentAttribute) -> WireCommand:
        matched = await self._store.update_attribute(
            command.segment, command.attribute_id, value=command.new_value, expected=command.expected_value
        )
        return wire.SegmentAttributeUpdated(command.request_id, matched)

    async def _create_segment(self, command: wire.CreateSegment) -> WireCommand:
        with self._transients.making(command.segment) if is_transient_segment(command.segment) else nullcontext():
            await self._store.create_segment(
                command.segment,
                scale_type=command.scale_type,
                target_rate=command.target_rate,
                rollover_bytes=command.rollover_size_bytes,
            )
        return wire.SegmentCreated(command.request_id, command.segment)

    async def _create_transient_segment(self, command: wire.CreateTransientSegment) -> WireCommand:
        parent = command.parent_segment
        name = transient_segment_name(parent, command.writer_id, self._store.runtime.random_id())
        with self._transients.making(name):
            async with self._store.using(parent):
                pass
            await self._store.create_segment(name)
        return wire.SegmentCreated(command.request_id, name)

    async def _seal_segment(self, command: wire.SealSegment) -> WireCommand:
        await self._store.seal_segment(command.segment)
        return wire.SegmentSealed(command.request_id, command.segment)

    async def _delete_segment(self, command: wire.DeleteSegment) -> WireCommand:
        await self._store.delete_segment(command.segment)
        self._transients.forget(command.segment)
        return wire.SegmentDeleted(command.request_id, command.segment)

    async def _update_policy(self, command: wire.UpdateSegmentPolicy) -> WireCommand:
        await self._store.update_policy(command.segment, scale_type=command.scale_type, target_rate=command.target_rate)
        return wire.SegmentPolicyUpdated(command.request_id, command.segment)

    async def _truncate_segment(self, command: wire.TruncateSegment) -> WireCommand:
        await self._store.truncate_segment(command.segment, command.truncation_offset)
        return wire.SegmentTruncated(command.request_id, command.segment)

    async def _locate_offset(self, command: wire.LocateOffset) -> WireCommand:
        try:
            offset = await self._store.locate_offset(command.segment, command.target_offset)
        except SegmentTruncatedError:
            return wire.SegmentTruncated(command.request_id, command.segment)
        return wire.OffsetLocated(command.request_id, command.segment, offset)

    async def _merge_segments(self, command: wire.MergeSegments) -> WireCommand:
        try:
            updates = [
                AttributeUpdate(update.attribute_id, UpdateKind(update.update_type), update.new_value, update.old_value)
                for update in command.attribute_updates
            ]
        except ValueError as error:
            raise InvalidArgumentError(f"{command.target}: {error}") from error
        try:
            length = await self._store.merge_segment(command.target, command.source, updates)
        except BadAttributeError:
            return wire.SegmentAttributeUpdated(command.request_id, False)
        except (NoSuchSegmentError, SegmentMergedError) as error:
            return wire.NoSuchSegment(command.request_id, error.segment, "")
        except SegmentSealedError:
            # As in Pravega's server, this reply names the source although the target is the sealed one.
            return wire.SegmentIsSealed(command.request_id, command.source, "")
        self._transients.forget(command.source)
        return wire.SegmentsMerged(command.request_id, command.target, command.source, length)

    async def _merge_segments_batch(self, command: wire.MergeSegmentsBatch) -> WireCommand:
        lengths = await self._store.merge_segments(command.target, command.sources)
        for source in command.sources:
            self._transients.forget(source)
        merged = [wire.MergedSegment(*pair) for pair in zip(command.sources, lengths, strict=True)]
        return wire.SegmentsBatchMerged(command.request_id, command.target, merged)

    # Tables.

    async def _create_table(self, command: wire.CreateTableSegment) -> WireCommand:
        await self._store.create_table(
            command.segment, key_length=command.key_length, rollover_bytes=command.rollover_size_bytes
        )
        return wire.SegmentCreated(command.request_id, command.segment)

    async def _delete_table(self, command: wire.DeleteTableSegment) -> WireCommand:
        await self._store.delete_table(command.segment, must_be_empty=command.must_be_empty)
        return wire.SegmentDeleted(command.request_id, command.segment)

    async def _table_info(self, command: wire.GetTableSegmentInfo) -> WireCommand:
        info = await self._store.table_info(command.segment)
        return wire.TableSegmentInfo(
            command.request_id, command.segment, info.start_offset, info.length, info.entry_count, info.key_length
        )

    async def _update_table(self, command: wire.UpdateTableEntries) -> WireCommand:
        versions = await self._store.table_put(
            command.segment,
            [TableUpdate(entry.key, entry.value, entry.version) for entry in command.entries],
            expected_offset=command.table_segment_offset,
        )
        return wire.TableEntriesUpdated(command.request_id, versions)

    async def _remove_table_keys(self, command: wire.RemoveTableKeys) -> WireCommand:
        await self._store.table_remove(
            command.segment,
            [TableRemoval(key.key, key.version) for key in command.keys],
            expected_offset=command.table_segment_offset,
        )
        return wire.TableKeysRemoved(command.request_id, command.segment)

    async def _read_table(self, command: wire.ReadTable) -> WireCommand:
        keys = [key.key for key in command.keys]
        found = await self._store.table_get(command.segment, keys, bytes_max=_READ_TABLE_BYTES_MAX)
        entries = [
            wire.TableKeyValue(key, -1, b"") if entry is None else wire.TableKeyValue(key, entry.version, entry.value)
            for key, entry in zip(keys, found, strict=True)
        ]
        return wire.TableRead(command.request_id, command.segment, entries)

    async def _read_table_keys(self, command: wire.ReadTableKeys) -> WireCommand:
        page = await self._store.table_keys(
            command.segment,
            limit=max(1, min(command.suggested_count, PAGE_COUNT_MAX)),
            token=command.continuation_token,
            first=command.from_key,
            last=command.to_key or None,
        )
        keys = [wire.TableKey(key, version) for key, version in page.keys]
        return wire.TableKeysRead(command.request_id, command.segment, keys, page.token)

    async def _read_table_entries(self, command: wire.ReadTableEntries) -> WireCommand:
        page = await self._store.table_entries(
            command.segment,
            limit=max(1, min(command.suggested_count, PAGE_COUNT_MAX)),
            token=command.continuation_token,
            first=command.from_key,
            last=command.to_key or None,
        )
        # The encoder reads entries by attribute, and both types have the same ones: a page is not copied.
        entries = cast(Sequence[wire.TableKeyValue], page.entries)
        return wire.TableEntriesRead(command.request_id, command.segment, entries, page.token)

    async def _read_table_delta(self, command: wire.ReadTableEntriesDelta) -> WireCommand:
        delta = await self._store.table_delta(
            command.segment,
            position=command.from_position,
            limit=max(1, min(command.suggested_count, PAGE_COUNT_MAX)),
        )
        return wire.TableEntriesDeltaRead(
            command.request_id,
            command.segment,
            [wire.TableKeyValue(entry.key, entry.version, entry.value) for entry in delta.entries],
            delta.should_clear,
            delta.reached_end,
            delta.last_position,
        )

    async def _statistics(self, command: wire.GetStatistics) -> WireCommand:
        query = decode_query(command.query)
        report = store_report(self._store, query)
        if (asked := query.advice) is not None:
            report = with_advice(report, await self._advisor.scale_advice(asked.container, asked.segments))
        if (wanted := query.tables) is not None:
            report = with_tables(report, await tables_page(self._store, wanted))
        return wire.StatisticsTold(command.request_id, encode_message(report))

    async def _chunk_layout(self, command: wire.GetChunkLayout) -> WireCommand:
        page = await self._layouts.page(command.segment, decode_layout_query(command.query))
        return wire.ChunkLayoutTold(command.request_id, encode_layout(page))

    async def _return_chunk_lease(self, command: wire.ReturnChunkLease) -> WireCommand:
        await self._layouts.give_back(command.segment, command.epoch, command.number)
        return wire.ChunkLeaseReturned(command.request_id)


def error_reply(error: PenstockError, request_id: int, segment: str, operation: str, offset: int = -1) -> WireCommand:
    """Return the reply for `error`. `offset` is the one requested by a read or truncation.

    Raises `error` itself if the protocol has no reply for it.
    """
    match error:
        case NoSuchSegmentError() | SegmentMergedError():
            return wire.NoSuchSegment(request_id, segment, "", offset)
        case SegmentSealedError():
            return wire.SegmentIsSealed(request_id, error.segment, "", offset)
        case SegmentExistsError():
            return wire.SegmentAlreadyExists(request_id, segment)
        case SegmentTruncatedError():
            return wire.SegmentIsTruncated(request_id, segment, error.start_offset, "", error.offset)
        case BadOffsetError():
            return wire.SegmentIsTruncated(request_id, segment, error.actual, "", error.expected)
        case TableKeyMissingError():
            return wire.TableKeyDoesNotExist(request_id, segment, "")
        case TableKeyVersionError():
            return wire.TableKeyBadVersion(request_id, segment, "")
        case TableNotEmptyError():
            return wire.TableSegmentNotEmpty(request_id, segment, "")
        case ContainerNotFoundError() | ContainerOfflineError() | StorageUnavailableError() | InconsistentStateError():
            # "Not here, not now": the client looks up the location and retries, and its connection, which is shared,
            # stays open.
            return wire.WrongHost(request_id, segment, "")
        case StorageFullError():
            # The only reply that every client understands as: not done, retry later.
            return wire.WrongHost(request_id, segment, "", f"{NO_ROOM}{_ascii(str(error))}")
        case SegmentStoreBusyError():
            # Likewise: the connection, which is shared, stays open.
            return wire.WrongHost(request_id, segment, "", f"{BUSY}{_ascii(str(error))}")
        case UnsupportedOperationError():
            return wire.OperationUnsupported(request_id, operation)
        case OutcomeUnknownError():
            raise error  # Neither success nor failure: the client reconnects and finds out.
        case TableReadTooLongError():
            return wire.ErrorMessage(request_id, segment, f"{READ_TOO_LONG}{_ascii(str(error))}", ILLEGAL_ARGUMENT)
        case TooManyLeasesError():
            return wire.ErrorMessage(request_id, segment, f"{TOO_MANY_LEASES}{_ascii(str(error))}", UNSPECIFIED)
        case InvalidArgumentError():
            return wire.ErrorMessage(request_id, segment, _ascii(str(error)), ILLEGAL_ARGUMENT)
        case UnreadableDataError():
            return wire.ErrorMessage(request_id, segment, _ascii(str(error)), UNSPECIFIED)
        case _:
            # A transient error: to every client a closed connection means that the request may be retried.
            raise error


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii")[:1000]
