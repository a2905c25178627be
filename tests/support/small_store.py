"""A small store in this process, on real directories, that is stopped and started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from penstock.administration.storage_administration import CheckProgress
from penstock.model.segments import TableUpdate
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.container_settings import ContainerSettings, ImageSettings
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock.server.data_directory import DataDirectory
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import StandaloneSettings

DATA = bytes(range(256)) * 1000
NAMES = [f"s/{number}/0.#epoch.0" for number in range(6)]


def settings_of(tmp_path: Path, *, data_dir: str = "data", interval_s: float = 3600.0) -> StandaloneSettings:
    container = ContainerSettings(
        flush_age_s=1e9, writer_interval_s=0.01, images=ImageSettings(interval_s=interval_s, deletions_delay_s=1e9)
    )
    return StandaloneSettings(
        data_dir=str(tmp_path / data_dir),
        tier2=str(tmp_path / "long-term"),
        segment_store=SegmentStoreSettings(container_count=2, container=container),
        durable_log=LocalLogSettings(first_file_length_bytes=64 * 1024, file_length_bytes=4 * 1024 * 1024),
    )


@asynccontextmanager
async def running(settings: StandaloneSettings) -> AsyncIterator[SegmentStore]:
    runtime: Runtime = real_runtime(2)
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
        yield store
    finally:
        await store.stop()
        directory.close()
        await runtime.work.close()


@contextmanager
def unseen(total_bytes: int | None) -> Iterator[CheckProgress]:
    class Unseen:
        def note(self, chunk_count: int, length_bytes: int) -> None:
            pass

    yield Unseen()


async def fill(settings: StandaloneSettings) -> None:
    """Let a store run: segments, one of them empty, and a table, flushed; then more, which is not."""
    async with running(settings) as store:
        for name in NAMES:
            await store.create_segment(name)
            await store.append(name, DATA)
        await store.create_segment("s/empty/0.#epoch.0")
        await store.create_table("s/table")
        await store.table_put("s/table", [TableUpdate(b"key", b"value")])
        await asyncio.gather(*(container.flush() for container in store.containers))
        for name in NAMES:
            await store.append(name, b"not flushed")
