"""A cluster whose log is in BookKeeper, when two or all of its bookies are lost: real processes.

A writer runs all the time. In the end every acknowledged event is there, once, in the order of its key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.bookkeeper_cluster import CONTROLLER, STORES, bookkeeper_cluster, start_all
from support.bookkeeper_server import Bookies
from support.cluster_load import Load, check_events
from support.cluster_processes import WAIT_S, Cluster
from support.s3_server import S3Server
from support.zookeeper_server import ZooKeeperServers

# Each store has a Java virtual machine: too much beside other tests, so it runs in nightly runs.
pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

CONTAINERS = 4
#: Appends that wait are a problem after 5 s, and the bookies are examined every 2 s.
NOTICED_S = 180.0
#: For so long nothing may be acknowledged without bookies.
SILENT_S = 10.0


@pytest.fixture
def cluster(
    zookeeper_server: ZooKeeperServers, s3_server: S3Server, bookies: Bookies, tmp_path: Path
) -> Iterator[Cluster]:
    """A cluster that was made, without processes."""
    with bookkeeper_cluster(zookeeper_server, s3_server, bookies, tmp_path, CONTAINERS) as made:
        yield made


@contextmanager
def all_back(bookies: Bookies) -> Iterator[None]:
    """Start again, at the end, each bookie that was killed."""
    try:
        yield
    finally:
        bookies.restore()


def reason(cluster: Cluster) -> str:
    """Return why ``penstock ready`` fails; empty: it does not."""
    done = cluster.penstock("ready", "--uri", cluster.uri(CONTROLLER), "--timeout", "30s", "--json")
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_two_bookies_are_enough_and_without_any_appends_wait_and_ready_gives_the_reason(
    cluster: Cluster, bookies: Bookies
) -> None:
    """Of four bookies two are killed, then the others; all resumes by itself when they are back."""
    start_all(cluster)
    load = Load(cluster.uri(CONTROLLER))
    load.start()
    load.wait_for_more()
    with all_back(bookies):
        bookies.kill(0)
        bookies.kill(1)
        load.wait_for_more()
        bookies.kill(2)
        bookies.kill(3)
        deadline_s = time.monotonic() + NOTICED_S
        while "bookies" not in (found := reason(cluster)) and "BookKeeper" not in found:
            assert time.monotonic() < deadline_s, found
            time.sleep(1)
        before = load.acknowledged
        time.sleep(SILENT_S)
        assert load.acknowledged == before
        assert load.error is None
    load.wait_for_more()
    deadline_s = time.monotonic() + WAIT_S
    while found := reason(cluster):
        assert time.monotonic() < deadline_s, found
        time.sleep(1)
    count = load.stop()
    check_events(cluster.uri(CONTROLLER), count)
    for name in STORES:
        assert cluster.processes[name].is_running
