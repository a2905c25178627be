"""Containers over salvaged logs: they start, serve what was written and nothing else, and continue.

Unlike in `test_salvage`, long-term storage took part: it is ahead of what the damaged log still shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from penstock.administration.errors import LogNotSalvageableError
from penstock.administration.log_salvage import salvage_log
from penstock.model.segments import TableUpdate
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.frames import RecordReader
from penstock.segmentstore.container.log.operations import (
    Checkpoint,
    Create,
    Delete,
    Operation,
    UpdatePinned,
    decode_operation,
)
from penstock.segmentstore.container.log.salvage_report import SalvageReport
from penstock.segmentstore.container.metadata import decode_snapshot
from penstock.segmentstore.container.opening import ContainerOpening
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.segment import SegmentFlags
from penstock.segmentstore.container.storage.container_storage import storage_metadata_segment
from penstock.segmentstore.container_settings import ContainerSettings, GarbageSettings, OrphanSettings
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock.segmentstore.tier1.damaged_log import DamagedLog
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.settings import StandaloneSettings
from penstock_simulation.simulated.disk import SimulatedDisk
from penstock_simulation.simulated.disk_faults import DiskFaults
from support.containers import QUIET, FaultyChunks, append, read_all
from support.inline_work import InlineWork

PATH = "/data/tier1/0"
TABLE = "scope/table"
CLUSTER = "cluster"
CACHE = CacheSettings(bytes_max=16 << 20, block_length=4096, small_append_length=1024)
LOG = LocalLogSettings(first_file_length_bytes=32 * 1024, file_length_bytes=128 * 1024, trailer_delay_s=0.0)
SETTINGS = replace(
    QUIET,
    garbage=GarbageSettings(delay_s=3600.0),
    orphans=OrphanSettings(sweep_delay_s=0.0, sweep_pause_s=0.0),
    checkpoint_log_bytes=20_000,
    checkpoint_log_bytes_idle=5_000,
)


@dataclass
class Truth:
    """All that was ever acknowledged: contents of each life of a segment, and values of each key of the table."""

    lives: dict[str, list[bytes]] = field(default_factory=dict)
    values: dict[bytes, list[bytes]] = field(default_factory=dict)


def runtime_on(disk: SimulatedDisk, seed: int) -> Runtime:
    return Runtime(disk=disk, work=InlineWork(), rng=random.Random(seed), wall_clock_ms=lambda: 1_000)


async def started(
    disk: SimulatedDisk, chunks: FaultyChunks, seed: int, settings: ContainerSettings = SETTINGS
) -> SegmentContainer:
    runtime = runtime_on(disk, seed)
    opening = ContainerOpening(
        0,
        log=LocalLogFactory("/data/tier1", runtime, LOG, cluster_id=CLUSTER).create(0),
        chunks=chunks,
        cache=Cache(CACHE),
        runtime=runtime,
        settings=settings,
        on_failure=lambda _, error: pytest.fail(str(error)),
    )
    return await opening.open()


async def work(container: SegmentContainer, truth: Truth, rng: random.Random, count: int) -> None:
    """Do things at random, each durable before the next: appends, transactions, truncations, tables, flushes."""
    for _ in range(count):
        name = f"scope/stream/{rng.randrange(4)}.#epoch.0"
        data = b"<%08x>" % rng.getrandbits(32) * rng.randrange(1, 150)
        lives = truth.lives.setdefault(name, [])
        if name not in container.state.metadata.by_name:
            await container.create(name)
            lives.append(b"")
        match rng.randrange(12):
            case 0:
                source = f"scope/stream/0.#epoch.0#transaction.{rng.getrandbits(128):032x}"
                await container.create(source)
                await append(container, source, data)
                truth.lives[source] = [data]
                await container.seal(source)
                await container.merges.merge(name, source)
                lives[-1] += data
            case 1:
                segment = container.segment(name)
                await container.truncate(name, rng.randint(segment.start_offset, segment.length))
            case 2 if rng.random() < 0.3:
                await container.delete(name)
            case 3:
                await container.flush()
            case 4 | 5:
                key = b"key %d" % rng.randrange(5)
                await container.tables.put(container.segment(TABLE), [TableUpdate(key, data)], -1)
                truth.values.setdefault(key, []).append(data)
            case _:
                await append(container, name, data)
                lives[-1] += data
    await container.pipeline.barrier()


async def check(container: SegmentContainer, truth: Truth) -> None:
    """Everything that is served was written, in its place."""
    for segment in list(container.state.metadata.by_name.values()):
        if segment.is_system or segment.name == TABLE:
            continue
        found = await read_all(container, segment)
        start = segment.durable_start_offset
        assert any(life[start : start + len(found)] == found for life in truth.lives[segment.name]), segment.name
    keys = sorted(truth.values)
    if TABLE in container.state.metadata.by_name:
        entries = await container.tables.get(container.segment(TABLE), keys)
        for key, entry in zip(keys, entries, strict=True):
            assert entry is None or entry.value in truth.values[key]


async def salvage(disk: SimulatedDisk, chunks: FaultyChunks, seed: int) -> SalvageReport:
    """Salvage the log on `disk`; return the report."""
    settings = StandaloneSettings(
        data_dir="/data", durable_log=LOG, segment_store=SegmentStoreSettings(container=SETTINGS, cache=CACHE)
    )
    salvaged = await salvage_log(settings, runtime_on(disk, seed), 0, is_dry_run=False)
    assert salvaged.report is not None
    return salvaged.report


def damage(disk: SimulatedDisk, rng: random.Random) -> None:
    """Flip a bit in one to three frames of the log that follow its first checkpoint."""
    frames: Sequence[bytes] = [found for found in DamagedLog(disk, PATH, 0, "").read() if isinstance(found, bytes)]
    for frame in rng.sample(frames[1:], min(len(frames) - 1, rng.randrange(1, 4))):
        for path, data in disk.files().items():
            if path.startswith(f"{PATH}/log-") and (at := data.find(frame)) >= 0:
                disk.flip(path, at + rng.randrange(len(frame)), bit=rng.randrange(8))


def lengths_of(container: SegmentContainer) -> dict[str, int]:
    """Return the lengths of users' segments."""
    segments = container.state.metadata.by_name.values()
    return {segment.name: segment.length for segment in segments if not segment.is_system}


