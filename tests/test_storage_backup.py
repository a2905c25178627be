"""Backups of metadata to files, and restoring them: in this process, on real directories."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.administration.admin_client import AdminClient, parse_endpoints
from penstock.administration.errors import AdminRefusedError, BackupError, BackupUnfitError
from penstock.administration.storage_backup import MANIFEST_NAME, Backup, back_up_running, back_up_stopped, read_backup
from penstock.administration.storage_restoration import RestorationReport, restore_store
from penstock.model.errors import (
    ConnectionLostError,
    CorruptionError,
    DataDirectoryInUseError,
    InvalidArgumentError,
    NoSuchSegmentError,
    StorageIdentityError,
)
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskFile, LocalDisk
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.admin_server import AdminServer
from penstock.segmentstore.container.log.image import ImageTooLongError
from penstock.segmentstore.settings import AdminSettings
from penstock.segmentstore.store import SegmentStore
from penstock.server.errors import DataDirectoryError
from penstock.server.settings import StandaloneSettings
from support.command_line import run_command
from support.small_store import DATA, NAMES, fill, running, settings_of, unseen


async def backed_up(settings: StandaloneSettings, directory: Path, runtime: Runtime | None = None) -> Backup:
    runtime = runtime or real_runtime(2)
    try:
        return await back_up_stopped(settings, str(directory), runtime, unseen)
    finally:
        await runtime.work.close()


async def restored(backup: Path, settings: StandaloneSettings, *, accepts_missing: bool = False) -> RestorationReport:
    runtime = real_runtime(2)
    try:
        return await restore_store(str(backup), settings, runtime, unseen, accepts_missing=accepts_missing)
    finally:
        await runtime.work.close()


async def content(store: SegmentStore, name: str) -> bytes:
    length = (await store.segment_info(name)).length
    data = b""
    while len(data) < length:
        data += (await store.read(name, len(data), length)).joined()
    return data


@pytest.fixture
async def stopped(tmp_path: Path) -> StandaloneSettings:
    """Settings of a store that has stopped. It writes no images to long-term storage."""
    settings = settings_of(tmp_path, interval_s=0.0)
    await fill(settings)
    return settings


async def test_a_stopped_store_is_restored_with_all_it_had(stopped: StandaloneSettings, tmp_path: Path) -> None:
    """What long-term storage does not have, too; twice from one backup, though the first has left images there."""
    backup = await backed_up(stopped, tmp_path / "backup")
    assert [container.id for container in backup.containers] == [0, 1]
    assert backup.tier2 == stopped.tier2
    shutil.rmtree(stopped.data_dir)
    for number in range(2):
        settings = replace(settings_of(tmp_path, interval_s=3600.0), data_dir=str(tmp_path / f"new{number}"), tier2="")
        before = {path: path.read_bytes() for path in Path(stopped.tier2).rglob("*") if path.is_file()}
        report = await restored(tmp_path / "backup", settings)
        assert {path: path.read_bytes() for path in Path(stopped.tier2).rglob("*") if path.is_file()} == before
        assert report.check.problem_count == 0
        assert len(report.later_images) == 2 * number
        async with running(replace(settings, tier2=stopped.tier2)) as store:
            assert min(container.log.epoch for container in store.containers) > 65536 * (number + 1)
            for name in NAMES:
                assert await content(store, name) == DATA + b"not flushed"
            (entry,) = await store.table_get("s/table", [b"key"])
            assert entry is not None
            assert entry.value == b"value"
            await store.append(NAMES[0], b"more")
            await asyncio.gather(*(container.flush() for container in store.containers))


async def test_a_running_store_is_backed_up_as_it_is_then(tmp_path: Path) -> None:
    """Through the administrator's port, while it keeps running. Later writes are not in the backup."""
    settings = settings_of(tmp_path, interval_s=0.0)
    await fill(settings)
    runtime = real_runtime(2)
    async with running(settings) as store, AsyncExitStack() as held:
        server = AdminServer(store, settings=AdminSettings(is_enabled=True, port=0))
        await server.start()
        held.push_async_callback(server.stop)
        port = await AdminClient.open("127.0.0.1", server.port)
        held.push_async_callback(port.close)
        backup = await back_up_running([port], str(tmp_path / "backup"), runtime, unseen)
        assert backup.cluster_id == store.cluster_id
        await store.append(NAMES[0], b"later")
        await store.create_segment("s/later/0.#epoch.0")
        with pytest.raises(AdminRefusedError, match="no container 2"):
            await port.image(2, lambda _: None)
        assert backup == read_backup(runtime.disk, str(tmp_path / "backup"))
    await runtime.work.close()
    new = replace(settings, data_dir=str(tmp_path / "new"))
    assert (await restored(tmp_path / "backup", new)).check.problem_count == 0
    async with running(new) as store:
        for name in NAMES:
            assert await content(store, name) == DATA + b"not flushed"
        with pytest.raises(NoSuchSegmentError):
            await store.segment_info("s/later/0.#epoch.0")


