"""`running_cluster`: a `NetworkCluster` for tests, which are skipped, with a reason, where it cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.bookkeeper_server import BookiesStartError, BookiesUnavailableError
from support.namespaces import NamespacesUnavailableError, Network
from support.network_cluster import NetworkCluster
from support.s3_server import S3StartError, S3UnavailableError, find_versitygw
from support.zookeeper_server import ZooKeeperStartError, ZooKeeperUnavailableError, find_jars, find_java


@contextmanager
def running_cluster(
    directory: Path, *, processes: int = 1, containers: int = 6, bookies: int = 0
) -> Iterator[NetworkCluster]:
    """Start a cluster of three hosts with segment stores, two controllers and three servers of ZooKeeper.

    `bookies`: so many for the log; 0: it is in the bucket.
    """
    with ExitStack() as stack:
        try:
            find_java(), find_jars(), find_versitygw()
            network = Network()
            stack.callback(network.close)
            cluster = NetworkCluster(
                directory, network, containers=containers, stores=3, processes=processes, bookies=bookies
            )
        except (
            BookiesUnavailableError, NamespacesUnavailableError, S3UnavailableError, ZooKeeperUnavailableError
        ) as error:  # fmt: skip
            if os.environ.get("CI") and isinstance(error, (BookiesStartError, S3StartError, ZooKeeperStartError)):
                raise
            pytest.skip(str(error))
        stack.callback(cluster.stop)
        if not cluster.bucket_server.is_atomic:
            pytest.skip("versitygw replaces objects in one step only where files have extended attributes")
        cluster.start_all()
        yield cluster
