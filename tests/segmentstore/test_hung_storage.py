"""Long-term storage that hangs: a segment store with real files, some of whose calls do not come back.

A thread inside the process is held at a call of the disk, as it would be inside the kernel. With a real mount:
tests/e2e/test_hung_storage.py.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors import StorageError, StorageNotRespondingError
from penstock.model.routing import container_of
from penstock.model.segments import Buffer
from penstock.runtime.disk import LocalDisk, LocalFile
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.runtime.work import PoolSettings
from penstock.segmentstore.container_settings import ContainerSettings, OrphanSettings
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage, DirectoryChunkStorageSettings
from support.containers import evict_all, until

LOG = LocalLogSettings(first_file_length_bytes=64 * 1024, file_length_bytes=256 * 1024)
POOL = PoolSettings(thread_count_max=8, hung_count_max=8, timeout_s=20.0)
SETTINGS = SegmentStoreSettings(
    container_count=1,
    restart_delay_s=0.01,
    container=ContainerSettings(flush_age_s=0.01, writer_interval_s=0.01, storage_read_timeout_s=1.0),
)
SEGMENT = "s/t/0.#epoch.0"


class HungDisk(LocalDisk):
    """A disk whose calls named in `hung` do not come back, for paths with `hung_place` (chunks), until `heal`."""

    def __init__(self) -> None:
        self.hung: set[str] = set()
        self.hung_place = "/tier2/s/"
        self.stuck_count = 0
        self.open_files: set[HungFile] = set()
        self.closed_under_a_call: list[str] = []
        self._healed = threading.Event()

    def heal(self) -> None:
        self.hung.clear()
        self._healed.set()

    def pass_through(self, call: str, path: str) -> None:
        if call in self.hung and self.hung_place in path:
            self.stuck_count += 1
            assert self._healed.wait(60)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> LocalFile:
        self.pass_through("open", path)
        plain = super().open(path, create=create, exclusive=exclusive, writable=writable)
        return HungFile(plain, self)


class HungFile(LocalFile):
    """A file of `HungDisk`."""

    def __init__(self, plain: LocalFile, disk: HungDisk) -> None:
        super().__init__(plain.path, plain._descriptor)
        self._disk = disk
        self._call_count = 0
        disk.open_files.add(self)

    def read(self, offset: int, length: int) -> bytes:
        self._call_count += 1
        self._disk.pass_through("read", self.path)
        data = super().read(offset, length)
        self._call_count -= 1
        return data

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        self._call_count += 1
        self._disk.pass_through("write", self.path)
        count = super().write(offset, buffers)
        self._call_count -= 1
        return count

    def write_synced(self, offset: int, buffers: Sequence[Buffer]) -> int:
        self._call_count += 1
        self._disk.pass_through("write", self.path)
        count = super().write_synced(offset, buffers)
        self._call_count -= 1
        return count

    def sync(self) -> None:
        self._disk.pass_through("sync", self.path)
        super().sync()

    def close(self) -> None:
        if self._call_count:
            self._disk.closed_under_a_call.append(self.path)
        self._disk.open_files.discard(self)
        super().close()


class Place:
    """A segment store with a log on a healthy disk, and chunks on one that may hang."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disk = HungDisk()
        self.work = ThreadedWork(2)
        self.runtime = Runtime(disk=self.disk, work=self.work, rng=random.Random(1), wall_clock_ms=lambda: 0)
        self.stores: list[SegmentStore] = []

    async def start(self, settings: SegmentStoreSettings = SETTINGS, writes: PoolSettings = POOL) -> SegmentStore:
        chunks = DirectoryChunkStorage(
            str(self.directory / "tier2"),
            self.runtime,
            DirectoryChunkStorageSettings(reads=POOL, writes=writes, names=POOL, cancel_grace_s=0.05),
        )
        logs = LocalLogFactory(str(self.directory / "tier1"), self.runtime, LOG)
        store = SegmentStore(logs=logs, chunks=chunks, runtime=self.runtime, settings=settings)
        self.stores.append(store)
        await store.start()
        return store


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    yield made
    made.disk.heal()
    for store in made.stores:
        await store.stop()
    await made.work.close()


