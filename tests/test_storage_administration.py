"""`check_storage` on the data directory of a segment store that was stopped, or killed, with real files."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.administration.storage_administration import CheckProgress, check_storage
from penstock.model.checksum import crc32c
from penstock.model.errors import DataDirectoryInUseError, StorageIdentityError, StorageUnavailableError
from penstock.model.segments import TableUpdate
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_records import EPOCH_VERSION
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.segmentstore.tier2.storage_check import ProblemKind, StorageReport
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from penstock.server.data_directory import DataDirectory
from penstock.server.errors import DataDirectoryError
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import StandaloneSettings
from support.containers import until

SEGMENT_COUNT = 6
SEGMENT_BYTES = 600_000


def settings_of(root: Path) -> StandaloneSettings:
    container = ContainerSettings(
        flush_age_s=0.01,
        writer_interval_s=0.01,
        rollover_bytes_min=1,
        # So that the table of records has an index, and something after it.
        table_index_min_bytes=1024,
        table_index_percent=0,
    )
    return StandaloneSettings(
        data_dir=str(root),
        segment_store=SegmentStoreSettings(container_count=2, container=container),
        durable_log=LocalLogSettings(first_file_length_bytes=64 * 1024, file_length_bytes=4 * 1024 * 1024),
    )


class Shown:
    """What a check reports itself."""

    def __init__(self) -> None:
        self.total_bytes = -1
        self.chunk_count = self.length_bytes = 0

    @contextmanager
    def __call__(self, total_bytes: int) -> Iterator[CheckProgress]:
        self.total_bytes = total_bytes
        yield self

    def note(self, chunk_count: int, length_bytes: int) -> None:
        self.chunk_count, self.length_bytes = chunk_count, length_bytes


async def run_store(settings: StandaloneSettings, runtime: Runtime, *, is_log_cut: bool = False) -> None:
    """Let a store run on the directory: some segments of several chunks, a table, all of it flushed.

    With `is_log_cut` until the logs say nothing any more of what was flushed.
    """
    directory = DataDirectory(settings.data_dir, runtime)
    identity = directory.open(settings.segment_store.container_count)
    store = SegmentStore(
        logs=LocalLogFactory(directory.tier1, runtime, settings.durable_log),
        chunks=open_long_term_storage(settings, directory, runtime),
        cluster_id=identity.cluster_id,
        runtime=runtime,
        settings=settings.segment_store,
    )
    await store.start()
    try:
        data = random.Random(1).randbytes(SEGMENT_BYTES)
        for number in range(SEGMENT_COUNT):
            name = f"s/{number}/0.#epoch.0"
            await store.create_segment(name, rollover_bytes=100_000)
            await store.append(name, data)
        await store.create_table("s/table")
        await store.table_put("s/table", [TableUpdate(b"key", b"value")])
        await asyncio.gather(*(container.flush() for container in store.containers))
        if is_log_cut:
            flushed = {container: container.pipeline.logged_bytes for container in store.containers}
            await until(lambda: all(is_cut_behind(container, at) for container, at in flushed.items()))
    finally:
        await store.stop()
        directory.close()


def is_cut_behind(container: SegmentContainer, logged_bytes: int) -> bool:
    """Say whether a log says nothing more of its first bytes; have a checkpoint written if it does."""
    if container.pipeline.logged_bytes - container.checkpoints.log_bytes >= logged_bytes:
        return True
    container.checkpoints.write_now()
    return False


@pytest.fixture
async def stopped(tmp_path: Path) -> StandaloneSettings:
    settings = settings_of(tmp_path / "data")
    runtime = real_runtime(2)
    await run_store(settings, runtime)
    await runtime.work.close()
    return settings


async def check(settings: StandaloneSettings, *, is_read: bool = True) -> tuple[StorageReport, Shown]:
    runtime = real_runtime(2)
    shown = Shown()
    try:
        return await check_storage(settings, runtime, shown, is_read=is_read), shown
    finally:
        await runtime.work.close()


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def chunks_of(settings: StandaloneSettings, pattern: str) -> list[Path]:
    found = sorted(Path(settings.data_dir, "tier2").glob(pattern))
    assert found, pattern
    return found


async def test_the_check_of_an_intact_stopped_store_changes_nothing(stopped: StandaloneSettings) -> None:
    """Every chunk is compared, those of the containers' own segments too; no byte of the directory is another one."""
    before = contents(Path(stopped.data_dir))
    report, shown = await check(stopped)
    assert contents(Path(stopped.data_dir)) == before
    assert not report.problems
    assert report.container_count == 2
    assert report.checked_bytes == report.chunk_bytes > SEGMENT_COUNT * SEGMENT_BYTES
    assert report.checked_chunk_count == report.chunk_count > SEGMENT_COUNT * 6
    assert (report.orphan_count, report.stranger_count, report.unused_record_count) == (0, 0, 0)
    assert (shown.total_bytes, shown.chunk_count) == (report.chunk_bytes, report.chunk_count)
    assert shown.length_bytes == report.checked_bytes
    # It can be repeated, and the store continues.
    assert (await check(stopped))[0] == report


