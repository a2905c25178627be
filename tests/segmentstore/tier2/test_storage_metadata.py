"""The metadata table in memory, transactions over it, and the cache of records."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    OutcomeUnknownError,
    StorageConflictError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.segments import VERSION_ABSENT, TableEntry, TableRemoval, TableUpdate
from penstock.segmentstore.tier2 import sorted_keys
from penstock.segmentstore.tier2.chunk_name import chunk_origin, new_chunk_name
from penstock.segmentstore.tier2.chunk_run import ChunkRun
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable, MetadataTransaction, RecordCache, VersionedRecord
from penstock.segmentstore.tier2.records import ChunkRecord, empty_segment, encode_record
from penstock.segmentstore.tier2.sorted_keys import SortedKeys

SEGMENT = empty_segment("s", 0, epoch=1, chunk_length_max=9, now_ms=0)
RUN = SEGMENT.run
CHUNK = ChunkRecord(run=RUN, start=0, name="c", length=3, epoch=1, block_length=4, block_checksums=(1,))


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
    for first in range(6):
        for last in range(5):
            page = await table.page(limit=9, first=bytes([first]), last=bytes([last]), token=bytes([1]))
            assert [entry.key for entry in page.entries] == [bytes([n]) for n in range(max(first, 2), last + 1)]


async def test_table_continues_from_a_snapshot() -> None:
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


@pytest.mark.parametrize("is_applied", [False, True])
async def test_a_commit_that_failed_is_undone_by_the_next_one_whatever_that_changes(is_applied: bool) -> None:
    """What is durable is what others saw here, although the commit may have got there before its caller gave it up."""
    durable: dict[bytes, bytes] = {}
    is_failing = False

    async def persist(updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> None:
        if is_applied or not is_failing:
            durable.update((bytes(update.key), bytes(update.value)) for update in updates)
            for removal in removals:
                durable.pop(removal.key, None)
        if is_failing:
            raise OutcomeUnknownError("no answer")

    table = MemoryMetadataTable(persist=persist)
    await table.commit([TableUpdate(b"a", b"1"), TableUpdate(b"b", b"1"), TableUpdate(b"c", b"1")], [])
    is_failing = True
    for number in (b"2", b"3"):
        with pytest.raises(OutcomeUnknownError):
            await table.commit([TableUpdate(b"a", number), TableUpdate(b"new", number)], [TableRemoval(b"b")])
    is_failing = False
    await table.commit([TableUpdate(b"c", b"4")], [])
    assert durable == {entry.key: entry.value for entry in table.entries()} == {b"a": b"1", b"b": b"1", b"c": b"4"}


async def test_concurrent_conditional_commits_have_one_winner() -> None:
    async def persist(updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> None:
        await asyncio.sleep(0)

    table = MemoryMetadataTable(persist=persist)
    results = await asyncio.gather(
        *(table.commit([TableUpdate(b"k", bytes([n]), VERSION_ABSENT)], []) for n in range(5)), return_exceptions=True
    )
    assert [isinstance(result, TableKeyVersionError) for result in results].count(True) == 4


async def test_only_its_own_transaction_reads_staged_changes() -> None:
    # SS-206
    table = MemoryMetadataTable()
    transaction = MetadataTransaction(table, epoch=1)
    assert await transaction.segment("s") is None
    transaction.put(SEGMENT)
    transaction.put(CHUNK)
    assert await transaction.segment("s") == SEGMENT
    assert await transaction.extent(RUN, 0) == CHUNK
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
    await table.commit([TableUpdate(CHUNK.key, encode_record(CHUNK))], [])
    cache = RecordCache(10)
    transaction = MetadataTransaction(table, epoch=1, cache=cache)
    chunk = await transaction.extent(RUN, 0)
    assert chunk is not None
    transaction.remove(chunk)
    assert await transaction.extent(RUN, 0) is None
    await transaction.commit()
    assert len(table.entries()) == 1
    assert await MetadataTransaction(table, epoch=1, cache=cache).extent(RUN, 0) is None


async def test_record_of_the_wrong_kind_is_corruption() -> None:
    """Under a key that only the other kind has, each record of a segment and of a chunk has: the key decides."""
    table = MemoryMetadataTable()
    await table.commit([TableUpdate(b"s", encode_record(CHUNK)), TableUpdate(CHUNK.key, encode_record(SEGMENT))], [])
    with pytest.raises(CorruptionError, match="belongs to"):
        await MetadataTransaction(table, epoch=1).segment("s")
    with pytest.raises(CorruptionError, match="belongs to"):
        await MetadataTransaction(table, epoch=1).extent(RUN, 0)
    with pytest.raises(CorruptionError, match="belongs to"):
        await MetadataTransaction(table, epoch=1).extents_down(RUN, 2, limit=3)


async def test_segment_record_is_read_before_it_is_written() -> None:
    with pytest.raises(InvalidArgumentError):
        MetadataTransaction(MemoryMetadataTable(), epoch=1).put(SEGMENT)


async def test_records_of_other_epochs_are_not_cached() -> None:
    table = MemoryMetadataTable()
    await table.commit([TableUpdate(r.key, encode_record(r)) for r in (SEGMENT, CHUNK)], [])
    for epoch, expected in ((2, 0), (1, 2)):
        cache = RecordCache(10)
        transaction = MetadataTransaction(table, epoch=epoch, cache=cache)
        await transaction.segment("s")
        await transaction.extent(RUN, 0)
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
    cache.forget([b"s"])
    table.gate = asyncio.Event()
    reading = asyncio.ensure_future(MetadataTransaction(table, epoch=1, cache=cache).segment("s"))
    await asyncio.sleep(0)
    newer = replace(SEGMENT, is_sealed=True)
    writer.put(newer)
    await writer.commit()
    cache.put(b"other", VersionedRecord(None, 0))
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


def chunk_at(start: int, length: int, run: ChunkRun = RUN) -> ChunkRecord:
    return ChunkRecord(
        run=run, start=start, name=f"c{start}", length=length, epoch=1, block_length=100, block_checksums=(1,)
    )


async def test_what_holds_an_offset_is_found_and_what_lies_before_it() -> None:
    """Without what is dead, and without what lies before that; records of other runs are not taken for it."""
    table = MemoryMetadataTable()
    dead = replace(chunk_at(0, 10), is_active=False)
    other = ChunkRun("s", 1, 1)
    records = (dead, chunk_at(10, 5), chunk_at(15, 20), chunk_at(35, 1), chunk_at(0, 99, other))
    await table.commit([TableUpdate(record.key, encode_record(record)) for record in records], [])
    for cache in (None, RecordCache(10)):
        for position, expected in ((35, [35, 15, 10]), (34, [15, 10]), (15, [15, 10]), (14, [10]), (9, []), (36, [])):
            transaction = MetadataTransaction(table, epoch=1, cache=cache)
            assert [extent.start for extent in await transaction.extents_down(RUN, position, limit=9)] == expected
            assert [e.start for e in await transaction.extents_down(RUN, position, limit=2)] == expected[:2]
            holding = await transaction.extent_holding(RUN, position)
            assert (holding.start if holding is not None else None) == next(iter(expected), None)
    assert cache is not None
    assert len(cache) == 3


def test_cache_finds_what_holds_an_offset_and_stays_in_bounds() -> None:
    cache = RecordCache(3)
    for start in (0, 10, 20, 30):
        record = chunk_at(start, 10)
        cache.put(record.key, VersionedRecord(record, start))

    def holding(position: int, run: ChunkRun = RUN) -> int | None:
        found = cache.holding(run, position)
        return None if found is None else found.version

    assert [holding(at) for at in (0, 9, 10, 19, 20, 39, 40)] == [None, None, 10, 10, 20, 30, None]
    assert holding(10, ChunkRun("s", 1, 1)) is None
    cache.get(chunk_at(10, 10).key)
    cache.put(b"s", VersionedRecord(SEGMENT, 5))
    assert [holding(at) for at in (10, 20, 30)] == [10, None, 30]
    assert holding(1 << 40) is None
    cache.forget([chunk_at(10, 10).key, b"unknown"])
    assert [holding(at) for at in (10, 30)] == [None, 30]


@given(st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=2)), max_size=60))
def test_sorted_keys_are_those_of_a_set(changes: list[tuple[bool, bytes]]) -> None:
    """With blocks of a few keys, so that these split and go."""
    model: set[bytes] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_keys, "_BLOCK_LENGTH_MAX", 3)
        keys = SortedKeys([b"m", b"a"])
        model |= {b"m", b"a"}
        for is_added, key in changes:
            if is_added and key not in model:
                keys.add(key)
                model.add(key)
            elif not is_added:
                keys.discard(key)
                model.discard(key)
            assert list(keys.from_key(b"")) == sorted(model)
            assert list(keys.from_key(key)) == sorted(k for k in model if k >= key)


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