def check_report(report: SalvageReport, before: dict[str, int], after: dict[str, int]) -> None:
    """What is missing is in the report, and nothing else; or the report says that it does not know."""
    losses = {loss.name: loss for loss in report.segments.values()}
    for name, length in before.items():
        if after.get(name, 0) < length:
            assert name in losses or not report.is_truth_known, name
        if name in losses and name in after and not losses[name].is_whole:
            assert losses[name].start == after[name], losses[name]
            assert losses[name].end <= length, losses[name]
    if report.loses_nothing:
        assert after == before


def put_back(disk: SimulatedDisk, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        file = disk.open(path)
        file.write(0, [data])
        file.sync()
        file.close()


async def new_store(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[SimulatedDisk, FaultyChunks, Truth, SegmentContainer]:
    """Return a running container of a new store with a table."""
    disk = SimulatedDisk(random.Random(seed), DiskFaults())
    chunks = FaultyChunks()
    monkeypatch.setattr("penstock.administration.storage_administration.open_long_term_storage", lambda *_: chunks)
    directory = DataDirectory("/data", runtime_on(disk, seed))
    directory.begin()
    directory.finish(Identity(CLUSTER, 1))
    directory.close()
    await chunks.create_identity(StorageIdentity(CLUSTER).encode())
    container = await started(disk, chunks, seed)
    await container.create(TABLE, flags=SegmentFlags.TABLE)
    return disk, chunks, Truth(), container


@pytest.mark.parametrize("seed", range(8))
async def test_a_container_over_a_salvaged_log_serves_what_was_written_and_continues(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    disk, chunks, truth, container = await new_store(seed, monkeypatch)
    salvaged_count = 0
    refusals: list[str] = []
    for life in range(4):
        await work(container, truth, rng, rng.randrange(40, 160))
        lengths = lengths_of(container)
        await container.stop()
        before = set(await chunks.names(limit=1 << 20))
        if life:
            intact = {path: data for path, data in disk.files().items() if path.startswith(f"{PATH}/")}
            damage(disk, rng)
            try:
                report = await salvage(disk, chunks, seed)
                salvaged_count += 1
            except LogNotSalvageableError as error:
                # There are no images, and the container's records of its own storage were lost. Nothing was changed.
                refusals.append(str(error))
                assert {path for path in disk.files() if path.startswith(f"{PATH}/")} == set(intact)
                put_back(disk, intact)
                report = SalvageReport(0, base="log")
        container = await started(disk, chunks, 100 * seed + life)
        await check(container, truth)
        assert not any(segment.damage for segment in container.state.metadata.by_id.values())
        if life:
            check_report(report, lengths, lengths_of(container))
            # Nothing that the lost records led to is swept.
            await container.storage.orphans.sweep(container.epoch, container.storage.unrecorded)
            if not report.loses_nothing:
                assert before <= set(await chunks.names(limit=1 << 20))
        # The lost bytes' places are written again: only what is there now counts from now on.
        truth.lives = {
            segment.name: [bytes(segment.start_offset) + await read_all(container, segment)]
            for segment in list(container.state.metadata.by_name.values())
            if not segment.is_system and segment.name != TABLE
        }
    await container.stop()
    assert salvaged_count
    assert all("from a copy, or build a data directory with `penstock storage restore`" in each for each in refusals)


def operations_by_frame(disk: SimulatedDisk) -> list[tuple[bytes, list[Operation]]]:
    """Return the frames of the log with the operations that end in each."""
    reader = RecordReader()
    found: list[tuple[bytes, list[Operation]]] = []
    for frame in DamagedLog(disk, PATH, 0, "").read():
        assert isinstance(frame, bytes)
        operations, position = [], 1
        while position < len(frame):
            record, position = reader.feed_entry(memoryview(frame), position)
            if record is not None:
                operations.append(decode_operation(record)[1])
        found.append((frame, operations))
    return found


async def test_records_that_the_truncation_of_the_log_relied_on_are_found_in_the_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log begins with a checkpoint, and what it says of the table of records is older than the chunks are."""
    rng = random.Random(3)
    disk, chunks, truth, container = await new_store(3, monkeypatch)
    while True:
        await work(container, truth, rng, 60)
        await container.flush()
        frames = operations_by_frame(disk)
        first = next(each for _, operations in frames for each in operations if isinstance(each, Checkpoint))
        table = next(
            each for each in decode_snapshot(first.snapshot, 0).segments if each.name == storage_metadata_segment(0)
        )
        if table.storage_length < table.length:
            break
    await container.stop()
    before = lengths_of(container)
    for frame, operations in operations_by_frame(disk):
        if any(isinstance(each, UpdatePinned) for each in operations):
            for path, data in disk.files().items():
                if path.startswith(f"{PATH}/log-") and (at := data.find(frame)) >= 0:
                    disk.flip(path, at + len(frame) // 2, bit=3)
    report = await salvage(disk, chunks, 3)
    assert report.lost_count
    container = await started(disk, chunks, 300)
    await check(container, truth)
    assert not any(segment.damage for segment in container.state.metadata.by_id.values())
    check_report(report, before, lengths_of(container))
    await work(container, truth, rng, 20)
    await container.flush()
    await container.stop()


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_segment_that_was_created_again_after_a_lost_deletion_has_nothing_of_the_earlier_one(
    is_flushed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, chunks, _, container = await new_store(4, monkeypatch)
    name, other = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"
    for each in (name, other):
        await container.create(each)
        await append(container, each, b"earlier" * 100)
    await container.flush()
    await container.delete(name)
    if is_flushed:
        # Storage has nothing of the earlier segment any more.
        await container.flush()
    await container.create(name)
    await append(container, name, b"later")
    if is_flushed:
        await container.flush()
    await append(container, name, b" and more")
    await container.stop()
    for frame, operations in operations_by_frame(disk):
        if any(isinstance(each, Delete) for each in operations):
            for path, data in disk.files().items():
                if path.startswith(f"{PATH}/log-") and (at := data.find(frame)) >= 0:
                    disk.flip(path, at + len(frame) // 2, bit=3)
    report = await salvage(disk, chunks, 4)
    assert report.lost_count
    assert not report.segments
    container = await started(disk, chunks, 400)
    for _ in range(2):
        assert await read_all(container, container.segment(name)) == b"later and more"
        assert await read_all(container, container.segment(other)) == b"earlier" * 100
        await container.flush()
    assert not any(segment.damage for segment in container.state.metadata.by_id.values())
    await container.stop()


async def test_a_segment_whose_creation_under_an_earlier_name_is_lost_is_reported_and_the_name_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, chunks, _, container = await new_store(5, monkeypatch)
    name = "scope/stream/0.#epoch.0"
    await container.create(name)
    await append(container, name, b"earlier" * 100)
    await container.flush()
    await container.delete(name)
    await container.create(name)
    await append(container, name, b"later")
    container.checkpoints.write()
    await append(container, name, b" and more")
    await container.stop()
    frames = operations_by_frame(disk)
    last = max(
        number for number, (_, operations) in enumerate(frames) if any(isinstance(each, Create) for each in operations)
    )
    for path, data in disk.files().items():
        if path.startswith(f"{PATH}/log-") and (at := data.find(frames[last][0])) >= 0:
            disk.flip(path, at + len(frames[last][0]) // 2, bit=3)
    report = await salvage(disk, chunks, 5)
    assert [(loss.name, loss.is_whole) for loss in report.segments.values()] == [(name, True)]
    container = await started(disk, chunks, 500)
    assert name not in container.state.metadata.by_name
    await container.flush()
    await container.create(name)
    await append(container, name, b"new")
    await container.flush()
    assert await read_all(container, container.segment(name)) == b"new"
    assert not any(segment.damage for segment in container.state.metadata.by_id.values())
    await container.stop()
