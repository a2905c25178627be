"""The recorded stream cuts of a stream: S-112, in chunks, over crashes and other controllers."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.metadata import layout, retention_tables
from penstock.controller.metadata.codec import decode, encode
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import RETENTION_CHUNK_CUTS
from penstock.controller.metadata.retention_records import (
    RetentionChunk,
    RetentionEntry,
    RetentionSet,
    StreamCutRecord,
)
from penstock.controller.metadata.retention_tables import RetentionTables
from penstock.controller.metadata.store import Removal
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchStreamError,
    OutcomeUnknownError,
)
from penstock.model.policies import Scaling, StreamConfig
from penstock_simulation.epoch_costs import CountingMetadataStore
from penstock_simulation.memory_store import MemoryMetadataStore

KIB = 1024
#: Few cuts, so that every border is met.
CHUNK_CUTS = 3


class Failing(MemoryMetadataStore):
    """Fails at its n-th write from now on, before the write or after it."""

    def __init__(self):
        super().__init__()
        self.left = -1
        self.is_behind = False

    async def _write(self, call):
        self.left -= 1
        if self.left == 0 and not self.is_behind:
            raise OutcomeUnknownError("lost before")
        result = await call()
        if self.left == 0:
            raise OutcomeUnknownError("lost behind")
        return result

    async def put(self, table, writes):
        return await self._write(lambda: super(Failing, self).put(table, writes))

    async def remove(self, table, removals):
        return await self._write(lambda: super(Failing, self).remove(table, removals))


async def tables_over(store):
    """Return the tables of a new stream, and its recorded cuts."""
    stream = StreamTables(RecordStore(store), "s", "t", "id")
    await stream.create_tables()
    await stream.create_records(StreamConfig(Scaling.fixed(1)), 1, 0)
    return stream, stream.retention


@pytest.fixture
def small_chunks(monkeypatch):
    for module in (layout, retention_tables):
        monkeypatch.setattr(module, "RETENTION_CHUNK_CUTS", CHUNK_CUTS)


def cut_at(number):
    """Return the cut number n: recorded each ten milliseconds, 100 bytes more before each second one."""
    return StreamCutRecord(10 * number, 100 * (number // 2), {0: number, 1: 2 * number})


async def all_entries(retention):
    return [entry async for page in retention.entries() for entry in page]


async def keys_of(stream):
    """Return what is on record of cuts, but for the set."""
    rows = [row.key async for row in stream.records.walk_rows(stream.metadata)]
    return {key for key in rows if key.startswith("retention") and key != layout.RETENTION}


async def test_cuts_are_added_found_and_removed(small_chunks):
    """S-112: in order; one that is not later is passed over; by time, by size, the newest; removed from the first."""
    stream, retention = await tables_over(MemoryMetadataStore())
    assert await retention.newest() is None
    assert await all_entries(retention) == []
    assert await retention.last_recorded_until(2**62) is None
    assert await retention.last_with_at_most(2**62) is None
    for number in range(1, 9):
        assert await retention.add(cut_at(number))
        assert not await retention.add(cut_at(number))
        assert not await retention.add(StreamCutRecord(10 * number - 1, 10**6, {}))
    entries = [cut_at(number).entry for number in range(1, 9)]
    assert await all_entries(retention) == entries
    assert await retention.newest() == entries[-1]
    assert await retention.last_recorded_until(9) is None
    assert await retention.last_recorded_until(10) == entries[0]
    assert await retention.last_recorded_until(49) == entries[3]
    assert await retention.last_recorded_until(2**62) == entries[-1]
    assert await retention.last_with_at_most(-1) is None
    assert await retention.last_with_at_most(99) == entries[0]
    assert await retention.last_with_at_most(100) == entries[2]  # The last of those with equal sizes.
    assert await retention.cut_of(entries[4]) == cut_at(5)
    assert await retention.remove_until(9) == 0
    assert await retention.remove_until(40) == 4
    assert await retention.remove_until(40) == 0
    assert await all_entries(retention) == entries[4:]
    assert await retention.last_recorded_until(49) is None
    assert await retention.last_recorded_until(50) == entries[4]
    assert await retention.cut_of(entries[3]) is None
    assert await keys_of(stream) == {
        *(layout.retention_cut_key(10 * number) for number in range(5, 9)),
        "retentionChunk-1",
        "retentionChunk-2",
    }
    assert await retention.remove_until(2**62) == 4
    assert await retention.newest() is None
    assert not await retention.add(cut_at(8))  # What was recorded once is not recorded again.
    assert await retention.add(cut_at(9))
    assert await all_entries(retention) == [cut_at(9).entry]


@pytest.mark.parametrize("recorded", [(1, 10, 20), (1, 10, 20, 30), (1, 1, 10, 10, 20), (1, 1, 1, 10, 20, 20)])
async def test_the_last_cut_before_a_place_is_found(small_chunks, recorded):
    """S-117: on both segments before it or there; of equal ones the last; of odd and even numbers of cuts."""
    _, retention = await tables_over(MemoryMetadataStore())
    for number, offset in enumerate(recorded):
        assert await retention.add(StreamCutRecord(10 * number, 2 * offset, {0: offset, 1: offset}))

    async def before(place):
        async def holds(cut):
            return all(cut.stream_cut[segment] <= place[segment] for segment in (0, 1))

        found = await retention.last_that(holds)
        return None if found is None else (found.recorded_ms // 10, found.stream_cut[0])

    last = {offset: number for number, offset in enumerate(recorded)}
    for place in ({0: 0, 1: 0}, {0: 0, 1: 1}, {0: 1, 1: 0}):
        assert await before(place) is None
    for offset in range(1, 6):
        assert await before({0: offset, 1: offset}) == (last[1], 1)
    assert await before({0: 10, 1: 10}) == (last[10], 10)
    assert await before({0: 9, 1: 15}) == (last[1], 1)
    assert await before({0: 21, 1: 21}) == (last[20], 20)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_recorded_cuts_equal_a_plain_list(data):
    """Additions, removals, restamps and searches in any order, by clocks that jump, compared with a plain list."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (layout, retention_tables):
            patch.setattr(module, "RETENTION_CHUNK_CUTS", CHUNK_CUTS)
        asyncio.run(_compared_with_a_list(data))


