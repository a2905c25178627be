"""The input of ``penstock cluster demo`` without a terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.server.standalone_process import child_environment

#: Reads lines until a signal, as the command does.
PROGRAM = """
import asyncio, sys
from penstock.cli.cluster_demo import _lines_of_input

async def read():
    async for line in _lines_of_input():
        print(line, flush=True)

async def main():
    reading = asyncio.ensure_future(read())
    if sys.argv[1:] == ["cancel"]:
        await asyncio.sleep(0.2)
        reading.cancel()
    await asyncio.wait([reading])
    print("end", flush=True)

asyncio.run(main())
"""


def program(*arguments: str) -> subprocess.Popen[bytes]:
    """Start the program."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment(),
    )  # fmt: skip


def test_a_command_that_reads_from_a_pipe_ends_while_nothing_comes() -> None:
    """The other end of the pipe stays open."""
    process = program("cancel")
    try:
        assert process.wait(60.0) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("end", [b"", b"\n", b"\nquit\nkill 2\n"])
def test_lines_are_read_to_their_end(end: bytes) -> None:
    """Without empty ones; the last may have no end of its own, and ``quit`` is the last."""
    output, _ = program().communicate(b"status\n\n  kill 1 \ndrain 1" + end, timeout=60.0)
    assert output.decode().split(os.linesep) == ["status", "kill 1", "drain 1", "end", ""]
