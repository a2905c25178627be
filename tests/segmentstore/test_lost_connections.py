"""A connection that is lost leaves nothing behind, without a collection: servers rarely collect long-lived objects.

What stays in a cycle would keep a receive buffer and the state of TLS, which collections do not count.
"""

from __future__ import annotations

import asyncio
import datetime
import gc
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.runtime.tls_listener import TlsListener
from penstock.security.certificates import make_certificates
from penstock.segmentstore.connection import Connection
from penstock.segmentstore.server import SegmentStoreServer
from penstock.wire.commands import (
    AppendSetup,
    CreateTransientSegment,
    DataAppended,
    GetStreamSegmentInfo,
    Hello,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
)
from support.containers import until
from support.raw_wire import RawWire, block
from support.wire_service import A, W, WireService

CONNECTIONS = 5


@pytest.fixture
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def connection_count() -> int:
    """Return how many connections of servers are in memory."""
    return sum(type(each) is Connection for each in gc.get_objects())


async def work(wire: RawWire, number: int) -> None:
    """Use a connection for requests of each kind; a read waits at the end."""
    await wire.ask(SetupAppend(1, W[:-1] + bytes([number]), A, ""), AppendSetup)
    await wire.ask(block(W[:-1] + bytes([number]), 1, b"12345678"), DataAppended)
    await wire.ask(ReadSegment(A, 0, 100, "", 2), SegmentRead)
    await wire.ask(GetStreamSegmentInfo(3, A, ""), StreamSegmentInfo)
    await wire.ask(CreateTransientSegment(4, bytes([number]) * 16, A, ""), SegmentCreated)
    wire.send(ReadSegment(A, 8 * (number + 1), 100, "", 5))


@pytest.mark.usefixtures("_no_collection")
@pytest.mark.parametrize("is_aborted", [False, True])
async def test_a_lost_connection_is_freed_at_once(is_aborted: bool) -> None:
    service = WireService()
    await service.start()
    try:
        before = connection_count()
        for number in range(CONNECTIONS):
            wire = await service.connect()
            await work(wire, number)
            if is_aborted:
                wire.writer.transport.abort()
            else:
                await wire.close()
        await until(lambda: not service.server.connections)
        await until(lambda: connection_count() == before)
    finally:
        await service.stop()


@pytest.mark.usefixtures("_no_collection")
async def test_a_lost_connection_with_tls_is_freed_at_once_and_an_incomplete_handshake_makes_none(
    tmp_path: Path,
) -> None:
    pytest.importorskip("cryptography", reason="needs the extra [security]")
    made = make_certificates(["localhost"], datetime.datetime.now(datetime.UTC))
    (tmp_path / "server.pem").write_bytes(made.private_key + made.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    service = WireService()
    await service.start()
    server = SegmentStoreServer(service.store, tls=context)
    await server.start("127.0.0.1", 0)
    trusting = ssl.create_default_context(cadata=made.authority.decode())
    try:
        before = connection_count()
        for number in range(CONNECTIONS):
            streams = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting, server_hostname="localhost")
            wire = RawWire(*streams)
            await wire.ask(Hello(16, 5), Hello)
            await work(wire, number)
            await wire.close()
        _, stranger = await asyncio.open_connection("127.0.0.1", server.port)
        stranger.write(b"\x16\x03\x01")
        (listener,) = server._servers
        assert isinstance(listener, TlsListener)
        await until(lambda: bool(listener._under_way))
        await until(lambda: connection_count() == before)
        assert not server.connections
        stranger.close()
    finally:
        await server.stop()
        await service.stop()
