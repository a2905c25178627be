"""`fetch_jars`: the jars of BookKeeper and ZooKeeper, fetched from Maven Central by Maven."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from penstock.server.errors import JarsUnavailableError

BOOKKEEPER_VERSION = "4.18.0"
ZOOKEEPER_VERSION = "3.9.5"
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_MESSAGE_LENGTH = 500

#: Group, artifact, version, and what is left out: TLS libraries of all systems, RocksDB (a bookie's storage that is not
#: used here), and loggers beside the one of BookKeeper. The last two are needed by ZooKeeper, and not named by it.
_DEPENDENCIES = (
    ("org.apache.bookkeeper", "bookkeeper-server", BOOKKEEPER_VERSION,
     (("io.netty", "netty-tcnative-boringssl-static"), ("org.rocksdb", "rocksdbjni"))),
    ("org.apache.zookeeper", "zookeeper", ZOOKEEPER_VERSION, (("ch.qos.logback", "*"), ("io.netty", "*"))),
    ("io.dropwizard.metrics", "metrics-core", "4.1.12.1", ()),
    ("org.xerial.snappy", "snappy-java", "1.1.10.5", ()),
)  # fmt: skip


def fetch_jars(directory: Path, timeout_s: float) -> int:
    """Copy the jars into a directory, and return their number. Raises `JarsUnavailableError`."""
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsUnavailableError(
            "the jars are fetched by Maven, which is not installed (Debian: apt-get install maven)"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JarsUnavailableError(f"the directory for the jars cannot be made: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        pom = Path(folder) / "pom.xml"
        pom.write_text(_pom(), encoding="utf-8")
        command = [maven, "-B", "-q", "-f", str(pom), _GOAL, f"-DoutputDirectory={directory.resolve()}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise JarsUnavailableError(f"Maven did not fetch the jars within {timeout_s:g} s") from None
    found = list(directory.glob("*.jar"))
    if done.returncode != 0 or not any(path.name.startswith("bookkeeper-server-") for path in found):
        raise JarsUnavailableError(f"Maven did not fetch the jars: {(done.stdout + done.stderr)[-_MESSAGE_LENGTH:]}")
    return len(found)


def _pom() -> str:
    lines = [
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>',
        "<groupId>penstock</groupId><artifactId>client-jars</artifactId><version>1</version><packaging>pom</packaging>",
        "<dependencies>",
    ]
    for group, artifact, version, excluded in _DEPENDENCIES:
        without = "".join(
            f"<exclusion><groupId>{each_group}</groupId><artifactId>{each_artifact}</artifactId></exclusion>"
            for each_group, each_artifact in excluded
        )
        lines.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
            f"<exclusions>{without}</exclusions></dependency>"
        )
    return "\n".join([*lines, "</dependencies></project>"])
