"""The guide to running a server: its session is played against real servers, and what it quotes is what they say."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.standalone_process import child_environment
from support.shell_session import steps_of

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "operations.md"
SESSION = "server session in /srv"
#: Below the kernel's ephemeral ports on Linux: no other process gets one of these between two starts.
PORTS = range(20_000, 32_000)
SESSION_TIMEOUT_S = 100


def unused_port() -> int:
    """Return a port that a server can be started on, stopped, and started on again."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


def played(commands: list[str], directory: Path, port: int) -> Iterator[str]:
    """Run `commands` in one shell and yield what each of them prints, as on a terminal."""
    output = directory.parent / "output"
    environment = child_environment(
        PENSTOCK_CONTROLLER_PORT=str(port),
        PENSTOCK_SEGMENT_STORE_PORT="0",
        PENSTOCK_URI=f"tcp://localhost:{port}",
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        COLUMNS="200",
    )
    script = "exec 2>&1\n" + "".join(f"echo '@@'\n{command}\n" for command in commands)
    with output.open("wb") as printed:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=directory, env=environment, stdout=printed, start_new_session=True
        )
    try:
        shell.wait(SESSION_TIMEOUT_S)
    finally:
        # Whatever happened: no server outlives its test.
        try:
            os.killpg(shell.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        shell.wait()
    yield from output.read_text().split("@@\n")[1:]


def as_told(printed: str, directory: Path, port: int) -> str:
    """Put in what the guide has for what is another at each run."""
    printed = printed.replace(str(directory), "/srv").replace(f":{port}", ":9090")
    return re.sub(r"segment store 127\.0\.0\.1:\d+", "segment store 127.0.0.1:6000", printed)


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_the_session_of_the_guide_is_true(tmp_path: Path) -> None:
    """Start, stop, back up, restore, and three refusals, as typed there: each command prints what the guide shows."""
    directory = tmp_path / "srv"
    directory.mkdir()
    port = unused_port()
    steps = list(steps_of(GUIDE, SESSION))
    assert len(steps) >= 12
    for step, printed in zip(steps, played([step.command for step in steps], directory, port), strict=True):
        assert as_told(printed, directory, port) == step.output, step.command


def test_each_message_that_the_guide_explains_is_one_of_penstocks() -> None:
    """Word for word, so that a search for a server's message finds it."""
    sources = [path.read_text() for path in sorted((ROOT / "src" / "penstock").rglob("*.py"))]
    # As they are printed: without the ends of the literals that they are made of.
    said = [re.sub(r'"\s*\n\s*f?"', "", source) for source in sources]
    _, *tables = GUIDE.read_text().split("| It says |")
    quotes = [
        quote
        for table in tables
        for row in table.partition("\n\n")[0].splitlines()[2:]
        for quote in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]
    assert len(quotes) >= 20
    assert [quote for quote in quotes if not any(quote in source for source in said)] == []
