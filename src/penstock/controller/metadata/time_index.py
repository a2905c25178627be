"""The history time index: which epoch was current at a given time.

A leaf holds the times at which `INDEX_LEAF_EPOCHS` successive epochs began, a root the first times of
`INDEX_ROOT_LEAVES` leaves: 32 million epochs, a year with one scale per second. A longer history has further roots.

The index follows the history by whole chunks: the entry that fills a chunk is written together with the index times of
the chunk's epochs. Later times are in the chunk being filled. Source: PDP-32.
"""

from __future__ import annotations

from typing import TypeVar

from penstock.controller.metadata import layout
from penstock.controller.metadata.history_records import HistoryChunk, TimeIndexNode
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import (
    HISTORY_CHUNK_EPOCHS,
    INDEX_LEAF_EPOCHS,
    INDEX_ROOT_LEAVES,
    EpochRecord,
)
from penstock.model.errors import NoSuchStreamError
from penstock.model.segments import VERSION_ABSENT

R = TypeVar("R")


class TimeIndex:
    """The index of the stream whose records are in `table`."""

    def __init__(self, records: RecordStore, table: str) -> None:
        self._records = records
        self._table = table

    async def _need(self, key: str, kind: type[R]) -> R:
        found = await self._records.get(self._table, key, kind)
        if found is None:
            raise NoSuchStreamError(f"table {self._table} has no record {key}: its stream is not completely created")
        return found.record

    async def _begin_of(self, epoch: int) -> int:
        return (await self._need(layout.epoch_key(epoch), EpochRecord)).created_ms

    async def rows_of_chunk(self, chunk: HistoryChunk) -> list[tuple[str, object, int]]:
        """Return the nodes that a full chunk changes: key, node, version. 1 read, 2 if it begins a leaf.

        Times missing in this leaf and the root, because early releases had no index, are read and added.
        """
        leaf_key = layout.index_leaf_key(chunk.first_epoch)
        leaf = await self._records.get(self._table, leaf_key, TimeIndexNode)
        times = b"" if leaf is None else leaf.record.times
        first_epoch = chunk.first_epoch - chunk.first_epoch % INDEX_LEAF_EPOCHS
        for missing in range(first_epoch + len(times) // 8, chunk.first_epoch, HISTORY_CHUNK_EPOCHS):
            times += (await self._need(layout.history_chunk_key(missing), HistoryChunk)).times
        node = TimeIndexNode(times + chunk.times)
        if leaf is not None:
            return [(leaf_key, node, leaf.version)]
        return [(leaf_key, node, VERSION_ABSENT), await self._root_row(first_epoch)]

    async def _root_row(self, first_epoch: int) -> tuple[str, object, int]:
        """Return the root with the first time of a new leaf added."""
        key = layout.index_root_key(first_epoch)
        root = await self._records.get(self._table, key, TimeIndexNode)
        times = b"" if root is None else root.record.times
        root_epoch = first_epoch - first_epoch % (INDEX_LEAF_EPOCHS * INDEX_ROOT_LEAVES)
        for epoch in range(root_epoch + len(times) // 8 * INDEX_LEAF_EPOCHS, first_epoch + 1, INDEX_LEAF_EPOCHS):
            times += TimeIndexNode.of([await self._begin_of(epoch)]).times
        return key, TimeIndexNode(times), VERSION_ABSENT if root is None else root.version

    async def epoch_at(self, current: EpochRecord, time_ms: int) -> int:
        """Return the epoch that was current at a time; 0 for a time before the stream.

        3 reads at most: the chunk being filled, root and leaf. Where the index of an early release is missing, the
        epochs are searched by bisection, with a logarithmic number of reads.
        """
        if time_ms >= current.created_ms:
            return current.epoch
        chunk = await self._need(layout.history_chunk_key(current.epoch), HistoryChunk)
        if (found := TimeIndexNode(chunk.times).find(time_ms)) >= 0:
            return min(current.epoch, chunk.first_epoch + found)
        low, high = 0, max(0, chunk.first_epoch - 1)
        root_epochs = INDEX_LEAF_EPOCHS * INDEX_ROOT_LEAVES
        for root_epoch in range(high - high % root_epochs, -1, -root_epochs):
            root = await self._records.get(self._table, layout.index_root_key(root_epoch), TimeIndexNode)
            if root is None:
                break
            if (found := root.record.find(time_ms)) < 0:
                high = max(0, root_epoch - 1)
                continue
            low = root_epoch + found * INDEX_LEAF_EPOCHS
            high = min(high, low + INDEX_LEAF_EPOCHS - 1)
            leaf = await self._records.get(self._table, layout.index_leaf_key(low), TimeIndexNode)
            if leaf is not None and leaf.record.count > high - low:
                return low + leaf.record.find(time_ms)
            break
        return await self._searched(low, high, time_ms)

    async def _searched(self, low: int, high: int, time_ms: int) -> int:
        """Return the last epoch from `low` to `high` that began at or before a time; `low` if none did."""
        while low < high:
            middle = (low + high + 1) // 2
            if await self._begin_of(middle) <= time_ms:
                low = middle
            else:
                high = middle - 1
        return low
