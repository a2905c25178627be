"""`StoreLoads`: what a real segment store counts, and that it notices a log that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import StorageError
from penstock.model.segments import TableUpdate
from penstock.operations.store_health import store_health
from penstock.segmentstore.cluster.containers import StoreContainers
from penstock.segmentstore.cluster.loads import StoreLoads
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.statistics_report import store_report
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLog, MemoryLogFactory
from penstock.wire.statistics import StatisticsQuery
from support.containers import QUIET, FaultyChunks, memory_runtime, memory_store, until

SEGMENT, TABLE = "shop/orders/0.#epoch.0", "shop/_tables/a"
LEASE_S = 0.3


@pytest.fixture
def logs() -> MemoryLogFactory:
    return MemoryLogFactory(memory_runtime())


@pytest.fixture
async def store(logs: MemoryLogFactory) -> AsyncIterator[SegmentStore]:
    runtime = memory_runtime()
    settings = SegmentStoreSettings(
        container_count=1, container=replace(QUIET, ownership_lease_s=LEASE_S), restart_delay_s=3600.0
    )
    made = memory_store(logs, FaultyChunks(), runtime, settings)
    await made.start()
    await made.create_segment(SEGMENT)
    await made.create_table(TABLE)
    yield made
    await made.stop()
    await runtime.work.close()


async def test_appends_reads_and_requests_of_tables_are_counted(store: SegmentStore) -> None:
    """By operations and bytes, for each incarnation."""
    loads = StoreLoads(store)
    before = loads.counts().containers[0]
    await store.append(SEGMENT, bytes(1000))
    await store.read(SEGMENT, 0, 400)
    after = loads.counts().containers[0]
    assert after.epoch == before.epoch == store.containers[0].epoch
    assert after.operations_in - before.operations_in == 1
    assert after.bytes_in - before.bytes_in >= 1000
    assert (after.operations_out - before.operations_out, after.bytes_out - before.bytes_out) == (1, 400)
    await store.table_put(TABLE, [TableUpdate(b"key", b"value")])
    await store.table_get(TABLE, [b"key"])
    last = loads.counts().containers[0]
    assert last.operations_in > after.operations_in
    assert last.log_bytes > before.log_bytes


async def test_an_append_that_is_not_answered_is_a_problem_of_the_log(
    store: SegmentStore, logs: MemoryLogFactory
) -> None:
    """Its age grows until it is answered; a hand-over does not wait for a checkpoint then."""
    loads, containers = StoreLoads(store), StoreContainers(store, SegmentStoreServer(store))
    assert loads.counts().log_problem_s < LEASE_S
    logs.hold_appends(0)
    append = asyncio.ensure_future(store.append(SEGMENT, b"x"))
    await until(lambda: loads.counts().log_problem_s > 2.1)
    with pytest.raises(StorageError, match="its log does not answer"):
        await containers.prepare(0)
    logs.release_appends(0)
    await append
    await until(lambda: loads.counts().log_problem_s < LEASE_S)
    await containers.prepare(0)


async def test_a_check_of_the_ownership_that_is_not_answered_is_a_problem_of_the_log(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it fails and is repeated: the age is that of the first one."""
    loads = StoreLoads(store)

    async def fail(*, is_shared: bool = False) -> None:
        raise StorageError("the bucket is not reached")

    monkeypatch.setattr(store.containers[0].log, "confirm_ownership", fail)
    await until(lambda: loads.counts().log_problem_s > 3 * LEASE_S)
    monkeypatch.undo()
    await until(lambda: loads.counts().log_problem_s < LEASE_S)


async def test_failures_for_lack_of_memory_are_counted(store: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of starts; another failure is not one of the process."""
    loads = StoreLoads(store)
    store.monitor._retry_later(0, StorageError("the bucket is not reached"))
    assert loads.counts().own_failures == 0
    store.monitor._retry_later(0, MemoryError())
    assert loads.counts().own_failures == 1


async def test_the_log_is_checked_without_a_container(store: SegmentStore, logs: MemoryLogFactory) -> None:
    """By a request that changes nothing."""
    await StoreLoads(store).check_log()


async def test_the_reason_for_which_appends_wait_is_reported_after_some_seconds(
    store: SegmentStore, logs: MemoryLogFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the health, which is not ready then, and in the statistics, which ``ready`` and ``doctor`` read."""
    reason = "1 of 4 bookies are reached"
    monkeypatch.setattr(MemoryLog, "problem", reason)
    assert not store.log_problem  # Nothing waits.
    assert store_health(store).is_ready
    logs.hold_appends(0)
    append = asyncio.ensure_future(store.append(SEGMENT, b"x"))
    await until(lambda: store.log_problem is not None)
    told = store.log_problem or ""
    assert "the log of containers 0 takes no appends" in told
    assert reason in told
    health = store_health(store)
    assert not health.is_ready
    assert any(line.startswith("log: ") and reason in line for line in health.problems())
    assert reason in (store_report(store, StatisticsQuery()).log_problem or "")
    logs.release_appends(0)
    await append
    assert not store.log_problem
    assert store_health(store).is_ready
    assert store_report(store, StatisticsQuery()).log_problem is None
