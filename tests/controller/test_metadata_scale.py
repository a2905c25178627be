"""Streams with an unbounded number of changes: the cost of operations, distances in the history, states at a time.

Shows S-025 to S-027, S-029, S-032, S-095 to S-097, S-100, S-102, S-104 and S-110, over many history chunks.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from dataclasses import replace
from typing import Any

import pytest

from penstock.controller import queries, stream_positions
from penstock.controller.metadata import epoch_tables, layout, time_index
from penstock.controller.metadata.codec import encode
from penstock.controller.metadata.history_records import HistoryChunk, HistoryEntry, TimeIndexNode
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import (
    HISTORY_CHUNK_EPOCHS,
    INDEX_LEAF_EPOCHS,
    INDEX_ROOT_LEAVES,
    EpochRecord,
    TruncationRecord,
)
from penstock.controller.metadata.scale_plan import duplicate_of
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.service import ControllerService
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import segment_id
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.stream_cuts import OFFSET_FUTURE
from penstock_simulation.epoch_costs import CountingMetadataStore, EpochCosts
from penstock_simulation.memory_store import MemoryMetadataStore
from support.cut_model import tiling
from support.in_process_cluster import InProcessCluster

KIB = 1024
#: The smallest sizes with which every border is met within a few dozen epochs.
CHUNK_EPOCHS, LEAF_EPOCHS, ROOT_LEAVES = 3, 6, 2


@pytest.fixture
def small_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """History chunks of 3 epochs, leaves of 6, roots of 2 leaves."""
    for module in (epoch_tables, layout, time_index, stream_positions):
        for name, value in (
            ("HISTORY_CHUNK_EPOCHS", CHUNK_EPOCHS),
            ("INDEX_LEAF_EPOCHS", LEAF_EPOCHS),
            ("INDEX_ROOT_LEAVES", ROOT_LEAVES),
        ):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


async def scale(service: ControllerService, to_seal: list[int], ranges: list[tuple[float, float]]) -> list[int]:
    """Scale to the end; return the ids of the new segments."""
    planned = await service.scale_stream("scope", "stream", to_seal, ranges)
    await service.idle()
    return [segment.id for segment in planned.created]


async def scaled_often(
    service: ControllerService,
    cluster: InProcessCluster,
    times: int,
    *,
    keep: set[int] = (),  # type: ignore[assignment]
) -> None:
    """Scale one segment (of keys that none of `keep` has) again and again, a second apart."""
    for _ in range(times):
        cluster.clock_ms += 1000
        (hot,) = [
            segment
            for segment in await service.current_segments("scope", "stream")
            if segment.id not in keep and segment.key_start == 0.5
        ]
        await scale(service, [hot.id], [(0.5, 1.0)])


async def tables_of(service: ControllerService) -> StreamTables:
    return service._catalog.tables_of("scope", "stream", await service._catalog.stream_id("scope", "stream"))  # type: ignore[arg-type]


async def counted(cluster: InProcessCluster) -> tuple[ControllerService, CountingMetadataStore]:
    """Start a controller whose requests are counted; return it with what counts."""
    store = CountingMetadataStore(SegmentsMetadataStore(cluster.store))
    service = cluster.build(metadata=store)
    await service.start()
    return service, store


async def test_what_operations_cost_does_not_grow_with_epochs() -> None:
    """From epoch 100 to the last, averaged over whole chunks: requests, rows and bytes of each operation."""
    costs = EpochCosts(HISTORY_CHUNK_EPOCHS)
    await costs.run(100 + 4 * HISTORY_CHUNK_EPOCHS)
    found = costs.averages
    assert costs.segments_left == 0
    for operation in ("scale", "current segments", "successors", "check a cut", "segments from a cut on", "truncate"):
        blocks = found[operation]
        assert len(blocks) == 4, operation
        for block in blocks:
            for value, first in zip(block.values(), blocks[0].values(), strict=True):
                assert 0.8 * first <= value <= 1.2 * first, (operation, blocks)
    # An index has more levels, and more in its nodes, until they are full. A scan of the background may fall into one.
    assert max(block.requests for block in found["segments at a time"]) < 8
    early = EpochCosts(HISTORY_CHUNK_EPOCHS)
    await early.run(100 + HISTORY_CHUNK_EPOCHS)
    for operation in ("seal", "delete"):
        (late,), (first,) = found[operation][-1:], early.averages[operation]  # type: ignore[assignment]
        for value, before in zip(late.values(), first.values(), strict=True):  # type: ignore[attr-defined]
            assert 0.8 * before <= value <= 1.2 * before, operation


async def test_a_never_split_segment_does_not_raise_the_cost_of_calls(
    cluster: InProcessCluster, small_records: None
) -> None:
    """A cut of a segment of epoch 0 and of the newest one spans one epoch, however many lie between their creations."""
    service, store = await counted(cluster)
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    reads = []
    for _ in range(2):
        await scaled_often(service, cluster, 40, keep={0})
        epoch = (await (await tables_of(service)).current_epoch()).epoch
        newest = segment_id(1 + epoch, epoch)
        cut = {0: 0, newest: 0}
        store.cost.rows_read = 0
        assert await service.is_stream_cut_valid("scope", "stream", cut)
        found = await service.segments_between("scope", "stream", cut, {})
        assert [segment.id for segment in found] == [0, newest]
        before = segment_id(epoch, epoch - 1)
        assert not await service.is_stream_cut_valid("scope", "stream", {before: 0, newest: 0})
        assert await service.is_stream_cut_valid("scope", "stream", {0: 0, before: 5, newest: OFFSET_FUTURE})
        assert not await service.is_stream_cut_valid("scope", "stream", {0: 0, segment_id(9999, epoch): 0})
        with pytest.raises(InvalidArgumentError, match="before its start"):
            await service.segments_between("scope", "stream", cut, {0: 0, before: 0})
        reads.append(store.cost.rows_read)
    assert reads[0] == reads[1] < 60


async def test_ranges_over_many_chunks_are_exact(
    cluster: InProcessCluster, service: ControllerService, small_records: None
) -> None:
    """S-100, S-102, S-104: from the head, from a cut, after a truncation; sizes from many shards."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    for _ in range(20):
        epoch = (await (await tables_of(service)).current_epoch()).epoch
        hot = segment_id(1 + epoch, epoch) if epoch else 1
        await cluster.store.append(f"scope/stream/{1 + epoch}.#epoch.{epoch}", bytes(10 + epoch))
        await scale(service, [hot], [(0.5, 1.0)])
    every = [0, 1, *(segment_id(1 + epoch, epoch) for epoch in range(1, 21))]

    async def between(start: dict[int, int], end: dict[int, int]) -> list[int]:
        return [segment.id for segment in await service.segments_between("scope", "stream", start, end)]

    def at(epoch: int) -> dict[int, int]:
        return {0: 0, every[1 + epoch]: 0}

    assert await between(at(0), {}) == every
    assert await between({}, at(7)) == every[:9]
    for start in range(0, 21, 4):
        for end in range(start, 21, 5):
            assert await between(at(start), at(end)) == [0, *every[1 + start : 2 + end]]
    await service.truncate_stream("scope", "stream", at(8))
    truncation = (await (await tables_of(service)).truncation()).record
    assert truncation.size_till_bytes == sum(10 + epoch for epoch in range(8))
    assert truncation == TruncationRecord(at(8), dict.fromkeys(at(8), 8), {}, truncation.size_till_bytes)
    assert await between(at(0), {}) == await between({}, at(20)) == [0, *every[9:]]
    assert await between(at(2), at(5)) == [0]
    left = {name for name in cluster.store.segments if name.startswith("scope/stream/")}
    assert left == {f"scope/stream/{segment & 0xFFFFFFFF}.#epoch.{segment >> 32}" for segment in [0, *every[9:]]}
    await service.truncate_stream("scope", "stream", at(20))
    truncation = (await (await tables_of(service)).truncation()).record
    assert truncation.size_till_bytes == sum(10 + epoch for epoch in range(20))


