"""Connections that a firewall dropped without a word: found by time, and replaced while calls are under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import grpc.aio
import pytest

from penstock.client.client import Client
from penstock.client.controller.controller import ControllerClient
from penstock.client.settings import ClientSettings
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceServicer, add_ControllerServiceServicer_to_server
from support.dropping_proxy import DroppingProxy, dropping_proxy

if TYPE_CHECKING:
    from client.conftest import Cluster

INTERVAL_S = 0.5
#: Keepalives end a request, and no time limit of it: those are longer than a test waits.
SETTINGS = ClientSettings(
    keepalive_interval_s=INTERVAL_S,
    reader_group_refresh_s=0.05,
    request_timeout_s=1200.0,
    controller_request_timeout_s=1200.0,
    retry_time_max_s=2400.0,
)
FOUND_S_MAX = 120.0
STREAM = "retail/orders"


class Answers(ControllerServiceServicer):
    async def checkScopeExists(self, request: pb.ScopeInfo, context: object) -> pb.ExistsResponse:  # type: ignore[override]
        return pb.ExistsResponse(exists=True)

    async def createScope(self, request: pb.ScopeInfo, context: object) -> pb.CreateScopeStatus:  # type: ignore[override]
        return pb.CreateScopeStatus(status=pb.CreateScopeStatus.SUCCESS)


@asynccontextmanager
async def controller_behind_a_proxy() -> AsyncIterator[tuple[DroppingProxy, ControllerClient]]:
    server = grpc.aio.server()
    add_ControllerServiceServicer_to_server(Answers(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with dropping_proxy(port) as proxy:
        client = ControllerClient.connect(f"tcp://127.0.0.1:{proxy.port}", SETTINGS, Random(1))
        try:
            yield proxy, client
        finally:
            await client.close()
            await server.stop(None)


def test_the_default_interval_finds_a_dropped_connection_within_15_s() -> None:
    assert 2 * ClientSettings().keepalive_interval_s <= 13


@pytest.mark.parametrize("call_count", [1, 50])
@pytest.mark.parametrize("idle_s", [0.0, 2.0], ids=["in use", "idle before"])
async def test_controller_calls_are_repeated_on_a_new_connection_within_their_deadline(
    idle_s: float, call_count: int
) -> None:
    async with controller_behind_a_proxy() as (proxy, client):
        for _ in range(call_count):
            assert await client.scope_exists("a")
        await asyncio.sleep(idle_s)
        proxy.drop()
        async with asyncio.timeout(FOUND_S_MAX):
            assert await client.scope_exists("a")
            await client.create_scope("b")
        assert proxy.connection_count == 2


async def test_a_writer_and_a_reader_continue_on_new_connections(cluster: Cluster) -> None:
    async with dropping_proxy(cluster.store.port) as proxy:

        async def resolver(segment: str) -> tuple[str, int]:
            return "127.0.0.1", proxy.port

        controller = ControllerClient(cluster.controller, SETTINGS, Random(3))  # type: ignore[arg-type]
        async with Client("tcp://in-process:1", SETTINGS, controller=controller, resolver=resolver) as client:
            await client.create_stream(STREAM)
            group = await client.reader_group("audit", [STREAM])
            reader = await group.reader()
            async with client.event_writer(STREAM) as writer:
                for turn in range(2):
                    proxy.drop()
                    async with asyncio.timeout(FOUND_S_MAX):
                        ack = await writer.write(b"%d" % turn)
                        event = None
                        while event is None:
                            event = await reader.read(10)
                        assert event.data == b"%d" % turn
                        await ack
            await reader.close()
            await group.close()
