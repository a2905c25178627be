"""`recover_store`: creates a data directory for a store whose machine was lost, from its long-term storage alone.

Containers write images there (docs/recovery.md). Images are written as new logs, so that a server started on the new
directory continues from the newest image of each container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from penstock.administration.errors import NotRecoverableError
from penstock.administration.storage_administration import ShowProgress, check_storage, demand_local_log
from penstock.model.errors import CorruptionError, InvalidArgumentError, StorageError, StorageUnavailableError
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.log.image import (
    ContainerImage,
    ImageName,
    PartialImageError,
)
from penstock.segmentstore.tier1.log_records import EpochRecord, write_epoch
from penstock.segmentstore.tier2.chunk_name import IMAGES_PREFIX
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.storage_check import StorageReport
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import StandaloneSettings

#: Added to the epoch of a recovered log, so that images and chunks of the lost machine, if it still runs or was started
#: again after its last image, never count as newer ones.
EPOCH_STEP = 1 << 16

#: An image is read in pieces of this size, ...
_READ_BYTES = 8 * 1024 * 1024
#: ... and written to the log in pieces of this size.
_APPEND_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecoveredContainer:
    """A container and the image it was restored from. `passed_over`: later images that are incomplete."""

    id: int
    image: str
    epoch: int
    created_ms: int
    length_bytes: int
    passed_over: Sequence[str]


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was recovered, and the result of a check: whether chunks exist, without reading their bytes."""

    data_dir: str
    cluster_id: str
    containers: Sequence[RecoveredContainer]
    check: StorageReport


async def recover_store(settings: StandaloneSettings, runtime: Runtime, show_progress: ShowProgress) -> RecoveryReport:
    """Create the data directory `settings.data_dir` from the long-term storage in `settings.tier2`, which is only read.

    A crash leaves a directory that no server accepts; remove it. The lost machine must not be started again:
    there would be two stores on one storage.

    Raises:
        NotRecoverableError: there are no images, not of all containers, or one is damaged.
        DataDirectoryError: the directory is not empty.
        StorageUnavailableError: there is no long-term storage in that place.
        InvalidArgumentError: `settings` name none.
        UnsupportedOperationError: the log is in a bucket.
    """
    demand_local_log(
        settings,
        "penstock storage recover",
        "nothing has to be rebuilt, so start a server with the same --log and --tier2 on any machine",
    )
    if not settings.tier2:
        raise InvalidArgumentError("--tier2 is required: the long-term storage to rebuild a store from")
    directory = DataDirectory(settings.data_dir, runtime)
    async with AsyncExitStack() as held:
        chunks = open_long_term_storage(settings, directory, runtime)
        held.push_async_callback(chunks.close)
        stored = await chunks.read_identity()
        if stored is None:
            raise StorageUnavailableError(f"{chunks.place} is not the long-term storage of a store: it has no identity")
        cluster_id = StorageIdentity.decode(stored, chunks.place).cluster_id
        names = await image_names(chunks)
        # All are read before anything is created, one at a time in memory.
        count = await _check_complete(chunks, names)
        identity = Identity(cluster_id, count)
        await runtime.work.run(directory.begin)
        held.callback(directory.close)
        containers: list[RecoveredContainer] = []
        for container_id in range(count):
            image, passed_over = await newest_whole_image(chunks, names[container_id])
            await write_log(directory, identity, image, image.name.epoch + EPOCH_STEP, settings, runtime)
            length = sum(map(len, image.frames))
            containers.append(
                RecoveredContainer(
                    container_id, image.name.name, image.name.epoch, image.created_ms, length, passed_over
                )
            )
        await runtime.work.run(directory.finish, identity)
    report = await check_storage(settings, runtime, show_progress, is_read=False)
    return RecoveryReport(directory.root, cluster_id, containers, report)


async def image_names(chunks: ChunkStorage) -> dict[int, list[ImageName]]:
    """Return all images, by container, newest first."""
    found: dict[int, list[ImageName]] = {}
    for info in await chunks.list(IMAGES_PREFIX):
        name = ImageName.parse(info.name)
        if name is not None:
            found.setdefault(name.container_id, []).append(name)
    for names in found.values():
        names.sort(reverse=True)
    return found


async def _check_complete(chunks: ChunkStorage, names: dict[int, list[ImageName]]) -> int:
    """Return how many containers the store has. Raises `NotRecoverableError` unless each has an image that is whole."""
    if not names:
        raise NotRecoverableError(
            f"{chunks.place} contains no image of a container: none were written, the setting "
            "segment_store.container.images.interval_s was 0, or the server was of an earlier version"
        )
    counts: dict[int, int] = {}
    for container_id in sorted(names):
        image, _ = await newest_whole_image(chunks, names[container_id])
        counts[container_id] = image.container_count
    count = counts[min(counts)]
    if set(counts.values()) != {count}:
        raise NotRecoverableError(
            f"{chunks.place} has images of stores with different numbers of containers: "
            + ", ".join(f"{number} by that of container {one}" for one, number in counts.items())
        )
    missing = sorted(set(range(count)) - set(names))
    strange = sorted(set(names) - set(range(count)))
    if missing or strange:
        ids = ", ".join(map(str, missing or strange))
        raise NotRecoverableError(
            f"{chunks.place} is of a store with {count} containers, and has {'no image' if missing else 'images'} of "
            f"{ids}"
        )
    return count


async def newest_whole_image(chunks: ChunkStorage, names: Sequence[ImageName]) -> tuple[ContainerImage, Sequence[str]]:
    """Return the newest whole image, and the names of newer ones that are incomplete.

    Incomplete images were never finished: older ones are removed only after a newer one is durable.
    """
    passed_over: list[str] = []
    first: StorageError | None = None
    for name in names:
        try:
            return ContainerImage.decode(name, await _read(chunks, name.name)), passed_over
        except (PartialImageError, CorruptionError) as error:
            first = first or error
            passed_over.append(name.name)
    assert first is not None
    raise NotRecoverableError(
        f"container {names[0].container_id} has no complete image in {chunks.place}: {first}"
    ) from first


async def _read(chunks: ChunkStorage, name: str) -> bytes:
    length = (await chunks.info(name)).length
    pieces: list[bytes] = []
    at = 0
    while at < length:
        piece = await chunks.read(name, at, min(_READ_BYTES, length - at))
        if not piece:
            break
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


async def write_log(
    directory: DataDirectory,
    identity: Identity,
    image: ContainerImage,
    epoch: int,
    settings: StandaloneSettings,
    runtime: Runtime,
) -> None:
    """Create the log of a container, with the frames of its image and an epoch above all earlier ones."""
    container_id = image.name.container_id
    path = f"{directory.tier1}/{container_id}"
    record = EpochRecord(container_id, epoch, True, is_released=True, cluster_id=identity.cluster_id)

    def prepare() -> None:
        runtime.disk.make_directory(path)
        write_epoch(runtime.disk, path, record).close()

    await runtime.work.run(prepare)
    log = directory.logs(identity, settings.durable_log).create(container_id)
    try:
        await log.open()
        waiting: list[asyncio.Future[object]] = []
        waiting_bytes = 0
        for frame in image.frames:
            waiting.append(asyncio.ensure_future(log.append([frame], len(frame))))
            waiting_bytes += len(frame)
            if waiting_bytes >= _APPEND_BYTES:
                await asyncio.gather(*waiting)
                waiting, waiting_bytes = [], 0
        await asyncio.gather(*waiting)
    finally:
        await log.close()
