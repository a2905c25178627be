"""A cluster under a drawn fault plan. As a program it prints the whole trace of one seed."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from typing import TextIO

from penstock.model.errors import PenstockError
from penstock.model.policies import Scaling
from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.faults import FaultPlan, FaultSettings
from penstock_simulation.simulated.host import Host
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.trace import Trace

STREAM = "shop/orders"
_ATTEMPTS_MAX = 20


class Workload:
    """Two clients write numbered events, `acknowledged` ones are noted; then one of them reads everything."""

    def __init__(self, simulation: Simulation, cluster: SimulatedCluster, *, write_s: float) -> None:
        self.simulation = simulation
        self.cluster = cluster
        self.hosts = [cluster.add_client(f"client-{number}") for number in (1, 2)]
        self.end_s = simulation.loop.time() + write_s
        self.acknowledged: list[bytes] = []
        self.read: list[bytes] = []

    async def write(self, host: Host) -> None:
        async with self.cluster.client(host) as client:
            for attempt in range(_ATTEMPTS_MAX):
                try:
                    await client.create_stream(STREAM, scaling=Scaling.fixed(3), exist_ok=True)
                    break
                except PenstockError:
                    if attempt == _ATTEMPTS_MAX - 1:
                        raise
            count = 0
            async with client.event_writer(STREAM) as writer:
                while asyncio.get_running_loop().time() < self.end_s:
                    events = [f"{host.name} {count + place}".encode() for place in range(5)]
                    for event in events:
                        await writer.write(event, f"key {host.name} {count % 7}")
                    count += len(events)
                    await writer.flush()
                    self.acknowledged += events
                    await asyncio.sleep(0.05)

    async def read_all(self, host: Host) -> None:
        async with self.cluster.client(host) as client, await client.reader_group("group", [STREAM]) as group:
            reader = await group.reader("reader")
            while (event := await reader.read(timeout_s=20)) is not None:
                self.read.append(bytes(event.data))

    async def run(self, plan: FaultPlan) -> None:
        await self.cluster.ready()
        plan.start(self.simulation)
        await asyncio.gather(*(host.run(self.write(host)) for host in self.hosts))
        await asyncio.sleep(max(0.0, plan.end_s))
        await self.cluster.ready()
        await self.hosts[0].run(self.read_all(self.hosts[0]))


def run(
    seed: int, *, is_combined: bool, sink: TextIO | None = None, duration_s: float = 12.0
) -> tuple[str, Workload, FaultPlan]:
    """Run a seed; return the simulation's digest, the workload and the plan."""
    settings = ClusterSettings(is_combined=is_combined, store_count=1 if is_combined else 2)
    with Simulation(seed, trace=Trace(sink=sink)) as simulation:
        cluster = SimulatedCluster(simulation, settings)
        workload = Workload(simulation, cluster, write_s=duration_s)
        plan = FaultPlan.draw(
            simulation.rng("faults"),
            servers=cluster.server_names,
            clients=[host.name for host in workload.hosts],
            settings=FaultSettings(duration_s=duration_s, mean_gap_s=1.5, lasts_s_max=3.0),
        )
        simulation.run(lambda: workload.run(plan))
        assert simulation.loop.unhandled == []
        return simulation.trace.digest, workload, plan


if __name__ == "__main__":
    logging.disable()
    trace = io.StringIO()
    digest, *_ = run(int(sys.argv[1]), is_combined=sys.argv[2] == "combined", sink=trace)
    sys.stdout.write(trace.getvalue())
    sys.stdout.write(f"{digest}\n")
