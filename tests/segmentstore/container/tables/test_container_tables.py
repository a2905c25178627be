"""Tables of a container across restarts, compaction and storage. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import (
    ContainerOfflineError,
    CorruptionError,
    InvalidArgumentError,
    OutcomeUnknownError,
    StorageError,
    TableKeyVersionError,
    TableNotEmptyError,
)
from penstock.model.segments import TABLE_VALUE_LENGTH_MAX, VERSION_ABSENT, TableRemoval, TableUpdate
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.tables import compaction
from penstock.segmentstore.container.tables.compaction import TableCompactor
from penstock.segmentstore.container.tables.entries import ENTRY_HEADER, ParsedEntry, parse_entries
from penstock.segmentstore.container.tables.index import TableIndex
from support.containers import QUIET, Incarnations, append, evict_all, pause_writer, turns, until

TABLE = "s/_tables/a"


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations(replace(QUIET, table_compact_bytes=2000, table_compact_step_bytes=500))
    yield made
    await made.close()


async def table_of(container: SegmentContainer) -> Segment:
    return await container.create(TABLE, flags=SegmentFlags.TABLE)


async def contents(container: SegmentContainer) -> dict[bytes, bytes]:
    """Return what the table maps."""
    segment = container.segment(TABLE)
    found: dict[bytes, bytes] = {}
    token = b""
    while (page := await container.tables.entries(segment, limit=3, token=token)).entries:
        found.update((entry.key, entry.value) for entry in page.entries)
        token = page.token
    return found


async def settled(container: SegmentContainer) -> None:
    """Let compaction and indexing end."""
    await until(lambda: not any(map(container.tables.is_busy, container.segments())))


async def test_a_table_equals_a_dictionary_through_restarts_and_compactions(lives: Incarnations) -> None:
    """SS-148, SS-155, SS-161: random puts and removals; restarts, evictions, compactions."""
    rng = random.Random(1)
    container = await lives.start()
    await table_of(container)
    model: dict[bytes, bytes] = {}
    for turn in range(300):
        segment = container.segment(TABLE)
        key = b"k%d" % rng.randrange(20)
        if rng.random() < 0.3:
            await container.tables.remove(segment, [TableRemoval(key)], -1)
            model.pop(key, None)
        else:
            model[key] = rng.randbytes(rng.randrange(60))
            await container.tables.put(segment, [TableUpdate(key, model[key])], -1)
        if turn % 40 == 13:
            await container.flush()
            evict_all(container)
        if turn % 60 == 30:
            container = await lives.restart(container)
        if turn % 10 == 0:
            assert await contents(container) == model
            assert (await container.tables.info(container.segment(TABLE))).entry_count == len(model)
    await settled(container)
    assert container.segment(TABLE).start_offset > 0


async def test_many_entries_are_found_after_a_restart(lives: Incarnations) -> None:
    """SS-154, SS-156: gets that come while the index is rebuilt wait for it, all of them; none sees an older value."""
    container = await lives.start()
    segment = await table_of(container)
    for value in (b"old", b"new"):
        await container.tables.put(segment, [TableUpdate(b"%05d" % number, value) for number in range(5000)], -1)
    await settled(container)
    await container.flush()
    container = await lives.restart(container)
    evict_all(container)
    segment = container.segment(TABLE)
    gets = [container.tables.get(segment, [b"%05d" % number]) for number in range(0, 5000, 50)]
    puts = [container.tables.put(segment, [TableUpdate(b"x%d" % number, b"")], -1) for number in range(3)]
    found, _ = await asyncio.gather(asyncio.gather(*gets), asyncio.gather(*puts))
    assert {entry.value for (entry,) in found if entry is not None} == {b"new"}
    assert all(entry is not None for (entry,) in found)
    assert (await container.tables.info(segment)).entry_count == 5003


async def test_a_scan_that_fails_is_done_again_once(lives: Incarnations) -> None:
    """Callers of a failing scan get its error; the next call scans again. All share one index: two lose updates."""
    container = await lives.start()
    segment = await table_of(container)
    await container.tables.put(segment, [TableUpdate(b"k", b"stored")], -1)
    await container.flush()
    evict_all(container)
    segment.table = None
    lives.chunks.hold("read")
    lives.chunks.fail("read")
    waiting = [asyncio.ensure_future(container.tables.index_of(segment)) for _ in range(3)]
    await turns(5)
    lives.chunks.release("read")
    await turns(1)
    late = asyncio.ensure_future(container.tables.index_of(segment))
    assert {type(error) for error in await asyncio.gather(*waiting, late, return_exceptions=True)} == {StorageError}
    assert segment.table is None
    again = await asyncio.gather(*(container.tables.index_of(segment) for _ in range(3)))
    assert {id(index) for index in again} == {id(segment.table)}


async def test_compaction_keeps_versions_and_frees_the_head(lives: Incarnations) -> None:
    """SS-160: a conditional update with the version from before the compaction succeeds after it, and after a crash."""
    container = await lives.start()
    segment = await table_of(container)
    (version,) = await container.tables.put(segment, [TableUpdate(b"kept", b"v")], -1)
    for number in range(100):
        await container.tables.put(segment, [TableUpdate(b"busy", b"%d" % number * 20)], -1)
    await settled(container)
    assert segment.start_offset > version
    container = await lives.restart(container)
    segment = container.segment(TABLE)
    (entry,) = await container.tables.get(segment, [b"kept"])
    assert entry is not None
    assert entry.version == version
    await container.tables.put(segment, [TableUpdate(b"kept", b"w", version)], -1)
    with pytest.raises(TableKeyVersionError):
        await container.tables.put(segment, [TableUpdate(b"kept", b"x", version)], -1)


async def test_a_head_of_dead_entries_is_cut_without_a_copy(lives: Incarnations) -> None:
    """SS-162: nothing is appended; the start moves."""
    container = await lives.start(table_compact_bytes=1 << 40)
    segment = await table_of(container)
    for _ in range(50):
        await container.tables.put(segment, [TableUpdate(b"k", bytes(100))], -1)
    await container.tables.remove(segment, [TableRemoval(b"k")], -1)
    length = segment.length
    await container.tables.compact(segment)
    assert segment.length == length
    assert segment.start_offset == length
    container = await lives.restart(container)
    assert await contents(container) == {}


async def test_a_step_over_very_many_entries_gives_others_their_turn(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live ones between dead ones, all in one step: each turn goes over few, and all that live are there after it."""
    container = await lives.start(table_compact_bytes=1 << 40, table_compact_step_bytes=1 << 20)
    segment = await table_of(container)
    for number in range(30):
        updates = [TableUpdate(b"%d" % key, b"%d" % number) for key in range(0, 100, 1 if number == 3 else 10)]
        await container.tables.put(segment, updates, -1)
    expected = await contents(container)
    turn = 0
    read_counts: dict[int, int] = {}
    original = TableCompactor._may_live

    def may_live(table: TableIndex, entry: ParsedEntry) -> bool:
        read_counts[turn] = read_counts.get(turn, 0) + 1
        return original(table, entry)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(TableCompactor, "_may_live", staticmethod(may_live))
    monkeypatch.setattr(compaction, "_ENTRIES_PER_TURN", 20)
    counting = asyncio.ensure_future(count_turns())
    start = segment.start_offset
    await container.tables.compact(segment)
    counting.cancel()
    assert segment.start_offset > start
    assert sum(read_counts.values()) > 300
    assert max(read_counts.values()) <= 20
    assert await contents(container) == expected
    container = await lives.restart(container)
    assert await contents(container) == expected