async def test_an_interrupted_truncation_deletes_all_earlier_segments(
    cluster: InProcessCluster, service: ControllerService, small_records: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-110: no record lists what must be deleted; the next controller, and the next truncation, find it."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    await scaled_often(service, cluster, 12, keep={0})
    delete = cluster.store.delete_segment

    async def stop_in_the_middle(segment: str) -> None:
        if segment == "scope/stream/6.#epoch.5":
            raise InvalidArgumentError("as if it could never be deleted")
        await delete(segment)

    monkeypatch.setattr(cluster.store, "delete_segment", stop_in_the_middle)
    with pytest.raises(InvalidArgumentError):
        await service.truncate_stream("scope", "stream", {0: 0, segment_id(9, 8): 0})
    await service.idle()
    record = (await (await tables_of(service)).truncation()).record
    assert (record.is_updating, record.previous_span) == (True, {})
    monkeypatch.setattr(cluster.store, "delete_segment", delete)
    await service.truncate_stream("scope", "stream", {0: 0, segment_id(11, 10): 0})
    left = {name for name in cluster.store.segments if name.startswith("scope/stream/")}
    assert left == {f"scope/stream/{1 + epoch}.#epoch.{epoch}" for epoch in (10, 11, 12)} | {"scope/stream/0.#epoch.0"}
    record = (await (await tables_of(service)).truncation()).record
    assert replace(record, size_till_bytes=0) == TruncationRecord(
        {0: 0, segment_id(11, 10): 0}, {0: 10, segment_id(11, 10): 10}
    )
    # Removed entries are searched from the cut on: nothing of the stream is left.
    await service.seal_stream("scope", "stream")
    await service.delete_stream("scope", "stream")
    assert not [name for name in cluster.store.segments if name.startswith("scope/stream/")]


async def test_the_epoch_at_a_time_is_found_by_the_index(
    cluster: InProcessCluster, small_records: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-025, S-026: before the first, at each, between, after the last; over chunks, leaves and roots."""
    service, store = await counted(cluster)
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    tables = await tables_of(service)
    for _ in range(5):
        await scaled_often(service, cluster, 8, keep={0})
        epochs = [await tables.epoch(number) for number in range((await tables.current_epoch()).epoch + 1)]
        for epoch in epochs:
            for time_ms in (epoch.created_ms - 1, epoch.created_ms, epoch.created_ms + 1):  # type: ignore[union-attr]
                expected = max([one.epoch for one in epochs if one.created_ms <= time_ms], default=0)  # type: ignore[union-attr]
                store.cost.requests = 0
                assert await tables.epoch_at(time_ms) == expected
                # Epoch, chunk and leaf, and one root for each `ROOT_LEAVES` leaves that are too late.
                assert store.cost.requests <= 4 + len(epochs) // (LEAF_EPOCHS * ROOT_LEAVES)
    segments = await service.queries.segments_at("scope", "stream", epochs[17].created_ms + 5)  # type: ignore[union-attr]
    assert [segment.id for segment in segments] == [0, segment_id(18, 17)]
    found = await service.queries.epochs("scope", "stream", epochs[5].created_ms, epochs[20].created_ms - 1, 99)  # type: ignore[union-attr]
    assert [epoch.epoch for epoch in found] == list(range(5, 20))
    found = await service.queries.epochs("scope", "stream", 0, cluster.clock_ms, 7)
    assert [epoch.epoch for epoch in found] == list(range(7))
    assert await service.queries.epochs("scope", "stream", 9, 8, 7) == []
    # The same as pages of changes, also where a page is cut so that it stays small.
    for limit in (1, 7, 2000):
        page = await service.queries.history("scope", "stream", None, limit)
        assert page.current_epoch == epochs[-1].epoch  # type: ignore[union-attr]
        first = max(0, len(epochs) - limit)
        assert [entry.epoch for entry in page.entries] == list(range(first, len(epochs)))
        active = {segment.id for segment in page.entries[0].created}
        for entry in page.entries:
            active = (active - set(entry.sealed)) | {segment.id for segment in entry.created}
            assert active == {segment.id for segment in epochs[entry.epoch].segments}  # type: ignore[union-attr]
            assert entry.created_ms == epochs[entry.epoch].created_ms  # type: ignore[union-attr]
    monkeypatch.setattr(queries, "HISTORY_SEGMENTS_PER_PAGE", 10)
    page = await service.queries.history("scope", "stream", 20, 16)
    assert [entry.epoch for entry in page.entries] == list(range(16, 20))
    monkeypatch.setattr(queries, "HISTORY_SEGMENTS_PER_PAGE", 0)
    page = await service.queries.history("scope", "stream", 20, 16)
    assert [entry.epoch for entry in page.entries] == [19]
    # S-097: what was truncated is not said to be there.
    await service.truncate_stream("scope", "stream", {0: 0, segment_id(31, 30): 0})
    segments = await service.queries.segments_at("scope", "stream", epochs[17].created_ms)  # type: ignore[union-attr]
    assert [segment.id for segment in segments] == [0]


async def test_a_stream_without_an_index_is_searched_and_indexed(
    cluster: InProcessCluster, service: ControllerService, small_records: None
) -> None:
    """An early release kept no index: the epochs are read instead, and missing entries of leaf and root are added."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    tables = await tables_of(service)

    async def check() -> Any:
        epochs = [await tables.epoch(number) for number in range((await tables.current_epoch()).epoch + 1)]
        for epoch in epochs:
            assert await tables.epoch_at(epoch.created_ms) == await tables.epoch_at(epoch.created_ms + 1) == epoch.epoch  # type: ignore[union-attr]
        return epochs

    await scaled_often(service, cluster, 31, keep={0})
    for epoch in range(0, 32, CHUNK_EPOCHS):
        await tables.records.remove(tables.metadata, layout.index_leaf_key(epoch), layout.index_root_key(epoch))
    await check()
    for _ in range(10):
        await scaled_often(service, cluster, 1, keep={0})
        epochs = await check()
    leaf = await tables.records.get(tables.metadata, layout.index_leaf_key(32), TimeIndexNode)
    assert leaf.record == TimeIndexNode.of([epoch.created_ms for epoch in epochs[30:36]])  # type: ignore[union-attr]
    root = await tables.records.get(tables.metadata, layout.index_root_key(36), TimeIndexNode)
    assert root.record == TimeIndexNode.of([epochs[36].created_ms])  # type: ignore[union-attr]


def test_an_index_of_a_year_of_a_scale_each_second_fits() -> None:
    """PDP-32: 31 million epochs. Root and leaves are built, each is below 64 KiB, and times lead to their epochs."""
    epochs = 365 * 24 * 3600
    rng = random.Random(1)
    start_ms = 1_700_000_000_000
    # Each second, with a fraction that differs from leaf to leaf.
    offsets_ms = [rng.randrange(1000) for _ in range(-(-epochs // INDEX_LEAF_EPOCHS))]

    def leaf(number: int) -> TimeIndexNode:
        first = number * INDEX_LEAF_EPOCHS
        last = min(epochs, first + INDEX_LEAF_EPOCHS)
        return TimeIndexNode.of(range(start_ms + first * 1000 + offsets_ms[number], start_ms + last * 1000, 1000))

    root, size_max, size_total, count = TimeIndexNode(), 0, 0, 0
    for number in range(len(offsets_ms)):
        node = leaf(number)
        size_bytes = len(encode(node))
        size_max, size_total, count = max(size_max, size_bytes), size_total + size_bytes, count + node.count
        root = TimeIndexNode(root.times + node.times[:8])
    assert count == epochs
    assert size_max <= 64 * KIB
    assert len(encode(root)) <= 64 * KIB
    assert root.count <= INDEX_ROOT_LEAVES
    assert size_total < epochs * 8.02
    assert len(encode(TimeIndexNode.of(array("q", bytes(8 * INDEX_ROOT_LEAVES))))) <= 64 * KIB
    for epoch in [0, epochs - 1, *(rng.randrange(epochs) for _ in range(500))]:
        time_ms = start_ms + epoch * 1000 + offsets_ms[epoch // INDEX_LEAF_EPOCHS]
        for late_ms in (0, 999 - offsets_ms[epoch // INDEX_LEAF_EPOCHS]):
            number = root.find(time_ms + late_ms)
            assert number * INDEX_LEAF_EPOCHS + leaf(number).find(time_ms + late_ms) == epoch


async def test_long_histories_are_read_in_pages_and_let_others_have_their_turn() -> None:
    """Each page has a bounded number of segments, also of epochs that are in their own records alone."""
    tables = RecordStore(MemoryMetadataStore())
    stream = StreamTables(tables, "s", "t", "id")
    await stream.create_tables()
    epochs = [EpochRecord(0, 0, tiling(500, 0, 0), 1)]
    for number in range(1, 30):
        epochs.append(duplicate_of(epochs[-1], number, number + 1, epochs[-1]))
    for epoch in epochs:
        await tables.put(stream.metadata, layout.epoch_key(epoch.epoch), epoch)
    entries = [HistoryEntry(epoch.epoch, 0, (), (), epoch.created_ms) for epoch in epochs]
    await tables.put(stream.metadata, layout.history_chunk_key(0), HistoryChunk.of(entries))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    pages = []
    async for page in stream.changes(0, 29):
        pages.append(sum(len(change.sealed) + len(change.created) for change in page))
    other.cancel()
    assert sum(pages) == 29 * 1000
    assert max(pages) <= 2000
    assert turns > len(pages)
