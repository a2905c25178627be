"""`NetworkCluster`: ZooKeeper, segment stores, controllers, a bucket and clients, each on a host of a `Network`.

The log is in the bucket, or in bookies, each on a host, too.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.server.standalone_process import child_environment
from support.bookkeeper_server import Bookies
from support.cluster_processes import WAIT_S, Cluster
from support.namespaces import Host, Network
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.zookeeper_server import ZooKeeperServers

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

[segment_store.cache]
bytes_max = 67108864
"""
#: With bookies.
LOG_SETTINGS = """
[bookkeeper]
jars = "{jars}"
"""


class LoadProcess:
    """The clients, in a process on a host: see `penstock_simulation.processes.cluster_load`."""

    def __init__(self, command: list[str], log_path: Path) -> None:
        self._log_path = log_path
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=child_environment()
            )
        threading.Thread(target=self._read, daemon=True).start()
        self._answer(WAIT_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _answer(self, timeout_s: float) -> dict[str, object]:
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"the clients do not answer in {timeout_s:g} s\n{self._log}") from None
        assert line, f"the clients ended\n{self._log}"
        return dict(json.loads(line))

    @property
    def _log(self) -> str:
        return self._log_path.read_text(errors="replace")[-3000:]

    def do(self, command: str, timeout_s: float = WAIT_S) -> dict[str, object]:
        """Have the clients execute a command; return their answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer(timeout_s)

    def reset(self) -> None:
        """Forget gaps and errors so far."""
        self.do("reset")

    def wait_answered(self, timeout_s: float = WAIT_S) -> float:
        """Wait until all containers and the controllers answer a new request; return for how long."""
        return float(str(self.do("answered", timeout_s)["s"]))

    def gaps_s(self) -> dict[str, float]:
        """Return the longest time without an answer since the reset: by container, and for ``controllers``."""
        return {str(name): float(gap) for name, gap in dict(self.do("gaps")["gaps"]).items()}  # type: ignore[call-overload]

    def errors(self) -> list[str]:
        """Return the errors of clients since the reset, the first ones."""
        return [str(each) for each in list(self.do("gaps")["errors"])]  # type: ignore[call-overload]

    def finish(self) -> dict[str, int]:
        """End the load, have everything read and checked; return how many calls of each kind had each outcome."""
        found = self.do("finish", 5 * WAIT_S)
        assert found["violations"] == [], found
        return {str(name): int(count) for name, count in dict(found["counts"]).items()}  # type: ignore[call-overload]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


class NetworkCluster(Cluster):
    """See the module. Stores are named ``s1``, ``s2``, ...; controllers ``c1``, ``c2``, ...; ZooKeeper ``z1``, ...;
    bookies ``b1``, ``b2``, ....

    Attributes:
        network, zookeepers, bucket_server, bookies: the parts. None: the log is in the bucket.
    """

    def __init__(
        self, directory: Path, network: Network, *, containers: int, stores: int, processes: int = 1,
        controllers: int = 2, zookeepers: int = 3, bookies: int = 0, settings: str = SETTINGS,
    ) -> None:  # fmt: skip
        self.network = network
        self.containers = containers
        self._processes_per_store = processes
        self._seed = 0
        hosts = network.hosts
        for name in (
            *(f"z{number + 1}" for number in range(zookeepers)),
            *(f"s{number + 1}" for number in range(stores)),
            *(f"c{number + 1}" for number in range(controllers)),
            *(f"b{number + 1}" for number in range(bookies)),
            "bucket",
            "client",
        ):
            network.add(name)
        self.store_names = [name for name in hosts if name.startswith("s")]
        self.controller_names = [name for name in hosts if name[0] == "c" and name != "client"]
        self.zookeepers = ZooKeeperServers(
            directory / "zookeeper", 0, [hosts[name] for name in hosts if name[0] == "z"]
        )
        self.bucket_server = S3Server(directory / "s3", hosts["bucket"])
        self.bookies: Bookies | None = None
        bucket = f"b{uuid.uuid4().hex[:12]}"
        self.bucket_server.start()
        try:
            self.bucket_server.make_bucket(bucket)
            self.zookeepers.start()
            text = settings.format(endpoint=self.bucket_server.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
            root = f"{self.zookeepers.address}/{bucket}"
            log = f"s3://{bucket}/log"
            if bookies:
                self.bookies = Bookies(directory / "bookies", self.zookeepers.address, bookies, self.bookie_hosts)
                self.bookies.start()
                log = self.bookies.url
                text += LOG_SETTINGS.format(jars=self.bookies.jars)
            super().__init__(directory, root, log, f"s3://{bucket}/data", text, hosts)
            self.init(containers)
        except BaseException:
            self.stop()
            raise

    def start_all(self) -> None:
        """Start all stores and controllers, and wait until all containers are served."""
        for name in self.store_names:
            self.start(name)
        for name in self.controller_names:
            self.start(name)
        for process in self.processes.values():
            process.wait_ready()
        self.wait_served()

    def start(self, name: str) -> None:
        """Start a store's parent or a controller; do not wait."""
        if name in self.controller_names:
            self.start_controller(name)
        else:
            # Ports of one host: its stores use the next ones.
            self.ports[name], self.metrics_ports[name] = 6000, 10_080
            self.start_store(name, "--processes", str(self._processes_per_store))

    def lose(self, name: str) -> None:
        """Lose a host: nothing leaves it or reaches it any more, and all of its processes end."""
        self.network.hosts[name].cut()
        self.processes[name].kill()

    def replace(self, name: str) -> None:
        """Start the processes of a lost host again, and wait until they are announced."""
        self.network.hosts[name].heal()
        self.start(name)
        self.processes[name].wait_ready()

    def host(self, name: str) -> Host:
        """Return a host."""
        return self.network.hosts[name]

    @property
    def zookeeper_hosts(self) -> list[Host]:
        """Hosts of ZooKeeper."""
        return [host for name, host in self.network.hosts.items() if name[0] == "z"]

    @property
    def bookie_hosts(self) -> list[Host]:
        """Hosts of bookies."""
        return [host for name, host in self.network.hosts.items() if name[0] == "b" and name != "bucket"]

    def rows(self, what: str) -> list[dict[str, object]]:
        """Return the rows of ``penstock cluster containers`` or ``stores``."""
        return [dict(row) for row in list(self.status(what)[what])]  # type: ignore[call-overload]

    def wait_emptied(self, store: str) -> None:
        """Wait until a store holds no container."""
        self._wait(lambda: all(row["holder"] != store for row in self.rows("containers")), f"{store} is not empty")

    def wait_stores(self) -> None:
        """Wait until all stores are announced."""
        count = len(self.store_names) * self._processes_per_store
        self._wait(lambda: len(self.status()["stores"]) == count, f"there are not {count} stores")  # type: ignore[arg-type]

    def wait_even(self) -> None:
        """Wait until every container is served by its store, and no store has many more than another one."""

        def is_even() -> bool:
            rows = self.rows("containers")
            counts = Counter(row["assigned"] for row in rows)
            is_settled = all(row["phase"] == "serving" and row["holder"] == row["assigned"] for row in rows)
            stores = len(self.store_names) * self._processes_per_store
            return is_settled and len(counts) == stores and max(counts.values()) - min(counts.values()) <= 1

        self._wait(is_even, "the stores are not even")

    def _wait(self, condition: Callable[[], bool], problem: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{problem}: {self.status('containers')}"
            time.sleep(0.2)

    def wait_leader(self, *, other_than: str = "", timeout_s: float = WAIT_S) -> float:
        """Wait until a controller leads; return for how long."""
        begin_s = time.monotonic()
        while (leader := self.status()["leader"]) in ("", other_than):
            assert time.monotonic() - begin_s < timeout_s, f"the leader is {leader!r}"
            time.sleep(0.2)
        return time.monotonic() - begin_s

    @contextmanager
    def load(self, *options: str) -> Iterator[LoadProcess]:
        """Run the clients, until the end of the block."""
        self._seed += 1
        command = [
            sys.executable, "-m", "penstock_simulation.processes.cluster_load", self.uri(*self.controller_names),
            str(self._seed), str(self.containers), *options,
        ]  # fmt: skip
        made = LoadProcess(self.host("client").command(*command), self.directory / "clients.log")
        try:
            yield made
        finally:
            made.close()

    def stop(self) -> None:
        """End all processes and servers; the network remains."""
        if hasattr(self, "processes"):
            super().stop()
        if self.bookies is not None:
            self.bookies.stop()
        self.zookeepers.stop()
        self.bucket_server.kill()
