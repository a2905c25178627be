"""`HdfsServer`: a real HDFS, a NameNode and two DataNodes, on free ports of loopback. See `hdfs.sh`."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.runtime.files import FilePlace, FileStoreSettings
from penstock.runtime.hdfs_files import HdfsFiles, open_file_store
from penstock.runtime.runtime import Runtime
from penstock.runtime.work import PoolSettings

_DATA_NODE_COUNT = 2
_START_TIMEOUT_S = 120.0
_START_ATTEMPTS_MAX = 3
#: Java 17 keeps these to itself; the HTTP service answers 500 without the first.
_OPENS = ("java.base/java.lang", "java.base/java.util", "java.base/sun.nio.ch")
_HDFS = "org.apache.hadoop.hdfs"


class HdfsUnavailableError(Exception):
    """There is no HDFS here; the message says why."""


class HdfsStartError(HdfsUnavailableError):
    """There is one, and it does not run."""


@dataclass(frozen=True)
class HdfsServer:
    """A file system that runs.

    `name_node`: ``host:port``; `webhdfs`: URL of its HTTP service; `directory`: where its logs are.
    """

    name_node: str
    webhdfs: str
    directory: Path

    def new_folder(self) -> FilePlace:
        """Return an unused folder; it is not created."""
        return FilePlace.parse(f"hdfs://{self.name_node}/{uuid.uuid4().hex[:12]}/some/root")

    @property
    def settings(self) -> FileStoreSettings:
        """How it is reached."""
        # The library hangs at times where it appends to a block that was just recovered.
        writes = PoolSettings(thread_count_max=8, hung_count_max=16, timeout_s=15.0)
        # Its DataNodes share a busy machine with the tests, and report late.
        return FileStoreSettings(webhdfs=self.webhdfs, writes=writes, copies_wait_s=10.0)

    def open(self, place: FilePlace, runtime: Runtime) -> HdfsFiles:
        """Return a client of its own, with its own connections."""
        return open_file_store(place, self.settings, runtime.work)


@contextmanager
def shared_hdfs(directory: Path) -> Iterator[HdfsServer]:
    """Run an HDFS for all processes of tests that name this directory: the first starts it, the last ends it.

    Raises `HdfsUnavailableError`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    state_file = directory / "state.json"
    with _locked(directory):
        if state_file.exists():
            state = json.loads(state_file.read_text())
            state["users"] += 1
        else:
            state = {**_start(directory), "users": 1}
        state_file.write_text(json.dumps(state))
    try:
        yield HdfsServer(state["name_node"], state["webhdfs"], directory)
    finally:
        with _locked(directory):
            state = json.loads(state_file.read_text())
            state["users"] -= 1
            state_file.write_text(json.dumps(state))
            if not state["users"]:
                state_file.unlink()
                for process_id in state["processes"]:
                    _kill(process_id)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _kill(process_id: int) -> None:
    try:
        os.kill(process_id, 9)
    except ProcessLookupError:
        pass


def _jars() -> Path:
    if shutil.which("java") is None:
        raise HdfsUnavailableError("there is no java to run HDFS with")
    found = subprocess.run([str(Path(__file__).with_name("hdfs.sh"))], capture_output=True, text=True, check=False)
    if found.returncode:
        raise HdfsUnavailableError(found.stderr.strip() or f"hdfs.sh ended with {found.returncode}")
    return Path(found.stdout.strip())


def _start(directory: Path) -> dict[str, object]:
    try:
        import hdfs_native  # noqa: F401
        import httpx  # noqa: F401
    except ImportError as error:
        raise HdfsUnavailableError(f"{error.name} is not installed: pip install 'penstock[hdfs]'") from error
    jars = _jars()
    said = ""
    for attempt in range(_START_ATTEMPTS_MAX):
        processes: list[subprocess.Popen[bytes]] = []
        try:
            return _start_once(jars, directory / f"attempt{attempt}", processes)
        except HdfsStartError as error:
            said = str(error)
            for process in processes:
                process.kill()
                process.wait()
    raise HdfsStartError(said)


