"""`DirectoryChunkStorage` on a disk that fails, and what it leaves in the directory.

The disk is a real one under a thin layer that records calls and injects failures. The contract itself is
shown by the conformance suite.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from penstock.model.errors import (
    BadChunkOffsetError,
    ChunkError,
    CorruptionError,
    NoSuchChunkError,
    StorageError,
    StorageFullError,
)
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskFile, LocalDisk, LocalFile
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage, DirectoryChunkStorageSettings
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings

NAME = "s/a/0.E-1"
NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


class FaultyDisk(LocalDisk):
    """A local disk that fails the calls named in `failures` and reports what was done."""

    def __init__(self) -> None:
        self.failures: dict[str, OSError | StorageError] = {}
        self.calls: list[str] = []
        self.written_before_failure = 0
        self.short_by = 0
        self.open_count = 0
        self.gate: threading.Event | None = None
        self.is_gate_reached = threading.Event()

    def note(self, call: str, path: str) -> None:
        self.calls.append(f"{call} {os.path.basename(path)}")
        if call in self.failures:
            raise self.failures[call]

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> LocalFile:
        self.note("create" if create else "open", path)
        plain = super().open(path, create=create, exclusive=exclusive, writable=writable)
        self.open_count += 1
        return FaultyFile(plain, self)

    def make_directory(self, path: str) -> None:
        self.note("make_directory", path)
        super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        self.note("sync_directory", path)
        super().sync_directory(path)

    def remove(self, path: str) -> None:
        self.note("remove", path)
        super().remove(path)


class FaultyFile(LocalFile):
    """A file of `FaultyDisk`."""

    def __init__(self, plain: LocalFile, disk: FaultyDisk) -> None:
        super().__init__(plain.path, plain._descriptor)
        self._disk = disk

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        if self._disk.gate is not None:
            self._disk.is_gate_reached.set()
            self._disk.gate.wait(10)
        if "write" in self._disk.failures:
            super().write(offset, [b"".join(buffers)[: self._disk.written_before_failure]])
        self._disk.note("write", self.path)
        return super().write(offset, buffers)

    def read(self, offset: int, length: int) -> bytes:
        self._disk.note("read", self.path)
        return super().read(offset, length)[: length - self._disk.short_by]

    def sync(self) -> None:
        self._disk.note("sync", self.path)
        super().sync()

    def truncate(self, length: int) -> None:
        self._disk.note("truncate", self.path)
        super().truncate(length)

    def close(self) -> None:
        if self._descriptor >= 0:
            self._disk.open_count -= 1
        super().close()


class Place:
    """A storage over a faulty disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = FaultyDisk()
        self.work = ThreadedWork(2)
        self.runtime = Runtime(disk=self.disk, work=self.work, rng=random.Random(1), wall_clock_ms=lambda: 0)
        self.storage = self.another()

    def another(self, settings: DirectoryChunkStorageSettings | None = None) -> DirectoryChunkStorage:
        return DirectoryChunkStorage(str(self.root), self.runtime, settings)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path / "chunks")
    yield made
    await made.storage.close()
    await made.work.close()


async def test_chunk_is_synced_with_every_directory_entry_above_it(place: Place) -> None:
    await place.storage.create_with_content(NAME, [b"abc"])
    calls = place.disk.calls
    assert calls.index("write 0.E-1") < calls.index("sync 0.E-1")
    created = calls.index("create 0.E-1")
    for folder in ("chunks", "s"):  # The parents' entries before the file, the file's own entry after it.
        assert f"sync_directory {folder}" in calls[:created]
    assert "sync_directory a" in calls[created:]
    calls.clear()
    await place.storage.write(NAME, 3, [b"d"])
    assert calls[-2:] == ["write 0.E-1", "sync 0.E-1"]
    calls.clear()
    await place.storage.delete(NAME)
    assert calls == ["remove 0.E-1", "sync_directory a"]


async def test_what_fsck_recovered_is_no_chunk(place: Place) -> None:
    """The root of each ext4 volume has a directory `lost+found`, which only root can list."""
    (place.root / "lost+found").mkdir(parents=True)
    (place.root / "lost+found" / "#123").touch()
    await place.storage.create_with_content(NAME, [b"abc"])
    assert await place.storage.names(limit=10) == [NAME]
    assert [chunk.name for chunk in await place.storage.list("")] == [NAME]


