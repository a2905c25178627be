"""A local log that is missing, another cluster's, an old copy, shorter than it was, or of a later version.

Failure cases: docs/log-identity.md.
"""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Callable

import pytest

from penstock.model.checksum import crc32c
from penstock.model.errors import (
    CorruptionError,
    LaterVersionError,
    LogIdentityError,
    LogMissingError,
    StorageError,
)
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.local_log import LocalLog
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_records import read_epoch
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import DiskFaults
from support.inline_work import InlineWork

TIER1, MADE = "/mount/tier1", "/data/logs"
BLOCK = 4096
SETTINGS = LocalLogSettings(first_file_length_bytes=16 * 1024, file_length_bytes=64 * 1024, trailer_delay_s=0.0)


def new_disk(files: dict[str, bytes] | None = None, seed: int = 0) -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(seed), DiskFaults())
    for path, data in (files or {}).items():
        disk.make_directory(path.rpartition("/")[0])
        file = disk.open(path, create=True)
        file.write(0, [data])
        file.sync()
        file.close()
        disk.sync_directory(path.rpartition("/")[0])
    return disk


def make_log(disk: SimulatedDisk, *, cluster: str = "cluster-a", seed: int = 0, container: int = 0) -> LocalLog:
    runtime = Runtime(disk=disk, work=InlineWork(), rng=random.Random(seed), wall_clock_ms=lambda: 0)
    factory = LocalLogFactory(TIER1, runtime, SETTINGS, cluster_id=cluster, made_logs_directory=MADE)
    return factory.create(container)


async def contents(log: LocalLog) -> list[bytes]:
    return [frame.data async for frame in log.frames()]


async def write(disk: SimulatedDisk, *frames: bytes, cluster: str = "cluster-a", seed: int = 0) -> list[bytes]:
    """Open the log, append, close it cleanly; return what was in it before."""
    log = make_log(disk, cluster=cluster, seed=seed)
    await log.open()
    found = await contents(log)
    for frame in frames:
        await log.append([frame], len(frame))
    await log.close()
    return found


def log_files(files: dict[str, bytes]) -> list[str]:
    return sorted(path for path in files if "/log-" in path)


async def test_a_log_that_was_made_is_not_made_again_while_its_mount_is_missing() -> None:
    disk = new_disk()
    await write(disk, b"acknowledged")
    files = disk.files()
    unmounted = new_disk({path: data for path, data in files.items() if not path.startswith(TIER1)})
    with pytest.raises(LogMissingError, match="Mount tier 1"):
        await make_log(unmounted).open()
    assert not unmounted.exists(TIER1), "nothing is created under a mount that is missing"
    assert await write(new_disk(files)) == [b"acknowledged"], "it opens again when the mount is back"


async def test_one_missing_log_says_nothing_of_the_others() -> None:
    disk = new_disk()
    await write(disk, b"of container 0")
    log = make_log(disk, container=1)
    await log.open()
    await log.close()
    rest = new_disk({path: data for path, data in disk.files().items() if not path.startswith(f"{TIER1}/0/")})
    with pytest.raises(LogMissingError, match="container 0"):
        await make_log(rest).open()
    log = make_log(rest, container=1)
    await log.open()
    await log.close()


async def test_a_log_of_another_cluster_is_refused_and_left_as_it_is() -> None:
    disk, other = new_disk(), new_disk()
    await write(disk, b"of a")
    await write(other, b"of b", cluster="cluster-b")
    exchanged = {path: data for path, data in disk.files().items() if not path.startswith(TIER1)}
    exchanged |= {path: data for path, data in other.files().items() if path.startswith(TIER1)}
    mixed = new_disk(exchanged)
    with pytest.raises(
        LogIdentityError, match="belongs to cluster cluster-b, this server belongs to cluster cluster-a"
    ):
        await make_log(mixed).open()
    assert {path: data for path, data in mixed.files().items() if not path.endswith("log.lock")} == {
        path: data for path, data in exchanged.items() if not path.endswith("log.lock")
    }


async def test_a_single_file_of_another_cluster_is_refused() -> None:
    """The record of the epoch is the right one, the log file is not."""
    disk, other = new_disk(), new_disk()
    await write(disk, b"of a")
    await write(other, b"of b", cluster="cluster-b")
    files = disk.files()
    for path in log_files(files):
        del files[path]
    files |= {path: data for path, data in other.files().items() if "/log-" in path}
    with pytest.raises(LogIdentityError, match="cluster-b"):
        await make_log(new_disk(files)).open()


async def test_an_older_epoch_record_beside_later_files_is_corruption() -> None:
    disk = new_disk()
    await write(disk, b"first")
    old = disk.files()[f"{TIER1}/0/log.epoch"]
    for number in range(5):
        await write(disk, b"later", seed=number + 1)
    files = disk.files()
    rolled_back = new_disk(files | {f"{TIER1}/0/log.epoch": old})
    with pytest.raises(CorruptionError, match="the record is an old copy"):
        await make_log(rolled_back, seed=9).open()
    found = rolled_back.files()
    assert [found[path] for path in log_files(files)] == [files[path] for path in log_files(files)]


