"""Tables whose index is in long-term storage. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    StorageError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
    UnsupportedOperationError,
)
from penstock.model.segments import VERSION_ABSENT, VERSION_ANY, TableEntry, TableRemoval, TableUpdate
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.tables.entries import (
    SLOT_LENGTH,
    encode_put,
    encode_removal,
    pack_slot,
    parse_entries,
    unpack_slot,
)
from penstock.segmentstore.container.tables.index import TableBusyError, TableIndex, TableMark
from penstock_simulation.checks.invariants import check_tables
from penstock_simulation.memory_index import MemorySortedIndex
from support.containers import QUIET, evict_all, turns, until
from support.table_indexes import IndexDisk, IndexedIncarnations

TABLE = "s/_tables/a"
NEVER = 1 << 40
SETTINGS = replace(
    QUIET,
    table_compact_bytes=NEVER,
    table_compact_step_bytes=500,
    table_utilisation_percent=80,
    table_index_min_bytes=1000,
    table_index_max_bytes=NEVER,
    table_index_percent=NEVER,
    table_index_retry_s=0.01,
)


@pytest.fixture
async def lives() -> AsyncIterator[IndexedIncarnations]:
    made = IndexedIncarnations(SETTINGS)
    made.disk = IndexDisk(random.Random(1))
    yield made
    await made.close()


async def table_of(container: SegmentContainer, *, key_length: int = 0, is_system: bool = False) -> Segment:
    flags = SegmentFlags.TABLE | (SegmentFlags.SYSTEM if is_system else SegmentFlags.NONE)
    return await container.create(TABLE, flags=flags, key_length=key_length)


async def settled(container: SegmentContainer) -> None:
    """Let compaction and indexing end."""
    await until(lambda: not any(map(container.tables.is_busy, container.segments())))


def state_of(segment: Segment) -> TableIndex:
    assert segment.table is not None
    return segment.table


async def put(container: SegmentContainer, key: bytes, value: bytes, version: int = VERSION_ANY) -> int:
    (found,) = await container.tables.put(container.segment(TABLE), [TableUpdate(key, value, version)], -1)
    return found


async def remove(container: SegmentContainer, key: bytes, version: int = VERSION_ANY) -> None:
    await container.tables.remove(container.segment(TABLE), [TableRemoval(key, version)], -1)


async def get(container: SegmentContainer, key: bytes) -> bytes | None:
    (entry,) = await container.tables.get(container.segment(TABLE), [key])
    return None if entry is None else entry.value


async def entries(container: SegmentContainer, limit: int = 3) -> list[TableEntry]:
    segment = container.segment(TABLE)
    found: list[TableEntry] = []
    token = b""
    while (page := await container.tables.entries(segment, limit=limit, token=token)).entries:
        assert len(page.entries) <= limit
        found += page.entries
        token = page.token
    return found


async def keys(container: SegmentContainer, limit: int = 3) -> list[tuple[bytes, int]]:
    segment = container.segment(TABLE)
    found: list[tuple[bytes, int]] = []
    token = b""
    while (page := await container.tables.keys(segment, limit=limit, token=token)).keys:
        found += page.keys
        token = page.token
    return found


async def contents(container: SegmentContainer) -> dict[bytes, bytes]:
    return {entry.key: entry.value for entry in await entries(container)}


async def filled(
    lives: IndexedIncarnations, count: int = 100, value: bytes = b"v" * 20, key_length: int = 0
) -> SegmentContainer:
    """Return a container with a table whose `count` keys are all in the index, none in memory."""
    container = await lives.start()
    segment = await table_of(container, key_length=key_length)
    await container.tables.put(segment, [TableUpdate(b"%05d" % number, value) for number in range(count)], -1)
    await container.tables.flush_index(segment)
    assert container.tables.unindexed_bytes(segment) == 0
    assert not state_of(segment).tail.slots
    return container


# Against a model.


async def random_table(lives: IndexedIncarnations, seed: int, turns_count: int) -> None:
    rng = random.Random(seed)
    disk = lives.disk
    disk.cached_share = rng.choice([0.0, 0.5, 1.0])
    container = await lives.start()
    await table_of(container)
    model: dict[bytes, tuple[bytes, int]] = {}
    for turn in range(turns_count):
        segment = container.segment(TABLE)
        key = b"k%d" % rng.randrange(30)
        version = model[key][1] if key in model else VERSION_ABSENT
        kind = rng.random()
        if kind < 0.4:
            value = rng.randbytes(rng.randrange(40))
            number = await put(container, key, value, rng.choice([VERSION_ANY, version]))
            model[key] = value, number
        elif kind < 0.55:
            await remove(container, key, rng.choice([VERSION_ANY, version]))
            model.pop(key, None)
        elif kind < 0.65:
            with pytest.raises((TableKeyVersionError, TableKeyMissingError)):
                await put(container, key, b"never", version + 7)
        elif kind < 0.8:
            lives.fail_updates(rng.choice([[], [], ["before"], ["after"], ["conflict"], ["conflict", "after"]]))
            try:
                await container.tables.flush_index(segment)
            except StorageError:
                pass
            lives.fail_updates([])
        elif kind < 0.88:
            await container.tables.compact(segment)
        elif kind < 0.93:
            await container.flush()
            evict_all(container)
        elif kind < 0.97:
            container = await lives.restart(container)
        else:
            # A crash in the middle of a flush.
            disk.gate = asyncio.Event()
            flushing = asyncio.ensure_future(container.tables.flush_index(segment))
            await turns(rng.randrange(8))
            flushing.cancel()
            disk.gate.set()
            await asyncio.gather(flushing, return_exceptions=True)
            disk.gate = None
            if rng.random() < 0.5:
                container = await lives.restart(container)
        assert await get(container, key) == (model[key][0] if key in model else None)
        if turn % 10 == 0:
            found = {entry.key: (entry.value, entry.version) for entry in await entries(container, rng.randrange(1, 9))}
            assert found == model
            assert await keys(container, 4) == sorted((key, version) for key, (_, version) in model.items())
            info = await container.tables.info(container.segment(TABLE))
            assert info.entry_count == len(model)
            assert await check_tables(container) == []


@pytest.mark.parametrize("seed", range(8))
async def test_an_indexed_table_equals_a_dictionary(lives: IndexedIncarnations, seed: int) -> None:
    """SS-148, SS-155, SS-159, SS-161, SS-163: random updates, flushes of the index with every fault, compactions,
    evictions and crashes, also in the middle of a flush; answers, versions and live counts equal the model's."""
    await random_table(lives, seed, 250)
    assert lives.disk.update_count > 10


