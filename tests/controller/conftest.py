"""A controller over in-memory seams, and a real gRPC server in front of it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import grpc.aio
import pytest

from penstock.controller.grpc.server import GrpcServer
from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.metadata.store import MetadataStore
from penstock.controller.ownership.in_process_coordinator import InProcessCoordinator
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.segments import Segments
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock_simulation.memory_segments import MemorySegments


@dataclass
class Cluster:
    """One segment store and the controllers that were started on it, one after the other or at the same time."""

    store: MemorySegments = field(default_factory=MemorySegments)
    clock_ms: int = 1_700_000_000_000
    seed: int = 0
    services: list[ControllerService] = field(default_factory=list)
    coordinator: InProcessCoordinator = field(default_factory=InProcessCoordinator)

    def runtime(self) -> Runtime:
        self.seed += 1
        return Runtime(
            disk=LocalDisk(),
            work=ThreadedWork(1),
            rng=random.Random(self.seed),
            wall_clock_ms=lambda: self.clock_ms,
        )

    def build(
        self,
        settings: ControllerSettings | None = None,
        *,
        segments: Segments | None = None,
        metadata: MetadataStore | None = None,
    ) -> ControllerService:
        """Make a controller that is not started; `segments` and `metadata` may be wrappers of the store."""
        service = ControllerService(
            metadata=metadata or SegmentsMetadataStore(segments or self.store, settings),
            segments=segments or self.store,
            locator=SingleStoreLocator("127.0.0.1", 6000),
            runtime=self.runtime(),
            settings=settings,
            coordinator=self.coordinator,
        )
        self.services.append(service)
        return service

    async def start(self, settings: ControllerSettings | None = None) -> ControllerService:
        service = self.build(settings)
        await service.start()
        return service

    def expire(self, service: ControllerService) -> None:
        """Let the others take a controller for dead; it lives on, and learns of it."""
        self.coordinator.expire(service._context.claims.owner)

    async def stop(self) -> None:
        for service in self.services:
            await service.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """An empty cluster; its controllers are stopped at the end."""
    made = Cluster()
    yield made
    await made.stop()


@pytest.fixture
async def fresh(cluster) -> AsyncIterator[Callable[[], object]]:
    """Make empty clusters; their controllers are stopped at the end."""
    made = []

    def make():
        made.append(type(cluster)())
        return made[-1]

    yield make
    for one in made:
        await one.stop()


@pytest.fixture
async def service(cluster: Cluster) -> ControllerService:
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
    cluster: Cluster
    channel: grpc.aio.Channel


@pytest.fixture
async def connect(cluster: Cluster) -> AsyncIterator[Callable[..., Awaitable[Wire]]]:
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
