"""Reads of a container's segments over cache, disk cache and long-term storage.

SS-n: docs/spec/segment-store.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors import (
    BadOffsetError,
    ContainerOfflineError,
    NoSuchSegmentError,
    SegmentTruncatedError,
    StorageError,
)
from penstock.model.segments import SegmentData
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.reads.disk_cache import DiskCache
from penstock.segmentstore.container.reads.reader import StorageReadTimeoutError
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.settings import CacheSettings, DiskCacheSettings
from penstock.segmentstore.tier2.metadata import RecordCache
from support.containers import (
    QUIET,
    SMALL_CACHE,
    Incarnations,
    append,
    evict_all,
    pause_writer,
    read_all,
    read_waiting,
    turns,
    until,
)

A = "s/t/0.#epoch.0"
B = "s/t/1.#epoch.0"
RANGE = 1000
#: Reads from storage are cut at multiples of 1000 bytes; nothing is read ahead.
PLAIN = replace(QUIET, read_ahead_bytes=RANGE, read_ahead_count_max=0, whole_read_bytes=0)


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations(PLAIN)
    yield made
    await made.close()


async def stored(container: SegmentContainer, data: bytes, name: str = A) -> Segment:
    """Return a segment with `data` in storage and nothing in memory."""
    await container.create(name)
    if data:
        await append(container, name, data)
    await container.flush()
    evict_all(container)
    segment = container.segment(name)
    assert segment.index.cached_bytes == 0
    return segment


def note_reads(container: SegmentContainer) -> list[tuple[int, int]]:
    """Return a list to which each read of storage is added: offset and length."""
    reads: list[tuple[int, int]] = []
    inner = container.reader._storage_read

    async def noted(segment: Segment, offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return await inner(segment, offset, length)

    container.reader._storage_read = noted
    return reads


async def read(container: SegmentContainer, segment: Segment, offset: int, length: int) -> bytes:
    return (await container.reader.read(segment, offset, length)).joined()


def tail_read(container: SegmentContainer, segment: Segment, offset: int) -> asyncio.Task[SegmentData]:
    return asyncio.get_running_loop().create_task(read_waiting(container, segment, offset))


# Tail reads.


async def test_two_appends_and_a_seal_at_once_answer_a_waiting_read(lives: Incarnations) -> None:
    """SS-101: one read waits at the end, one inside the second append, one at the very end."""
    container = await lives.start()
    segment = await container.create(A)
    waiting = [tail_read(container, segment, offset) for offset in (0, 5, 6)]
    await turns(3)
    lives.logs.hold_appends(0)
    calls = [asyncio.ensure_future(append(container, A, data)) for data in (b"abc", b"def")]
    sealing = asyncio.ensure_future(container.seal(A))
    await turns(3)
    lives.logs.release_appends(0)
    await asyncio.gather(*calls, sealing)
    assert (await waiting[0]).joined() in (b"abc", b"abcdef")
    assert (await waiting[1]).joined() == b"f"
    assert (await waiting[2]).is_end_of_segment


async def test_bytes_that_are_not_durable_are_waited_for(lives: Incarnations) -> None:
    """SS-102: the bytes are in memory already, but are not visible to reads before the log has them."""
    container = await lives.start()
    segment = await container.create(A)
    lives.logs.hold_appends(0)
    call = asyncio.ensure_future(append(container, A, b"abc"))
    waiting = tail_read(container, segment, 0)
    await turns()
    assert segment.length == 3
    assert not waiting.done()
    assert not call.done()
    lives.logs.release_appends(0)
    assert (await waiting).joined() == b"abc"
    await call


# Truncation.


async def test_a_truncation_survives_a_crash_and_is_applied_once(lives: Incarnations) -> None:
    """SS-246, SS-247: reads below say where the segment starts now; the same offset again is fine, a lower is not."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, bytes(100))
    await container.truncate(A, 60)
    container = await lives.restart(container)
    segment = container.segment(A)
    with pytest.raises(SegmentTruncatedError) as raised:
        await read(container, segment, 59, 10)
    assert raised.value.start_offset == 60
    assert await read(container, segment, 60, 100) == bytes(40)
    await container.truncate(A, 60)
    with pytest.raises((SegmentTruncatedError, BadOffsetError)) as refused:
        await container.truncate(A, 59)
    assert "60" in str(refused.value)