@pytest.mark.parametrize("seed", range(3))
async def test_a_table_over_a_real_index_equals_a_dictionary(lives: IndexedIncarnations, seed: int) -> None:
    """SS-148, SS-159: the same over the index that servers use, with small pages."""
    lives.is_real = True
    await random_table(lives, seed, 200)
    assert lives.storages[TABLE].calls["append"] > 10


@pytest.mark.parametrize("seed", range(4))
async def test_concurrent_callers_of_an_indexed_table_lose_nothing(lives: IndexedIncarnations, seed: int) -> None:
    """SS-151, SS-160: ten callers count keys up by conditional updates while the index is flushed and the log is
    compacted all the time; exactly the successful updates count."""
    rng = random.Random(seed)
    lives.disk.cached_share = rng.choice([0.0, 0.7])
    container = await lives.start(
        table_compact_bytes=500, table_index_min_bytes=300, table_index_max_bytes=600, table_compact_step_bytes=200
    )
    segment = await table_of(container)
    counts = dict.fromkeys((b"a", b"b", b"c", b"d", b"e"), 0)
    refused = 0

    async def count(rng: random.Random) -> None:
        nonlocal refused
        for _ in range(40):
            key = rng.choice(list(counts))
            (entry,) = await container.tables.get(segment, [key])
            value, version = (int(entry.value), entry.version) if entry is not None else (0, VERSION_ABSENT)
            try:
                await put(container, key, b"%d" % (value + 1), version)
            except TableKeyVersionError:
                refused += 1
            else:
                counts[key] += 1

    # How often an index is flushed before compaction makes that unnecessary is up to the threads: continue until it
    # was.
    for turn in range(50):
        await asyncio.gather(*(count(random.Random(f"{seed} {turn} {number}")) for number in range(10)))
        if lives.disk.update_count > 3:
            break
    await settled(container)
    assert {key: int(value) for key, value in (await contents(container)).items()} == counts
    assert refused
    assert segment.start_offset > 0
    assert lives.disk.update_count > 3
    assert await check_tables(container) == []
    container = await lives.restart(container)
    assert {key: int(value) for key, value in (await contents(container)).items()} == counts


# Conditions.


async def test_conditions_are_checked_for_keys_in_the_index_only(lives: IndexedIncarnations) -> None:
    """SS-149, SS-150: none of the keys is in memory, and the look-up takes a read; a refused batch writes nothing."""
    lives.disk.cached_share = 0.0
    container = await filled(lives)
    segment = container.segment(TABLE)
    length = segment.length
    (entry,) = await container.tables.get(segment, [b"00007"])
    assert entry is not None
    with pytest.raises(TableKeyVersionError) as caught:
        await put(container, b"00007", b"", VERSION_ABSENT)
    assert caught.value.actual == entry.version
    with pytest.raises(TableKeyMissingError):
        await put(container, b"new", b"", 5)
    updates = [TableUpdate(b"%05d" % number, b"x") for number in range(9)]
    with pytest.raises(TableKeyVersionError):
        await container.tables.put(segment, [*updates, TableUpdate(b"00009", b"x", entry.version)], -1)
    with pytest.raises(TableKeyMissingError):
        await container.tables.remove(segment, [TableRemoval(b"00001"), TableRemoval(b"new", 3)], -1)
    await remove(container, b"new")
    assert segment.length == length
    await put(container, b"00007", b"y", entry.version)
    assert await get(container, b"00007") == b"y"


async def test_a_condition_is_looked_up_again_when_the_index_moves_meanwhile(lives: IndexedIncarnations) -> None:
    """The key goes into the tail and from there into the index while an insert of it waits for its look-up."""
    lives.disk.cached_share = 0.0
    container = await filled(lives)
    segment = container.segment(TABLE)
    lives.disk.lookup_gate = asyncio.Event()
    inserting = asyncio.ensure_future(put(container, b"new", b"second", VERSION_ABSENT))
    await turns(3)
    gate, lives.disk.lookup_gate = lives.disk.lookup_gate, None
    await put(container, b"new", b"first")
    await container.tables.flush_index(segment)
    assert not state_of(segment).tail.slots
    gate.set()
    with pytest.raises(TableKeyVersionError):
        await inserting
    assert await get(container, b"new") == b"first"


