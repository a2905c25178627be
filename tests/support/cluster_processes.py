"""`ClusterProcess`: a process of a cluster, as a child process; `Cluster`: all of one cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from penstock.server.standalone_process import child_environment
from support.namespaces import Host

#: Bound of every wait.
WAIT_S = 120.0


class ClusterProcess:
    """One process, on this machine or on a host of a network. A thread collects its records on standard output.

    `sources`: where its Penstock is; None: it is that of this checkout.
    """

    def __init__(
        self, directory: Path, name: str, arguments: list[str], host: Host | None = None, sources: Path | None = None
    ) -> None:
        self.name = name
        self.host = host
        self._environment = environment_of(sources)
        self.log_path = directory / f"{name}.log"
        self._arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None
        self.records: list[dict[str, object]] = []
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Start it; `wait_ready` waits."""
        self.records = []
        command = [sys.executable, "-m", "penstock", *self._arguments, "--json"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command if self.host is None else self.host.command(*command), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=log, env=self._environment,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.records.append(json.loads(line))

    def wait_ready(self, timeout_s: float = WAIT_S) -> dict[str, object]:
        """Wait for its ready record."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for record in self.records:
                if record["type"] == "ready":
                    return record
                raise AssertionError(f"{self.name} does not start: {record}\n{self.log[-3000:]}")
            assert self.process is not None
            assert self.process.poll() is None or self.records, f"{self.name} ended\n{self.log[-3000:]}"
            time.sleep(0.02)
        raise AssertionError(f"{self.name} is not ready\n{self.log[-3000:]}")

    @property
    def log(self) -> str:
        """Its log."""
        return self.log_path.read_text(errors="replace")

    def store_pids(self) -> list[int]:
        """Process ids of its child processes."""
        assert self.process is not None
        pid = self.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.poll() is None

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to it and to its children; the parent first."""
        assert self.process is not None
        for pid in (self.process.pid, *self.store_pids()):
            os.kill(pid, number)

    def kill(self) -> None:
        """End it at once, with its children: as the loss of its host."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def wait(self) -> int:
        """Wait for its end; return its exit code."""
        assert self.process is not None
        return self.process.wait(WAIT_S)

    def terminate(self) -> int:
        """Stop it cleanly; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait()


class Cluster:
    """A cluster of processes, with a ZooKeeper and a bucket. `settings`: TOML for all of them.

    `hosts`: where each process runs, by name, and ``client`` for the commands of administrators. None: all on this
    machine, on loopback. `secrets`: the data directory with the files of a secured cluster; None: it is not secured.

    Attributes:
        sources: where the Penstock of commands and of processes is that are started from now on; None: it is that of
            this checkout.
    """

    sources: Path | None = None

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        log: str,
        tier2: str,
        settings: str,
        hosts: Mapping[str, Host] | None = None,
        secrets: Path | None = None,
    ) -> None:
        self.directory = directory
        self._hosts = hosts
        self.secrets = secrets
        self.zookeeper = zookeeper
        self._log, self._tier2 = log, tier2
        self.config = directory / "settings.toml"
        self.config.write_text(settings)
        self.processes: dict[str, ClusterProcess] = {}
        self.ports: dict[str, int] = {}
        self.metrics_ports: dict[str, int] = {}

    def init(self, containers: int) -> None:
        """Make the cluster."""
        done = self.command("init", "--containers", str(containers), *self.places)
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def places(self) -> list[str]:
        """Where the log and long-term storage are, as options."""
        return ["--log", self._log, "--tier2", self._tier2]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``penstock cluster``."""
        where = ["--zookeeper", self.zookeeper, "--config", str(self.config)]
        return self.penstock("cluster", *arguments, *where, "--json")

    def penstock(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of ``penstock``, on the host of administrators."""
        command = [sys.executable, "-m", "penstock", *arguments]
        return subprocess.run(
            command if self._hosts is None else self._hosts["client"].command(*command),
            capture_output=True, text=True, timeout=2 * WAIT_S, env=environment_of(self.sources), check=False,
        )  # fmt: skip

    def status(self, what: str = "status") -> dict[str, object]:
        """Return what ``penstock cluster status`` prints, or another command."""
        done = self.command(what)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(json.loads(done.stdout))

    def start_store(self, name: str, *options: str) -> ClusterProcess:
        """Start a parent of segment stores on a port that it keeps."""
        return self._start("segment-store", name, *options)

    def start_controller(self, name: str, *options: str) -> ClusterProcess:
        """Start a controller on a port that it keeps."""
        return self._start("controller", name, *options)

    def _start(self, kind: str, name: str, *options: str) -> ClusterProcess:
        host = None if self._hosts is None else self._hosts[name]
        port = self.ports.setdefault(name, _free_port())
        where = [] if host is None else ["--host", host.address, "--insecure"]
        arguments = [
            kind, "--zookeeper", self.zookeeper, "--config", str(self.config), "--name", name, "--port", str(port),
            "--metrics-port", str(self.metrics_ports.setdefault(name, _free_port())), "--log-level", "info", *where,
            *options,
        ]  # fmt: skip
        if self.secrets is not None:
            arguments += ["--secure", "--data-dir", str(self.secrets)]
        process = self.processes[name] = ClusterProcess(self.directory, name, arguments, host, self.sources)
        process.start()
        return process

    def uri(self, *controllers: str) -> str:
        """Return the address of controllers, for clients."""
        scheme = "tcp" if self.secrets is None else "tls"
        return f"{scheme}://" + ",".join(f"{self.address(name)}:{self.ports[name]}" for name in controllers)

    def address(self, name: str) -> str:
        """Return the address of the host of a process."""
        return "127.0.0.1" if self._hosts is None else self._hosts[name].address

    def wait_served(self) -> None:
        """Wait until every container is served."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            found = self.status()
            if found["unserved"] == [] and found["assignment"]:
                return
            assert time.monotonic() < deadline_s, found
            time.sleep(0.2)

    def stop(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            process.kill()


def environment_of(sources: Path | None) -> dict[str, str]:
    """Return the environment of a child process with the Penstock in a directory; None: with that of this checkout."""
    return child_environment() | ({} if sources is None else {"PYTHONPATH": str(sources)})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill_process(pid: int) -> None:
    """Send SIGKILL to a process."""
    os.kill(pid, signal.SIGKILL)
