"""What every `SortedIndex` does: the one for tests and the B+tree, with small and with usual pages."""

from __future__ import annotations

import random

import pytest

from penstock.model.errors import InvalidArgumentError, StorageError
from penstock.segmentstore.container.btree.sorted_index import KEY_LENGTH_MAX, MARK_LENGTH_MAX, SortedIndex
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container_settings import IndexSettings
from penstock.segmentstore.settings import CacheSettings
from penstock_simulation.memory_index import MemoryIndexStorage, MemorySortedIndex
from support.btree import NO_CACHE, TINY, new_index


@pytest.fixture(params=["memory", "btree", "btree-tiny-pages", "btree-without-cache"])
def index(request: pytest.FixtureRequest) -> SortedIndex:
    match request.param:
        case "memory":
            return MemorySortedIndex()
        case "btree":
            return new_index(MemoryIndexStorage(), settings=IndexSettings())
        case "btree-tiny-pages":
            return new_index(MemoryIndexStorage(), settings=TINY, cache=Cache(CacheSettings()))
        case _:
            return new_index(MemoryIndexStorage(), settings=TINY, cache=Cache(NO_CACHE))


def value(number: int) -> bytes:
    return number.to_bytes(8, "big")


async def test_empty_index_has_nothing(index: SortedIndex) -> None:
    await index.open()
    assert (index.entry_count, index.stored_bytes, index.mark) == (0, 0, b"")
    assert await index.get([b"a", b"b"]) == [None, None]
    assert await index.get([]) == []
    assert await index.page(limit=10) == []


async def test_gives_what_was_put_and_nothing_that_was_removed(index: SortedIndex) -> None:
    await index.update({b"a": value(1), b"b": value(2), b"c": value(3)}, b"")
    await index.update({b"b": None, b"c": value(4), b"d": value(5), b"absent": None}, b"")
    assert await index.get([b"d", b"a", b"b", b"c", b"absent", b"a"]) == [
        value(5),
        value(1),
        None,
        value(4),
        None,
        value(1),
    ]
    assert index.entry_count == 3


async def test_cached_lookup_says_the_same_or_that_it_does_not_know(index: SortedIndex) -> None:
    entries = {b"%05d" % number: value(number) for number in range(300)}
    await index.update(entries, b"")
    for key in (b"00000", b"00299", b"00123", b"00123x", b"", b"z"):
        is_known, found = index.get_cached(key)
        assert (is_known, found) in ((True, entries.get(key)), (False, None))


async def test_pages_continue_where_the_last_one_ended(index: SortedIndex) -> None:
    entries = [(b"%05d" % number, value(number)) for number in range(500)]
    await index.update(dict(entries), b"")
    found: list[tuple[bytes, bytes]] = []
    while page := await index.page(after=found[-1][0] if found else b"", limit=7):
        found += page
        if len(page) < 7:
            break
    assert found == entries


@pytest.mark.parametrize("bounds", [(0, 499), (100, 100), (99, 301), (250, 1000), (-1, 3), (300, 200)])
@pytest.mark.parametrize("limit", [1, 50, 1000])
async def test_range_includes_its_bounds(index: SortedIndex, bounds: tuple[int, int], limit: int) -> None:
    numbers = range(0, 500, 2)
    await index.update({b"%05d" % number: value(number) for number in numbers}, b"")
    first, last = (b"%05d" % max(0, bound) for bound in bounds)
    expected = [number for number in numbers if max(0, bounds[0]) <= number <= bounds[1]]
    found = await index.page(first=first, last=last, limit=limit)
    assert [int(key) for key, _ in found] == expected[:limit]
    # `after` shuts its bound out, if it is the tighter one.
    found = await index.page(after=first, first=b"0", last=last, limit=limit)
    assert [int(key) for key, _ in found] == [number for number in expected if number > max(0, bounds[0])][:limit]
    found = await index.page(after=b"0", first=first, last=last, limit=limit)
    assert [int(key) for key, _ in found] == expected[:limit]


async def test_mark_is_set_with_each_update_and_survives_opening(index: SortedIndex) -> None:
    await index.update({b"a": value(1)}, b"one")
    assert index.mark == b"one"
    generation = index.generation
    await index.update({}, b"x" * MARK_LENGTH_MAX)
    assert index.generation > generation
    await index.open()
    assert index.mark == b"x" * MARK_LENGTH_MAX
    assert await index.get([b"a"]) == [value(1)]


async def test_keys_of_any_length_keep_their_order(index: SortedIndex) -> None:
    """One byte, the longest, prefixes of each other, all bytes there are."""
    keys = [b"\x00", b"\x00\x00", b"\xff", b"\xff" * KEY_LENGTH_MAX, b"\xff" * (KEY_LENGTH_MAX - 1), b"a", b"a\x00"]
    keys += [bytes([byte]) * length for byte in range(256) for length in (2, 40)]
    await index.update({key: value(number) for number, key in enumerate(keys)}, b"")
    assert [key for key, _ in await index.page(limit=10_000)] == sorted(set(keys))
    assert None not in await index.get(keys)


@pytest.mark.parametrize(
    ("changes", "mark"),
    [
        ({b"": value(0)}, b""),
        ({b"k" * (KEY_LENGTH_MAX + 1): value(0)}, b""),
        ({b"": None}, b""),
        ({b"k": b"1234567"}, b""),
        ({b"k": b"123456789"}, b""),
        ({b"k": b""}, b""),
        ({}, b"m" * (MARK_LENGTH_MAX + 1)),
    ],
)
async def test_refused_update_changes_nothing(
    index: SortedIndex, changes: dict[bytes, bytes | None], mark: bytes
) -> None:
    await index.update({b"a": value(1)}, b"before")
    with pytest.raises(InvalidArgumentError):
        await index.update({b"b": value(2), **changes}, mark)
    assert (index.entry_count, index.mark) == (1, b"before")
    assert await index.page(limit=10) == [(b"a", value(1))]


async def test_generation_grows_with_each_visible_update(index: SortedIndex) -> None:
    await index.open()
    seen = [index.generation]
    for number in range(5):
        await index.update({b"a": value(number)}, b"")
        seen.append(index.generation)
    assert seen == sorted(set(seen))


async def test_everything_can_go_and_come_back(index: SortedIndex) -> None:
    keys = [b"%04d" % number for number in range(400)]
    random.Random(1).shuffle(keys)
    for _ in range(3):
        await index.update(dict.fromkeys(keys, value(1)), b"full")
        assert index.entry_count == 400
        for start in range(0, 400, 50):
            await index.update(dict.fromkeys(keys[start : start + 50]), b"empty")
        assert (index.entry_count, await index.page(limit=10)) == (0, [])


async def test_failed_update_is_invisible_and_can_be_repeated() -> None:
    """The fault injection of the index for tests; that of the B+tree is in its own tests."""
    index = MemorySortedIndex()
    await index.update({b"a": value(1)}, b"1")
    for has_effect in (False, True):
        index.fail_update(has_effect=has_effect)
        with pytest.raises(StorageError):
            await index.update({b"a": value(2)}, b"2")
    await index.open()
    assert await index.get([b"a"]) == [value(2)]