async def test_each_kind_of_damage_of_chunks_is_reported(stopped: StandaloneSettings) -> None:
    users = chunks_of(stopped, "s/[0-5]/*")
    lost, cut, flipped = users[0], users[10], users[20]
    lost.unlink()
    with cut.open("r+b") as file:
        file.truncate(1000)
    content = bytearray(flipped.read_bytes())
    content[-1] ^= 1
    flipped.write_bytes(content)
    orphan = users[1].with_name(users[1].name[:-1] + ("0" if users[1].name[-1] != "0" else "1"))
    orphan.write_bytes(b"orphan")
    report, _ = await check(stopped)
    told = {(problem.kind, problem.chunk.rpartition("/")[2]) for problem in report.problems}
    assert told == {
        (ProblemKind.CHUNK_MISSING, lost.name),
        (ProblemKind.CHUNK_SHORT, cut.name),
        (ProblemKind.BLOCK_DAMAGED, flipped.name),
    }
    assert [name.rpartition("/")[2] for name in report.orphans] == [orphan.name]


async def test_damage_of_the_containers_own_chunks_is_reported(stopped: StandaloneSettings) -> None:
    """An index that is lost can be done without: the table of records is read whole, and all else is checked."""
    (index,) = chunks_of(stopped, "_system/containers/storage_metadata_1$table-*")
    index.unlink()
    report, _ = await check(stopped)
    assert {problem.kind for problem in report.problems} == {ProblemKind.INDEX_DAMAGED, ProblemKind.CHUNK_MISSING}
    assert report.checked_chunk_count == report.chunk_count > SEGMENT_COUNT * 6
    assert report.orphan_count == 0


async def test_a_table_of_records_that_is_lost_leaves_its_container_unchecked(tmp_path: Path) -> None:
    """Once the log does not say it again: of the other container all is checked."""
    settings = settings_of(tmp_path / "data")
    cut = replace(settings.segment_store.container, checkpoint_log_bytes_idle=0)
    settings = replace(settings, segment_store=replace(settings.segment_store, container=cut))
    runtime = real_runtime(2)
    await run_store(settings, runtime, is_log_cut=True)
    await runtime.work.close()
    assert not (await check(settings))[0].problems
    for path in chunks_of(settings, "_system/containers/storage_metadata_1*"):
        path.unlink()
    report, _ = await check(settings)
    assert [(problem.kind, problem.container) for problem in report.problems] == [(ProblemKind.LOG_DAMAGED, 1)]
    assert report.container_count == 1
    assert report.checked_chunk_count == report.chunk_count > 0
    assert report.orphan_count == 0, "what nothing is known of is no orphan"
    assert report.stranger_count > 0


