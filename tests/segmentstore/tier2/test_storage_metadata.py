"""The metadata table in memory, transactions over it, and the caches of records and chunk starts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    OutcomeUnknownError,
    StorageConflictError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.segments import VERSION_ABSENT, TableEntry, TableRemoval, TableUpdate
from penstock.segmentstore.tier2.chunk_index import ChunkIndex
from penstock.segmentstore.tier2.chunk_name import chunk_origin, new_chunk_name
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable, MetadataTransaction, RecordCache, VersionedRecord
from penstock.segmentstore.tier2.records import ChunkRecord, empty_segment, encode_record

SEGMENT = empty_segment("s", 0, epoch=1, chunk_length_max=9, now_ms=0)
CHUNK = ChunkRecord(name="c", length=3, next_chunk=None, epoch=1, block_length=4, block_checksums=(1,))


async def stored(table: MemoryMetadataTable, key: bytes = b"k") -> TableEntry | None:
    (entry,) = await table.get([key])
    return entry


async def test_conditions_of_the_table_hold_for_all_or_none() -> None:
    table = MemoryMetadataTable()
    (version,) = await table.commit([TableUpdate(b"k", b"1", VERSION_ABSENT)], [])
    with pytest.raises(TableKeyVersionError):
        await table.commit([TableUpdate(b"n", b"1"), TableUpdate(b"k", b"2", VERSION_ABSENT)], [])
    with pytest.raises(TableKeyVersionError):
        await table.commit([TableUpdate(b"n", b"1"), TableUpdate(b"k", b"2", version + 1)], [])
    with pytest.raises(TableKeyMissingError):
        await table.commit([TableUpdate(b"n", b"1", version)], [TableRemoval(b"k")])
    assert table.entries() == [TableEntry(b"k", b"1", version)]
    first, second = await table.commit([TableUpdate(b"k", b"2", version), TableUpdate(b"n", b"1")], [])
    assert version < first < second
    await table.commit([], [TableRemoval(b"k"), TableRemoval(b"gone")])
    assert table.entries() == [TableEntry(b"n", b"1", second)]


async def test_table_pages_show_every_entry_once() -> None:
    table = MemoryMetadataTable()
    await table.commit([TableUpdate(bytes([n]), b"") for n in range(5)], [])
    token, seen = b"", []
    while (page := await table.page(limit=2, token=token)).entries:
        seen += [entry.key for entry in page.entries]
        token = page.token
    assert seen == [bytes([n]) for n in range(5)]


async def test_table_goes_on_from_a_snapshot() -> None:
    table = MemoryMetadataTable()
    await table.commit([TableUpdate(b"a", b"1"), TableUpdate(b"b", b"2")], [])
    again = MemoryMetadataTable(table.entries())
    assert again.entries() == table.entries()
    (version,) = await again.commit([TableUpdate(b"c", b"3")], [])
    assert version > max(entry.version for entry in table.entries())


async def test_persisted_commit_is_visible_afterwards_and_a_failed_one_never() -> None:
    # R8.9
    seen: list[tuple[Sequence[TableUpdate], Sequence[TableRemoval]]] = []

    async def persist(updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> None:
        assert await stored(table) == before
        seen.append((updates, removals))
        if len(seen) == 2:
            raise OutcomeUnknownError("no answer")

    table = MemoryMetadataTable(persist=persist)
    before = None
    await table.commit([TableUpdate(b"k", b"1")], [])
    before = await stored(table)
    with pytest.raises(OutcomeUnknownError):
        await table.commit([TableUpdate(b"k", b"2")], [])
    assert await stored(table) == before
    await table.commit([], [TableRemoval(b"k")])
    assert [len(updates) for updates, _ in seen] == [1, 1, 0]


async def test_concurrent_conditional_commits_have_one_winner() -> None:
    async def persist(updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> None:
        await asyncio.sleep(0)

    table = MemoryMetadataTable(persist=persist)
    results = await asyncio.gather(
        *(table.commit([TableUpdate(b"k", bytes([n]), VERSION_ABSENT)], []) for n in range(5)), return_exceptions=True
    )
    assert [isinstance(result, TableKeyVersionError) for result in results].count(True) == 4


async def test_transaction_sees_what_it_staged_and_nobody_else_does() -> None:
    # SS-206
    table = MemoryMetadataTable()
    transaction = MetadataTransaction(table, epoch=1)
    assert await transaction.segment("s") is None
    transaction.put(SEGMENT)
    transaction.put(CHUNK)
    assert await transaction.segment("s") == SEGMENT
    assert await transaction.chunk("c") == CHUNK
    other = MetadataTransaction(table, epoch=1)
    assert await other.segment("s") is None
    await transaction.commit()
    assert await other.segment("s") is None  # As it was when first read.
    assert await MetadataTransaction(table, epoch=1).segment("s") == SEGMENT


async def test_second_of_two_transactions_on_one_record_conflicts() -> None:
    # SS-204, with and without a cache.
    for cache in (None, RecordCache(10)):
        table = MemoryMetadataTable()
        transactions = [MetadataTransaction(table, epoch=1, cache=cache) for _ in range(2)]
        for number, transaction in enumerate(transactions):
            await transaction.segment("s")
            transaction.put(replace(SEGMENT, chunk_length_max=number + 1))
        await transactions[0].commit()
        with pytest.raises(StorageConflictError) as raised:
            await transactions[1].commit()
        assert raised.value.key == "s"
        assert raised.value.is_retriable
        left = await MetadataTransaction(table, epoch=1, cache=cache).segment("s")
        assert left is not None
        assert left.chunk_length_max == 1


async def test_record_is_dead_before_it_is_removed() -> None:
    # SS-208: the table applies the put and loses the removal.
    class Forgetful(MemoryMetadataTable):
        async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
            return await super().commit(updates, [])

    table = Forgetful()
    await table.commit([TableUpdate(b"c", encode_record(CHUNK))], [])
    cache = RecordCache(10)
    transaction = MetadataTransaction(table, epoch=1, cache=cache)
    chunk = await transaction.chunk("c")
    assert chunk is not None
    transaction.remove(chunk)
    assert await transaction.chunk("c") is None
    await transaction.commit()
    assert len(table.entries()) == 1
    assert await MetadataTransaction(table, epoch=1, cache=cache).chunk("c") is None


async def test_record_of_the_wrong_kind_is_corruption() -> None:
    table = MemoryMetadataTable()
    await table.commit([TableUpdate(r.name.encode(), encode_record(r)) for r in (SEGMENT, CHUNK)], [])
    with pytest.raises(CorruptionError):
        await MetadataTransaction(table, epoch=1).segment("c")
    with pytest.raises(CorruptionError):
        await MetadataTransaction(table, epoch=1).chunk("s")


async def test_segment_record_is_read_before_it_is_written() -> None:
    with pytest.raises(InvalidArgumentError):
        MetadataTransaction(MemoryMetadataTable(), epoch=1).put(SEGMENT)


async def test_records_of_other_epochs_are_not_cached() -> None:
    table = MemoryMetadataTable()
    await table.commit([TableUpdate(r.name.encode(), encode_record(r)) for r in (SEGMENT, CHUNK)], [])
    for epoch, expected in ((2, 0), (1, 2)):
        cache = RecordCache(10)
        transaction = MetadataTransaction(table, epoch=epoch, cache=cache)
        await transaction.segment("s")
        await transaction.chunk("c")
        assert len(cache) == expected


async def test_slow_read_does_not_bring_an_older_record_back() -> None:
    class SlowTable(MemoryMetadataTable):
        gate: asyncio.Event | None = None

        async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
            found = await super().get(keys)
            if self.gate is not None:
                await self.gate.wait()
            return found

    table = SlowTable()
    cache = RecordCache(10)
    await table.commit([TableUpdate(b"s", encode_record(SEGMENT))], [])
    writer = MetadataTransaction(table, epoch=1, cache=cache)
    await writer.segment("s")
    cache.forget(["s"])
    table.gate = asyncio.Event()
    reading = asyncio.ensure_future(MetadataTransaction(table, epoch=1, cache=cache).segment("s"))
    await asyncio.sleep(0)
    newer = replace(SEGMENT, is_sealed=True)
    writer.put(newer)
    await writer.commit()
    cache.put("other", VersionedRecord(None, 0))
    table.gate.set()
    assert await reading == SEGMENT
    assert await MetadataTransaction(table, epoch=1, cache=cache).segment("s") == newer


async def test_cancelled_commit_leaves_the_segment_in_doubt_until_the_next_one() -> None:
    table = MemoryMetadataTable(persist=lambda updates, removals: asyncio.sleep(3600))
    cache = RecordCache(1)
    transaction = MetadataTransaction(table, epoch=1, cache=cache)
    await transaction.segment("s")
    transaction.put(SEGMENT)
    committing = asyncio.ensure_future(transaction.commit())
    await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert cache.is_doubtful("s")
    assert not cache.is_doubtful("t")
    calm = MemoryMetadataTable()
    transaction = MetadataTransaction(calm, epoch=1, cache=cache)
    await transaction.segment("s")
    transaction.put(SEGMENT)
    await transaction.commit()
    assert not cache.is_doubtful("s")
    cache.doubt("a")
    cache.doubt("b")  # One more than the cache may remember: all are.
    assert cache.is_doubtful("anything")
    cache.settle("anything")
    assert cache.is_doubtful("anything")


def test_chunk_index_finds_the_floor_and_stays_in_bounds() -> None:
    index = ChunkIndex(segments_max=2, chunks_max=4)
    starts = index.starts("a")
    for start in (20, 0, 10):
        starts.add(start, f"c{start}")
    assert [starts.floor(at) for at in (-1, 0, 9, 10, 25)] == [None, (0, "c0"), (0, "c0"), (10, "c10"), (20, "c20")]
    starts.add(10, "renamed")
    assert starts.floor(15) == (10, "renamed")
    index.trim("a", 10)
    assert starts.floor(5) is None
    assert index.chunk_count == 2
    other = index.starts("b")
    for start in range(6):
        other.add(start, "x")
    assert index.chunk_count <= 4
    assert len(other) == 4
    assert len(starts) == 0
    starts.add(1, "ignored: dropped from the index")
    assert len(starts) == 0
    index.starts("c")
    index.starts("d")
    assert len(other) == 0
    assert index.chunk_count == 0
    index.drop("c")
    index.drop("unknown")
    index.trim("unknown", 3)


def test_chunk_names_say_where_they_come_from() -> None:
    name = new_chunk_name("s/a/0.#epoch.0", epoch=3, offset=77, rng=random.Random(1))
    origin = chunk_origin(name)
    assert origin is not None
    assert (origin.segment, origin.epoch, origin.offset) == ("s/a/0.#epoch.0", 3, 77)
    marked = chunk_origin(new_chunk_name("s", epoch=3, offset=77, rng=random.Random(1), mark=b"\x00\xff4567"))
    assert marked is not None
    assert marked.mark == b"\x00\xff4567"
    assert new_chunk_name("s", epoch=1, offset=0, rng=random.Random(1)) == new_chunk_name(
        "s", epoch=1, offset=0, rng=random.Random(1)
    )
    for other in ("", "s/a", name[:-1], name + "x", name.replace("E-3", "E-x")):
        assert chunk_origin(other) is None
