"""`WriteRing`: small synced writes without a thread, and what becomes of those that it cannot do."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.model.errors import StorageFullError
from penstock.model.segments import Buffer
from penstock.runtime import write_ring
from penstock.runtime.disk import LocalDisk, LocalFile
from penstock.runtime.work import PoolSettings, ThreadedWork, WorkPool
from penstock.runtime.write_ring import (
    SLOT_COUNT,
    SLOT_LENGTH,
    OnWritten,
    WriteNotDoneError,
    WriteRing,
    open_write_ring,
)


@pytest.fixture
async def ring() -> AsyncIterator[WriteRing]:
    """A ring of the running loop."""
    made = open_write_ring(asyncio.get_running_loop())
    if made is None:
        pytest.skip("this machine has no io_uring, or does not let this process use it")
    yield made
    made.close()


@pytest.fixture
async def work(ring: WriteRing) -> AsyncIterator[ThreadedWork]:
    """Pools with a ring."""
    made = ThreadedWork(2)
    yield made
    await made.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[LocalFile]:
    """An empty file."""
    made = LocalDisk().open(str(tmp_path / "file"), create=True)
    yield made
    made.close()


def completer(future: asyncio.Future[None]) -> OnWritten:
    """Return what ends the future."""

    def written(error: BaseException | None) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return written


def begin(ring: WriteRing, file: LocalFile, offset: int, buffers: list[Buffer]) -> asyncio.Future[None]:
    """Begin a write that the ring takes."""
    future: asyncio.Future[None] = ring.loop.create_future()
    assert ring.begin(file, offset, buffers, completer(future))
    return future


def write(pool: WorkPool, file: LocalFile, offset: int, buffers: list[Buffer]) -> asyncio.Future[None]:
    """Have a pool write."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    pool.write_synced(file, offset, buffers, completer(future))
    return future


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


async def test_parts_are_written_one_after_another_at_their_offset(ring: WriteRing, file: LocalFile) -> None:
    await begin(ring, file, 5, [b"one", bytearray(b"two"), memoryview(b"three")])
    assert file.read(0, 100) == b"\0" * 5 + b"onetwothree"
    await begin(ring, file, 0, [bytes(SLOT_LENGTH)])
    assert file.length() == SLOT_LENGTH
    assert ring.count_under_way == 0


async def test_bytes_may_change_once_a_write_has_begun(ring: WriteRing, file: LocalFile) -> None:
    """They were copied."""
    data = bytearray(b"a" * 4096)
    written = begin(ring, file, 0, [data])
    data[:] = b"b" * 4096
    await written
    assert file.read(0, 4096) == b"a" * 4096


async def test_a_thousand_writes_use_the_slots_again(ring: WriteRing, file: LocalFile) -> None:
    """As many at once as there are slots, round after round: more than the queues of the ring are long."""
    for number in range(1024 // SLOT_COUNT):
        base = number * SLOT_COUNT
        await asyncio.gather(
            *(begin(ring, file, 8 * at, [at.to_bytes(8, "big")]) for at in range(base, base + SLOT_COUNT))
        )
    assert file.read(0, 8192) == b"".join(at.to_bytes(8, "big") for at in range(1024))


async def test_writes_without_slot_or_too_long_use_a_thread(ring: WriteRing, file: LocalFile) -> None:
    ignored: list[object] = []
    assert not ring.begin(file, 0, [bytes(SLOT_LENGTH), b"x"], ignored.append)
    assert not ring.begin(file, 0, [], ignored.append)
    under_way = [begin(ring, file, at, [b"x"]) for at in range(SLOT_COUNT)]
    assert not ring.begin(file, 0, [b"x"], ignored.append)
    await asyncio.gather(*under_way)
    await begin(ring, file, 0, [b"x"])
    assert not ignored


async def test_a_disk_error_is_raised_as_from_a_thread(ring: WriteRing, file: LocalFile) -> None:
    """A full disk is reported as such; a bad descriptor is an example of all other errors."""
    full = LocalFile("/dev/full", os.open("/dev/full", os.O_RDWR))
    with pytest.raises(StorageFullError, match="no space left while writing 3 bytes"):
        await begin(ring, full, 0, [b"one"])
    full.close()
    closed = LocalFile("gone", file.descriptor)
    reader = LocalFile(file.path, os.open(file.path, os.O_RDONLY))
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        await begin(ring, reader, 0, [b"one"])
    reader.close()
    assert closed.read(0, 1) == b""
    await begin(ring, file, 0, [b"x"])


@pytest.mark.parametrize(
    ("result", "is_usable"),
    [(2, True), (-errno.EAGAIN, True), (-errno.ECANCELED, True), (-errno.EOPNOTSUPP, False), (-errno.EINVAL, False)],
)
async def test_a_write_that_the_kernel_did_not_complete_is_done_by_a_thread(
    ring: WriteRing, result: int, is_usable: bool
) -> None:
    """Cut short, taken back, or refused; what is refused once is not asked for again."""
    assert isinstance(ring._error(result, "file", 3), WriteNotDoneError)
    assert ring.is_usable == is_usable


async def test_a_small_write_of_a_pool_starts_no_thread_and_a_large_one_does(
    work: ThreadedWork, file: LocalFile
) -> None:
    pool = work.pool("writes", PoolSettings(thread_count_max=1))
    assert pool.writes_without_thread
    await write(pool, file, 0, [b"small"])
    assert "penstock writes" not in threads()
    await write(pool, file, 5, [bytes(SLOT_LENGTH + 1)])
    assert "penstock writes" in threads()
    assert file.read(0, 6) == b"small\0"
    pool.close()


async def test_a_write_that_the_ring_gives_back_is_done_by_the_pools_thread(
    work: ThreadedWork, file: LocalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it was cut short: it is written and synced as a whole."""
    pool = work.pool("writes", PoolSettings(thread_count_max=1))
    monkeypatch.setattr(WriteRing, "_error", lambda *arguments: WriteNotDoneError())
    monkeypatch.setattr(write_ring, "_WRITE", 0)  # The operation that does nothing.
    await write(pool, file, 0, [b"whole"])
    assert "penstock writes" in threads()
    assert file.read(0, 6) == b"whole"
    assert pool.is_idle
    pool.close()


async def test_pools_work_with_threads_where_there_is_no_ring(file: LocalFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers whose rules forbid io_uring."""

    def refuse(self: WriteRing, *arguments: int) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(WriteRing, "_checked", refuse)
    work = ThreadedWork(2)
    pool = work.pool("writes", PoolSettings(thread_count_max=1))
    assert not pool.writes_without_thread
    await write(pool, file, 0, [b"threaded"])
    assert file.read(0, 8) == b"threaded"
    await work.close()


async def test_memory_of_a_write_that_hangs_is_never_given_back(file: LocalFile) -> None:
    """1. A write has not ended. 2. The ring is closed, without references. 3. The kernel may still read its memory."""
    ring = open_write_ring(asyncio.get_running_loop())
    if ring is None:
        pytest.skip("this machine has no io_uring, or does not let this process use it")
    memory = weakref.ref(ring._memory)
    assert ring.begin(file, 0, [b"x"], lambda error: None)
    ring.close()
    del ring
    gc.collect()
    held = memory()
    assert held is not None
    assert b"x" in held[:]
    # The write ends, and the test polls the ring, as no caller would.
    (left_behind,) = write_ring._busy_rings
    del held
    while left_behind.count_under_way:
        left_behind._poll()
        await asyncio.sleep(0.001)
    del left_behind
    gc.collect()
    assert memory() is None