async def test_unconditional_puts_cost_no_look_up(lives: IndexedIncarnations) -> None:
    """Their keys are counted when the count is requested, or when they are indexed."""
    lives.disk.cached_share = 0.0
    container = await filled(lives)
    segment = container.segment(TABLE)
    await container.tables.put(segment, [TableUpdate(b"%05d" % number, b"x") for number in range(50, 150)], -1)
    assert lives.disk.lookup_count == 0
    assert (await container.tables.info(segment)).entry_count == 150
    assert lives.disk.lookup_count == 100
    await container.tables.info(segment)
    assert lives.disk.lookup_count == 100


# Loading.


async def test_only_the_unindexed_part_is_scanned_after_a_restart(lives: IndexedIncarnations) -> None:
    """SS-154, SS-156: entries on top of an index, all gets at once; they wait, and see the newest values only."""
    container = await filled(lives, 2000)
    segment = container.segment(TABLE)
    indexed = segment.length
    await container.tables.put(segment, [TableUpdate(b"%05d" % number, b"new") for number in range(0, 2000, 2)], -1)
    await container.flush()
    container = await lives.restart(container)
    evict_all(container)
    segment = container.segment(TABLE)
    reads: list[int] = []
    read = container.reader.read_exactly

    async def noting(segment: Segment, offset: int, length: int) -> bytes:
        if segment.name == TABLE and segment.table is None:
            reads.append(offset)
        return await read(segment, offset, length)

    container.reader.read_exactly = noting  # type: ignore[method-assign]  # to see what is read
    found = await asyncio.gather(*(container.tables.get(segment, [b"%05d" % number]) for number in range(0, 2000, 10)))
    assert {entry.value for (entry,) in found if entry is not None} == {b"new"}
    assert reads
    assert min(reads) == indexed
    assert (await container.tables.info(segment)).entry_count == 2000


async def test_a_copy_does_not_hide_a_newer_value_after_a_restart(lives: IndexedIncarnations) -> None:
    """SS-155: copies of indexed keys, one of them then overwritten, another removed, all beyond the index."""
    container = await filled(lives, 40)
    segment = container.segment(TABLE)
    await container.tables.put(segment, [TableUpdate(b"%05d" % number, b"w") for number in range(30)], -1)
    await container.tables.flush_index(segment)
    await container.tables.compact(segment)
    assert segment.start_offset > 0
    assert segment.start_offset <= state_of(segment).mark.indexed_offset
    data = await container.reader.read_exactly(segment, segment.start_offset, segment.length - segment.start_offset)
    copied = [entry for entry in parse_entries(TABLE, data, segment.start_offset) if entry.is_copy]
    assert len(copied) >= 3
    assert all(entry.offset >= state_of(segment).mark.indexed_offset for entry in copied)
    await put(container, copied[0].key, b"newest")
    await remove(container, copied[1].key)
    container = await lives.restart(container)
    found = {entry.key: entry for entry in await entries(container)}
    assert found[copied[0].key].value == b"newest"
    assert copied[1].key not in found
    assert found[copied[2].key].version == copied[2].version
    assert len(found) == 39
    assert await check_tables(container) == []


def test_a_copy_counts_only_where_its_original_would() -> None:
    """SS-155, R6.4 and R6.10: copies after a newer put, after a removal, after their original, and alone."""
    log = b"".join(
        [
            encode_put(b"newer", b"1"),
            encode_put(b"newer", b"2"),
            encode_put(b"same", b"1"),
            encode_put(b"gone", b"1"),
            encode_removal(b"gone"),
            encode_put(b"newer", b"1", version=0),
            encode_put(b"gone", b"1", version=67),
            encode_put(b"same", b"1", version=46),
            encode_put(b"alone", b"1", version=5),
        ]
    )
    entries = list(parse_entries("t", log, 0))
    assert [entry.version for entry in entries] == [0, 23, 46, 68, 90, 0, 67, 46, 5]
    table = TableIndex("t", 0)
    copies: dict[bytes, bytes] = {}
    for entry in entries:
        table.scan(entry, copies)
    table.finish_scan()
    assert not copies
    found = {key: unpack_slot(slot) for key, slot in table.tail.slots.items() if slot is not None}
    assert {key: (slot.version, slot.offset) for key, slot in found.items()} == {
        b"newer": (23, 23), b"same": (46, entries[7].offset), b"alone": (5, entries[8].offset)
    }  # fmt: skip
    assert len(table.tail.slots) == 3


def test_a_copy_after_the_index_counts_if_the_index_has_its_original() -> None:
    """SS-155, R6.4: otherwise the key was removed, or written again, after it was copied."""
    entries = list(parse_entries("t", b"".join(encode_put(key, b"1", 7) for key in (b"gone", b"newer", b"kept")), 500))
    table = TableIndex("t", 0)
    copies: dict[bytes, bytes] = {}
    table.index = MemorySortedIndex(value_length=SLOT_LENGTH)
    for entry in entries:
        table.scan(entry, copies)
    assert not table.tail.slots
    stored = {b"gone": None, b"newer": pack_slot(8, 8, 23), b"kept": pack_slot(7, 7, 22)}
    table.apply_copies(copies, stored, is_head_scanned=False)
    assert table.tail.slots == {b"kept": entries[2].slot}
    assert (table.tail.count_delta, table.tail.live_bytes_delta) == (0, 0)


