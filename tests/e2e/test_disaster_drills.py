"""The drills of the guide to disaster recovery are played against real servers: each command prints what is shown."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.server.standalone_process import child_environment
from support.shell_session import steps_of

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "disaster-recovery.md"
PORTS = range(20_000, 32_000)
DRILL_TIMEOUT_S = 300


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
@pytest.mark.timeout(400)
def test_the_drills_of_the_guide_are_true(tmp_path: Path) -> None:
    directory = tmp_path / "srv"
    directory.mkdir()
    controller, admin = unused_ports()
    steps = list(steps_of(GUIDE, "drill in /srv"))
    assert len(steps) >= 18
    here = {"/srv": str(directory), "9999": str(admin)}
    commands = [re.sub("|".join(here), lambda found: here[found[0]], step.command) for step in steps]
    printed = play(commands, directory, controller)
    assert len(printed) == len(steps)
    for step, text in zip(steps, printed, strict=True):
        text = text.replace(str(directory), "/srv").replace(f":{controller}", ":9090")
        text = re.sub(r"segment store 127\.0\.0\.1:\d+", "segment store 127.0.0.1:6000", text)
        assert text == step.output, step.command


def play(commands: list[str], directory: Path, controller: int) -> list[str]:
    """Run the commands in one shell; return what each printed. No server outlives it."""
    output = directory.parent / "output"
    environment = child_environment(
        PENSTOCK_CONTROLLER_PORT=str(controller),
        PENSTOCK_SEGMENT_STORE_PORT="0",
        PENSTOCK_URI=f"tcp://localhost:{controller}",
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        COLUMNS="200",
    )
    script = "exec 2>&1\n" + "".join(f"echo '@@'\n{command}\n" for command in commands)
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
    return output.read_text().split("@@\n")[1:]
