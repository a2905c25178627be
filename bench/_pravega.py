"""Servers of Pravega 0.13 for comparisons: a controller and a segment store, on the bookies of a test.

The jars are fetched once from Maven Central through ``mvn``, and kept in its repository. Some that Pravega's modules
name there are jars of tests, which do not exist in it: all modules are named here one by one, without what they name.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from _common import free_port

VERSION = "0.13.0"
_FETCH_TIMEOUT_S = 900.0
_START_TIMEOUT_S = 120.0
_MODULES = (
    "segmentstore-server-host", "segmentstore-server", "segmentstore-storage-impl", "segmentstore-storage",
    "segmentstore-contracts", "bindings", "controller", "client", "common", "common_server", "shared-authplugin",
    "shared-basic-authplugin", "shared-cluster", "shared-controller-api", "shared-health", "shared-health-bindings",
    "shared-metrics", "shared-protocol", "shared-rest", "shared-security",
)  # fmt: skip
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
#: Beginnings of the names of jars that hide classes which Pravega uses: older versions of the same libraries.
_HIDING = (
    "jsr311-api-", "jersey-core-1.", "jersey-servlet-1.", "jersey-json-1.", "jersey-server-1.", "javax.ws.rs-api-",
    "jersey-container-servlet-core-2.25", "jersey-media-multipart-2.25", "javax.inject-2.5", "slf4j-reload4j-",
    "bc-fips-",
)  # fmt: skip
_LOGGING = """<configuration>
  <appender name="A" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %msg%n</pattern></encoder>
  </appender>
  <root level="ERROR"><appender-ref ref="A"/></root>
</configuration>
"""


class PravegaUnavailableError(Exception):
    """There is no Pravega here; the message says why."""


def server_class_path() -> list[str]:
    """Return the jars of the servers, fetched if they are missing. Raises `PravegaUnavailableError`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-tests"
    kept = cache / f"pravega-server-{VERSION}.classpath"
    if not kept.is_file():
        _fetch(cache, kept)
    jars = kept.read_text().strip().split(os.pathsep)
    return [jar for jar in jars if not Path(jar).name.startswith(_HIDING)]


def _fetch(cache: Path, kept: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise PravegaUnavailableError("Maven is not installed: it fetches Pravega (Debian: apt-get install maven)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        pom, found = Path(directory) / "pom.xml", Path(directory) / "classpath"
        pom.write_text(_pom())
        try:
            done = subprocess.run(
                [maven, "-q", "-B", "-f", str(pom), _GOAL, f"-Dmdep.outputFile={found}"],
                capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise PravegaUnavailableError(f"Maven did not fetch Pravega within {_FETCH_TIMEOUT_S:g} s") from None
        if done.returncode != 0 or not found.is_file():
            raise PravegaUnavailableError(f"Maven did not fetch Pravega: {(done.stdout + done.stderr)[-500:]}")
        os.replace(found, kept)


def _pom() -> str:
    modules = "\n".join(
        f"<dependency><groupId>io.pravega</groupId><artifactId>pravega-{name}</artifactId><version>{VERSION}</version>"
        "<exclusions><exclusion><groupId>io.pravega</groupId><artifactId>*</artifactId></exclusion></exclusions>"
        "</dependency>"
        for name in _MODULES
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>penstock</groupId><artifactId>pravega-servers</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>\n{modules}\n</dependencies></project>"
    )


class Pravega:
    """A controller and a segment store, with the long-term storage in a directory. Raises `PravegaUnavailableError`.

    `zookeeper`: of Pravega and of the bookies. Ledgers are as Penstock's: three bookies, of which two confirm.
    """

    def __init__(self, directory: Path, zookeeper: str, containers: int, cache_mib: int) -> None:
        self._directory = directory
        self._class_path = os.pathsep.join(server_class_path())
        self._controller_port, self._store_port = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._controller = {
            "controller.zk.connect.uri": zookeeper,
            "controller.container.count": containers,
            "controller.service.rpc.listener.port": self._controller_port,
            "controller.service.rpc.published.host.nameOrIp": "127.0.0.1",
            "controller.service.rest.listener.port": free_port(),
        }
        self._store = {
            "pravega.configurationFile": directory / "config.properties",
            "pravegaservice.zk.connect.uri": zookeeper,
            "pravegaservice.container.count": containers,
            "pravegaservice.dataLog.impl.name": "BOOKKEEPER",
            "pravegaservice.storage.impl.name": "FILESYSTEM",
            "filesystem.root": directory / "storage",
            "pravegaservice.service.listener.host.nameOrIp": "127.0.0.1",
            "pravegaservice.service.listener.port": self._store_port,
            "pravegaservice.service.published.host.nameOrIp": "127.0.0.1",
            "pravegaservice.service.published.port": self._store_port,
            "pravegaservice.admin.gateway.enable": "false",
            "pravegaservice.rest.listener.enable": "false",
            "pravegaservice.cache.size.max": cache_mib << 20,
            "autoscale.controller.connect.uri": self.uri,
            "bookkeeper.zk.connect.uri": zookeeper,
            "bookkeeper.ledger.path": "/ledgers",
            "bookkeeper.ensemble.size": 3,
            "bookkeeper.write.quorum.size": 3,
            "bookkeeper.ack.quorum.size": 2,
        }
        self._direct_mib = 2 * cache_mib

    @property
    def uri(self) -> str:
        """Address of the controller."""
        return f"tcp://127.0.0.1:{self._controller_port}"

    @property
    def store_pid(self) -> int:
        """Process id of the segment store."""
        return self._processes[1].pid

    def start(self) -> None:
        """Start both, and wait until they accept connections."""
        (self._directory / "storage").mkdir(parents=True)
        (self._directory / "config.properties").touch()
        (self._directory / "logging.xml").write_text(_LOGGING)
        self._launch("io.pravega.controller.server.Main", ["-Xmx256m"], self._controller)
        memory = ["-Xmx1g", f"-XX:MaxDirectMemorySize={self._direct_mib}m"]
        self._launch("io.pravega.segmentstore.server.host.ServiceStarter", memory, self._store)
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        for process, port in zip(self._processes, (self._controller_port, self._store_port), strict=True):
            while not _accepts(port):
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise PravegaUnavailableError(f"a server does not start: {self._log[-2000:]}")
                time.sleep(0.2)

    def _launch(self, main: str, memory: Sequence[str], settings: dict[str, object]) -> None:
        command = [
            "java", *memory,
            "--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED",
            f"-Dlogback.configurationFile={self._directory / 'logging.xml'}",
            *(f"-D{name}={value}" for name, value in settings.items()), "-cp", self._class_path, main,
        ]  # fmt: skip
        with (self._directory / "log").open("ab") as log:
            self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    @property
    def _log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")

    def kill(self) -> None:
        """End both."""
        for process in self._processes:
            process.kill()
            process.wait()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
