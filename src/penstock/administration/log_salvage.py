"""`salvage_log`: copies the intact part of a stopped server's damaged container log into a new log.

The damaged files are kept, under another name. What is kept and what is lost, and failure cases: docs/recovery.md.

Steps of the switch, `<id>` being the container and all names in the directory of the logs:

1. The new log, after it was replayed as a start replays it, is written in `<id>.salvage-draft`, closed and synced.
2. The damaged log is disabled, which fences its last owner.
3. The draft is renamed to `<id>.salvaged`: from now on it is complete.
4. The damaged log is renamed to `<id>.damaged-<epoch>`. The container has no log until the next step, and the record of
   created logs prevents a server from creating one.
5. `<id>.salvaged` is renamed to `<id>`.

A run that finds `<id>.salvaged` and no log continues with step 5. Any other run starts from the beginning.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from penstock.administration.errors import LogNotSalvageableError
from penstock.administration.salvage_plan import SalvagePlan, SalvagePlanner
from penstock.administration.stopped_directory import stopped_directory
from penstock.administration.storage_administration import cluster_chunks
from penstock.administration.storage_recovery import EPOCH_STEP
from penstock.model.errors import (
    CorruptionError,
    LogMissingError,
)
from penstock.runtime.disk import Disk
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.log.salvage_report import SalvageReport
from penstock.segmentstore.tier1.damaged_log import DamagedLog
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_directory import LogDirectory, has_log
from penstock.segmentstore.tier1.log_records import EpochRecord, read_epoch, write_epoch
from penstock.segmentstore.tier1.made_logs import MadeLogs
from penstock.segmentstore.tier1.read_only_log import check_frames
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.settings import StandaloneSettings


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The result of a salvage. Paths are empty where nothing was written.

    Attributes:
        report: what is kept and what is lost; None if an earlier, interrupted run had written the new log.
        problems: other damage of the log: in its metadata files and in headers of its files.
        image_problem: why no image in long-term storage could be used; empty: none was needed, or there is none.
        path: the new log.
        damaged_path: the damaged log.
    """

    report: SalvageReport | None
    problems: tuple[str, ...]
    image_problem: str
    path: str
    damaged_path: str


async def salvage_log(
    settings: StandaloneSettings, runtime: Runtime, container_id: int, *, is_dry_run: bool
) -> Salvaged:
    """Replace the damaged log of a container by a new one with everything in it that is intact.

    With `is_dry_run` nothing is written. The server must be stopped: the data directory is locked meanwhile.

    Raises:
        DataDirectoryInUseError: a server runs on the data directory.
        InvalidArgumentError: the log is not damaged.
        LogNotSalvageableError: neither the log nor long-term storage has a whole checkpoint to begin with.
        LogMissingError: there is no log.
        LogIdentityError: it belongs to another cluster.
        LaterVersionError: only a later version can read it.
        StorageUnavailableError, StorageIdentityError: long-term storage is missing, or belongs to another cluster.
    """
    async with stopped_directory(settings, runtime) as (directory, identity):
        return await _Salvage(directory, identity, settings, runtime, container_id).run(is_dry_run=is_dry_run)


