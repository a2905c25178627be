"""Pravega's Java client, for tests and measurements: its jars, and the available Java.

The jars are fetched once from Maven Central through ``mvn`` and kept under ``~/.cache/penstock-tests``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

CLIENT_VERSION = "0.13.0"
FETCH_TIMEOUT_S = 300.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId>
  <artifactId>java-client-tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>io.pravega</groupId>
      <artifactId>pravega-client</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>{logger}</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"


class JavaUnavailableError(Exception):
    """Java or Maven is missing, or the jars cannot be fetched. Tests skip with its text."""


def classpath(*, is_logging: bool = False) -> list[str]:
    """Return the jars of the client; fetch them if they are missing.

    Args:
        is_logging: with a logger that writes to standard error; else the client is silent.

    Raises:
        JavaUnavailableError: there is no Maven, or it could not fetch them within `FETCH_TIMEOUT_S`.
    """
    logger = "slf4j-simple" if is_logging else "slf4j-nop"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-tests"
    kept = cache / f"pravega-client-{CLIENT_VERSION}-{logger}.classpath"
    if kept.is_file():
        jars = kept.read_text().strip().split(os.pathsep)
        if all(Path(jar).is_file() for jar in jars):
            return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaUnavailableError("Maven is not installed: it fetches the Java client (Debian: apt-get install maven)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        pom, found = Path(directory) / "pom.xml", Path(directory) / "classpath"
        pom.write_text(_POM.format(version=CLIENT_VERSION, logger=logger))
        command = [
            maven, "-q", "-B", "-f", str(pom), f"-Dmaven.repo.local={cache / 'maven'}", _GOAL,
            f"-Dmdep.outputFile={found}",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise JavaUnavailableError(f"Maven did not fetch the Java client within {FETCH_TIMEOUT_S:g} s") from None
        if done.returncode != 0 or not found.is_file():
            raise JavaUnavailableError(f"Maven did not fetch the Java client: {(done.stdout + done.stderr)[-500:]}")
        # Moved atomically: another test process may be reading.
        os.replace(found, kept)
    return kept.read_text().strip().split(os.pathsep)


def java_with_compiler() -> str:
    """Return a `java` that can run a source file, which requires a JDK. Raises `JavaUnavailableError`."""
    home = os.environ.get("JAVA_HOME")
    compiler = shutil.which("javac", path=str(Path(home) / "bin") if home else None)
    java = Path(compiler).with_name("java") if compiler is not None else None
    if java is None or not java.exists():
        raise JavaUnavailableError(
            "there is no Java compiler (javac): install a JDK of 11 or newer (Debian: openjdk-17-jdk-headless)"
        )
    return str(java)