async def test_calls_wait_for_a_table_that_is_being_loaded_but_not_forever(lives: IndexedIncarnations) -> None:
    container = await filled(lives)
    await container.flush()
    container = await lives.restart(container, table_load_timeout_s=0.02)
    evict_all(container)
    lives.disk.cached_share = 0.0
    segment = container.segment(TABLE)
    gate = asyncio.Event()
    load = container.tables._indexer.load

    async def slow(segment: Segment) -> TableIndex:
        await gate.wait()
        return await load(segment)

    container.tables._indexer.load = slow  # type: ignore[method-assign]  # to hold it up
    with pytest.raises(TableBusyError) as caught:
        await get(container, b"00001")
    assert caught.value.is_retriable
    assert container.tables.is_busy(segment)
    gate.set()
    assert await get(container, b"00001") == b"v" * 20


async def test_an_index_that_covers_more_than_the_log_is_corruption(lives: IndexedIncarnations) -> None:
    container = await filled(lives)
    lives.disk.stored[TABLE].mark = TableMark(indexed_offset=1 << 40).encode()
    container = await lives.restart(container)
    with pytest.raises(CorruptionError):
        await get(container, b"00001")


@pytest.mark.parametrize("mark", [b"\1", b"\1" + bytes(31), bytes(33)])
def test_an_invalid_mark_is_corruption(mark: bytes) -> None:
    with pytest.raises(CorruptionError):
        TableMark.decode("t", mark)


async def test_more_unindexed_bytes_than_may_be_in_memory_are_indexed_while_they_are_scanned(
    lives: IndexedIncarnations,
) -> None:
    """SS-157: the limit was higher before the restart; the scan moves keys on as it goes, and the answers are right."""
    container = await lives.start(table_index_min_bytes=NEVER)
    segment = await table_of(container)
    for number in range(3000):
        await container.tables.put(segment, [TableUpdate(b"%05d" % (number % 2500), b"%d" % number * 60)], -1)
    await remove(container, b"00001")
    await settled(container)
    assert segment.length > 600_000
    container = await lives.restart(container, table_index_min_bytes=1000, table_unindexed_bytes_max=100_000)
    segment = container.segment(TABLE)
    assert await get(container, b"00001") is None
    assert await get(container, b"00002") == b"2502" * 60
    assert container.tables.unindexed_bytes(segment) <= 300_000
    assert lives.disk.update_count >= 2
    assert len(await contents(container)) == 2499
    assert await check_tables(container) == []


async def test_a_compacted_copy_survives_a_scan_in_pieces(lives: IndexedIncarnations) -> None:
    """A table without an index, compacted, is loaded under a limit that makes it move keys to an index meanwhile."""
    container = await lives.start(table_index_min_bytes=NEVER)
    segment = await table_of(container)
    version = await put(container, b"kept", b"v")
    for number in range(2):
        await container.tables.put(
            segment, [TableUpdate(b"%05d" % key, b"%d" % number * 300) for key in range(2000)], -1
        )
    await container.tables.compact(segment)
    assert segment.start_offset > version
    container = await lives.restart(container, table_index_min_bytes=1000, table_unindexed_bytes_max=100_000)
    (entry,) = await container.tables.get(container.segment(TABLE), [b"kept"])
    assert entry is not None
    assert entry.version == version
    assert lives.disk.update_count >= 1
    assert await check_tables(container) == []


async def test_an_index_from_other_times_is_cleared_before_a_new_one_is_made(lives: IndexedIncarnations) -> None:
    """The threshold was lower once; what that index says must not come back for keys removed since."""
    container = await filled(lives)
    container = await lives.restart(container, table_index_min_bytes=NEVER)
    await remove(container, b"00001")
    await container.tables.compact(container.segment(TABLE))
    lives.disk.faults = ["after"]
    with pytest.raises(StorageError):
        await container.tables.flush_index(container.segment(TABLE))
    assert TableMark.decode(TABLE, lives.disk.stored[TABLE].mark).indexed_offset == -1
    container = await lives.restart(container, table_index_min_bytes=1000)
    assert await get(container, b"00001") is None
    await container.tables.flush_index(container.segment(TABLE))
    assert len(lives.disk.stored[TABLE].entries) == 99
    container = await lives.restart(container)
    assert await get(container, b"00001") is None
    assert await check_tables(container) == []


# Flushes.


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_flush_with_unknown_outcome_is_found_out_and_repeated(lives: IndexedIncarnations, fault: str) -> None:
    """Reads and updates continue meanwhile; keys are counted once."""
    container = await filled(lives)
    segment = container.segment(TABLE)
    await put(container, b"new", b"1")
    await remove(container, b"00003")
    lives.disk.faults = [fault]
    with pytest.raises(StorageError):
        await container.tables.flush_index(segment)
    await put(container, b"new", b"2")
    assert await get(container, b"new") == b"2"
    assert await get(container, b"00003") is None
    assert (await container.tables.info(segment)).entry_count == 100
    await container.tables.flush_index(segment)
    assert container.tables.unindexed_bytes(segment) == 0
    assert list(lives.disk.last_changes) == [b"new"]
    assert lives.disk.update_count == (3 if fault == "after" else 4)
    assert TableMark.decode(TABLE, lives.disk.stored[TABLE].mark).live_count == 100
    assert await check_tables(container) == []