async def test_directories_made_by_a_predecessor_are_synced_once(place: Place) -> None:
    os.makedirs(place.root / "s" / "a")
    await place.storage.create(NAME)
    assert {"sync_directory chunks", "sync_directory s", "sync_directory a"} <= set(place.disk.calls)
    place.disk.calls.clear()
    await place.storage.create("s/a/1.E-1")
    assert [call for call in place.disk.calls if "directory" in call] == ["sync_directory a"]


async def test_files_are_the_users_bytes_and_nothing_else(place: Place) -> None:
    await place.storage.create_with_content(NAME, [b"abc"])
    await place.storage.write(NAME, 3, [b"def"])
    assert (place.root / NAME).read_bytes() == b"abcdef"
    assert [path for path in place.root.rglob("*") if path.is_file()] == [place.root / NAME]


async def test_empty_directories_go_with_the_last_chunk(place: Place) -> None:
    await place.storage.create("s/a/1")
    await place.storage.create("s/b/1")
    await place.storage.delete("s/a/1")
    assert sorted(path.name for path in (place.root / "s").iterdir()) == ["b"]
    await place.storage.delete("s/b/1")
    assert list(place.root.iterdir()) == []
    await place.storage.create("s/a/1")
    assert await place.storage.exists("s/a/1")


@pytest.mark.parametrize("verb", ["make_directory", "create", "write", "sync", "sync_directory"])
@pytest.mark.parametrize(("error", "expected"), [(NO_SPACE, StorageFullError), (BROKEN, ChunkError)])
async def test_failed_creation_leaves_nothing(
    place: Place, verb: str, error: OSError, expected: type[StorageError]
) -> None:
    place.disk.failures[verb] = error
    place.disk.written_before_failure = 2
    with pytest.raises(expected):
        await place.storage.create_with_content(NAME, [b"abc"])
    place.disk.failures.clear()
    assert not await place.storage.exists(NAME)
    assert place.disk.open_count == 0
    assert await place.storage.create_with_content(NAME, [b"abc"]) == 3


async def test_unfinished_chunk_that_cannot_be_removed_is_mentioned(place: Place) -> None:
    place.disk.failures |= {"write": BROKEN, "remove": BROKEN}
    with pytest.raises(ChunkError) as raised:
        await place.storage.create_with_content(NAME, [b"abc"])
    assert raised.value.__cause__ is not None
    assert "could not be removed" in raised.value.__cause__.__notes__[0]


async def test_full_disk_takes_the_write_back(place: Place) -> None:
    # SS-238: what was written is cut off, so the space is free and the same write can be done later.
    await place.storage.create_with_content(NAME, [b"abc"])
    place.disk.written_before_failure = 2
    place.disk.failures["write"] = StorageFullError("full")
    with pytest.raises(StorageFullError):
        await place.storage.write(NAME, 3, [b"defgh"])
    place.disk.failures.clear()
    assert (await place.storage.info(NAME)).length == 3
    assert await place.storage.write(NAME, 3, [b"defgh"]) == 5
    assert await place.storage.read(NAME, 0, 99) == b"abcdefgh"


async def test_full_disk_that_cannot_take_the_write_back_shows_it_at_the_next(place: Place) -> None:
    await place.storage.create_with_content(NAME, [b"abc"])
    place.disk.written_before_failure = 2
    place.disk.failures |= {"write": StorageFullError("full"), "truncate": BROKEN}
    with pytest.raises(StorageFullError) as raised:
        await place.storage.write(NAME, 3, [b"defgh"])
    assert "could not be truncated" in raised.value.__notes__[0]
    place.disk.failures.clear()
    with pytest.raises(BadChunkOffsetError) as bad:
        await place.storage.write(NAME, 3, [b"defgh"])
    assert bad.value.expected == 5


@pytest.mark.parametrize("verb", ["write", "sync"])
async def test_failed_write_or_sync_shows_as_garbage_at_the_next(place: Place, verb: str) -> None:
    # A failed sync must not be repeated and called success.
    await place.storage.create_with_content(NAME, [b"abc"])
    place.disk.written_before_failure = 2
    place.disk.failures[verb] = BROKEN
    with pytest.raises(ChunkError):
        await place.storage.write(NAME, 3, [b"defgh"])
    place.disk.failures.clear()
    with pytest.raises(BadChunkOffsetError) as raised:
        await place.storage.write(NAME, 3, [b"defgh"])
    assert raised.value.expected > raised.value.given == 3


