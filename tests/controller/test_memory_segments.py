"""The in-memory segments that the controller's tests stand on: the parts that are easy to get wrong."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.errors import (
    BadOffsetError,
    InvalidArgumentError,
    NoSuchSegmentError,
    SegmentSealedError,
    SegmentTruncatedError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from penstock.model.segments import VERSION_ABSENT, TableRemoval, TableUpdate
from penstock_simulation.memory_segments import MemorySegments


@pytest.fixture
async def table() -> MemorySegments:
    made = MemorySegments()
    await made.create_table("t")
    return made


async def test_versions_are_byte_offsets_in_the_log(table: MemorySegments) -> None:
    """Wire protocol 6.2: an entry takes 17 bytes, key and value; a missing key comes before a wrong version."""
    assert list(await table.table_put("t", [TableUpdate(b"a", b"123"), TableUpdate(b"bb", b"")])) == [0, 21]
    assert (await table.table_info("t")).length == 40
    with pytest.raises(TableKeyMissingError):
        await table.table_put("t", [TableUpdate(b"a", b"", 7), TableUpdate(b"x", b"", 7)])
    with pytest.raises(TableKeyVersionError):
        await table.table_put("t", [TableUpdate(b"n", b"", VERSION_ABSENT), TableUpdate(b"a", b"", VERSION_ABSENT)])
    with pytest.raises(BadOffsetError):
        await table.table_put("t", [TableUpdate(b"n", b"")], expected_offset=39)
    assert list(await table.table_get("t", [b"n"])) == [None]


async def test_delta_returns_the_last_write_per_key_since_a_position(table: MemorySegments) -> None:
    """Wire protocol 6.5: overwritten and removed entries are left out; pages end at a position to continue from."""
    await table.table_put("t", [TableUpdate(b"a", b"1"), TableUpdate(b"b", b"1"), TableUpdate(b"c", b"1")])
    await table.table_put("t", [TableUpdate(b"a", b"2")])
    await table.table_remove("t", [TableRemoval(b"b")])
    first = await table.table_delta("t", position=0, limit=1)
    assert [(entry.key, entry.value) for entry in first.entries] == [(b"c", b"1")]
    assert not first.reached_end
    rest = await table.table_delta("t", position=first.last_position, limit=10)
    assert [(entry.key, entry.value) for entry in rest.entries] == [(b"a", b"2")]
    assert rest.reached_end
    assert rest.last_position == (await table.table_info("t")).length
    with pytest.raises(InvalidArgumentError):
        await table.table_delta("t", position=10_000, limit=1)


async def test_waiting_read_is_woken_by_an_append_and_by_a_seal() -> None:
    """A read at the tail waits; it gets what is appended, or learns that nothing follows."""
    store = MemorySegments()
    await store.create_segment("s")
    waiting = asyncio.ensure_future(store.read("s", 0, 10, wait=True))
    await asyncio.sleep(0)
    await store.append("s", b"abc")
    found = await waiting
    assert (found.joined(), found.is_at_tail) == (b"abc", True)
    waiting = asyncio.ensure_future(store.read("s", 3, 10, wait=True))
    await asyncio.sleep(0)
    await store.seal_segment("s")
    assert (await waiting).is_end_of_segment
    with pytest.raises(SegmentSealedError):
        await store.append("s", b"x")


async def test_merge_takes_sources_once_and_in_order() -> None:
    """A source that is gone counts as merged: the answer is the length as it is."""
    store = MemorySegments()
    for name in ("s", "a", "b"):
        await store.create_segment(name)
    await store.append("a", b"aa")
    await store.append("b", b"b")
    assert list(await store.merge_segments("s", ["a", "b"])) == [2, 3]
    assert list(await store.merge_segments("s", ["b", "a"])) == [3, 3]
    with pytest.raises(NoSuchSegmentError):
        await store.merge_segments("none", ["a"])


async def test_truncation_moves_the_start_only() -> None:
    """Offsets stay; reads before the start and truncations outside are refused."""
    store = MemorySegments()
    await store.create_segment("s")
    await store.append("s", b"0123456789")
    await store.truncate_segment("s", 4)
    assert (await store.read("s", 4, 3)).joined() == b"456"
    for bad in (3, 11):
        with pytest.raises(SegmentTruncatedError):
            await store.truncate_segment("s", bad)
    with pytest.raises(SegmentTruncatedError):
        await store.read("s", 3, 1)