async def _compared_with_a_list(data):
    stream, retention = await tables_over(MemoryMetadataStore())
    model, time_ms, size_bytes, newest_ms, newest_bytes = [], 0, 0, -1, 0
    for action in data.draw(st.lists(st.sampled_from("aaaasrtj"), max_size=40)):
        if action == "a":
            time_ms += data.draw(st.integers(1, 5))
            size_bytes += data.draw(st.integers(0, 3))
            is_later = time_ms > newest_ms
            assert await retention.add(StreamCutRecord(time_ms, size_bytes, {0: size_bytes})) == is_later
            if is_later:
                newest_ms, newest_bytes = time_ms, size_bytes
                model.append(RetentionEntry(time_ms, size_bytes))
        if action == "s":
            time_ms += data.draw(st.integers(0, 3))
            size_bytes += data.draw(st.integers(0, 3))
            is_new = newest_ms < 0 or size_bytes > newest_bytes
            cut = StreamCutRecord(time_ms, size_bytes, {0: size_bytes})
            assert await retention.add(cut, goes_by_size=True) == is_new
            if is_new:
                newest_ms, newest_bytes = max(newest_ms + 1, time_ms), size_bytes
                model.append(RetentionEntry(newest_ms, newest_bytes))
        if action == "j":
            time_ms = max(0, time_ms + data.draw(st.integers(-20, 5)))
            is_free = all(entry.recorded_ms != time_ms for entry in model)
            assert await retention.restamp(time_ms) == (newest_ms > time_ms and is_free)
            if newest_ms > time_ms and is_free:
                newest_ms, newest = time_ms, RetentionEntry(time_ms, newest_bytes)
                model = [newest if entry.recorded_ms > time_ms else entry for entry in model]
        at = data.draw(st.integers(-1, time_ms + 2))
        if action == "r":
            gone = [entry for entry in model if entry.recorded_ms <= at]
            assert await retention.remove_until(at) == len(gone)
            model = model[len(gone) :]
        else:
            assert await retention.last_recorded_until(at) == next(
                (entry for entry in reversed(model) if entry.recorded_ms <= at), None
            )
            assert await retention.last_with_at_most(at) == next(
                (entry for entry in reversed(model) if entry.size_bytes <= at), None
            )
        assert await all_entries(retention) == model
        assert await retention.newest() == (model[-1] if model else None)
        for entry in model:
            assert (await retention.cut_of(entry)).stream_cut == {0: entry.size_bytes}
    cuts = {key for key in await keys_of(stream) if key.startswith("retentionCuts-")}
    assert cuts == {layout.retention_cut_key(entry.recorded_ms) for entry in model}


