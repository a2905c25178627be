"""`salvage_log` on the data directory of a small store in this process; with real servers: tests/e2e."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.administration.errors import LogNotSalvageableError
from penstock.administration.log_salvage import Salvaged, salvage_log
from penstock.model.errors import InvalidArgumentError, LogFencedError, LogMissingError, PenstockError
from penstock.model.routing import container_of
from penstock.model.segments import TableUpdate
from penstock.runtime.disk import Disk, DiskFile, LocalDisk
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.container_settings import ImageSettings, OrphanSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.server.settings import StandaloneSettings
from support.containers import until
from support.small_store import DATA, NAMES, fill, running, settings_of

#: Segments of container 0, which gets damaged, and one of container 1.
HERE = [name for name in NAMES if container_of(name, 2) == 0]
MARK = b"this event will be damaged"


async def salvage(
    settings: StandaloneSettings, container: int = 0, *, is_dry_run: bool = False, disk: Disk | None = None
) -> Salvaged:
    runtime = real_runtime(2)
    if disk is not None:
        runtime.disk = disk
    try:
        return await salvage_log(settings, runtime, container, is_dry_run=is_dry_run)
    finally:
        await runtime.work.close()


def logs_of(settings: StandaloneSettings) -> Path:
    return Path(settings.data_dir, "tier1")


def damage(settings: StandaloneSettings, mark: bytes = MARK) -> Path:
    """Flip a bit of every frame of container 0's log that holds `mark`; return the last such file."""
    found = None
    for path in sorted((logs_of(settings) / "0").glob("log-*-*")):
        data = bytearray(path.read_bytes())
        at = data.find(mark)
        while at >= 0:
            data[at] ^= 1
            found = path
            at = data.find(mark, at + 1)
        path.write_bytes(data)
    assert found is not None
    return found


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def read(store: SegmentStore, name: str) -> bytes:
    info = await store.segment_info(name)
    found = b""
    while len(found) < info.length:
        found += (await store.read(name, len(found), info.length - len(found))).joined()
    return found


def without_images(settings: StandaloneSettings) -> StandaloneSettings:
    container = replace(
        settings.segment_store.container, images=ImageSettings(interval_s=0), orphans=OrphanSettings(sweep_delay_s=0.05)
    )
    return replace(settings, segment_store=replace(settings.segment_store, container=container))


async def write_and_damage(tmp_path: Path, *, is_flushed: bool) -> StandaloneSettings:
    """Return the settings of a store without images. A frame is damaged; what comes after it was flushed, or not."""
    settings = without_images(settings_of(tmp_path))
    # The log is not cut meanwhile, and has no checkpoint after the damage.
    container = replace(
        settings.segment_store.container,
        checkpoint_log_bytes=1 << 30,
        checkpoint_log_bytes_idle=1 << 30,
        checkpoint_frames=1 << 30,
    )
    settings = replace(settings, segment_store=replace(settings.segment_store, container=container))
    await fill(settings)
    async with running(settings) as store:
        await store.append(HERE[0], MARK)
        for name in NAMES:
            await store.append(name, b"after")
        await store.table_put("s/table", [TableUpdate(b"key", b"later")])
        if is_flushed:
            await asyncio.gather(*(container.flush() for container in store.containers))
        await store.append(HERE[0], b"last")
    damage(settings)
    return settings


@pytest.fixture
async def damaged(tmp_path: Path) -> StandaloneSettings:
    return await write_and_damage(tmp_path, is_flushed=False)


