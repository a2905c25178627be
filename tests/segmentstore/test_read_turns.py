"""Reads of one connection that are pipelined, or woken at once: each turn of the loop serves a bounded part of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from penstock.model.segments import SegmentData
from penstock.segmentstore import read_processor
from penstock.segmentstore.connection import Connection
from penstock.segmentstore.container.reads.reader import SegmentReader
from penstock.segmentstore.container.segment import Segment
from penstock.wire.commands import GetStreamSegmentInfo, ReadSegment, SegmentRead, StreamSegmentInfo
from support.containers import until
from support.raw_wire import RawWire
from support.wire_service import A, WireService

LENGTH = 1000
TURN_BYTES = 10 * LENGTH
READ_COUNT = 500


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WireService]:
    monkeypatch.setattr(read_processor, "TURN_REPLY_BYTES_MAX", TURN_BYTES)
    made = WireService()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counter[int]]:
    """Count the reads that return data, by turn of the loop."""
    loop, counts = asyncio.get_running_loop(), Counter[int]()
    turn, handle = 0, loop.call_soon(lambda: None)
    read_cached = SegmentReader.read_cached

    def next_turn() -> None:
        nonlocal turn, handle
        turn += 1
        handle = loop.call_soon(next_turn)

    def counted(self: SegmentReader, segment: Segment, offset: int, length: int) -> SegmentData | None:
        data = read_cached(self, segment, offset, length)
        if data is not None:
            counts[turn] += 1
        return data

    handle = loop.call_soon(next_turn)
    monkeypatch.setattr(SegmentReader, "read_cached", counted)
    yield counts
    handle.cancel()


async def until_reads_wait(connection: Connection) -> None:
    """Wait until reads are left for later turns. All may be served in a few turns, so each turn is inspected."""
    for _ in range(1_000_000):
        if connection._reads.waiting_count:
            return
        await asyncio.sleep(0)
    raise TimeoutError


async def replies(wire: RawWire, count: int) -> list[int]:
    """Receive replies, check their data, and return their request ids."""
    found = []
    for _ in range(count):
        reply = await wire.expect(SegmentRead)
        assert bytes(reply.buffer) == b"x" * LENGTH
        found.append(reply.request_id)
    return found


async def test_pipelined_reads_are_served_a_part_in_each_turn(service: WireService, served: Counter[int]) -> None:
    await service.store.append(A, b"x" * LENGTH)
    wire = await service.connect()
    wire.send(*(ReadSegment(A, 0, LENGTH, "", number) for number in range(READ_COUNT)))
    assert await replies(wire, READ_COUNT) == list(range(READ_COUNT))
    assert max(served.values()) <= TURN_BYTES // LENGTH
    assert sum(served.values()) == READ_COUNT


async def test_reads_woken_at_once_are_served_a_part_in_each_turn(service: WireService, served: Counter[int]) -> None:
    wire = await service.connect()
    wire.send(*(ReadSegment(A, 0, LENGTH, "", number) for number in range(READ_COUNT)))
    await until(lambda: sum(waits.count for waits in service.store.container(A).state.waits) == READ_COUNT)
    await service.store.append(A, b"x" * LENGTH)
    assert sorted(await replies(wire, READ_COUNT)) == list(range(READ_COUNT))
    assert max(served.values()) <= TURN_BYTES // LENGTH


async def test_a_connection_with_reads_for_later_turns_is_not_read(service: WireService) -> None:
    """Its other requests are answered after the reads, and another connection's in between."""
    await service.store.append(A, b"x" * LENGTH)
    wire = await service.connect()
    (connection,) = service.server.connections
    other = await service.connect()
    wire.send(*(ReadSegment(A, 0, LENGTH, "", number) for number in range(READ_COUNT)))
    await until_reads_wait(connection)
    assert not connection._ingest.is_reading
    await other.ask(GetStreamSegmentInfo(1, A, ""), StreamSegmentInfo)
    await replies(wire, READ_COUNT)
    await wire.ask(GetStreamSegmentInfo(1, A, ""), StreamSegmentInfo)
    assert connection._ingest.is_reading


async def test_a_connection_that_is_lost_drops_its_reads_for_later_turns(service: WireService) -> None:
    await service.store.append(A, b"x" * LENGTH)
    wire = await service.connect()
    wire.send(*(ReadSegment(A, 0, LENGTH, "", number) for number in range(READ_COUNT)))
    (connection,) = service.server.connections
    await until_reads_wait(connection)
    reads = connection._reads
    wire.writer.transport.abort()
    await until(lambda: not service.server.connections)
    assert reads.waiting_count == 0
