"""The second level of the cache, on a real disk in a temporary directory; failures at the seam of the disk."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskFile
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.reads.disk_cache import DiskCache, SegmentKey
from penstock.segmentstore.settings import DiskCacheSettings
from support.containers import memory_runtime

A = SegmentKey(0, 1, 7)
B = SegmentKey(0, 1, 8)
SETTINGS = DiskCacheSettings(bytes_max=4000, slot_bytes=1000, piece_bytes_min=10, pending_bytes_max=5000)


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    made = memory_runtime()
    yield made
    await made.work.close()


@pytest.fixture
async def cache(tmp_path: Path, runtime: Runtime) -> AsyncIterator[DiskCache]:
    made = DiskCache(str(tmp_path / "cache"), SETTINGS, runtime)
    await made.open()
    yield made
    await made.close()
    assert os.listdir(tmp_path / "cache") == []


async def kept(cache: DiskCache, key: SegmentKey, offset: int, data: Buffer) -> None:
    cache.keep(key, offset, data)
    await cache.settle()


def file_of(cache: DiskCache) -> Path:
    return Path(cache._path)


async def test_bytes_kept_on_disk_are_returned(cache: DiskCache) -> None:
    """From any offset within its slot, and up to its end; nothing of another segment or incarnation."""
    data = random.Random(1).randbytes(1700)
    await kept(cache, A, 500, data)
    assert await cache.read(A, 500, 10_000) == data[:500]
    assert await cache.read(A, 600, 100) == data[100:200]
    assert await cache.read(A, 1000, 10_000) == data[500:1500]
    assert await cache.read(A, 2100, 10_000) == data[1600:]
    for key, offset in ((A, 499), (A, 2200), (B, 600), (SegmentKey(1, 1, 7), 600), (SegmentKey(0, 2, 7), 600)):
        assert await cache.read(key, offset, 10) is None
    assert (cache.statistics.hit_count, cache.statistics.miss_count) == (4, 5)


async def test_pieces_that_follow_each_other_join_up(cache: DiskCache) -> None:
    data = random.Random(2).randbytes(900)
    for start in range(0, 900, 90):
        cache.keep(A, 50 + start, memoryview(data)[start : start + 90])
    await cache.settle()
    assert await cache.read(A, 50, 1000) == data
    assert cache.slot_count == 1


async def test_a_longer_piece_replaces_a_shorter_one(cache: DiskCache) -> None:
    await kept(cache, A, 500, b"a" * 100)
    await kept(cache, A, 0, b"b" * 50)
    assert await cache.read(A, 0, 100) is None
    await kept(cache, A, 0, b"c" * 600)
    assert await cache.read(A, 0, 1000) == b"c" * 600
    kept_bytes = cache.statistics.kept_bytes
    await kept(cache, A, 0, b"c" * 600)
    assert cache.statistics.kept_bytes == kept_bytes  # It is there.


async def test_the_disk_cache_is_bounded_and_evicts_the_least_recently_used(cache: DiskCache) -> None:
    for cell in range(4):
        await kept(cache, A, 1000 * cell, bytes([cell]) * 1000)
    assert await cache.read(A, 0, 1) == b"\0"
    await kept(cache, B, 0, b"b" * 1000)
    assert cache.slot_count == 4
    assert await cache.read(A, 1000, 1) is None
    assert await cache.read(A, 0, 1) == b"\0"
    assert await cache.read(B, 0, 1) == b"b"
    assert file_of(cache).stat().st_size <= SETTINGS.bytes_max


async def test_a_damaged_slot_is_a_miss_and_dropped(cache: DiskCache, caplog: pytest.LogCaptureFixture) -> None:
    await kept(cache, A, 0, b"a" * 1000)
    await kept(cache, A, 1000, b"b" * 1000)
    file_of(cache).write_bytes(b"a" * 500 + b"x" + file_of(cache).read_bytes()[501:])
    with caplog.at_level(logging.WARNING):
        assert await cache.read(A, 0, 10) is None
    assert "slot 0 is damaged" in caplog.text
    assert cache.statistics.damaged_count == 1
    assert cache.slot_count == 1
    assert await cache.read(A, 1000, 10) == b"b" * 10
    await kept(cache, A, 0, b"a" * 1000)
    assert await cache.read(A, 0, 10) == b"a" * 10


async def test_a_file_that_was_cut_short_is_damage(cache: DiskCache) -> None:
    await kept(cache, A, 0, b"a" * 1000)
    os.truncate(cache._path, 300)
    assert await cache.read(A, 0, 10) is None
    assert cache.statistics.damaged_count == 1


class FailingFile:
    """A file whose calls fail while told so."""

    def __init__(self, inner: DiskFile) -> None:
        self.inner = inner
        self.fails = True

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*args: object) -> object:
            if self.fails and name in ("read", "write"):
                raise OSError(5, f"injected failure of {name}")
            return getattr(self.inner, name)(*args)

        return call


async def test_failures_of_the_disk_are_misses(cache: DiskCache) -> None:
    await kept(cache, A, 0, b"a" * 500)
    assert cache._file is not None
    file = FailingFile(cache._file)
    cache._file = file  # type: ignore[assignment]  # It looks like one.
    assert await cache.read(A, 0, 10) is None
    await kept(cache, A, 0, b"a" * 500)
    assert cache.slot_count == 0
    assert cache.statistics.failure_count == 2
    file.fails = False
    await kept(cache, A, 0, b"a" * 500)
    assert await cache.read(A, 0, 10) == b"a" * 10
    # Every place can be used again.
    for cell in range(4):
        await kept(cache, B, 1000 * cell, b"b" * 1000)
    assert cache.slot_count == 4


async def test_a_disk_that_keeps_failing_is_given_up(cache: DiskCache) -> None:
    assert cache._file is not None
    file = cache._file
    cache._file = FailingFile(file)  # type: ignore[assignment]  # It looks like one.
    for cell in range(SETTINGS.failures_max):
        assert cache.is_on
        await kept(cache, A, 1000 * cell, b"a" * 500)
    assert not cache.is_on
    await kept(cache, A, 0, b"a" * 500)
    assert await cache.read(A, 0, 10) is None
    assert cache.statistics.failure_count == SETTINGS.failures_max
    os.remove(cache._path)


async def test_a_directory_that_cannot_be_made_leaves_it_off(tmp_path: Path, runtime: Runtime) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = DiskCache(str(tmp_path / "file" / "cache"), SETTINGS, runtime)
    await cache.open()
    assert not cache.is_on
    cache.keep(A, 0, b"a" * 500)
    assert await cache.read(A, 0, 10) is None
    await cache.close()


async def test_it_is_off_by_default(tmp_path: Path, runtime: Runtime) -> None:
    cache = DiskCache(str(tmp_path), DiskCacheSettings(), runtime)
    await cache.open()
    assert not cache.is_on
    assert os.listdir(tmp_path) == []


async def test_it_begins_empty(tmp_path: Path, cache: DiskCache, runtime: Runtime) -> None:
    """Whatever a process that was killed left behind is gone."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "evicted-data").write_bytes(bytes(9000))
    other = DiskCache(str(tmp_path / "other"), SETTINGS, runtime)
    await other.open()
    assert (tmp_path / "other" / "evicted-data").stat().st_size == 0
    assert await other.read(A, 0, 10) is None
    await other.close()


