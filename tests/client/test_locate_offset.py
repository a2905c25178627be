"""Borders between appends over the wire: backwards, too, and of servers that lack the command."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.client.settings import ClientSettings
from penstock.client.transport import wire_segments
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.transport.wire_segments import WireSegments
from penstock.model.errors import SegmentTruncatedError
from penstock.segmentstore import connection as connection_module
from penstock.segmentstore.container_settings import ActivitySettings
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from support.containers import QUIET, FaultyChunks, memory_runtime, memory_store

A = "s/t/0.#epoch.0"


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SegmentStore, WireSegments]]:
    monkeypatch.setattr(wire_segments, "_BORDER_DISTANCE", 1000)
    runtime = memory_runtime()
    activity = ActivitySettings(interval_s=3600.0, index_entry_bytes=1000)
    settings = SegmentStoreSettings(container_count=1, container=replace(QUIET, activity=activity))
    store = memory_store(MemoryLogFactory(runtime), FaultyChunks(), runtime, settings)
    await store.start()
    server = SegmentStoreServer(store)
    await server.start("127.0.0.1", 0)

    async def home(segment: str) -> tuple[str, int]:
        return "127.0.0.1", server.port

    client_settings = ClientSettings(retry_time_max_s=2.0)
    pool = ConnectionPool(home, client_settings)
    await store.create_segment(A)
    for length in (*[1000] * 5, 9000, *[1000] * 5):
        await store.append(A, bytes(length))
    await store.containers[0].activity_watch.poll()
    yield store, WireSegments(pool, client_settings, random.Random(1))
    await pool.close()
    await server.stop()
    await store.stop()
    await runtime.work.close()


async def test_the_wire_gives_the_answers_of_the_store(served: tuple[SegmentStore, WireSegments]) -> None:
    """The wire asks forwards alone: the border before an offset is found by asking further and further back."""
    store, segments = served
    await store.truncate_segment(A, 1500)
    for is_before in (False, True):
        for offset in (1500, 1501, 2000, 4999, 5000, 5001, 13_999, 14_000, 14_500, 18_999, 19_000, 20_000):
            expected = await store.locate_offset(A, offset, before=is_before)
            assert await segments.locate_offset(A, offset, before=is_before) == expected, (offset, is_before)
        with pytest.raises(SegmentTruncatedError) as caught:
            await segments.locate_offset(A, 1499, before=is_before)
        assert caught.value.start_offset == 1500


async def test_an_older_server_gets_no_unknown_requests(
    served: tuple[SegmentStore, WireSegments], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java clients do the same: the segment's length represents the border."""
    store, segments = served
    monkeypatch.setattr(connection_module, "WIRE_VERSION", 16)
    await store.truncate_segment(A, 1000)
    for offset, behind, before in ((1000, 1000, 1000), (1001, 19_000, 1000), (19_000, 19_000, 19_000)):
        assert await segments.locate_offset(A, offset) == behind
        assert await segments.locate_offset(A, offset, before=True) == before
    with pytest.raises(SegmentTruncatedError):
        await segments.locate_offset(A, 999)
