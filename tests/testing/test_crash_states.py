"""Every file format, recovered from every explored crash state; and proof that the explorer sees what it should.

Each exploration prints how many states it tried.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import pytest

from penstock.model.errors import CorruptionError, StorageError
from penstock.model.segments import Buffer, TableEntry, TableRemoval, TableUpdate
from penstock.runtime.disk import Disk, DiskFile
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container.opening import ContainerOpening
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.segment import SegmentFlags
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import CacheSettings
from penstock.segmentstore.tier1.durable_log import LogAddress
from penstock.segmentstore.tier1.local_log import LocalLog
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_batch import WritableFile
from penstock.segmentstore.tier1.log_directory import LogDirectory
from penstock.segmentstore.tier1.log_files import LogFiles
from penstock.segmentstore.tier1.log_records import read_epoch, read_truncation
from penstock.segmentstore.tier1.log_recovery import read_frames, recover
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier2.chunk_files import ChunkFiles
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings
from penstock.server.data_directory import DataDirectory, Identity
from penstock_simulation.checks.invariants import check_container, check_storage, check_tables
from penstock_simulation.crash_states import CrashLimits, Exploration, RecordingDisk, Seen, crash_states, explore
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import DiskFaults, NameOrder
from support.inline_work import InlineWork

LOG_SETTINGS = LocalLogSettings(
    frame_length_max_bytes=8_000,
    batch_length_max_bytes=12_000,
    first_file_length_bytes=16 * 1024,
    file_length_bytes=16 * 1024,
    zero_chunk_length_bytes=16 * 1024,
    spare_file_count_max=1,
    lock_retry_delay_s=0.001,
    # `test_log_space` crashes a log that uses its reserve.
    reserve_file_count=0,
    reserve_record_count=0,
)


def runtime_on(disk: Disk, seed: int) -> Runtime:
    work = InlineWork(writes_without_thread=seed % 2 == 1)
    return Runtime(disk=disk, work=work, rng=random.Random(seed), wall_clock_ms=lambda: 0)


def new_disk(seed: int, order: NameOrder = NameOrder.PREFIX) -> SimulatedDisk:
    return SimulatedDisk(random.Random(seed), DiskFaults(name_order=order))


def tell(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """Print how much was explored, also when output is captured: that number is promised."""
    with capsys.disabled():
        sys.stdout.write(f"\n{line}\n")


# The log.


@dataclass(frozen=True, slots=True)
class Appended:
    """A frame was given to the log, as number `number`; nothing is promised yet."""

    number: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A frame's append was acknowledged."""

    number: int
    address: LogAddress


@dataclass(frozen=True, slots=True)
class Truncating:
    """Frames up to this number may be gone from here on, and are once `is_done`."""

    number: int
    is_done: bool


@dataclass(frozen=True, slots=True)
class FoundFrames:
    """What an opened log holds: numbers and addresses of its frames, and the epoch it was opened with."""

    frames: tuple[tuple[int, LogAddress], ...]
    epoch: int


