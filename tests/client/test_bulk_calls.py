"""Bulk calls over the wire, to several segment stores, while containers move. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.transport.wire_segments import WireSegments
from penstock.model.errors import ContainerNotFoundError, NoSuchSegmentError, OutcomeUnknownError, PenstockError
from penstock.model.routing import container_of
from penstock.model.segments import SegmentInfo, retriable_names
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire.commands import WireCommand
from penstock.wire.connection import WireConnection
from support.containers import QUIET, FaultyChunks, memory_runtime, until

SETTINGS = SegmentStoreSettings(container_count=4, container=QUIET)
CLIENT = ClientSettings(bulk_request_count_max=64, retry_time_max_s=1.0)


class Cluster:
    """Two stores that share four containers, and a client that looks containers up."""

    def __init__(self) -> None:
        self.runtime = memory_runtime()
        logs, chunks = MemoryLogFactory(self.runtime), FaultyChunks()
        self.stores = [
            SegmentStore(logs=logs, chunks=chunks, runtime=self.runtime, settings=SETTINGS, container_ids=ids)
            for ids in ((0, 1), (2, 3))
        ]
        self.servers = [SegmentStoreServer(store) for store in self.stores]
        #: Container to number of the store that the resolver says.
        self.homes = {0: 0, 1: 0, 2: 1, 3: 1}
        self.lookups: Counter[str] = Counter()
        self.pool = ConnectionPool(self.look_up, CLIENT)
        self.segments = WireSegments(self.pool, CLIENT, random.Random(1))

    async def look_up(self, segment: str) -> tuple[str, int]:
        self.lookups[segment] += 1
        return "127.0.0.1", self.servers[self.homes[container_of(segment, 4)]].port

    async def start(self) -> None:
        for store, server in zip(self.stores, self.servers, strict=True):
            await store.start()
            await server.start("127.0.0.1", 0)

    async def stop(self) -> None:
        await self.pool.close()
        for store, server in zip(self.stores, self.servers, strict=True):
            await server.stop()
            await store.stop()
        await self.runtime.work.close()

    def store_of(self, name: str) -> SegmentStore:
        return self.stores[self.homes[container_of(name, 4)]]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.start()
    yield made
    await made.stop()


async def test_only_moved_segments_are_requested_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """SS-253: 10 000 names over 4 containers, one of them moving: a result for each name, and only those again.

    Segments that live together are looked up together, and no more requests wait at once than are allowed.
    """
    streams = [f"s/t{stream}" for stream in range(50)]
    names = [f"{stream}/{n}.#epoch.{epoch}" for stream in streams for n in range(100) for epoch in (0, 1)]
    for name in names:
        if not name.endswith("/7.#epoch.1"):
            await cluster.store_of(name).create_segment(name)
    waiting = 0
    most = 0
    request = WireConnection.request

    async def counting(self: WireConnection, request_id: int, command: WireCommand) -> WireCommand:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        try:
            return await request(self, request_id, command)
        finally:
            waiting -= 1

    monkeypatch.setattr(WireConnection, "request", counting)
    # Container 1 has left store 0; the client does not know yet, and it is not back anywhere.
    moving = cluster.stores[0]._containers[1]
    await moving.stop()
    results = await cluster.segments.segment_infos(names)
    assert len(results) == 10_000
    assert 1 < most <= 64
    assert sum(cluster.lookups.values()) <= 5000 + 64 * 4
    for name, result in zip(names, results, strict=True):
        if container_of(name, 4) == 1:
            assert isinstance(result, ContainerNotFoundError)
        elif name.endswith("/7.#epoch.1"):
            assert isinstance(result, NoSuchSegmentError)
        else:
            assert isinstance(result, SegmentInfo)
            assert result.name == name
    again = retriable_names(names, results)
    assert set(again) == {name for name in names if container_of(name, 4) == 1}
    cluster.stores[1].set_assignment((1, 2, 3))
    cluster.homes[1] = 1
    await until(lambda: 1 in cluster.stores[1]._containers)
    results = await cluster.segments.segment_infos(again)
    missing = [name for name, result in zip(again, results, strict=True) if isinstance(result, PenstockError)]
    assert missing == [name for name in again if name.endswith("/7.#epoch.1")]
    assert retriable_names(again, results) == []


async def test_deletions_say_which_have_an_unknown_outcome(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is lost in between: those that were under way there are in doubt, the others are done."""
    names = [f"s/t/{number}.#epoch.0" for number in range(200)]
    for name in names:
        await cluster.store_of(name).create_segment(name)
    delete = SegmentStore.delete_segment

    async def dropping(self: SegmentStore, segment: str) -> None:
        await delete(self, segment)
        if segment == names[100]:
            for server in cluster.servers:
                for connection in list(server.connections):
                    connection.abort("dropped")

    monkeypatch.setattr(SegmentStore, "delete_segment", dropping)
    results = await cluster.segments.delete_segments(names)
    assert isinstance(results[100], OutcomeUnknownError)
    assert results[0] is None
    assert results[199] is None
    assert all(result is None or isinstance(result, OutcomeUnknownError) for result in results)
    monkeypatch.undo()
    again = [name for name, result in zip(names, results, strict=True) if result is not None]
    assert len(again) < 130
    for result in await cluster.segments.delete_segments(again):
        assert result is None or isinstance(result, NoSuchSegmentError)
    assert all(isinstance(info, NoSuchSegmentError) for info in await cluster.segments.segment_infos(names))
