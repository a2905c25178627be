"""Clocks for tests: controllers whose wall clocks differ, separate clocks that advance, suspended processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TypeVar

from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.ownership.in_process_coordinator import InProcessCoordinator
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock_simulation.memory_segments import MemorySegments

HOUR_MS = 3_600_000


class SkewedControllers:
    """Controllers on one store. Each has a wall clock of its own: `clocks_ms`, by the order of their starts."""

    def __init__(self) -> None:
        self.store = MemorySegments()
        self.coordinator = InProcessCoordinator()
        self.clocks_ms: list[int] = []
        self.services: list[ControllerService] = []

    async def start(self, ahead_ms: int = 0, settings: ControllerSettings | None = None) -> ControllerService:
        """Start a controller whose wall clock is ahead by `ahead_ms`."""
        number = len(self.clocks_ms)
        self.clocks_ms.append(1_700_000_000_000 + ahead_ms)
        runtime = Runtime(
            disk=LocalDisk(),
            work=ThreadedWork(1),
            rng=random.Random(number),
            wall_clock_ms=lambda: self.clocks_ms[number],
        )
        service = ControllerService(
            metadata=SegmentsMetadataStore(self.store, settings),
            segments=self.store,
            locator=SingleStoreLocator("127.0.0.1", 6000),
            runtime=runtime,
            settings=settings,
            coordinator=self.coordinator,
        )
        self.services.append(service)
        await service.start()
        return service

    async def stop(self) -> None:
        """Stop all controllers."""
        for service in self.services:
            await service.stop()


def pass_time(service: ControllerService, seconds: float) -> None:
    """Let a controller measure that so many seconds have passed since all that it has seen. No timer fires."""
    service.transactions.work.timers._time._lost_s -= seconds


T = TypeVar("T")


def run_with_leaps(main: Callable[[Callable[[float], None]], Coroutine[object, object, T]]) -> T:
    """Run `main(leap)` in an event loop; `leap(seconds)` lets the loop find its clock ahead, as after a suspension."""
    loop = asyncio.SelectorEventLoop()
    real, ahead = loop.time, [0.0]
    loop.time = lambda: real() + ahead[0]  # type: ignore[method-assign]

    def leap(seconds: float) -> None:
        ahead[0] += seconds

    try:
        return loop.run_until_complete(main(leap))
    finally:
        loop.close()
