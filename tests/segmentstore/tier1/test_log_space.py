"""A log on a full file system: its reserve (docs/full-disk.md)."""

from __future__ import annotations

import asyncio
import errno
import random
from dataclasses import replace

import pytest

from penstock.model.errors import PenstockError, StorageFullError
from penstock.runtime.disk import DiskSpace
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.local_log import LocalLog
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import DiskFaults
from support.containers import until
from support.inline_work import InlineWork

SETTINGS = LocalLogSettings(
    frame_length_max_bytes=8_000,
    batch_length_max_bytes=12_000,
    first_file_length_bytes=16 * 1024,
    file_length_bytes=32 * 1024,
    zero_chunk_length_bytes=16 * 1024,
    spare_file_count_max=1,
    lock_retry_delay_s=0.001,
    reserve_file_count=2,
    reserve_file_length_bytes=16 * 1024,
    reserve_record_count=4,
    space_check_interval_s=0.001,
)
WITHOUT_RESERVE = replace(SETTINGS, reserve_file_count=0, reserve_record_count=0)


def make_log(disk: SimulatedDisk, settings: LocalLogSettings = SETTINGS, container_id: int = 0) -> LocalLog:
    runtime = Runtime(disk=disk, work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)
    return LocalLogFactory("/data/tier1", runtime, settings).create(container_id)


async def opened(disk: SimulatedDisk, settings: LocalLogSettings = SETTINGS, container_id: int = 0) -> LocalLog:
    log = make_log(disk, settings, container_id)
    await log.open()
    return log


async def opened_with_reserve(disk: SimulatedDisk, container_id: int = 0) -> LocalLog:
    log = await opened(disk, container_id=container_id)
    async with asyncio.timeout(60):
        while reserve_of(disk, container_id) != (2, 4):  # noqa: ASYNC110  # there is no notification
            await asyncio.sleep(0.001)
    return log


def reserve_of(disk: SimulatedDisk, container_id: int = 0) -> tuple[int, int]:
    names = [path for path in disk.files() if path.startswith(f"/data/tier1/{container_id}/")]
    return sum("/reserve-file-" in name for name in names), sum("/reserve-record-" in name for name in names)


def fill_up(disk: SimulatedDisk) -> None:
    """Leave not a byte free."""
    disk.faults = replace(disk.faults, capacity_bytes=disk.used_bytes)


async def data_of(log: LocalLog) -> list[bytes]:
    return [frame.data async for frame in log.frames()]


async def append(log: LocalLog, data: bytes) -> int:
    return await log.append([data], len(data))


async def test_a_log_opens_on_a_full_disk_and_is_written_and_truncated_there() -> None:
    """Not a byte is free: a kill, a start, appends of the container's own, a truncation, and again. All is kept."""
    disk = SimulatedDisk(random.Random(1))
    log = await opened_with_reserve(disk)
    first = await append(log, b"before")
    fill_up(disk)
    disk.process_kill()
    log = await opened(disk)
    assert await data_of(log) == [b"before"]
    await append(log, b"while full")
    await log.truncate(first)  # type: ignore[arg-type]
    disk.crash()
    fill_up(disk)
    log = await opened(disk)
    assert await data_of(log) == [b"while full"]
    await append(log, b"again")
    await log.close()


async def test_without_a_reserve_a_full_disk_keeps_the_log_closed() -> None:
    """The same without a reserve: nothing can be opened, so nothing can be deleted. What the reserve is for."""
    disk = SimulatedDisk(random.Random(1))
    log = await opened(disk, WITHOUT_RESERVE)
    await append(log, b"before")
    fill_up(disk)
    disk.process_kill()
    with pytest.raises(StorageFullError):
        await opened(disk, WITHOUT_RESERVE)


async def test_the_reserve_is_filled_up_once_there_is_room_again() -> None:
    """Used up to the last file it makes `open` fail with a typed error; with room the log opens and fills it up."""
    disk = SimulatedDisk(random.Random(1))
    log = await opened_with_reserve(disk)
    await append(log, b"kept")
    fill_up(disk)
    opens = 0
    while True:
        disk.process_kill()
        try:
            log = await opened(disk)
        except StorageFullError:
            break
        opens += 1
    assert opens == 2
    disk.faults = DiskFaults()
    disk.process_kill()
    log = await opened_with_reserve(disk)
    assert await data_of(log) == [b"kept"]
    await log.close()


async def test_appends_wait_for_room_when_the_reserve_is_used_up_and_continue() -> None:
    """Neither lost nor refused: what the log has no room for is written when there is some."""
    disk = SimulatedDisk(random.Random(1))
    log = await opened_with_reserve(disk)
    fill_up(disk)
    appends = [log.append([bytes([number]) * 3000], 3000) for number in range(40)]
    # The first file and two in reserve.
    await until(lambda: sum(future.done() for future in appends) > 5)
    await asyncio.sleep(0.05)
    written = sum(future.done() for future in appends)
    assert all(future.exception() is None for future in appends if future.done())
    assert written < 40
    disk.faults = DiskFaults()
    await asyncio.gather(*appends)
    await log.close()
    log = await opened(disk)
    assert await data_of(log) == [bytes([number]) * 3000 for number in range(40)]