async def test_two_flushes_at_once_write_once(lives: IndexedIncarnations) -> None:
    container = await filled(lives)
    segment = container.segment(TABLE)
    await put(container, b"new", b"1")
    count = lives.disk.update_count
    await asyncio.gather(container.tables.flush_index(segment), container.tables.flush_index(segment))
    assert lives.disk.update_count == count + 1


async def test_a_flush_that_meets_anothers_update_continues_from_there(lives: IndexedIncarnations) -> None:
    """SS-159: the other incarnation has indexed a part of what this one was about to; the rest is added to it."""
    container = await filled(lives)
    segment = container.segment(TABLE)
    await put(container, b"a", b"1")
    middle = segment.length
    stored = lives.disk.stored[TABLE]
    slot = state_of(segment).tail.slots[b"a"]
    assert slot is not None
    await put(container, b"b", b"2")
    await remove(container, b"00001")
    mark = TableMark.decode(TABLE, stored.mark)
    stored.entries = {**stored.entries, b"a": slot}
    stored.mark = replace(
        mark, indexed_offset=middle, live_count=101, live_bytes=mark.live_bytes + 19, entry_count=101
    ).encode()
    stored.version += 1
    await container.tables.flush_index(segment)
    assert TableMark.decode(TABLE, stored.mark) == TableMark(segment.length, 101, state_of(segment).live_bytes, 103)
    assert await check_tables(container) == []


async def test_an_index_that_went_back_is_corruption(lives: IndexedIncarnations) -> None:
    container = await filled(lives)
    await put(container, b"a", b"1")
    stored = lives.disk.stored[TABLE]
    stored.mark = replace(TableMark.decode(TABLE, stored.mark), indexed_offset=10).encode()
    stored.version += 1
    with pytest.raises(CorruptionError):
        await container.tables.flush_index(container.segment(TABLE))


async def test_only_durable_entries_are_indexed(lives: IndexedIncarnations) -> None:
    container = await filled(lives)
    segment = container.segment(TABLE)
    lives.logs.hold_appends(0)
    putting = asyncio.ensure_future(put(container, b"new", b"1"))
    await turns(3)
    flushing = asyncio.ensure_future(container.tables.flush_index(segment))
    await turns(10)
    assert b"new" not in lives.disk.stored[TABLE].entries
    lives.logs.release_appends(0)
    await asyncio.gather(putting, flushing)
    assert b"new" in lives.disk.stored[TABLE].entries


async def test_small_tables_get_no_index(lives: IndexedIncarnations) -> None:
    """A table that changes all the time but has few keys is compacted instead; nothing is ever looked up for it."""
    container = await lives.start(table_compact_bytes=1000, table_index_max_bytes=NEVER)
    await table_of(container)
    for number in range(300):
        await put(container, b"k%d" % (number % 3), bytes(40))
    await settled(container)
    container = await lives.restart(container)
    assert len(await contents(container)) == 3
    assert lives.disk.update_count == 0
    segment = container.segment(TABLE)
    assert not container.tables.is_index_due(segment)


async def test_without_a_place_for_indexes_tables_stay_in_memory(lives: IndexedIncarnations) -> None:
    container = await lives.start()
    container.tables._indexer._open_index = None
    segment = await table_of(container)
    await container.tables.put(segment, [TableUpdate(b"%05d" % number, b"x" * 50) for number in range(100)], -1)
    assert not container.tables.is_index_due(segment)
    with pytest.raises(UnsupportedOperationError):
        await container.tables.flush_index(segment)
    assert (await container.tables.info(segment)).entry_count == 100


# Limits.


async def test_updates_wait_for_an_index_that_lags_and_reads_do_not(lives: IndexedIncarnations) -> None:
    """SS-157, SS-158: storage takes no updates; puts wait, then time out; once it does they go through."""
    container = await lives.start(
        table_index_min_bytes=500,
        table_index_max_bytes=600,
        table_unindexed_bytes_max=2000,
        table_index_wait_timeout_s=0.05,
    )
    segment = await table_of(container)
    lives.disk.faults = ["before"] * 1000
    number = 0

    async def put_many() -> None:
        nonlocal number
        for number in range(1000):
            await put(container, b"%05d" % number, b"x" * 50)

    with pytest.raises(TableBusyError) as caught:
        await put_many()
    assert caught.value.is_retriable
    assert 10 < number < 100
    assert container.tables.unindexed_bytes(segment) < 2100
    with pytest.raises(TableBusyError):
        await remove(container, b"00001")
    assert await get(container, b"00001") == b"x" * 50
    assert len(await contents(container)) == number
    waiting = asyncio.ensure_future(put(container, b"late", b"1"))
    await turns(5)
    assert not waiting.done()
    lives.disk.faults = []
    await waiting
    await settled(container)
    assert (await container.tables.info(segment)).entry_count == number + 1
    assert container.tables.unindexed_bytes(segment) < 600


