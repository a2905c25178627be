"""`DirectoryWatch`: what becomes of a server whose lock file or data directory goes away, on a simulated disk."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.model.errors import DataDirectoryInUseError
from penstock.runtime.runtime import Runtime
from penstock.server import directory_watch
from penstock.server.data_directory import DataDirectory
from penstock.server.directory_watch import DirectoryWatch
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import DiskCall
from support.inline_work import InlineWork

ROOT = "/srv/data"
INTERVAL_S = 0.001


class Watched:
    """A directory that is watched, and what the watch has said of it."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(random.Random(1))
        self.directory = self.another()
        self.directory.open(4)
        self.retaken = asyncio.Semaphore(0)
        self.retaken_count = 0
        self.watch = DirectoryWatch(self.directory, self.runtime(), INTERVAL_S, self._note)

    def runtime(self) -> Runtime:
        return Runtime(disk=self.disk, work=InlineWork(), rng=random.Random(2), wall_clock_ms=lambda: 0)

    def another(self) -> DataDirectory:
        return DataDirectory(ROOT, self.runtime())

    def _note(self, directory: DataDirectory) -> None:
        directory.check_held()
        self.retaken_count += 1
        self.retaken.release()


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_a_lock_is_taken_again_each_time_and_shared(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.watch.start()
    for _ in range(3):
        watched.disk.remove(f"{ROOT}/LOCK")
        await watched.retaken.acquire()
        watched.directory.check_held()
        with pytest.raises(DataDirectoryInUseError):
            watched.another().open(4)
    assert caplog.text.count("has locked it again and continues") == 3
    await watched.watch.stop()
    watched.disk.remove(f"{ROOT}/LOCK")
    watched.another().open(4)
    await asyncio.sleep(10 * INTERVAL_S)
    assert watched.retaken_count == 3


async def test_a_directory_that_another_has_locked_is_lost(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.disk.remove(f"{ROOT}/LOCK")
    watched.another().open(4)
    watched.watch.start()
    loss = await watched.watch.lost()
    assert "another process has locked the new one" in str(loss)
    assert caplog.text.count("another process has locked the new one") == 1
    assert watched.retaken_count == 0
    await watched.watch.stop()


async def test_a_directory_on_a_removed_file_system_counts_as_lost(watched: Watched) -> None:
    watched.watch.start()
    assert watched.disk.unmount(ROOT)
    assert "unmounted" in str(await watched.watch.lost())
    await watched.watch.stop()
    assert [path for path in watched.disk.files() if path.startswith(ROOT)] == []


async def test_a_check_that_hangs_does_not_hold_up_the_stop(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a mount whose server is gone. A lock that it takes after all is given back."""
    monkeypatch.setattr(directory_watch, "STOP_WAIT_S_MAX", 0.01)
    begun = asyncio.Event()

    def hang(work: object, function: object, *args: object) -> asyncio.Future[None]:
        begun.set()
        return asyncio.get_running_loop().create_future()

    monkeypatch.setattr(InlineWork, "run", hang)
    watched.watch.start()
    await begun.wait()
    await watched.watch.stop()
    assert "is abandoned" in caplog.text

    def close_meanwhile(call: str, path: str) -> None:
        if call == DiskCall.LOCK:
            watched.directory.close()

    watched.disk.remove(f"{ROOT}/LOCK")
    watched.disk.hook = close_meanwhile
    assert watched.directory.retake() is None
    watched.another().open(4)


async def test_a_busy_lock_is_retried_and_reported_once(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """As on a file system that refuses new files for a while."""
    attempts = 0

    def refuse(call: str, path: str) -> None:
        nonlocal attempts
        if call == DiskCall.LOCK:
            attempts += 1
            if attempts < 5:
                raise OSError(30, "Read-only file system", path)

    watched.disk.remove(f"{ROOT}/LOCK")
    watched.disk.hook = refuse
    watched.watch.start()
    await watched.retaken.acquire()
    assert attempts == 5
    assert caplog.text.count("cannot be checked, no log is claimed") == 1
    assert caplog.text.count("Read-only file system") == 1
    await watched.watch.stop()