@pytest.mark.parametrize("has_crashed_since", [False, True])
async def test_a_log_that_lost_its_newest_file_after_a_clean_close_is_corrupt(has_crashed_since: bool) -> None:
    disk = new_disk()
    await write(disk, *(bytes([number]) * 9000 for number in range(10)))
    newest = log_files(disk.files())[-1]
    if has_crashed_since:
        # A claim that was cut off keeps what the one before recorded.
        countdown = 0

        def stop(operation: str, path: str) -> None:
            nonlocal countdown
            if operation == "rename" and path.endswith("log.epoch"):
                countdown += 1
            elif countdown:
                raise OSError(errno.EIO, "the machine is off")

        disk.hook = stop
        with pytest.raises(StorageError):
            await make_log(disk, seed=1).open()
        disk.hook = None  # type: ignore[assignment]
        disk.process_kill()
    files = disk.files()
    del files[newest]
    with pytest.raises(CorruptionError, match="closed cleanly"):
        await make_log(new_disk(files), seed=2).open()


async def test_every_cut_of_a_cleanly_closed_log_is_corruption() -> None:
    disk = new_disk()
    await write(disk, *(bytes([number + 1]) * 700 for number in range(5)))
    files = disk.files()
    name = log_files(files)[-1]
    end = len(files[name].rstrip(b"\0"))
    # Its trailer lies in a block of its own: what was acknowledged ends a block before.
    for cut in range(2 * BLOCK, end - BLOCK, 97):
        zeroed = files[name][:cut].ljust(len(files[name]), b"\0")
        with pytest.raises(CorruptionError):
            await make_log(new_disk(files | {name: zeroed}), seed=1).open()


def epoch_record_3(container: int, epoch: int) -> bytes:
    """`log.epoch` as the version before wrote it: enabled and settled, with neither end nor cluster."""
    body = struct.pack(">8sHHiQ16s", b"PNSTKEPO", 3, 1 | 4, container, epoch, bytes(16))
    return (body + struct.pack(">I", crc32c(body, 0))).ljust(1536, b"\0")


async def test_a_log_of_the_version_before_is_taken_over() -> None:
    """Its records have no cluster: they get one with the next claim, and the record that the log was made."""
    disk = new_disk()
    await write(disk, b"old")
    files = {path: data for path, data in disk.files().items() if not path.startswith(MADE)}
    for path in log_files(files):
        header = files[path][:36]
        body = header[:8] + b"\x00\x01" + header[10:]
        files[path] = (body + struct.pack(">I", crc32c(body, 0))).ljust(BLOCK, b"\0") + files[path][BLOCK:]
    disk = new_disk(files | {f"{TIER1}/0/log.epoch": epoch_record_3(0, 1)})
    assert await write(disk, b"new", seed=1) == [b"old"]
    record = read_epoch(disk, f"{TIER1}/0")
    assert record is not None
    assert (record.epoch, record.cluster_id) == (2, "cluster-a")
    assert record.closed_address > 0
    assert disk.exists(f"{MADE}/0")
    with pytest.raises(LogIdentityError):
        await make_log(disk, cluster="cluster-b").open()


def of_later_version(data: bytes, length: int) -> bytes:
    """Raise the version of a record of `length` bytes at the start of `data`."""
    body = data[:8] + (int.from_bytes(data[8:10], "big") + 1).to_bytes(2, "big") + data[10:length]
    return body + struct.pack(">I", crc32c(body, 0)) + data[length + 4 :]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("log.epoch", lambda data: of_later_version(data, 96)),
        ("log-", lambda data: of_later_version(data, 84)),
    ],
)
async def test_a_log_of_a_later_version_is_refused_before_it_is_claimed(
    name: str, change: Callable[[bytes], bytes]
) -> None:
    disk = new_disk()
    await write(disk, b"data")
    files = disk.files()
    changed = files | {path: change(data) for path, data in files.items() if f"/0/{name}" in path}
    later = new_disk(changed)
    with pytest.raises(LaterVersionError, match="later version of Penstock"):
        await make_log(later, seed=1).open()
    assert later.files()[f"{TIER1}/0/log.epoch"] == changed[f"{TIER1}/0/log.epoch"], "no epoch was claimed"
    assert await write(new_disk(files), seed=2) == [b"data"], "the later version still opens it"


async def test_a_crash_at_each_step_of_the_first_open_leaves_a_log_that_opens() -> None:
    """The record that the log was made comes after the log, so a crash never leaves a record alone."""
    steps = 0
    while True:
        disk = new_disk(seed=steps)
        countdown = steps

        def stop(operation: str, path: str) -> None:
            nonlocal countdown
            countdown -= 1
            if countdown < 0:
                raise OSError(errno.EIO, "the machine is off")

        disk.hook = stop
        log = make_log(disk)
        try:
            await log.open()
            await log.append([b"x"], 1)
            is_whole = True
        except StorageError:
            is_whole = False
        disk.hook = None  # type: ignore[assignment]
        disk.crash()
        log = make_log(disk, seed=steps + 1)
        await log.open()
        assert await contents(log) in ([], [b"x"])
        await log.close()
        if is_whole:
            break
        steps += 1
    assert steps > 20
