"""`stopped_store`: the segment store of a stopped server, run inside an administrator's command.

It has no ports, and serves only the command's requests. The data directory is locked as by a server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from penstock.administration.stopped_directory import stopped_directory
from penstock.administration.storage_administration import cluster_chunks
from penstock.model.errors import StorageError
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.layout_settings import LayoutSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.server.long_term_storage import open_long_term_storage, segment_store_settings
from penstock.server.settings import StandaloneSettings


@asynccontextmanager
async def stopped_store(
    settings: StandaloneSettings, runtime: Runtime, layout: LayoutSettings
) -> AsyncIterator[tuple[SegmentStore, ChunkStorage]]:
    """Run the store of `settings.data_dir`, all of its containers, until the block ends; `layout` is its setting.

    Raises:
        DataDirectoryInUseError: a server runs on the directory.
        DataDirectoryError: it is not a data directory.
        StorageUnavailableError, StorageIdentityError: long-term storage is missing, or belongs to another cluster.
        StorageError: a container could not be started.
    """
    async with AsyncExitStack() as held:
        directory, identity = await held.enter_async_context(stopped_directory(settings, runtime))
        # Before the store starts, which would wait for storage.
        chunks = await held.enter_async_context(cluster_chunks(settings, directory, runtime, identity))
        of_store = segment_store_settings(settings)
        store = SegmentStore(
            logs=directory.logs(identity, settings.durable_log),
            chunks=open_long_term_storage(settings, directory, runtime),
            cluster_id=identity.cluster_id,
            runtime=runtime,
            settings=replace(
                of_store,
                container_count=identity.container_count,
                container=replace(of_store.container, layout=layout),
            ),
        )
        held.push_async_callback(store.stop)
        await store.start()
        if store.failures:
            container_id, failure = min(store.failures.items())
            raise StorageError(f"container {container_id} cannot be started: {failure}") from failure
        yield store, chunks