async def test_deltas_survive_a_compaction_in_their_middle(lives: Incarnations) -> None:
    """SS-165: the head goes while the delta waits for storage; it restarts at the new start, and says 'clear'."""
    container = await lives.start(table_compact_bytes=1 << 40)
    await pause_writer(container)
    segment = await table_of(container)
    await container.tables.put(segment, [TableUpdate(b"kept", b"v")], -1)
    for number in range(50):
        await container.tables.put(segment, [TableUpdate(b"busy", b"%d" % number * 50)], -1)
    await container.flush()
    middle = (await container.tables.delta(segment, position=0, limit=1)).last_position
    evict_all(container)
    lives.chunks.hold("read")
    reading = [
        asyncio.ensure_future(container.tables.delta(segment, position=position, limit=10)) for position in (0, middle)
    ]
    await turns(10)
    lives.chunks.release("read")
    await container.tables.compact(segment)
    await container.flush()
    for position, delta in zip((0, middle), await asyncio.gather(*reading), strict=True):
        assert {entry.key: entry.value for entry in delta.entries} == {b"kept": b"v", b"busy": b"49" * 50} or (
            position == middle and {entry.key for entry in delta.entries} == {b"busy"}
        )
    after = await container.tables.delta(segment, position=middle, limit=10)
    assert after.should_clear
    assert {entry.key for entry in after.entries} == {b"kept", b"busy"}


