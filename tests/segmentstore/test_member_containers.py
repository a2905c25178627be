"""`StoreContainers`: what a member of a cluster does with the containers of a real segment store."""

from __future__ import annotations

import asyncio

import pytest

from penstock.model.cluster_nodes import HeldPhase
from penstock.model.errors import ContainerOfflineError
from penstock.segmentstore.cluster.containers import ContainerCondition, StoreContainers
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from support.containers import append, memory_runtime, until

SEGMENT = "s/x/0.#epoch.0"


def one_container() -> tuple[SegmentStore, StoreContainers]:
    """Return a store of a cluster of one container, which runs none yet."""
    runtime = memory_runtime()
    store = SegmentStore(
        logs=MemoryLogFactory(runtime),
        chunks=MemoryChunkStorage(),
        runtime=runtime,
        settings=SegmentStoreSettings(container_count=1, restart_delay_s=0.01),
        container_ids=(),
    )
    return store, StoreContainers(store, SegmentStoreServer(store))


@pytest.mark.asyncio
async def test_no_log_is_opened_before_the_member_agrees() -> None:
    """A start that is refused is repeated; the conditions are those of the store, and changes are reported."""
    store, containers = one_container()
    await store.start()
    asked: list[int] = []
    changes = asyncio.Event()

    async def before_open(container_id: int) -> None:
        asked.append(container_id)
        assert not list(store.containers)
        if len(asked) < 3:
            raise ContainerOfflineError(container_id, "not held")

    containers.observe(before_open, changes.set)
    containers.assign([0])
    await until(lambda: len(asked) == 2 and not store.monitor.held)
    assert containers.condition(0).phase is HeldPhase.OPENING
    assert "not held" in containers.condition(0).error
    await until(lambda: containers.condition(0) == ContainerCondition(HeldPhase.SERVING, 1))
    assert asked == [0, 0, 0]
    assert changes.is_set()
    assert list(containers.held) == [0]
    containers.assign([])
    await until(lambda: not containers.held)
    await store.stop()


@pytest.mark.asyncio
async def test_a_prepared_container_has_little_to_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data are in long-term storage, and its log begins with a checkpoint, also if it is appended to meanwhile."""
    store, containers = one_container()
    await store.start()
    containers.assign([0])
    await until(lambda: containers.condition(0).phase is HeldPhase.SERVING)
    await containers.prepare(1)
    await store.create_segment(SEGMENT)
    (container,) = store.containers
    await append(container, SEGMENT, b"x" * 50_000)
    flush, flushed = container.writer.flush_all, 0

    async def flush_beside_appends() -> None:
        nonlocal flushed
        await flush()
        flushed += 1
        await append(container, SEGMENT, b"y" * 50_000)

    monkeypatch.setattr(container.writer, "flush_all", flush_beside_appends)
    await containers.prepare(0)
    monkeypatch.undo()
    assert container.segment(SEGMENT).storage_length >= 100_000
    await until(lambda: container.checkpoints.newest is None)
    assert container.checkpoints.log_bytes < 50_000 * flushed
    await store.stop()
