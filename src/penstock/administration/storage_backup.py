"""Backups of a store's metadata: a directory with an image of each container, and a manifest that marks it complete.

An image has all metadata of a container's segments, and their bytes that are not in long-term storage yet; the other
bytes stay in long-term storage. So a store can be restored from a backup and that storage (`storage_restoration`).
Taken from a running store, through its administrator's port, or from the data directory of a stopped one.
See docs/recovery.md; the format: docs/formats.md.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from penstock.administration.admin_client import AdminClient
from penstock.administration.errors import BackupError
from penstock.administration.stopped_directory import stopped_directory
from penstock.administration.storage_administration import CheckProgress, demand_local_log
from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, LogDamagedError
from penstock.runtime.disk import Disk
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.log.image import ContainerImage, ImageName
from penstock.segmentstore.later_format import version_error
from penstock.segmentstore.tier1.read_only_log import ReadOnlyLog
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.settings import StandaloneSettings

BACKUP_FORMAT_VERSION = 1
MANIFEST_NAME = "penstock-backup.json"
_DRAFT_NAME = f"{MANIFEST_NAME}.new"
_MANIFEST_LENGTH_MAX = 16 * 1024 * 1024
_READ_BYTES = 8 * 1024 * 1024

#: Starts a progress display; the total number of bytes is not known.
ShowBackup = Callable[[int | None], AbstractContextManager[CheckProgress]]


@dataclass(frozen=True, slots=True)
class BackedUpContainer:
    """A container in a backup. `epoch`, `created_ms`: of its image; `file`: its name in the directory."""

    id: int
    file: str
    epoch: int
    created_ms: int
    length_bytes: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class Backup:
    """The manifest of a backup. `tier2`: where long-term storage was, as the settings said; may be empty."""

    cluster_id: str
    container_count: int
    created_ms: int
    tier2: str
    containers: Sequence[BackedUpContainer]

    def encode(self) -> bytes:
        """Return the content of the manifest."""
        fields = {"format_version": BACKUP_FORMAT_VERSION, **asdict(self)}
        return _json({"backup": fields, "crc32c": _checksum(_json(fields))}) + b"\n"

    @classmethod
    def decode(cls, data: bytes, path: str) -> Backup:
        """Decode the output of `encode`. Raises `CorruptionError`, `LaterVersionError`."""
        try:
            content: dict[str, Any] = json.loads(data)
            fields = content["backup"]
            if content["crc32c"] != _checksum(_json(fields)):
                raise CorruptionError(path, 0, "the checksum does not match: it was edited or damaged")
            if (version := fields.pop("format_version")) != BACKUP_FORMAT_VERSION:
                raise version_error(path, version, (BACKUP_FORMAT_VERSION,))
            containers = tuple(BackedUpContainer(**each) for each in fields.pop("containers"))
            return cls(**fields, containers=containers)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptionError(path, 0, f"it is no manifest of a backup: {error!r}") from error


class _Source(Protocol):
    """Where images come from."""

    tier2: str

    async def image(self, container_id: int, note: Callable[[int], None]) -> tuple[str, bytes]:
        """Return the cluster's id and an image, encoded as `ContainerImage.encode` does."""


async def back_up_running(
    ports: Sequence[AdminClient], directory: str, runtime: Runtime, show: ShowBackup, *, tier2: str = ""
) -> Backup:
    """Back up a running store: its containers are served by `ports`. Each is flushed first. See `back_up_stopped`.

    Also raises what an `AdminClient` raises, and `BackupError` when none of the ports serves a container.
    """
    return await _write(_Running(ports, tier2), directory, runtime, show)


async def back_up_stopped(settings: StandaloneSettings, directory: str, runtime: Runtime, show: ShowBackup) -> Backup:
    """Back up the data directory of a stopped server into a new or empty `directory`.

    An interrupted backup has no manifest, so it is not taken for a backup. One image is in memory at a time, which is
    at most as long as the container's log.

    Raises:
        DataDirectoryInUseError: a server runs on the data directory.
        DataDirectoryError: it is not a data directory.
        BackupError: `directory` is not empty, or cannot be written.
        LogDamagedError: a log is damaged. A log that is disabled and intact is backed up like any other.
        CorruptionError: the identity of the directory is damaged.
        UnsupportedOperationError: the log is in a bucket.
    """
    demand_local_log(
        settings,
        "penstock storage backup",
        "the bucket holds all that long-term storage does not have, so copy the bucket, or start a server with an "
        "administration port and name that with --admin",
    )
    async with stopped_directory(settings, runtime, outcome="nothing was written") as (data, identity):
        return await _write(_Stopped(data, identity, settings, runtime), directory, runtime, show)


