"""A controller over in-memory seams, and a real gRPC server in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import grpc.aio
import pytest

from penstock.controller.grpc.server import GrpcServer
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from support.in_process_cluster import InProcessCluster


@pytest.fixture
async def cluster() -> AsyncIterator[InProcessCluster]:
    """An empty cluster; its controllers are stopped at the end."""
    made = InProcessCluster()
    yield made
    await made.stop()


@pytest.fixture
async def fresh() -> AsyncIterator[Callable[[], InProcessCluster]]:
    """Make empty clusters; their controllers are stopped at the end."""
    made: list[InProcessCluster] = []

    def make() -> InProcessCluster:
        made.append(InProcessCluster())
        return made[-1]

    yield make
    for one in made:
        await one.stop()


@pytest.fixture
async def service(cluster: InProcessCluster) -> ControllerService:
    """A started controller with the scope "scope"."""
    started = await cluster.start()
    await started.create_scope("scope")
    return started


@dataclass
class Wire:
    """A client's view: the stub, its server, and its controller."""

    stub: ControllerServiceStub
    server: GrpcServer
    service: ControllerService
    cluster: InProcessCluster
    channel: grpc.aio.Channel


@pytest.fixture
async def connect(cluster: InProcessCluster) -> AsyncIterator[Callable[..., Awaitable[Wire]]]:
    """Start a controller and its gRPC server on a free port, and connect a client: `await connect(settings)`."""
    wires: list[Wire] = []

    async def make(settings: ControllerSettings | None = None) -> Wire:
        service = await cluster.start(settings)
        server = GrpcServer(service, "127.0.0.1", 0)
        await server.start()
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")
        wires.append(Wire(ControllerServiceStub(channel), server, service, cluster, channel))
        return wires[-1]

    yield make
    for wire in wires:
        await wire.channel.close()  # type: ignore[call-arg]
        await wire.server.stop(0)


@pytest.fixture
async def wire(connect: Callable[..., Awaitable[Wire]]) -> Wire:
    """A client of a controller with default settings."""
    return await connect()
