"""`ControllerClient` with several controllers, each a real gRPC server: host names, lost and silent controllers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random

import grpc.aio
import pytest

from penstock.client.controller.controller import ControllerClient
from penstock.client.settings import ClientSettings
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceServicer, add_ControllerServiceServicer_to_server
from support.dropping_proxy import DroppingProxy, dropping_proxy

#: Other time-outs are long, so that none of them ends a call: gRPC's pings would take 240 s.
SETTINGS = ClientSettings(
    keepalive_interval_s=120.0, controller_request_timeout_s=240.0, retry_time_max_s=240.0, controller_silence_s=1.0
)
#: Below those, however busy the machine is.
WAIT_S = 100.0


class Controller(ControllerServiceServicer):
    """Answers two calls. `work`: is awaited before the answer to `checkStreamExists`."""

    def __init__(self) -> None:
        self.call_count = 0
        self.work: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
        self.port = 0

    # The generated type is that of a blocking server.
    async def getControllerServerList(  # type: ignore[override]
        self, request: object, context: object
    ) -> pb.ServerResponse:
        """Answer at once."""
        return pb.ServerResponse()

    async def checkStreamExists(  # type: ignore[override]
        self, request: object, context: object
    ) -> pb.ExistsResponse:
        """Work, and answer."""
        self.call_count += 1
        await self.work()
        return pb.ExistsResponse(exists=True)


@pytest.fixture
async def controllers() -> AsyncIterator[list[Controller]]:
    """Two controllers, each with a gRPC server of its own."""
    async with AsyncExitStack() as stack:
        found = [Controller(), Controller()]
        for controller in found:
            server = grpc.aio.server()
            add_ControllerServiceServicer_to_server(controller, server)
            controller.port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            stack.push_async_callback(server.stop, None)
        yield found


@pytest.fixture
async def proxy(controllers: list[Controller]) -> AsyncIterator[DroppingProxy]:
    """A proxy before the first controller, which can be made silent."""
    async with dropping_proxy(controllers[0].port) as running:
        yield running


def client_of(*addresses: str, settings: ClientSettings = SETTINGS) -> ControllerClient:
    """Return a client of controllers."""
    return ControllerClient.connect("tcp://" + ",".join(addresses), settings, Random(1))


async def test_controllers_may_have_host_names(controllers: list[Controller]) -> None:
    """The first one does not run, so the second one is used."""
    client = client_of("localhost:1", f"localhost:{controllers[0].port}")
    try:
        async with asyncio.timeout(WAIT_S):
            assert await client.stream_exists("a", "b")
    finally:
        await client.close()


async def test_a_silent_controller_costs_two_limits(controllers: list[Controller], proxy: DroppingProxy) -> None:
    """Its connection stays open, and carries nothing any more. Further calls go to the other one at once."""
    client = client_of(f"127.0.0.1:{proxy.port}", f"127.0.0.1:{controllers[1].port}")
    try:
        assert await client.stream_exists("a", "b")
        assert controllers[0].call_count == 1
        proxy.drop()
        async with asyncio.timeout(WAIT_S):
            answers = await asyncio.gather(*(client.stream_exists("a", "b") for _ in range(20)))
        assert all(answers)
        assert controllers[0].call_count == 1
        assert controllers[1].call_count >= 20
    finally:
        await client.close()


async def test_a_call_that_takes_long_is_not_repeated(controllers: list[Controller]) -> None:
    """A controller that works answers requests for a sign of life."""
    client = client_of(*(f"127.0.0.1:{each.port}" for each in controllers))
    controllers[0].work = lambda: asyncio.sleep(3 * SETTINGS.controller_silence_s)
    try:
        assert await client.stream_exists("a", "b")
        assert [each.call_count for each in controllers] == [1, 0]
    finally:
        await client.close()


async def test_a_controller_that_was_silent_is_used_when_there_is_no_other(
    controllers: list[Controller], proxy: DroppingProxy
) -> None:
    """The other address has no server. The silent connection is lost, and another one is made."""
    settings = ClientSettings(keepalive_interval_s=1.0, controller_silence_s=1.0, connect_timeout_s=1.0)
    client = client_of(f"127.0.0.1:{proxy.port}", "127.0.0.1:1", settings=settings)
    try:
        assert await client.stream_exists("a", "b")
        proxy.drop()
        async with asyncio.timeout(WAIT_S):
            assert await client.stream_exists("a", "b")
        assert controllers[0].call_count == 2
    finally:
        await client.close()


async def test_a_cancelled_call_is_cancelled(controllers: list[Controller]) -> None:
    """It is not taken for the end of a call to a silent controller."""
    client = client_of(*(f"127.0.0.1:{each.port}" for each in controllers))
    controllers[0].work = lambda: asyncio.sleep(60)
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await client.stream_exists("a", "b")
    finally:
        await client.close()