async def _write(source: _Source, directory: str, runtime: Runtime, show: ShowBackup) -> Backup:
    root = os.path.abspath(directory)
    await runtime.work.run(_begin, runtime.disk, root)
    containers: list[BackedUpContainer] = []
    cluster_id, count, byte_count = "", 1, 0
    with show(None) as progress:
        while len(containers) < count:
            container_id = len(containers)

            def note(length: int) -> None:
                nonlocal byte_count
                byte_count += length
                progress.note(len(containers), byte_count)

            found_id, data = await source.image(container_id, note)
            image = ContainerImage.decode(ImageName.of(data), data)
            if image.name.container_id != container_id:
                raise BackupError(f"asked for container {container_id}, got {image.name.container_id}")
            if containers and (found_id, image.container_count) != (cluster_id, count):
                raise BackupError(
                    f"container {container_id} is of cluster {found_id} with {image.container_count} containers, those "
                    f"before it are of {cluster_id} with {count}: name the ports of one store"
                )
            cluster_id, count = found_id, image.container_count
            file = f"container-{container_id}.image"
            await runtime.work.run(_write_file, runtime.disk, os.path.join(root, file), data)
            containers.append(
                BackedUpContainer(container_id, file, image.name.epoch, image.created_ms, len(data), _checksum(data))
            )
    backup = Backup(cluster_id, count, runtime.wall_clock_ms(), source.tier2, tuple(containers))

    def finish() -> None:
        _write_file(runtime.disk, os.path.join(root, _DRAFT_NAME), backup.encode())
        try:
            runtime.disk.sync_directory(root)
            runtime.disk.rename(os.path.join(root, _DRAFT_NAME), os.path.join(root, MANIFEST_NAME))
            runtime.disk.sync_directory(root)
        except OSError as error:
            raise BackupError(f"{root} cannot be written: {error.strerror}") from error

    await runtime.work.run(finish)
    return backup


def read_backup(disk: Disk, directory: str) -> Backup:
    """Return the manifest of a backup. Blocks. Raises `BackupError` when it is not a backup, `CorruptionError`."""
    path = os.path.join(os.path.abspath(directory), MANIFEST_NAME)
    try:
        data = _read_file(disk, path, _MANIFEST_LENGTH_MAX)
    except OSError as error:
        raise BackupError(
            f"{directory} is not a complete backup: {MANIFEST_NAME} cannot be read ({error.strerror})"
        ) from error
    return Backup.decode(data, path)


def read_image(disk: Disk, directory: str, backup: Backup, container: BackedUpContainer) -> ContainerImage:
    """Return an image of a backup. Blocks. Raises `CorruptionError` unless it is intact."""
    path = os.path.join(os.path.abspath(directory), container.file)
    try:
        data = _read_file(disk, path, container.length_bytes + 1)
    except OSError as error:
        raise CorruptionError(path, 0, f"it cannot be read: {error.strerror}") from error
    if len(data) != container.length_bytes or _checksum(data) != container.crc32c:
        raise CorruptionError(path, 0, f"its bytes differ from the {container.length_bytes} that were written")
    image = ContainerImage.decode(ImageName.of(data), data)
    if (image.name.container_id, image.container_count) != (container.id, backup.container_count):
        raise CorruptionError(path, 0, f"it is of container {image.name.container_id} of {image.container_count}")
    return image


class _Running:
    def __init__(self, ports: Sequence[AdminClient], tier2: str) -> None:
        self.tier2 = tier2
        self._ports = ports

    async def image(self, container_id: int, note: Callable[[int], None]) -> tuple[str, bytes]:
        for port in self._ports:
            # Flushed, so that the image is short and contains little user data.
            if await port.flush(container_id) and (found := await port.image(container_id, note)) is not None:
                return found
        where = ", ".join(port.address for port in self._ports)
        raise BackupError(
            f"container {container_id} does not run on the segment stores at {where}: give the ports of "
            "all segment stores"
        )


class _Stopped:
    def __init__(
        self, directory: DataDirectory, identity: Identity, settings: StandaloneSettings, runtime: Runtime
    ) -> None:
        self.tier2 = settings.tier2 or directory.tier2
        self._directory = directory
        self._identity = identity
        self._settings = settings
        self._runtime = runtime

    async def image(self, container_id: int, note: Callable[[int], None]) -> tuple[str, bytes]:
        path = f"{self._directory.tier1}/{container_id}"
        async with AsyncExitStack() as held:
            log = ReadOnlyLog(
                path,
                container_id,
                self._runtime,
                self._settings.durable_log,
                cluster_id=self._identity.cluster_id,
            )
            held.callback(log.close)
            frames: list[bytes] = []
            try:
                await log.open()
                async for frame in log.frames():
                    frames.append(bytes(frame.data))
                    note(len(frames[-1]))
                    await asyncio.sleep(0)
            except CorruptionError as error:
                raise LogDamagedError(container_id, error) from error
            count = self._identity.container_count
            name = ImageName(container_id, log.epoch, 0)
            image = ContainerImage(name, count, self._runtime.wall_clock_ms(), frames)
            return self._identity.cluster_id, b"".join(image.encode())


def _begin(disk: Disk, root: str) -> None:
    try:
        disk.make_directory(root)
        found = sorted(disk.list_directory(root))
    except OSError as error:
        raise BackupError(f"{root} cannot be written: {error.strerror}") from error
    if found:
        raise BackupError(f"{root} is not empty ({', '.join(found[:3])}): name a new directory, or an empty one")


def _write_file(disk: Disk, path: str, data: bytes) -> None:
    try:
        file = disk.open(path, create=True, exclusive=True)
        try:
            file.write(0, [data])
            file.sync()
        finally:
            file.close()
    except OSError as error:
        raise BackupError(f"{path} cannot be written: {error.strerror}") from error


def _read_file(disk: Disk, path: str, length_max: int) -> bytes:
    file = disk.open(path, writable=False)
    try:
        pieces: list[bytes] = []
        at = 0
        while at < length_max and (piece := file.read(at, min(_READ_BYTES, length_max - at))):
            pieces.append(piece)
            at += len(piece)
        return b"".join(pieces)
    finally:
        file.close()


def _checksum(data: bytes) -> str:
    return f"{crc32c(data, 0):08x}"


def _json(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
