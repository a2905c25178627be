"""Readers of one segment through appends, truncations, evictions, flushes and incarnations, all at once, by seed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors import (
    ContainerOfflineError,
    OutcomeUnknownError,
    SegmentTruncatedError,
    StorageError,
)
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.reads.disk_cache import DiskCache
from penstock.segmentstore.settings import CacheSettings, DiskCacheSettings
from penstock_simulation.checks.invariants import check_cache
from support.containers import QUIET, Incarnations, append, evict_all
from support.drawn_seeds import drawn_seeds

A = "s/t/0.#epoch.0"
STEPS = 40
#: So far the writer goes ahead of storage, which is slow here.
UNSTORED_MAX = 2000


class Play:
    """One segment, what it must hold, and those who work on it.

    `text` is what was given to the container so far; its first `acknowledged` bytes will never be anything else.
    """

    def __init__(self, seed: int, lives: Incarnations, disk: DiskCache | None) -> None:
        self.rng = random.Random(seed)
        self.lives = lives
        self.disk = disk
        self.text = bytearray()
        self.acknowledged = 0
        self.start_offset = 0
        self.container: SegmentContainer | None = None
        self.is_over = False
        self.bytes_read = 0
        self.truncations_seen = 0

    async def start(self) -> None:
        container = await self.lives.start()
        if self.disk is not None:
            container.reader.use_disk_cache(self.disk, container.log.epoch, container.events)
        if not any(segment.name == A for segment in container.segments()):
            await container.create(A)
        segment = container.segment(A)
        assert self.acknowledged <= segment.durable_length <= len(self.text)
        # An unacknowledged append is either there or not. From now on, which of the two no longer changes.
        del self.text[segment.durable_length :]
        self.acknowledged = segment.durable_length
        assert segment.durable_start_offset >= self.start_offset
        self.container = container

    async def turn(self) -> None:
        for _ in range(self.rng.randrange(6)):
            await asyncio.sleep(0)

    async def write(self) -> None:
        while not self.is_over:
            container = self.container
            if container is not None and self.acknowledged - container.segment(A).storage_length < UNSTORED_MAX:
                data = self.rng.randbytes(self.rng.choice([1, 10, 50, 300]))
                self.text += data
                try:
                    end = await asyncio.wait_for(append(container, A, data), 60)
                except (ContainerOfflineError, OutcomeUnknownError):
                    pass  # `start` finds out.
                else:
                    if container is self.container:
                        assert end <= len(self.text)
                        self.acknowledged = max(self.acknowledged, end)
            await self.turn()

    async def read(self) -> None:
        """Follow the segment from its start to its end: each byte once, in order, or a typed outcome."""
        position = 0
        while not self.is_over or position < self.acknowledged:
            container = self.container
            await self.turn()
            if container is None or container is not self.container:
                continue
            try:
                length = self.rng.choice([1, 40, 200, 1000])
                found = await container.reader.read(container.segment(A), position, length)
            except SegmentTruncatedError as error:
                self.skip(position, error.start_offset)
                position = error.start_offset
                continue
            except (ContainerOfflineError, StorageError):
                continue
            data = found.joined()
            assert data == self.text[position : position + len(data)], (position, len(data))
            position += len(data)
            self.bytes_read += len(data)
            assert not found.is_end_of_segment

    def skip(self, position: int, start_offset: int) -> None:
        assert position < start_offset <= self.start_offset
        self.truncations_seen += 1

    async def disturb(self) -> None:
        for _ in range(STEPS):
            container = self.container
            assert container is not None
            self.lives.chunks.heal()
            match self.rng.randrange(8):
                case 0 | 1:
                    evict_all(container)
                case 2 | 3:
                    await self.flush(container)
                case 4:
                    offset = self.rng.randint(self.start_offset, self.acknowledged)
                    if self.rng.random() < 0.7:
                        offset = min(offset, self.start_offset + 300)
                    self.start_offset = offset
                    await container.truncate(A, offset)
                case 5:
                    self.lives.chunks.fail("read", times=self.rng.randint(1, 3))
                case 6:
                    self.lives.cache.advance(asyncio.get_running_loop().time() + 1e6)
                case _:
                    self.container = None
                    if self.rng.random() < 0.5:
                        await self.lives.stop(container)
                    else:
                        await self.lives.crash(container)
                        await container.stop()
                    await self.start()
            assert not check_cache(self.lives.cache)
            for _ in range(10):
                await self.turn()
        self.lives.chunks.heal()
        self.is_over = True

    async def flush(self, container: SegmentContainer) -> None:
        try:
            await container.flush()
        except StorageError:
            self.lives.chunks.heal()


@pytest.mark.parametrize("seed", drawn_seeds(16, daily=6))
async def test_each_byte_is_returned_once_or_reported_missing(seed: int, tmp_path: Path) -> None:
    """A reader of a segment under append, truncation, eviction, failing storage and fail-over gets each byte once.

    Or hears that it was truncated. Three readers at once, with and without a disk cache; the cache's books are right
    after each step. SS-249.
    """
    rng = random.Random(seed)
    settings = replace(
        QUIET,
        flush_write_bytes_max=rng.choice([200, 10_000]),
        read_ahead_bytes=rng.choice([64, 256]),
        read_ahead_range_bytes=rng.choice([0, 1024]),
        read_small_bytes=rng.choice([1, 32, 256]),
        read_ahead_count_max=rng.choice([0, 2]),
        whole_read_bytes=rng.choice([0, 512]),
        storage_reads_max=rng.choice([1, 8]),
    )
    cache = CacheSettings(
        bytes_max=rng.choice([20_000, 1 << 20]),
        target_percent=rng.choice([5, 75]),
        block_length=128,
        small_append_length=64,
        eviction_entries_max=rng.choice([3, 512]),
    )
    lives = Incarnations(settings, cache=cache, frame_length_max=rng.choice([400, 8000]), seed=seed)
    disk = None
    if rng.random() < 0.5:
        disk = DiskCache(
            str(tmp_path), DiskCacheSettings(bytes_max=5000, slot_bytes=256, piece_bytes_min=1), lives.runtime
        )
        await disk.open()
    play = Play(seed, lives, disk)
    await play.start()
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(play.disturb(), play.write(), *(play.read() for _ in range(3)))
        assert play.bytes_read > 1000
        assert not lives.failures
    finally:
        if disk is not None:
            await disk.close()
        await lives.close()
