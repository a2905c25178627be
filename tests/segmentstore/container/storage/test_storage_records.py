"""Records of several segments change by one update of the container's table: all of a round or none of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.model.errors import OutcomeUnknownError, TableKeyVersionError
from penstock.model.segments import VERSION_ABSENT, TableEntry, TableRemoval, TableUpdate
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.storage.container_storage import storage_metadata_segment
from penstock.segmentstore.container.storage.storage_records import SegmentMetadataTable
from penstock.segmentstore.container.tables.tables import Tables
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings
from support.containers import Incarnations, append, evict_all, pause_writer, read_all, turns


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


def records_of(container: SegmentContainer) -> SegmentMetadataTable:
    table = container.storage._user._context.table
    assert isinstance(table, SegmentMetadataTable)
    return table


def new(key: bytes, value: bytes = b"value") -> list[TableUpdate]:
    return [TableUpdate(key, value, VERSION_ABSENT)]


async def values(table: SegmentMetadataTable, *keys: bytes) -> list[bytes | None]:
    entries: Sequence[TableEntry | None] = await table.get(keys)
    return [None if entry is None else entry.value for entry in entries]


async def test_commits_that_come_while_one_is_under_way_go_together(lives: Incarnations) -> None:
    table = records_of(await lives.start())
    first = asyncio.ensure_future(table.commit(new(b"first"), ()))
    await turns(1)
    others = [asyncio.ensure_future(table.commit(new(b"%d" % number), ())) for number in range(20)]
    versions = await asyncio.gather(first, *others)
    assert (table.commit_count, table.round_count) == (21, 2)
    assert all(len(own) == 1 for own in versions)
    entries = await table.get([b"first", *(b"%d" % number for number in range(20))])
    assert [entry and entry.version for entry in entries] == [own[0] for own in versions]


async def test_a_commit_whose_condition_does_not_hold_fails_alone(lives: Incarnations) -> None:
    table = records_of(await lives.start())
    await table.commit(new(b"taken", b"before"), ())
    keys = (b"a", b"taken", b"b")
    outcomes = await asyncio.gather(*(table.commit(new(key), ()) for key in keys), return_exceptions=True)
    assert isinstance(outcomes[1], TableKeyVersionError)
    assert not isinstance(outcomes[0], BaseException)
    assert not isinstance(outcomes[2], BaseException)
    assert await values(table, *keys) == [b"value", b"before", b"value"]


async def test_two_commits_of_one_record_follow_each_other(lives: Incarnations) -> None:
    table = records_of(await lives.start())
    outcomes = await asyncio.gather(
        table.commit(new(b"k", b"1"), ()), table.commit(new(b"k", b"2"), ()), return_exceptions=True
    )
    assert not isinstance(outcomes[0], BaseException)
    assert isinstance(outcomes[1], TableKeyVersionError)
    assert await values(table, b"k") == [b"1"]


async def test_removals_of_a_round_are_done_before_its_callers_continue(lives: Incarnations) -> None:
    table = records_of(await lives.start())
    await table.commit([*new(b"a"), *new(b"b")], ())
    await asyncio.gather(
        table.commit(new(b"x"), [TableRemoval(b"a")]),
        table.commit(new(b"y"), ()),
        table.commit((), [TableRemoval(b"b")]),
    )
    assert await values(table, b"a", b"b", b"x", b"y") == [None, None, b"value", b"value"]


async def test_a_cancelled_commit_does_not_cancel_others(lives: Incarnations) -> None:
    table = records_of(await lives.start())
    lives.logs.hold_appends(0)
    commits = [asyncio.ensure_future(table.commit(new(b"%d" % number), ())) for number in range(3)]
    await turns()
    commits[0].cancel()
    await turns()
    assert commits[0].cancelled()
    lives.logs.release_appends(0)
    await asyncio.gather(*commits[1:])
    assert await values(table, b"0", b"1", b"2") == [b"value"] * 3


async def test_the_outcome_is_unknown_to_each_when_the_log_fails_or_the_container_stops(lives: Incarnations) -> None:
    container = await lives.start()
    table = records_of(container)
    lives.logs.fail_append(0)
    commits = [asyncio.ensure_future(table.commit(new(b"%d" % number), ())) for number in range(3)]
    outcomes = await asyncio.gather(*commits, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknownError] * 3
    container = await lives.restart(container)
    table = records_of(container)
    lives.logs.hold_appends(0)
    commits = [asyncio.ensure_future(table.commit(new(b"%d" % number), ())) for number in range(3)]
    await turns()
    late = asyncio.ensure_future(table.commit(new(b"late"), ()))
    await turns()
    stopping = asyncio.ensure_future(container.stop())
    outcomes = await asyncio.gather(*commits, late, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknownError] * 4
    lives.logs.release_appends(0)
    await stopping
    lives.live.remove(container)


@pytest.mark.parametrize("has_effect", [False, True])
@pytest.mark.parametrize("nth", range(1, 7))
async def test_a_crash_in_a_round_loses_and_doubles_nothing(lives: Incarnations, nth: int, has_effect: bool) -> None:
    """Twelve segments are flushed together; the log fails at its n-th append, which is there afterwards or not."""
    container = await lives.start(flush_concurrency=12)
    await pause_writer(container)
    names = [f"s/t/{number}.#epoch.0" for number in range(12)]
    expected = {name: f"{name},".encode() * (number + 1) for number, name in enumerate(names)}
    for name in names:
        await container.create(name)
        await append(container, name, expected[name])
    lives.logs.fail_append(0, nth=nth, has_effect=has_effect)
    try:
        await container.flush()
        for name in names:
            await append(container, name, b"more")
            expected[name] += b"more"
        await container.flush()
    except Exception:  # noqa: BLE001 - whatever a container says that dies
        pass
    container = await lives.restart(container, flush_concurrency=12)
    for name in names:
        segment = await container.find(name)
        assert (await read_all(container, segment))[: len(expected[name])].startswith(expected[name])
        expected[name] = await read_all(container, segment)
    await container.flush()
    evict_all(container)
    for name in names:
        segment = container.segment(name)
        assert segment.storage_length == segment.length
        assert await read_all(container, name) == expected[name]


async def test_a_round_of_flushes_is_one_operation_of_the_log(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: forty segments flushed together change their records by a handful of updates, not by forty."""
    container = await lives.start(flush_concurrency=40)
    await pause_writer(container)
    puts = 0
    put = Tables.put

    async def counted_put(self: Tables, *arguments: object) -> object:
        nonlocal puts
        puts += 1
        return await put(self, *arguments)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(Tables, "put", counted_put)
    for number in range(40):
        name = f"s/t/{number}.#epoch.0"
        await container.create(name)
        await append(container, name, b"x" * 100)
    puts = 0
    table = records_of(container)
    before = table.commit_count
    await container.flush()
    assert table.commit_count - before >= 40
    assert puts <= 8