async def test_a_get_that_compaction_overtakes_finds_the_copy(lives: Incarnations) -> None:
    """SS-161: the value's place is truncated, in the log and in storage, while the get waits for storage."""
    container = await lives.start(table_compact_bytes=1 << 40)
    await pause_writer(container)
    segment = await table_of(container)
    await container.tables.put(segment, [TableUpdate(b"kept", b"v" * 100)], -1)
    for _ in range(30):
        await container.tables.put(segment, [TableUpdate(b"busy", bytes(100))], -1)
    await container.flush()
    evict_all(container)
    lives.chunks.fail("read")
    lives.chunks.hold("read")
    getting = asyncio.ensure_future(container.tables.get(segment, [b"kept"]))
    await turns(10)
    compacting = asyncio.ensure_future(container.tables.compact(segment))
    lives.chunks.heal()
    await compacting
    (entry,) = await getting
    assert entry is not None
    assert entry.value == b"v" * 100


async def test_a_delta_page_is_bounded_in_bytes(lives: Incarnations) -> None:
    """Ten of the longest values do not come in one reply, which would exceed what a frame can hold."""
    container = await lives.start(table_compact_bytes=1 << 40)
    segment = await table_of(container)
    for number in range(5):
        await container.tables.put(segment, [TableUpdate(b"%d" % number, bytes(TABLE_VALUE_LENGTH_MAX))], -1)
    position = 0
    seen: list[bytes] = []
    while True:
        delta = await container.tables.delta(segment, position=position, limit=1000)
        assert sum(len(entry.value) for entry in delta.entries) < 4 << 20
        seen += [entry.key for entry in delta.entries]
        position = delta.last_position
        if delta.reached_end:
            break
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_refusal_waits_until_its_cause_is_durable(lives: Incarnations) -> None:
    """A condition that failed because of an update not yet durable is not reported before that one is."""
    container = await lives.start()
    segment = await table_of(container)
    lives.logs.hold_appends(0)
    first = asyncio.ensure_future(container.tables.put(segment, [TableUpdate(b"k", b"1", VERSION_ABSENT)], -1))
    await turns(3)
    second = asyncio.ensure_future(container.tables.put(segment, [TableUpdate(b"k", b"2", VERSION_ABSENT)], -1))
    deletion = asyncio.ensure_future(container.delete_table(TABLE, must_be_empty=True))
    await turns(5)
    assert not second.done()
    assert not deletion.done()
    lives.logs.fail_append(0)
    lives.logs.release_appends(0)
    outcomes = await asyncio.gather(first, second, deletion, return_exceptions=True)
    assert isinstance(outcomes[0], OutcomeUnknownError)
    assert isinstance(outcomes[1], ContainerOfflineError | OutcomeUnknownError)
    assert isinstance(outcomes[2], ContainerOfflineError | OutcomeUnknownError)


async def test_a_table_with_keys_is_not_empty(lives: Incarnations) -> None:
    container = await lives.start()
    segment = await table_of(container)
    await container.tables.put(segment, [TableUpdate(b"k", b"")], -1)
    with pytest.raises(TableNotEmptyError):
        await container.delete_table(TABLE, must_be_empty=True)


async def test_too_long_a_batch_is_refused_whole(lives: Incarnations) -> None:
    """SS-166: 32 MiB and a bit."""
    container = await lives.start()
    segment = await table_of(container)
    updates = [TableUpdate(b"%d" % number, bytes(1 << 20 >> 1)) for number in range(65)]
    with pytest.raises(InvalidArgumentError):
        await container.tables.put(segment, updates, -1)
    assert segment.length == 0


@pytest.mark.parametrize(("key_length", "value_length"), [(0, 0), (8193, 0), (1, -2), (1, 1 << 20)])
def test_bytes_that_are_no_entry_are_corruption(key_length: int, value_length: int) -> None:
    """SS-170: lengths that no entry has; the place is named."""
    good = ENTRY_HEADER.pack(1, 1, 1, 5) + b"kv"
    data = good + ENTRY_HEADER.pack(1, key_length, value_length, 0) + bytes(100)
    with pytest.raises(CorruptionError) as caught:
        list(parse_entries("s", data, 1000))
    assert caught.value.offset == 1000 + len(good)


async def test_a_damaged_table_is_reported_not_served(lives: Incarnations) -> None:
    """SS-170: garbage in a table's log stops the scan with the place."""
    container = await lives.start()
    segment = await table_of(container)
    await append(container, TABLE, b"\x07garbage that is long enough to have a header")
    segment.table = None
    with pytest.raises(CorruptionError):
        await container.tables.get(segment, [b"k"])
