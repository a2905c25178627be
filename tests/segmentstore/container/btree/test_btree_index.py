"""`BTreeIndex` over memory: faults, owners old and new, readers during updates, compaction, caching.

What every sorted index does is in ``conformance/test_sorted_index.py``. SS-n: docs/spec/segment-store.md.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import (
    BadOffsetError,
    CorruptionError,
    InvalidArgumentError,
    LogFencedError,
    SegmentTruncatedError,
    StorageError,
    StorageNotPrimaryError,
)
from penstock.model.segments import Buffer
from penstock.segmentstore.container.btree.footer import FOOTER_LENGTH
from penstock.segmentstore.container.btree.page_cache import PAGE_MEMORY_OVERHEAD
from penstock.segmentstore.container.btree.tree import BTreeIndex
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container_settings import IndexSettings
from penstock.segmentstore.settings import CacheSettings
from penstock_simulation.memory_index import MemoryIndexStorage
from support.btree import NO_CACHE, TINY, check_tree, new_index


def value(number: int) -> bytes:
    return number.to_bytes(8, "big")


def numbered(numbers: range, offset: int = 0) -> dict[bytes, bytes | None]:
    return {b"key-%05d" % number: value(number + offset) for number in numbers}


async def everything(index: BTreeIndex) -> dict[bytes, bytes]:
    return dict(await index.page(limit=1_000_000))


async def until_appending(storage: MemoryIndexStorage, count: int) -> None:
    """Let the loop go round until that many appends were begun."""
    for _ in range(1000):
        if storage.calls["append"] >= count:
            return
        await asyncio.sleep(0)
    raise TimeoutError


# -- Against a dictionary

KEYS = st.one_of(
    st.integers(0, 400).map(lambda number: b"%03d" % number),
    st.binary(min_size=1, max_size=3),
    st.binary(min_size=1, max_size=200),
    st.integers(1, 8192).map(lambda length: b"x" * length),
)
BATCHES = st.lists(
    st.one_of(
        st.dictionaries(KEYS, st.one_of(st.none(), st.integers(0, 1000).map(value)), max_size=40),
        # Many at once, in order: bulk loads and bulk removals.
        st.tuples(st.integers(0, 300), st.integers(1, 300), st.booleans()).map(
            lambda what: {b"%03d" % number: value(1) if what[2] else None for number in range(what[0], sum(what[:2]))}
        ),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(
    batches=BATCHES,
    page_bytes=st.sampled_from([128, 300, 8192]),
    slack=st.sampled_from([0, 5000]),
    is_cached=st.booleans(),
    reopens=st.booleans(),
)
def test_an_index_equals_a_dictionary_under_any_operations(
    batches: list[dict[bytes, bytes | None]], page_bytes: int, slack: int, is_cached: bool, reopens: bool
) -> None:
    """Random batches, in the same or in a new instance after each; the whole tree is checked each time."""

    async def run() -> None:
        storage = MemoryIndexStorage()
        cache = Cache(CacheSettings() if is_cached else NO_CACHE)
        tree = replace(TINY, page_bytes=page_bytes, compact_slack_bytes=slack)
        index = new_index(storage, settings=tree, cache=cache)
        expected: dict[bytes, bytes] = {}
        for number, batch in enumerate(batches):
            await index.update(batch, b"%d" % number)
            expected.update({key: new for key, new in batch.items() if new is not None})
            for key in [key for key, new in batch.items() if new is None]:
                expected.pop(key, None)
            if reopens:
                index.close()
                index = new_index(storage, settings=tree, cache=cache)
                await index.open()
            await check_tree(index)
            assert index.mark == b"%d" % number
            ordered = sorted(expected.items())
            assert await index.page(limit=10_000) == ordered
            assert await index.get(list(batch)) == [expected.get(key) for key in batch]
            middle = ordered[len(ordered) // 2][0] if ordered else b"m"
            assert await index.page(after=middle, limit=5) == [entry for entry in ordered if entry[0] > middle][:5]
            assert await index.page(last=middle, limit=10_000) == [entry for entry in ordered if entry[0] <= middle]
        index.close()
        assert cache.used_bytes == 0

    asyncio.run(run())


async def test_many_random_batches_leave_a_sound_tree() -> None:
    """Larger than the above: 1 500 keys in pages of 256 bytes make five levels, which come and go."""
    rng = random.Random(7)
    index = new_index(MemoryIndexStorage())
    expected: dict[bytes, bytes] = {}
    heights = set()
    for round_number in range(120):
        batch: dict[bytes, bytes | None] = {}
        if round_number % 40 > 30:
            batch = dict.fromkeys(rng.sample(sorted(expected), len(expected) // 2))
        for _ in range(rng.choice([1, 10, 200])):
            batch[rng.randrange(1500).to_bytes(2, "big") * rng.choice([1, 4])] = value(round_number)
        await index.update(batch, b"")
        expected.update({key: new for key, new in batch.items() if new is not None})
        for key in [key for key, new in batch.items() if new is None]:
            expected.pop(key, None)
        await check_tree(index)
        assert index._state is not None
        heights.add(index._state.height)
    assert await everything(index) == expected
    assert max(heights) >= 4


async def test_removals_leave_a_low_tree_of_few_pages() -> None:
    """Small leaves join, and a root of one child goes."""
    index = new_index(MemoryIndexStorage())
    await index.update(numbered(range(2000)), b"")
    assert index._state is not None
    height, live_bytes = index._state.height, index._state.live_bytes
    for start in range(0, 2000, 7):
        await index.update(dict.fromkeys(numbered(range(start, start + 7)) if start % 700 else []), b"")
        await check_tree(index)
    remaining = await everything(index)
    assert len(remaining) == index.entry_count == 21
    assert index._state.height < height
    assert index._state.live_bytes < live_bytes // 8


@pytest.mark.parametrize("seed", range(4))
async def test_ranges_that_go_and_come_back_leave_a_sound_tree(seed: int) -> None:
    """Whole subtrees go at once: what is beside them takes their bounds over, untouched, and is filled up later."""
    rng = random.Random(seed)
    index = new_index(MemoryIndexStorage(), settings=replace(TINY, page_bytes=128, compact_slack_bytes=100_000))
    expected: dict[bytes, bytes] = {}
    for round_number in range(150):
        start = rng.choice([0, rng.randrange(1000)])
        touched = numbered(range(start, start + rng.choice([5, 30, 250, 600])), round_number)
        if rng.random() < 0.5:
            touched = dict.fromkeys(touched)
        await index.update(touched, b"")
        for key, new in touched.items():
            expected.pop(key, None)
            if new is not None:
                expected[key] = new
        await check_tree(index)
        assert await everything(index) == expected
        assert await index.get(list(touched)) == list(touched.values())


async def test_values_of_any_fixed_length() -> None:
    for value_length in (0, 1, 24, 1024):
        storage = MemoryIndexStorage()
        index = new_index(storage, value_length=value_length)
        entries = {b"%d" % number: bytes([number]) * value_length for number in range(100)}
        await index.update(entries, b"")
        assert dict(await new_index(storage, value_length=value_length).page(limit=1000)) == entries


@pytest.mark.parametrize("value_length", [-1, 1025])
def test_impossible_values_are_refused(value_length: int) -> None:
    with pytest.raises(InvalidArgumentError, match="values of"):
        new_index(MemoryIndexStorage(), value_length=value_length)


@pytest.mark.parametrize("page_bytes", [0, 127, 32 * 1024 + 1])
def test_impossible_pages_are_refused(page_bytes: int) -> None:
    with pytest.raises(InvalidArgumentError, match="page_bytes"):
        new_index(MemoryIndexStorage(), settings=IndexSettings(page_bytes=page_bytes))


# -- Faults


@pytest.mark.parametrize("error", [StorageError("no"), OSError("no"), asyncio.CancelledError()])
@pytest.mark.parametrize("has_effect", [False, True])
async def test_failed_append_leaves_the_state_before_or_after(error: BaseException, has_effect: bool) -> None:
    """SS-133: pages and footer are one append. Whether or not it took place before the crash: values are right.

    The instance shows the state before until it is opened, or updated, again; a new one what is in storage.
    """
    storage = MemoryIndexStorage()
    index = new_index(storage)
    before, after = numbered(range(200)), numbered(range(100, 300), 1)
    await index.update(before, b"before")
    generation = index.generation
    storage.fail("append", has_effect=has_effect, error=error)
    with pytest.raises(type(error)):
        await index.update(after, b"after")
    assert (await everything(index), index.mark, index.generation) == (before, b"before", generation)
    successor = new_index(storage)
    await successor.open()
    await check_tree(successor)
    assert await everything(successor) == (before | after if has_effect else before)
    assert successor.mark == (b"after" if has_effect else b"before")
    # Repeated as it was, by the same instance.
    await index.update(after, b"after")
    await check_tree(index)
    assert (await everything(index), index.mark) == (before | after, b"after")
    assert index.generation > generation


async def test_update_that_is_cancelled_while_it_waits_changes_nothing() -> None:
    storage = MemoryIndexStorage()
    index = new_index(storage)
    await index.update(numbered(range(50)), b"")
    storage.hold("append")
    task = asyncio.ensure_future(index.update(numbered(range(50), 1), b""))
    await until_appending(storage, 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    storage.release("append")
    assert await everything(index) == numbered(range(50))
    await index.update({b"new": value(1)}, b"")
    assert await everything(index) == {**numbered(range(50)), b"new": value(1)}


async def test_failed_open_or_read_fails_the_update_and_the_next_one_opens() -> None:
    storage = MemoryIndexStorage()
    await new_index(storage).update(numbered(range(100)), b"")
    index = new_index(storage, cache=Cache(NO_CACHE))
    storage.fail("open")
    with pytest.raises(StorageError, match="before open"):
        await index.update({b"a": value(1)}, b"")
    for _ in range(2):
        storage.fail("read")
        with pytest.raises(StorageError, match="before read"):
            await index.update({b"a": value(1)}, b"")
    await index.update({b"a": value(1)}, b"")
    assert await everything(index) == {**numbered(range(100)), b"a": value(1)}


class TornStorage(MemoryIndexStorage):
    """Fails an append in the middle: bytes are left behind the committed length, where later writes go."""

    torn = b""

    async def append(self, offset: int, data: Sequence[Buffer]) -> int:
        """See `IndexStorage.append`."""
        if self.torn:
            return await super().append(offset, data)
        self.torn = b"".join(data)[: sum(map(len, data)) // 2]
        raise StorageError("torn")


async def test_a_partial_write_is_never_read() -> None:
    """SS-134: a write that was cut leaves bytes behind the committed length; the footer is found before it."""
    storage = TornStorage()
    index = new_index(storage)
    storage.torn = b"nothing yet"
    await index.update(numbered(range(100)), b"good")
    storage.torn = b""
    with pytest.raises(StorageError, match="torn"):
        await index.update(numbered(range(100), 1), b"torn")
    assert len(storage.torn) > FOOTER_LENGTH
    successor = new_index(storage)
    await successor.open()
    assert (await everything(successor), successor.mark) == (numbered(range(100)), b"good")


async def test_partial_write_within_the_length_is_reported() -> None:
    """SS-134: storage that counts the bytes of a partial write breaks its contract, which is reported as corruption."""
    storage = MemoryIndexStorage()
    await new_index(storage).update(numbered(range(100)), b"")
    for length in (1, FOOTER_LENGTH - 1, FOOTER_LENGTH, 5000):
        other = MemoryIndexStorage()
        other.data = storage.data + bytes(length)
        with pytest.raises(CorruptionError, match="index at byte") as raised:
            await new_index(other).open()
        assert (raised.value.path, raised.value.offset) == ("index", other.length - FOOTER_LENGTH)
    other.data = storage.data[: FOOTER_LENGTH - 1]
    with pytest.raises(CorruptionError, match="fewer than"):
        await new_index(other).open()


async def test_every_changed_byte_is_reported() -> None:
    """SS-134: one update fills the segment; then each of its bytes is changed, and everything is read."""
    storage = MemoryIndexStorage()
    await new_index(storage, settings=replace(TINY, page_bytes=128)).update(numbered(range(12)), b"mark")
    good = bytes(storage.data)
    for position in range(len(good)):
        storage.data = bytearray(good)
        storage.data[position] ^= 1 << position % 8
        with pytest.raises(CorruptionError) as raised:
            await everything(new_index(storage))
        assert raised.value.path == "index"
        assert raised.value.offset <= position


async def test_page_in_the_place_of_another_is_reported() -> None:
    """Two leaves of one length change places, checksums and all."""
    storage = MemoryIndexStorage()
    await new_index(storage, settings=replace(TINY, page_bytes=128)).update(numbered(range(12)), b"")
    length = next(
        length for length in range(1, 129) if bytes(storage.data[length : length + 2]) == bytes(storage.data[:2])
    )
    first, second = storage.data[:length], storage.data[length : 2 * length]
    storage.data[: 2 * length] = second + first
    with pytest.raises(CorruptionError, match="belongs to offset"):
        await everything(new_index(storage))


async def test_other_value_length_is_reported() -> None:
    storage = MemoryIndexStorage()
    await new_index(storage, value_length=8).update({b"a": value(1)}, b"")
    with pytest.raises(CorruptionError, match="values are 8 bytes long, not 24"):
        await new_index(storage, value_length=24).open()


async def test_needed_page_before_the_start_is_reported() -> None:
    """Pages that the index needs were truncated: opening the footer reports it, or else the read does."""
    storage = MemoryIndexStorage()
    index = new_index(storage, cache=Cache(NO_CACHE))
    await index.update(numbered(range(100)), b"")
    await storage.truncate(300)
    with pytest.raises(CorruptionError, match="the segment starts at 300"):
        await index.get([b"key-00000"])
    with pytest.raises(CorruptionError, match="the segment starts at 300"):
        await index.update({b"key-00000": value(7)}, b"")
    with pytest.raises(CorruptionError, match="segment's start 300"):
        await new_index(storage).open()


# -- Compaction


async def test_stored_bytes_stay_in_bounds() -> None:
    """SS-135: 100 000 updates of 100 keys, 20 in each step; the head is given back again and again."""
    storage = MemoryIndexStorage()
    index = new_index(storage, settings=replace(IndexSettings(), compact_slack_bytes=32 * 1024))
    rng = random.Random(3)
    keys = list(numbered(range(100)))
    highest = 0
    for number in range(5000):
        await index.update({key: value(number + 1000) for key in rng.sample(keys, 20)}, b"")
        highest = max(highest, index.stored_bytes)
    assert storage.length > 8 << 20
    assert index._state is not None
    assert highest < 2 * index._state.live_bytes + 32 * 1024 + 64 * 1024
    assert index.stored_bytes == storage.length - storage.start_offset == len(storage.data)
    assert len(await everything(new_index(storage))) == 100


@pytest.mark.parametrize("pattern", ["one key", "few keys", "all keys", "values that are there already"])
async def test_stored_bytes_follow_the_live_ones(pattern: str) -> None:
    """Cold leaves and hot ones: never much more than twice the live bytes, and no update moves more than agreed."""
    storage = MemoryIndexStorage()
    tree = replace(TINY, page_bytes=512, compact_slack_bytes=4096, truncate_bytes_min=1024)
    index = new_index(storage, settings=tree)
    rng = random.Random(5)
    entries = numbered(range(3000))
    keys = list(entries)
    await index.update(entries, b"")
    for number in range(150):
        match pattern:
            case "one key":
                changes = {keys[0]: value(number)}
            case "few keys":
                changes = {keys[int(rng.paretovariate(0.4)) % 3000]: value(number) for _ in range(5)}
            case "all keys":
                changes = {rng.choice(keys): value(number) for _ in range(500)}
            case _:
                chosen = rng.sample(keys, 200)
                changes = {key: entries[key] or b"" for key in chosen} | {keys[-1]: value(number)}
        length = storage.length
        await index.update(changes, b"")
        assert index._state is not None
        live_bytes = index._state.live_bytes
        assert index.stored_bytes <= 2 * live_bytes + 4096 + 1024 + 8 * 512 + FOOTER_LENGTH
        assert storage.length - length <= min(1500 * 512, 3 * len(changes) * 5 * 512 + 40 * 512)
    await check_tree(index)


async def test_a_failed_truncation_is_harmless_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryIndexStorage()
    index = new_index(storage)
    await index.update(numbered(range(100)), b"")
    storage.fail("truncate", error=StorageError("later"))
    with caplog.at_level(logging.INFO):
        await index.update(numbered(range(100), 1), b"two")
    assert "could not truncate before" in caplog.text
    assert storage.start_offset == 0
    assert index.stored_bytes == storage.length
    assert await everything(index) == numbered(range(100), 1)
    await index.update({b"a": value(1)}, b"")
    assert index.stored_bytes == storage.length - storage.start_offset < storage.length
    await check_tree(index)


@pytest.mark.parametrize(
    "error",
    [
        StorageNotPrimaryError("index", owner_epoch=2, epoch=1),
        LogFencedError("fenced"),
        CorruptionError("index", 0, "bad"),
    ],
)
async def test_truncation_that_says_stop_is_raised(error: StorageError) -> None:
    storage = MemoryIndexStorage()
    index = new_index(storage)
    await index.update(numbered(range(100)), b"")
    storage.fail("truncate", error=error)
    with pytest.raises(type(error)):
        await index.update(numbered(range(100), 1), b"")
    assert await everything(new_index(storage)) == numbered(range(100), 1)


async def test_an_update_without_changes_writes_nothing() -> None:
    storage = MemoryIndexStorage()
    index = new_index(storage, settings=IndexSettings(page_bytes=256))
    await index.update({}, b"")
    await index.update({b"absent": None}, b"")
    assert storage.length == 0
    await index.update(numbered(range(100)), b"mark")
    length, generation = storage.length, index.generation
    await index.update({**numbered(range(50)), b"absent": None, b"key-00050x": None}, b"mark")
    assert (storage.length, index.generation) == (length, generation)
    await index.update({}, b"other")
    assert storage.length == length + FOOTER_LENGTH
    await index.update(dict.fromkeys(numbered(range(100))), b"other")
    assert storage.length == length + 2 * FOOTER_LENGTH


# -- Readers during updates


@pytest.mark.parametrize("cache_bytes", [0, 4000, 1 << 20])
async def test_reader_sees_each_key_once_while_updates_run(cache_bytes: int) -> None:
    """SS-136: 1 000 updates run while readers go over all keys in pages, and the old pages vanish under them.

    Each key that stays comes once, with a value that it had at some time in the reader's run.
    """
    storage = MemoryIndexStorage()
    index = new_index(storage, cache=Cache(CacheSettings(bytes_max=cache_bytes)))
    rng = random.Random(9)
    keys = list(numbered(range(150)))
    await index.update(numbered(range(150)), b"")
    history = {key: [(0, number)] for number, key in enumerate(keys)}
    update_number = 0
    scans = 0

    async def write() -> None:
        nonlocal update_number
        for number in range(1, 1001):
            changes: dict[bytes, bytes | None] = {key: value(number * 1000) for key in rng.sample(keys, 5)}
            changes[b"other-%d" % number] = value(0)
            changes[b"other-%d" % (number - 20)] = None
            for key in changes.keys() & history.keys():
                history[key].append((number, number * 1000))
            await index.update(changes, b"")
            update_number = number

    async def read() -> None:
        nonlocal scans
        while update_number < 1000:
            begun = update_number
            entries: list[tuple[bytes, bytes]] = []
            while page := await index.page(after=entries[-1][0] if entries else b"", limit=40):
                entries += page
            # One more: an update becomes visible a little before it returns.
            ended = update_number + 1
            assert [key for key, _ in entries] == sorted({key for key, _ in entries})
            found = {key: new for key, new in entries if key in history}
            assert sorted(found) == keys
            for key, new in found.items():
                number = int.from_bytes(new, "big")
                times = [time for time, old in history[key] if time <= ended]
                first = max(time for time in times if time <= begun)
                assert number in [old for time, old in history[key] if first <= time <= ended]
            scans += 1
            for _ in range(100):
                await asyncio.sleep(0)

    await asyncio.gather(write(), read(), read())
    assert scans >= 4
    assert storage.start_offset > storage.length // 2


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_keys_got_together_are_of_one_time(cache_bytes: int) -> None:
    """Every update gives all keys one value; no reader ever gets two different ones, or an old one."""
    storage = MemoryIndexStorage()
    index = new_index(storage, cache=Cache(CacheSettings(bytes_max=cache_bytes)))
    keys = list(numbered(range(60)))
    returned = 0
    await index.update(dict.fromkeys(keys, value(0)), b"")

    async def write() -> None:
        nonlocal returned
        for number in range(1, 200):
            await index.update(dict.fromkeys(keys, value(number)), b"")
            returned = number

    async def read() -> None:
        while returned < 199:
            (found,) = set(await index.get(keys))
            assert found is not None
            # Nothing became visible between the read and the answer.
            assert int.from_bytes(found, "big") >= returned
            (found,) = {entry[1] for entry in await index.page(limit=1000)}
            assert int.from_bytes(found, "big") >= returned
            await asyncio.sleep(0)

    await asyncio.gather(write(), read(), read())


async def test_readers_see_the_state_before_until_the_append_is_done() -> None:
    storage = MemoryIndexStorage()
    index = new_index(storage, cache=Cache(NO_CACHE))
    await index.update(numbered(range(100)), b"before")
    storage.hold("append")
    task = asyncio.ensure_future(index.update(numbered(range(100), 5), b"after"))
    await until_appending(storage, 2)
    assert (await everything(index), index.mark) == (numbered(range(100)), b"before")
    storage.release("append")
    await task
    assert (await everything(index), index.mark) == (numbered(range(100), 5), b"after")


# -- Owners old and new


async def test_of_two_writers_one_loses_and_does_no_harm() -> None:
    """SS-137: a zombie and the new owner update in turn and at once; each loss is a `BadOffsetError`."""
    storage = MemoryIndexStorage()
    expected = dict(numbered(range(100)))
    owner, zombie = new_index(storage), new_index(storage)
    await owner.update(expected, b"")
    await zombie.open()
    for number in range(40):
        change: dict[bytes, bytes | None] = {b"key-%05d" % number: value(7), b"new-%d" % number: value(8)}
        await owner.update(change, b"owner")
        expected |= change
        length = storage.length
        with pytest.raises(BadOffsetError) as raised:
            await zombie.update({b"key-00000": value(666)}, b"zombie")
        assert (raised.value.segment, storage.length) == ("index", length)
        # It shows what is there, not what it wished.
        assert (await everything(zombie), zombie.mark) == (expected, b"owner")
    await check_tree(owner)
    assert await everything(new_index(storage)) == expected
    results = await asyncio.gather(
        owner.update({b"both": value(1)}, b"owner"),
        zombie.update({b"both": value(2)}, b"zombie"),
        return_exceptions=True,
    )
    assert sorted(type(result) for result in results if result) == [BadOffsetError]  # type: ignore[type-var]
    assert await everything(new_index(storage)) in ({**expected, b"both": value(1)}, {**expected, b"both": value(2)})


async def test_a_reader_of_removed_pages_continues_with_the_new_state() -> None:
    storage = MemoryIndexStorage()
    old = new_index(storage, cache=Cache(NO_CACHE))
    await old.update(numbered(range(100)), b"")
    owner = new_index(storage)
    await owner.update(numbered(range(100), 3), b"new")
    assert storage.start_offset > 0
    assert await old.get([b"key-00005"]) == [value(8)]
    assert old.mark == b"new"


async def test_a_writer_based_on_removed_pages_fails() -> None:
    storage = MemoryIndexStorage()
    old = new_index(storage, cache=Cache(NO_CACHE))
    await old.update(numbered(range(100)), b"")
    await new_index(storage).update(numbered(range(100), 3), b"new")
    appends = storage.calls["append"]
    with pytest.raises(BadOffsetError):
        await old.update({b"key-00005": value(666)}, b"old")
    assert storage.calls["append"] == appends
    assert await everything(old) == numbered(range(100), 3)


# -- Reads and memory


async def test_keys_read_together_cost_one_read_per_page() -> None:
    storage = MemoryIndexStorage()
    tree = replace(TINY, reads_max=3, read_bytes_max=1)
    await new_index(storage, settings=tree).update(numbered(range(1000)), b"")
    index = new_index(storage, settings=tree)
    await index.open()
    storage.calls.clear()
    storage.reads_at_once_max = 0
    keys = list(numbered(range(1000)))
    random.Random(1).shuffle(keys)
    assert None not in await index.get(keys + keys[:10])
    assert storage.calls["read"] == len(index._pages)
    assert storage.reads_at_once_max == 3
    storage.calls.clear()
    assert await index.get(keys[:5]) == [value(int(key[4:])) for key in keys[:5]]
    assert all(index.get_cached(key) == (True, value(int(key[4:]))) for key in keys)
    assert index.get_cached(b"absent") == (True, None)
    assert not storage.calls


async def test_neighbouring_pages_are_read_together() -> None:
    storage = MemoryIndexStorage()
    tree = replace(TINY, read_bytes_max=2048)
    await new_index(storage, settings=tree).update(numbered(range(1000)), b"")
    index = new_index(storage, settings=tree)
    await index.get(list(numbered(range(1000))))
    assert storage.calls["read"] < len(index._pages) // 4


async def test_readers_that_wait_for_one_page_read_it_once() -> None:
    storage = MemoryIndexStorage()
    await new_index(storage).update(numbered(range(10)), b"")
    index = new_index(storage, settings=replace(TINY, reads_max=1))
    await index.open()
    reads = storage.calls["read"]
    await asyncio.gather(*(index.get([b"key-00001", b"key-00002"]) for _ in range(50)))
    assert storage.calls["read"] == reads + len(index._pages)


async def test_an_update_reads_only_the_affected_pages() -> None:
    storage = MemoryIndexStorage()
    await new_index(storage).update(numbered(range(1000)), b"")
    index = new_index(storage)
    await index.open()
    assert index._state is not None
    height = index._state.height
    reads, length = storage.calls["read"], storage.length
    await index.update({b"key-00500": value(1)}, b"")
    assert storage.calls["read"] - reads == height
    assert storage.length - length <= height * 256 + FOOTER_LENGTH


async def test_pages_are_counted_and_go_when_room_is_wanted() -> None:
    cache = Cache(CacheSettings())
    index = new_index(MemoryIndexStorage(), cache=cache)
    await index.update(numbered(range(1000)), b"")
    pages = index._pages
    assert cache.used_bytes == pages.used_bytes > 1000 * 17
    held = pages.get(*next((pointer, len(page)) for pointer, page in pages._pages.items()))
    freed = pages.evict(1000)
    cache.shrink(freed)
    assert 1000 <= freed < 1000 + 256 + PAGE_MEMORY_OVERHEAD
    assert held is not None
    assert len(held) > 0
    cache.shrink(pages.evict(1 << 30))
    assert (cache.used_bytes, pages.used_bytes, len(pages)) == (0, 0, 0)
    assert index.get_cached(b"key-00001") == (False, None)
    assert await index.get([b"key-00001"]) == [value(1)]
    index.close()
    assert cache.used_bytes == 0


async def test_a_full_cache_refuses_pages() -> None:
    cache = Cache(NO_CACHE)
    index = new_index(MemoryIndexStorage(), cache=cache)
    await index.update(numbered(range(200)), b"")
    assert await everything(index) == numbered(range(200))
    assert (cache.used_bytes, index.get_cached(b"key-00000")) == (0, (False, None))


async def test_replaced_pages_leave_memory() -> None:
    cache = Cache(CacheSettings())
    index = new_index(MemoryIndexStorage(), cache=cache)
    await index.update(numbered(range(500)), b"")
    for number in range(50):
        await index.update(numbered(range(500), number), b"")
    assert index._state is not None
    assert cache.used_bytes <= index._state.live_bytes + PAGE_MEMORY_OVERHEAD * len(index._pages)


async def test_page_of_another_length_in_memory_is_a_miss() -> None:
    index = new_index(MemoryIndexStorage())
    await index.update({b"a": value(1)}, b"")
    assert index._state is not None
    root = index._state.root
    assert index._pages.get(root.offset, root.length) is not None
    assert index._pages.get(root.offset, root.length + 1) is None


async def test_update_gives_other_tasks_a_turn() -> None:
    """While 20 000 keys are put in no order, others run at least once per so many pages and keys."""
    index = new_index(MemoryIndexStorage(), settings=IndexSettings(slice_pages=4))
    keys = [b"%d" % number for number in range(20_000)]
    random.Random(2).shuffle(keys)
    turns = 0
    is_done = False

    async def count() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.ensure_future(count())
    await index.update(dict.fromkeys(keys, value(1)), b"")
    is_done = True
    await counter
    assert turns > 20_000 * 17 / 8192 / 4
    assert index.entry_count == 20_000
    await check_tree(index)


async def test_truncated_offsets_are_never_served_from_a_read() -> None:
    """The storage for tests does refuse: what the tests above rely on."""
    storage = MemoryIndexStorage()
    await storage.append(0, [b"abc"])
    await storage.truncate(2)
    with pytest.raises(SegmentTruncatedError):
        await storage.read(1, 1)
    assert await storage.read(2, 1) == b"c"
