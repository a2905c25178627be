"""The soak run: starts the cluster, its clients and faults, samples resources, and ends with the report."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from penstock.server.standalone_process import child_environment
from penstock_tools.soak.nemesis import Nemesis
from penstock_tools.soak.pipelines import Exports, SparkQuery
from penstock_tools.soak.samples import sample
from support.cluster_processes import WAIT_S
from support.namespaces import Network
from support.network_cluster import NetworkCluster
from support.s3_server import S3UnavailableError

CHECKOUT = Path(__file__).parents[3]
#: Bound for the answer of Git about the checkout.
GIT_TIMEOUT_S = 60.0
CONTAINERS, STORES, CONTROLLERS, ZOOKEEPERS = 6, 3, 2, 3
SAMPLE_INTERVAL_S = 60.0
EXPORT_INTERVAL_S = 600.0
#: Share of the run at its end without faults: there, processes live long enough to show what grows in them.
CALM_SHARE = 0.25
#: Batches of the log are as large as a light load permits. Log and cache are small, so that both have reached their
#: usual size long before the calm part begins.
SETTINGS = """
[object_storage]
flush_bytes = 262144
flush_age_s = 5.0

[object_storage.store]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "{access_key}"
secret_access_key = "{secret_key}"

[object_log]
batch_interval_s = 0.1

[segment_store.container]
checkpoint_log_bytes = 4194304

