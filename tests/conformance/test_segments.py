"""Conformance of every `Segments`: what the controller and the clients rely on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.transport.wire_segments import WireSegments
from penstock.model.errors import (
    BadOffsetError,
    InvalidArgumentError,
    NoSuchSegmentError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
    TableKeyMissingError,
    TableKeyVersionError,
    TableNotEmptyError,
)
from penstock.model.segments import (
    NO_VALUE,
    READ_LENGTH_MAX,
    TABLE_KEY_LENGTH_MAX,
    TABLE_READ_KEY_COUNT_MAX,
    TABLE_VALUE_LENGTH_MAX,
    VERSION_ABSENT,
    SegmentInfo,
    Segments,
    TableEntry,
    TableRemoval,
    TableUpdate,
    next_fixed_key,
    retriable_names,
)
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock_simulation.memory_segments import MemorySegments
from support.containers import QUIET, FaultyChunks, memory_runtime, memory_store

A = "s/t/0.#epoch.0"
TRANSACTION = f"{A}#transaction.{'a' * 32}"
TABLE = "s/_tables/a"


@pytest.fixture(params=["store", "memory", "wire"])
async def segments(request: pytest.FixtureRequest) -> AsyncIterator[Segments]:
    if request.param == "memory":
        yield MemorySegments()
        return
    runtime = memory_runtime()
    settings = SegmentStoreSettings(container_count=2, container=replace(QUIET, flush_bytes=1000))
    store = memory_store(MemoryLogFactory(runtime), FaultyChunks(), runtime, settings)
    await store.start()
    if request.param == "store":
        yield store
    else:
        server = SegmentStoreServer(store)
        await server.start("127.0.0.1", 0)

        async def home(segment: str) -> tuple[str, int]:
            return "127.0.0.1", server.port

        client_settings = ClientSettings(retry_time_max_s=2.0)
        pool = ConnectionPool(home, client_settings)
        yield WireSegments(pool, client_settings, random.Random(1))
        await pool.close()
        await server.stop()
    await store.stop()
    await runtime.work.close()


async def pages(segments: Segments, limit: int) -> list[TableEntry]:
    """Return all entries of the table, a page at a time."""
    found: list[TableEntry] = []
    token = b""
    while (page := await segments.table_entries(TABLE, limit=limit, token=token)).entries:
        found += page.entries
        token = page.token
    return found


async def test_a_new_segment_is_empty_and_open(segments: Segments) -> None:
    await segments.create_segment(A, scale_type=1, target_rate=10)
    info = await segments.segment_info(A)
    assert (info.name, info.start_offset, info.length, info.is_sealed, info.is_table) == (A, 0, 0, False, False)
    with pytest.raises(SegmentExistsError):
        await segments.create_segment(A)


async def test_every_call_on_a_missing_segment_says_so(segments: Segments) -> None:
    for call in (
        segments.delete_segment(A),
        segments.seal_segment(A),
        segments.truncate_segment(A, 0),
        segments.update_policy(A, scale_type=0, target_rate=0),
        segments.segment_info(A),
        segments.merge_segments(A, [TRANSACTION]),
        segments.append(A, b"x"),
        segments.read(A, 0, 1),
        segments.locate_offset(A, 0),
        segments.locate_offset(A, 0, before=True),
        segments.get_attribute(A, bytes(16)),
        segments.update_attribute(A, bytes(16), value=1, expected=NO_VALUE),
        segments.delete_table(TABLE),
        segments.table_info(TABLE),
        segments.table_put(TABLE, [TableUpdate(b"k", b"v")]),
        segments.table_remove(TABLE, [TableRemoval(b"k")]),
        segments.table_get(TABLE, [b"k"]),
        segments.table_entries(TABLE, limit=1),
        segments.table_keys(TABLE, limit=1),
        segments.table_delta(TABLE, position=0, limit=1),
    ):
        with pytest.raises(NoSuchSegmentError):
            await call


async def test_appends_return_the_length_and_may_demand_one(segments: Segments) -> None:
    await segments.create_segment(A)
    assert await segments.append(A, b"abc") == 3
    assert await segments.append(A, memoryview(b"de"), expected_offset=3) == 5
    with pytest.raises(BadOffsetError) as caught:
        await segments.append(A, b"no", expected_offset=3)
    assert (caught.value.expected, caught.value.actual) == (3, 5)
    assert (await segments.read(A, 0, 100)).joined() == b"abcde"


async def test_reads_say_where_they_end(segments: Segments) -> None:
    await segments.create_segment(A)
    empty = await segments.read(A, 0, 10)
    assert (empty.joined(), empty.is_at_tail, empty.is_end_of_segment) == (b"", True, False)
    await segments.append(A, b"abcdef")
    part = await segments.read(A, 1, 2)
    assert (part.joined(), part.is_at_tail) == (b"bc", False)
    assert (await segments.read(A, 3, 10)).is_at_tail
    await segments.seal_segment(A)
    rest = await segments.read(A, 3, 10, wait=True)
    assert (rest.joined(), rest.is_at_tail, rest.is_end_of_segment) == (b"def", False, True)
    end = await segments.read(A, 6, 10, wait=True)
    assert (end.joined(), end.is_end_of_segment) == (b"", True)


async def test_a_read_is_never_longer_than_the_limit(segments: Segments) -> None:
    await segments.create_segment(A)
    await segments.append(A, bytes(READ_LENGTH_MAX + 10))
    assert len((await segments.read(A, 0, 1 << 30)).joined()) == READ_LENGTH_MAX


async def test_a_waiting_read_gets_what_comes_next(segments: Segments) -> None:
    await segments.create_segment(A)
    for end in ("append", "seal", "delete"):
        reading = asyncio.ensure_future(segments.read(A, (await segments.segment_info(A)).length, 10, wait=True))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not reading.done()
        if end == "append":
            await segments.append(A, b"next")
            assert (await reading).joined() == b"next"
        elif end == "seal":
            await segments.seal_segment(A)
            assert (await reading).is_end_of_segment
            await segments.delete_segment(A)
            await segments.create_segment(A)
        else:
            await segments.delete_segment(A)
            with pytest.raises(NoSuchSegmentError):
                await reading


async def test_a_sealed_segment_takes_no_appends(segments: Segments) -> None:
    await segments.create_segment(A)
    await segments.seal_segment(A)
    for call in (segments.append(A, b"x"), segments.seal_segment(A)):
        with pytest.raises(SegmentSealedError):
            await call
    assert (await segments.segment_info(A)).is_sealed


async def test_truncation_moves_the_start_and_nothing_else(segments: Segments) -> None:
    await segments.create_segment(A)
    await segments.append(A, b"0123456789")
    await segments.truncate_segment(A, 4)
    await segments.truncate_segment(A, 4)
    for offset in (3, 11):
        with pytest.raises(SegmentTruncatedError) as caught:
            await segments.truncate_segment(A, offset)
        assert (caught.value.start_offset, caught.value.offset) == (4, offset)
    with pytest.raises(SegmentTruncatedError):
        await segments.read(A, 3, 1)
    assert (await segments.read(A, 4, 100)).joined() == b"456789"
    await segments.seal_segment(A)
    await segments.truncate_segment(A, 10)
    info = await segments.segment_info(A)
    assert (info.start_offset, info.length) == (10, 10)


async def test_a_deleted_segment_may_be_created_again(segments: Segments) -> None:
    await segments.create_segment(A)
    await segments.append(A, b"old")
    await segments.delete_segment(A)
    with pytest.raises(NoSuchSegmentError):
        await segments.delete_segment(A)
    await segments.create_segment(A)
    assert (await segments.segment_info(A)).length == 0


async def test_merges_are_whole_in_order_and_repeatable(segments: Segments) -> None:
    """SS-29: the same call again, as after a lost answer, duplicates nothing."""
    sources = [f"{A}#transaction.{digit * 32}" for digit in "abc"]
    await segments.create_segment(A)
    await segments.append(A, b"0")
    for number, source in enumerate(sources):
        await segments.create_segment(source)
        await segments.append(source, b"%d" % number * number)
    assert list(await segments.merge_segments(A, sources)) == [1, 2, 4]
    assert list(await segments.merge_segments(A, sources)) == [4, 4, 4]
    assert (await segments.read(A, 0, 100)).joined() == b"0122"
    with pytest.raises(NoSuchSegmentError):
        await segments.segment_info(sources[2])


async def test_a_merge_into_a_sealed_segment_leaves_the_source(segments: Segments) -> None:
    """SS-46."""
    await segments.create_segment(A)
    await segments.create_segment(TRANSACTION)
    await segments.append(TRANSACTION, b"kept")
    await segments.seal_segment(A)
    with pytest.raises(SegmentSealedError):
        await segments.merge_segments(A, [TRANSACTION])
    assert not (await segments.segment_info(TRANSACTION)).is_sealed
    assert await segments.append(TRANSACTION, b"!") == 5


async def test_attributes_are_compared_and_set(segments: Segments) -> None:
    await segments.create_segment(A)
    key = b"k" * 16
    assert await segments.get_attribute(A, key) == NO_VALUE
    assert not await segments.update_attribute(A, key, value=1, expected=0)
    assert await segments.update_attribute(A, key, value=1, expected=NO_VALUE)
    assert await segments.update_attribute(A, key, value=2, expected=1)
    assert await segments.get_attribute(A, key) == 2
    assert await segments.update_attribute(A, key, value=NO_VALUE, expected=2)
    assert await segments.get_attribute(A, key) == NO_VALUE


async def test_table_entries_have_growing_versions(segments: Segments) -> None:
    """SS-167: the version of an entry is its place in the table's log; an empty value is a value."""
    await segments.create_table(TABLE)
    with pytest.raises(SegmentExistsError):
        await segments.create_table(TABLE)
    first = await segments.table_put(TABLE, [TableUpdate(b"a", b"1"), TableUpdate(b"b", b"")])
    assert list(first) == [0, 19]
    (second,) = await segments.table_put(TABLE, [TableUpdate(b"a", b"2")])
    assert second == 19 + 18
    assert list(await segments.table_get(TABLE, [b"b", b"x", b"a"])) == [
        TableEntry(b"b", b"", 19),
        None,
        TableEntry(b"a", b"2", second),
    ]
    info = await segments.table_info(TABLE)
    assert (info.length, info.entry_count, info.key_length) == (second + 19, 2, 0)


