"""`TableIndexer`: builds a table's `TableIndex` on first use, and moves its tail to the index in long-term storage.

A table is loaded from the mark of its index on, or from its log's start if it has none. The log alone is complete, so
an unusable index is ignored, and cleared when the table needs one. One update moves a whole tail, whose log entries are
durable before. On any failure the tail stays and the index is opened again.

Source: segment-store 6.4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice

from penstock.model.errors import BadOffsetError, CorruptionError, UnsupportedOperationError
from penstock.segmentstore.container.btree.sorted_index import SortedIndex
from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.tables.entries import parse_entries
from penstock.segmentstore.container.tables.index import CLEARING, LOOKUP_COUNT, TableIndex, TableMark
from penstock.segmentstore.container_settings import ContainerSettings

logger: logging.Logger = logging.getLogger(__name__)

_SCAN_LENGTH = 256 * 1024

#: Returns the index of a table segment, not opened.
OpenIndex = Callable[[Segment], SortedIndex]


class TableIndexer:
    """Loads tables and brings their indexes up to date. `barrier` waits for durability."""

    def __init__(
        self,
        settings: ContainerSettings,
        reader: SegmentReader,
        *,
        barrier: Callable[[], asyncio.Future[None]],
        open_index: OpenIndex | None,
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._barrier = barrier
        self._open_index = open_index

    @property
    def has_indexes(self) -> bool:
        """Whether there is storage for indexes."""
        return self._open_index is not None

    def unindexed_bytes(self, segment: Segment, table: TableIndex) -> int:
        """Return the number of bytes of the log covered only by the tail."""
        return segment.length - max(table.mark.indexed_offset, segment.start_offset)

    def unindexed_bytes_max(self, segment: Segment) -> int:
        """Return the maximum number of bytes of the log covered only by the tail."""
        settings = self._settings
        return settings.table_unindexed_bytes_max_system if segment.is_system else settings.table_unindexed_bytes_max

    def is_due(self, segment: Segment, table: TableIndex) -> bool:
        """Whether enough is unindexed to be worth an update of the index."""
        settings = self._settings
        unindexed = self.unindexed_bytes(segment, table)
        if unindexed < settings.table_index_min_bytes or self._open_index is None or segment.is_deleted:
            return False
        if unindexed >= settings.table_index_max_bytes:
            return True
        if table.index is not None:
            return unindexed * 100 >= table.mark.live_bytes * settings.table_index_percent
        # Small, frequently updated tables are kept short by compaction, and need no index.
        return table.live_bytes * 100 >= unindexed * settings.table_utilisation_percent

    # Loading.

    async def load(self, segment: Segment) -> TableIndex:
        """Load and return a table's state. Raises `CorruptionError`, and what reading raises."""
        table = TableIndex(segment.name, segment.key_length)
        try:
            await self._load(segment, table)
        except BaseException:
            table.close()
            raise
        return table

    async def _load(self, segment: Segment, table: TableIndex) -> None:
        # A log that was always shorter never had an index: no lookup for the many small tables.
        if segment.length >= self._settings.table_index_min_bytes and self._open_index is not None:
            await self._open_existing(segment, table, self._open_index)
        is_head_scanned = table.index is None
        position = table.end = max(segment.start_offset, table.mark.indexed_offset)
        copies: dict[bytes, bytes] = {}
        carried = b""
        while position + len(carried) < segment.length:
            at = position + len(carried)
            data = carried + await self._reader.read_exactly(segment, at, min(_SCAN_LENGTH, segment.length - at))
            for entry in parse_entries(segment.name, data, position):
                table.scan(entry, copies)
            carried = data[table.end - position :]
            position = table.end
            scanned = position - max(table.mark.indexed_offset, segment.start_offset)
            if scanned > self.unindexed_bytes_max(segment) and self._open_index is not None:
                # The tail exceeds its limit: move it to the index during the scan.
                await self._apply_copies(table, copies, is_head_scanned)
                copies = {}
                await self.flush(segment, table)
            await asyncio.sleep(0)
        if carried:
            raise CorruptionError(segment.name, position, "the table's log ends inside an entry")
        await self._apply_copies(table, copies, is_head_scanned)
        table.finish_scan()

    @staticmethod
    async def _open_existing(segment: Segment, table: TableIndex, open_index: OpenIndex) -> None:
        index = table.index = open_index(segment)
        await index.open()
        mark = TableMark.decode(segment.name, index.mark)
        if mark.indexed_offset > segment.length:
            raise CorruptionError(
                segment.name,
                segment.length,
                f"its index covers {mark.indexed_offset} bytes, more than the log has recorded",
            )
        if mark.indexed_offset > segment.start_offset:
            table.is_index_open = True
            table.mark = mark
        else:
            # Never written, left from other settings, or of a log whose head was truncated since: the log is complete.
            table.close()

    @staticmethod
    async def _apply_copies(table: TableIndex, copies: dict[bytes, bytes], is_head_scanned: bool) -> None:
        remaining = iter(copies.items())
        while some := dict(islice(remaining, LOOKUP_COUNT)):
            assert table.index is not None
            stored = dict(zip(some, await table.index.get(list(some)), strict=True))
            table.apply_copies(some, stored, is_head_scanned=is_head_scanned)

    # Indexing.

    async def flush(self, segment: Segment, table: TableIndex) -> None:
        """Move the content of the tail at the call to the index, in one update, durably.

        One flush of a table runs at a time. If the index is not as this one left it, it is opened again, and entries
        that it already has are not written again.
        """
        async with table.flush_lock:
            if segment.is_deleted:
                return  # Its index is or will be freed, and must not be recreated.
            for attempt in range(1, self._settings.table_index_attempts + 1):
                try:
                    await self._flush(segment, table)
                    return
                except BadOffsetError as error:
                    if attempt == self._settings.table_index_attempts:
                        raise
                    logger.info("%s: its index has changed, opening it again: %s", segment.name, error)

    async def _flush(self, segment: Segment, table: TableIndex) -> None:
        if table.index is None:
            table.index = await self._make(segment)
            table.is_index_open = True
        elif not table.is_index_open:
            await self._reopen(segment, table)
        if table.frozen is None:
            if table.end <= table.mark.indexed_offset:
                return
            table.freeze()
        frozen = table.frozen
        assert frozen is not None
        if segment.durable_length < table.frozen_end:
            await self._barrier()
        await table.resolve(frozen)
        table.check_in_memory()
        mark = table.frozen_mark()
        table.is_index_open = False  # The outcome of the update is unknown until it returns.
        await table.index.update(frozen.slots, mark.encode())
        table.is_index_open = True
        table.commit(mark)

    async def _make(self, segment: Segment) -> SortedIndex:
        """Return an empty index. Stored content is left from an earlier time when the table had an index."""
        if self._open_index is None:
            raise UnsupportedOperationError(f"{segment.name}: the container has no storage for a table's index")
        index = self._open_index(segment)
        try:
            await index.open()
            cleared = CLEARING.encode()
            while found := await index.page(limit=LOOKUP_COUNT):
                await index.update({key: None for key, _ in found}, cleared)
        except BaseException:
            index.close()
            raise
        return index

    async def _reopen(self, segment: Segment, table: TableIndex) -> None:
        assert table.index is not None
        await table.index.open()
        table.check_in_memory()
        mark = TableMark.decode(segment.name, table.index.mark)
        table.is_index_open = True
        indexed_offset = max(mark.indexed_offset, 0)  # Cleared, and nothing written since.
        if indexed_offset == table.mark.indexed_offset:
            return
        if table.frozen is not None and indexed_offset == table.frozen_end:
            table.commit(mark)
        elif table.mark.indexed_offset < indexed_offset <= min(table.end, segment.durable_length):
            table.rebase(mark)
        else:
            table.is_index_open = False
            raise CorruptionError(
                segment.name,
                indexed_offset,
                f"its index covered {table.mark.indexed_offset} bytes of {table.end}, and now covers {indexed_offset}",
            )