class _Salvage:
    def __init__(
        self,
        directory: DataDirectory,
        identity: Identity,
        settings: StandaloneSettings,
        runtime: Runtime,
        container_id: int,
    ) -> None:
        self._data = directory
        self._identity = identity
        self._settings = settings
        self._runtime = runtime
        self._id = container_id
        self._disk = runtime.disk
        self._path = f"{directory.tier1}/{container_id}"
        self._draft = f"{self._path}.salvage-draft"
        self._whole = f"{self._path}.salvaged"

    async def run(self, *, is_dry_run: bool) -> Salvaged:
        work = self._runtime.work
        if not await work.run(self._has_log):
            if not await work.run(self._disk.exists, self._whole):
                raise LogMissingError(self._id, self._path, record="this data directory")
            damaged_path = await work.run(self._newest_damaged_path)
            if not is_dry_run:
                await work.run(self._finish)
            return Salvaged(None, (), "", self._path, damaged_path)
        damaged = await work.run(DamagedLog, self._disk, self._path, self._id, self._identity.cluster_id)
        planner = SalvagePlanner(
            self._id, damaged, self._settings, self._runtime, open_chunks=self._chunks, path=self._path,
            enable_command=f"penstock log enable {self._id}",
            advice="Put the log's files back from a copy, or build a data directory with `penstock storage restore`",
        )  # fmt: skip
        plan, image_problem = await planner.plan()
        damaged_path = ""
        if not is_dry_run:
            epoch = max(damaged.epoch, 0 if plan.image is None else plan.image.name.epoch) + EPOCH_STEP
            await work.run(self._begin, epoch)
            await self._write(planner, plan)
            damaged_path = await work.run(self._switch, damaged)
        path = "" if is_dry_run else self._path
        return Salvaged(plan.report, tuple(damaged.problems), image_problem, path, damaged_path)

    def _has_log(self) -> bool:
        return self._disk.exists(self._path) and has_log(self._disk, self._path)

    def _chunks(self) -> AbstractAsyncContextManager[ChunkStorage]:
        """Open long-term storage of the same cluster."""
        return cluster_chunks(self._settings, self._data, self._runtime, self._identity)

    # Writing the new log.

    def _begin(self, epoch: int) -> None:
        """Remove the leftovers of earlier runs, and create a log with that epoch."""
        for path in (f"{self._draft}/{self._id}", self._draft, self._whole):
            remove_directory(self._disk, path)
        path = f"{self._draft}/{self._id}"
        self._disk.make_directory(path)
        record = EpochRecord(self._id, epoch, True, is_released=True, cluster_id=self._identity.cluster_id)
        write_epoch(self._disk, path, record).close()

    async def _write(self, planner: SalvagePlanner, plan: SalvagePlan) -> None:
        logs = LocalLogFactory(
            self._draft, self._runtime, self._settings.durable_log, cluster_id=self._identity.cluster_id
        )
        log = logs.create(self._id)
        frames = planner.frames(plan)
        try:
            await log.open()
            while (ready := await self._runtime.work.run(next, frames, None)) is not None:
                await asyncio.gather(*[log.append([frame], len(frame)) for frame in ready])
        finally:
            await log.close()
        await self._runtime.work.run(
            check_frames, self._disk, f"{self._draft}/{self._id}", self._id, self._identity.cluster_id
        )

    # The switch. All methods block.

    def _switch(self, damaged: DamagedLog) -> str:
        """Replace the damaged log by the new one; return the damaged one's new name."""
        try:
            record = read_epoch(self._disk, self._path)
        except CorruptionError:
            record = None  # It is left as it is: the log cannot be claimed with it.
        if record is not None and record.is_enabled:
            LogDirectory(self._disk, self._path, self._id).disable_from_outside()
        MadeLogs(self._disk, self._data.made_logs, self._identity.cluster_id).add(self._id)
        self._rename(f"{self._draft}/{self._id}", self._whole)
        damaged_path = self._damaged_path(damaged.epoch)
        self._rename(self._path, damaged_path)
        self._finish()
        return damaged_path

    def _finish(self) -> None:
        if self._disk.exists(self._path):
            remove_directory(self._disk, self._path)  # A log directory without files, as a server's start creates it.
        self._rename(self._whole, self._path)
        remove_directory(self._disk, self._draft)

    def _rename(self, source: str, target: str) -> None:
        self._disk.rename(source, target)
        self._disk.sync_directory(self._data.tier1)

    def _damaged_path(self, epoch: int) -> str:
        path = f"{self._path}.damaged-{epoch:016x}"
        number = 1
        while self._disk.exists(path):
            number += 1
            path = f"{self._path}.damaged-{epoch:016x}-{number}"
        return path

    def _newest_damaged_path(self) -> str:
        prefix = f"{self._id}.damaged-"
        found = [name for name in self._disk.list_directory(self._data.tier1) if name.startswith(prefix)]
        return f"{self._data.tier1}/{max(found)}" if found else ""


def remove_directory(disk: Disk, path: str) -> None:
    """Remove a directory with its files; no error if it does not exist."""
    if not disk.exists(path):
        return
    for name in disk.list_directory(path):
        disk.remove(f"{path}/{name}")
    disk.remove_directory(path)


__all__ = ["LogNotSalvageableError", "Salvaged", "salvage_log"]
