"""Suites of a single server, against a cluster of which one store and one controller are killed every 20 s."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.killed_cluster import CONTAINERS, CONTROLLERS, INTERVAL_S, ClusterServer, KilledCluster
from support.network_cluster import LoadProcess
from support.s3_server import S3Server
from support.zookeeper_server import ZooKeeperServers

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(7200)]

TESTS = Path(__file__).resolve().parents[1]
#: With the tests of each that expect a server to be killed, and the controllers that each is given: the PyPI client
#: takes one address, and most of its calls fail at once while nothing listens there.
SUITES = {
    "interop/test_pypi_pravega.py": ("across_restarts or a_kill_of_the_server", CONTROLLERS[:1]),
    "interop/test_java_client_streams.py": ("test", CONTROLLERS),
    "interop/test_java_client_tables.py": ("test", CONTROLLERS),
    "interop/test_java_client_state.py": ("test", CONTROLLERS),
    "interop/test_java_client_groups.py": ("test", CONTROLLERS),
}
#: Processes that are killed while a suite runs, at least: one that is through before is repeated.
KILLS_MIN = 8
LOAD_S = 300.0
SPARK_RUNS = 4


@pytest.fixture
def killed(zookeeper_server: ZooKeeperServers, s3_server: S3Server, tmp_path: Path) -> Iterator[KilledCluster]:
    """The cluster; in the end something was killed, and everything was started again."""
    if not s3_server.is_atomic:
        pytest.skip("versitygw replaces objects in one step only where files have extended attributes")
    with KilledCluster(tmp_path, zookeeper_server, s3_server, seed=1) as running:
        yield running
    assert running.problem is None, running.problem


@pytest.mark.interop
@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_passes(killed: KilledCluster, suite: str) -> None:
    selection, controllers = SUITES[suite]
    run_count = 0
    while killed.kill_count < KILLS_MIN and killed.problem is None:
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", selection,
                str(TESTS / suite),
            ],
            env=killed.environment(*controllers), cwd=TESTS.parent, capture_output=True, text=True, check=False,
        )  # fmt: skip
        run_count += 1
        sys.stdout.write(f"{done.stdout[-500:]}\nrun {run_count}, {killed.kill_count} processes were killed\n")
        assert done.returncode == 0, done.stdout[-5000:]
        if re.search(r"\d+ passed", done.stdout) is None:
            pytest.skip(f"nothing of it runs here: {done.stdout[-500:]}")


def test_all_promises_are_kept(killed: KilledCluster) -> None:
    """Events, transactions, a table, a reader group and raw appends, as in the tests that kill a single server."""
    command = [
        sys.executable, "-m", "penstock_simulation.processes.cluster_load", killed.cluster.uri(*CONTROLLERS), "1",
        str(CONTAINERS),
    ]  # fmt: skip
    load = LoadProcess(command, killed.cluster.directory / "clients.log")
    try:
        time.sleep(LOAD_S)
        load.finish()
    finally:
        load.close()
    assert killed.kill_count >= LOAD_S / INTERVAL_S / 4


@pytest.mark.spark
@pytest.mark.parametrize("victim", ["driver", "worker", "export"])
def test_spark_queries_and_exports_are_exact(killed: KilledCluster, tmp_path: Path, victim: str) -> None:
    """Processes of Spark or the export die, too."""
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")
    from support.spark_kills import KillRuns

    (tmp_path / "spark").mkdir()
    server = ClusterServer(tmp_path, killed.cluster.uri(*CONTROLLERS))
    with KillRuns(tmp_path / "spark", seed=1, store=server) as runs:
        # If a worker is killed while Spark searches for data sources, the session never finds them.
        runs.run("nothing")
        for _ in range(SPARK_RUNS):
            runs.run(victim)
            sys.stdout.write(f"{killed.kill_count} processes of the cluster were killed; {runs.report}\n")
            assert runs.report.is_exact, runs.report
    assert runs.report.kills[victim] > 0, runs.report
    assert killed.kill_count >= SPARK_RUNS
