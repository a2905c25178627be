"""`restore_store`: creates a data directory from a backup of metadata (`storage_backup`) and its long-term storage.

It does not contain what was written since the backup: docs/recovery.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from penstock.administration.errors import BackupUnfitError
from penstock.administration.storage_administration import ShowProgress, check_identity, check_opened
from penstock.administration.storage_backup import Backup, read_backup, read_image
from penstock.administration.storage_recovery import EPOCH_STEP, image_names, write_log
from penstock.model.errors import InvalidArgumentError
from penstock.runtime.disk import Disk
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier2.storage_check import StorageReport
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import StandaloneSettings


@dataclass(frozen=True, slots=True)
class RestorationReport:
    """What was restored. `later_images`: newer images in long-term storage, from which more could be recovered."""

    data_dir: str
    backup: Backup
    later_images: Sequence[str]
    check: StorageReport


async def restore_store(
    backup_directory: str,
    settings: StandaloneSettings,
    runtime: Runtime,
    show_progress: ShowProgress,
    *,
    accepts_missing: bool = False,
) -> RestorationReport:
    """Create the data directory `settings.data_dir` from a backup and its long-term storage, which is only read.

    `settings.tier2`: where that is; if empty, the place in the backup. The server of the backup must not run any more.
    A crash leaves a directory that no server accepts; remove it.

    Raises:
        BackupError: there is no complete backup, or the place of long-term storage is not given.
        BackupUnfitError: chunks are missing or too short, and `accepts_missing` is not set. Nothing is left over.
        CorruptionError: a file of the backup is damaged.
        StorageIdentityError: long-term storage belongs to another cluster.
        StorageUnavailableError: there is none in that place.
        DataDirectoryError: the directory to create is not empty.
    """
    disk = runtime.disk
    backup = await runtime.work.run(read_backup, disk, backup_directory)
    if not (settings.tier2 or backup.tier2):
        raise InvalidArgumentError("--tier2 is required: the backup does not record the place of long-term storage")
    settings = replace(settings, tier2=settings.tier2 or backup.tier2)
    directory = DataDirectory(settings.data_dir, runtime)
    identity = Identity(backup.cluster_id, backup.container_count)
    async with AsyncExitStack() as held:
        chunks = open_long_term_storage(settings, directory, runtime)
        held.push_async_callback(chunks.close)
        await check_identity(chunks, identity)
        names = await image_names(chunks)
        # All are checked before anything is created, one at a time in memory.
        for container in backup.containers:
            await runtime.work.run(read_image, disk, backup_directory, backup, container)
        await runtime.work.run(directory.begin)
        held.callback(directory.close)
        later: list[str] = []
        for container in backup.containers:
            image = await runtime.work.run(read_image, disk, backup_directory, backup, container)
            newest = max((name.epoch for name in names.get(container.id, ())), default=0)
            # Above the epochs of all images in long-term storage, so that the store's own images are newer.
            epoch = max(image.name.epoch, newest) + EPOCH_STEP
            later += [name.name for name in names.get(container.id, ())[:1] if name.epoch >= image.name.epoch]
            await write_log(directory, identity, image, epoch, settings, runtime)
        check = await check_opened(directory, identity, chunks, settings, runtime, show_progress, is_read=False)
        if check.problem_count and not accepts_missing:
            await runtime.work.run(_remove, disk, directory.tier1)
            await runtime.work.run(_remove, disk, directory.made_logs)
            raise BackupUnfitError(
                f"{chunks.place} does not have all chunks that the backup refers to: {check.problem_count} problems; "
                "nothing was created. Use --accept-missing to create the directory anyway",
                check.problems,
                check.problem_count,
            )
        await runtime.work.run(directory.finish, identity)
    return RestorationReport(directory.root, backup, tuple(later), check)


def _remove(disk: Disk, path: str) -> None:
    """Remove a directory that was created here, with its content."""
    for name in disk.list_directory(path):
        inside = os.path.join(path, name)
        try:
            disk.remove(inside)
        except (IsADirectoryError, PermissionError):
            _remove(disk, inside)
    disk.remove_directory(path)
