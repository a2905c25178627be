"""`LayoutReads`: readers who lease layouts of chunks, and read by them although the segments change or go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.model.errors import NoSuchChunkError, PenstockError
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.tier2.chunked_storage import ChunkLayout
from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.errors import HostDownError
from penstock.testing.simulation.host import Host
from penstock.testing.workloads.world import World

_LEASE_S = 12.0
_READ_INTERVAL_S = 1.5


class LayoutReads:
    """Begins to read by a layout every so often; `found` is told of each chunk that is gone while it is leased."""

    def __init__(
        self, cluster: SimulatedCluster, world: World, found: Callable[[str], None], *, gap_s: float
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._found = found
        self._gap_s = gap_s
        self._rng = cluster.simulation.rng("layout reads")

    async def run(self) -> None:
        """Begin reads, for as long as workloads write; end when all of them have."""
        readers: set[asyncio.Task[None]] = set()
        while self._world.is_writing:
            await asyncio.sleep(self._rng.expovariate(1.0 / self._gap_s))
            chosen = self._choose()
            if chosen is not None:
                readers.add(asyncio.create_task(self._read(*chosen)))
        if readers:
            await asyncio.wait(readers)

    def _choose(self) -> tuple[Host, SegmentContainer, Segment] | None:
        host = self._rng.choice(self._cluster.stores)
        store = self._cluster.store(host)
        containers = [each for each in store.containers if each.status is ContainerStatus.RUNNING] if store else []
        segments = [
            (container, segment)
            for container in containers
            for segment in container.segments()
            if segment.storage_length > segment.start_offset
        ]
        return (host, *self._rng.choice(segments)) if segments else None

    async def _read(self, host: Host, container: SegmentContainer, segment: Segment) -> None:
        loop = asyncio.get_running_loop()
        # It lasts from some moment behind this one on, or longer with another owner.
        end_s = loop.time() + _LEASE_S
        try:
            _, layout = await host.run(container.storage.leased_layout(segment, _LEASE_S, holder="a simulated job"))
        except (HostDownError, PenstockError, AssertionError):
            return  # Nothing was promised.
        while loop.time() + _READ_INTERVAL_S < end_s:
            await asyncio.sleep(_READ_INTERVAL_S)
            try:
                await self._look(host, segment, layout, end_s)
            except (HostDownError, PenstockError):
                continue

    async def _look(self, host: Host, segment: Segment, layout: Sequence[ChunkLayout], end_s: float) -> None:
        store = self._cluster.store(host)
        if store is None:
            return
        for chunk in layout:
            try:
                await host.run(store._chunks.read(chunk.name, 0, chunk.length))
            except NoSuchChunkError:
                if asyncio.get_running_loop().time() < end_s:
                    self._found(f"chunk {chunk.name} of {segment.name} is gone, and was leased")
