"""`LateChunks`: over days, servers are stopped and started again, and old owners create chunks long after their end.

A chunk of an earlier epoch to which no record refers is deleted by the next sweep: within the interval of the sweeps,
across all restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.model.errors import PenstockError
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.tier2.chunk_name import new_chunk_name
from penstock_simulation.simulated.cluster import SimulatedCluster
from penstock_simulation.simulated.errors import HostDownError
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.world import SCOPE, World

#: Outages, and sweeps that they interrupt.
_SLACK_S = 2 * 3600.0
_DOWN_S = 5.0


class LateChunks:
    """See the module. `found` gets each chunk that stays too long."""

    def __init__(self, cluster: SimulatedCluster, world: World, found: Callable[[str], None], *, gap_s: float) -> None:
        self._cluster = cluster
        self._world = world
        self._found = found
        self._gap_s = gap_s
        self._rng = cluster.simulation.rng("late chunks")
        #: Name -> host and time of the creation.
        self._late: dict[str, tuple[Host, float]] = {}

    async def run(self) -> None:
        """Work until no workload writes any more."""
        while self._world.is_writing:
            await asyncio.sleep(self._rng.expovariate(1.0 / self._gap_s))
            host = self._rng.choice(self._cluster.stores)
            try:
                if self._rng.random() < 0.5:
                    await self._restart(host)
                else:
                    await self._create_late(host)
                await self._check()
            except (HostDownError, PenstockError):
                continue  # A planned fault was first.

    async def _restart(self, host: Host) -> None:
        await self._cluster.shut_down(host)
        self._world.counts["clean restarts"] += 1
        await asyncio.sleep(_DOWN_S)
        host.restart()

    async def _create_late(self, host: Host) -> None:
        """Create a chunk as an owner does whose request arrives after its successor has begun."""
        container = self._any_container(host)
        if container is None:
            return
        name = new_chunk_name(
            f"{SCOPE}/late/0.#epoch.0", epoch=container.log.epoch - 1, offset=0, rng=self._rng,
            mark=container.storage.orphans.mark,
        )  # fmt: skip
        await host.run(container.chunks.create_with_content(name, [b"late"]))
        self._late[name] = host, self._world.now_s
        self._world.counts["late chunks"] += 1

    def _any_container(self, host: Host) -> SegmentContainer | None:
        store = self._cluster.store(host)
        running = [] if store is None else store.containers
        fit = [
            each
            for each in running
            if each.status is ContainerStatus.RUNNING and each.log.epoch > 1 and each.storage.orphans.mark
        ]
        return self._rng.choice(fit) if fit else None

    async def _check(self) -> None:
        for name, (host, since_s) in list(self._late.items()):
            container = self._any_container(host)
            if container is None:
                continue
            if not await host.run(container.chunks.exists(name)):
                del self._late[name]
                self._world.counts["late chunks swept"] += 1
                continue
            interval_s = container.storage.orphans._settings.sweep_interval_s
            if self._world.now_s - since_s > interval_s + _SLACK_S:
                self._found(
                    f"{host.name}: chunk {name} has no record, and is there since {self._world.now_s - since_s:.0f} s; "
                    f"sweeps are {interval_s:g} s apart"
                )
