"""Two stores with one name, and a cluster whose ZooKeeper has lost its data, on real processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster_processes import ClusterProcess
from support.network_cluster import NetworkCluster
from support.running_cluster import running_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NetworkCluster]:
    """One store on each of three hosts."""
    with running_cluster(tmp_path) as running:
        yield running


def test_of_two_stores_with_one_name_the_newer_has_the_containers(cluster: NetworkCluster) -> None:
    """It is started by mistake on the host of another store. The older one says so, and takes over when it is gone."""
    with cluster.load() as load:
        other = cluster.host("s3")
        arguments = [
            "segment-store", "--zookeeper", cluster.zookeeper, "--config", str(cluster.config), "--name", "s1",
            "--port", "6100", "--host", other.address, "--insecure",
        ]  # fmt: skip
        newer = ClusterProcess(cluster.directory, "newer", arguments, other)
        newer.start()
        try:
            newer.wait_ready()
            load.wait_answered()
            listed = [row for row in cluster.rows("stores") if row["name"] == "s1"]
            assert str(listed[0]["endpoints"]).count(other.address) == 1, listed
            cluster.wait_served()
            load.wait_answered()
            assert "another process runs as store s1" in cluster.processes["s1"].log
            assert newer.terminate() == 0
        finally:
            newer.kill()
        load.wait_answered()
        cluster.wait_even()
        assert str([row for row in cluster.rows("stores") if row["name"] == "s1"]).count(cluster.address("s1")) == 1
        load.finish()


def test_a_cluster_without_the_data_of_zookeeper_is_adopted_from_its_log(cluster: NetworkCluster) -> None:
    """Starts are refused, and so is a new cluster on that log. Adopted, everything acknowledged is there."""
    with cluster.load() as load:
        load.wait_answered()
        counts = load.finish()
    identity = cluster.status()["cluster_id"]
    for process in cluster.processes.values():
        process.kill()
    cluster.zookeepers.stop()
    for number in range(cluster.zookeepers.count):
        shutil.rmtree(cluster.directory / "zookeeper" / f"server-{number + 1}")
        cluster.zookeepers.launch(number)
    for number in range(cluster.zookeepers.count):
        assert cluster.zookeepers.wait_until_ready(number)
    # A process that was there before, in place of one that starts for the first time.
    cluster.start("s1")
    assert cluster.processes["s1"].wait() == 1
    assert "there is no cluster" in cluster.processes["s1"].log + str(cluster.processes["s1"].records)
    where = ("--containers", str(cluster.containers), *cluster.places)
    refused = cluster.command("init", *where)
    assert refused.returncode == 1
    assert "--adopt" in refused.stdout + refused.stderr
    made = cluster.command("init", *where, "--adopt")
    assert made.returncode == 0, made.stdout + made.stderr
    assert json.loads(made.stdout)["cluster_id"] == identity
    cluster.start_all()
    done = cluster.penstock("read", "faults-1/events", "--uri", cluster.uri("c1"))
    assert done.returncode == 0, done.stderr
    # Those of the follower, and those of the reading in the end.
    assert 2 * len(done.stdout.splitlines()) == counts["EventSeen"]