async def stored(store: SegmentStore, *, count: int) -> list[str]:
    """Return segments of 1 000 bytes each, which long-term storage has and memory has not."""
    names = [f"s/t/{number}.#epoch.0" for number in range(count)]
    for name in names:
        await store.create_segment(name)
        await store.append(name, name.encode().ljust(1000, b"."))
    container = store.containers[0]
    await container.flush()
    evict_all(container)
    return names


async def test_eight_reads_stuck_in_long_term_storage_do_not_stop_acknowledgements(place: Place) -> None:
    """The log is healthy. The reads end with their time-out; once the storage answers, others succeed."""
    store = await place.start()
    names = await stored(store, count=8)
    place.disk.hung = {"read"}
    reads = [asyncio.ensure_future(store.read(name, 0, 100)) for name in names]
    await until(lambda: place.disk.stuck_count == 8)
    for number in range(20):
        assert await store.append(names[number % 8], b"acknowledged") > 1000
    for outcome in await asyncio.gather(*reads, return_exceptions=True):
        assert isinstance(outcome, StorageError)
        assert "did not return 1000 bytes" in str(outcome)
    place.disk.heal()
    for name in names:
        assert (await store.read(name, 0, 100)).joined() == name.encode().ljust(100, b".")


async def test_container_is_stopped_and_restarted_while_reads_of_long_term_storage_hang(place: Place) -> None:
    """The next incarnation serves; what hung closes its files when it ends, and not before."""
    store = await place.start()
    names = await stored(store, count=8)
    place.disk.hung = {"read"}
    reads = [asyncio.ensure_future(store.read(name, 0, 100)) for name in names]
    await until(lambda: place.disk.stuck_count == 8)
    async with asyncio.timeout(60):
        await store.stop()
        await asyncio.gather(*reads, return_exceptions=True)
        hung = set(place.disk.open_files)
        successor = await place.start()
        await successor.append(names[0], b"acknowledged")
    assert (await successor.read(names[0], 1000, 100)).joined() == b"acknowledged"
    assert len([file for file in hung if "/tier2/" in file.path]) >= 8
    place.disk.heal()
    await until(lambda: not any(file in place.disk.open_files for file in hung if "/tier2/" in file.path))
    assert not place.disk.closed_under_a_call
    assert (await successor.read(names[1], 0, 100)).joined() == names[1].encode().ljust(100, b".")


async def test_container_is_stopped_and_restarted_while_flushes_hang(place: Place) -> None:
    """What an abandoned write of the last incarnation leaves does no harm: all that was acknowledged is read back."""
    store = await place.start()
    await stored(store, count=1)
    place.disk.hung = {"write"}
    await store.append(SEGMENT, b"a" * 1000)
    await until(lambda: place.disk.stuck_count > 0)
    async with asyncio.timeout(60):
        await store.stop()
        successor = await place.start()
        await successor.append(SEGMENT, b"b" * 1000)
    place.disk.heal()
    container = successor.containers[0]
    await until(lambda: not container.state.unflushed)
    evict_all(container)
    data = (await successor.read(SEGMENT, 0, 3000)).joined()
    assert data == SEGMENT.encode().ljust(1000, b".") + b"a" * 1000 + b"b" * 1000


async def test_a_store_starts_over_long_term_storage_that_hangs(place: Place) -> None:
    """Appends are acknowledged, what the log has is read; when storage answers, all is flushed, and all is read."""
    store = await place.start()
    names = await stored(store, count=2)
    await store.append(names[0], b"in the log alone")
    await store.stop()
    place.disk.hung_place = "/tier2/"
    place.disk.hung = {"open"}
    guard = replace(SETTINGS.storage_guard, check_timeout_s=0.1)
    container = replace(SETTINGS.container, flush_age_s=1e9, recovery_lookup_s=0.1)
    async with asyncio.timeout(60):
        successor = await place.start(replace(SETTINGS, storage_guard=guard, container=container))
        assert successor.is_ready
        assert successor.storage_problem is not None
        await successor.append(names[0], b", and more")
        assert (await successor.read(names[0], 1000, 100)).joined() == b"in the log alone, and more"
    place.disk.heal()
    await until(lambda: successor.storage_problem is None)
    await successor.containers[0].flush()
    evict_all(successor.containers[0])
    for name in names:
        assert (await successor.read(name, 0, 100)).joined() == name.encode().ljust(100, b".")