async def test_intact_data_is_served_and_long_term_storage_is_unchanged(damaged: StandaloneSettings) -> None:
    """Only the segment of the lost event ends there. No chunk is swept."""
    before, chunks = files(logs_of(damaged) / "0"), files(Path(damaged.tier2))
    salvaged = await salvage(damaged)
    report = salvaged.report
    assert report is not None
    (loss,) = report.segments.values()
    kept = DATA + b"not flushed"
    lost = MARK + b"after" + b"last"
    assert (loss.name, loss.start, loss.end) == (HERE[0], len(kept), len(kept) + len(lost))
    assert report.lost_operation_count == 1
    kept_files = files(Path(salvaged.damaged_path))
    assert {name: data for name, data in kept_files.items() if name.startswith("log-")} == {
        name: data for name, data in before.items() if name.startswith("log-")
    }
    async with running(damaged) as store:
        for name in NAMES:
            assert await read(store, name) == kept + (b"" if name == HERE[0] else b"after"), name
        (entry,) = await store.table_get("s/table", [b"key"])
        assert entry is not None
        assert entry.value == b"later"
        # The sweep has been, and all continues.
        orphans = store.containers[0].storage.orphans
        await until(lambda: orphans.swept_ms is not None)
        assert len(orphans) == 0
        await store.append(HERE[0], b"new")
        await asyncio.gather(*(container.flush() for container in store.containers))
    found = files(Path(damaged.tier2))
    assert {name for name in chunks if name not in found} == set()
    async with running(damaged) as store:
        assert await read(store, HERE[0]) == kept + b"new"


async def test_bytes_that_long_term_storage_has_are_not_lost(tmp_path: Path) -> None:
    settings = await write_and_damage(tmp_path, is_flushed=True)
    chunks = files(Path(settings.tier2))
    salvaged = await salvage(settings)
    assert salvaged.report is not None
    assert not any(loss.start < len(DATA + b"not flushed" + MARK) for loss in salvaged.report.segments.values())
    async with running(settings) as store:
        content = await read(store, HERE[0])
        assert content.startswith(DATA + b"not flushed" + MARK + b"after")
        for name in NAMES:
            assert (await read(store, name)).startswith(DATA + b"not flushed"), name
        orphans = store.containers[0].storage.orphans
        await until(lambda: orphans.swept_ms is not None)
        await asyncio.gather(*(container.flush() for container in store.containers))
    assert set(chunks) <= set(files(Path(settings.tier2)))


async def test_a_dry_run_reports_the_same_and_changes_nothing(damaged: StandaloneSettings) -> None:
    before = files(Path(damaged.data_dir))
    told = await salvage(damaged, is_dry_run=True)
    after = files(Path(damaged.data_dir))
    assert {name: data for name, data in after.items() if name != "LOCK"} == {
        name: data for name, data in before.items() if name != "LOCK"
    }
    assert (told.path, told.damaged_path) == ("", "")
    assert (await salvage(damaged)).report == told.report