[segment_store.cache]
bytes_max = 16777216
"""
#: Bound of the time that the clients take to read and check everything at the end.
END_S_MAX = 3600.0


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, with ``+`` if files of it are changed; empty if it is no checkout of Git."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


@dataclass(frozen=True, slots=True)
class SoakSettings:
    """One run. `interval_s`: of samples."""

    seconds: float
    seed: int
    directory: Path
    has_spark: bool = True
    interval_s: float = SAMPLE_INTERVAL_S


class SoakRun:
    """One run. Everything that is measured or found is in the directory at once, line by line."""

    def __init__(self, settings: SoakSettings) -> None:
        self._settings = settings
        self._directory = settings.directory
        self.violation_count = 0

    def report(self, text: str) -> None:
        """Record a broken promise."""
        self.violation_count += 1
        with (self._directory / "violations.jsonl").open("a") as file:
            file.write(json.dumps({"at": round(time.time(), 3), "text": text}) + "\n")

    def run(self) -> None:
        """Run all of it. Raises `NamespacesUnavailableError` and the like where there can be no cluster."""
        settings, directory = self._settings, self._directory
        directory.mkdir(parents=True)
        with ExitStack() as stack:
            network = Network()
            stack.callback(network.close)
            cluster = NetworkCluster(
                directory / "cluster", network, containers=CONTAINERS, stores=STORES, controllers=CONTROLLERS,
                zookeepers=ZOOKEEPERS, settings=SETTINGS,
            )  # fmt: skip
            stack.callback(cluster.stop)
            if not cluster.bucket_server.is_atomic:
                raise S3UnavailableError(f"the file system of {directory} has no extended attributes")
            cluster.start_all()
            uri = cluster.uri(*cluster.controller_names)
            clients = self._start_clients(cluster, uri)
            stack.callback(clients.kill)
            self._wait_begun(clients)
            spark = SparkQuery(cluster.host("client"), uri, directory / "spark")
            stack.callback(spark.stop)
            exports = Exports(cluster.host("client"), uri, directory / "exports" / "payments", self.report)
            begin_s = time.monotonic()
            self._note({
                "begin": time.time(), "seconds": settings.seconds, "seed": settings.seed, "commit": commit_of(CHECKOUT)
            })  # fmt: skip
            calm_at_s = begin_s + settings.seconds * (1 - CALM_SHARE)
            nemesis = Nemesis(cluster, settings.seed, directory, self.report, calm_at_s)
            nemesis.start()
            self._watch(cluster, clients, spark, exports, nemesis, begin_s)
            nemesis.stop()
            self._end(clients, exports, spark)

    def _start_clients(self, cluster: NetworkCluster, uri: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-m", "penstock_tools.soak.clients", uri, str(self._settings.seed), str(self._directory)
        ]  # fmt: skip
        with (self._directory / "clients.log").open("ab") as log:
            return subprocess.Popen(
                cluster.host("client").command(*command), stdin=subprocess.PIPE, stdout=log, stderr=log,
                env=child_environment(),
            )  # fmt: skip

    def _wait_begun(self, clients: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not (self._directory / "status.jsonl").exists():
            if clients.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"the clients do not start:\n{(self._directory / 'clients.log').read_text()[-3000:]}"
                )
            time.sleep(0.1)

    def _watch(
        self, cluster: NetworkCluster, clients: subprocess.Popen[bytes], spark: SparkQuery, exports: Exports,
        nemesis: Nemesis, begin_s: float,
    ) -> None:  # fmt: skip
        """Sample until the time is over, or until the clients end, which they never should."""
        settings = self._settings
        next_export_s = begin_s + min(EXPORT_INTERVAL_S, settings.seconds) / 3
        next_sample_s = begin_s
        bucket = next(each for each in (cluster.directory / "s3" / "data").iterdir() if each.is_dir())
        while time.monotonic() - begin_s < settings.seconds:
            if clients.poll() is not None:
                self.report("the process of the clients ended before the end of the run")
                return
            if settings.has_spark:
                spark.keep_running()
                for violation in spark.check():
                    self.report(violation)
            if time.monotonic() >= next_export_s:
                next_export_s += EXPORT_INTERVAL_S
                exports.begin()
            if time.monotonic() >= next_sample_s:
                next_sample_s += settings.interval_s
                others = {"clients": clients.pid, "spark": spark.pid, **_servers(cluster)}
                taken = sample(cluster, bucket, others)
                self._append("samples.jsonl", {
                    **taken, "fault": nemesis.active, "faults": nemesis.fault_count, "spark_events": spark.event_count,
                    "spark_starts": spark.start_count, "spark_failures": spark.failure_count,
                    "exported": exports.event_count, "exports": exports.export_count,
                    "exports_failed": exports.failure_count,
                })  # fmt: skip
            time.sleep(1.0)

    def _end(self, clients: subprocess.Popen[bytes], exports: Exports, spark: SparkQuery) -> None:
        """Have everything read and checked."""
        try:
            clients.communicate(b"end\n", timeout=END_S_MAX)
        except subprocess.TimeoutExpired:
            self.report(f"the clients have not ended {END_S_MAX:g} s after the end of the load")
        ended = self._directory / "end.json"
        if not ended.exists():
            self.report("the clients did not end in order: see clients.log")
            return
        counts = json.loads(ended.read_text())
        exports.wait()
        if exports.export():
            for violation in exports.incomplete():
                self.report(violation)
            if exports.event_count != counts["committed_events"]:
                self.report(f"{counts['committed_events']} events were committed, {exports.event_count} are exported")
        else:
            self.report("the last export failed: see exports/exports.jsonl")
        if self._settings.has_spark:
            for violation in spark.finish(counts["acknowledged"]):
                self.report(violation)
        self._note({
            "end": time.time(), "spark_events": spark.event_count, "spark_is_complete": spark.is_complete,
            "exported": exports.event_count,
        })  # fmt: skip

    def _note(self, values: dict[str, object]) -> None:
        self._append("run.jsonl", values)

    def _append(self, name: str, values: dict[str, object]) -> None:
        with (self._directory / name).open("a") as file:
            file.write(json.dumps(values) + "\n")


def _servers(cluster: NetworkCluster) -> dict[str, int | None]:
    """Return the process ids of the servers that are not Penstock's."""
    bucket = cluster.bucket_server.process
    pids: dict[str, int | None] = {"bucket": None if bucket is None else bucket.pid}
    for number in range(cluster.zookeepers.count):
        pids[f"zookeeper {number + 1}"] = cluster.zookeepers.pid(number)
    return pids