async def test_bursts_and_small_pieces_are_not_kept(cache: DiskCache) -> None:
    for cell in range(10):
        cache.keep(A, 1000 * cell, b"a" * 1000)
    assert cache.statistics.dropped_bytes == 5000
    await cache.settle()
    cache.keep(B, 0, b"b" * 9)
    await cache.settle()
    assert await cache.read(B, 0, 9) is None


async def test_reads_and_writes_at_once_never_give_other_bytes(cache: DiskCache) -> None:
    """A place that is read is not used for something else meanwhile: no false damage."""
    rng = random.Random(3)
    contents = {key: rng.randbytes(3000) for key in (A, B)}

    async def work(seed: int) -> None:
        own = random.Random(seed)
        for _ in range(100):
            key = own.choice((A, B))
            start = own.randrange(3000)
            end = own.randint(start, 3000)
            if own.random() < 0.5:
                cache.keep(key, start, memoryview(contents[key])[start:end])
            elif found := await cache.read(key, start, end - start):
                assert found == contents[key][start : start + len(found)]
            if own.random() < 0.3:
                await cache.settle()

    await asyncio.gather(*map(work, range(8)))
    await cache.settle()
    assert cache.statistics.hit_count > 50
    assert cache.statistics.damaged_count == 0


async def test_a_place_that_is_being_read_is_not_used_for_something_else(cache: DiskCache) -> None:
    """With all four being read nothing more is kept; a slot that is dropped meanwhile is free once it was read."""
    for cell in range(4):
        await kept(cache, A, 1000 * cell, b"a" * 1000)
    slots = dict(cache._slots)
    for slot in slots.values():
        slot.pin_count += 1
    await kept(cache, B, 0, b"b" * 1000)
    assert await cache.read(B, 0, 1) is None
    assert cache.statistics.dropped_bytes == 1000
    key, slot = next(iter(slots.items()))
    cache._drop(key, slot)
    await kept(cache, B, 0, b"b" * 1000)
    assert await cache.read(B, 0, 1) is None
    cache._unpin(slot)
    await kept(cache, B, 0, b"b" * 1000)
    assert await cache.read(B, 0, 1) == b"b"