@pytest.mark.parametrize("is_behind", [False, True], ids=["request lost", "reply lost"])
async def test_a_crash_at_any_write_leaves_nothing_behind_in_the_end(small_chunks, is_behind):
    """Each write in turn is the last of its controller; the next one does the same again, and all is as it would be."""
    writes = 1
    while True:
        store = Failing()
        stream, retention = await tables_over(store)
        for number in range(1, 9):
            await retention.add(cut_at(number))
        store.left, store.is_behind = writes, is_behind
        was_cut_off = False
        for step in (lambda it: it.add(cut_at(9)), lambda it: it.remove_until(70)):
            try:
                await step(retention)
            except OutcomeUnknownError:
                was_cut_off = True
                # A reader never finds a cut whose record is gone.
                for entry in await all_entries(retention):
                    assert await retention.cut_of(entry) is not None
                retention = StreamTables(RecordStore(store), "s", "t", "id").retention
                await step(retention)
        assert await all_entries(retention) == [cut_at(8).entry, cut_at(9).entry]
        assert await keys_of(stream) == {"retentionCuts-80", "retentionCuts-90", "retentionChunk-2"}
        if not was_cut_off:
            break
        writes += 1
    assert writes > 5


@pytest.mark.parametrize("is_behind", [False, True], ids=["request lost", "reply lost"])
async def test_a_crash_in_a_restamp_leaves_every_cut_with_its_record(small_chunks, is_behind):
    """Each write in turn is the last of its controller; done again, no cut has a time of the clock that was ahead."""
    for writes in (1, 2, 3, 4):
        store = Failing()
        _, retention = await tables_over(store)
        for number in range(1, 9):
            await retention.add(cut_at(number))
        store.left, store.is_behind = writes, is_behind
        for _ in range(2):
            try:
                await retention.restamp(45)
            except OutcomeUnknownError:
                retention = StreamTables(RecordStore(store), "s", "t", "id").retention
            for entry in await all_entries(retention):
                assert await retention.cut_of(entry) is not None
        store.left = -1
        assert [entry.recorded_ms for entry in await all_entries(retention)] == [10, 20, 30, 40, 45, 45, 45, 45]
        assert await retention.cut_of(await retention.newest()) == StreamCutRecord(45, 400, cut_at(8).stream_cut)
        assert await retention.add(StreamCutRecord(46, 500, {0: 9}))


async def test_two_controllers_do_not_overwrite_each_other(small_chunks):
    """Both have read the set: the second one's write is a conflict, and has done nothing."""
    store = MemoryMetadataStore()
    stream, first = await tables_over(store)
    for number in range(1, 6):
        await first.add(cut_at(number))
    others = StreamTables(RecordStore(store), "s", "t", "id").retention

    class Late(RecordStore):
        """Lets others go first before its first write."""

        def __init__(self, store, meanwhile):
            super().__init__(store)
            self.meanwhile = [meanwhile]

        async def _others(self):
            if self.meanwhile:
                await self.meanwhile.pop()()

        async def put(self, *arguments, **options):
            await self._others()
            return await super().put(*arguments, **options)

        async def put_all(self, *arguments):
            await self._others()
            return await super().put_all(*arguments)

    for meanwhile in (lambda: others.add(cut_at(6)), lambda: others.remove_until(10)):
        late = RetentionTables(Late(store, meanwhile), stream.metadata)
        with pytest.raises(MetadataConflictError):
            await late.add(StreamCutRecord(65, 300, {}))
    for meanwhile in (lambda: others.add(cut_at(7)), lambda: others.remove_until(20)):
        late = RetentionTables(Late(store, meanwhile), stream.metadata)
        with pytest.raises(MetadataConflictError):
            await late.remove_until(30)
    assert await all_entries(first) == [cut_at(number).entry for number in range(3, 8)]


async def test_a_late_duplicate_of_a_removal_does_nothing(small_chunks):
    """It is without versions: keys are never used twice, so there is nothing that it could take."""
    store = MemoryMetadataStore()
    stream, retention = await tables_over(store)
    for number in range(1, 9):
        await retention.add(cut_at(number))
    before = await keys_of(stream)
    await retention.remove_until(70)
    removed = before - await keys_of(stream)
    for number in range(9, 30):
        await retention.add(cut_at(number))
    await retention.remove_until(100)
    kept = await keys_of(stream)
    await store.remove(stream.metadata, [Removal(key) for key in sorted(removed)])
    assert await keys_of(stream) == kept