def frame_of(number: int, length: int) -> bytes:
    """Return a frame that says its number in every eighth byte."""
    return number.to_bytes(8, "big") * (length // 8 + 1)


def number_of(frame: bytes) -> int:
    number = int.from_bytes(frame[:8], "big")
    assert frame == frame_of(number, len(frame) - 8), f"the bytes of frame {number} are not what was appended"
    return number


class LogScenario:
    """Random work on a log: appends alone and in batches, rollovers, truncations, closing and opening again."""

    def __init__(self, seed: int, *, round_count: int = 3, step_count: int = 6) -> None:
        self._seed = seed
        self._round_count = round_count
        self._step_count = step_count

    async def __call__(self, disk: RecordingDisk) -> None:
        rng = random.Random(self._seed)
        count = 0
        for round_number in range(self._round_count):
            log = log_on(disk, self._seed * 100 + round_number)
            await log.open()
            addresses: list[tuple[int, LogAddress]] = []
            for _ in range(self._step_count):
                futures: list[tuple[int, asyncio.Future[LogAddress]]] = []
                for _ in range(rng.choice([1, 1, 2, 5])):
                    count += 1
                    frame = frame_of(count, rng.choice([0, 40, 700, 3000, 7000]))
                    disk.mark(Appended(count))
                    futures.append((count, log.append([frame], len(frame))))
                    futures[-1][1].add_done_callback(
                        lambda future, number=count: disk.mark(Acknowledged(number, future.result()))  # type: ignore[misc]
                    )
                addresses += [(number, await future) for number, future in futures]
                await asyncio.sleep(0)
                if rng.random() < 0.3:
                    number, address = rng.choice(addresses)
                    disk.mark(Truncating(number, False))
                    await log.truncate(address)
                    disk.mark(Truncating(number, True))
            if rng.random() < 0.5:
                await log.close()
            else:
                disk.inner.process_kill()
        await asyncio.sleep(0)


def log_on(disk: Disk, seed: int) -> LocalLog:
    return LocalLogFactory("/data/tier1", runtime_on(disk, seed), LOG_SETTINGS).create(0)


async def recover_log(disk: RecordingDisk) -> FoundFrames:
    log = log_on(disk, 99)
    await log.open()
    frames = [(number_of(frame.data), frame.address) async for frame in log.frames()]
    return FoundFrames(tuple(frames), log.epoch)


def check_log(promises: Sequence[object], found: FoundFrames) -> Iterable[str]:
    """Return what is wrong with a recovered log."""
    appended = max((p.number for p in promises if isinstance(p, Appended)), default=0)
    acknowledged = {p.number: p.address for p in promises if isinstance(p, Acknowledged)}
    cut_max = max((p.number for p in promises if isinstance(p, Truncating)), default=0)
    cut_min = max((p.number for p in promises if isinstance(p, Truncating) and p.is_done), default=0)
    numbers = [number for number, _ in found.frames]
    first = numbers[0] if numbers else appended + 1
    if numbers != list(range(first, first + len(numbers))):
        yield f"frames are not in order without gaps: {numbers}"
    for number in sorted(acknowledged):
        if number not in numbers and number > cut_max:
            yield f"acknowledged frame {number} is gone; found {numbers}, truncated up to {cut_max}"
    if numbers and first <= cut_min:
        yield f"frame {first} came back, the log was truncated up to {cut_min}"
    if numbers and first > cut_max + 1:
        yield f"the log begins with frame {first}, it was truncated up to {cut_max} at most"
    if numbers and numbers[-1] > appended:
        yield f"frame {numbers[-1]} was never appended"
    for number, address in found.frames:
        if acknowledged.get(number, address) != address:
            yield f"frame {number} moved from {acknowledged[number]} to {address}"
    for promise in promises:
        if isinstance(promise, Seen) and isinstance(promise.recovered, FoundFrames):
            seen = promise.recovered
            if seen.frames != found.frames:
                yield f"an earlier recovery saw {[n for n, _ in seen.frames]}, now there are {numbers}"
            if found.epoch <= seen.epoch:
                yield f"epoch {found.epoch} does not follow {seen.epoch}"


@pytest.mark.parametrize(
    "seed", [3, 4, 5, 6, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 1, 2, 7, 8, 9))]
)
async def test_log_survives_every_explored_crash_state(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """1 000 states and more of the log's use for each of ten seeds, crashes of recovery not counted.

    Name changes survive as a prefix or, every other seed, as any subset.
    """
    found = Exploration()
    order = (NameOrder.PREFIX, NameOrder.SUBSET)[seed % 2]
    limits = CrashLimits(8, 5, kill_rate=0.2, recovery_crash_rate=0.03, killed_recovery_crash_rate=0.3)
    scenario = 0
    while found.state_count - found.recovery_crash_count < 1_000 and not found.violations:
        number = seed * 1000 + scenario
        found.add(
            await explore(
                LogScenario(number),
                recover_log,
                check_log,
                disk=new_disk(number, order),
                limits=limits,
                rng=random.Random(number),
            )
        )
        scenario += 1
    tell(
        capsys,
        f"log, seed {seed}: {found.state_count} crash states of {found.step_count} steps, "
        f"{found.recovery_crash_count} in recovery, {len(found.violations)} violations",
    )
    assert found.violations == []
    assert found.state_count - found.recovery_crash_count >= 1_000


async def test_losing_what_recovery_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rewrite of unsynced bytes at open, recovery contradicts itself after a kill and a power loss."""
    monkeypatch.setattr(LogDirectory, "_rewrite", lambda self, path, start, end: None)
    found = Exploration()
    for seed in range(6):
        limits = CrashLimits(2, 2, recovery_crash_rate=0, killed_recovery_crash_rate=1, recovery_crash_max=12)
        found.add(
            await explore(
                LogScenario(seed), recover_log, check_log, disk=new_disk(seed), limits=limits, rng=random.Random(seed)
            )
        )
        if found.violations:
            break
    assert found.violations
    for violation in found.violations:
        assert "process killed" in violation
        assert "; recovered; power lost" in violation


async def test_log_without_syncs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is written but not synced before it is acknowledged."""
    original = LogFiles.with_room

    async def with_room(self: LogFiles, length: int) -> WritableFile:
        file = await original(self, length)
        if not isinstance(file.file, Unsynced):
            file.file = Unsynced(file.file)  # type: ignore[assignment]  # replaces it
        return file

    monkeypatch.setattr(LogFiles, "with_room", with_room)
    found = await explore(
        LogScenario(1), recover_log, check_log, disk=new_disk(1), limits=CrashLimits(4, 4), rng=random.Random(1)
    )
    assert any("acknowledged frame" in violation for violation in found.violations)


class Unsynced:
    """A file whose sync does nothing."""

    def __init__(self, inner: DiskFile) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def sync(self) -> None:
        pass

    def write_synced(self, offset: int, buffers: Sequence[Buffer]) -> int:
        return self._inner.write(offset, buffers)


# The explorer itself, on formats of a few lines.


def replace_file(disk: RecordingDisk, content: bytes, *, leave_out: str) -> None:
    """Replace /d/f the way every record of the project is replaced, but for one step."""
    file = disk.open("/d/f.tmp", create=True)
    if leave_out != "truncate":
        file.truncate(0)
    file.write(0, [content])
    if leave_out != "sync":
        file.sync()
    file.close()
    disk.rename("/d/f.tmp", "/d/f")
    if leave_out != "sync directory":
        disk.sync_directory("/d")
    disk.mark(content)


@pytest.mark.parametrize("order", list(NameOrder))
@pytest.mark.parametrize("leave_out", ["nothing", "sync", "sync directory", "truncate"])
async def test_explorer_tells_a_right_replacement_from_wrong_ones(leave_out: str, order: NameOrder) -> None:
    """Old or new content is right, new once it was promised; anything else is found. All states are tried."""
    contents = [bytes([65 + number]) * (1500 - number * 300) for number in range(3)]

    async def scenario(disk: RecordingDisk) -> None:
        disk.make_directory("/d")
        for content in contents:
            replace_file(disk, content, leave_out=leave_out)

    async def recover(disk: RecordingDisk) -> bytes | None:
        if not disk.exists("/d/f"):
            return None
        file = disk.open("/d/f", writable=False)
        return file.read(0, 10_000)

    def check(promises: Sequence[object], found: bytes | None) -> Iterable[str]:
        kept = [promise for promise in promises if isinstance(promise, bytes)]
        if found not in [None, *contents] or (kept and (found is None or found not in contents[len(kept) - 1 :])):
            yield f"found {found!r}"

    limits = CrashLimits(exhaustive_max=2000, kill_rate=0, recovery_crash_rate=0)
    found = await explore(scenario, recover, check, disk=new_disk(1, order), limits=limits, rng=random.Random(1))
    assert found.state_count > 10
    # A fresh temporary file has nothing to cut off: leaving that out is harmless here.
    assert bool(found.violations) == (leave_out in ("sync", "sync directory"))


async def test_each_state_comes_once_and_the_same_seed_gives_the_same_states() -> None:
    """Two samplings with one seed are equal, byte for byte; no disk comes twice with the same promises."""
    recording = RecordingDisk(new_disk(3))
    await LogScenario(3, round_count=1)(recording)
    runs = [
        [
            (state.story, state.disk.fingerprint(), len(state.promises))
            for state in crash_states(recording.trace, limits=CrashLimits(), rng=random.Random(7))
        ]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    power = [(print_, count) for story, print_, count in runs[0] if story.startswith("power")]
    assert len(power) == len(set(power)) > 100


async def test_recovery_that_raises_is_a_violation_and_exploration_stops_after_ten() -> None:
    async def scenario(disk: RecordingDisk) -> None:
        for number in range(30):
            disk.open(f"/{number}", create=True)

    async def recover(disk: RecordingDisk) -> None:
        raise StorageError("no")

    found = await explore(
        scenario, recover, lambda promises, found: (), disk=new_disk(1), limits=CrashLimits(), rng=random.Random(1)
    )
    assert len(found.violations) == 10
    assert "recovery failed: StorageError" in found.violations[0]


# Chunks with their records.

SEGMENTS = ("s/a", "s/b", "s/c")
STORAGE_SETTINGS = ChunkedStorageSettings(chunk_length_max=900, block_length=256)
#: Every segment's start, bytes and seal; absent ones are not there.
Stored = dict[str, tuple[int, bytes, bool]]


@dataclass(frozen=True, slots=True)
class Changing:
    """Change `number` was begun; after it the segments would be `after`."""

    number: int
    after: Stored


@dataclass(frozen=True, slots=True)
class Changed:
    """Change `number` was acknowledged."""

    number: int


class LoggedTable(MemoryMetadataTable):
    """Storage records as the container has them: in memory, every commit a frame of the log."""

    def __init__(self, log: LocalLog, entries: Sequence[TableEntry] = ()) -> None:
        super().__init__(entries, persist=self._append)
        self._log = log

    async def _append(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> None:
        changes: dict[bytes, bytes | None] = {update.key: update.value for update in updates}
        changes.update((removal.key, None) for removal in removals)
        frame = msgspec.msgpack.encode(changes)
        await self._log.append([frame], len(frame))


async def open_storage(disk: Disk, seed: int) -> tuple[LocalLog, ChunkedStorage]:
    runtime = runtime_on(disk, seed)
    log = LocalLogFactory("/data/tier1", runtime, LOG_SETTINGS).create(0)
    await log.open()
    records: dict[bytes, bytes] = {}
    async for frame in log.frames():
        for key, value in msgspec.msgpack.decode(frame.data, type=dict[bytes, bytes | None]).items():
            if value is None:
                records.pop(key, None)
            else:
                records[key] = value
    table = LoggedTable(log, [TableEntry(key, value, at) for at, (key, value) in enumerate(records.items())])
    chunks = DirectoryChunkStorage("/data/tier2", runtime)
    return log, ChunkedStorage(chunks, table, epoch=log.epoch, runtime=runtime, settings=STORAGE_SETTINGS)


async def stored_in(storage: ChunkedStorage) -> Stored:
    found: Stored = {}
    for segment in SEGMENTS:
        info = await storage.info(segment)
        if info is not None:
            data = await storage.read(segment, info.start_offset, info.length - info.start_offset)
            found[segment] = (info.start_offset, data, info.is_sealed)
    return found


class StorageScenario:
    """Random changes of three segments, one after another, over two incarnations."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    async def __call__(self, disk: RecordingDisk) -> None:
        rng = random.Random(self._seed)
        model: Stored = {}
        number = 0
        for incarnation in range(2):
            _, storage = await open_storage(disk, self._seed * 10 + incarnation)
            for _ in range(10):
                number += 1
                change, after = self._draw(rng, model, storage)
                disk.mark(Changing(number, after))
                await change
                disk.mark(Changed(number))
                model = after
            disk.inner.process_kill()

    def _draw(self, rng: random.Random, model: Stored, storage: ChunkedStorage) -> tuple[Awaitable[object], Stored]:
        segment = rng.choice(SEGMENTS)
        start, data, is_sealed = model.get(segment, (0, b"", False))
        end = start + len(data)
        others = [name for name, (_, _, sealed) in model.items() if not sealed and name != segment]
        match rng.choice(["write", "write", "write", "truncate", "seal", "concat", "delete"]):
            case "truncate" if data:
                offset = rng.randint(start, end)
                cut = model | {segment: (offset, data[offset - start :], is_sealed)}
                return storage.truncate(segment, offset), cut
            case "seal" if segment in model:
                return storage.seal(segment), model | {segment: (start, data, True)}
            case "concat" if is_sealed and data and not start and others:
                target = rng.choice(others)
                at, before, _ = model[target]
                merged = {name: state for name, state in model.items() if name != segment}
                merged[target] = (at, before + data, False)
                return storage.concat(target, at + len(before), segment), merged
            case "delete" if segment in model:
                return storage.delete(segment), {name: state for name, state in model.items() if name != segment}
        if is_sealed:
            return storage.delete(segment), {name: state for name, state in model.items() if name != segment}
        piece = rng.randbytes(rng.choice([10, 300, 1000, 2500]))
        return storage.write(segment, end, [piece]), model | {segment: (start, data + piece, False)}


async def recover_storage(disk: RecordingDisk) -> Stored:
    """Read everything; then continue writing, as an owner would, and read that back."""
    _, storage = await open_storage(disk, 77)
    found = await stored_in(storage)
    for segment, (start, data, is_sealed) in found.items():
        if not is_sealed:
            await storage.open(segment)
            await storage.write(segment, start + len(data), [b"afterwards"])
            assert await storage.read(segment, start, 1 << 20) == data + b"afterwards"
    return found


def check_stored(promises: Sequence[object], found: Stored) -> Iterable[str]:
    changes = {p.number: p.after for p in promises if isinstance(p, Changing)}
    done = max((p.number for p in promises if isinstance(p, Changed)), default=0)
    allowed = [after for number, after in [(0, {}), *changes.items()] if number >= done]
    if found not in allowed:
        lengths = {name: (start, len(data), sealed) for name, (start, data, sealed) in found.items()}
        yield f"found {lengths} after change {done}, which is no state from there on"


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (2, 3))])
async def test_chunks_and_their_records_survive_every_explored_crash_state(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Directory chunk storage and chunked storage, records in the log on the same disk."""
    limits = CrashLimits(6, 4, kill_rate=0.3, recovery_crash_rate=0, killed_recovery_crash_rate=0)
    order = (NameOrder.PREFIX, NameOrder.SUBSET)[seed % 2]
    found = await explore(
        StorageScenario(seed),
        recover_storage,
        check_stored,
        disk=new_disk(seed, order),
        limits=limits,
        rng=random.Random(seed),
    )
    tell(capsys, f"chunks, seed {seed}: {found.state_count} crash states of {found.step_count} steps")
    assert found.violations == []
    assert found.state_count > 300


async def test_chunk_acknowledged_without_its_name_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the reference implementation gets wrong: the directory entry of a new chunk is not synced."""

    def sync_nothing(self: ChunkFiles, folder: str) -> None:
        """The step that is left out."""

    monkeypatch.setattr(ChunkFiles, "sync_folder", sync_nothing)
    limits = CrashLimits(4, 4, kill_rate=0, recovery_crash_rate=0)
    found = await explore(
        StorageScenario(1),
        recover_storage,
        check_stored,
        # With a journal the log's own syncs would make the name durable by luck.
        disk=new_disk(1, NameOrder.SUBSET),
        limits=limits,
        rng=random.Random(1),
    )
    assert any("MissingChunkError" in violation for violation in found.violations)


# A whole container: operations in the log, checkpoints, flushes, log truncation, tables, chunks.

STREAM, TABLE = "s/t/0.#epoch.0", "s/_tables/t"
CONTAINER_SETTINGS = ContainerSettings(
    checkpoint_log_bytes=12_000,
    checkpoint_log_bytes_idle=1_000,
    writer_interval_s=3600.0,
    flush_age_s=1e9,
    stop_timeout_s=2.0,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """So many bytes were given to the stream, so many puts to the table."""

    length: int
    put_count: int


@dataclass(frozen=True, slots=True)
class Answered:
    """So many of them were acknowledged, and the stream was truncated to `start`."""

    length: int
    put_count: int
    start: int


def stream_bytes(start: int, end: int) -> bytes:
    """Return the bytes of the stream: each group of four is its number, so that no two places are equal."""
    groups = range(start // 4, end // 4 + 1)
    return b"".join(group.to_bytes(4, "big") for group in groups)[start % 4 :][: end - start]


async def container_on(disk: Disk, seed: int) -> SegmentContainer:
    runtime = runtime_on(disk, seed)
    opening = ContainerOpening(
        0,
        log=LocalLogFactory("/data/tier1", runtime, LOG_SETTINGS).create(0),
        chunks=DirectoryChunkStorage("/data/tier2", runtime),
        cache=Cache(CacheSettings(bytes_max=1 << 20)),
        runtime=runtime,
        settings=CONTAINER_SETTINGS,
        on_failure=lambda container, error: None,
    )
    return await opening.open()


async def container_scenario(disk: RecordingDisk) -> None:
    rng = random.Random(5)
    length = put_count = start = 0
    for incarnation in range(3):
        container = await container_on(disk, incarnation)
        if not incarnation:
            await container.create(STREAM)
            await container.create(TABLE, flags=SegmentFlags.TABLE)
        for _ in range(8):
            count = rng.choice([10, 500, 3000, 6000])
            disk.mark(Asked(length + count, put_count + 1))
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            container.acceptor.append(
                container.segment(STREAM), AppendRequest(stream_bytes(length, length + count)), completer(future)
            )
            value = b"%d" % put_count
            await container.tables.put(container.segment(TABLE), [TableUpdate(b"k%d" % (put_count % 3), value)], -1)
            await future
            length, put_count = length + count, put_count + 1
            disk.mark(Answered(length, put_count, start))
            if rng.random() < 0.4:
                await container.flush()
                await asyncio.sleep(0)
        start = length - 1500
        await container.truncate(STREAM, start)
        disk.mark(Answered(length, put_count, start))
        await container.flush()
        if incarnation == 1:
            await container.stop()
        else:
            await abandon(container)
            disk.inner.process_kill()


async def abandon(container: SegmentContainer) -> None:
    """End a container's tasks where they are, as a kill does."""
    tasks = [*container.life.jobs, *container.reader._tasks, *container.writer.tasks]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """What a started container serves: the stream's start, its bytes, the table, and what the assertions say."""

    start: int
    data: bytes
    table: dict[bytes, bytes]
    violations: list[str]


async def recover_container(disk: RecordingDisk) -> FoundContainer:
    container = await container_on(disk, 50)
    violations = [*check_container(container), *await check_tables(container), *await check_storage(container)]
    start, data = 0, b""
    if STREAM in container.state.metadata.by_name:
        segment = container.segment(STREAM)
        start = segment.start_offset
        data = await container.reader.read_exactly(segment, start, segment.length - start)
    table: dict[bytes, bytes] = {}
    if TABLE in container.state.metadata.by_name:
        page = await container.tables.entries(container.segment(TABLE), limit=10, token=b"")
        table = {entry.key: entry.value for entry in page.entries}
    await container.stop()
    return FoundContainer(start, data, table, violations)


def check_found(promises: Sequence[object], found: FoundContainer) -> Iterable[str]:
    yield from found.violations
    asked = max((p for p in promises if isinstance(p, Asked)), key=lambda p: p.length, default=Asked(0, 0))
    answered = [p for p in promises if isinstance(p, Answered)]
    length = max((p.length for p in answered), default=0)
    put_count = max((p.put_count for p in answered), default=0)
    start = max((p.start for p in answered), default=0)
    end = found.start + len(found.data)
    if found.data != stream_bytes(found.start, end):
        yield f"bytes {found.start} to {end} are not those appended"
    if not length <= end <= max(asked.length, length):
        yield f"{end} bytes are there, {length} were acknowledged, {asked.length} asked for"
    if found.start < start:
        yield f"it starts at {found.start}, it was truncated to {start}"
    allowed = [
        {b"k%d" % (number % 3): b"%d" % number for number in range(count)}
        for count in range(put_count, max(asked.put_count, put_count) + 1)
    ]
    if found.table not in allowed:
        yield f"the table is {found.table} after {put_count} acknowledged puts"


@pytest.mark.parametrize("order", list(NameOrder))
async def test_container_survives_every_explored_crash_state(
    order: NameOrder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing acknowledged is lost, nothing is half there, and the live assertions hold right after recovery."""
    limits = CrashLimits(4, 2, kill_rate=0.2, recovery_crash_rate=0, killed_recovery_crash_rate=0)
    found = await explore(
        container_scenario, recover_container, check_found, disk=new_disk(1, order), limits=limits, rng=random.Random(1)
    )
    tell(capsys, f"container, {order.value}: {found.state_count} crash states of {found.step_count} steps")
    assert found.violations == []
    assert found.state_count > 300


# The identity of a data directory.


@pytest.mark.parametrize("order", list(NameOrder))
async def test_data_directory_identity_survives_every_crash_state(order: NameOrder) -> None:
    """The first start of a server, exhaustively: no identity yet, or permanently the one that was returned."""

    async def scenario(disk: RecordingDisk) -> None:
        disk.mark(DataDirectory("/srv/data", runtime_on(disk, 1)).open(4))

    async def recover(disk: RecordingDisk) -> Identity:
        directory = DataDirectory("/srv/data", runtime_on(disk, 2))
        identity = directory.open(4)
        directory.close()
        return identity

    def check(promises: Sequence[object], found: Identity) -> Iterable[str]:
        for promise in promises:
            promised = promise.recovered if isinstance(promise, Seen) else promise
            if promised != found:
                yield f"{promised} became {found}"

    limits = CrashLimits(5000, 100, recovery_crash_rate=1, killed_recovery_crash_rate=1, recovery_crash_max=50)
    found = await explore(scenario, recover, check, disk=new_disk(1, order), limits=limits, rng=random.Random(1))
    assert found.violations == []
    assert found.state_count > 20


# Rot.


async def test_every_flipped_byte_of_a_small_log_is_detected_or_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """Every byte of every file of a log, one bit each: `CorruptionError`, or exactly the frames acknowledged."""
    disk = new_disk(1)
    for incarnation in range(2):
        log = log_on(disk, incarnation)
        await log.open()
        frames = [frame_of(incarnation * 10 + number, 40) for number in range(3)]
        await asyncio.gather(*(log.append([frame], len(frame)) for frame in frames))
        await log.close()
    expected = read_log(disk)
    assert [number_of(frame) for frame in expected] == [0, 1, 2, 10, 11, 12]
    rng = random.Random(3)
    detected = harmless = 0
    for path, content in disk.files().items():
        for offset in range(len(content)):
            bit = rng.randrange(8)
            disk.flip(path, offset, bit)
            try:
                found = read_log(disk)
            except CorruptionError:
                detected += 1
            else:
                assert found == expected, f"{path} at {offset}, bit {bit}"
                harmless += 1
            disk.flip(path, offset, bit)
    tell(capsys, f"log bytes flipped: {detected} detected, {harmless} harmless, 0 served")
    assert detected > 400


def read_log(disk: SimulatedDisk) -> list[bytes]:
    """Recover a log without changing anything: what `LocalLog.open` and `frames` read."""
    path = "/data/tier1/0"
    directory = LogDirectory(disk, path, 0)
    record = read_epoch(disk, path)
    if record is None:
        directory._check_no_log_files()
    else:
        directory._check_container(record)
        if not record.is_enabled:
            raise AssertionError("a flip disabled the log")
    truncation = read_truncation(disk, path)
    if truncation is not None:
        directory._check_container(truncation)
    address = truncation.address if truncation else 0
    recovered = recover(disk, path, 0, address, must_exist=truncation is not None)
    found: list[bytes] = []
    sequence: int | None = None
    for file in recovered.files:
        if sequence not in (None, file.first_sequence):
            raise CorruptionError(file.name, 0, "sequence")
        offset, sequence = 4096, file.first_sequence
        while offset < file.end:
            runs, offset, sequence = read_frames(disk, path, file, offset, sequence, 1 << 20)
            for run in runs:
                found += [data for at, data in zip(run.addresses, run.data, strict=True) if at > address]
    return found


async def test_every_flipped_byte_of_chunks_and_their_records_is_detected_or_harmless(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every bit of every byte of a segment's chunks and records: `CorruptionError`, or the right bytes."""
    disk = new_disk(1)
    runtime = runtime_on(disk, 1)
    data = random.Random(1).randbytes(1300)
    table = MemoryMetadataTable()
    chunks = DirectoryChunkStorage("/tier2", runtime)

    def storage_with(entries: Sequence[TableEntry]) -> ChunkedStorage:
        return ChunkedStorage(chunks, MemoryMetadataTable(entries), epoch=1, runtime=runtime, settings=STORAGE_SETTINGS)

    writer = ChunkedStorage(chunks, table, epoch=1, runtime=runtime, settings=STORAGE_SETTINGS)
    await writer.write("s/a", 0, [data])
    entries = table.entries()
    detected = harmless = 0

    async def read_all(entries: Sequence[TableEntry], what: str) -> None:
        nonlocal detected, harmless
        try:
            found = await storage_with(entries).read("s/a", 0, 5000)
        except CorruptionError:
            detected += 1
        else:
            assert found == data, what
            harmless += 1

    for path, content in disk.files().items():
        for offset in range(len(content)):
            bit = offset % 8
            disk.flip(path, offset, bit)
            await read_all(entries, f"{path} at {offset}")
            disk.flip(path, offset, bit)
    for at, entry in enumerate(entries):
        for offset in range(len(entry.value)):
            value = bytearray(entry.value)
            value[offset] ^= 1 << offset % 8
            changed = TableEntry(entry.key, bytes(value), entry.version)
            await read_all([*entries[:at], changed, *entries[at + 1 :]], f"record {entry.key!r} at {offset}")
    tell(capsys, f"chunk and record bytes flipped: {detected} detected, {harmless} harmless, 0 served")
    assert detected == len(data) + sum(len(entry.value) for entry in entries)