async def test_files_kept_for_re_use_are_given_back_when_room_becomes_short() -> None:
    """Waiters for room wait for them, too; and none is kept while room is short."""
    disk = SimulatedDisk(random.Random(1))
    log = await opened_with_reserve(disk)
    free_bytes = 1 << 40
    disk.space = lambda path: DiskSpace(free_bytes, 1 << 50)  # type: ignore[method-assign]  # Set below.

    def spares() -> list[str]:
        return [path for path in disk.files() if "/spare-" in path]

    async def write_and_truncate() -> None:
        addresses = [await log.append([bytes(7000)], 7000) for _ in range(20)]
        await log.truncate(addresses[-1])

    await write_and_truncate()
    assert len(spares()) == 1
    free_bytes = SETTINGS.free_bytes_min + SETTINGS.file_length_bytes - 1
    async with asyncio.timeout(60):
        while spares():  # noqa: ASYNC110  # there is no notification
            await asyncio.sleep(0.001)
    await write_and_truncate()
    assert not spares()
    free_bytes += 1
    await write_and_truncate()
    await write_and_truncate()
    assert len(spares()) == 1
    await log.close()


async def test_space_that_vanishes_between_the_check_and_the_write_costs_nothing() -> None:
    """The file system says that there is room, the write says that there is not: the reserve is used, no file left."""
    disk = SimulatedDisk(random.Random(1))
    log = await opened_with_reserve(disk)
    await append(log, b"kept")
    fill_up(disk)
    disk.space = lambda path: DiskSpace(1 << 40, 1 << 40)  # type: ignore[method-assign]  # The lie.
    disk.process_kill()
    log = await opened(disk)
    assert await data_of(log) == [b"kept"]
    await append(log, b"nevertheless")
    assert reserve_of(disk)[0] == 1
    assert not [path for path in disk.files() if "/spare-" in path]


async def test_each_of_two_logs_on_a_full_disk_has_its_own_reserve() -> None:
    """What one uses of its reserve takes nothing from the other."""
    disk = SimulatedDisk(random.Random(1))
    for container_id in (0, 1):
        await opened_with_reserve(disk, container_id)
    fill_up(disk)
    disk.process_kill()
    for container_id in (0, 1):
        log = await opened(disk, container_id=container_id)
        await append(log, b"while full")
        await log.truncate(await append(log, b"and more"))  # type: ignore[arg-type]
    # The truncation may have made room already to fill it up again.
    assert all(reserve_of(disk, container_id)[0] in (1, 2) for container_id in (0, 1))


async def test_a_crash_at_any_call_while_the_reserve_is_used_leaves_a_log_that_opens() -> None:
    """Each disk call of a start and a truncation on a full disk, with all that a power failure may leave of it.

    Two crashes in a row are survived: what the first had taken of the reserve and not used yet is at most one file.
    """
    rng = random.Random(3)
    base = SimulatedDisk(random.Random(1))
    log = await opened_with_reserve(base)
    first = await append(log, b"one")
    await append(log, b"two")
    fill_up(base)
    base.process_kill()
    call_count = 0
    while True:
        call_count += 1
        for disk in (base.fork(), base.fork(), base.fork()):
            calls_left = call_count

            def stop(operation: str, path: str) -> None:
                nonlocal calls_left
                calls_left -= 1
                if calls_left <= 0:
                    raise OSError(errno.EIO, "the machine is off")

            disk.hook = stop
            acknowledged: list[bytes] = []
            was_truncated = False
            log = make_log(disk)
            try:
                await log.open()
                await append(log, b"three")
                acknowledged.append(b"three")
                await log.truncate(first)  # type: ignore[arg-type]
                was_truncated = True
            except (PenstockError, OSError):
                pass
            is_over = calls_left > 0
            after = disk.after_crash(disk.tree.reorder_plan(rng))
            fill_up(after)
            second = await opened(after)
            found = await data_of(second)
            assert b"two" in found
            assert set(acknowledged) <= set(found)
            assert was_truncated == (b"one" not in found) or not was_truncated
            await append(second, b"four")
            log._fail(StorageFullError("end of the test"))
        if is_over:
            break
    assert call_count > 20


async def test_a_spare_that_its_fenced_owner_removes_at_the_same_time_stops_no_open() -> None:
    """The new owner clears spares of the old one away, which notices that it was shut out and does the same."""
    disk = SimulatedDisk(random.Random(1))
    await opened_with_reserve(disk)
    disk.open("/data/tier1/0/spare-0000000000000001-00000099", create=True).close()
    disk.process_kill()

    def remove_first(operation: str, path: str) -> None:
        if operation == "remove" and "/spare-0000000000000001" in path:
            disk.hook = lambda operation, path: None
            disk.remove(path)

    disk.hook = remove_first
    log = await opened(disk)
    assert not [path for path in disk.files() if "/spare-0000000000000001" in path]
    await log.close()


@pytest.mark.parametrize("operation", ["write", "rename"])
async def test_a_reserve_that_cannot_be_filled_leaves_no_spares_behind(operation: str) -> None:
    """However often it is tried: what one attempt made is gone before the next."""
    disk = SimulatedDisk(random.Random(1))
    log = await opened(disk, WITHOUT_RESERVE)
    log._files.space._settings = SETTINGS
    for _ in range(3):
        calls = 0

        def fail(called: str, path: str) -> None:
            nonlocal calls
            if called == operation and ("/spare-" in path or "/reserve-" in path):
                calls += 1
                if operation == "rename" or calls == 2:
                    raise OSError(errno.EIO, "broken")

        disk.hook = fail
        assert not await log._files.space.fill_reserve()
        assert calls
        assert not [path for path in disk.files() if "/spare-" in path]
    disk.hook = lambda called, path: None
    assert await log._files.space.fill_reserve()
    assert reserve_of(disk) == (2, 4)
    await log.close()