async def test_short_file_is_an_error_and_not_a_loop(place: Place) -> None:
    await place.storage.create_with_content(NAME, [b"abcdef"])
    place.disk.short_by = 1
    with pytest.raises(StorageError, match="gave only 5 of 6"):
        await place.storage.read(NAME, 0, 6)
    await place.storage.create_with_content("t", [b"x"])
    with pytest.raises(StorageError, match="gave only"):
        await place.storage.concat("t", 1, [(NAME, 6)])
    place.disk.short_by = 0
    assert await place.storage.read("t", 0, 9) == b"x"


@pytest.mark.parametrize("given_at_once", [1, 2])
async def test_a_system_that_gives_less_than_was_requested_is_asked_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, given_at_once: int
) -> None:
    """SS-210: a byte at a time; and none at all where the file should continue, which is an error and not a loop."""
    data = bytes(range(100))
    await place.storage.create_with_content(NAME, [data])
    ask = os.pread
    asked: list[int] = []

    def little(descriptor: int, length: int, offset: int) -> bytes:
        asked.append(offset)
        return ask(descriptor, min(length, given_at_once), offset)

    monkeypatch.setattr(os, "pread", little)
    for start in (0, 7, 99):
        assert await place.storage.read(NAME, start, 100) == data[start:]
    assert len(asked) >= 100 // given_at_once
    await place.storage.create_with_content("t", [b"x"])
    assert await place.storage.concat("t", 1, [(NAME, 100)]) == 101
    assert await place.storage.read("t", 0, 200) == b"x" + data

    def nothing(descriptor: int, length: int, offset: int) -> bytes:
        asked.append(offset)
        return b"" if offset >= 50 else ask(descriptor, min(length, given_at_once), offset)

    monkeypatch.setattr(os, "pread", nothing)
    asked.clear()
    with pytest.raises(StorageError, match="gave only 50 of 101"):
        await place.storage.read("t", 0, 101)
    assert len(asked) <= 60


async def test_failed_concat_keeps_sources_and_target(place: Place) -> None:
    await place.storage.create_with_content("t", [b"abcX"])
    await place.storage.create_with_content("u", [b"def"])
    place.disk.failures["write"] = StorageFullError("full")
    place.disk.written_before_failure = 2
    with pytest.raises(StorageFullError):
        await place.storage.concat("t", 3, [("u", 3)])
    place.disk.failures.clear()
    assert await place.storage.read("t", 0, 9) == b"abc"
    assert await place.storage.concat("t", 3, [("u", 3)]) == 6
    assert await place.storage.read("t", 0, 9) == b"abcdef"


@pytest.mark.parametrize("verb", ["open", "read", "remove"])
async def test_broken_disk_is_not_a_missing_chunk(place: Place, verb: str) -> None:
    await place.storage.create_with_content(NAME, [b"abc"])
    place.disk.failures[verb] = BROKEN
    with pytest.raises(ChunkError) as raised:
        await (place.storage.delete(NAME) if verb == "remove" else place.storage.read(NAME, 0, 1))
    assert not isinstance(raised.value, NoSuchChunkError)


@pytest.mark.parametrize("verb", ["read", "write"])
async def test_chunk_deleted_by_another_instance_is_noticed(place: Place, verb: str) -> None:
    other = place.another()
    await place.storage.create_with_content(NAME, [b"abc"])
    await place.storage.read(NAME, 0, 1)
    await other.delete(NAME)
    with pytest.raises(NoSuchChunkError):
        await (place.storage.read(NAME, 0, 1) if verb == "read" else place.storage.write(NAME, 3, [b"x"]))
    # Its directory is gone, too, although this instance remembers it.
    await place.storage.create_with_content(NAME, [b"new"])
    assert await other.read(NAME, 0, 9) == b"new"
    assert await place.storage.read(NAME, 0, 9) == b"new"
    await other.close()


async def test_chunk_cannot_lie_below_another_chunk(place: Place) -> None:
    await place.storage.create("s/a")
    with pytest.raises(ChunkError):
        await place.storage.create("s/a/0")
    with pytest.raises(StorageError):
        await place.storage.create("s")


