"""What is made of a damaged container log: never an error, all that is intact before the damage, and a full report."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from penstock.model.segments import Buffer
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.frames import FrameBuilder
from penstock.segmentstore.container.log.operations import (
    Append,
    CarriedBytes,
    Checkpoint,
    Create,
    UpdatePinned,
    decode_operation,
)
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container.log.recovery import recover
from penstock.segmentstore.container.log.salvage import LogSalvage
from penstock.segmentstore.container.log.salvage_report import SalvageReport
from penstock.segmentstore.container.opening import ContainerOpening
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.settings import CacheSettings
from penstock.segmentstore.tier1.damaged_log import DamagedLog, LostRange
from penstock.segmentstore.tier1.durable_log import LogAddress, LogFrameRun
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import DiskFaults
from support.containers import QUIET
from support.inline_work import InlineWork

BLOCK = 4096
MARK = b"\0mark"
NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(4)]
SETTINGS = LocalLogSettings(first_file_length_bytes=32 * 1024, file_length_bytes=64 * 1024, trailer_delay_s=0.0)
CACHE = CacheSettings(bytes_max=4 << 20, block_length=4096, small_append_length=1024)

Files = dict[str, bytes]


def new_disk(files: Files, seed: int = 0) -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(seed), DiskFaults())
    for path, data in files.items():
        disk.make_directory(path.rpartition("/")[0])
        file = disk.open(path, create=True)
        file.write(0, [data])
        file.sync()
        file.close()
    return disk


def runtime_on(disk: SimulatedDisk) -> Runtime:
    return Runtime(disk=disk, work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 1_000)


@dataclass
class Written:
    """A log of container 0 in /tier1/0, cleanly closed, and what was written: the bytes of each segment."""

    files: Files
    contents: dict[str, bytes]


async def append(container: SegmentContainer, name: str, data: bytes) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    container.acceptor.append(container.segment(name), AppendRequest(data), completer(future))
    await future


async def write_log(seed: int, *, checkpoints: Sequence[int] = ()) -> Written:
    """Write a log of some files; after the appends in `checkpoints` with a checkpoint. Nothing is flushed."""
    rng = random.Random(seed)
    disk = new_disk({})
    runtime = runtime_on(disk)
    logs = LocalLogFactory("/tier1", runtime, SETTINGS)
    opening = ContainerOpening(
        0,
        log=logs.create(0),
        chunks=MemoryChunkStorage(),
        cache=Cache(CACHE),
        runtime=runtime,
        settings=QUIET,
        on_failure=lambda _, error: pytest.fail(str(error)),
    )
    container = await opening.open()
    contents = {}
    for name in NAMES[:3]:
        await container.create(name)
        contents[name] = b""
    for number in range(60):
        if number in checkpoints:
            container.checkpoints.write()
            await container.pipeline.barrier()
        if number == 30:
            await container.create(NAMES[3])
            contents[NAMES[3]] = b""
        name = rng.choice(sorted(contents))
        data = b"<%04d>" % number * rng.randrange(1, 600)
        await append(container, name, data)
        contents[name] += data
    # Flushes nothing, and closes the log in order.
    await container.stop()
    return Written({path: data for path, data in disk.files().items() if path.startswith("/tier1/0/log")}, contents)


def log_paths(files: Files) -> list[str]:
    return sorted(path for path in files if "/log-" in path)


def salvaged(files: Files) -> tuple[SalvageReport, list[bytes]]:
    """Return the report and the records of the new log."""
    damaged = DamagedLog(new_disk(files), "/tier1/0", 0, "")
    salvage = LogSalvage(0, mark_key=MARK)
    records: list[Buffer] = []
    for found in damaged.read():
        if isinstance(found, LostRange):
            salvage.lose(found)
        else:
            records += salvage.take(found)
    records += salvage.finish()
    return salvage.report, [bytes(record) for record in records]


class Frames:
    """A log to be replayed, of records."""

    is_truncated = False

    def __init__(self, records: Sequence[bytes]) -> None:
        builder = FrameBuilder(1 << 20)
        self._frames: list[bytes] = []
        for record in records:
            builder.add(record, None, len(record))
            self._frames.append(b"".join(builder.take()[0]))

    async def frame_runs(self) -> AsyncIterator[LogFrameRun]:
        yield LogFrameRun([LogAddress(1 + number) for number in range(len(self._frames))], self._frames)


async def replayed(records: Sequence[bytes]) -> dict[str, int]:
    """Replay a log as a start does; return the lengths of users' segments."""
    state = ContainerState(0, Cache(CACHE), QUIET)
    await recover(Frames(records), state)
    lengths = {segment.name: segment.length for segment in state.metadata.by_name.values() if not segment.is_system}
    for segment in state.metadata.by_id.values():
        segment.index.clear()
    state.backlog.close()
    return lengths


def bytes_in(records: Sequence[bytes]) -> dict[str, bytes]:
    """Return the bytes of each segment that appends and bytes stated again have."""
    names: dict[int, str] = {}
    found: dict[str, bytearray] = {}
    for record in records:
        _, operation = decode_operation(record)
        match operation:
            case Create():
                names[operation.segment_id] = operation.name
            case Append() | CarriedBytes():
                name = names.get(operation.segment_id)
                content = found.setdefault(name or str(operation.segment_id), bytearray())
                content[operation.offset :] = bytes(operation.data)
    return {name: bytes(data) for name, data in found.items()}