@pytest.mark.parametrize("call", ["open", "write", "sync"])
@pytest.mark.parametrize("is_stopped", [False, True], ids=["served on", "restarted"])
async def test_a_chunk_that_is_created_after_its_caller_gave_up_is_removed(
    place: Place, call: str, is_stopped: bool
) -> None:
    """Its creation hangs, in turn at each of its calls, and continues once the flush has been repeated elsewhere."""
    orphans = OrphanSettings(retry_s_min=0.05, sweep_delay_s=0.05, sweep_interval_s=0.05, sweep_pause_s=0.0)
    settings = replace(SETTINGS, container=replace(SETTINGS.container, orphans=orphans))
    impatient = replace(POOL, timeout_s=0.2)
    store = await place.start(settings, writes=impatient)
    await store.create_segment(SEGMENT)
    place.disk.hung = {call}
    await store.append(SEGMENT, b"a" * 1000)
    await until(lambda: place.disk.stuck_count >= 3)
    if is_stopped:
        await store.stop()
        store = await place.start(settings, writes=impatient)
    place.disk.heal()
    container = store.containers[0]
    await until(lambda: not container.state.unflushed)
    segment = container.segment(SEGMENT)
    chunks = await container.storage.of(segment).chunks_of(SEGMENT)
    assert sum(chunk.length for chunk in chunks) == 1000
    root = place.directory / "tier2"
    names = {chunk.name for chunk in chunks}
    await until(lambda: {str(file.relative_to(root)) for file in (root / "s").rglob("*.E-*")} == names)
    evict_all(container)
    assert (await store.read(SEGMENT, 0, 1000)).joined() == b"a" * 1000


async def test_storage_that_hangs_too_much_is_not_asked_any_more(place: Place) -> None:
    """A thread for each call would be without a bound; callers hear at once that it does not answer."""
    settings = replace(SETTINGS, container=replace(SETTINGS.container, storage_reads_max=40))
    store = await place.start(settings)
    names = await stored(store, count=20)
    place.disk.hung = {"read"}
    for _ in range(4):
        reads = (store.read(name, 0, 100) for name in names)
        outcomes = await asyncio.gather(*reads, return_exceptions=True)
        assert all(isinstance(outcome, StorageError) for outcome in outcomes)
    bound = POOL.thread_count_max + POOL.hung_count_max
    for _ in range(1000):
        if place.disk.stuck_count == bound:
            break
        await asyncio.sleep(0.01)  # The last thread may not have come to its call yet.
    assert place.disk.stuck_count == bound
    with pytest.raises(StorageNotRespondingError, match="of its calls hang already"):
        await store.read(names[0], 0, 100)
    assert await store.append(names[0], b"acknowledged") == 1012


async def test_hung_disk_of_one_log_stops_its_own_container_alone(place: Place) -> None:
    """Others acknowledge appends and read from long-term storage; once the disk answers, so does the first."""
    store = await place.start(replace(SETTINGS, container_count=2))
    names = {container_of(name, 2): name for name in ("s/t/0.#epoch.0", "s/t/1.#epoch.0", "s/t/2.#epoch.0")}
    for name in names.values():
        await store.create_segment(name)
        await store.append(name, b"before")
    place.disk.hung_place, place.disk.hung = "/tier1/0/", {"write"}
    stuck = [asyncio.ensure_future(store.append(names[0], b"stuck")) for _ in range(20)]  # type: ignore[index]
    await until(lambda: place.disk.stuck_count > 0)
    for _ in range(20):
        await store.append(names[1], b"acknowledged")  # type: ignore[index]
    other = next(container for container in store.containers if container.id == 1)
    await other.flush()
    evict_all(other)
    assert (await store.read(names[1], 0, 6)).joined() == b"before"  # type: ignore[index]
    assert not any(append.done() for append in stuck)
    place.disk.heal()
    assert max(await asyncio.gather(*stuck)) == 6 + 20 * 5
