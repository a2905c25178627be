"""When the parent of a killed store starts another process: after others have taken over, in virtual time."""

from __future__ import annotations

import asyncio

from penstock.model.cluster_nodes import HOSTS_PATH, split_host_node_name
from penstock.segmentstore.cluster.settings import MemberSettings
from penstock_simulation.simulated.member_cluster import MemberCluster
from penstock_simulation.simulated.member_steering import MemberSteering
from penstock_simulation.simulated.simulation import Simulation
from support.faultless_cluster import faultless_cluster

TAKE_OVER_S = MemberSettings().take_over_s
#: The death of a process is noticed, another one begins, and announces itself.
START_S_MAX = 1.5
#: A stop waits for the next check of the parent.
STOP_S_MAX = 0.5
#: Other stores lose their power, and their sessions end.
SESSION_S = 12.0
CLUSTER = faultless_cluster(store_count=2, container_count=3)


def names(cluster: MemberCluster) -> list[tuple[str, str]]:
    """The live stores: name and incarnation."""
    return [split_host_node_name(node) for node in cluster.names(HOSTS_PATH)]


async def time_until_back_s(cluster: MemberCluster, store: str, killed: str) -> float:
    """Wait for another incarnation of a store, and return how long it took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.timeout(60.0):
        while all(name != store or each == killed for name, each in names(cluster)):  # noqa: ASYNC110  # only polls
            await asyncio.sleep(0.05)
    return loop.time() - began_s


def restart_s(*, is_other_lost: bool = False, is_other_lost_later: bool = False, is_cut: bool = False) -> float:
    """Kill a store of two, and return how long it takes until it is announced again.

    `is_cut`: its parent does not reach the coordination service.
    """
    with Simulation(1) as simulation:
        cluster = MemberCluster(simulation, CLUSTER)
        faults = MemberSteering(cluster)

        async def scenario() -> float:
            await cluster.ready()
            assert await cluster.settled() == ""
            if is_other_lost:
                faults.lose_machine("store-2", 300.0)
                await asyncio.sleep(SESSION_S)
            if is_cut:
                faults.cut_coordination("parent-1", 300.0, to_server=True, from_server=True)
                await asyncio.sleep(SESSION_S)
            killed = dict(names(cluster))["store-1"]
            faults.kill_store("store-1", 0.0)
            if is_other_lost_later:
                faults.lose_machine("store-2", 300.0)
            return await time_until_back_s(cluster, "store-1", killed)

        return simulation.run(scenario)


def test_a_killed_store_is_started_after_the_others_have_taken_over() -> None:
    assert TAKE_OVER_S < restart_s() < TAKE_OVER_S + START_S_MAX


def test_a_killed_store_is_started_at_once_if_no_other_is_live() -> None:
    assert restart_s(is_other_lost=True) < START_S_MAX


def test_a_killed_store_is_not_kept_down_by_one_that_is_lost_with_it() -> None:
    assert restart_s(is_other_lost_later=True) < TAKE_OVER_S + START_S_MAX


def test_a_killed_store_is_started_at_once_if_its_parent_does_not_reach_the_coordination_service() -> None:
    assert restart_s(is_cut=True) < START_S_MAX


def test_a_parent_that_stops_meanwhile_starts_nothing_and_does_not_wait() -> None:
    with Simulation(1) as simulation:
        cluster = MemberCluster(simulation, CLUSTER)
        faults = MemberSteering(cluster)

        async def scenario() -> tuple[float, list[str]]:
            await cluster.ready()
            assert await cluster.settled() == ""
            faults.kill_store("store-1", 0.0)
            await asyncio.sleep(TAKE_OVER_S / 2)
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            await cluster.shut_down(cluster.parents[0])
            stop_s = loop.time() - began_s
            await asyncio.sleep(TAKE_OVER_S + START_S_MAX)
            return stop_s, [name for name, _ in names(cluster)]

        stop_s, live = simulation.run(scenario)
    assert stop_s < STOP_S_MAX
    assert live == ["store-2"]
