"""The local log under crashes, bit rot, two owners and a failing disk.

Most run on `SimulatedDisk`; every legal crash state of shorter histories is explored in tests/testing.
SS-n: docs/spec/segment-store.md.
"""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors import (
    CorruptionError,
    DataDirectoryLostError,
    InvalidArgumentError,
    LogClosedError,
    LogFencedError,
    StorageError,
    StorageFullError,
    StorageNotRespondingError,
)
from penstock.model.segments import Buffer
from penstock.runtime.disk import Disk, DiskLock, LocalDisk, LocalFile
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.runtime.work import PoolSettings
from penstock.segmentstore.tier1.durable_log import LogAddress
from penstock.segmentstore.tier1.local_log import LocalLog
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_batch import BatchResult
from penstock.segmentstore.tier1.log_directory import LogDirectory, fill
from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import DiskFaults, FailedSync, NameOrder, SyncFailedError
from penstock_simulation.simulated.disk_handles import SimulatedByte, SimulatedFile
from support.inline_work import InlineWork

BLOCK = 4096
DIRECTORY = "/data/tier1/0"
SETTINGS = LocalLogSettings(
    frame_length_max_bytes=20_000,
    batch_length_max_bytes=24_000,
    first_file_length_bytes=16 * 1024,
    file_length_bytes=32 * 1024,
    zero_chunk_length_bytes=16 * 1024,
    reserve_file_length_bytes=16 * 1024,
    reserve_file_count=1,
    reserve_record_count=2,
    spare_file_count_max=1,
    lock_retry_delay_s=0.001,
    trailer_delay_s=0.0,
)


def new_disk(files: dict[str, bytes] | None = None, seed: int = 0) -> SimulatedDisk:
    """Return a disk with these files on its medium."""
    return SimulatedDisk(random.Random(seed), files=files)


def make_log(disk: Disk, *, seed: int = 0, **changes: float) -> LocalLog:
    work = InlineWork(writes_without_thread=seed % 2 == 1)
    runtime = Runtime(disk=disk, work=work, rng=random.Random(seed), wall_clock_ms=lambda: 0)
    settings = SETTINGS
    if changes:
        values = {name: getattr(SETTINGS, name) for name in SETTINGS.__slots__}
        settings = LocalLogSettings(**(values | changes))
    return LocalLogFactory("/data/tier1", runtime, settings).create(0)


async def contents(log: LocalLog) -> list[tuple[LogAddress, bytes]]:
    return [(frame.address, frame.data) async for frame in log.frames()]


async def data_of(log: LocalLog) -> list[bytes]:
    return [data for _, data in await contents(log)]


async def append(log: LocalLog, data: bytes) -> LogAddress:
    return await log.append([data], len(data))


