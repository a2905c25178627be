"""The drills of the guide to disaster recovery are played against real servers: each command prints what is shown.

``pytest -rP`` prints how long each command took.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from penstock.server.standalone_process import child_environment
from support.s3_server import S3Server
from support.shell_session import steps_of
from support.zookeeper_server import ZooKeeperServers, ZooKeeperUnavailableError

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "disaster-recovery.md"
PORTS = range(20_000, 32_000)
DRILL_TIMEOUT_S = 600


def unused_ports() -> tuple[int, int]:
    """Return two ports below the kernel's ephemeral ones that nothing listens on."""
    found: list[int] = []
    for port in random.sample(PORTS, 200):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == 2:
            return found[0], found[1]
    raise AssertionError("no ports are free")


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(700)
def test_the_drills_of_the_guide_are_true(tmp_path: Path) -> None:
    controller, admin = unused_ports()
    assert check_drills("drill in /srv", {"9999": str(admin)}, tmp_path, controller) >= 30


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(700)
def test_the_drills_of_a_cluster_are_true(tmp_path: Path) -> None:
    try:
        zookeeper = ZooKeeperServers(tmp_path / "zookeeper", 1).start()
    except ZooKeeperUnavailableError as error:
        pytest.skip(str(error))
    controller, _ = unused_ports()
    try:
        assert check_drills("cluster drill in /srv", {"zk:2181": zookeeper.address}, tmp_path, controller) >= 30
    finally:
        zookeeper.stop()


@pytest.mark.e2e
@pytest.mark.nightly
@pytest.mark.timeout(700)
def test_the_drill_of_a_bucket_on_s3_is_true(s3_server: S3Server, tmp_path: Path) -> None:
    try:
        zookeeper = ZooKeeperServers(tmp_path / "zookeeper", 1).start()
    except ZooKeeperUnavailableError as error:
        pytest.skip(str(error))
    controller, _ = unused_ports()
    names = [f"{name}-{uuid.uuid4().hex[:12]}" for name in ("events", "copy")]
    for name in names:
        s3_server.make_bucket(name)
    places = {
        "zk:2181": zookeeper.address, "s3://events": f"s3://{names[0]}", "py events copy": f"py {' '.join(names)}",
        "py copy events": f"py {' '.join(names[::-1])}", "py events": f"py {names[0]}",
    }  # fmt: skip
    try:
        assert check_drills("bucket drill in /srv", places, tmp_path, controller, s3_server.environment) >= 18
    finally:
        zookeeper.stop()


def check_drills(
    mark: str, places: Mapping[str, str], folder: Path, controller: int, variables: Mapping[str, str] | None = None
) -> int:
    """Play the steps with a mark; compare what each prints with the guide. Returns the number of steps.

    Args:
        mark: of the blocks.
        places: what replaces a name of the guide, besides the directory.
        folder: a new one.
        controller: port of the controller.
        variables: of the shell, besides those of all drills.
    """
    directory = folder / "srv"
    directory.mkdir()
    for name, program in re.findall(r"^<!-- file (\S+) -->\n+```py\n(.*?)^```", GUIDE.read_text(), re.M | re.S):
        (directory / name).write_text(program)
    steps = list(steps_of(GUIDE, mark))
    here = {"/srv": str(directory), **places}
    commands = [re.sub("|".join(here), lambda found: here[found[0]], step.command) for step in steps]
    played = play(commands, directory, controller, variables or {})
    for step, (text, lasted_s) in zip(steps, played, strict=True):
        print(f"{lasted_s:7.1f} s  {step.command}")  # noqa: T201  # The times, for the guide.
        for name, place in here.items():
            text = text.replace(place, name)
        text = text.replace(f":{controller}", ":9090")
        text = re.sub(r"segment store 127\.0\.0\.1:\d+", "segment store 127.0.0.1:6000", text)
        text = re.sub(r"^cluster [0-9a-f]{32} ", "cluster 6f0c ", text)
        assert text == step.output, step.command
    return len(steps)


def play(
    commands: list[str], directory: Path, controller: int, variables: Mapping[str, str]
) -> list[tuple[str, float]]:
    """Run the commands in one shell; return what each printed, and its seconds. No server outlives it."""
    output = directory.parent / "output"
    environment = child_environment(
        PENSTOCK_CONTROLLER_PORT=str(controller),
        PENSTOCK_SEGMENT_STORE_PORT="0",
        PENSTOCK_URI=f"tcp://localhost:{controller}",
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        COLUMNS="200",
        **variables,
    )
    script = "exec 2>&1\n" + "".join(f"echo @@ $EPOCHREALTIME\n{command}\n" for command in [*commands, ""])
    with output.open("wb") as printed:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=directory, env=environment, stdout=printed, start_new_session=True
        )
    try:
        shell.wait(DRILL_TIMEOUT_S)
    finally:
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        shell.wait()
    _, first, *rest = re.split(r"^@@ ([0-9.]+)\n", output.read_text(), flags=re.MULTILINE)
    texts, times = rest[::2], [float(first), *map(float, rest[1::2])]
    return [(text, after - before) for text, (before, after) in zip(texts, pairwise(times), strict=False)]