async def test_a_sealed_segment_truncated_to_its_end_is_at_its_end(lives: Incarnations) -> None:
    """SS-248."""
    container = await lives.start()
    segment = await stored(container, bytes(100))
    await container.seal(A)
    await container.truncate(A, 100)
    data = await container.reader.read(segment, 100, 10)
    assert data.is_end_of_segment
    assert data.joined() == b""
    with pytest.raises(SegmentTruncatedError):
        await read(container, segment, 99, 10)


async def test_a_read_overtaken_by_a_truncation_raises(lives: Incarnations) -> None:
    """SS-103, SS-249: storage is read, the segment truncated and its chunks given back, all at once."""
    container = await lives.start()
    data = random.Random(1).randbytes(3000)
    segment = await stored(container, data)
    for start in (0, 1000, 2900):
        lives.chunks.hold("read")
        reading = asyncio.ensure_future(read(container, segment, start, 100))
        other = asyncio.ensure_future(read(container, segment, start + 50, 50))
        await until(lambda: bool(lives.chunks._gates) and lives.chunks.calls["read"] > 0)
        await turns()
        await container.truncate(A, start + 40)
        lives.chunks.release("read")
        await container.flush()
        (found,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(found, SegmentTruncatedError):
            assert found.start_offset == start + 40
        else:
            assert found == data[start : start + 100]
        # Callers that share a read whose beginning was truncated get the bytes that remain.
        assert await other == data[start + 50 : start + 100]
        with pytest.raises(SegmentTruncatedError):
            await read(container, segment, start, 100)


async def test_a_shared_read_with_a_truncated_start_is_repeated(lives: Incarnations) -> None:
    """SS-249: the first reader's bytes were truncated away in storage, the second one's were not."""
    container = await lives.start()
    data = random.Random(2).randbytes(900)
    segment = await stored(container, data)
    inner = container.reader._storage_read
    gate = asyncio.Event()

    async def slow(of: Segment, offset: int, length: int) -> bytes:
        await gate.wait()
        if offset < 500:
            raise SegmentTruncatedError(A, start_offset=500, offset=offset)
        return await inner(of, offset, length)

    container.reader._storage_read = slow
    first = asyncio.ensure_future(read(container, segment, 0, 900))
    second = asyncio.ensure_future(read(container, segment, 600, 100))
    await turns(3)
    await container.truncate(A, 500)
    gate.set()
    with pytest.raises(SegmentTruncatedError) as raised:
        await first
    assert (raised.value.start_offset, raised.value.offset) == (500, 0)
    assert await second == data[600:700]


# Storage reads.


async def test_reads_of_storage_end_at_boundaries_and_at_what_is_in_memory(lives: Incarnations) -> None:
    """SS-105, SS-109: after the first each begins at a multiple; a hole is read, and no more."""
    container = await lives.start()
    data = random.Random(3).randbytes(10_000)
    segment = await stored(container, data)
    reads = note_reads(container)
    offset = 130
    parts = []
    while offset < len(data):
        parts.append(await read(container, segment, offset, 400))
        offset += len(parts[-1])
    assert b"".join(parts) == data[130:]
    assert reads == [(130, 870), *((start, 1000) for start in range(1000, 10_000, 1000))]
    evict_all(container)
    segment.index.insert_stored(5500, data[5500:5600])
    reads.clear()
    assert await read(container, segment, 5100, 2000) == data[5100:5500]
    assert reads == [(5100, 400)]


async def test_storage_that_does_not_answer_fails_the_read_in_time(lives: Incarnations) -> None:
    """R4.17: all waiting callers get the error, the slot is free again, and the next read tries again."""
    container = await lives.start(storage_read_timeout_s=0.05, storage_reads_max=1)
    segment = await stored(container, bytes(100))
    lives.chunks.hold("read")
    reads = [asyncio.ensure_future(read(container, segment, offset, 10)) for offset in (0, 0, 50)]
    for call in reads:
        with pytest.raises(StorageReadTimeoutError) as raised:
            await call
        assert raised.value.is_retriable
    lives.chunks.release("read")
    assert await read(container, segment, 0, 10) == bytes(10)


async def test_bytes_reach_the_reader_even_if_the_cache_does_not_take_them(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.14."""
    container = await lives.start()
    segment = await stored(container, bytes(100))
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))

    def fail(*_: object) -> None:
        raise MemoryError("injected")

    monkeypatch.setattr(lives.cache, "file", fail)
    assert await read(container, segment, 0, 100) == bytes(100)
    assert len(problems) == 1
    assert segment.index.cached_bytes == 0


async def test_two_readers_of_a_full_cache_and_one_of_a_redirect_all_finish(lives: Incarnations) -> None:
    """SS-114, SS-115: storage reads of two segments end in one turn while the cache is full to its limit; a third
    reader goes through a redirect into one of them. There are no locks to meet: each step of an insertion or an
    eviction is one synchronous call, and nothing waits inside.
    """
    lives.cache_settings = CacheSettings(bytes_max=4000, target_percent=50, block_length=64, small_append_length=32)
    container = await lives.start()
    await pause_writer(container)
    data = random.Random(4).randbytes(4000)
    one, other = await stored(container, data), await stored(container, data, B)
    await container.create("s/t/2.#epoch.0")
    await container.merges.merge("s/t/2.#epoch.0", B)
    target = container.segment("s/t/2.#epoch.0")
    assert other.is_merged
    for _ in range(5):
        found = await asyncio.gather(
            *(read(container, one, offset, 1000) for offset in range(0, 4000, 500)),
            *(read(container, target, offset, 1000) for offset in range(0, 4000, 500)),
        )
        for number, piece in enumerate(found):
            offset = number % 8 * 500
            assert piece
            assert piece == data[offset : offset + len(piece)]
        assert lives.cache.used_bytes <= 4000


async def test_in_essential_mode_storage_is_read_and_not_kept(lives: Incarnations) -> None:
    """SS-116: appends are kept nevertheless."""
    lives.cache_settings = CacheSettings(bytes_max=10_000, target_percent=50, block_length=64, small_append_length=32)
    container = await lives.start()
    segment = await stored(container, bytes(5000))
    await container.create(B)
    await pause_writer(container)
    while not lives.cache.is_essential_only:
        await append(container, B, bytes(500))
    used = lives.cache.used_bytes
    assert await read(container, segment, 0, 500) == bytes(500)
    assert segment.index.cached_bytes == 0
    await append(container, B, bytes(500))
    assert lives.cache.used_bytes == used + 500


@pytest.mark.parametrize("seed", range(100))
async def test_a_merge_is_read_the_same_before_while_and_after_storage_does_it(seed: int) -> None:
    """SS-118, SS-119, SS-120: readers across the seam at random moments of the merge in storage, with evictions."""
    rng = random.Random(seed)
    ahead = {"read_ahead_count_max": rng.choice([0, 2]), "read_ahead_range_bytes": rng.choice([0, 256])}
    ahead["read_small_bytes"] = rng.choice([1, 16, 64])
    lives = Incarnations(replace(PLAIN, read_ahead_bytes=64, **ahead))  # type: ignore[arg-type]
    try:
        container = await lives.start()
        texts = [rng.randbytes(rng.randint(1, 300)) for _ in range(3)]
        segment = await container.create(A)
        source = await container.create(B)
        await append(container, A, texts[0])
        await append(container, B, texts[1])
        if rng.random() < 0.5:
            await container.flush()
            evict_all(container)
        await container.merges.merge(A, B)
        await append(container, A, texts[2])
        whole = b"".join(texts)
        seam = len(texts[0])

        async def reader(own: random.Random) -> None:
            for _ in range(6):
                start = own.randint(max(0, seam - 40), seam + len(texts[1]))
                parts = []
                offset = start
                while offset < min(len(whole), start + 200):
                    parts.append(await read(container, segment, offset, 200))
                    assert parts[-1]
                    offset += len(parts[-1])
                text = b"".join(parts)
                assert text == whole[start : start + len(text)]
                for _ in range(own.randrange(4)):
                    await asyncio.sleep(0)
                if own.random() < 0.3:
                    evict_all(container)

        await asyncio.gather(container.flush(), *(reader(random.Random(rng.random())) for _ in range(4)))
        evict_all(container)
        assert segment.index.cached_bytes == 0
        assert await read_all(container, A) == whole
        assert source.is_merged
    finally:
        await lives.close()


async def test_a_full_cache_loses_nothing_in_a_restart() -> None:
    """SS-112: a cache of 1 MiB, appends of 2 MiB, a stopped storage writer, and no references held."""
    lives = Incarnations(QUIET, cache=replace(SMALL_CACHE, small_append_length=1))
    container = await lives.start()
    await container.create(A)
    await pause_writer(container)
    acknowledged = 0
    while acknowledged < 2 << 20 and not lives.cache.is_full:
        await append(container, A, bytes(64 * 1024))
        acknowledged += 64 * 1024
    assert 1 << 20 <= acknowledged < (1 << 20) + 64 * 1024 + 1
    container = await lives.restart(container)
    assert container.segment(A).durable_length == acknowledged
    await container.flush()
    assert await read_all(container, A) == bytes(acknowledged)
    await lives.close()


async def test_use_of_the_cache_is_zero_after_a_failed_log_write_and_after_a_stop(lives: Incarnations) -> None:
    """SS-36, R1.33: bytes count from acceptance to eviction; what fails or is left at a stop counts no more."""
    container = await lives.start()
    await container.create(A)
    lives.logs.hold_appends(0)
    calls = [asyncio.ensure_future(append(container, A, bytes(100))) for _ in range(5)]
    await turns()
    assert lives.cache.used_bytes >= 500
    await lives.crash(container)
    await container.stop()
    await asyncio.gather(*calls, return_exceptions=True)
    assert lives.cache.used_bytes == 0
    lives.logs.release_appends(0)
    container = await lives.start()
    await append(container, A, bytes(100))
    await lives.stop(container)
    assert lives.cache.used_bytes == 0


async def test_random_reads_fetch_small_ranges(lives: Incarnations) -> None:
    """Forty reads of 8 bytes cost 100 bytes each at most; one that continues where another ended is extended."""
    container = await lives.start(read_small_bytes=100, whole_read_bytes=64)
    data = random.Random(7).randbytes(100_000)
    segment = await stored(container, data)
    reads = note_reads(container)
    offsets = random.Random(8).sample(range(0, 100_000, 1000), 40)
    for offset in offsets:
        assert await read(container, segment, offset + 46, 8) == data[offset + 46 : offset + 54]
    assert reads == [(offset + 46, 54) for offset in offsets]
    reads.clear()
    await turns()
    (offset,) = offsets[-1:]
    assert await read(container, segment, offset + 100, 8) == data[offset + 100 : offset + 108]
    assert reads == [(offset + 100, 900)]
    evict_all(container)
    reads.clear()
    assert await read(container, segment, offset + 997, 8) == data[offset + 997 : offset + 1005]
    assert await read(container, segment, offset + 250, 1000) == data[offset + 250 : offset + 997]
    assert reads == [(offset + 997, 103), (offset + 250, 747)]


async def test_clients_take_turns_where_storage_is_read(lives: Incarnations) -> None:
    """Forty cold reads of one client wait; another one's first is the second to be served, not the last."""
    container = await lives.start(read_small_bytes=10, storage_reads_max=1)
    data = random.Random(9).randbytes(10_000)
    segment = await stored(container, data)
    reads = note_reads(container)
    lives.chunks.hold("read")
    many = [
        asyncio.ensure_future(container.reader.read(segment, 100 * number, 8, client="many")) for number in range(40)
    ]
    await turns()
    one = asyncio.ensure_future(container.reader.read(segment, 9000, 8, client="one"))
    shared = asyncio.ensure_future(container.reader.read(segment, 3900, 8, client="another"))
    await turns()
    assert reads == [(0, 10)]
    lives.chunks.release("read")
    for call in (one, shared):
        await call
    assert (await one).joined() == data[9000:9008]
    await asyncio.gather(*many)
    assert reads[:4] == [(0, 10), (100, 10), (3900, 10), (9000, 10)]
    assert len(reads) == 41


async def test_a_read_of_storage_does_not_wait_for_itself(lives: Incarnations) -> None:
    """Where chunks are is in a table of the container's own, which may have left memory: one read needs another."""
    container = await lives.start(storage_reads_max=1, storage_read_timeout_s=2.0)
    data = random.Random(11).randbytes(3000)
    segment = await stored(container, data)
    await container.flush()
    evict_all(container)
    container.storage._user._context.cache = RecordCache(16)  # What it knew by heart.
    reads = note_reads(container)
    assert (
        await asyncio.gather(read(container, segment, 0, 10), read(container, segment, 2000, 10))
        == [  # type: ignore[comparison-overlap]
            data[:10],
            data[2000:2010],
        ]
    )
    assert len(reads) > 2


async def test_reads_whose_client_has_gone_are_not_made(lives: Incarnations) -> None:
    """Those that wait leave the line, unless another client wants the same; the one under way ends in the cache."""
    container = await lives.start(read_small_bytes=10, storage_reads_max=1)
    data = random.Random(10).randbytes(10_000)
    segment = await stored(container, data)
    reads = note_reads(container)
    lives.chunks.hold("read")
    gone = [
        asyncio.ensure_future(container.reader.read(segment, 100 * number, 8, client="gone")) for number in range(10)
    ]
    await turns()
    stays = asyncio.ensure_future(container.reader.read(segment, 500, 8, client="stays"))
    await turns()
    for call in gone:
        call.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    await turns()
    assert len(container.reader._tasks) == 2
    lives.chunks.release("read")
    assert (await stays).joined() == data[500:508]
    assert reads == [(0, 10), (500, 10)]
    assert await read(container, segment, 300, 8) == data[300:308]


# Read-ahead.


async def test_read_ahead_follows_a_sequential_reader(lives: Incarnations) -> None:
    """After two reads in a row the next ranges come before they are asked for, aligned, and no further than storage."""
    container = await lives.start(read_ahead_count_max=2)
    data = random.Random(5).randbytes(7300)
    segment = await stored(container, data)
    reads = note_reads(container)
    assert await read(container, segment, 0, 1000) == data[:1000]
    await turns()
    assert reads == [(0, 1000)]
    assert await read(container, segment, 1000, 1000) == data[1000:2000]
    await turns()
    assert reads == [(0, 1000), (1000, 1000), (2000, 1000), (3000, 1000)]
    offset = 2000
    while offset < len(data):
        found = container.reader.read_cached(segment, offset, 500)
        assert found is not None, offset
        assert found.joined() == data[offset : offset + 500]
        offset += 500
        await turns()
    assert reads == [*((start, 1000) for start in range(0, 7000, 1000)), (7000, 300)]


async def test_read_ahead_uses_its_own_range_length(lives: Incarnations) -> None:
    """Single reads stay short. A read within a range that is being fetched waits for that, at any offset in it."""
    container = await lives.start(read_ahead_count_max=2, read_ahead_range_bytes=4000)
    data = random.Random(6).randbytes(15_000)
    segment = await stored(container, data)
    reads = note_reads(container)
    assert await read(container, segment, 9500, 100) == data[9500:9600]
    assert reads == [(9500, 500)]
    del reads[:]
    assert await read(container, segment, 0, 1000) == data[:1000]
    lives.chunks.hold("read")
    reading = asyncio.ensure_future(read(container, segment, 1000, 1000))
    await turns()
    assert reads == [(0, 1000), (1000, 1000), (2000, 2000), (4000, 4000)]
    inside = [asyncio.ensure_future(read(container, segment, offset, 700)) for offset in (2000, 3100)]
    await turns()
    # The one behind is wanted now, but for what the single read left in memory.
    assert reads[4:] == [(8000, 1500)]
    behind = asyncio.ensure_future(read(container, segment, 6900, 700))
    await turns()
    lives.chunks.release("read")
    assert await reading == data[1000:2000]
    assert [await one for one in inside] == [data[2000:2700], data[3100:3800]]
    assert await behind == data[6900:7600]
    await turns()
    assert await read_all(container, A) == data


async def test_no_read_ahead_without_cache_space(lives: Incarnations) -> None:
    """Not in essential-only mode, and not while all reads from storage are taken by those who wait."""
    lives.cache_settings = CacheSettings(bytes_max=10_000, target_percent=50, block_length=64, small_append_length=32)
    container = await lives.start(read_ahead_count_max=2)
    segment = await stored(container, bytes(5000))
    reads = note_reads(container)
    lives.cache.count(9000)
    for offset in (0, 1000, 2000):
        await read(container, segment, offset, 1000)
        await turns()
    assert reads == [(0, 1000), (1000, 1000), (2000, 1000)]
    lives.cache.discount(9000)


async def test_a_stop_ends_read_ahead(lives: Incarnations) -> None:
    """SS-125: nothing is left under way, and nothing inserted afterwards."""
    container = await lives.start(read_ahead_count_max=2)
    segment = await stored(container, bytes(9000))
    await read(container, segment, 0, 1000)
    lives.chunks.hold("read")
    reading = asyncio.ensure_future(read(container, segment, 1000, 1000))
    await turns()
    assert len(container.reader._tasks) == 3
    await lives.stop(container)
    with pytest.raises(ContainerOfflineError):
        await reading
    lives.chunks.release("read")
    await turns()
    assert not container.reader._tasks
    assert lives.cache.used_bytes == 0


async def test_a_read_ahead_that_fails_is_not_noticed(lives: Incarnations) -> None:
    """The reader who comes there reads it again."""
    container = await lives.start(read_ahead_count_max=1)
    data = random.Random(6).randbytes(4000)
    segment = await stored(container, data)
    await read(container, segment, 0, 1000)
    inner = container.reader._storage_read

    async def failing(of: Segment, offset: int, length: int) -> bytes:
        if offset == 2000:
            raise StorageError("injected")
        return await inner(of, offset, length)

    container.reader._storage_read = failing
    assert await read(container, segment, 1000, 1000) == data[1000:2000]
    await turns()
    container.reader._storage_read = inner
    assert await read(container, segment, 2000, 1000) == data[2000:3000]


# The disk cache.


@pytest.fixture
async def on_disk(lives: Incarnations, tmp_path: Path) -> AsyncIterator[DiskCache]:
    settings = DiskCacheSettings(bytes_max=100 * RANGE, slot_bytes=RANGE, piece_bytes_min=1)
    cache = DiskCache(str(tmp_path), settings, lives.runtime)
    await cache.open()
    yield cache
    await cache.close()


def use(container: SegmentContainer, cache: DiskCache) -> None:
    container.reader.use_disk_cache(cache, container.log.epoch, container.events)


async def test_evicted_bytes_are_read_from_the_disk_cache(lives: Incarnations, on_disk: DiskCache) -> None:
    """Long-term storage is not asked for evicted bytes; a damaged slot is read from there."""
    container = await lives.start()
    use(container, on_disk)
    data = random.Random(7).randbytes(3500)
    segment = await stored(container, data)
    await on_disk.settle()
    reads = note_reads(container)
    for _ in range(2):
        assert await read_all(container, A) == data
        evict_all(container)
        await on_disk.settle()
    assert reads == []
    damaged = bytearray(Path(on_disk._path).read_bytes())
    damaged[1500:1504] = b"????"
    Path(on_disk._path).write_bytes(damaged)
    assert await read(container, segment, 1200, 400) == data[1200:1600]
    assert reads == [(1200, 800)]
    assert on_disk.statistics.damaged_count == 1


async def test_a_part_on_disk_is_not_taken_for_the_whole(lives: Incarnations, on_disk: DiskCache) -> None:
    """Readers that share a read get their bytes also when the disk had only the first of them."""
    container = await lives.start()
    data = random.Random(8).randbytes(1000)
    segment = await stored(container, data)
    use(container, on_disk)
    on_disk.keep(container.reader._disk_key(segment), 0, data[:300])
    await on_disk.settle()
    found = await asyncio.gather(*(read(container, segment, offset, 1000) for offset in (0, 100, 299, 300, 900)))
    assert found[0] == data[:300]
    for offset, piece in zip((0, 100, 299, 300, 900), found, strict=True):
        assert piece
        assert piece == data[offset : offset + len(piece)]


async def test_no_bytes_of_an_earlier_segment_or_incarnation_are_read_from_the_disk_cache(
    lives: Incarnations, on_disk: DiskCache
) -> None:
    container = await lives.start()
    use(container, on_disk)
    await stored(container, b"a" * 1000)
    await on_disk.settle()
    await container.delete(A)
    await container.flush()
    segment = await stored(container, b"b" * 1000)
    await on_disk.settle()
    assert await read(container, segment, 0, 1000) == b"b" * 1000
    container = await lives.restart(container)
    evict_all(container)
    use(container, on_disk)
    hits = on_disk.statistics.hit_count
    assert await read(container, container.segment(A), 0, 1000) == b"b" * 1000
    assert on_disk.statistics.hit_count == hits


async def test_deleting_ends_waiting_reads(lives: Incarnations) -> None:
    """SS-100."""
    container = await lives.start()
    segment = await container.create(A)
    waiting = tail_read(container, segment, 0)
    await turns(3)
    await container.delete(A)
    with pytest.raises(NoSuchSegmentError):
        await waiting