async def test_a_lagging_system_table_is_reported_loudly(
    lives: IndexedIncarnations, caplog: pytest.LogCaptureFixture
) -> None:
    """It has its own, higher limit."""
    container = await lives.start(
        table_index_max_bytes=600,
        table_unindexed_bytes_max=600,
        table_unindexed_bytes_max_system=1200,
        table_index_wait_timeout_s=0.02,
    )
    segment = await table_of(container, is_system=True)
    lives.disk.faults = ["before"] * 1000

    async def put_many() -> None:
        for number in range(1000):
            await put(container, b"%05d" % number, b"x" * 50)

    with caplog.at_level(logging.ERROR), pytest.raises(TableBusyError):
        await put_many()
    assert 1200 <= segment.length < 1300
    assert "updates wait" in caplog.text


async def test_memory_and_cost_of_a_big_table_stay_bounded(lives: IndexedIncarnations) -> None:
    """50 000 keys, twice over: the tail never holds more than the thresholds let it, no update reads the log."""
    lives.disk.cached_share = 1.0
    container = await lives.start(
        table_index_min_bytes=10_000, table_index_max_bytes=100_000, table_index_percent=12,
        table_compact_bytes=200_000, table_compact_step_bytes=50_000,
    )  # fmt: skip
    segment = await table_of(container)
    longest = 0
    for number in range(0, 100_000, 100):
        updates = [TableUpdate(b"%06d" % ((number + at) * 7919 % 50_000), b"0123456789") for at in range(100)]
        await container.tables.put(segment, updates, -1)
        table = state_of(segment)
        held = len(table.tail.slots) + (len(table.frozen.slots) if table.frozen is not None else 0)
        longest = max(longest, held)
    await settled(container)
    assert longest * 33 < 350_000
    assert state_of(segment).mark.indexed_offset > 2_000_000
    assert segment.start_offset > 0
    info = await container.tables.info(segment)
    assert info.entry_count == 50_000
    container = await lives.restart(container)
    assert (await container.tables.info(container.segment(TABLE))).entry_count == 50_000
    table = state_of(container.segment(TABLE))
    assert len(table.tail.slots) * 33 < 350_000


async def test_a_released_table_is_loaded_again(lives: IndexedIncarnations) -> None:
    container = await filled(lives)
    segment = container.segment(TABLE)
    await put(container, b"new", b"1")
    assert not container.tables.is_busy(segment)
    container.tables.release(segment)
    assert container.tables.unindexed_bytes(segment) == 0
    assert not container.tables.is_index_due(segment)
    assert await get(container, b"new") == b"1"
    assert (await container.tables.info(segment)).entry_count == 101


# Compaction.


async def test_compaction_never_passes_the_index(lives: IndexedIncarnations) -> None:
    """SS-162: all of what the index covers is dead: no copy, the head goes, and not a byte beyond."""
    container = await filled(lives, 20)
    segment = container.segment(TABLE)
    for key in range(20):
        await remove(container, b"%05d" % key)
    await container.tables.flush_index(segment)
    indexed = segment.length
    for number in range(20):
        await put(container, b"x", b"%d" % number)
    length = segment.length
    await container.tables.compact(segment)
    assert (segment.start_offset, segment.length) == (indexed, length)
    container = await lives.restart(container)
    assert await contents(container) == {b"x": b"19"}
    assert await check_tables(container) == []


async def test_a_copied_key_can_be_updated_with_its_version(lives: IndexedIncarnations) -> None:
    """SS-160: the conditional update comes while the copy is being made; one of both is in time, and the version
    from before is right either way."""
    for delay in range(12):
        lives.disk.stored.clear()
        container = await lives.start()
        segment = await table_of(container)
        version = await put(container, b"kept", b"v" * 50)
        for number in range(30):
            await put(container, b"busy", b"%d" % number * 20)
        await container.tables.flush_index(segment)
        compacting = asyncio.ensure_future(container.tables.compact(segment))
        await turns(delay)
        await put(container, b"kept", b"w", version)
        await compacting
        assert segment.start_offset > version
        with pytest.raises(TableKeyVersionError):
            await put(container, b"kept", b"x", version)
        assert await get(container, b"kept") == b"w"
        assert await check_tables(container) == []
        await container.delete(TABLE)


@pytest.mark.parametrize("key_length", [0, 5])
async def test_a_get_that_compaction_overtakes_finds_the_copy_of_an_indexed_key(
    lives: IndexedIncarnations, key_length: int
) -> None:
    """SS-161, SS-169: the index's answer points at bytes that are cut off before they are read."""
    container = await filled(lives, 20, key_length=key_length)
    segment = container.segment(TABLE)
    await container.tables.put(segment, [TableUpdate(b"%05d" % key, bytes(20)) for key in range(1, 20)], -1)
    await container.tables.flush_index(segment)
    table = state_of(segment)
    slot = table.slot(b"00000", await table.load([b"00000"]))
    await container.tables.compact(segment)
    assert segment.start_offset > 0
    (entry,) = await container.tables._reads.entries(segment, [(b"00000", slot)])
    assert entry == TableEntry(b"00000", b"v" * 20, 0)
    await remove(container, b"00000")
    assert await container.tables._reads.entries(segment, [(b"00000", slot)]) == [None]