async def test_table_conditions_hold_for_all_or_nothing_is_written(segments: Segments) -> None:
    """SS-149, SS-150: inserts, exact versions, missing keys first."""
    await segments.create_table(TABLE)
    (version,) = await segments.table_put(TABLE, [TableUpdate(b"a", b"1", VERSION_ABSENT)])
    for updates, error in (
        ([TableUpdate(b"a", b"2", VERSION_ABSENT)], TableKeyVersionError),
        ([TableUpdate(b"a", b"2", version + 1)], TableKeyVersionError),
        ([TableUpdate(b"x", b"2", version)], TableKeyMissingError),
        ([TableUpdate(b"a", b"2", version + 1), TableUpdate(b"x", b"2", 0)], TableKeyMissingError),
        ([*(TableUpdate(b"n%d" % n, b"") for n in range(9)), TableUpdate(b"a", b"2", 5)], TableKeyVersionError),
    ):
        with pytest.raises(error):
            await segments.table_put(TABLE, updates)
    assert await pages(segments, 10) == [TableEntry(b"a", b"1", version)]
    with pytest.raises(TableKeyVersionError):
        await segments.table_remove(TABLE, [TableRemoval(b"a", version + 1)])
    with pytest.raises(TableKeyMissingError):
        await segments.table_remove(TABLE, [TableRemoval(b"x", 3)])
    await segments.table_remove(TABLE, [TableRemoval(b"x"), TableRemoval(b"y", VERSION_ABSENT)])
    await segments.table_remove(TABLE, [TableRemoval(b"a", version)])
    assert await pages(segments, 10) == []


