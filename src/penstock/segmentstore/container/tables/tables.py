"""Table segments of one container: conditional updates, reads, iteration, deltas; indexing and compaction.

A table's state in memory (`TableIndex`) is built on first use. Long operations (loading, moving the tail to the index,
compaction) run as jobs of the container (`spawn`, `run`). Calls validate and append in one turn of the loop, against
state that includes everything accepted before, and return when the append is durable.

Source: segment-store 6; wire-protocol 6.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.model.errors import (
    BadOffsetError,
    InvalidArgumentError,
    NoSuchSegmentError,
    PenstockError,
    StorageNotPrimaryError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    UnreadableDataError,
    UnsupportedOperationError,
)
from penstock.model.segments import (
    Buffer,
    TableDelta,
    TableEntry,
    TableInfo,
    TableKeyPage,
    TablePage,
    TableRemoval,
    TableUpdate,
)
from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.tables.compaction import TableCompactor
from penstock.segmentstore.container.tables.entries import slot_version
from penstock.segmentstore.container.tables.index import TableBusyError, TableIndex
from penstock.segmentstore.container.tables.indexer import OpenIndex, TableIndexer
from penstock.segmentstore.container.tables.reads import (
    TableReader,
    check_key_count,
    check_reply_bytes,
    page_of,
    within_key_bytes,
    within_page_bytes,
)
from penstock.segmentstore.container_settings import ContainerSettings

logger: logging.Logger = logging.getLogger(__name__)

#: Kinds of jobs.
_LOAD = "loading"
_INDEX = "indexing"
_COMPACT = "compaction"

_REFUSALS = (BadOffsetError, TableKeyMissingError, TableKeyVersionError)


#: Accepts bytes at the end of a segment immediately; the future completes when they are durable.
AppendAccepted = Callable[[Segment, Buffer], asyncio.Future[None]]


class Tables:
    """Table operations. `append` and `truncate` accept operations; `barrier` waits for durability.

    `spawn` starts `run` with the same arguments as a job of the container. `open_index` returns the index of a table,
    not opened; if None, every table is kept wholly in memory.
    """

    def __init__(
        self,
        settings: ContainerSettings,
        reader: SegmentReader,
        *,
        append: AppendAccepted,
        truncate: Callable[[Segment, int], None],
        barrier: Callable[[], asyncio.Future[None]],
        spawn: Callable[[str, Segment], None],
        open_index: OpenIndex | None = None,
    ) -> None:
        self._settings = settings
        self._append = append
        self._barrier = barrier
        self._spawn = spawn
        self._indexer = TableIndexer(settings, reader, barrier=barrier, open_index=open_index)
        self._compactor = TableCompactor(settings, reader, append=append, truncate=truncate)
        self._reads = TableReader(reader, self.index_of)
        self._loading: dict[int, asyncio.Future[TableIndex]] = {}
        self._closed_by: Exception | None = None
        self._loop = asyncio.get_running_loop()

    # Jobs.

    async def run(self, what: str, segment: Segment) -> None:
        """Run a job started by `spawn`. Raises errors that must end the container; other errors only end the job."""
        if what == _LOAD:
            await self._load(segment)
        elif what == _INDEX:
            await self._index(segment)
        else:
            await self.compact(segment)

    async def index_of(self, segment: Segment) -> TableIndex:
        """Return the state of a table segment, loading it on first use. Concurrent calls wait for the same load.

        Raises `UnsupportedOperationError` for a segment that is no table, `TableBusyError` if loading takes too long
        (it continues), and any error of the load, after which the next call starts again.
        """
        if not segment.is_table:
            raise UnsupportedOperationError(f"{segment.name} is not a table segment")
        if segment.table is not None:
            return segment.table
        if self._closed_by is not None:
            raise self._closed_by
        loading = self._loading.get(segment.id)
        if loading is None:
            loading = self._loading[segment.id] = self._loop.create_future()
            self._spawn(_LOAD, segment)
        timeout_s = self._settings.table_load_timeout_s
        await asyncio.wait((loading,), timeout=timeout_s)
        if not loading.done():
            raise TableBusyError(
                segment.name, f"its index is still being loaded after {timeout_s:g} s; try again later"
            )
        return loading.result()

    def close(self, error: Exception) -> None:
        """End the waits for tables being loaded, and load no more: the container is stopping."""
        self._closed_by = error
        loading, self._loading = self._loading, {}
        for future in loading.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # There may be no waiter left.

    async def _load(self, segment: Segment) -> None:
        loading = self._loading[segment.id]
        try:
            segment.table = await self._indexer.load(segment)
            loading.set_result(segment.table)
        except asyncio.CancelledError:
            raise  # The container is stopping, and `close` fails the waiters.
        except Exception as error:  # noqa: BLE001 - raised in every waiter
            loading.set_exception(error)
        finally:
            if loading.done():
                self._loading.pop(segment.id, None)
            if loading.done() and not loading.cancelled():
                loading.exception()  # There may be no waiter left.

    async def _index(self, segment: Segment) -> None:
        table = segment.table
        if table is None:
            return
        try:
            await self._flush(segment, table)
        except (UnreadableDataError, StorageNotPrimaryError):
            raise
        except (PenstockError, OSError) as error:
            if not segment.is_deleted:
                logger.warning(
                    "%s: its index is not up to date, %d bytes are left; trying again in %.1f s: %s",
                    segment.name,
                    self._indexer.unindexed_bytes(segment, table),
                    self._settings.table_index_retry_s,
                    error,
                )
        finally:
            table.is_flush_spawned = False
            table.wake()

    async def _flush(self, segment: Segment, table: TableIndex) -> None:
        try:
            await self._indexer.flush(segment, table)
        except BaseException:
            table.retry_at_s = self._loop.time() + self._settings.table_index_retry_s
            raise
        if self._compactor.is_due(segment, table):
            self._start_compaction(segment, table)

    def _start_index_flush(self, segment: Segment, table: TableIndex) -> None:
        if not table.is_flush_spawned and self._loop.time() >= table.retry_at_s:
            table.is_flush_spawned = True
            self._spawn(_INDEX, segment)

    def _start_compaction(self, segment: Segment, table: TableIndex) -> None:
        table.is_compacting = True
        self._spawn(_COMPACT, segment)

    def is_index_due(self, segment: Segment) -> bool:
        """Whether a table's index should be updated; never for a table that is not in memory."""
        table = segment.table
        return table is not None and not table.flush_lock.locked() and self._indexer.is_due(segment, table)

    async def flush_index(self, segment: Segment) -> None:
        """Bring a table's index up to date, durably, with everything accepted at the call, whether or not it is due.

        Raises `StorageNotPrimaryError` and `CorruptionError`, which must end the container, and errors of storage,
        after which nothing is lost and the call can be repeated. `UnsupportedOperationError` if there is no storage for
        indexes.
        """
        table = await self.index_of(segment)
        await self._flush(segment, table)
        if table.end > table.mark.indexed_offset:
            await self._flush(segment, table)  # The first call completed an earlier, failed flush.

    def unindexed_bytes(self, segment: Segment) -> int:
        """Return the number of bytes of a table's log not covered by its index; 0 for a table that is not in memory."""
        return 0 if segment.table is None else self._indexer.unindexed_bytes(segment, segment.table)

    def is_busy(self, segment: Segment) -> bool:
        """Whether an operation is running that uses the table's state in memory."""
        table = segment.table
        if segment.id in self._loading:
            return True
        return table is not None and bool(
            table.is_compacting or table.is_flush_spawned or table.flush_lock.locked() or table.waiters
        )

    def release(self, segment: Segment) -> None:
        """Drop the in-memory state of a table that is not busy, or is gone; it is loaded again on its next use."""
        table, segment.table = segment.table, None
        if table is not None and table.index is not None:
            table.index.close()

    async def compact(self, segment: Segment) -> None:
        """Copy live entries from the head of the log to its end and truncate, until enough of the log is live.

        One compaction at a time: another one would truncate the range being scanned.
        """
        table = await self.index_of(segment)
        async with table.compact_lock:
            table.is_compacting = True
            try:
                await self._compactor.compact(segment, table)
            finally:
                table.is_compacting = False

    # Updates.

    async def put(self, segment: Segment, updates: Sequence[TableUpdate], expected_offset: int) -> Sequence[int]:
        """See `Segments.table_put`. Raises `TableBusyError` if the index lags too far behind for too long."""
        while True:
            table = segment.table or await self.index_of(segment)
            await self._wait_for_room(segment, table)
            loaded = await table.load(table.conditional_keys(updates))
            if segment.table is table:
                break
        try:
            self._check_offset(segment, expected_offset)
            data, versions, slots = table.plan_puts(updates, segment.length, loaded)
        except _REFUSALS:
            await self._durable(segment)  # A crash must not undo the state behind the refusal.
            raise
        durable = self._append(segment, data)
        table.apply_puts(updates, slots, segment.length, loaded)
        self._start_due(segment, table)
        await durable
        return versions

    async def remove(self, segment: Segment, removals: Sequence[TableRemoval], expected_offset: int) -> None:
        """See `Segments.table_remove`."""
        while True:
            table = segment.table or await self.index_of(segment)
            await self._wait_for_room(segment, table)
            table.conditional_keys(removals)
            loaded = await table.load([removal.key for removal in removals])
            if segment.table is table:
                break
        try:
            self._check_offset(segment, expected_offset)
            data, keys = table.plan_removals(removals, loaded)
        except _REFUSALS:
            await self._durable(segment)
            raise
        if not data:
            await self._durable(segment)
            return
        durable = self._append(segment, data)
        table.apply_removals(keys, segment.length, loaded)
        self._start_due(segment, table)
        await durable

    async def _durable(self, segment: Segment) -> None:
        if segment.durable_length < segment.length:
            await self._barrier()

    def _check_offset(self, segment: Segment, expected_offset: int) -> None:
        if segment.is_deleted:
            raise NoSuchSegmentError(segment.name)
        if expected_offset >= 0 and expected_offset != segment.length:
            raise BadOffsetError(segment.name, expected=expected_offset, actual=segment.length)

    def _start_due(self, segment: Segment, table: TableIndex) -> None:
        if self._indexer.is_due(segment, table):
            self._start_index_flush(segment, table)
        if self._compactor.is_due(segment, table):
            self._start_compaction(segment, table)

    async def _wait_for_room(self, segment: Segment, table: TableIndex) -> None:
        """Wait while the index lags too far behind; usually returns at once. One update may exceed the limit."""
        limit = self._indexer.unindexed_bytes_max(segment)
        if not self._indexer.has_indexes or self._indexer.unindexed_bytes(segment, table) < limit:
            return
        settings = self._settings
        log = logger.error if segment.is_system else logger.warning
        log(
            "%s: updates wait, its index lags by %d bytes, the limit is %d; long-term storage must catch up",
            segment.name,
            self._indexer.unindexed_bytes(segment, table),
            limit,
        )
        deadline_s = self._loop.time() + settings.table_index_wait_timeout_s
        while self._indexer.unindexed_bytes(segment, table) >= limit and segment.table is table:
            if segment.is_deleted:
                raise NoSuchSegmentError(segment.name)
            await self._barrier()  # Raises when the container has stopped.
            remaining_s = deadline_s - self._loop.time()
            if remaining_s <= 0:
                raise TableBusyError(
                    segment.name,
                    f"its index lags {self._indexer.unindexed_bytes(segment, table)} bytes, the limit is {limit}, and "
                    f"did not catch up for {settings.table_index_wait_timeout_s:g} s; try again later",
                )
            self._start_index_flush(segment, table)
            waiter: asyncio.Future[None] = self._loop.create_future()
            table.waiters.append(waiter)
            try:
                await asyncio.wait((waiter,), timeout=min(remaining_s, settings.table_index_retry_s))
            finally:
                with suppress(ValueError):  # It was already woken and removed.
                    table.waiters.remove(waiter)

    # Reads.

    async def get(
        self, segment: Segment, keys: Sequence[bytes], *, bytes_max: int | None = None
    ) -> Sequence[TableEntry | None]:
        """See `Segments.table_get`.

        Raises `TableReadTooLongError`, before any value is read, if the entries take more than `bytes_max` bytes in a
        reply, or if there are more than `TABLE_READ_KEY_COUNT_MAX` keys; no limits apply if `bytes_max` is None.
        """
        if bytes_max is not None:
            check_key_count(segment.name, keys)
        table = await self.index_of(segment)
        for key in keys:
            table.check_key(key)
        loaded = await table.load(keys)
        items = [(key, table.slot(key, loaded)) for key in keys]
        if bytes_max is not None:
            check_reply_bytes(segment.name, items, bytes_max)
        found = await self._reads.entries(segment, items)
        await self._durable(segment)
        return found

    async def entries(
        self, segment: Segment, *, limit: int, token: bytes, first: bytes = b"", last: bytes | None = None
    ) -> TablePage:
        """See `Segments.table_entries`. For any table: ascending keys after `token`, within the bounds.

        The token is the last key.
        """
        table = await self._page_table(segment, limit)
        found: list[TableEntry] = []
        while not found:
            page = await page_of(table, after=token, first=first, last=last, limit=limit)
            if not page:
                break
            items = within_page_bytes(page)
            token = items[-1][0]
            found = [entry for entry in await self._reads.entries(segment, items) if entry is not None]
        await self._durable(segment)
        return TablePage(found, token)

    async def keys(
        self, segment: Segment, *, limit: int, token: bytes, first: bytes = b"", last: bytes | None = None
    ) -> TableKeyPage:
        """See `Segments.table_keys`. Like `entries`, but reads only the index."""
        table = await self._page_table(segment, limit)
        page = within_key_bytes(await page_of(table, after=token, first=first, last=last, limit=limit))
        await self._durable(segment)
        return TableKeyPage([(key, slot_version(slot)) for key, slot in page], page[-1][0] if page else token)

    async def _page_table(self, segment: Segment, limit: int) -> TableIndex:
        if limit <= 0:
            raise InvalidArgumentError(f"{segment.name}: a page of {limit} entries was requested")
        return await self.index_of(segment)

    async def delta(self, segment: Segment, *, position: int, limit: int) -> TableDelta:
        """See `Segments.table_delta`. `position` must be 0 or a position returned by an earlier delta."""
        if not segment.is_table:
            raise UnsupportedOperationError(f"{segment.name} is not a table segment")
        if segment.key_length:
            raise UnsupportedOperationError(f"{segment.name}: delta reads are for hash tables only")
        end = segment.durable_length
        if position < 0 or position > end:
            raise InvalidArgumentError(f"{segment.name}: delta from byte {position}, but the table has {end}")
        return await self._reads.delta(segment, position=position, limit=limit)

    async def info(self, segment: Segment) -> TableInfo:
        """See `Segments.table_info`. The count is exact, even if that requires lookups."""
        table = await self.index_of(segment)
        count = await table.live_count()
        await self._durable(segment)
        return TableInfo(segment.name, segment.durable_start_offset, segment.durable_length, count, segment.key_length)

    async def check_empty(self, segment: Segment) -> None:
        """Raise `TableNotEmptyError` if the table holds keys, `UnsupportedOperationError` for fixed-key tables."""
        if segment.key_length:
            raise UnsupportedOperationError(f"{segment.name}: delete-if-empty is for hash tables only")
        table = await self.index_of(segment)
        if await table.live_count():
            await self._durable(segment)
            raise TableNotEmptyError(segment.name)