async def idle(log: LocalLog) -> None:
    """Return when it is noted behind the last frame that it was synced: after a turn for the timer, two for the job."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert not log._needs_trailer
    await log._work.writes.drained()


class CrashNowError(OSError):
    """The simulated machine is off."""


async def run_and_crash(
    disk: SimulatedDisk, rng: random.Random, base: list[bytes]
) -> tuple[list[bytes], int, int, int]:
    """Open the log, check it holds `base`, work at random until the disk stops.

    Return what was appended, how much of that was acknowledged, and how many of the oldest frames were truncated: at
    least (acknowledged) and at most (asked for).
    """
    countdown = rng.randrange(1, 250)

    def stop(operation: str, path: str) -> None:
        nonlocal countdown
        countdown -= 1
        if countdown <= 0:
            raise CrashNowError(errno.EIO, "the machine is off")

    log = make_log(disk, seed=rng.getrandbits(32))
    appended: list[bytes] = []
    futures: list[asyncio.Future[LogAddress]] = []
    addresses: list[LogAddress] = []
    truncated_min = truncated_max = 0
    disk.hook = stop
    try:
        await log.open()
        found = await contents(log)
        assert [data for _, data in found] == base
        addresses = [address for address, _ in found]
        while True:
            for _ in range(rng.choice([1, 1, 2, 7])):
                data = rng.randbytes(rng.choice([0, 1, 100, 3000, 4096, 9000, 20_000]))
                futures.append(log.append([data], len(data)))
                appended.append(data)
            if rng.random() < 0.7:
                addresses.extend([await future for future in futures[len(addresses) - len(base) :]])
            if addresses and rng.random() < 0.15:
                index = rng.randrange(len(addresses))
                truncated_max = max(truncated_max, index + 1)
                await log.truncate(addresses[index])
                truncated_min = truncated_max
            if rng.random() < 0.03:
                break
        await log.close()
    except StorageError:
        pass
    acknowledged = [future for future in futures if future.done() and future.exception() is None]
    assert futures[: len(acknowledged)] == acknowledged
    return appended, len(acknowledged), truncated_min, truncated_max


def is_allowed(found: list[bytes], everything: list[bytes], *, durable: int, low: int, high: int) -> bool:
    """Whether `found` is `everything` without its `low` to `high` oldest frames, and with at least `durable` in all."""
    return any(
        found == everything[skip : skip + len(found)] and skip + len(found) >= durable for skip in range(low, high + 1)
    )


@pytest.mark.parametrize("part", range(10))
async def test_any_crash_leaves_a_prefix_with_everything_acknowledged(part: int) -> None:
    """SS-92: 1 000 crashes at random disk operations, random sectors lost; four crashes per log, one after another.

    Also shown: what one recovery returned is still there after the next crash, and truncation never goes back.
    """
    for seed in range(part * 25, part * 25 + 25):
        rng = random.Random(seed)
        order = rng.choice(list(NameOrder))
        disk = SimulatedDisk(random.Random(seed), DiskFaults(name_order=order))
        base: list[bytes] = []
        for _ in range(4):
            appended, acked, low, high = await run_and_crash(disk, rng, base)
            if rng.random() < 0.3:
                disk.process_kill()
            else:
                disk.crash()
            log = make_log(disk, seed=rng.getrandbits(32))
            await log.open()
            found = await data_of(log)
            assert is_allowed(found, base + appended, durable=len(base) + acked, low=low, high=high), f"seed {seed}"
            base = found
            await log.close()


async def test_every_cut_of_the_last_file_leaves_all_frames_before_it() -> None:
    """SS-92: the last file ends anywhere (as if its length had been lost)."""
    disk = new_disk()
    log = make_log(disk, first_file_length_bytes=64 * 1024, file_length_bytes=64 * 1024)
    await log.open()
    written = [(await append(log, bytes([number]) * 700)) for number in range(5)]
    # Not closed: nothing records where the log ended.
    files = disk.files()
    await log.close()
    name = min(path for path in files if "/log-" in path)
    # The trailer, the evidence that the frames before it were synced, is cut off every time.
    for cut in range(2 * BLOCK, written[-1] % 2**32 + 800, 37):
        log = make_log(new_disk(files | {name: files[name][:cut]}))
        await log.open()
        found = await contents(log)
        assert found == [
            (address, bytes([number]) * 700)
            for number, address in enumerate(written)
            if address % 2**32 + 48 + 700 <= cut
        ]


async def small_log(*, is_closed: bool) -> tuple[dict[str, bytes], list[bytes]]:
    """Files of a log with a truncation, two incarnations, a rollover and a recycled file."""
    disk = new_disk()
    log = make_log(disk)
    await log.open()
    for number in range(12):
        address = await append(log, bytes([number]) * 6000)
    await log.truncate(address)
    await append(log, b"first incarnation")
    await log.close()
    log = make_log(disk, seed=1)
    await log.open()
    await append(log, b"second incarnation")
    await asyncio.gather(*(log.append([bytes([number]) * 40], 40) for number in range(3)))
    await append(log, bytes(9000))
    await append(log, b"last")
    await idle(log)
    if is_closed:
        await log.close()
    log_again = make_log(new_disk(disk.files()))
    await log_again.open()
    return disk.files(), await data_of(log_again)


@pytest.mark.parametrize("is_closed", [False, True])
async def test_every_flipped_byte_is_detected_or_harmless(is_closed: bool) -> None:
    """SS-93: a byte changed anywhere in any file: `CorruptionError`, or exactly the frames that were acknowledged."""
    files, expected = await small_log(is_closed=is_closed)
    assert expected[-1] == b"last"
    rng = random.Random(5)
    detected = harmless = 0
    for path, data in sorted(files.items()):
        offset = 0
        while offset < len(data):
            changed = bytearray(data)
            changed[offset] ^= 1 << rng.randrange(8)
            log = make_log(new_disk(files | {path: bytes(changed)}))
            try:
                await log.open()
                found = await data_of(log)
            except CorruptionError:
                detected += 1
            else:
                assert found == expected, f"{path} at {offset}"
                harmless += 1
            # Every byte of headers and short frames, a sample of zeros and of long payloads.
            is_dull = len(set(data[max(offset - 8, 0) : offset + 8])) == 1
            offset += 61 if is_dull else 1
    assert detected > 500
    assert harmless > 50


@pytest.mark.parametrize("victim", ["log.epoch", "first log file", "last log file"])
async def test_missing_file_is_corruption(victim: str) -> None:
    """A log that lost a file does not start as if it were younger or empty."""
    files, _ = await small_log(is_closed=True)
    logs = sorted(path for path in files if "/log-" in path)
    path = {"log.epoch": f"{DIRECTORY}/log.epoch", "first log file": logs[0], "last log file": logs[-1]}[victim]
    del files[path]
    if victim == "last log file":
        # Without any trace of the last file, the one before is a whole log: only all of them missing can be told.
        files = {name: data for name, data in files.items() if "/log-" not in name}
    with pytest.raises(CorruptionError):
        await make_log(new_disk(files)).open()


async def test_file_of_another_container_is_corruption() -> None:
    """SS-89."""
    disk = new_disk()
    runtime = Runtime(disk=disk, work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)
    factory = LocalLogFactory("/data/tier1", runtime, SETTINGS)
    for container_id in (0, 1):
        log = factory.create(container_id)
        await log.open()
        await append(log, b"x")
        await log.close()
    files = disk.files()
    for name in ("log.epoch", "log.truncation", "log-0000000000000001-00000001"):
        mixed = files | {f"{DIRECTORY}/{name}": files[f"/data/tier1/1/{name}"]}
        with pytest.raises(CorruptionError):
            await make_log(new_disk(mixed)).open()


async def test_stale_frames_of_a_recycled_file_are_never_read() -> None:
    """The recycled file is full of good frames of its former life, at the very offsets where new ones would lie."""
    disk = new_disk()
    log = make_log(disk)
    await log.open()
    kept: list[bytes] = []
    for number in range(60):
        data = bytes([number]) * 4000
        address = await append(log, data)
        kept.append(data)
        if number % 7 == 6:
            await log.truncate(address)
            kept.clear()
    again = make_log(new_disk(disk.files()))
    await again.open()
    assert await data_of(again) == kept
    numbers = {path[-8:] for path in disk.files() if "/log-" in path}
    assert max(int(number, 16) for number in numbers) > 5
    assert sum("/spare-" in path for path in disk.files()) <= SETTINGS.spare_file_count_max


async def test_zombie_files_and_bytes_never_come_back() -> None:
    """SS-75: a fenced owner that writes on, and even rolls over, changes nothing for the successors."""
    disk = new_disk()
    zombie = make_log(disk, seed=1)
    await zombie.open()
    await append(zombie, b"kept")
    owner = make_log(disk, seed=2)
    await owner.open()
    # Write as the zombie would if it never checked: its frames are good, and synced.
    zombie._directory.check_owned = zombie._directory.check_unclaimed = lambda: None  # type: ignore[method-assign]
    for _ in range(10):
        await append(zombie, b"z" * 9000)
    await append(owner, b"owner's")
    third = make_log(new_disk(disk.files()), seed=3)
    await third.open()
    assert await data_of(third) == [b"kept", b"owner's"]


async def test_file_of_an_earlier_owner_is_never_recycled() -> None:
    """The zombie's job may still be on its way to that file: it must not land in the successor's frames."""
    disk = new_disk()
    zombie = make_log(disk, seed=1, first_file_length_bytes=32 * 1024)
    await zombie.open()
    await append(zombie, b"old")
    owner = make_log(disk, seed=2, first_file_length_bytes=32 * 1024)
    await owner.open()
    kept = []
    for number in range(30):
        data = bytes([number]) * 5000
        address = await append(owner, data)
        kept.append(data)
        if number == 3:
            await owner.truncate(address)
            kept.clear()
    with pytest.raises(LogFencedError):
        await append(zombie, b"z" * 20_000)
    third = make_log(new_disk(disk.files()), seed=3)
    await third.open()
    assert await data_of(third) == kept


async def test_open_overtaken_before_its_clean_up_removes_nothing() -> None:
    """The slower opener saw a file as unused that the faster one has made part of the log meanwhile."""
    disk = new_disk()
    first = make_log(disk, seed=2)
    await first.open()
    await append(first, bytes(1000))
    await append(first, bytes(1000))
    assert sum("/log-" in path for path in disk.files()) == 2  # The second is prepared, not used.
    work = InlineWork()
    work.held_names.add("finish_open")
    runtime = Runtime(disk=disk, work=work, rng=random.Random(2), wall_clock_ms=lambda: 0)
    slow = LocalLogFactory("/data/tier1", runtime, SETTINGS).create(0)
    opening = asyncio.create_task(slow.open())
    for _ in range(20):
        await asyncio.sleep(0)
    assert slow.epoch == 2
    # The first owner does not know yet, rolls over into the prepared file, and is not acknowledged.
    with pytest.raises(LogFencedError):
        await append(first, bytes(20_000))
    fast = make_log(disk, seed=3)
    await fast.open()
    await append(fast, b"fast")
    expected = [*await data_of(fast), b"fast"]
    before = set(disk.files())
    work.release()
    with pytest.raises(LogFencedError):
        await opening
    assert set(disk.files()) >= before
    last = make_log(disk, seed=4)
    await last.open()
    assert await data_of(last) == expected


@pytest.mark.parametrize("length", [100, 15_000])
async def test_a_batch_starts_on_arrival_and_is_reported_when_its_sync_returns(tmp_path: Path, length: int) -> None:
    """Small or large, with real threads: no turn of the loop lies between, since those of a busy one are long."""
    work = ThreadedWork(2)
    runtime = Runtime(disk=LocalDisk(), work=work, rng=random.Random(), wall_clock_ms=lambda: 0)
    settings = replace(
        SETTINGS,
        threadless_batch_bytes_max=0,
        trailer_delay_s=60.0,
        first_file_length_bytes=1 << 17,
        file_length_bytes=1 << 17,
    )
    log = LocalLogFactory(str(tmp_path), runtime, settings).create(0)
    await log.open()
    await append(log, b"first")
    await asyncio.sleep(0)  # The writer is idle.
    begun: list[bool] = []
    really_begin = log._work.writes.begin

    def begin(function: Callable[[], BatchResult | None], on_done: Callable[..., None]) -> None:
        def ended(result: BatchResult | None, error: BaseException | None) -> None:
            assert not future.done()
            on_done(result, error)
            assert future.done()
            assert told == [True]

        begun.append(True)
        really_begin(function, ended)

    told: list[bool] = []
    log._work.writes.begin = begin  # type: ignore[method-assign, assignment]
    log.on_synced = lambda: told.append(future.done())
    future = log.append([bytes(length)], length)
    assert begun == [True]
    await future
    await log.close()
    await work.close()


async def test_owner_overtaken_during_its_sync_does_not_acknowledge(tmp_path: Path) -> None:
    """SS-94: real files; the first owner's sync is held until the second has opened the log and read it."""
    is_syncing, may_go_on = threading.Event(), threading.Event()

    class SlowDisk(LocalDisk):
        def open(self, path: str, **options: bool):  # type: ignore[no-untyped-def]
            file = super().open(path, **options)
            original = file.write_synced

            def write_synced(offset: int, buffers: Sequence[Buffer]) -> int:
                if is_slow:
                    # Part of the call is done: the bytes are written, but not synced.
                    file.write(offset, buffers)
                    is_syncing.set()
                    assert may_go_on.wait(30)
                return original(offset, buffers)

            file.write_synced = write_synced  # type: ignore[method-assign]
            return file

    is_slow = False
    work = ThreadedWork(4)

    def create(disk: Disk) -> LocalLog:
        runtime = Runtime(disk=disk, work=work, rng=random.Random(), wall_clock_ms=lambda: 0)
        settings = replace(SETTINGS, threadless_batch_bytes_max=0)
        return LocalLogFactory(str(tmp_path), runtime, settings).create(0)

    first, second = create(SlowDisk()), create(LocalDisk())
    await first.open()
    await append(first, b"acknowledged")
    is_slow = True
    in_flight = [first.append([b"in flight"], 9) for _ in range(20)]
    await asyncio.to_thread(is_syncing.wait, 30)
    await second.open()
    found = await data_of(second)
    await append(second, b"second's")
    may_go_on.set()
    outcomes = await asyncio.gather(*in_flight, return_exceptions=True)
    assert all(isinstance(outcome, LogFencedError) for outcome in outcomes)
    await first.close()
    await second.close()
    third = create(LocalDisk())
    await third.open()
    assert found == [b"acknowledged"] + [b"in flight"] * (len(found) - 1)
    assert await data_of(third) == [*found, b"second's"]
    await third.close()
    await work.close()


