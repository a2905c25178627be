"""One sync of a directory serves all callers that created something in it before the sync began."""

from __future__ import annotations

import asyncio
import posixpath
import random
import threading
from pathlib import Path

import pytest

from penstock.model.errors import ChunkError, StorageError
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage
from penstock.segmentstore.tier2.directory_syncs import DirectorySyncs
from support.containers import turns, until


class Syncs:
    """Syncs that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates: list[asyncio.Future[None]] = []
        self.syncs = DirectorySyncs(self.sync_now)

    async def sync_now(self, folder: str) -> None:
        self.begun.append(folder)
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate


async def test_who_comes_while_a_sync_is_under_way_waits_for_the_next() -> None:
    """The one under way may have read the directory before; the next one does for all of them."""
    world = Syncs()
    first = asyncio.ensure_future(world.syncs.sync("a"))
    await turns(3)
    later = [asyncio.ensure_future(world.syncs.sync("a")) for _ in range(5)]
    await turns(3)
    assert world.begun == ["a"]
    world.gates[0].set_result(None)
    await first
    await turns(3)
    assert world.begun == ["a", "a"]
    assert not any(one.done() for one in later)
    world.gates[1].set_result(None)
    await asyncio.gather(*later)
    assert world.syncs.sync_count == 2


async def test_directories_do_not_wait_for_each_other() -> None:
    world = Syncs()
    slow, other = asyncio.ensure_future(world.syncs.sync("a")), asyncio.ensure_future(world.syncs.sync("b"))
    await turns(3)
    world.gates[1].set_result(None)
    await other
    assert not slow.done()
    world.gates[0].set_result(None)
    await slow


async def test_a_failed_sync_fails_only_its_own_waiters() -> None:
    """Also when one of them is cancelled meanwhile: the others get the error nevertheless."""
    world = Syncs()
    first = [asyncio.ensure_future(world.syncs.sync("a")) for _ in range(3)]
    await turns(3)
    later = asyncio.ensure_future(world.syncs.sync("a"))
    first[0].cancel()
    await turns(3)
    world.gates[0].set_exception(StorageError("broken"))
    for one in first[1:]:
        with pytest.raises(StorageError, match="broken"):
            await one
    assert first[0].cancelled()
    await turns(3)
    world.gates[1].set_result(None)
    await later


class CountingDisk(LocalDisk):
    """Counts, holds and fails syncs of directories."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.fails = False
        self.gate = threading.Event()
        self.gate.set()

    def sync_directory(self, path: str) -> None:
        self.synced.append(posixpath.basename(path))
        assert self.gate.wait(60)
        if self.fails and path.endswith("stream"):
            raise OSError(5, "no luck")
        super().sync_directory(path)


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
async def storage(disk: CountingDisk, tmp_path: Path) -> DirectoryChunkStorage:
    runtime = Runtime(disk=disk, work=ThreadedWork(4), rng=random.Random(1), wall_clock_ms=lambda: 1)
    return DirectoryChunkStorage(str(tmp_path), runtime)


async def test_chunks_created_in_one_directory_at_the_same_time_share_syncs_of_it(
    storage: DirectoryChunkStorage, disk: CountingDisk, tmp_path: Path
) -> None:
    """A round of a thousand segments of one stream took a thousand syncs of its directory.

    While the first sync is held all files are written; then one more does for all.
    """
    await storage.create_with_content("s/stream/first", [b"1"])
    disk.synced.clear()
    disk.gate.clear()
    names = [f"s/stream/{number}" for number in range(100)]
    creations = [asyncio.ensure_future(storage.create_with_content(name, [b"data"])) for name in names]
    await until(lambda: len(list((tmp_path / "s" / "stream").iterdir())) == 101)
    disk.gate.set()
    await asyncio.gather(*creations)
    # How many more depends on the threads.
    assert 2 <= disk.synced.count("stream") <= 10
    assert [info.name for info in await storage.list()] == sorted([*names, "s/stream/first"])


async def test_chunks_whose_names_could_not_be_synced_are_not_left_behind(
    storage: DirectoryChunkStorage, disk: CountingDisk
) -> None:
    """All of those that waited for the sync are refused, and gone."""
    await storage.create_with_content("s/stream/first", [b"1"])
    disk.fails = True
    results = await asyncio.gather(
        *(storage.create_with_content(f"s/stream/{number}", [b"data"]) for number in range(10)), return_exceptions=True
    )
    assert all(isinstance(result, ChunkError) for result in results)
    disk.fails = False
    assert [info.name for info in await storage.list()] == ["s/stream/first"]
    await storage.create_with_content("s/stream/0", [b"data"])