async def test_a_container_that_stops_warns_of_no_flush(lives: Incarnations, caplog: pytest.LogCaptureFixture) -> None:
    """The round under way ends with the container; that a flush fails by it is no news."""
    container = await lives.start(flush_age_s=0.0, writer_interval_s=0.001)
    await container.create("s/t/0.#epoch.0")
    table = records_of(container)
    await append(container, "s/t/0.#epoch.0", b"first")
    while not container.segment("s/t/0.#epoch.0").storage_length:
        await turns()
    await append(container, "s/t/0.#epoch.0", b"second")
    lives.logs.hold_appends(0)
    for _ in range(200):
        await asyncio.sleep(0.002)
        if table._is_spawned:
            break
    assert table._is_spawned
    stopping = asyncio.ensure_future(container.stop())
    await turns()
    lives.logs.release_appends(0)
    await stopping
    lives.live.remove(container)
    assert "failed" not in caplog.text


@pytest.mark.parametrize("seed", range(4))
async def test_chunks_are_found_in_a_table_whose_index_grows_and_whose_log_is_compacted(
    lives: Incarnations, seed: int
) -> None:
    """In the tail, in the index, over both; removed keys, dead ones and those of merged runs between them."""
    rng = random.Random(seed)
    container = await lives.start(
        table_compact_bytes=500, table_index_min_bytes=300, table_index_max_bytes=600, table_compact_step_bytes=200
    )
    records = records_of(container)
    table = container.state.metadata.by_name[storage_metadata_segment(container.id)]
    chunks = MemoryChunkStorage()
    settings = ChunkedStorageSettings(chunk_length_max=10, block_length=4, page_length=3, chunks_per_commit_max=3)
    epoch = 1

    def storage() -> ChunkedStorage:
        return ChunkedStorage(chunks, records, epoch=epoch, runtime=lives.runtime, settings=settings)

    owner = storage()
    expected, start = b"", 0
    for number in range(40):
        data = rng.randbytes(rng.randrange(1, 50))
        match rng.randrange(6):
            case 0 | 1:
                await owner.write("s", len(expected), [data])
                expected += data
            case 2 if expected:
                source = f"s#{number % 3}"
                await owner.write(source, 0, [data])
                await owner.seal(source)
                await owner.concat("s", len(expected), source)
                expected += data
            case 3 if expected:
                start = rng.randrange(start, len(expected))
                await owner.truncate("s", start)
            case 4:
                await container.tables.flush_index(table)
            case _:
                await container.tables.compact(table)
                epoch += 1
                owner = storage()
        if start < len(expected):
            offset = rng.randrange(start, len(expected))
            length = rng.randrange(1, 60)
            for reader in (owner, storage()):
                assert await reader.read("s", offset, length) == expected[offset : offset + length]
            layout = await owner.chunks_of("s")
            assert await owner.chunks_of("s", limit=1000) == layout
            assert await owner.unrecorded([chunk.name for chunk in layout]) == []
            assert sorted(chunk.name for chunk in layout) == [info.name for info in await chunks.list()]
    assert expected
