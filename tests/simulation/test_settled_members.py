"""When a cluster of several machines counts as settled: nothing moves any more."""

from __future__ import annotations

import asyncio

from penstock.model.cluster_nodes import HOSTS_PATH, HostNode, HostState
from penstock_simulation.simulated.member_cluster import MemberCluster
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.storage_faults import DiskStall
from support.faultless_cluster import faultless_cluster

CLUSTER = faultless_cluster(store_count=3, container_count=3)


def is_impaired(cluster: MemberCluster) -> bool:
    hosts = [cluster.content(HostNode, f"{HOSTS_PATH}/{name}") for name in cluster.names(HOSTS_PATH)]
    return any(host is not None and host.state is HostState.IMPAIRED for host in hosts)


def test_a_cluster_is_not_settled_while_a_store_is_impaired() -> None:
    """Seed 181: a store reported late that its log had failed; its containers moved when all counted as quiet."""
    with Simulation(1) as simulation:
        cluster = MemberCluster(simulation, CLUSTER)

        async def scenario() -> tuple[int, int, int]:
            await cluster.ready()
            assert await cluster.settled() == ""
            await asyncio.sleep(5.0)
            DiskStall("store-1", "/tier1/", 16.0).strike(simulation)
            await asyncio.sleep(9.0)
            cluster.ensemble.cut("store-1", to_server=True, from_server=True)
            await asyncio.sleep(7.2)
            cluster.ensemble.mend("store-1")
            async with asyncio.timeout(10.0):
                while not is_impaired(cluster):  # noqa: ASYNC110  # the driver only polls
                    await asyncio.sleep(0.05)
            numbers = []
            for wait_s in (0.0, 60.0, 0.0):
                assignment = cluster.assignment
                assert assignment is not None
                numbers.append(assignment.number)
                if not wait_s:
                    assert await cluster.settled() == ""
                await asyncio.sleep(wait_s)
            return numbers[0], numbers[1], numbers[2]

        before, settled, later = simulation.run(scenario)
    assert before < settled
    assert later == settled
