"""Clients that are gone without a word: their kernels answer nothing. On real sockets, with the kernel's own probes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from penstock.runtime.sockets import DeadPeerSettings
from penstock.segmentstore.admin_server import AdminServer
from penstock.segmentstore.settings import AdminSettings
from penstock.wire.commands import (
    CreateTransientSegment,
    KeepAlive,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
)
from support.containers import turns, until
from support.deaf_socket import deafen
from support.raw_wire import RawWire
from support.wire_service import CONNECTION, A, W, WireService, set_up

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs packet filters on sockets")

#: As short as kernels have it.
DEAD_PEERS = DeadPeerSettings(probe_after_s=1.0, probe_interval_s=1.0, timeout_s=3.0)
#: No probe within any test: only what waits for an acknowledgement is bounded.
UNPROBED = DeadPeerSettings(probe_after_s=3600.0, probe_interval_s=1.0, timeout_s=3601.0)
PARKED_READ = ReadSegment(A, 0, 100, "", 1)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[DeadPeerSettings], Awaitable[WireService]]]:
    made: list[WireService] = []

    async def make(dead_peers: DeadPeerSettings) -> WireService:
        made.append(WireService(replace(CONNECTION, dead_peers=dead_peers)))
        await made[-1].start()
        return made[-1]

    yield make
    for service in made:
        await service.stop()


def names(service: WireService) -> set[str]:
    """Return the names of the segments that there are."""
    return {segment.name for container in service.store.containers for segment in container.segments()}


async def test_an_idle_connection_of_a_dead_peer_goes_with_all_that_it_holds(
    serve: Callable[[DeadPeerSettings], Awaitable[WireService]],
) -> None:
    """A writer, a parked read and a transient segment. One that is as idle and alive stays, and keeps its own."""
    service = await serve(DEAD_PEERS)
    made = []
    wires = [await service.connect(), await service.connect()]
    for number, wire in enumerate(wires):
        await set_up(wire, bytes([number]) * 16)
        made.append((await wire.ask(CreateTransientSegment(2, W, A, ""), SegmentCreated)).segment)
        wire.send(PARKED_READ)
    dead, living = list(service.server.connections)
    await until(lambda: dead._reads.waiting_count == living._reads.waiting_count == 1)
    appends, reads = dead._appends, dead._reads
    deafen(wires[0].writer)
    await until(lambda: dead not in service.server.connections)
    assert not appends._writers
    assert not reads.waiting_count
    await until(lambda: made[0] not in names(service))
    assert list(service.server.connections) == [living]
    await service.store.append(A, b"news")
    assert (await wires[1].expect(SegmentRead)).data == b"news"
    await wires[1].ask(KeepAlive(), KeepAlive)
    assert made[1] in names(service)


async def test_what_waits_for_a_dead_peer_is_bounded(
    serve: Callable[[DeadPeerSettings], Awaitable[WireService]],
) -> None:
    """While something is on its way the kernel sends no probes."""
    service = await serve(replace(DEAD_PEERS, probe_after_s=2.0))
    wire = await service.connect()
    wire.send(PARKED_READ)
    (connection,) = service.server.connections
    await until(lambda: connection._reads.waiting_count == 1)
    deafen(wire.writer)
    await service.store.append(A, b"news")
    await until(lambda: not service.server.connections)


async def test_a_peer_that_takes_none_of_its_replies_is_dropped_with_them(
    serve: Callable[[DeadPeerSettings], Awaitable[WireService]],
) -> None:
    """Its kernel is alive and reports no room: the replies would pin memory without end."""
    service = await serve(replace(UNPROBED, probe_after_s=1.0, timeout_s=3.0))
    await service.store.append(A, bytes(100_000))
    wire = await service.connect()
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # the transport of a stream reads, too
    (connection,) = service.server.connections
    while not connection.is_write_blocked:
        wire.send(*(ReadSegment(A, 0, 100_000, "", 1) for _ in range(10)))
        await turns()
    await until(lambda: not service.server.connections)
    assert service.server.slow_reply_bytes == 0
    other = await service.connect()
    await other.ask(KeepAlive(), KeepAlive)


async def test_administrators_that_are_dead_leave_room_for_others(
    serve: Callable[[DeadPeerSettings], Awaitable[WireService]],
) -> None:
    service = await serve(UNPROBED)
    admin = AdminServer(
        service.store, settings=AdminSettings(is_enabled=True, port=0, connections_max=1, dead_peers=DEAD_PEERS)
    )
    await admin.start()
    wire = await RawWire.open(admin.port)
    deafen(wire.writer)
    await until(lambda: not admin._connections)
    other = await RawWire.open(admin.port)
    await other.ask(KeepAlive(), KeepAlive)
    await other.close()
    await wire.close()
    await admin.stop()