async def test_a_table_may_be_demanded_to_have_a_length(segments: Segments) -> None:
    await segments.create_table(TABLE)
    await segments.table_put(TABLE, [TableUpdate(b"a", b"1")], expected_offset=0)
    with pytest.raises(BadOffsetError) as caught:
        await segments.table_put(TABLE, [TableUpdate(b"b", b"1")], expected_offset=0)
    assert caught.value.actual == 19
    with pytest.raises(BadOffsetError):
        await segments.table_remove(TABLE, [TableRemoval(b"a")], expected_offset=18)
    await segments.table_remove(TABLE, [TableRemoval(b"a")], expected_offset=19)


async def test_concurrent_increments_of_one_key_all_count(segments: Segments) -> None:
    """SS-151: 100 tasks increment by compare and set; each success counts once."""
    await segments.create_table(TABLE)
    await segments.table_put(TABLE, [TableUpdate(b"n", b"0")])

    async def increment() -> None:
        while True:
            (entry,) = await segments.table_get(TABLE, [b"n"])
            assert entry is not None
            try:
                await segments.table_put(TABLE, [TableUpdate(b"n", b"%d" % (int(entry.value) + 1), entry.version)])
            except TableKeyVersionError:
                continue
            return

    await asyncio.gather(*(increment() for _ in range(100)))
    (entry,) = await segments.table_get(TABLE, [b"n"])
    assert entry is not None
    assert entry.value == b"100"


