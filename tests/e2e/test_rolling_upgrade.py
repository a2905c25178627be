"""A cluster of real processes is upgraded from an earlier commit to this one and back, one process after the other.

Each process runs the Penstock of a wheel: that of an earlier commit, or that of this checkout. Clients of both write,
read, commit, and change tables meanwhile. In the end nothing is lost, doubled or out of order.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.cluster_processes import WAIT_S, Cluster, environment_of
from support.network_cluster import SETTINGS, LoadProcess
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.two_versions import ROOT, sources_of, unpacked_wheel
from support.zookeeper_server import ZooKeeperServers

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

#: The first commits with clusters, before stores reported loads, had states, and could be secured.
EARLIER = "76dea5a9"
CONTAINERS = 4
STORES, CONTROLLERS = ("a", "b"), ("c1", "c2")
#: In which order processes are replaced.
ORDERS = {"controllers first": (*CONTROLLERS, *STORES), "stores first": (*STORES, *CONTROLLERS)}


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The earlier version and this one, each as its wheel installs it."""
    folder = tmp_path_factory.mktemp("versions")
    return unpacked_wheel(sources_of(EARLIER, folder), folder), unpacked_wheel(ROOT, folder)


@contextmanager
def earlier_clients(cluster: Cluster, earlier: Path) -> Iterator[subprocess.Popen[str]]:
    """Clients of the earlier version, which write all the time."""
    tests = Path(__file__).parents[1]
    with (cluster.directory / "earlier-clients.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.cluster_load", cluster.uri(*CONTROLLERS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            env=environment_of(earlier) | {"PYTHONPATH": f"{earlier}:{tests}"},
        )  # fmt: skip
    try:
        assert process.stdout is not None
        assert Path(process.stdout.readline().strip()).is_relative_to(earlier)
        yield process
    finally:
        process.kill()
        process.wait()


def replace_all(cluster: Cluster, version: Path, names: tuple[str, ...], load: LoadProcess) -> None:
    """Replace one process after the other, each as an operator does: stop it, start it, wait until it is ready."""
    for name in names:
        assert cluster.processes[name].terminate() == 0, name
        load.wait_answered()
        cluster.sources = version
        (cluster.start_store if name in STORES else cluster.start_controller)(name).wait_ready()
        cluster.wait_served()
        load.wait_answered()


@pytest.mark.parametrize("order", ORDERS)
def test_a_cluster_is_upgraded_and_downgraded_under_load(
    versions: tuple[Path, Path], zookeeper_server: ZooKeeperServers, s3_server: S3Server, tmp_path: Path, order: str
) -> None:
    earlier, later = versions
    bucket = s3_server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
    cluster = Cluster(
        tmp_path, f"{zookeeper_server.address}/{bucket}", f"s3://{bucket}/log", f"s3://{bucket}/data",
        SETTINGS.format(endpoint=s3_server.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY),
    )  # fmt: skip
    cluster.sources = earlier
    cluster.init(CONTAINERS)
    try:
        for name in STORES:
            cluster.start_store(name)
        for name in CONTROLLERS:
            cluster.start_controller(name)
        for process in cluster.processes.values():
            process.wait_ready()
        cluster.wait_served()
        command = [
            sys.executable, "-m", "penstock_simulation.processes.cluster_load", cluster.uri(*CONTROLLERS), "1",
            str(CONTAINERS),
        ]  # fmt: skip
        load = LoadProcess(command, tmp_path / "clients.log")
        try:
            with earlier_clients(cluster, earlier) as clients:
                replace_all(cluster, later, ORDERS[order], load)
                replace_all(cluster, earlier, ORDERS[order][::-1], load)
                replace_all(cluster, later, ORDERS[order], load)
                written, error = clients.communicate(timeout=2 * WAIT_S)
                assert clients.returncode == 0, error
                assert int(written) > 0
            counts = load.finish()
        finally:
            load.close()
    finally:
        cluster.stop()
    for kind in ("WriteEvent ok", "CommitTransaction ok", "PutKey ok", "AppendBytes ok", "EventSeen"):
        assert counts.get(kind, 0) > 0, counts