async def test_a_compaction_ends_when_its_table_is_released(lives: IndexedIncarnations) -> None:
    """It must not copy entries on the basis of state that is no longer updated."""
    lives.disk.cached_share = 0.0
    container = await filled(lives, 20)
    segment = container.segment(TABLE)
    for _ in range(2):
        await container.tables.put(segment, [TableUpdate(b"%05d" % key, bytes(20)) for key in range(1, 20)], -1)
        await container.tables.flush_index(segment)
    lives.disk.lookup_gate = asyncio.Event()
    compacting = asyncio.ensure_future(container.tables.compact(segment))
    await turns(5)
    assert not compacting.done()
    gate, lives.disk.lookup_gate = lives.disk.lookup_gate, None
    container.tables.release(segment)
    await put(container, b"00000", b"newest")
    length = segment.length
    gate.set()
    await compacting
    assert (segment.start_offset, segment.length) == (0, length)
    assert await check_tables(container) == []


async def test_a_lookup_is_repeated_when_the_frozen_tail_is_replaced_meanwhile(lives: IndexedIncarnations) -> None:
    """The key was found in the frozen tail, so it was not looked up; its update had been in the index all the time."""
    lives.disk.cached_share = 0.0
    container = await filled(lives)
    segment = container.segment(TABLE)
    version = await put(container, b"new", b"1")
    lives.disk.faults = ["after"]
    with pytest.raises(StorageError):
        await container.tables.flush_index(segment)
    table = state_of(segment)
    assert table.index is not None
    await table.index.open()  # As a read does by itself that meets a page which the update has replaced.
    lives.disk.lookup_gate = asyncio.Event()
    updates = [TableUpdate(b"new", b"2", version), TableUpdate(b"00001", b"2", VERSION_ABSENT)]
    putting = asyncio.ensure_future(container.tables.put(segment, updates, -1))
    await turns(5)
    gate, lives.disk.lookup_gate = lives.disk.lookup_gate, None
    table.commit(table.frozen_mark())
    gate.set()
    with pytest.raises(TableKeyVersionError) as caught:
        await putting
    assert caught.value.key == b"00001"


async def test_counts_equal_a_model_after_full_indexing(lives: IndexedIncarnations) -> None:
    """SS-163: live and total entries, after random updates and compactions."""
    rng = random.Random(3)
    container = await lives.start()
    segment = await table_of(container)
    live: dict[bytes, None] = {}
    for turn in range(400):
        key = b"%d" % rng.randrange(60)
        if rng.random() < 0.3:
            await remove(container, key)
            live.pop(key, None)
        else:
            await put(container, key, rng.randbytes(20))
            live[key] = None
        if turn % 37 == 0:
            await container.tables.flush_index(segment)
        if turn % 90 == 0:
            await container.tables.compact(segment)
    assert segment.start_offset > 0
    await container.tables.flush_index(segment)
    mark = TableMark.decode(TABLE, lives.disk.stored[TABLE].mark)
    data = await container.reader.read_exactly(segment, segment.start_offset, segment.length - segment.start_offset)
    assert mark.live_count == len(live)
    assert mark.entry_count == len(list(parse_entries(TABLE, data, segment.start_offset)))


# Iteration.


async def test_an_iteration_returns_each_remaining_key_once(lives: IndexedIncarnations) -> None:
    """SS-164: inserts, removals, flushes of the index and compactions between the pages."""
    rng = random.Random(5)
    container = await filled(lives, 200)
    segment = container.segment(TABLE)
    gone = [b"%05d" % number for number in range(0, 200, 3)]
    seen: list[bytes] = []
    token = b""
    while (page := await container.tables.entries(segment, limit=7, token=token)).entries:
        seen += [entry.key for entry in page.entries]
        token = page.token
        if gone:
            removed = gone.pop(rng.randrange(len(gone)))
            await remove(container, removed)
            await put(container, b"new%d" % rng.randrange(100), b"n")
            await put(container, b"00001", b"again" * rng.randrange(5))
        if rng.random() < 0.4:
            await container.tables.flush_index(segment)
        if rng.random() < 0.3:
            await container.tables.compact(segment)
    assert seen == sorted(set(seen))
    assert {b"%05d" % number for number in range(200) if number % 3} <= set(seen)
    rest = await entries(container)
    assert len(rest) == (await container.tables.info(segment)).entry_count


async def test_a_page_of_nothing_but_removed_keys_does_not_end_the_iteration(lives: IndexedIncarnations) -> None:
    container = await filled(lives, 30)
    segment = container.segment(TABLE)
    await container.tables.remove(segment, [TableRemoval(b"%05d" % number) for number in range(20)], -1)
    assert [entry.key for entry in await entries(container, 4)] == [b"%05d" % number for number in range(20, 30)]
    assert [key for key, _ in await keys(container, 4)] == [b"%05d" % number for number in range(20, 30)]