async def test_a_log_of_a_later_version_is_no_damage(stopped: StandaloneSettings) -> None:
    (epoch,) = Path(stopped.data_dir, "tier1", "0").glob("log.epoch")
    content = epoch.read_bytes()
    body = content[:8] + (EPOCH_VERSION + 1).to_bytes(2) + content[10:96]
    epoch.write_bytes(body + crc32c(body, 0).to_bytes(4) + content[100:])
    report, _ = await check(stopped)
    assert [(problem.kind, problem.container) for problem in report.problems] == [(ProblemKind.LATER_VERSION, 0)]
    assert f"format version {EPOCH_VERSION + 1}" in report.problems[0].message
    assert report.orphan_count == 0


async def test_damaged_and_missing_logs_are_reported(stopped: StandaloneSettings) -> None:
    (epoch,) = Path(stopped.data_dir, "tier1", "0").glob("log.epoch")
    content = bytearray(epoch.read_bytes())
    content[20] ^= 1
    epoch.write_bytes(content)
    for path in Path(stopped.data_dir, "tier1", "1").iterdir():
        path.unlink()
    report, _ = await check(stopped)
    found = sorted((problem.container, problem.message) for problem in report.problems)
    assert {problem.kind for problem in report.problems} == {ProblemKind.LOG_DAMAGED}
    assert "checksum does not match" in found[0][1]
    assert "there is no log of container 1" in found[1][1]
    assert report.orphan_count == 0


async def test_a_store_whose_log_has_not_all_been_flushed_is_checked_with_it(tmp_path: Path) -> None:
    """As after kill -9: the table of records is in the log alone, and its chunks are found nevertheless."""
    settings = settings_of(tmp_path / "data")
    runtime = real_runtime(2)
    await run_store(settings, runtime)
    before = contents(Path(settings.data_dir, "tier2", "_system"))
    quiet = {"flush_age_s": 1e9, "flush_bytes": 1 << 30, "table_index_min_bytes": 1 << 30}
    lazy = replace(settings.segment_store.container, **quiet)  # type: ignore[arg-type]  # Of several types.
    again = replace(settings, segment_store=replace(settings.segment_store, container=lazy))
    directory = DataDirectory(settings.data_dir, runtime)
    identity = directory.open(2)
    store = SegmentStore(
        logs=LocalLogFactory(directory.tier1, runtime, settings.durable_log),
        chunks=open_long_term_storage(again, directory, runtime),
        cluster_id=identity.cluster_id,
        runtime=runtime,
        settings=again.segment_store,
    )
    await store.start()
    try:
        for number in range(SEGMENT_COUNT):
            name = f"s/{number}/0.#epoch.0"
            await store.append(name, b"more")
            async with store.using(name) as (container, segment):
                await container.writer.flush(segment)
    finally:
        await store.stop()
        directory.close()
        await runtime.work.close()
    assert contents(Path(settings.data_dir, "tier2", "_system")) == before, "nothing of its own was flushed"
    report, _ = await check(settings)
    assert not report.problems
    assert report.chunk_bytes > SEGMENT_COUNT * (SEGMENT_BYTES + 4)
    assert (report.orphan_count, report.stranger_count) == (0, 0)


async def test_uncheckable_directories_are_refused_by_name(stopped: StandaloneSettings, tmp_path: Path) -> None:
    """A directory that is in use, none, storage in another place, and another cluster's."""
    runtime = real_runtime(1)
    directory = DataDirectory(stopped.data_dir, runtime)
    directory.open_existing()
    with pytest.raises(DataDirectoryInUseError, match="a server runs on"):
        await check(stopped)
    directory.close()
    with pytest.raises(DataDirectoryError, match="is not a data directory"):
        await check(replace(stopped, data_dir=str(tmp_path / "none")))
    with pytest.raises(StorageUnavailableError, match="give its place with --tier2") as refused:
        await check(replace(stopped, tier2=str(tmp_path / "elsewhere")))
    assert not isinstance(refused.value, StorageIdentityError)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "penstock-storage.toml").write_bytes(StorageIdentity("another one").encode())
    with pytest.raises(StorageIdentityError, match="it belongs to cluster another one"):
        await check(replace(stopped, tier2=str(tmp_path / "foreign")))
    assert not (tmp_path / "none").exists()
    await runtime.work.close()
    assert not (await check(stopped))[0].problems