async def test_open_files_are_bounded_and_all_are_closed(place: Place) -> None:
    storage = place.another(DirectoryChunkStorageSettings(open_files_max=3))
    for number in range(10):
        await storage.create_with_content(f"c{number}", [b"x"])
        await storage.read(f"c{number}", 0, 1)
        await storage._closes.drained()
        assert place.disk.open_count <= 3
    await asyncio.gather(*(storage.read(f"c{number % 10}", 0, 1) for number in range(50)))
    await storage._closes.drained()
    assert place.disk.open_count <= 3
    await storage.close()
    assert place.disk.open_count == 0


async def test_cancelled_write_waits_for_the_disk(place: Place) -> None:
    # Otherwise a thread would still write to the chunk while the next operation uses it.
    await place.storage.create_with_content(NAME, [b"abc"])
    place.disk.gate = threading.Event()
    writing = asyncio.ensure_future(place.storage.write(NAME, 3, [b"def"]))
    assert await asyncio.get_running_loop().run_in_executor(None, place.disk.is_gate_reached.wait, 10)
    for _ in range(2):
        writing.cancel()
        await asyncio.sleep(0)
        assert not writing.done()
    place.disk.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    place.disk.gate = None
    with pytest.raises(BadChunkOffsetError):
        await place.storage.write(NAME, 3, [b"xyz"])
    assert (place.root / NAME).read_bytes() == b"abcdef"


async def test_cancelled_opening_closes_the_file(place: Place) -> None:
    await place.storage.create_with_content(NAME, [b"abc"])
    reading = asyncio.ensure_future(place.storage.read(NAME, 0, 3))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await place.storage.close()
    assert place.disk.open_count == 0


async def test_opening_that_ends_while_its_cancelled_caller_waits_closes_the_file(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled change waits a while for the call under way; the file that the call opens is closed unused."""
    await place.storage.create_with_content(NAME, [b"abc"])
    await place.storage.close()
    storage = place.another()
    is_begun, may_go_on = threading.Event(), threading.Event()
    original = place.disk.open

    def open_slowly(path: str, **options: bool) -> LocalFile:
        is_begun.set()
        assert may_go_on.wait(10)
        return original(path, **options)

    monkeypatch.setattr(place.disk, "open", open_slowly)
    writing = asyncio.ensure_future(storage.write(NAME, 3, [b"def"]))
    assert await asyncio.get_running_loop().run_in_executor(None, is_begun.wait, 10)
    writing.cancel()
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await storage.close()
    assert place.disk.open_count == 0


async def test_segment_in_a_directory_survives_a_new_instance_and_damage_is_reported(place: Place) -> None:
    # The whole tier on a real directory: write, reopen, read; then every flipped bit of the files is an error.
    settings = ChunkedStorageSettings(chunk_length_max=16, block_length=8)
    table = MemoryMetadataTable()
    segment = "scope/stream/0.#epoch.0"
    data = random.Random(2).randbytes(40)
    storage = ChunkedStorage(place.storage, table, epoch=1, runtime=place.runtime, settings=settings)
    for offset in range(0, 40, 10):
        await storage.write(segment, offset, [data[offset : offset + 10]])
    await place.storage.close()
    place.storage = place.another()
    storage = ChunkedStorage(place.storage, table, epoch=2, runtime=place.runtime, settings=settings)
    await storage.open(segment)
    assert await storage.read(segment, 0, 99) == data
    for chunk in await storage.chunks_of(segment):
        path = place.root / chunk.name
        good = path.read_bytes()
        for at in range(len(good)):
            path.write_bytes(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
            with pytest.raises(CorruptionError) as raised:
                await storage.read(segment, 0, 99)
            assert (raised.value.path, raised.value.offset) == (chunk.name, at // 8 * 8)
        path.write_bytes(good + b"behind the recorded length")
        assert await storage.read(segment, 0, 99) == data
    await storage.delete(segment)
    assert list(place.root.iterdir()) == []


def test_faulty_file_is_a_disk_file(tmp_path: Path) -> None:
    disk = FaultyDisk()
    file: DiskFile = disk.open(str(tmp_path / "x"), create=True)
    file.close()
    assert disk.open_count == 0