def test_the_commands_back_up_and_restore(tmp_path: Path) -> None:
    """With lines for people and JSON for programs; 3 and a list where chunks are gone."""
    settings = settings_of(tmp_path, interval_s=0.0)
    asyncio.run(fill(settings))
    backup, new = str(tmp_path / "backup"), str(tmp_path / "new")
    made = run_command(
        "storage", "backup", backup, "--data-dir", settings.data_dir, "--tier2", settings.tier2, "--json"
    ).ok.json
    assert (made["type"], made["container_count"], made["tier2"]) == ("storage_backed_up", 2, settings.tier2)
    again = run_command("storage", "backup", backup, "--data-dir", settings.data_dir)
    assert (again.code, again.stdout) == (1, "")
    assert "is not empty" in again.stderr
    shutil.rmtree(settings.data_dir)
    gone = next(Path(settings.tier2, "s", "3").iterdir())
    gone.rename(tmp_path / "gone")
    refused = run_command("storage", "restore", backup, "--directory", new, "--json")
    assert (refused.code, refused.json["kind"], refused.json["problem_count"]) == (3, "BackupUnfitError", 1)
    lines = run_command("storage", "restore", backup, "--directory", new)
    assert (lines.code, gone.name in lines.stdout) == (3, True)
    (tmp_path / "gone").rename(gone)
    lines = run_command("storage", "restore", backup, "--directory", new).ok
    assert lines.lines[-1].startswith(f"restored: start a server with --data-dir {new}")
    assert run_command("storage", "check", "--data-dir", new, "--tier2", settings.tier2).ok


async def test_a_running_store_that_cannot_be_backed_up_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path, interval_s=0.0)
    runtime = real_runtime(2)
    async with running(settings) as store, AsyncExitStack() as held:
        server = AdminServer(store, settings=AdminSettings(is_enabled=True, port=0))
        await server.start()
        held.push_async_callback(server.stop)
        port = await AdminClient.open("127.0.0.1", server.port)
        held.push_async_callback(port.close)

        async def too_long() -> None:
            raise ImageTooLongError("more was logged than an image may have")

        monkeypatch.setattr(store.containers[0].capture, "image", too_long)
        with pytest.raises(AdminRefusedError, match="more was logged than an image may have"):
            await back_up_running([port], str(tmp_path / "one"), runtime, unseen)
        await store.containers[0].stop()
        store._containers.pop(0)
        with pytest.raises(BackupError, match="container 0 does not run on the segment stores at 127"):
            await back_up_running([port], str(tmp_path / "two"), runtime, unseen)
        with pytest.raises(DataDirectoryInUseError):
            await back_up_stopped(settings, str(tmp_path / "three"), runtime, unseen)
        for directory in ("one", "two", "three"):
            with pytest.raises(BackupError, match="is not a complete backup"):
                read_backup(runtime.disk, str(tmp_path / directory))
    with pytest.raises(ConnectionLostError):
        await AdminClient.open("127.0.0.1", server.port)
    with pytest.raises(InvalidArgumentError, match="write host:port"):
        parse_endpoints(["9999"])
    await runtime.work.close()


