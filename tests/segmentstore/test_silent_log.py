"""A log that does not answer: the requests that wait for it end, and their outcome is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import ContainerOfflineError, OutcomeUnknownError
from penstock.segmentstore.cluster.containers import StoreContainers
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire.commands import CreateSegment, ReadSegment, SegmentRead, SetupAppend
from support.containers import QUIET, FaultyChunks, memory_runtime, memory_store, turns, until
from support.raw_wire import RawWire, block
from support.wire_service import A, W, WireService, set_up

LEASE_S = 0.5
#: Below the time limit of a stop, 20 s, however busy the machine is.
WAIT_S = 15.0


@pytest.fixture
async def service() -> AsyncIterator[WireService]:
    """A store with its server."""
    running = WireService()
    await running.start()
    yield running
    await running.stop()


async def test_a_container_that_stops_ends_its_calls_after_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append and a read at the tail, although the log closes neither."""
    runtime = memory_runtime()
    logs = MemoryLogFactory(runtime)
    settings = SegmentStoreSettings(
        container_count=1, container=replace(QUIET, ownership_lease_s=LEASE_S), restart_delay_s=3600.0
    )
    store: SegmentStore = memory_store(logs, FaultyChunks(), runtime, settings)
    await store.start()
    await store.create_segment(A)
    (container,) = store.containers
    close, may_close = container.log.close, asyncio.Event()

    async def close_later() -> None:
        await may_close.wait()
        await close()

    monkeypatch.setattr(container.log, "close", close_later)
    logs.hold_appends(0)
    append = asyncio.ensure_future(store.append(A, b"x"))
    read = asyncio.ensure_future(store.read(A, 0, 100, wait=True))
    await turns(20)
    assert not append.done()
    assert not read.done()
    stop = asyncio.ensure_future(container.stop())
    async with asyncio.timeout(WAIT_S):
        ends = await asyncio.gather(append, read, return_exceptions=True)
    assert isinstance(ends[0], OutcomeUnknownError)
    assert isinstance(ends[1], ContainerOfflineError)
    assert not stop.done()
    may_close.set()
    logs.release_appends(0)
    await stop
    await store.stop()
    await runtime.work.close()


async def test_accepted_operations_are_completed_by_a_stop_while_the_log_answers() -> None:
    """Each waits for less than the lease."""
    runtime = memory_runtime()
    logs = MemoryLogFactory(runtime)
    settings = SegmentStoreSettings(container_count=1, container=replace(QUIET, ownership_lease_s=60.0))
    store = memory_store(logs, FaultyChunks(), runtime, settings)
    await store.start()
    await store.create_segment(A)
    (container,) = store.containers
    logs.hold_appends(0)
    append = asyncio.ensure_future(store.append(A, b"x"))
    await turns(20)
    stop = asyncio.ensure_future(container.stop())
    await turns(20)
    assert not append.done()
    logs.release_appends(0)
    await asyncio.gather(append, stop)
    await store.stop()
    await runtime.work.close()


async def test_connections_with_requests_that_wait_for_the_log_are_closed(service: WireService) -> None:
    """Those of an append, a set-up and a creation. A reader at the tail and an idle writer stay connected."""
    containers = StoreContainers(service.store, service.server)
    appending, idle, reading = [await service.connect() for _ in range(3)]
    await set_up(appending, W)
    await set_up(idle, b"i" * 16)
    reading.send(ReadSegment(A, 0, 100, "", 1))
    for number in range(service.store.settings.container_count):
        service.logs.hold_appends(number)
    appending.send(block(W, 1, b"x"))
    await until(lambda: any(each.has_unanswered for each in service.server.connections))
    setting_up, creating = await service.connect(), await service.connect()
    setting_up.send(SetupAppend(1, b"s" * 16, A, ""))
    creating.send(CreateSegment(1, "scope/stream/9.#epoch.0", 0, 0, "", 0))
    await until(lambda: sum(each.has_unanswered for each in service.server.connections) == 3)
    containers.end_waits()
    waiting: list[RawWire] = [appending, setting_up, creating]
    assert [await each.receive() for each in waiting] == [None, None, None]
    assert len(service.server.connections) == 2
    for number in range(service.store.settings.container_count):
        service.logs.release_appends(number)
    assert (await reading.expect(SegmentRead)).data == b"x"
    idle.send(block(b"i" * 16, 1, b"y"))
    assert await idle.receive() is not None
