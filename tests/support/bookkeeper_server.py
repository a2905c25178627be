"""`Bookies`: real bookies over a real ZooKeeper. See `bookkeeper.sh`.

They are on free ports of loopback, or on hosts of a `Network`.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from support.namespaces import Host
from support.zookeeper_server import ZooKeeperUnavailableError, find_java

_START_TIMEOUT_S = 120.0
_FETCH_TIMEOUT_S = 700.0
#: On a busy machine ZooKeeper's session is lost before a start is complete. Then it begins again.
_STARTS_MAX = 4
_OPTIONS = (
    "-Xmx192m", "-XX:MaxDirectMemorySize=160m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k",
    "-Dlog4j2.level=ERROR", "-Dio.netty.allocator.numDirectArenas=1", "-Dio.netty.leakDetectionLevel=disabled",
    "-Dio.netty.tryReflectionSetAccessible=true", "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED", "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util.zip=ALL-UNNAMED",
)  # fmt: skip


class BookiesUnavailableError(Exception):
    """There is no BookKeeper here; the message says why."""


class BookiesStartError(BookiesUnavailableError):
    """There is one, and it does not run."""


def bookkeeper_jars() -> Path:
    """Return the directory of the jars, fetched if they are missing. Raises `BookiesUnavailableError`."""
    script = Path(__file__).with_name("bookkeeper.sh")
    try:
        done = subprocess.run(
            ["bash", str(script)], capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BookiesUnavailableError("the jars of BookKeeper were not fetched in time") from error
    if done.returncode != 0:
        raise BookiesUnavailableError(done.stderr.strip() or "the jars of BookKeeper cannot be fetched")
    return Path(done.stdout.splitlines()[0])


class Bookies:
    """`count` bookies on `directory`, or one on each of `hosts`.

    Their metadata are in the ZooKeeper at `zookeeper` (``host:port,host:port``).
    """

    def __init__(self, directory: Path, zookeeper: str, count: int, hosts: Sequence[Host] = ()) -> None:
        count = len(hosts) or count
        self.directory = directory
        self.hosts = hosts
        self.jars: Path = bookkeeper_jars()
        self.url: str = f"bookkeeper://{zookeeper}/ledgers"
        self._service = f"zk+hierarchical://{zookeeper.replace(',', ';')}/ledgers"
        try:
            self._java = find_java()
        except ZooKeeperUnavailableError as error:
            raise BookiesUnavailableError(str(error)) from error
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * count
        self.ports: list[int] = _free_ports(count)

    def start(self) -> Bookies:
        """Format the metadata, and start all bookies. Raises `BookiesStartError`; then none is left running."""
        try:
            for number in range(len(self.ports)):
                self._configure(number)
            self._format()
            for number in range(len(self.ports)):
                self.launch(number)
            for number in range(len(self.ports)):
                self.wait_until_ready(number)
        except BookiesStartError:
            self.stop()
            raise
        return self

    def _format(self) -> None:
        command = [
            self._java, *_OPTIONS, "-cp", f"{self.jars}/*", "org.apache.bookkeeper.bookie.BookieShell",
            "-conf", str(self._folder(0) / "bookie.conf"), "initnewcluster",
        ]  # fmt: skip
        for _ in range(_STARTS_MAX):
            done = subprocess.run(
                self._on_host(0, command), capture_output=True, text=True, timeout=_START_TIMEOUT_S, check=False
            )
            if done.returncode == 0:
                return
        raise BookiesStartError(f"the metadata of BookKeeper were not made: {(done.stdout + done.stderr)[-2000:]}")

    def _configure(self, number: int) -> None:
        folder = self._folder(number)
        for each in ("journal", "ledgers"):
            (folder / each).mkdir(parents=True, exist_ok=True)
        lines = [
            f"metadataServiceUri={self._service}", f"bookiePort={self.ports[number]}",
            f"advertisedAddress={self._address(number)}",
            "allowLoopback=true", "allowStorageExpansion=true", "zkTimeout=4000",
            f"journalDirectories={folder}/journal",
            f"ledgerDirectories={folder}/ledgers", "journalSyncData=true", "journalMaxGroupWaitMSec=1",
            "journalFlushWhenQueueEmpty=true", "journalMaxSizeMB=64", "journalPreAllocSizeMB=4", "journalMaxBackups=1",
            "ledgerStorageClass=org.apache.bookkeeper.bookie.SortedLedgerStorage", "skipListSizeLimit=16777216",
            "entryLogFilePreallocationEnabled=false", "minUsableSizeForEntryLogCreation=1",
            "minUsableSizeForIndexFileCreation=1", "openFileLimit=500", "pageLimit=256", "gcWaitTime=10000",
            "autoRecoveryDaemonEnabled=false", "diskUsageThreshold=0.99", "diskUsageWarnThreshold=0.98",
            "numAddWorkerThreads=1", "numReadWorkerThreads=1", "numJournalCallbackThreads=1", "serverNumIOThreads=1",
            "nettyMaxFrameSizeBytes=10485760", "httpServerEnabled=false",
        ]  # fmt: skip
        (folder / "bookie.conf").write_text("\n".join(lines) + "\n")

    def launch(self, number: int) -> None:
        """Start one bookie on its directory."""
        folder = self._folder(number)
        command = [
            self._java, *_OPTIONS, "-cp", f"{self.jars}/*", "org.apache.bookkeeper.server.Main",
            "--conf", str(folder / "bookie.conf"),
        ]  # fmt: skip
        with (folder / "log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                self._on_host(number, command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_until_ready(self, number: int) -> None:
        """Wait until a bookie accepts connections; start it again if it ends before. Raises `BookiesStartError`."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        starts = 1
        while (process := self._processes[number]) is not None and time.monotonic() < deadline_s:
            if process.poll() is not None:
                if starts == _STARTS_MAX:
                    break
                starts += 1
                self.launch(number)
            try:
                with self.hosts[number].entered() if self.hosts else nullcontext():
                    socket.create_connection((self._address(number), self.ports[number]), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise BookiesStartError(f"a bookie does not run: {(self._folder(number) / 'log').read_text()[-2000:]}")

    def is_running(self, number: int) -> bool:
        """Return whether a bookie was started, and not killed."""
        return self._processes[number] is not None

    def kill(self, number: int) -> None:
        """End a bookie at once."""
        process = self._processes[number]
        if process is not None:
            process.kill()
            process.wait()
            self._processes[number] = None

    def hold(self, number: int) -> None:
        """Stop a bookie's process from running (SIGSTOP)."""
        process = self._processes[number]
        assert process is not None
        process.send_signal(signal.SIGSTOP)

    def release(self, number: int) -> None:
        """End `hold`."""
        process = self._processes[number]
        assert process is not None
        process.send_signal(signal.SIGCONT)

    def restore(self) -> None:
        """Have all bookies run: resume those that are held, and start those that were killed."""
        for number, process in enumerate(self._processes):
            if process is None:
                self.launch(number)
            else:
                process.send_signal(signal.SIGCONT)
        for number in range(len(self.ports)):
            self.wait_until_ready(number)

    def stop(self) -> None:
        """End all bookies, and remove what they have stored."""
        for number in range(len(self.ports)):
            self.kill(number)
            shutil.rmtree(self._folder(number), ignore_errors=True)

    def _address(self, number: int) -> str:
        return self.hosts[number].address if self.hosts else "127.0.0.1"

    def _on_host(self, number: int, command: list[str]) -> list[str]:
        return self.hosts[number].command(*command) if self.hosts else command

    def _folder(self, number: int) -> Path:
        return self.directory / f"bookie-{number + 1}"


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
