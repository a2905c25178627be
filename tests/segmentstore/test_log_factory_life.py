"""The store starts the factory of its logs before it uses any log, and closes it once, after all of them."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.errors import StorageError, StorageIdentityError
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLog, MemoryLogFactory
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from support.containers import until


class _NotedLogs(MemoryLogFactory):
    """Notes what is called, in order. `refusal`: raised by `start`. `is_held`: `start` does not return."""

    refusal: StorageError | None = None
    is_held = False

    def __init__(self) -> None:
        super().__init__(real_runtime(1))
        self.calls: list[str] = []
        self.made: list[MemoryLog] = []

    async def start(self) -> None:
        self.calls.append("start")
        if self.refusal is not None:
            raise self.refusal
        if self.is_held:
            await asyncio.Event().wait()
        await super().start()

    async def has_logs(self) -> bool:
        self.calls.append("has_logs")
        return await super().has_logs()

    def create(self, container_id: int) -> MemoryLog:
        self.calls.append("create")
        self.made.append(super().create(container_id))
        return self.made[-1]

    async def close(self) -> None:
        assert all(log._state == "closed" for log in self.made)
        self.calls.append("close")
        await super().close()


def store_on(logs: _NotedLogs, chunks: MemoryChunkStorage | None = None) -> SegmentStore:
    settings = SegmentStoreSettings(container_count=2)
    return SegmentStore(
        logs=logs, chunks=chunks or MemoryChunkStorage(), runtime=logs._runtime, settings=settings, cluster_id="mine"
    )


async def test_it_is_started_before_and_closed_after_all_logs_and_once() -> None:
    logs = _NotedLogs()
    store = store_on(logs)
    await store.start()
    assert logs.calls[0] == "start"
    assert logs.calls.count("start") == 1
    assert {"has_logs", "create"} <= set(logs.calls)
    assert "close" not in logs.calls
    await store.stop()
    await store.stop()
    assert logs.calls[-1] == "close"
    assert logs.calls.count("close") == 1


async def test_it_is_closed_when_it_cannot_be_started() -> None:
    logs = _NotedLogs()
    logs.refusal = StorageError("the bucket of the log is not there")
    with pytest.raises(StorageError, match="the bucket of the log"):
        await store_on(logs).start()
    assert logs.calls == ["start", "close"]


async def test_it_is_closed_when_the_store_cannot_be_started() -> None:
    logs, chunks = _NotedLogs(), MemoryChunkStorage()
    await chunks.create_identity(StorageIdentity("another").encode())
    store = store_on(logs, chunks)
    with pytest.raises(StorageIdentityError):
        await store.start()
    assert logs.calls == ["start", "has_logs", "close"]
    await store.stop()
    assert logs.calls.count("close") == 1


async def test_it_is_closed_when_a_start_is_cancelled() -> None:
    logs = _NotedLogs()
    logs.is_held = True
    start = asyncio.ensure_future(store_on(logs).start())
    await until(lambda: bool(logs.calls))
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert logs.calls == ["start", "close"]
