"""The history time index: which epoch was the current one at a time.

A leaf has the times at which `INDEX_LEAF_EPOCHS` successive epochs began, a root the first times of `INDEX_ROOT_LEAVES`
leaves: 32 million epochs, a year of a scale each second. A stream that lives longer has a second root, and so on.

The index follows the history by whole chunks: with the entry that fills a chunk the times of its epochs are written, in
the same request. Times since then are in the chunk that is being filled. Source: PDP-32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.controller.metadata import layout
from penstock.controller.metadata.history_records import HistoryChunk, TimeIndexNode
from penstock.controller.metadata.records import (
    HISTORY_CHUNK_EPOCHS,
    INDEX_LEAF_EPOCHS,
    INDEX_ROOT_LEAVES,
    EpochRecord,
)
from penstock.model.segments import VERSION_ABSENT

if TYPE_CHECKING:
    from penstock.controller.metadata.epoch_tables import EpochTables, Row


async def rows_of_chunk(tables: EpochTables, chunk: HistoryChunk) -> list[Row]:
    """Return the nodes that a chunk which is full now changes. 1 read and 1 write, 2 of each when it begins a leaf.

    What an early release, which had no index, left out of this leaf and of the root is read and added.
    """
    leaf_key = layout.index_leaf_key(chunk.first_epoch)
    leaf = await tables.tables.get(tables.metadata, leaf_key, TimeIndexNode)
    times = b"" if leaf is None else leaf.record.times
    first_epoch = chunk.first_epoch - chunk.first_epoch % INDEX_LEAF_EPOCHS
    for missing in range(first_epoch + len(times) // 8, chunk.first_epoch, HISTORY_CHUNK_EPOCHS):
        times += (await tables.need(layout.history_chunk_key(missing), HistoryChunk)).record.times
    rows: list[Row] = [
        (leaf_key, TimeIndexNode(times + chunk.times), VERSION_ABSENT if leaf is None else leaf.version)
    ]
    if leaf is None:
        rows.append(await _root_row(tables, first_epoch, (await tables.need_epoch(first_epoch)).created_ms))
    return rows


async def _root_row(tables: EpochTables, first_epoch: int, time_ms: int) -> Row:
    key = layout.index_root_key(first_epoch)
    root = await tables.tables.get(tables.metadata, key, TimeIndexNode)
    times = b"" if root is None else root.record.times
    root_epochs = INDEX_LEAF_EPOCHS * INDEX_ROOT_LEAVES
    root_epoch = first_epoch - first_epoch % root_epochs
    for missing in range(root_epoch + len(times) // 8 * INDEX_LEAF_EPOCHS, first_epoch, INDEX_LEAF_EPOCHS):
        times += TimeIndexNode.of([(await tables.need_epoch(missing)).created_ms]).times
    times += TimeIndexNode.of([time_ms]).times
    return key, TimeIndexNode(times), VERSION_ABSENT if root is None else root.version


async def epoch_at(tables: EpochTables, current: EpochRecord, time_ms: int) -> int:
    """Return the epoch that was the current one at a time; 0 for a time before the stream.

    3 reads at most: the chunk that is being filled, root and leaf. Where an early release left no index the epochs
    themselves are searched, the logarithm of their number of reads.
    """
    if time_ms >= current.created_ms:
        return current.epoch
    chunk = (await tables.need(layout.history_chunk_key(current.epoch), HistoryChunk)).record
    times = TimeIndexNode(chunk.times)
    if (found := times.find(time_ms)) >= 0:
        return min(current.epoch, chunk.first_epoch + found)
    low, high = 0, max(0, chunk.first_epoch - 1)
    root_epochs = INDEX_LEAF_EPOCHS * INDEX_ROOT_LEAVES
    for root_epoch in range(high - high % root_epochs, -1, -root_epochs):
        root = await tables.tables.get(tables.metadata, layout.index_root_key(root_epoch), TimeIndexNode)
        if root is None:
            break
        if (found := root.record.find(time_ms)) < 0:
            high = max(0, root_epoch - 1)
            continue
        low = root_epoch + found * INDEX_LEAF_EPOCHS
        high = min(high, low + INDEX_LEAF_EPOCHS - 1)
        leaf = await tables.tables.get(tables.metadata, layout.index_leaf_key(low), TimeIndexNode)
        if leaf is not None and leaf.record.count > high - low:
            return low + leaf.record.find(time_ms)
        break
    return await _searched(tables, low, high, time_ms)


async def _searched(tables: EpochTables, low: int, high: int, time_ms: int) -> int:
    """Return the last epoch from `low` to `high` that did not begin after a time, `low` when all did."""
    while low < high:
        middle = (low + high + 1) // 2
        if (await tables.need_epoch(middle)).created_ms <= time_ms:
            low = middle
        else:
            high = middle - 1
    return low
