"""`bookkeeper_cluster`: a cluster of processes whose log is in BookKeeper, and whose data are in a bucket."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.bookkeeper_server import Bookies
from support.cluster_processes import Cluster
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.zookeeper_server import ZooKeeperServers

STORES = ("store-a", "store-b")
CONTROLLER = "controller-a"
SETTINGS = """
[object_storage]
flush_bytes = 65536
flush_age_s = 0.5

[object_storage.store]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "{access_key}"
secret_access_key = "{secret_key}"

[bookkeeper]
jars = "{jars}"
ledger_bytes = 262144

[cluster.leader]
join_delay_s = 1.0
first_wait_s = 1.0
"""


@contextmanager
def bookkeeper_cluster(
    zookeeper_server: ZooKeeperServers, s3_server: S3Server, bookies: Bookies, directory: Path, containers: int
) -> Iterator[Cluster]:
    """Make a cluster, without processes; end those that were started."""
    pytest.importorskip("jpype")
    bucket = s3_server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
    made = Cluster(
        directory,
        f"{zookeeper_server.address}/{bucket}",
        bookies.url,
        f"s3://{bucket}/data",
        SETTINGS.format(endpoint=s3_server.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY, jars=bookies.jars),
    )
    made.init(containers)
    try:
        yield made
    finally:
        made.stop()


def start_all(cluster: Cluster) -> None:
    """Start two stores and a controller, and wait until all containers are served."""
    for name in STORES:
        cluster.start_store(name)
    cluster.start_controller(CONTROLLER)
    for process in cluster.processes.values():
        process.wait_ready()
    cluster.wait_served()
