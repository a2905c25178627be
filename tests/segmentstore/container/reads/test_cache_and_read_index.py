"""The cache and the read indexes over it. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from penstock.model.errors import InconsistentStateError
from penstock.segmentstore.container.events import ContainerEvents
from penstock.segmentstore.container.reads.cache import Cache, CacheEntry
from penstock.segmentstore.container.reads.read_index import Found, Missing, ReadIndex, Redirected, _Block
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.settings import CacheSettings

SETTINGS = CacheSettings(bytes_max=1000, target_percent=50, block_length=64, small_append_length=32)


def segment_in(cache: Cache, number: int = 1) -> Segment:
    segment = Segment(number, f"s/t/{number}", flags=SegmentFlags.NONE, key_length=0, created_ms=0)
    segment.index = ReadIndex(cache, segment)
    return segment


async def test_small_appends_share_blocks() -> None:
    """SS-97: 1 000 appends of 10 bytes make about as many entries as they fill blocks."""
    segment = segment_in(Cache(CacheSettings(block_length=4096)))
    for number in range(1000):
        segment.index.append(number * 10, b"%010d" % number)
    assert len(segment.index._entries) <= 10_000 // 4090 + 1
    found = segment.index.lookup(5, 10_000)
    assert isinstance(found, Found)
    assert b"".join(found.data)[:15] == b"00000" + b"0000000001"


@pytest.mark.parametrize(("storage_length", "is_evicted"), [(99, False), (100, True)])
async def test_only_stored_bytes_are_evicted(storage_length: int, is_evicted: bool) -> None:
    """SS-110: a block [0, 100) goes exactly when storage has 100 bytes."""
    cache = Cache(SETTINGS)
    segment = segment_in(cache)
    segment.index.append(0, bytes(100))
    segment.storage_length = storage_length
    assert segment.index.evict(1 << 30) == (100 if is_evicted else 0)


async def test_truncated_stored_bytes_are_evicted_at_once() -> None:
    """SS-111: blocks wholly before the start, if storage has them."""
    cache = Cache(SETTINGS)
    segment = segment_in(cache)
    for offset in (0, 100, 200):
        segment.index.append(offset, bytes(100))
    segment.storage_length = 150
    segment.index.truncate(250)
    assert cache.used_bytes == 200
    segment.storage_length = 300
    segment.index.truncate(250)
    assert cache.used_bytes == 100


async def test_a_gap_is_reported_up_to_the_next_cached_byte() -> None:
    """SS-105."""
    segment = segment_in(Cache(SETTINGS))
    for offset in (0, 100, 200):
        segment.index.append(offset, bytes(100))
    del segment.index._entries[1], segment.index._starts[1]
    assert segment.index.lookup(120, 500) == Missing(200)
    assert segment.index.lookup(300, 50) == Missing(350)


async def test_stored_bytes_fill_gaps_only_and_a_full_cache_refuses_them() -> None:
    """SS-116: what is cached stays; at the hard limit reads are served and not kept."""
    cache = Cache(SETTINGS)
    segment = segment_in(cache)
    segment.index.append(100, b"t" * 100)
    segment.index.insert_stored(0, b"s" * 300)
    found = segment.index.lookup(0, 300)
    assert isinstance(found, Found)
    assert b"".join(found.data) == b"s" * 100 + b"t" * 100 + b"s" * 100
    assert cache.used_bytes == 300
    segment.index.append(300, bytes(599))
    assert cache.used_bytes == 899
    assert segment.index.insert_stored(2000, bytes(1))
    assert cache.is_essential_only
    assert not segment.index.insert_stored(3000, bytes(10))
    assert cache.used_bytes == 900
    segment.index.append(899, bytes(101))
    assert cache.used_bytes == 1001
    assert cache.is_full


async def test_a_redirect_leads_to_its_source_until_the_merge_is_complete() -> None:
    """SS-118, SS-121: an empty source leaves no redirect; bytes move over, use stays what it was."""
    cache = Cache(SETTINGS)
    target, source, empty = segment_in(cache, 1), segment_in(cache, 2), segment_in(cache, 3)
    target.index.append(0, b"t" * 40)
    source.index.append(0, b"s" * 10)
    target.index.add_redirect(40, 40, empty)
    target.index.add_redirect(40, 50, source)
    target.index.append(50, b"u" * 5)
    assert target.index.lookup(43, 100) == Redirected(source, 3, 7)
    used = cache.used_bytes
    target.index.complete_merge(empty)
    target.index.complete_merge(source)
    found = target.index.lookup(43, 100)
    assert isinstance(found, Found)
    assert b"".join(found.data) == b"s" * 7 + b"u" * 5
    assert cache.used_bytes == used
    target.index.clear()
    source.index.clear()
    assert cache.used_bytes == 0


async def test_a_cache_calls_back_each_time_that_it_falls_below_a_mark() -> None:
    cache = Cache(SETTINGS)
    segment = segment_in(cache)
    calls: list[int] = []

    def fallen() -> None:
        calls.append(cache.used_bytes)

    cache.on_fall_below(900, fallen)
    for offset in (0, 1000):
        segment.index.append(offset, bytes(1000))
        segment.storage_length = offset + 1000
        cache.evict()
        assert len(calls) == offset // 1000  # Not evictable before the call of `stored`.
        segment.index.stored(0)
        cache.evict()
    assert len(calls) == 2
    assert max(calls) < 900
    cache.forget_fall_below(900, fallen)
    cache.count(1000)
    cache.discount(1000)
    assert len(calls) == 2


async def test_unflushed_entries_are_not_scanned_by_each_sweep() -> None:
    """Set aside when a sweep meets it, it is inspected again when storage has it, and only then."""
    cache = Cache(CacheSettings(bytes_max=100_000, target_percent=10, small_append_length=1))
    lacking = [segment_in(cache, number) for number in range(100)]
    for segment in lacking:
        segment.index.append(0, bytes(1000))
        segment.length = 1000
    cache.evict()
    for _ in range(5):
        await asyncio.sleep(0)
    assert cache.aside_count >= 90
    scans = 0
    may_go = _Block.may_go

    def counted(block: _Block[object]) -> bool:
        nonlocal scans
        scans += 1
        return may_go(block)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Block, "may_go", counted)
        for _ in range(10):
            cache.evict()
        assert scans < 110 - cache.aside_count + 10
        lacking[7].storage_length = 600
        lacking[7].index.stored(0)
        assert cache.aside_count >= 90  # Not all of it yet.
        lacking[7].storage_length = 1000
        lacking[7].index.stored(600)
        cache.evict()
    assert offsets(lacking[7]) == []
    assert offsets(lacking[8]) == [0]


async def test_a_cache_that_cannot_evict_does_not_try_at_every_append() -> None:
    """Scanning every segment for nothing, at every append, would make a pressed store slow as well."""
    cache = Cache(CacheSettings(bytes_max=1_000_000, target_percent=10))
    segments = [segment_in(cache, number) for number in range(50)]
    evictions = 0
    evict = cache.evict

    def counted() -> int:
        nonlocal evictions
        evictions += 1
        return evict()

    cache.evict = counted  # type: ignore[method-assign]  # To count.
    for turn in range(4000):
        segment = segments[turn % 50]
        segment.index.append(segment.length, bytes(100))
        segment.length += 100
    assert 0 < evictions < 250


@pytest.mark.parametrize("seed", range(20))
async def test_use_is_counted_exactly(seed: int) -> None:
    """SS-123: random appends, evictions, truncations, storage reads, clears against plain bytes."""
    rng = random.Random(seed)
    cache = Cache(
        CacheSettings(bytes_max=4000, target_percent=rng.choice([20, 90]), block_length=50, small_append_length=20)
    )
    segments = [segment_in(cache, number) for number in range(3)]
    contents = [b"", b"", b""]
    for _ in range(400):
        which = rng.randrange(3)
        segment, content = segments[which], contents[which]
        match rng.randrange(6):
            case 0 | 1 | 2:
                data = rng.randbytes(rng.choice([1, 5, 30, 80]))
                segment.index.append(len(content), data)
                contents[which] += data
            case 3:
                segment.storage_length = rng.randint(segment.storage_length, len(content))
                segment.index.freeze_tail()
                cache.evict()
            case 4 if segment.storage_length:
                start = rng.randrange(segment.storage_length)
                end = rng.randint(start, segment.storage_length)
                segment.index.insert_stored(start, content[start:end])
            case _:
                segment.index.truncate(rng.randint(0, len(content)))
        assert cache.used_bytes == sum(one.index.cached_bytes for one in segments)
        for one, text in zip(segments, contents, strict=True):
            held = sum(len(entry.data) for entry in one.index._entries if isinstance(entry, _Block))
            assert held == one.index.cached_bytes
            for offset in range(one.storage_length, len(text), 7):
                found = one.index.lookup(offset, 1000)
                assert isinstance(found, Found)
                assert b"".join(found.data) == text[offset : offset + found.length]
    for segment in segments:
        segment.index.clear()
    assert cache.used_bytes == 0


# Generations.

AGES = CacheSettings(
    bytes_max=1000, target_percent=50, block_length=64, small_append_length=32, entry_age_s_max=30.0, generation_s=1.0
)


def stored_blocks(cache: Cache, count: int, number: int = 1) -> Segment:
    """Return a segment of `count` blocks of 100 bytes that storage has."""
    segment = segment_in(cache, number)
    for at in range(count):
        segment.index.append(100 * at, bytes([at]) * 100)
    segment.length = segment.storage_length = 100 * count
    return segment


def offsets(segment: Segment) -> list[int]:
    return list(segment.index._starts)


async def test_entries_unused_for_too_long_are_evicted_from_a_cache_with_space() -> None:
    """SS-117, with 30 s instead of 30 min: untouched entries go, touched ones stay, and those that storage lacks."""
    cache = Cache(AGES)
    segment = stored_blocks(cache, 4)
    segment.storage_length = 300
    for now_s in range(1, 31):
        cache.advance(now_s)
        segment.index.lookup(100, 50)
    assert offsets(segment) == [0, 100, 200, 300]
    cache.advance(31)
    cache.advance(32)
    assert offsets(segment) == [100, 300]
    segment.storage_length = 400
    segment.index.stored(300)
    for now_s in range(33, 100):
        cache.advance(now_s)
    assert offsets(segment) == []
    assert cache.used_bytes == 0


async def test_a_generation_lasts_as_long_as_it_is_said_to_and_idle_ones_continue() -> None:
    cache = Cache(AGES)
    segment = stored_blocks(cache, 1)
    cache.advance(10.0)
    assert cache.generation == 1
    segment.index.lookup(0, 10)
    cache.advance(10.9)
    assert cache.generation == 1
    cache.advance(11.0)
    assert cache.generation == 2
    for now_s in range(12, 30):
        cache.advance(now_s)
    assert cache.generation == 2


async def test_above_the_target_the_oldest_go_first() -> None:
    """By the generation of the last use, entry by entry, whichever segment they are of."""
    cache = Cache(AGES)
    one, other = stored_blocks(cache, 2), stored_blocks(cache, 2, 2)
    cache.advance(1.0)
    one.index.lookup(0, 100)
    cache.advance(2.0)
    other.index.lookup(100, 100)
    one.index.insert_stored(1000, bytes(200))
    assert (offsets(one), offsets(other)) == ([0, 1000], [0, 100])
    one.index.insert_stored(2000, bytes(150))
    assert (offsets(one), offsets(other)) == ([1000, 2000], [100])


async def test_the_writer_s_scan_does_not_count_as_use() -> None:
    """R4.30."""
    cache = Cache(AGES)
    segment = stored_blocks(cache, 2)
    cache.advance(1.0)
    segment.index.lookup(0, 100, is_use=False)
    segment.index.lookup(100, 100)
    segment.index.insert_stored(1000, bytes(350))
    assert offsets(segment) == [100, 1000]


async def test_a_merged_entry_keeps_its_age() -> None:
    cache = Cache(AGES)
    source, target = stored_blocks(cache, 1, 2), stored_blocks(cache, 1)
    cache.advance(1.0)
    target.index.lookup(0, 100)
    target.index.add_redirect(100, 200, source)
    target.index.complete_merge(source)
    target.length = target.storage_length = 200
    assert offsets(target) == [0, 100]
    target.index.insert_stored(1000, bytes(350))
    assert offsets(target) == [0, 1000]


async def test_one_step_of_an_eviction_is_bounded_and_the_rest_follows_in_later_turns() -> None:
    """A turn of the loop scans 512 entries; entries that storage lacks hide others only until their turn comes."""
    cache = Cache(CacheSettings(bytes_max=1_000_000, target_percent=1, small_append_length=1))
    lacking = segment_in(cache, 1)
    for at in range(3000):
        lacking.index.append(10 * at, bytes(10))
    stored = segment_in(cache, 2)
    for at in range(2000):
        stored.index.append(10 * at, bytes(10))
    cache.evict()
    for _ in range(5000 // 512 + 1):
        await asyncio.sleep(0)
    stored.storage_length = 20_000
    stored.index.stored(0)
    before = cache.used_bytes
    assert before == 50_000
    freed = cache.evict()
    assert freed <= 10 * 512
    uses = [cache.used_bytes]
    for _ in range(5000 // 512 + 1):
        await asyncio.sleep(0)
        uses.append(cache.used_bytes)
    assert all(earlier - later <= 10 * 512 for earlier, later in pairwise(uses))
    assert uses[-1] == 30_000
    assert offsets(stored) == []


class Pages:
    """A member that frees by itself."""

    def __init__(self, cache: Cache, byte_count: int) -> None:
        self.cache = cache
        self.byte_count = byte_count
        cache.grow(self, byte_count)

    def evict(self, bytes_wanted: int) -> int:
        freed = min(bytes_wanted, self.byte_count)
        self.byte_count -= freed
        return freed


async def test_members_go_before_entries_least_recently_used_first() -> None:
    cache = Cache(AGES)
    pages, others = Pages(cache, 100), Pages(cache, 100)
    cache.touch(pages)
    segment = stored_blocks(cache, 3)
    assert cache.used_bytes == 500
    segment.index.insert_stored(1000, bytes(150))
    assert (pages.byte_count, others.byte_count) == (50, 0)
    assert offsets(segment) == [0, 100, 200, 1000]
    assert cache.used_bytes == 500
    assert cache.member_bytes == pages.byte_count
    cache.remove(pages)
    cache.shrink(pages.byte_count)
    assert cache.member_bytes == 0


async def test_an_open_block_that_storage_has_may_go_and_appends_continue() -> None:
    cache = Cache(AGES)
    segment = segment_in(cache)
    segment.index.append(0, b"a" * 20)
    segment.storage_length = 20
    assert cache.evict_all() == 20
    segment.index.append(20, b"b" * 20)
    assert segment.index.lookup(0, 40) == Missing(20)
    found = segment.index.lookup(20, 40)
    assert isinstance(found, Found)
    assert b"".join(found.data) == b"b" * 20


async def test_a_small_part_of_a_large_block_is_copied() -> None:
    """A view of 10 bytes would keep 1000 alive that the cache believes to be gone."""
    segment = segment_in(Cache(SETTINGS))
    segment.index.append(0, bytes(400))
    for length, kind in ((99, bytes), (100, memoryview), (400, bytes)):
        found = segment.index.lookup(0, length)
        assert isinstance(found, Found)
        assert type(found.data[0]) is kind


async def test_a_closed_read_index_refuses_bytes() -> None:
    """SS-125: the end of a storage read that outlives its segment leaks nothing."""
    cache = Cache(SETTINGS)
    segment = segment_in(cache)
    segment.index.clear()
    assert not segment.index.insert_stored(0, bytes(100))
    assert cache.used_bytes == 0


async def test_evicted_bytes_are_offered_once() -> None:
    cache = Cache(SETTINGS)
    events = ContainerEvents()
    kept: list[tuple[int, int, bytes]] = []
    segment = segment_in(cache)
    segment.index = ReadIndex(cache, segment, events)
    segment.index.append(0, b"a" * 100)
    segment.index.append(100, b"b" * 100)
    segment.storage_length = 100
    events.on_evicted = lambda of, offset, data: kept.append((of.id, offset, bytes(data)))
    cache.evict_all()
    segment.index.clear()
    assert kept == [(1, 0, b"a" * 100)]


async def test_an_insertion_that_fails_half_way_counts_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """SS-124: the piece that failed is neither found nor counted; those before it are both."""
    cache = Cache(SETTINGS)
    segment = segment_in(cache)
    segment.index.append(100, b"a" * 100)
    file = cache.file
    fails = [True]

    def failing(entry: CacheEntry, byte_count: int) -> None:
        if fails.pop(0):
            raise MemoryError("injected")
        file(entry, byte_count)

    monkeypatch.setattr(cache, "file", failing)
    with pytest.raises(MemoryError):
        segment.index.insert_stored(0, b"s" * 300)
    assert (cache.used_bytes, segment.index.cached_bytes) == (100, 100)
    fails += [False, True]
    with pytest.raises(MemoryError):
        segment.index.insert_stored(0, b"s" * 300)
    assert (cache.used_bytes, segment.index.cached_bytes) == (200, 200)
    assert segment.index.lookup(200, 100) == Missing(300)
    segment.index.clear()
    assert cache.used_bytes == 0


async def test_pieces_equal_single_look_ups() -> None:
    """Ranges in open and closed blocks, across two, in a hole, and behind the end, in any order."""
    segment = segment_in(Cache(SETTINGS))
    content = bytes(range(256))
    for offset, end in ((0, 10), (10, 20), (20, 120), (120, 125), (150, 200)):
        segment.index.append(offset, content[offset:end])
    del segment.index._entries[-2], segment.index._starts[-2]  # [120, 125) is a hole now.
    rng = random.Random(1)
    ranges = [(rng.randrange(260), rng.randrange(1, 30)) for _ in range(300)]
    pieces = segment.index.pieces(ranges)
    in_one_block = 0
    for (offset, length), piece in zip(ranges, pieces, strict=True):
        found = segment.index.lookup(offset, length)
        if piece is None:
            assert not isinstance(found, Found) or found.length < length or len(found.data) > 1
        else:
            assert isinstance(found, Found)
            assert piece == b"".join(found.data) == content[offset : offset + length]
            in_one_block += 1
    assert in_one_block > 100


async def test_pieces_of_a_block_that_has_changed_in_memory_are_refused() -> None:
    """Whichever part was asked for; the other blocks are sound."""
    segment = segment_in(Cache(SETTINGS))
    segment.index.append(0, bytes(100))
    segment.index.append(100, bytes(100))
    block = segment.index._entries[1]
    assert isinstance(block, _Block)
    block.data = bytes(50) + b"\1" + bytes(49)
    assert segment.index.pieces([(0, 10), (90, 10)]) == [bytes(10), bytes(10)]
    with pytest.raises(InconsistentStateError, match="arrived"):
        segment.index.pieces([(0, 10), (100, 10)])