async def test_an_image_has_the_lost_beginning_of_the_log(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    await fill(settings)
    async with running(settings) as store:
        await store.append(HERE[0], MARK)
        await asyncio.gather(*(container.flush() for container in store.containers))
        await store.append(HERE[0], b"after the image")
    # All checkpoints, which name all segments. The log begins with that which the image begins with.
    damage(settings, b"_system/containers/metadata_0")
    salvaged = await salvage(settings)
    assert salvaged.report is not None
    assert not salvaged.report.segments
    assert "_sysjournal.container0." in salvaged.report.base
    async with running(settings) as store:
        assert await read(store, HERE[0]) == DATA + b"not flushed" + MARK + b"after the image"
        for name in NAMES[1:]:
            assert (await read(store, name)).startswith(DATA)


async def test_images_of_another_history_are_not_used(damaged: StandaloneSettings, tmp_path: Path) -> None:
    """A store that was built again has later epochs than what its long-term storage still has of the lost one."""
    other = settings_of(tmp_path, data_dir="other")
    other = replace(other, tier2=str(tmp_path / "other-storage"))
    await fill(other)
    images = [path for path in Path(other.tier2).rglob("*_sysjournal.container0.*") if path.is_file()]
    assert images
    for path in images:
        target = Path(damaged.tier2) / "_system" / "containers" / path.name.replace("epoch0000", "epoch0009")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    salvaged = await salvage(damaged, is_dry_run=True)
    assert salvaged.report is not None
    assert salvaged.report.base == "log"


class StoppingDisk:
    """A disk whose calls that change names fail from the n-th on: the process is gone."""

    def __init__(self, count: int) -> None:
        self._disk = LocalDisk()
        self._left = count

    @property
    def has_stopped(self) -> bool:
        return self._left < 0

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError("the machine is off")

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> DiskFile:
        if create:
            self._step()
        return self._disk.open(path, create=create, exclusive=exclusive, writable=writable)

    def rename(self, source: str, target: str) -> None:
        self._step()
        self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        self._step()
        self._disk.remove(path)

    def remove_directory(self, path: str) -> None:
        self._step()
        self._disk.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self._step()
        self._disk.sync_directory(path)

    def __getattr__(self, name: str) -> Callable[..., object]:
        return getattr(self._disk, name)  # type: ignore[no-any-return]


async def test_a_salvage_that_is_cut_off_anywhere_is_finished_by_the_next(
    damaged: StandaloneSettings, tmp_path: Path
) -> None:
    """At every step: the damaged files are there, no log is taken for a new one, and the next run ends well."""
    original = {name: data for name, data in files(logs_of(damaged) / "0").items() if name.startswith("log-0")}
    steps = 0
    while True:
        copy = replace(damaged, data_dir=str(tmp_path / f"step{steps}"))
        shutil.copytree(damaged.data_dir, copy.data_dir)
        disk = StoppingDisk(steps)
        try:
            await salvage(copy, disk=disk)  # type: ignore[arg-type]  # Its other calls are the disk's own.
            break
        except (OSError, PenstockError):
            assert disk.has_stopped
        kept = [path for path in logs_of(copy).iterdir() if path.name == "0" or path.name.startswith("0.damaged-")]
        assert any(original.items() <= files(path).items() for path in kept), steps
        if (logs_of(copy) / "0").exists():
            try:
                await salvage(copy)
            except InvalidArgumentError:
                pass  # All but the last tidying was done.
        else:
            assert (await salvage(copy)).report is None
        (damaged_path,) = [path for path in logs_of(copy).iterdir() if path.name.startswith("0.damaged-")]
        assert original.items() <= files(damaged_path).items()
        async with running(copy) as store:
            assert await read(store, HERE[1]) == DATA + b"not flushed" + b"after"
        shutil.rmtree(copy.data_dir)
        steps += 1
    assert steps > 20


async def test_an_owner_that_still_runs_is_shut_out(damaged: StandaloneSettings) -> None:
    """Its data directory is not locked any more, as when the lock file was removed."""
    runtime = real_runtime(2)
    # An intact log, so that an owner has it open.
    owner = LocalLogFactory(str(logs_of(damaged)), runtime, damaged.durable_log).create(1)
    await owner.open()
    try:
        path = max((logs_of(damaged) / "1").glob("log-*-*"))
        data = bytearray(min((logs_of(damaged) / "1").glob("log-*-*")).read_bytes())
        data[len(data.rstrip(b"\0")) // 2] ^= 1
        min((logs_of(damaged) / "1").glob("log-*-*")).write_bytes(data)
        assert path
        await salvage(damaged, 1)
        with pytest.raises(LogFencedError):
            await owner.append([b"x"], 1)
    finally:
        await owner.close()
        await runtime.work.close()


async def test_an_intact_or_missing_log_is_refused(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    await fill(settings)
    before = files(logs_of(settings))
    with pytest.raises(InvalidArgumentError, match="is not damaged"):
        await salvage(settings)
    with pytest.raises(LogMissingError):
        await salvage(settings, 7)
    assert files(logs_of(settings)) == before


async def test_a_log_without_a_whole_checkpoint_is_left_as_it_is(tmp_path: Path) -> None:
    settings = without_images(settings_of(tmp_path))
    async with running(settings) as store:
        await store.create_segment(HERE[0])
    for path in (logs_of(settings) / "0").glob("log-*-*"):
        path.write_bytes(bytes(len(path.read_bytes())))
    before = files(logs_of(settings))
    with pytest.raises(LogNotSalvageableError, match="no complete checkpoint"):
        await salvage(settings)
    assert files(logs_of(settings)) == before
