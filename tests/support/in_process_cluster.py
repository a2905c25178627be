"""`InProcessCluster`: controllers over one segment store in memory, in one process."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.metadata.store import MetadataStore
from penstock.controller.ownership.in_process_coordinator import InProcessCoordinator
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.segments import Segments
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock_simulation.memory_segments import MemorySegments


@dataclass
class InProcessCluster:
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