def _start_once(jars: Path, home: Path, processes: list[subprocess.Popen[bytes]]) -> dict[str, object]:
    """Format it and start it; this fails if another process took a port in between."""
    ports = iter(_free_ports(2 + 3 * _DATA_NODE_COUNT))
    name_node, http = f"127.0.0.1:{next(ports)}", f"127.0.0.1:{next(ports)}"
    common = {
        "dfs.replication": str(_DATA_NODE_COUNT),
        "dfs.namenode.rpc-address": name_node,
        "dfs.namenode.http-address": http,
        "dfs.namenode.name.dir": f"file://{home}/name",
        # Leases are recovered with a heartbeat.
        "dfs.heartbeat.interval": "1",
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.fs-limits.min-block-size": "4096",
        # A file may be closed before the report of its last block: a stall of half a second else.
        "dfs.namenode.file.close.num-committed-allowed": "1",
    }
    folder = _configure(home / "conf-name", name_node, common)
    with (home / "format.log").open("wb") as log:
        formatted = subprocess.run(
            _java(jars, home, folder, f"{_HDFS}.server.namenode.NameNode", "-format", "-nonInteractive"),
            stdout=log, stderr=log, check=False,
        )  # fmt: skip
    if formatted.returncode:
        raise HdfsStartError(f"HDFS cannot be formatted: {(home / 'format.log').read_text()[-1000:]}")
    processes.append(_run(jars, home, folder, "namenode.NameNode", "name"))
    for number in range(_DATA_NODE_COUNT):
        own = {
            "dfs.datanode.data.dir": f"file://{home}/data{number}",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.datanode.address": f"127.0.0.1:{next(ports)}",
            "dfs.datanode.http.address": f"127.0.0.1:{next(ports)}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{next(ports)}",
        }
        folder = _configure(home / f"conf-data{number}", name_node, {**common, **own})
        processes.append(_run(jars, home, folder, "datanode.DataNode", f"data{number}"))
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not _is_ready(http):
        if time.monotonic() > deadline_s or any(process.poll() is not None for process in processes):
            logs = "\n".join(path.read_text()[-500:] for path in sorted(home.glob("*.log")))
            raise HdfsStartError(f"HDFS does not run: {logs}")
        time.sleep(0.1)
    return {
        "name_node": name_node, "webhdfs": f"http://{http}", "processes": [process.pid for process in processes],
    }  # fmt: skip


def _configure(folder: Path, name_node: str, values: Mapping[str, str]) -> Path:
    # The jars carry no pages, and the daemons want their folders.
    for name in ("hdfs", "datanode"):
        (folder / "webapps" / name).mkdir(parents=True)
    files = {"core-site.xml": {"fs.defaultFS": f"hdfs://{name_node}", "hadoop.tmp.dir": f"{folder}/tmp"},
             "hdfs-site.xml": values}  # fmt: skip
    for name, properties in files.items():
        lines = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in properties.items()]
        (folder / name).write_text("<configuration>" + "\n".join(lines) + "</configuration>\n")
    (folder / "log4j.properties").write_text(
        "log4j.rootLogger=WARN,c\nlog4j.appender.c=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.c.target=System.err\nlog4j.appender.c.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.c.layout.ConversionPattern=%d %p %c{1}: %m%n\n"
    )
    return folder


def _java(jars: Path, home: Path, configuration: Path, *words: str) -> list[str]:
    return [
        "java", "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dhadoop.home.dir={home}",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENS),
        "-cp", f"{configuration}:{jars}/*", *words,
    ]  # fmt: skip


def _run(jars: Path, home: Path, configuration: Path, daemon: str, name: str) -> subprocess.Popen[bytes]:
    with (home / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            _java(jars, home, configuration, f"{_HDFS}.server.{daemon}"),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def _is_ready(http: str) -> bool:
    url = f"http://{http}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            (state,) = json.load(answer)["beans"]
    except (OSError, ValueError):
        return False
    return bool(state["FSState"] == "Operational" and state["NumLiveDataNodes"] == _DATA_NODE_COUNT)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
