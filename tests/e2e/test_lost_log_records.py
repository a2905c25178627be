"""A cluster whose log is in BookKeeper, when the records of its logs are lost: real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from support.bookkeeper_cluster import CONTROLLER, bookkeeper_cluster, start_all
from support.bookkeeper_server import Bookies
from support.cluster_load import Load, check_events
from support.cluster_processes import Cluster
from support.s3_server import S3Server
from support.zookeeper_server import ZooKeeperServers

# Each store has a Java virtual machine: too much beside other tests, so it runs in nightly runs.
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

CONTAINERS = 4


@pytest.fixture
def cluster(
    zookeeper_server: ZooKeeperServers, s3_server: S3Server, bookies: Bookies, tmp_path: Path
) -> Iterator[Cluster]:
    """A cluster that was made, without processes."""
    with bookkeeper_cluster(zookeeper_server, s3_server, bookies, tmp_path, CONTAINERS) as made:
        yield made


def test_lost_records_of_logs_are_made_again_from_the_ledgers(
    cluster: Cluster, zookeeper_server: ZooKeeperServers
) -> None:
    """The stores are killed, so their ledgers are open; then the nodes of the logs are deleted."""
    start_all(cluster)
    load = Load(cluster.uri(CONTROLLER))
    load.start()
    load.wait_for_more()
    count = load.stop()
    cluster.stop()
    root = cluster.zookeeper.removeprefix(zookeeper_server.address)
    service = KazooClient(zookeeper_server.address)
    service.start()
    try:
        service.delete(f"{root}/logs", recursive=True)
    finally:
        service.stop()
        service.close()
    done = cluster.command("log", "rebuild")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each["state"] for each in json.loads(done.stdout)["logs"]] == ["rebuilt"] * CONTAINERS
    start_all(cluster)
    check_events(cluster.uri(CONTROLLER), count)
