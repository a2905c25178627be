"""Each row of the table of faults in ``docs/guide/cluster.md``, on real processes on hosts of their own.

Each is produced under load, its bound is asserted by clients, and everything that was acknowledged is read back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from support.cluster_faults import FAULTS, ClusterFault, settle, strike
from support.network_cluster import NetworkCluster
from support.running_cluster import running_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900), pytest.mark.xdist_group("cluster")]

ROUNDS = 50


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkCluster]:
    """Two stores on each of three hosts."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), processes=2, containers=12) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: NetworkCluster) -> NetworkCluster:
    """The same for all tests, settled."""
    settle(running)
    return running


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.name))
def test_a_fault_keeps_its_bound(cluster: NetworkCluster, fault: ClusterFault) -> None:
    with cluster.load() as load:
        strike(fault, cluster, load, random.Random(fault.name))
        cluster.wait_served()
        load.finish()


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_drawn_round(cluster: NetworkCluster, seed: int) -> None:
    """Two faults, one after the other, of which the second may begin while the cluster still settles."""
    rng = random.Random(seed)
    first, second = rng.sample(FAULTS, 2)
    with cluster.load() as load:
        # Containers may still move because of the first one.
        for fault in (first, replace(second, moves=True)):
            strike(fault, cluster, load, rng)
            if rng.random() < 0.5:
                cluster.wait_served()
        settle(cluster)
        load.finish()
