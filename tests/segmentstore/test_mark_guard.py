"""Segments of marks are changed by controllers of the cluster alone, whatever the condition; all may read them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from penstock.client.settings import ClientSettings
from penstock.client.transport.connection_pool import ConnectionPool
from penstock.client.transport.wire_segments import WireSegments
from penstock.controller.segment_requests import SegmentRequests
from penstock.controller.settings import ControllerSettings
from penstock.controller.watermarks.mark_log import MarkLog
from penstock.model.errors import UnsupportedOperationError
from penstock.model.segments import MARK_ATTRIBUTE
from penstock.model.watermarks import MarkedSegment, Watermark
from penstock.segmentstore.server import SegmentStoreServer
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire import commands as wire
from penstock.wire.commands import WireCommand
from support.containers import QUIET, FaultyChunks, memory_runtime, turns
from support.raw_wire import RawWire

CLUSTER = "11111111-2222-4333-8444-555555555555"
MARKS = "s/_MARKt/0.#epoch.0"
A = "s/t/0.#epoch.0"
W = b"w" * 16

#: Every request that changes a segment, from a client that knows the exact end and all values.
CHANGES: tuple[WireCommand, ...] = (
    wire.SetupAppend(1, W, MARKS, ""),
    wire.UpdateSegmentAttribute(1, MARKS, MARK_ATTRIBUTE, 0, -(2**63), ""),
    wire.CreateSegment(1, "s/_MARKother/0.#epoch.0", 0, 0, "", 0),
    wire.CreateTransientSegment(1, W, MARKS, ""),
    wire.SealSegment(1, MARKS, ""),
    wire.DeleteSegment(1, MARKS, ""),
    wire.UpdateSegmentPolicy(1, MARKS, 1, 1, ""),
    wire.TruncateSegment(1, MARKS, 0, ""),
    wire.MergeSegments(1, MARKS, A, "", ()),
    wire.MergeSegments(1, A, MARKS, "", ()),
    wire.MergeSegmentsBatch(1, MARKS, (A,), ""),
    wire.MergeSegmentsBatch(1, A, (MARKS,), ""),
)


class Bench:
    """A store of a named cluster behind a server, with a segment of marks."""

    def __init__(self) -> None:
        self.runtime = memory_runtime()
        self.store = SegmentStore(
            logs=MemoryLogFactory(self.runtime),
            chunks=FaultyChunks(),
            cluster_id=CLUSTER,
            runtime=self.runtime,
            settings=SegmentStoreSettings(container_count=1, container=QUIET),
        )
        self.server = SegmentStoreServer(self.store)
        self.pools: list[ConnectionPool] = []

    async def start(self) -> None:
        await self.store.start()
        await self.server.start("127.0.0.1", 0)
        for segment in (MARKS, A):
            await self.store.create_segment(segment)

    def segments(self, token: str) -> WireSegments:
        async def resolve(segment: str) -> tuple[str, int]:
            return "127.0.0.1", self.server.port

        self.pools.append(ConnectionPool(resolve, ClientSettings()))
        return WireSegments(self.pools[-1], ClientSettings(), random.Random(1), token=token)

    async def stop(self) -> None:
        for pool in self.pools:
            await pool.close()
        await self.server.stop()
        await self.store.stop()
        await self.runtime.work.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.start()
    yield made
    await made.stop()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
@pytest.mark.parametrize("token", ["", "another"])
async def test_a_change_of_marks_by_a_client_is_refused(bench: Bench, change: WireCommand, token: str) -> None:
    sent = type(change)(**{name: getattr(change, name) for name in change.__slots__} | {"token": token})  # type: ignore[var-annotated]
    connection = await RawWire.open(bench.server.port)
    refused = await connection.ask(sent, wire.OperationUnsupported)
    assert refused == wire.OperationUnsupported(1, type(change).__name__)
    await connection.ask(wire.GetStreamSegmentInfo(2, MARKS, ""), wire.StreamSegmentInfo)
    assert not (await bench.store.segment_info(MARKS)).is_sealed
    await connection.close()


async def test_a_conditional_append_of_a_client_stores_nothing(bench: Bench) -> None:
    """The set-up is refused, and an append of a writer that is not set up closes its connection."""
    connection = await RawWire.open(bench.server.port)
    connection.send(wire.SetupAppend(1, W, MARKS, ""), wire.ConditionalAppend(W, 1, 0, b"payload", 3))
    await connection.expect(wire.OperationUnsupported)
    assert await connection.receive() is None
    await turns()
    assert (await bench.store.segment_info(MARKS)).length == 0
    await connection.close()


async def test_a_controller_of_the_cluster_writes_marks_and_clients_read_them(bench: Bench) -> None:
    def log(token: str) -> MarkLog:
        return MarkLog(SegmentRequests(bench.segments(token), ControllerSettings(), 1), MARKS)

    own, other = log(CLUSTER), log("")
    marks = [Watermark(time, time, (MarkedSegment(0, 0.0, 1.0, time),)) for time in (1, 2)]
    for mark in marks:
        assert await own.append(await own.end(), mark)
    end = await other.end()
    assert [mark async for _, mark in other.entries(0, end.length)] == marks
    with pytest.raises(UnsupportedOperationError, match="SetupAppend"):
        await other.append(end, marks[-1])