async def check(written: Written, files: Files) -> SalvageReport:
    """Salvage; check the new log against what was written and the report against what is missing."""
    report, records = salvaged(files)
    if not report.base:
        assert not records
        assert report.lost
        return report
    lengths = await replayed(records)
    losses = {loss.name: loss for loss in report.segments.values()}
    for name, content in written.contents.items():
        length = lengths.get(name, 0)
        assert content.startswith(bytes_in(records).get(name, b"")[:length])
        if name not in lengths or length < len(content):
            if name in losses:
                loss = losses[name]
                assert loss.start == length
                assert loss.end <= len(content)
                assert loss.is_whole == (name not in lengths)
                assert not loss.is_exact or loss.end == len(content)
            else:
                # Nothing after the damage mentions it: the report then says so as well.
                assert not report.is_truth_known
                assert report.lost_operation_count != 0
        else:
            assert name not in losses
    if report.loses_nothing:
        assert lengths == {name: len(content) for name, content in written.contents.items()}
    else:
        assert decode_operation(records[-1])[1] == UpdatePinned({MARK: None})
    return report


@pytest.fixture(scope="module")
def logs() -> list[Written]:
    async def write() -> list[Written]:
        return [await write_log(1), await write_log(2, checkpoints=(10, 25, 45))]

    return asyncio.run(write())


async def test_an_intact_log_is_copied_whole(logs: list[Written]) -> None:
    for written in logs:
        assert len(log_paths(written.files)) >= 3
        report = await check(written, written.files)
        assert report.is_intact
        assert report.loses_nothing


@pytest.mark.parametrize("seed", range(4))
async def test_any_flipped_bit_is_survived_and_reported(logs: list[Written], seed: int) -> None:
    rng = random.Random(seed)
    for number in range(40):
        written = logs[number % 2]
        path = rng.choice(log_paths(written.files))
        data = bytearray(written.files[path])
        offset = rng.randrange(len(data.rstrip(b"\0")))
        data[offset] ^= 1 << rng.randrange(8)
        report = await check(written, written.files | {path: bytes(data)})
        if not report.loses_nothing:
            # Nothing is lost for any other reason than the damage.
            assert any(lost.file == path and lost.start <= offset < lost.end for lost in report.lost)


@pytest.mark.parametrize("seed", range(4))
async def test_any_range_of_zeros_or_noise_is_survived_and_reported(logs: list[Written], seed: int) -> None:
    rng = random.Random(100 + seed)
    for number in range(25):
        written = logs[number % 2]
        files = dict(written.files)
        for _ in range(rng.randrange(1, 4)):
            path = rng.choice(log_paths(files))
            data = bytearray(files[path])
            start = rng.randrange(len(data))
            end = min(len(data), start + rng.choice([1, 100, BLOCK, 5 * BLOCK, len(data)]))
            data[start:end] = rng.randbytes(end - start) if rng.random() < 0.3 else bytes(end - start)
            files[path] = bytes(data)
        await check(written, files)


async def test_any_missing_file_is_survived_and_reported(logs: list[Written]) -> None:
    for written in logs:
        lossy = 0
        for path in written.files:
            files = {other: data for other, data in written.files.items() if other != path}
            report = await check(written, files)
            if not report.loses_nothing:
                assert any(lost.problem == "the file is missing" for lost in report.lost), path
                lossy += 1
        # The records beside the log are not needed, nor is the file that was prepared and never used.
        assert 2 <= lossy < len(written.files)


async def test_only_the_segment_whose_events_are_lost_ends_at_the_damage(logs: list[Written]) -> None:
    """One damaged frame between intact ones: only its segment ends there; appends to the others after it are kept."""
    written = logs[0]
    path = next(path for path in log_paths(written.files) if b"<0030>" * 2 in written.files[path])
    place = written.files[path].index(b"<0030>" * 2)
    data = bytearray(written.files[path])
    data[place] ^= 1
    report = await check(written, written.files | {path: bytes(data)})
    (loss,) = report.segments.values()
    content = written.contents[loss.name]
    assert content[loss.start :].startswith(b"<0030>")
    assert loss.end == len(content)
    assert report.lost_operation_count == 1
    assert report.dropped == {}
    _, records = salvaged(written.files | {path: bytes(data)})
    lengths = await replayed(records)
    assert lengths == {name: len(data) for name, data in written.contents.items()} | {loss.name: loss.start}


async def test_a_damaged_first_checkpoint_is_replaced_by_a_later_one(logs: list[Written]) -> None:
    """All bytes before the later checkpoint are still in the log, and are stated again after it."""
    written = logs[1]
    path = log_paths(written.files)[0]
    data = bytearray(written.files[path])
    first_frame = next(at for at in range(2 * BLOCK, len(data), BLOCK) if data[at : at + 4] == b"PSfr")
    data[first_frame + 60] ^= 1
    files = written.files | {path: bytes(data)}
    report = await check(written, files)
    assert report.base == "log"
    assert report.loses_nothing
    _, records = salvaged(files)
    kinds = [type(decode_operation(record)[1]) for record in records]
    assert kinds[0] is Checkpoint
    assert CarriedBytes in kinds


async def test_without_any_whole_checkpoint_nothing_can_be_salvaged(logs: list[Written]) -> None:
    written = logs[0]
    path = log_paths(written.files)[0]
    report = await check(written, written.files | {path: bytes(len(written.files[path]))})
    assert report.base == ""
    assert report.lost_operation_count is None
