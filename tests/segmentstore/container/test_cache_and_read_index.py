"""The cache and the read indexes over it. SS-n: segment store specification, scenario n."""

from __future__ import annotations

import random

import pytest

from penstock.segmentstore.container.cache import Cache
from penstock.segmentstore.container.read_index import Found, Missing, ReadIndex, Redirected, _Block
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
async def test_only_what_storage_has_is_evicted(storage_length: int, is_evicted: bool) -> None:
    """SS-110: a block [0, 100) goes exactly when storage has 100 bytes."""
    cache = Cache(SETTINGS)
    segment = segment_in(cache)
    segment.index.append(0, bytes(100))
    segment.storage_length = storage_length
    assert segment.index.evict(1 << 30) == (100 if is_evicted else 0)


async def test_what_was_truncated_and_stored_goes_at_once() -> None:
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


async def test_a_hole_is_said_up_to_where_the_cache_goes_on() -> None:
    """SS-105."""
    segment = segment_in(Cache(SETTINGS))
    for offset in (0, 100, 200):
        segment.index.append(offset, bytes(100))
    del segment.index._entries[1], segment.index._starts[1]
    assert segment.index.lookup(120, 500) == Missing(200)
    assert segment.index.lookup(300, 50) == Missing(350)


async def test_stored_bytes_fill_gaps_only_and_a_full_cache_takes_none() -> None:
    """SS-116: what is cached stays; at the hard limit reads are served and not kept."""
    cache = Cache(SETTINGS)
    segment = segment_in(cache)
    segment.index.append(100, b"t" * 100)
    segment.index.insert_stored(0, b"s" * 300)
    found = segment.index.lookup(0, 300)
    assert isinstance(found, Found)
    assert b"".join(found.data) == b"s" * 100 + b"t" * 100 + b"s" * 100
    assert cache.used_bytes == 300
    segment.index.append(300, bytes(700))
    assert cache.is_full
    segment.index.insert_stored(2000, bytes(10))
    assert cache.used_bytes == 1000


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


async def test_a_full_cache_calls_back_once_it_has_room() -> None:
    cache = Cache(SETTINGS)
    segment = segment_in(cache)
    calls: list[str] = []
    cache.when_relieved(lambda: calls.append("at once"))
    segment.index.append(0, bytes(1000))
    cache.when_relieved(lambda: calls.append("later"))
    assert calls == ["at once"]
    segment.storage_length = 1000
    cache.evict()
    assert calls == ["at once", "later"]
    assert cache.used_bytes == 0


async def test_a_cache_that_cannot_evict_does_not_try_at_every_append() -> None:
    """Looking at every segment for nothing, at every append, would make a pressed store slow as well."""
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
