"""Unmodified clients of Pravega, PyPI `pravega` (Rust) and Java, with a cluster whose log loses a bookie."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock_simulation.java_client import JavaUnavailableError
from support import java_client
from support.bookkeeper_cluster import CONTROLLER, bookkeeper_cluster, start_all
from support.bookkeeper_server import Bookies
from support.cluster_processes import Cluster
from support.java_calls_streams import create_scope, create_stream, read_batch, write_events
from support.s3_server import S3Server
from support.zookeeper_server import ZooKeeperServers

if TYPE_CHECKING:
    from interop.conftest import JavaHolder
else:
    pytest.importorskip("pravega_client", reason="PyPI pravega exists for Python 3.11 and older only")

pytestmark = [pytest.mark.interop, pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

WORKER = Path(__file__).with_name("pypi_worker.py")
CONTAINERS = 4
EVENT_COUNT = 30_000
KEY_COUNT = 64
TIMEOUT_S = 600.0


@pytest.fixture
def cluster(
    zookeeper_server: ZooKeeperServers, s3_server: S3Server, bookies: Bookies, tmp_path: Path
) -> Iterator[Cluster]:
    """A cluster that serves."""
    with bookkeeper_cluster(zookeeper_server, s3_server, bookies, tmp_path, CONTAINERS) as made:
        start_all(made)
        yield made


def worker(*arguments: str) -> subprocess.Popen[str]:
    """Start the PyPI client."""
    return subprocess.Popen([sys.executable, str(WORKER), *arguments], stdout=subprocess.PIPE, text=True)


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    """Wait for the end of the PyPI client, and return what it has read."""
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    *lines, last = output.splitlines()
    assert (process.returncode, last) == (0, "done")
    return [line for line in lines if line != "begun"]


def check(events: Sequence[str]) -> None:
    """Check that each event is there once, in the order of its key."""
    found: dict[str, list[int]] = defaultdict(list)
    for event in events:
        key, number = event.split(":")
        found[key].append(int(number))
    assert found == {f"key{key}": list(range(key, EVENT_COUNT, KEY_COUNT)) for key in range(KEY_COUNT)}


def test_clients_of_pravega_lose_and_double_nothing_while_a_bookie_is_lost(
    cluster: Cluster, bookies: Bookies, java_holder: JavaHolder
) -> None:
    """Each writes a stream when a bookie is killed, and reads the stream of the other one while it is away."""
    try:
        java = java_holder.running()
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    uri = cluster.uri(CONTROLLER)
    java.run(java_client.connect, uri)
    assert java.run(create_scope)
    for stream in ("rust", "java"):
        assert java.run(create_stream, stream, 4)
    in_rust = worker("write", uri, "rust", "0", str(EVENT_COUNT))
    in_java = java.start(write_events, "java", 0, EVENT_COUNT, KEY_COUNT)
    assert in_rust.stdout is not None
    assert in_rust.stdout.readline() == "begun\n"
    in_java.wait_for("begun", TIMEOUT_S)
    bookies.kill(1)
    try:
        lines_of(in_rust)
        in_java.result(TIMEOUT_S)
        check(lines_of(worker("read", uri, "java", "audit", "2", str(EVENT_COUNT))))
        check(java.start(read_batch, "rust", "", "").result(TIMEOUT_S)[0])
        java.run(java_client.disconnect)
    finally:
        bookies.launch(1)
        bookies.wait_until_ready(1)
