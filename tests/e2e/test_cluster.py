"""A cluster of real processes: ZooKeeper, a bucket, controllers and segment stores, of which some are killed.

A writer runs all the time. In the end every acknowledged event is there, once, in the order of its key.
"""

from __future__ import annotations

import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.standalone_process import run_penstock
from support.cluster_load import Load, check_events
from support.cluster_processes import WAIT_S, Cluster, kill_process
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.zookeeper_server import ZooKeeperServers

pytestmark = pytest.mark.e2e

CONTAINERS = 6
SETTINGS = """
[object_storage]
flush_bytes = 65536
flush_age_s = 0.5

[object_storage.store]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "{access_key}"
secret_access_key = "{secret_key}"

[object_log]
batch_interval_s = 0.02

[cluster.leader]
join_delay_s = 1.0
first_wait_s = 1.0
"""


@pytest.fixture
def cluster(zookeeper_server: ZooKeeperServers, s3_server: S3Server, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that was made, without processes."""
    if not s3_server.is_atomic:
        pytest.skip("versitygw replaces objects in one step only where files have extended attributes")
    bucket = s3_server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
    made = Cluster(
        tmp_path,
        f"{zookeeper_server.address}/{bucket}",
        f"s3://{bucket}/log",
        f"s3://{bucket}/data",
        SETTINGS.format(endpoint=s3_server.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY),
    )
    made.init(CONTAINERS)
    yield made
    made.stop()


def start_all(cluster: Cluster, stores: str = "abc") -> None:
    """Start stores and two controllers, and wait until all containers are served."""
    for name in stores:
        cluster.start_store(name)
    for name in ("c1", "c2"):
        cluster.start_controller(name)
    for process in cluster.processes.values():
        process.wait_ready()
    cluster.wait_served()


def test_a_killed_store_is_replaced(cluster: Cluster) -> None:
    """Its parent proves its end, and starts it again; no event is lost, doubled or out of order."""
    start_all(cluster, "ab")
    load = Load(cluster.uri("c1", "c2"))
    load.start()
    load.wait_for_more()
    (pid,) = cluster.processes["a"].store_pids()
    kill_process(pid)
    load.wait_for_more()
    cluster.wait_served()
    check_events(cluster.uri("c2"), load.stop())
    for name, metric in (("b", b"penstock_container"), ("c2", b"penstock_rpc_in_flight")):
        port = cluster.metrics_ports[name]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=WAIT_S) as answer:
            assert answer.status == 200
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
            assert metric in answer.read()
    for options in (["--store", f"localhost:{cluster.ports['b']}"], ["--controller", "--uri", cluster.uri("c1")]):
        done = run_penstock("ready", *options, "--timeout-s", str(WAIT_S), timeout_s=2 * WAIT_S)
        assert done.returncode == 0, done.stderr
    assert cluster.processes["a"].terminate() == 0


@pytest.mark.nightly
def test_a_cluster_survives_the_loss_of_each_part(cluster: Cluster) -> None:
    """A store's process, a store's host, the leader, and then a rolling restart of everything."""
    start_all(cluster)
    uri = cluster.uri("c1", "c2")
    load = Load(uri)
    load.start()
    load.wait_for_more()
    (pid,) = cluster.processes["a"].store_pids()
    kill_process(pid)
    load.wait_for_more()
    cluster.wait_served()
    cluster.processes["b"].kill()
    load.wait_for_more()
    cluster.wait_served()
    load.wait_for_more()
    cluster.start_store("b").wait_ready()
    leader = str(cluster.status()["leader"])
    cluster.processes[leader].kill()
    load.wait_for_more()
    (pid,) = cluster.processes["c"].store_pids()
    kill_process(pid)
    load.wait_for_more()
    cluster.start_controller(leader).wait_ready()
    cluster.wait_served()
    for name in "abc":
        assert cluster.processes[name].terminate() == 0
        load.wait_for_more()
        cluster.start_store(name).wait_ready()
        cluster.wait_served()
    for name in ("c1", "c2"):
        assert cluster.processes[name].terminate() == 0
        load.wait_for_more()
        cluster.start_controller(name).wait_ready()
    load.wait_for_more()
    check_events(uri, load.stop())
