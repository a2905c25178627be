"""Faults of a cluster whose log is on four bookies, with three ZooKeepers: real processes on hosts of their own.

Each is produced under load, its bound is asserted by clients, and everything that was acknowledged is read back.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from support.cluster_faults import BOOKIE_FAULTS, FAULTS, ClusterFault, settle, strike
from support.network_cluster import NetworkCluster
from support.running_cluster import running_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900), pytest.mark.xdist_group("cluster")]

#: Those that other parts than the log decide are covered with the log in a bucket.
OTHERS = (
    "a store's process killed", "a store's host lost", "a store's host held", "a store's host cut off",
    "a store's host cut off from ZooKeeper", "ZooKeeper killed", "a store drained",
)  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkCluster]:
    """One store on each of three hosts."""
    pytest.importorskip("jpype")
    with running_cluster(tmp_path_factory.mktemp("cluster"), containers=6, bookies=4) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: NetworkCluster) -> NetworkCluster:
    """The same for all tests, settled."""
    settle(running)
    return running


@pytest.mark.parametrize(
    "fault", [*BOOKIE_FAULTS, *(each for each in FAULTS if each.name in OTHERS)], ids=lambda fault: str(fault.name)
)
def test_a_fault_keeps_its_bound(cluster: NetworkCluster, fault: ClusterFault) -> None:
    with cluster.load() as load:
        found = strike(fault, cluster, load, random.Random(fault.name))
        cluster.wait_served()
        load.finish()
    print(found)  # noqa: T201
