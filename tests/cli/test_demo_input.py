"""The input of ``penstock cluster demo`` without a terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from penstock.cli.cluster_demo import _LINES_WAITING_MAX, _Screen
from penstock.cli.demo_input import LINE_BYTES_MAX
from penstock.demo.commands import LINE_CHARACTERS_MAX, parse
from penstock.demo.errors import DemoCommandError
from penstock.server.standalone_process import child_environment

#: Reads lines until a signal, as the command does.
PROGRAM = """
import asyncio, sys
from penstock.cli.demo_input import lines_of_input

async def read():
    async for line in lines_of_input(sys.stdin.fileno()):
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


@pytest.mark.parametrize("begin", [b"wait 1", b"kill 2" + 2 * LINE_BYTES_MAX * b" "])
def test_a_line_that_is_too_long_is_refused(begin: bytes) -> None:
    """Only its beginning is kept, and it is not executed as a command that it begins with."""
    output, _ = program().communicate(begin + 10_000_000 * b"1" + b"\nstatus", timeout=60.0)
    line, *others = output.decode().split(os.linesep)
    assert (len(line), others) == (LINE_BYTES_MAX, ["status", "end", ""])
    with pytest.raises(DemoCommandError, match=f"at most {LINE_CHARACTERS_MAX} characters"):
        parse(line)
    assert str(parse("wait 1".ljust(LINE_CHARACTERS_MAX))) == "wait 1"


def test_input_of_a_terminal_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is too long is refused, and so are lines after the last one that may wait."""
    source, sink = os.pipe()
    with open(source) as reading, open(sink, "wb", buffering=0) as writing:
        monkeypatch.setattr(sys, "stdin", reading)
        screen = _Screen()
        for typed in (1000 * b"1", b"\n", *(_LINES_WAITING_MAX * [b"status\n"])):
            writing.write(typed)
            screen._type()
    line = screen._lines.get_nowait()
    assert len(line) == LINE_CHARACTERS_MAX + 1
    with pytest.raises(DemoCommandError, match="at most"):
        parse(line)
    assert [screen._lines.get_nowait() for _ in range(screen._lines.qsize())] == (_LINES_WAITING_MAX - 1) * ["status"]
    assert list(screen._events) == [f"error: {_LINES_WAITING_MAX} commands wait already; 'status' is dropped"]