async def test_pages_show_what_stays_exactly_once(segments: Segments) -> None:
    """SS-164: while other keys come and go between the pages."""
    await segments.create_table(TABLE)
    stay = {b"s%02d" % number: b"%d" % number for number in range(30)}
    await segments.table_put(TABLE, [TableUpdate(key, value) for key, value in stay.items()])
    seen: list[bytes] = []
    token = b""
    turn = 0
    while (page := await segments.table_entries(TABLE, limit=4, token=token)).entries:
        assert len(page.entries) <= 4
        seen += [entry.key for entry in page.entries]
        token = page.token
        await segments.table_put(TABLE, [TableUpdate(b"x%02d" % turn, b"")])
        await segments.table_remove(TABLE, [TableRemoval(b"x%02d" % (turn - 1))])
        turn += 1
    assert [key for key in seen if key in stay] == sorted(stay)


async def test_deltas_show_the_last_write_of_each_key(segments: Segments) -> None:
    """SS-165: from the start, from in between, from the end, and beyond it."""
    await segments.create_table(TABLE)
    await segments.table_put(TABLE, [TableUpdate(b"a", b"1"), TableUpdate(b"b", b"1"), TableUpdate(b"c", b"1")])
    await segments.table_remove(TABLE, [TableRemoval(b"b")])
    first = await segments.table_delta(TABLE, position=0, limit=100)
    assert {entry.key for entry in first.entries} == {b"a", b"c"}
    assert (first.should_clear, first.reached_end) == (False, True)
    await segments.table_put(TABLE, [TableUpdate(b"a", b"2")])
    second = await segments.table_delta(TABLE, position=first.last_position, limit=100)
    assert [(entry.key, entry.value) for entry in second.entries] == [(b"a", b"2")]
    end = await segments.table_delta(TABLE, position=second.last_position, limit=100)
    assert (list(end.entries), end.reached_end) == ([], True)
    with pytest.raises(InvalidArgumentError):
        await segments.table_delta(TABLE, position=second.last_position + 1, limit=1)
    collected: dict[bytes, bytes] = {}
    position = 0
    while True:
        delta = await segments.table_delta(TABLE, position=position, limit=1)
        collected.update((entry.key, entry.value) for entry in delta.entries)
        if delta.reached_end:
            break
        position = delta.last_position
    collected.pop(b"b", None)  # Removed after the first page: deltas do not report the removal later.
    assert collected == {b"a": b"2", b"c": b"1"}


async def test_keys_and_values_have_limits(segments: Segments) -> None:
    """SS-166: the longest are taken, one byte more is not; fixed keys have one length."""
    await segments.create_table(TABLE)
    key, value = b"k" * TABLE_KEY_LENGTH_MAX, b"v" * TABLE_VALUE_LENGTH_MAX
    await segments.table_put(TABLE, [TableUpdate(key, value)])
    (entry,) = await segments.table_get(TABLE, [key])
    assert entry is not None
    assert entry.value == value
    for update in (TableUpdate(key + b"k", b""), TableUpdate(b"", b""), TableUpdate(b"k", value + b"v")):
        with pytest.raises(InvalidArgumentError):
            await segments.table_put(TABLE, [update])
        if len(update.key) != 1:
            with pytest.raises(InvalidArgumentError):
                await segments.table_get(TABLE, [update.key])
    await segments.create_table("s/_tables/fixed", key_length=4)
    await segments.table_put("s/_tables/fixed", [TableUpdate(b"1234", b"")])
    with pytest.raises(InvalidArgumentError):
        await segments.table_put("s/_tables/fixed", [TableUpdate(b"123", b"")])


