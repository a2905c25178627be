"""A cluster that an earlier commit left when all its processes were killed, opened, read and written by those of today.

`tests/support/old_cluster.py` made it and says what is in it: the objects of its bucket, and its nodes in ZooKeeper.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

import penstock
from support.cluster_processes import Cluster
from support.old_cluster import ARCHIVES, BUCKET, restore_nodes, restore_objects, settings, unpacked
from support.old_contents import check_contents, read_and_add
from support.s3_server import S3Server, S3UnavailableError
from support.zookeeper_server import ZooKeeperServers

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_cluster_of_an_earlier_commit_is_read_and_written(
    name: str, zookeeper_server: ZooKeeperServers, tmp_path: Path
) -> None:
    archive = unpacked(name)
    try:
        server = S3Server(tmp_path / "s3").start()
    except S3UnavailableError as error:
        pytest.skip(str(error))
    if not server.is_atomic:
        pytest.skip("versitygw replaces objects in one step only where files have extended attributes")
    server.make_bucket(BUCKET)
    root = f"old-{uuid.uuid4().hex[:8]}"
    cluster = Cluster(
        tmp_path, f"{zookeeper_server.address}/{root}", f"s3://{BUCKET}/log", f"s3://{BUCKET}/data", settings(server)
    )
    try:
        restore_objects(server, archive)
        restore_nodes(zookeeper_server, f"/{root}", archive)
        cluster.start_store("a")
        cluster.start_controller("c1")
        for process in cluster.processes.values():
            process.wait_ready()
        cluster.wait_served()
        with penstock.connect(cluster.uri("c1")) as client:
            check_contents(client)
            read_and_add(client)
        cluster.processes["a"].kill()
        cluster.start_store("a").wait_ready()
        cluster.wait_served()
        with penstock.connect(cluster.uri("c1")) as client:
            check_contents(client, added=2)
    finally:
        cluster.stop()
        server.kill()
