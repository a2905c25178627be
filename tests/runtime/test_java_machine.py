"""The Java virtual machine of a store: which jars it gets, and that Java writes nothing to the log of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.runtime.java_machine import client_jars
from support.bookkeeper_server import BookiesUnavailableError, bookkeeper_jars

PROGRAM = """
import os, sys
from penstock.runtime.java_machine import start_java
start_java("a test", sys.argv[1], heap_mb=64, direct_mb=64)
import jpype
jpype.JClass("org.apache.zookeeper.ZooKeeper")
settings = jpype.JClass("org.apache.bookkeeper.conf.ClientConfiguration")()
settings.setMetadataServiceUri("zk+hierarchical://127.0.0.1:1/ledgers").setZkTimeout(1000)
try:
    jpype.JClass("org.apache.bookkeeper.client.api.BookKeeper").newBuilder(settings).build()
except jpype.JException as error:
    print(error)
sys.stdout.flush()
os._exit(0)
"""


def test_the_client_gets_all_jars_but_those_of_loggers(tmp_path: Path) -> None:
    for name in ("bookkeeper-server-4.18.0.jar", "log4j-api-2.23.1.jar", "log4j-core-2.23.1.jar", "logback-core-1.jar",
                 "slf4j-api-2.0.12.jar", "slf4j-simple-2.jar", "notes.txt"):  # fmt: skip
        (tmp_path / name).touch()
    found = [Path(each).name for each in client_jars(str(tmp_path))]
    assert found == ["bookkeeper-server-4.18.0.jar", "slf4j-api-2.0.12.jar"]
    assert client_jars("") == []


def test_a_client_that_does_not_reach_its_servers_writes_nothing_to_the_log() -> None:
    pytest.importorskip("jpype")
    try:
        jars = bookkeeper_jars()
    except BookiesUnavailableError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(jars)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Failed to initialize metadata client driver" in done.stdout


COMMAND = """
import atexit, sys, types
sys.modules["jpype"] = types.SimpleNamespace(isJVMStarted=lambda: {is_started})
atexit.register(lambda: print("end of Python"))
import penstock.cli
def main():
    print("done")
    sys.exit(3)
penstock.cli.main = main
from penstock.__main__ import run
run()
"""


@pytest.mark.parametrize(("is_started", "output"), [(True, "done\n"), (False, "done\nend of Python\n")])
def test_a_command_that_used_java_ends_without_the_end_of_python(is_started: bool, output: str) -> None:
    """In which a thread that returns from Java would abort the process, after a success, too."""
    program = COMMAND.format(is_started=is_started)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, output, "")