async def test_more_is_got_at_once_than_one_reply_can_have(segments: Segments) -> None:
    """In bytes, and in keys; all in the order asked for, those that are absent, too."""
    await segments.create_table(TABLE)
    keys = [b"%02d" % number for number in range(17)]
    for key in keys:
        await segments.table_put(TABLE, [TableUpdate(key, key[-1:] * TABLE_VALUE_LENGTH_MAX)])
    wanted = [*reversed(keys), b"absent", keys[3]]
    found = await segments.table_get(TABLE, wanted)
    assert [entry and (entry.key, entry.value[:1], len(entry.value)) for entry in found] == [
        None if key == b"absent" else (key, key[-1:], TABLE_VALUE_LENGTH_MAX) for key in wanted
    ]
    absent = [b"absent-%d" % number for number in range(TABLE_READ_KEY_COUNT_MAX)]
    found = await segments.table_get(TABLE, [*absent, keys[0]])
    assert len(found) == len(absent) + 1
    assert set(found[:-1]) == {None}
    assert found[-1] is not None
    assert found[-1].key == keys[0]


async def test_more_bytes_of_keys_are_requested_than_one_request_can_have(segments: Segments) -> None:
    """Two thousand keys of the greatest length are 16 MiB."""
    await segments.create_table(TABLE)
    keys = [b"%04d" % number * (TABLE_KEY_LENGTH_MAX // 4) for number in range(2100)]
    await segments.table_put(TABLE, [TableUpdate(keys[-1], b"last")])
    found = await segments.table_get(TABLE, keys)
    assert [entry and entry.value for entry in found] == [None] * 2099 + [b"last"]


async def test_pages_of_long_keys_are_as_short_as_one_reply_is(segments: Segments) -> None:
    """As many keys as a page may have would take 80 MB."""
    await segments.create_table(TABLE)
    keys = [b"%04d" % number * (TABLE_KEY_LENGTH_MAX // 4) for number in range(2100)]
    for start in range(0, len(keys), 300):
        await segments.table_put(TABLE, [TableUpdate(key, b"") for key in keys[start : start + 300]])
    found: list[bytes] = []
    token = b""
    while (page := await segments.table_keys(TABLE, limit=10_000, token=token)).keys:
        found += [key for key, _ in page.keys]
        token = page.token
    assert found == keys


async def test_a_table_may_be_deleted_only_if_empty(segments: Segments) -> None:
    """SS-168: a key that was removed, and one that never existed, do not count."""
    await segments.create_table(TABLE)
    await segments.table_put(TABLE, [TableUpdate(b"a", b"1")])
    with pytest.raises(TableNotEmptyError):
        await segments.delete_table(TABLE, must_be_empty=True)
    await segments.table_remove(TABLE, [TableRemoval(b"a"), TableRemoval(b"never")])
    await segments.delete_table(TABLE, must_be_empty=True)
    with pytest.raises(NoSuchSegmentError):
        await segments.table_info(TABLE)


async def test_bulk_calls_have_a_result_for_each_name(segments: Segments) -> None:
    """A name that fails does not affect the others; a name may be given twice."""
    names = [f"s/t/{number}.#epoch.0" for number in range(300)]
    for name in names[::2]:
        await segments.create_segment(name)
        await segments.append(name, b"x" * int(name[4:].partition(".")[0]))
    infos = await segments.segment_infos([*names, names[2]])
    assert len(infos) == 301
    for number, info in enumerate(infos[:300]):
        if number % 2:
            assert isinstance(info, NoSuchSegmentError)
        else:
            assert isinstance(info, SegmentInfo)
            assert (info.name, info.length) == (names[number], number)
    assert infos[300] == infos[2]
    deleted = await segments.delete_segments(names)
    assert [type(result) for result in deleted] == [type(None), NoSuchSegmentError] * 150
    assert retriable_names(names, deleted) == []
    assert list(await segments.segment_infos([])) == []
    assert all(isinstance(info, NoSuchSegmentError) for info in await segments.segment_infos(names[:3]))


async def test_segments_are_truncated_together(segments: Segments) -> None:
    """Each has a result of its own; one that is refused, or missing, does not affect the others."""
    names = [f"s/t/{number}.#epoch.0" for number in range(150)]
    for name in names[:100]:
        await segments.create_segment(name)
        await segments.append(name, b"x" * 10)
    offsets = [(name, number % 12) for number, name in enumerate(names)]
    results = await segments.truncate_segments(offsets)
    assert len(results) == 150
    for (_, offset), result in zip(offsets[:100], results[:100], strict=True):
        if offset > 10:
            assert isinstance(result, SegmentTruncatedError)
            assert (result.start_offset, result.offset) == (0, 11)
        else:
            assert result is None
    assert all(isinstance(result, NoSuchSegmentError) for result in results[100:])
    for (_, offset), info in zip(offsets[:100], await segments.segment_infos(names[:100]), strict=True):
        assert isinstance(info, SegmentInfo)
        assert (info.start_offset, info.length) == (offset if offset <= 10 else 0, 10)
    # Again: what has happened is fine, and one name may come twice.
    assert list(await segments.truncate_segments([(names[3], 3), (names[3], 5), (names[4], 4)])) == [None] * 3
    (refused,) = await segments.truncate_segments([(names[3], 4)])
    assert isinstance(refused, SegmentTruncatedError)
    assert refused.start_offset == 5
    assert list(await segments.truncate_segments([])) == []


async def test_fixed_key_tables_are_iterated_by_range(segments: Segments) -> None:
    """Both bounds are included; the next page begins at the successor of the last key. SS-169."""
    table = "s/fixed_kvtable/0.#epoch.0"
    await segments.create_table(table, key_length=2)
    keys = [bytes([high, low]) for high in (0, 1, 255) for low in (0, 1, 128, 255)]
    await segments.table_put(table, [TableUpdate(key, key * 2) for key in reversed(keys)])

    async def all_between(first: bytes, last: bytes | None) -> list[bytes]:
        found: list[bytes] = []
        start: bytes | None = first
        while start is not None:
            page = await segments.table_entries(table, limit=3, first=start, last=last)
            names = await segments.table_keys(table, limit=3, first=start, last=last)
            assert [entry.key for entry in page.entries] == [key for key, _ in names.keys]
            assert [entry.version for entry in page.entries] == [version for _, version in names.keys]
            assert all(entry.value == entry.key * 2 for entry in page.entries)
            assert page.token == names.token == b""
            if not page.entries:
                break
            found += [entry.key for entry in page.entries]
            start = next_fixed_key(found[-1])
        return found

    assert await all_between(b"", None) == keys
    assert await all_between(keys[1], keys[9]) == keys[1:10]
    assert await all_between(b"\0\2", b"\1\0\0") == keys[2:5]
    assert await all_between(keys[5], keys[4]) == []
    assert await all_between(keys[5], b"") == []
    for call in (
        segments.table_entries(table, limit=3, token=keys[1]),
        segments.table_keys(table, limit=3, token=keys[1]),
    ):
        with pytest.raises(InvalidArgumentError):
            await call
    assert next_fixed_key(b"\xff\xff") is None


async def test_hash_tables_have_no_ranges_but_keys_alone(segments: Segments) -> None:
    await segments.create_table(TABLE)
    versions = await segments.table_put(TABLE, [TableUpdate(b"%02d" % number, b"v") for number in range(10)])
    page = await segments.table_keys(TABLE, limit=7)
    rest = await segments.table_keys(TABLE, limit=7, token=page.token)
    assert sorted([*page.keys, *rest.keys]) == [(b"%02d" % at, version) for at, version in enumerate(versions)]
    assert list((await segments.table_keys(TABLE, limit=7, token=rest.token)).keys) == []
    for call in (
        segments.table_entries(TABLE, limit=3, first=b"0"),
        segments.table_entries(TABLE, limit=3, last=b"1"),
        segments.table_keys(TABLE, limit=3, last=b"1"),
    ):
        with pytest.raises(InvalidArgumentError):
            await call


async def test_an_offset_without_a_known_border_leads_to_an_end(segments: Segments) -> None:
    """The answer is nevertheless a border between appends: the start, or the segment's length."""
    await segments.create_segment(A)
    await segments.append(A, b"0123456789")
    await segments.truncate_segment(A, 4)
    for offset, behind, before in ((4, 4, 4), (5, 10, 4), (10, 10, 10), (11, 10, 10)):
        assert await segments.locate_offset(A, offset) == behind, offset
        assert await segments.locate_offset(A, offset, before=True) == before, offset
    for is_before in (False, True):
        with pytest.raises(SegmentTruncatedError) as caught:
            await segments.locate_offset(A, 3, before=is_before)
        assert (caught.value.start_offset, caught.value.offset) == (4, 3)