async def test_a_mismatching_backup_is_refused_and_nothing_is_created(
    stopped: StandaloneSettings, tmp_path: Path
) -> None:
    await backed_up(stopped, tmp_path / "backup")
    new = replace(stopped, data_dir=str(tmp_path / "new"))
    other = replace(settings_of(tmp_path, data_dir="other"), tier2=str(tmp_path / "other-storage"))
    await fill(other)
    with pytest.raises(StorageIdentityError):
        await restored(tmp_path / "backup", replace(new, tier2=other.tier2))
    with pytest.raises(DataDirectoryError, match="is not empty"):
        await restored(tmp_path / "backup", stopped)
    gone = next(Path(stopped.tier2, "s", "3").iterdir())
    gone.unlink()
    with pytest.raises(BackupUnfitError, match="nothing was created") as refused:
        await restored(tmp_path / "backup", new)
    assert {(problem.kind, problem.chunk) for problem in refused.value.problems} == {
        ("chunk_missing", f"s/3/{gone.name}")
    }
    assert set(Path(new.data_dir).iterdir()) <= {Path(new.data_dir, "LOCK")}
    report = await restored(tmp_path / "backup", new, accepts_missing=True)
    assert report.check.problem_count == refused.value.problem_count
    async with running(new) as store:
        assert (await store.read(NAMES[1], 0, 10)).joined() == DATA[:10]


async def test_a_backup_that_is_damaged_is_not_restored(stopped: StandaloneSettings, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    await backed_up(stopped, backup)
    new = replace(stopped, data_dir=str(tmp_path / "new"))
    for name in ("container-1.image", MANIFEST_NAME):
        path = backup / name
        whole = path.read_bytes()
        for damaged in (whole[:-2], whole + b"x" if name != MANIFEST_NAME else b"{}",
                        whole[:200] + bytes([whole[200] ^ 1]) + whole[201:]):  # fmt: skip
            path.write_bytes(damaged)
            with pytest.raises(CorruptionError, match=name):
                await restored(backup, new)
        path.unlink()
        with pytest.raises((CorruptionError, BackupError), match=name):
            await restored(backup, new)
        path.write_bytes(whole)
    manifest = json.loads((backup / MANIFEST_NAME).read_bytes())
    assert manifest["backup"]["format_version"] == 1
    with pytest.raises(BackupError, match="is not empty"):
        await backed_up(stopped, backup)
    assert (await restored(backup, new)).check.problem_count == 0


class FailingDisk(LocalDisk):
    """Fails from the n-th call on that changes anything."""

    def __init__(self, calls_left: int) -> None:
        super().__init__()
        self.calls_left = calls_left

    def count(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise OSError(5, "the disk fails")

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> DiskFile:  # type: ignore[override]
        if create:
            self.count()
        file = super().open(path, create=create, exclusive=exclusive, writable=writable)
        return FailingFile(self, file) if create else file  # type: ignore[return-value]  # what is used of it

    def rename(self, source: str, target: str) -> None:
        self.count()
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self.count()
        super().sync_directory(path)


class FailingFile:
    def __init__(self, disk: FailingDisk, file: DiskFile) -> None:
        self.disk, self.file = disk, file

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        self.disk.count()
        return self.file.write(offset, buffers)

    def sync(self) -> None:
        self.disk.count()
        self.file.sync()

    def close(self) -> None:
        self.file.close()


async def test_an_interrupted_backup_is_not_a_backup(stopped: StandaloneSettings, tmp_path: Path) -> None:
    """It fails at each change of the disk in turn: there is no manifest, or the backup is whole."""
    for calls in range(40):
        directory = tmp_path / f"backup{calls}"
        runtime = real_runtime(2)
        runtime.disk = FailingDisk(calls)
        try:
            await backed_up(stopped, directory, runtime)
        except (DataDirectoryError, BackupError):
            if (directory / MANIFEST_NAME).exists():
                continue  # Renamed, and not known to be durable.
            with pytest.raises(BackupError, match="is not a complete backup"):
                read_backup(LocalDisk(), str(directory))
            continue
        assert calls > 8
        assert (await restored(directory, replace(stopped, data_dir=str(tmp_path / "new")))).check.problem_count == 0
        return
    pytest.fail("it never succeeded")