async def test_owner_overtaken_while_its_loop_has_a_batch_written_does_not_acknowledge() -> None:
    """As above, without a thread: 1. the write is begun; 2. another incarnation opens the log; 3. the write ends."""
    disk = new_disk()
    first, second = make_log(disk, seed=1), make_log(disk, seed=3)
    await first.open()
    await append(first, b"acknowledged")
    work = first._runtime.work
    assert isinstance(work, InlineWork)
    work.held_names.add("write_synced")
    in_flight = [first.append([b"in flight"], 9) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(work.held) == 1
    await second.open()
    work.release()
    outcomes = await asyncio.gather(*in_flight, return_exceptions=True)
    assert all(isinstance(outcome, LogFencedError) for outcome in outcomes)
    assert await data_of(second) == [b"acknowledged"]
    await first.close()
    await second.close()


async def test_a_small_batch_without_a_thread_leaves_what_comes_meanwhile_to_the_next() -> None:
    """Appends queued during a batch form the next one: a large one goes to the thread. All complete in sequence."""
    disk = new_disk()
    log = make_log(disk, seed=1, threadless_batch_bytes_max=100, first_file_length_bytes=32 * 1024)
    await log.open()
    work = log._runtime.work
    assert isinstance(work, InlineWork)
    work.held_names.update(("write_synced", "write_queued"))
    appended = [log.append([b"a" * 60], 60)]
    await asyncio.sleep(0.001)
    appended += [log.append([b"b" * 60], 60), log.append([b"c" * 60], 60)]
    names: list[str] = []
    while work.held:
        names += [getattr(job.call, "func").__name__ for _, job in work.held]  # noqa: B009  # a partial
        held, work.held = work.held, []
        work.held_names.clear()
        for pool, job in held:
            pool._begin(job)
        work.held_names.update(("write_synced", "write_queued"))
        await asyncio.sleep(0.001)
    assert names == ["write_synced", "write_queued"]
    addresses = [await one for one in appended]
    assert addresses == sorted(addresses)
    work.held_names.clear()
    await log.close()
    log = make_log(disk, seed=1)
    await log.open()
    assert await data_of(log) == [b"a" * 60, b"b" * 60, b"c" * 60]


@pytest.mark.parametrize("seed", range(3))
async def test_random_work_with_rollover_truncation_and_reopening_matches_a_list(seed: int, tmp_path: Path) -> None:
    """Real files and threads; many appenders, truncation while appends run, owners closed or just abandoned."""
    rng = random.Random(seed)
    work = ThreadedWork(4)
    runtime = Runtime(disk=LocalDisk(), work=work, rng=random.Random(seed), wall_clock_ms=lambda: 0)
    factory = LocalLogFactory(str(tmp_path), runtime, SETTINGS)
    model: list[tuple[LogAddress, bytes]] = []
    truncated = LogAddress(0)
    abandoned: list[LocalLog] = []
    for _ in range(6):
        log = factory.create(0)
        await log.open()
        assert await contents(log) == [frame for frame in model if frame[0] > truncated]
        for _ in range(12):
            data = [rng.randbytes(rng.choice([1, 50, 4000, 20_000])) for _ in range(rng.randrange(1, 20))]
            futures = [log.append([piece], len(piece)) for piece in data]
            assert log.outstanding_bytes == sum(map(len, data))
            if model and rng.random() < 0.5:
                truncated = max(truncated, rng.choice(model)[0])
                await log.truncate(truncated)
            model.extend(zip(await asyncio.gather(*futures), data, strict=True))
        assert log.outstanding_bytes == 0
        if rng.random() < 0.5:
            await log.close()
        else:
            abandoned.append(log)
    assert [address for address, _ in model] == sorted({address for address, _ in model})
    for log in abandoned:
        await log.close()
    await work.close()


async def test_log_closed_while_it_opens_ends_up_closed(tmp_path: Path) -> None:
    """Neither call hangs; the next owner finds a usable log."""
    work = ThreadedWork(2)
    runtime = Runtime(disk=LocalDisk(), work=work, rng=random.Random(1), wall_clock_ms=lambda: 0)
    factory = LocalLogFactory(str(tmp_path), runtime, SETTINGS)
    log = factory.create(0)
    await asyncio.gather(log.open(), log.close(), return_exceptions=True)
    with pytest.raises(LogClosedError):
        log.append([b"x"], 1)
    log = factory.create(0)
    await log.open()
    await append(log, b"x")
    await log.close()
    await work.close()


async def test_an_abandoned_open_does_not_fence_a_later_owner(tmp_path: Path) -> None:
    """Its thread hangs before it claims the log, and continues when another incarnation has long opened it."""
    is_begun, may_go_on = threading.Event(), threading.Event()

    class SlowDisk(LocalDisk):
        def lock(self, path: str) -> DiskLock:  # type: ignore[override]
            is_begun.set()
            assert may_go_on.wait(30)
            return super().lock(path)

    work = ThreadedWork(2)
    settings = replace(SETTINGS, files=PoolSettings(timeout_s=0.5))

    def create(disk: Disk, settings: LocalLogSettings) -> LocalLog:
        runtime = Runtime(disk=disk, work=work, rng=random.Random(1), wall_clock_ms=lambda: 0)
        return LocalLogFactory(str(tmp_path), runtime, settings).create(0)

    given_up = create(SlowDisk(), settings)
    with pytest.raises(StorageNotRespondingError):
        await given_up.open()
    assert is_begun.is_set()
    await given_up.close()
    successor = create(LocalDisk(), SETTINGS)
    await successor.open()
    await append(successor, b"before")
    may_go_on.set()
    await given_up._work.files.drained(with_abandoned=True)
    await append(successor, b"after")
    assert not given_up._directory.is_claimed
    await successor.close()
    await work.close()


@pytest.mark.parametrize("held_count", [0, 1])
async def test_a_log_is_not_claimed_by_a_process_that_does_not_hold_its_directory(held_count: int) -> None:
    """Whether that is found at the beginning, or under the log's lock, where nothing is changed any more."""
    disk = new_disk()
    owner = make_log(disk)
    await owner.open()
    await append(owner, b"first")
    record = disk.files()[f"{DIRECTORY}/log.epoch"]
    checks = 0

    def check_held() -> None:
        nonlocal checks
        checks += 1
        if checks > held_count:
            raise DataDirectoryLostError("/data", "it was taken")

    runtime = Runtime(disk=disk, work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)
    logs = LocalLogFactory("/data/tier1", runtime, SETTINGS, owner=LogOwner(b"o" * 16, check_held=check_held))
    log = logs.create(0)
    with pytest.raises(DataDirectoryLostError, match="it was taken"):
        await log.open()
    await log.close()
    assert checks == held_count + 1
    assert disk.files()[f"{DIRECTORY}/log.epoch"] == record
    await append(owner, b"second")
    await owner.close()


async def test_a_log_is_enabled_although_its_lock_is_held_for_a_moment() -> None:
    """As its owner does now and then. Earlier, enabling failed then with "another server runs there"."""
    disk = new_disk()
    log = make_log(disk)
    await log.open()
    await log.disable()
    await log.close()
    factory = LocalLogFactory(
        "/data/tier1", Runtime(disk=disk, work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0), SETTINGS
    )
    lock = disk.lock(f"{DIRECTORY}/log.lock")
    enabling = asyncio.create_task(factory.enable(0))
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert not enabling.done()
    lock.release()
    await enabling
    await make_log(disk, seed=2).open()


async def test_a_log_whose_lock_is_never_released_is_not_enabled() -> None:
    """That is said after `lock_wait_s_max`."""
    disk = new_disk()
    log = make_log(disk)
    await log.open()
    await log.disable()
    await log.close()
    runtime = Runtime(disk=disk, work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)
    factory = LocalLogFactory("/data/tier1", runtime, replace(SETTINGS, lock_wait_s_max=0.01))
    lock = disk.lock(f"{DIRECTORY}/log.lock")
    with pytest.raises(StorageError, match=r"could not enable the log of container 0 .* its lock was held for 0.01 s"):
        await factory.enable(0)
    lock.release()


async def test_a_log_whose_file_does_not_close_is_released_nevertheless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error is reported; the epoch file is closed, and so are the pools."""
    log = make_log(new_disk())
    await log.open()
    assert log._files.current is not None

    def fail() -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(log._files.current.file, "close", fail)
    given_up: list[int] = []
    monkeypatch.setattr(log._directory, "give_up", lambda: given_up.append(1))
    with pytest.raises(StorageError, match="broken"):
        await log.close()
    assert given_up == [1]
    assert not log._directory.is_claimed
    assert log._work.files.is_closed
    assert log._work.writes.is_closed


async def test_settling_confirms_ownership_and_ends_even_if_its_caller_is_cancelled() -> None:
    """The epoch file is written to the end before the log closes it."""
    log = make_log(new_disk())
    await log.open()
    opened_s = log.ownership_confirmed_s
    work = log._runtime.work
    assert isinstance(work, InlineWork)
    work.held_names.add("settle")
    settling = asyncio.ensure_future(log.settle())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(work.held) == 1
    settling.cancel()
    closing = asyncio.ensure_future(log.close())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not closing.done()
    work.release()
    await closing
    assert settling.cancelled()
    assert log.ownership_confirmed_s > opened_s


async def test_log_whose_writer_was_stopped_refuses_appends() -> None:
    """As at the end of an event loop that cancels all tasks: no append waits for a write that will not happen."""
    for is_idle in (True, False):
        log = make_log(new_disk())
        await log.open()
        await asyncio.sleep(0)
        work = log._runtime.work
        assert isinstance(work, InlineWork)
        work.held_names.add("write_queued")
        futures = [] if is_idle else [log.append([b"x"], 1)]
        assert log._writer is not None
        log._writer.cancel()
        await asyncio.wait([log._writer])
        work.release()
        assert all(isinstance(future.exception(), StorageError) for future in futures)
        with pytest.raises(LogClosedError):
            log.append([b"x"], 1)
        await log.close()


async def test_batches_are_bounded() -> None:
    """No sync covers more than `batch_length_max_bytes` of payload, and one frame always goes."""
    disk = new_disk()
    length = 64 * 1024
    log = make_log(disk, batch_length_max_bytes=100, first_file_length_bytes=length, file_length_bytes=length)
    await log.open()
    syncs = 0

    def count(operation: str, path: str) -> None:
        nonlocal syncs
        syncs += operation == "sync"

    disk.hook = count
    await asyncio.gather(*(log.append([bytes(length)], length) for length in (40, 40, 40, 40, 200, 100, 1)))
    assert syncs == 5
    await log.close()


async def test_failed_sync_fails_everything_queued_and_is_never_retried() -> None:
    """Appends before it stay acknowledged; the log is closed; a new open reads what is on the disk."""
    disk = new_disk()
    log = make_log(disk, first_file_length_bytes=32 * 1024)
    await log.open()
    await append(log, b"before")
    syncs = 0

    def fail(operation: str, path: str) -> None:
        nonlocal syncs
        if operation == "sync" and "log.epoch" not in path:
            syncs += 1
            raise SyncFailedError(FailedSync.LOSE)

    disk.hook = fail
    futures = [log.append([b"lost"], 4) for _ in range(5)]
    await asyncio.sleep(0)
    for outcome in await asyncio.gather(*futures, return_exceptions=True):
        assert isinstance(outcome, StorageError)
    assert syncs == 1
    assert log.outstanding_bytes == 0
    with pytest.raises(LogClosedError):
        log.append([b"x"], 1)
    await log.close()
    assert syncs == 1
    disk.process_kill()
    log = make_log(disk)
    await log.open()
    found = await data_of(log)
    assert found == [b"before"] + [b"lost"] * 5
    for seed in range(10):
        # What was read once must stay, so opening has made it durable after all.
        log = make_log(disk.after_crash(disk.tree.reorder_plan(random.Random(seed))))
        await log.open()
        assert await data_of(log) == found


async def test_full_disk_holds_appends_only_when_the_current_file_is_used_up() -> None:
    """ENOSPC in the background preparation is survived; in the end appends wait, and continue once there is room."""
    disk = new_disk()
    log = make_log(disk, first_file_length_bytes=32 * 1024, reserve_file_count=0, space_check_interval_s=0)
    await log.open()
    existing = set(disk.files())

    def refuse_new_files(operation: str, path: str) -> None:
        if operation == "open" and path not in existing:
            raise OSError(errno.ENOSPC, "no space left on device")

    disk.hook = refuse_new_files
    kept: list[bytes] = []
    held: asyncio.Future[LogAddress] | None = None
    for number in range(100):
        data = bytes([number]) * 3000
        appending = log.append([data], len(data))
        await asyncio.wait([appending], timeout=0.2)
        if not appending.done():
            held = appending
            break
        assert appending.exception() is None
        kept.append(data)
    assert held is not None
    assert len(kept) >= 5
    disk.hook = lambda operation, path: None
    assert await held > 0
    kept.append(data)
    disk.hook = refuse_new_files
    appends = [log.append([bytes(3000)], 3000) for _ in range(50)]
    await asyncio.sleep(0.1)
    # Who closes it does not wait for room: what was not written fails.
    await log.close()
    ends = await asyncio.gather(*appends, return_exceptions=True)
    assert isinstance(ends[-1], StorageFullError)
    kept += [bytes(3000) for end in ends if not isinstance(end, BaseException)]
    disk.hook = lambda operation, path: None
    log = make_log(disk)
    await log.open()
    assert await data_of(log) == kept
    assert not [path for path in disk.files() if "/spare-" in path]
    await append(log, b"space again")
    await log.close()


async def test_full_disk_under_a_write_fails_that_append() -> None:
    """ENOSPC from the write itself: `StorageFullError`, and the log is closed."""
    disk = new_disk()
    log = make_log(disk)
    await log.open()

    def refuse(operation: str, path: str) -> None:
        if operation == "write":
            raise StorageFullError("no space left")

    disk.hook = refuse
    with pytest.raises(StorageFullError):
        await append(log, b"x")
    with pytest.raises(LogClosedError):
        log.append([b"x"], 1)
    await log.close()


async def test_failed_truncation_leaves_the_log_usable() -> None:
    """A full disk while the truncation point is replaced: an error, no frame lost, appends continue, a retry works."""
    disk = new_disk()
    log = make_log(disk)
    await log.open()
    first, second = await append(log, b"one"), await append(log, b"two")

    def refuse(operation: str, path: str) -> None:
        if operation == "open" and "truncation" in path:
            raise OSError(errno.ENOSPC, "no space left on device")

    disk.hook = refuse
    with pytest.raises(StorageFullError):
        await log.truncate(first)
    disk.hook = lambda operation, path: None
    await append(log, b"three")
    await log.truncate(first)
    await log.close()
    log = make_log(disk)
    await log.open()
    assert await data_of(log) == [b"two", b"three"]
    assert second > first


async def test_cancelled_open_and_truncate_finish_in_the_background(tmp_path: Path) -> None:
    """Cancelling a caller neither leaks the log nor leaves half a change; `close` waits for it."""
    work = ThreadedWork(2)
    runtime = Runtime(disk=LocalDisk(), work=work, rng=random.Random(1), wall_clock_ms=lambda: 0)
    factory = LocalLogFactory(str(tmp_path), runtime, SETTINGS)
    log = factory.create(0)
    opening = asyncio.create_task(log.open())
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await log.close()
    log = factory.create(0)
    await log.open()
    addresses = [await append(log, bytes(5000)) for _ in range(10)]
    truncating = asyncio.create_task(log.truncate(addresses[8]))
    await asyncio.sleep(0)
    truncating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await truncating
    await log.close()
    log = factory.create(0)
    await log.open()
    assert [address for address, _ in await contents(log)] == addresses[9:]
    await log.close()
    await work.close()


async def test_disable_is_possible_after_an_open_that_found_corruption() -> None:
    """The container keeps the evidence: no incarnation opens the corrupt log until it is enabled."""
    files, _ = await small_log(is_closed=True)
    path = max(path for path in files if "/log-" in path)
    files[path] = b"\0" + files[path][1:]
    disk = new_disk(files)
    log = make_log(disk)
    with pytest.raises(CorruptionError) as caught:
        await log.open()
    assert (caught.value.path, caught.value.offset) == (path, 0)
    await log.disable()
    assert disk.files()[path] == files[path]


@pytest.mark.parametrize("is_mapped", [True, False])
async def test_a_single_append_is_one_call_and_a_memory_check(is_mapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the epoch file can be mapped nothing asks for its name; else each batch does. Both see a later claim."""
    checked: list[str] = []
    is_linked = SimulatedFile.is_linked

    def counted(self: SimulatedFile) -> bool:
        checked.append(self.path)
        return is_linked(self)

    monkeypatch.setattr(SimulatedFile, "is_linked", counted)
    if not is_mapped:
        monkeypatch.setattr(SimulatedFile, "share", lambda self, offset: None)
    disk = new_disk()
    log = make_log(disk, trailer_delay_s=60.0, first_file_length_bytes=1 << 17, file_length_bytes=1 << 17)
    await log.open()
    calls: list[str] = []
    disk.hook = lambda call, path: calls.append(call)
    checked.clear()
    for _ in range(5):
        await append(log, b"alone")
    assert calls == ["write", "sync"] * 5
    assert len(checked) == (0 if is_mapped else 5)
    await make_log(disk, seed=1).open()
    with pytest.raises(LogFencedError):
        await append(log, b"too late")


def append_during_sync(disk: SimulatedDisk, log: LocalLog, data: list[bytes]) -> list[asyncio.Future[LogAddress]]:
    """Append one of `data` during each sync of a batch, as other callers would while the thread waits."""
    appended: list[asyncio.Future[LogAddress]] = []

    def append_one(call: str, path: str) -> None:
        if call == "sync" and data:
            one = data.pop(0)
            appended.append(log.append([one], len(one)))

    disk.hook = append_one
    return appended


async def test_what_comes_during_a_sync_is_written_next_without_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """One job of the log's thread writes three batches; each is acknowledged when it is synced, in order."""
    disk = new_disk()
    log = make_log(disk, first_file_length_bytes=1 << 17, file_length_bytes=1 << 17)
    await log.open()
    appended = append_during_sync(disk, log, [b"second", b"third"])
    jobs: list[object] = []
    begin = log._work.writes.begin

    def count(function: Callable[[], object], on_done: Callable[[object, BaseException | None], None]) -> None:
        jobs.append(function)
        begin(function, on_done)

    monkeypatch.setattr(log._work.writes, "begin", count)
    first = await append(log, b"first")
    assert len(jobs) == 1
    addresses = [first, *(one.result() for one in appended)]
    assert addresses == sorted(addresses)
    disk.crash()
    log = make_log(disk, seed=1)
    await log.open()
    assert await contents(log) == list(zip(addresses, (b"first", b"second", b"third"), strict=True))


async def test_a_batch_that_fails_after_another_one_takes_back_no_acknowledgement() -> None:
    """1. Two batches in one job. 2. The second sync fails. 3. The first is acknowledged, the rest fails, none hangs."""
    disk = new_disk()
    log = make_log(disk, first_file_length_bytes=1 << 17, file_length_bytes=1 << 17)
    await log.open()
    appended = append_during_sync(disk, log, [b"second", b"third"])
    take = disk.hook
    syncs: list[str] = []

    def fail_second(call: str, path: str) -> None:
        take(call, path)
        if call == "sync":
            syncs.append(path)
            if len(syncs) == 2:
                raise SyncFailedError(FailedSync.LOSE)

    disk.hook = fail_second
    address = await append(log, b"first")
    outcomes = await asyncio.gather(*appended, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StorageError, StorageError]
    assert log.outstanding_bytes == 0
    await log.close()
    disk.hook = lambda call, path: None
    disk.crash()
    log = make_log(disk, seed=1)
    await log.open()
    assert await contents(log) == [(address, b"first")]


async def test_a_claim_that_is_made_between_two_batches_of_a_job_is_seen_by_the_second() -> None:
    disk = new_disk()
    log = make_log(disk, first_file_length_bytes=1 << 17, file_length_bytes=1 << 17)
    await log.open()
    appended = append_during_sync(disk, log, [b"second"])
    take = disk.hook
    syncs: list[str] = []

    def claim_before_second(call: str, path: str) -> None:
        take(call, path)
        if call == "sync":
            syncs.append(path)
            if len(syncs) == 2:
                disk.hook = lambda call, path: None
                LogDirectory(disk, DIRECTORY, 0, LogOwner(bytes(16))).claim(lambda: None)

    disk.hook = claim_before_second
    assert await append(log, b"first")
    with pytest.raises(LogFencedError):
        await appended[0]


async def test_a_claim_that_is_cut_off_behind_its_mark_leaves_a_log_that_can_be_claimed() -> None:
    """1. A successor marks the epoch file. 2. It fails before the rename. 3. The owner ends; who comes next owns."""
    disk = new_disk()
    owner = make_log(disk)
    await owner.open()
    await append(owner, b"acknowledged")

    def fail(call: str, path: str) -> None:
        if call == "rename" and path.endswith("/log.epoch"):
            raise OSError(errno.EIO, "simulated: rename failed")

    disk.hook = fail
    with pytest.raises(StorageError):
        await make_log(disk, seed=1).open()
    disk.hook = lambda call, path: None
    with pytest.raises(LogFencedError):
        await append(owner, b"without permission")
    with pytest.raises(LogClosedError):
        await owner.confirm_ownership()
    successor = make_log(disk, seed=2)
    await successor.open()
    assert (await data_of(successor))[0] == b"acknowledged"
    await append(successor, b"continues")


async def test_a_claim_that_finds_no_room_for_its_record_fences_no_owner() -> None:
    disk = new_disk()
    owner = make_log(disk, reserve_record_count=0)
    await owner.open()
    disk.faults = DiskFaults(capacity_bytes=disk.used_bytes)
    with pytest.raises(StorageFullError):
        await make_log(disk, seed=1).open()
    await append(owner, b"still the owner")
    await owner.confirm_ownership()


async def test_an_epoch_file_that_shows_no_writes_in_memory_is_opened_again_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file system whose mappings do not follow writes: the trial finds that before mappings are used."""
    monkeypatch.setattr(SimulatedByte, "value", lambda self: 0)
    disk = new_disk()
    log = make_log(disk)
    await log.open()
    await make_log(disk, seed=1).open()
    with pytest.raises(LogFencedError):
        await append(log, b"too late")


async def test_an_idle_log_says_once_that_its_last_batch_was_synced() -> None:
    disk = new_disk()
    log = make_log(disk, first_file_length_bytes=1 << 17, file_length_bytes=1 << 17)
    await log.open()
    await append(log, b"last")
    calls: list[str] = []
    disk.hook = lambda call, path: calls.append(call)
    await idle(log)
    for _ in range(5):
        await asyncio.sleep(0)
    assert calls == ["write"]
    files = disk.files()
    name = max(path for path in files if "/log-" in path)
    damaged = bytearray(files[name])
    damaged[damaged.index(b"last")] ^= 1
    with pytest.raises(CorruptionError):
        await make_log(new_disk(files | {name: bytes(damaged)})).open()


def test_files_are_filled_from_the_same_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their length: memory made for each write may cost more than the write does. All of it is zero."""
    used: list[object] = []
    write = LocalFile.write

    def noted(self: LocalFile, offset: int, buffers: Sequence[Buffer]) -> int:
        used.extend(memoryview(buffer).obj for buffer in buffers)
        return write(self, offset, buffers)

    monkeypatch.setattr(LocalFile, "write", noted)
    file = LocalDisk().open(str(tmp_path / "spare"), create=True)
    end = 0
    for length in (1 << 20, BLOCK, 150_001, 64 * 1024):
        fill(file, end, length)
        end += length
    file.close()
    assert (tmp_path / "spare").read_bytes() == bytes(end)
    assert len({id(one) for one in used}) == 1


async def test_sizes_follow_the_settings() -> None:
    """A fresh log takes little room; files grow to the full length; one sync covers many appends."""
    disk = new_disk()
    log = make_log(disk)
    await log.open()
    assert sum(len(data) for path, data in disk.files().items() if "/reserve-" not in path) < 20 * 1024
    log = make_log(disk, first_file_length_bytes=32 * 1024, reserve_file_count=0, reserve_record_count=0)
    await log.open()
    operations: list[str] = []
    disk.hook = lambda operation, path: operations.append(operation)
    await asyncio.gather(*(log.append([b"x"], 1) for _ in range(50)))
    assert operations == ["write", "sync"]
    for _ in range(40):
        await append(log, bytes(3000))
    lengths = {len(data) for path, data in disk.files().items() if "/log-" in path}
    assert 32 * 1024 in lengths
    assert max(lengths) <= 32 * 1024 + 2 * BLOCK


@pytest.mark.parametrize(
    "changes",
    [
        {"frame_length_max_bytes": 0},
        {"batch_length_max_bytes": 0},
        {"zero_chunk_length_bytes": 0},
        {"first_file_length_bytes": 4 * BLOCK - 1},
        {"first_file_length_bytes": 32 * 1024 + 1},
        {"file_length_bytes": 2**30 + 1},
        {"frame_length_max_bytes": 2**28 + 1},
        {"spare_file_count_max": -1},
        {"reserve_file_count": -1},
        {"reserve_file_length_bytes": 4 * BLOCK - 1},
        {"free_percent_max": 101},
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, int]) -> None:
    """Each bound, one past it."""
    with pytest.raises(InvalidArgumentError):
        make_log(new_disk(), **changes)