async def test_no_record_and_no_operation_grows_with_the_number_of_cuts():
    """Over several chunks: a bounded number of bytes for an addition and a search, whatever was recorded before."""
    store = CountingMetadataStore(MemoryMetadataStore())
    stream, retention = await tables_over(store)
    costs = []
    rng = random.Random(1)
    for number in range(1, 4 * RETENTION_CHUNK_CUTS + 1):
        await retention.add(cut_at(number))
        if number % RETENTION_CHUNK_CUTS == 0:
            before = store.cost.bytes_read
            for _ in range(20):
                found = await retention.last_recorded_until(10 * rng.randint(1, number))
                assert found is not None
            costs.append((store.cost.bytes_read - before) / 20)
    # A chunk, its neighbour, and the set: a search in more of them reads one more each time their number doubles.
    assert max(costs) < 5 * 16 * KIB
    largest = max([len(row.value) async for row in stream.records.walk_rows(stream.metadata) if "retention" in row.key])
    assert largest < 17 * KIB
    assert await retention.remove_until(10 * (4 * RETENTION_CHUNK_CUTS - 1)) == 4 * RETENTION_CHUNK_CUTS - 1
    assert await keys_of(stream) == {f"retentionCuts-{40 * RETENTION_CHUNK_CUTS}", "retentionChunk-3"}


async def test_impossible_records_are_refused_or_reported(small_chunks):
    """A size that shrinks; a stream without records; a chunk that is gone."""
    stream, retention = await tables_over(MemoryMetadataStore())
    await retention.add(cut_at(6))
    with pytest.raises(InvalidArgumentError, match="299 bytes before a cut"):
        await retention.add(StreamCutRecord(100, 299, {}))
    await stream.records.remove(stream.metadata, "retentionChunk-0")
    for call in (
        retention.last_recorded_until(100),
        retention.last_with_at_most(10**6),
        retention.remove_until(100),
        all_entries(retention),
        retention.add(cut_at(9)),
    ):
        with pytest.raises(CorruptionError, match="retentionChunk-0"):
            await call
    await stream.records.remove(stream.metadata, layout.RETENTION)
    with pytest.raises(NoSuchStreamError, match="no record retention"):
        await retention.newest()


async def test_the_deletion_of_a_stream_takes_its_recorded_cuts(service, cluster):
    """They are in the stream's own table, which goes as a whole."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    stream_id = await service._catalog.stream_id("scope", "stream")
    stream = service._catalog.tables_of("scope", "stream", stream_id)
    for number in range(1, 5):
        assert await stream.retention.add(cut_at(number))
    await service.seal_stream("scope", "stream")
    await service.delete_stream("scope", "stream")
    assert not [table for table in cluster.store.tables if stream_id in table]


#: Record and stored form.
GOLDEN = [
    (
        RetentionSet(3, 9, 2, RetentionEntry(1000, 77)),
        "02 250ef0a7 07 0000000000000003 0000000000000009 0000000000000002 00000000000003e8 000000000000004d",
    ),
    (
        RetentionChunk.of(1000, [RetentionEntry(1000, 7), RetentionEntry(2000, 9)]),
        "02 0b3449c1 08 00000000000003e8 00000002 00000000000003e8 00000000000007d0 0000000000000007 0000000000000009",
    ),
]


@pytest.mark.parametrize(("record", "stored"), GOLDEN, ids=lambda value: type(value).__name__)
def test_records_of_cuts_are_pinned(record, stored):
    """Golden bytes: a change here breaks stored data. The cut itself is pinned where it has an earlier version."""
    assert encode(record) == bytes.fromhex(stored)
    assert decode(type(record), bytes.fromhex(stored), table="t", key="k") == record


def test_sets_of_version_1_are_read_when_they_are_empty():
    """As every release has written them. One with cuts is damage."""
    stored = encode({"entries": []})
    assert decode(RetentionSet, stored, table="t", key="k") == RetentionSet()
    with pytest.raises(CorruptionError, match="no release has written"):
        decode(RetentionSet, encode({"entries": [[1, 2]]}), table="t", key="k")


@pytest.mark.parametrize("numbers", [(1, 0, 0), (0, 1, 1), (-1, 0, -1), (3, 2, 3)])
def test_a_set_that_contradicts_itself_is_damage(numbers):
    """First, next and cleared cut are in order."""
    first, next_cut, cleared = numbers
    stored = encode(RetentionSet(first, next_cut, cleared, RetentionEntry(1, 1)))
    with pytest.raises(CorruptionError, match="cuts from"):
        decode(RetentionSet, stored, table="t", key="k")


def test_a_full_chunk_is_small():
    """16 bytes for each cut."""
    entries = [RetentionEntry(2**41 + number, 2**61 + number) for number in range(RETENTION_CHUNK_CUTS)]
    chunk = RetentionChunk.of(5 * RETENTION_CHUNK_CUTS, entries)
    assert len(encode(chunk)) < 17 * KIB
    assert decode(RetentionChunk, encode(chunk), table="t", key="k") == chunk
    assert chunk.entries(chunk.first, chunk.next_cut) == entries
