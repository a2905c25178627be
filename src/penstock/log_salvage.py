"""`salvage_log`: copies what is intact of a stopped server's damaged container log into a new log.

The damaged files stay, under another name. What is kept and what is lost, and failure cases: docs/recovery.md.

Steps of the switch, `<id>` being the container and all names in the directory of the logs:

1. The new log is written in `<id>.salvage-draft`, closed and synced, and replayed as a start replays it.
2. The damaged log is disabled, which shuts its last owner out.
3. The draft gets the name `<id>.salvaged`: from now on it is whole.
4. The damaged log gets the name `<id>.damaged-<epoch>`. The container has no log until the next step, and the record of
   created logs lets no server make one.
5. `<id>.salvaged` gets the name `<id>`.

A run that finds `<id>.salvaged` and no log goes on with step 5. Any other run begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from penstock.data_directory import DataDirectory, Identity
from penstock.long_term_storage import open_long_term_storage
from penstock.model.errors import (
    CorruptionError,
    DataDirectoryInUseError,
    InvalidArgumentError,
    LogMissingError,
    StorageError,
)
from penstock.runtime.disk import Disk
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.log.frames import FrameBuilder
from penstock.segmentstore.container.log.image import ContainerImage
from penstock.segmentstore.container.log.recovery import recover
from penstock.segmentstore.container.log.salvage import LogSalvage
from penstock.segmentstore.container.log.salvage_report import SalvageReport
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container.storage.container_storage import MARK_KEY
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.tier1.damaged_log import DamagedLog, LostRange
from penstock.segmentstore.tier1.local_log import LocalLogFactory
from penstock.segmentstore.tier1.log_directory import LogDirectory, has_log
from penstock.segmentstore.tier1.log_records import EpochRecord, read_epoch, write_epoch
from penstock.segmentstore.tier1.made_logs import MadeLogs
from penstock.segmentstore.tier1.read_only_log import ReadOnlyLog
from penstock.settings import StandaloneSettings
from penstock.storage_administration import check_identity
from penstock.storage_recovery import EPOCH_STEP, image_names, newest_whole_image

#: Frames of the new log that are handed over before its writes are waited for, in bytes.
_APPEND_BYTES = 8 * 1024 * 1024
#: Length of a frame of the new log, at most.
_FRAME_BYTES = 256 * 1024


class LogNotSalvageableError(StorageError):
    """No new log can be made of a damaged one (`report`). Nothing was changed."""

    def __init__(self, message: str, report: SalvageReport) -> None:
        super().__init__(message)
        self.report = report


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was done. Paths are empty where nothing was written.

    Attributes:
        report: what is kept and what is lost; None if an earlier run had written the new log, and was cut off.
        problems: what else is wrong with the damaged log: its small files, headers of its files.
        image_problem: why no image in long-term storage was used to find what the log lost; empty: none was needed, or
            there is none.
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
    """Replace the damaged log of a container by a new one with all of it that is intact.

    With `is_dry_run` nothing is written. The server is stopped and stays so: the data directory is locked meanwhile.

    Raises:
        DataDirectoryInUseError: a server runs on the data directory.
        InvalidArgumentError: the log is not damaged.
        LogNotSalvageableError: neither the log nor long-term storage has a whole checkpoint to begin with.
        LogMissingError: there is no log.
        LogIdentityError: it is another cluster's.
        LaterVersionError: only a later version reads it.
    """
    directory = DataDirectory(settings.data_dir, runtime)
    try:
        identity = await runtime.work.run(directory.open_existing)
    except DataDirectoryInUseError as error:
        raise DataDirectoryInUseError(
            f"a server runs on {directory.root}: stop it, repeat this, and start it again; nothing was changed"
        ) from error
    try:
        return await _Salvage(directory, identity, settings, runtime, container_id).run(is_dry_run=is_dry_run)
    finally:
        directory.close()


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
        damaged = await work.run(
            DamagedLog, self._disk, self._path, self._id, self._identity.cluster_id
        )
        image: ContainerImage | None = None
        image_problem = ""
        salvage = await self._salvage(damaged, None)
        if salvage.report.is_intact and not damaged.problems:
            raise InvalidArgumentError(
                f"the log of container {self._id} in {self._path} is not damaged, and was left as it was. If it is "
                f"disabled, `penstock log enable {self._id}` enables it"
            )
        if not salvage.report.loses_nothing:
            image, image_problem = await self._image(damaged)
        if image is not None:
            with_image = await self._salvage(damaged, image)
            is_better = not salvage.report.base or with_image.whole_until > salvage.whole_until
            salvage, image = (with_image, image) if is_better else (salvage, None)
        report = salvage.report
        if not report.base:
            raise LogNotSalvageableError(
                f"the log of container {self._id} in {self._path} has no whole checkpoint to begin a new log with, and "
                f"long-term storage has no image of the container{f' ({image_problem})' if image_problem else ''}. "
                "Nothing was changed. Put the log's files back from a copy, or build a data directory with `penstock "
                "storage restore`",
                report,
            )
        damaged_path = ""
        if not is_dry_run:
            epoch = max(damaged.epoch, 0 if image is None else image.name.epoch) + EPOCH_STEP
            await work.run(self._begin, epoch)
            await self._write(damaged, image)
            await self._replay()
            damaged_path = await work.run(self._switch, damaged)
        path = "" if is_dry_run else self._path
        return Salvaged(report, tuple(damaged.problems), image_problem, path, damaged_path)

    def _has_log(self) -> bool:
        return self._disk.exists(self._path) and has_log(self._disk, self._path)

    # What there is.

    async def _salvage(self, damaged: DamagedLog, image: ContainerImage | None) -> LogSalvage:
        """Find out what can be kept; write nothing."""
        salvage = self._new_salvage(image)
        frames = self._frames(salvage, damaged, image)
        while await self._runtime.work.run(next, frames, None) is not None:
            pass
        return salvage

    def _new_salvage(self, image: ContainerImage | None) -> LogSalvage:
        return LogSalvage(self._id, mark_key=MARK_KEY, base="log" if image is None else image.name.name)

    def _frames(
        self, salvage: LogSalvage, damaged: DamagedLog, image: ContainerImage | None
    ) -> Iterator[list[bytes]]:
        """Yield the frames of the new log, some at a time. Blocks."""
        builder = FrameBuilder(min(_FRAME_BYTES, self._settings.durable_log.frame_length_max_bytes))
        ready: list[bytes] = []
        ready_bytes = 0
        for record in self._records(salvage, damaged, image):
            if builder.fits(len(record)):
                builder.add(bytes(record), None, len(record))
                continue
            if not builder.is_empty:
                ready.append(b"".join(builder.take()[0]))
            if builder.fits(len(record)):
                builder.add(bytes(record), None, len(record))
            else:
                ready += [b"".join(parts) for parts, _ in builder.add_spanning(bytes(record), None)]
            ready_bytes += _FRAME_BYTES + len(record)
            if ready_bytes >= _APPEND_BYTES:
                yield ready
                ready, ready_bytes = [], 0
        if not builder.is_empty:
            ready.append(b"".join(builder.take()[0]))
        if ready:
            yield ready

    def _records(
        self, salvage: LogSalvage, damaged: DamagedLog, image: ContainerImage | None
    ) -> Iterator[bytes]:
        try:
            for frame in () if image is None else image.frames:
                yield from map(bytes, salvage.take(frame))
            for found in damaged.read():
                if isinstance(found, LostRange):
                    salvage.lose(found)
                else:
                    yield from map(bytes, salvage.take(found))
            yield from map(bytes, salvage.finish())
        except LaterFormatError as error:
            raise error.at(self._path) from error

    async def _image(self, damaged: DamagedLog) -> tuple[ContainerImage | None, str]:
        """Return the newest whole image of this log in long-term storage, or why there is none.

        Images of other epochs than the log's files have are of another history: of a store that was built anew.
        """
        try:
            async with AsyncExitStack() as held:
                chunks = open_long_term_storage(self._settings, self._data, self._runtime)
                held.push_async_callback(chunks.close)
                await check_identity(chunks, self._identity)
                names = (await image_names(chunks)).get(self._id, [])
                names = [name for name in names if damaged.first_epoch <= name.epoch <= damaged.epoch]
                if not names:
                    return None, ""
                return (await newest_whole_image(chunks, names))[0], ""
        except (StorageError, OSError) as error:
            return None, str(error)

    # The new log.

    def _begin(self, epoch: int) -> None:
        """Remove what runs before this one left, and begin a log of that epoch."""
        for path in (f"{self._draft}/{self._id}", self._draft, self._whole):
            remove_directory(self._disk, path)
        path = f"{self._draft}/{self._id}"
        self._disk.make_directory(path)
        record = EpochRecord(self._id, epoch, True, is_released=True, cluster_id=self._identity.cluster_id)
        write_epoch(self._disk, path, record).close()

    async def _write(self, damaged: DamagedLog, image: ContainerImage | None) -> None:
        logs = LocalLogFactory(
            self._draft, self._runtime, self._settings.durable_log, cluster_id=self._identity.cluster_id
        )
        log = logs.create(self._id)
        frames = self._frames(self._new_salvage(image), damaged, image)
        try:
            await log.open()
            while (ready := await self._runtime.work.run(next, frames, None)) is not None:
                await asyncio.gather(*[log.append([frame], len(frame)) for frame in ready])
        finally:
            await log.close()

    async def _replay(self) -> None:
        """Replay the new log as a start does. Raises `CorruptionError` when that would fail: nothing was switched."""
        log = ReadOnlyLog(
            f"{self._draft}/{self._id}",
            self._id,
            self._runtime,
            self._settings.durable_log,
            cluster_id=self._identity.cluster_id,
        )
        settings = self._settings.segment_store
        state = ContainerState(self._id, Cache(settings.cache), settings.container)
        try:
            await log.open()
            await recover(log, state)
        finally:
            log.close()
            for segment in state.metadata.by_id.values():
                segment.index.clear()
                segment.close_indexes()
            state.backlog.close()

    # The switch. Every method blocks.

    def _switch(self, damaged: DamagedLog) -> str:
        """Put the new log in the place of the damaged one; return the damaged one's new name."""
        try:
            record = read_epoch(self._disk, self._path)
        except CorruptionError:
            record = None  # It stays as it is: nobody can claim the log by it.
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
            remove_directory(self._disk, self._path)  # Without any file of a log, as a server's start makes it.
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
    """Remove a directory with the files in it; fine if it is not there."""
    if not disk.exists(path):
        return
    for name in disk.list_directory(path):
        disk.remove(f"{path}/{name}")
    disk.remove_directory(path)


__all__ = ["LogNotSalvageableError", "Salvaged", "salvage_log"]
