"""`check_storage`: compares the metadata of a stopped server with long-term storage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol

from penstock.administration.stopped_directory import stopped_directory
from penstock.model.errors import (
    CorruptionError,
    LaterVersionError,
    LogIdentityError,
    StorageError,
    StorageIdentityError,
    StorageUnavailableError,
    UnreadableDataError,
    UnsupportedOperationError,
)
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.inspection import ContainerInspection
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.tier1.log_directory import log_container_ids
from penstock.segmentstore.tier1.read_only_log import ReadOnlyLog
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.storage_check import CheckedContainer, ProblemKind, StorageCheck, StorageReport
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import StandaloneSettings


class CheckProgress(Protocol):
    """Receives the progress of a check."""

    def note(self, chunk_count: int, length_bytes: int, /) -> None:
        """Report the total number of chunks inspected and of bytes compared."""


#: Starts a progress display; called with the total number of bytes.
ShowProgress = Callable[[int], AbstractContextManager[CheckProgress]]


async def check_storage(
    settings: StandaloneSettings, runtime: Runtime, show_progress: ShowProgress, *, is_read: bool = True
) -> StorageReport:
    """Compare the metadata in the data directory of a stopped server with long-term storage.

    Nothing is changed in either. Without `is_read` chunks are inspected, but not read. Memory is bounded by
    `segment_store.cache` and what the logs hold of segments, and does not grow with the number of chunks.

    Raises:
        DataDirectoryInUseError: a server runs on the directory.
        DataDirectoryError: it is not a data directory.
        StorageIdentityError: long-term storage belongs to another cluster.
        StorageUnavailableError: there is none in that place, or it became unavailable.
        CorruptionError: the identity of the directory is damaged. Other damage is in the report.
        UnsupportedOperationError: the log is in a bucket.
    """
    demand_local_log(
        settings,
        "penstock storage check",
        "start the server and run `penstock verify`, which compares the chunks",
    )
    async with AsyncExitStack() as held:
        directory, identity = await held.enter_async_context(
            stopped_directory(settings, runtime, outcome="nothing was checked")
        )
        chunks = await held.enter_async_context(cluster_chunks(settings, directory, runtime, identity))
        return await check_opened(directory, identity, chunks, settings, runtime, show_progress, is_read=is_read)


async def check_opened(
    directory: DataDirectory,
    identity: Identity,
    chunks: ChunkStorage,
    settings: StandaloneSettings,
    runtime: Runtime,
    show_progress: ShowProgress,
    *,
    is_read: bool,
) -> StorageReport:
    """Do as `check_storage` does with a directory that is already locked, and its long-term storage."""
    async with AsyncExitStack() as held:
        containers: list[CheckedContainer] = []
        failures: dict[int, StorageError] = {}
        index_problems: dict[int, UnreadableDataError] = {}
        cache = Cache(settings.segment_store.cache)
        for container_id in await _container_ids(directory, identity, runtime, failures):
            path = f"{directory.tier1}/{container_id}"
            log = ReadOnlyLog(path, container_id, runtime, settings.durable_log, cluster_id=identity.cluster_id)
            held.callback(log.close)
            try:
                await log.open()
                inspection = ContainerInspection(
                    container_id,
                    log,
                    chunks,
                    epoch=log.epoch,
                    cache=cache,
                    runtime=runtime,
                    settings=settings.segment_store.container,
                )
                held.push_async_callback(inspection.close)
                tables = await inspection.open()
            except (CorruptionError, LogIdentityError, LaterVersionError) as error:
                failures[container_id] = error
                continue
            if inspection.index_problem is not None:
                index_problems[container_id] = inspection.index_problem
            containers.append(CheckedContainer(container_id, log.epoch, inspection.mark, tables))
        check = StorageCheck(chunks, containers, runtime=runtime)
        for container_id, damage in failures.items():
            check.note(ProblemKind.of(damage, ProblemKind.LOG_DAMAGED), container_id, str(damage))
        for container_id, damage in index_problems.items():
            check.note(ProblemKind.of(damage, ProblemKind.INDEX_DAMAGED), container_id, str(damage))
        await check.survey()
        with show_progress(check.report.chunk_bytes) as progress:
            await check.verify(progress.note, is_read=is_read)
        await check.find_orphans(is_complete=not failures)
        return check.report


async def _container_ids(
    directory: DataDirectory, identity: Identity, runtime: Runtime, failures: dict[int, StorageError]
) -> Sequence[int]:
    """Return the containers that have a log; record those whose log is missing in `failures`."""
    found = await runtime.work.run(log_container_ids, runtime.disk, directory.tier1)
    for container_id in range(identity.container_count):
        if container_id not in found:
            path = f"{directory.tier1}/{container_id}"
            failures[container_id] = CorruptionError(path, 0, f"there is no log of container {container_id}")
    return found


def demand_local_log(settings: StandaloneSettings, what: str, instead: str) -> None:
    """Raise `UnsupportedOperationError` if the log is in a bucket. `what`: the command; `instead`: what to do there."""
    if settings.log:
        raise UnsupportedOperationError(
            f"the log is in {settings.log}, and `{what}` works on a data directory: {instead}. Nothing was changed"
        )


@asynccontextmanager
async def cluster_chunks(
    settings: StandaloneSettings, directory: DataDirectory, runtime: Runtime, identity: Identity
) -> AsyncIterator[ChunkStorage]:
    """Open the long-term storage that the settings name. Raises as `check_identity` if it is not this cluster's."""
    chunks = open_long_term_storage(settings, directory, runtime)
    try:
        await check_identity(chunks, identity)
        yield chunks
    finally:
        await chunks.close()


async def check_identity(chunks: ChunkStorage, identity: Identity) -> None:
    """Raise `StorageIdentityError` for another cluster's long-term storage, `StorageUnavailableError` for none."""
    stored = await chunks.read_identity()
    if stored is None:
        raise StorageUnavailableError(
            f"{chunks.place} is not the long-term storage of this server: it has no identity; mount it, or give its "
            "place with --tier2"
        )
    found = StorageIdentity.decode(stored, chunks.place)
    if found.cluster_id != identity.cluster_id:
        raise StorageIdentityError(
            chunks.place,
            f"it belongs to cluster {found.cluster_id}, this server belongs to cluster {identity.cluster_id}",
        )