async def test_fixed_keys_come_in_order_within_inclusive_bounds(lives: IndexedIncarnations) -> None:
    """SS-169: bounds with keys in the index and in the tail; wrong key lengths; conditional replace."""
    container = await lives.start()
    segment = await table_of(container, key_length=4)
    await container.tables.put(segment, [TableUpdate(b"%04d" % number, b"i") for number in range(0, 100, 2)], -1)
    await container.tables.flush_index(segment)
    await container.tables.put(segment, [TableUpdate(b"%04d" % number, b"t") for number in range(1, 100, 2)], -1)
    page = await container.tables.entries(segment, limit=100, token=b"", first=b"0010", last=b"0020")
    assert [entry.key for entry in page.entries] == [b"%04d" % number for number in range(10, 21)]
    page = await container.tables.entries(segment, limit=3, token=b"0011", first=b"0010", last=b"0013")
    assert [entry.key for entry in page.entries] == [b"0012", b"0013"]
    only = await container.tables.keys(segment, limit=100, token=b"", first=b"0099")
    assert [key for key, _ in only.keys] == [b"0099"]
    assert not (await container.tables.keys(segment, limit=9, token=b"", first=b"5", last=b"4")).keys
    for wrong in (b"", b"123", b"12345"):
        with pytest.raises(InvalidArgumentError):
            await put(container, wrong, b"")
        with pytest.raises(InvalidArgumentError):
            await get(container, wrong)
        with pytest.raises(InvalidArgumentError):
            await remove(container, wrong)
    (entry,) = await container.tables.get(segment, [b"0010"])
    assert entry is not None
    await put(container, b"0010", b"r", entry.version)
    with pytest.raises(TableKeyVersionError):
        await put(container, b"0010", b"s", entry.version)
    with pytest.raises(UnsupportedOperationError):
        await container.delete_table(TABLE, must_be_empty=True)
    with pytest.raises(UnsupportedOperationError):
        await container.tables.delta(segment, position=0, limit=1)


# Deltas.


async def test_deltas_contain_all_changes_from_a_position_on(lives: IndexedIncarnations) -> None:
    """SS-165: from the start, from the middle, from before the compaction offset (clear flag), from the end; the
    table's keys are in the index, in the tail, and copied."""
    container = await filled(lives, 20)
    segment = container.segment(TABLE)
    tables = container.tables
    whole = await tables.delta(segment, position=0, limit=1000)
    assert {entry.key for entry in whole.entries} == {b"%05d" % number for number in range(20)}
    assert (whole.should_clear, whole.reached_end, whole.last_position) == (False, True, segment.length)
    part = await tables.delta(segment, position=0, limit=5)
    assert [entry.key for entry in part.entries] == [b"%05d" % number for number in range(5)]
    assert not part.reached_end
    rest = await tables.delta(segment, position=part.last_position, limit=1000)
    assert [entry.key for entry in rest.entries] == [b"%05d" % number for number in range(5, 20)]
    end = await tables.delta(segment, position=segment.length, limit=1000)
    assert (list(end.entries), end.should_clear, end.reached_end) == ([], False, True)
    await tables.put(segment, [TableUpdate(b"%05d" % key, b"new") for key in range(1, 19)], -1)
    await remove(container, b"00018")
    await tables.flush_index(segment)
    await tables.compact(segment)
    assert segment.start_offset > part.last_position
    again = await tables.delta(segment, position=part.last_position, limit=1000)
    assert again.should_clear
    assert again.reached_end
    assert {entry.key: entry.value for entry in again.entries} == await contents(container)
    with pytest.raises(InvalidArgumentError):
        await tables.delta(segment, position=segment.length + 1, limit=1)


# Values and emptiness.


async def test_a_value_of_length_zero_is_a_value(lives: IndexedIncarnations) -> None:
    """SS-167: in the tail, in the index, after a restart and after compaction."""
    container = await lives.start()
    segment = await table_of(container)
    await container.tables.put(segment, [TableUpdate(b"%05d" % number, b"") for number in range(100)], -1)
    for _ in range(2):
        assert await get(container, b"00001") == b""
        assert await get(container, b"none") is None
        await container.tables.flush_index(container.segment(TABLE))
        container = await lives.restart(container)
        segment = container.segment(TABLE)
        await container.tables.put(segment, [TableUpdate(b"%05d" % number, b"") for number in range(60, 100)], -1)
        await container.tables.compact(segment)
    assert len(await contents(container)) == 100


async def test_emptiness_is_judged_with_the_tail(lives: IndexedIncarnations) -> None:
    """SS-168: removals that are not indexed yet, of keys in the index and of one that never existed."""
    container = await filled(lives, 50)
    segment = container.segment(TABLE)
    await container.tables.remove(segment, [TableRemoval(b"%05d" % number) for number in range(49)], -1)
    await remove(container, b"never")
    container = await lives.restart(container)
    with pytest.raises(TableNotEmptyError):
        await container.delete_table(TABLE, must_be_empty=True)
    await put(container, b"other", b"")
    await remove(container, b"00049")
    with pytest.raises(TableNotEmptyError):
        await container.delete_table(TABLE, must_be_empty=True)
    await remove(container, b"other")
    await container.delete_table(TABLE, must_be_empty=True)


async def test_limits_of_keys_and_values(lives: IndexedIncarnations) -> None:
    """SS-166: keys of 8 KiB and one byte more, the longest value and one byte more."""
    container = await lives.start()
    segment = await table_of(container)
    longest = 1024 * 1024 - 8192
    await put(container, bytes(8192), bytes(longest))
    assert await get(container, bytes(8192)) == bytes(longest)
    length = segment.length
    for key, value in ((bytes(8193), b""), (b"k", bytes(longest + 1)), (b"", b"")):
        with pytest.raises(InvalidArgumentError):
            await put(container, key, value)
    with pytest.raises(InvalidArgumentError):
        await put(container, b"k", b"", -2)
    assert segment.length == length
