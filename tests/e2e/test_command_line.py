"""The command line as processes: Ctrl-C, SIGTERM, pipes that close, and a server that goes in the middle of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock import connect
from penstock.testing.server import MemoryServer
from support.standalone_process import StandaloneProcess, child_environment

pytestmark = pytest.mark.e2e

_TIMEOUT_S = 60


@contextmanager
def command(*arguments: str, uri: str, stdout: int | None = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``penstock`` with pipes at all ends; killed at the end of the block if it still runs."""
    environment = {**child_environment(), "PENSTOCK_URI": uri}
    # As at a shell: output is buffered.
    environment.pop("PYTHONUNBUFFERED", None)
    running = subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        yield running
    finally:
        running.kill()
        for pipe in (running.stdin, running.stdout, running.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # What was not written to it is lost with it.
        running.wait(_TIMEOUT_S)


def feed(running: subprocess.Popen[bytes], data: bytes) -> None:
    """Write to its standard input; more is to come."""
    assert running.stdin is not None
    running.stdin.write(data)
    running.stdin.flush()


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until something is so, which is inspected a few times a second."""
    deadline_s = time.monotonic() + _TIMEOUT_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def stored_count(uri: str, stream: str) -> int:
    """Return how many events of 8 bytes a stream of one segment holds."""
    from penstock import connect

    with connect(uri) as client:
        return next(iter(client.tail(stream).positions.values())) // 16


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_tail_prints_at_once_and_ends_cleanly(
    penstock_server: MemoryServer, penstock_stream: str, number: signal.Signals, code: int
) -> None:
    """An event is on the pipe while the command still runs; a signal ends it without a word, above all no traceback."""
    with command("tail", penstock_stream, "--from", "earliest", uri=penstock_server.uri) as tail:
        with penstock_server.connect() as client, client.event_writer(penstock_stream) as writer:
            writer.write(b"seen")
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"seen\n"
        tail.send_signal(number)
        output, errors = tail.communicate(timeout=_TIMEOUT_S)
        assert (output, errors, tail.returncode) == (b"", b"", code)


def test_an_interrupted_write_reports_the_stored_lines(penstock_server: MemoryServer, penstock_stream: str) -> None:
    """And all of that is: what was taken from the pipe is waited for. By Ctrl-C, and by SIGTERM."""
    total = 0
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with command("write", penstock_stream, "--key", "k", "--json", uri=penstock_server.uri) as write:
            feed(write, b"12345678\n" * 1000 + b"unfini")
            wait_for(lambda wanted=total + 1000: stored_count(penstock_server.uri, penstock_stream) >= wanted)  # type: ignore[misc]
            write.send_signal(number)
            output, errors = write.communicate(timeout=_TIMEOUT_S)
            assert (errors, write.returncode) == (b"", code)
            told = json.loads(output)
            assert (told["kind"], told["lines_stored"], told["lines_unsure"]) == ("Interrupted", 1000, 0)
            total += 1000
    assert stored_count(penstock_server.uri, penstock_stream) == total


def test_an_interrupted_transaction_is_aborted(penstock_server: MemoryServer, penstock_stream: str) -> None:
    """At once, not when its lease ends; nothing of it is read."""
    with command("write", penstock_stream, "--transaction", uri=penstock_server.uri) as write:
        feed(write, b"12345678\n" * 1000)
        # It is under way once the pipe is empty; there is no other sign of it outside.
        wait_for(lambda: _pipe_length(write) == 0)
        write.send_signal(signal.SIGINT)
        _, errors = write.communicate(timeout=_TIMEOUT_S)
        assert write.returncode == 130
        assert b"is aborted; none of its lines will be readable" in errors
    assert stored_count(penstock_server.uri, penstock_stream) == 0


def _pipe_length(running: subprocess.Popen[bytes]) -> int:
    """Return how many bytes wait in the pipe to its standard input."""
    import array
    import fcntl
    import termios

    assert running.stdin is not None
    length = array.array("i", [0])
    fcntl.ioctl(running.stdin.fileno(), termios.FIONREAD, length)
    return length[0]


def test_a_closed_output_pipe_is_no_error(penstock_server: MemoryServer, penstock_stream: str) -> None:
    """As `head` does after its lines: exit code 0, and no word; of `read`, and of `tail`."""
    with penstock_server.connect() as client, client.event_writer(penstock_stream) as writer:
        writer.write_many([b"%099d" % index for index in range(100_000)])
    for name in ("read", "tail"):
        with command(name, penstock_stream, "--from", "earliest", uri=penstock_server.uri) as reading:
            assert reading.stdout is not None
            assert reading.stdout.readline() == b"%099d\n" % 0
            reading.stdout.close()
            assert reading.stderr is not None
            assert (reading.wait(_TIMEOUT_S), reading.stderr.read()) == (0, b"")


def test_an_output_that_is_full_is_reported(penstock_server: MemoryServer, penstock_stream: str) -> None:
    """With the system's own words."""
    with penstock_server.connect() as client, client.event_writer(penstock_stream) as writer:
        writer.write(b"event")
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with command("read", penstock_stream, uri=penstock_server.uri, stdout=full) as read:
            _, errors = read.communicate(timeout=_TIMEOUT_S)
            assert (read.returncode, errors) == (1, b"penstock: standard output: No space left on device\n")
    finally:
        os.close(full)


def test_a_write_that_loses_its_server_reports_the_stored_lines(make_server: Callable[..., StandaloneProcess]) -> None:
    """After `kill -9` and Ctrl-C: the stored lines are reported, and the rest as unknown."""
    server = make_server()
    server.start()
    from penstock import connect

    with connect(server.uri) as client:
        client.create_stream("cut/off")
    with command("write", "cut/off", "--key", "k", "--json", uri=server.uri) as write:
        feed(write, b"12345678\n" * 500)
        wait_for(lambda: stored_count(server.uri, "cut/off") == 500)
        server.kill9()
        feed(write, b"12345678\n" * 20)
        wait_for(lambda: _pipe_length(write) == 0)
        # The first one lets it wait for what it has taken, the second does not; two that come together are one.
        while write.poll() is None:
            write.send_signal(signal.SIGINT)
            time.sleep(1.0)
        output, errors = write.communicate(timeout=_TIMEOUT_S)
        assert write.returncode == 130, errors
        told = json.loads(output)
        assert told["lines_stored"] == 500
        assert told["lines_unsure"] in (0, 20)
        assert "the first 500 lines are stored in cut/off" in told["message"]


def test_tail_continues_when_its_server_is_back(make_server: Callable[..., StandaloneProcess]) -> None:
    """After `kill -9` and a start: nothing twice, nothing left out."""
    server = make_server()
    server.start()
    from penstock import connect

    with connect(server.uri) as client:
        client.create_stream("going/on")
        with client.event_writer("going/on") as writer:
            writer.write(b"before")
    with command("tail", "going/on", "--from", "earliest", "--offsets", uri=server.uri) as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline() == b"0:0\tbefore\n"
        server.kill9()
        server.start()
        with connect(server.uri) as client, client.event_writer("going/on") as writer:
            writer.write(b"after")
        assert tail.stdout.readline() == b"0:14\tafter\n"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(_TIMEOUT_S) == 130


def test_an_interrupted_measurement_tells_its_figures_and_deletes_its_stream(penstock_server: MemoryServer) -> None:
    """Exit code 130; the figures measured until then are printed."""
    with command("bench", "write", "--rate", "1000", "--json", uri=penstock_server.uri) as bench:

        def is_writing() -> bool:
            with penstock_server.connect() as client:
                names = [name for name in client.scopes() if name == "penstock-bench"]
                streams = [f"{name}/{stream}" for name in names for stream in client.streams(name)]
                # So much that the first of them are acknowledged, and that is known there.
                return any(sum(client.tail(stream).positions.values()) > 20_000 for stream in streams)

        wait_for(is_writing)
        bench.send_signal(signal.SIGINT)
        output, errors = bench.communicate(timeout=_TIMEOUT_S)
        assert (bench.returncode, errors) == (130, b"")
        assert json.loads(output)["events"] > 0
    with penstock_server.connect() as client:
        assert "penstock-bench" not in list(client.scopes())


def test_commands_report_a_lost_server_and_the_end_of_the_outage(tmp_path: Path) -> None:
    """On standard error: what waits, why and for how long still, after 3 s; then both commands resume."""
    with StandaloneProcess(tmp_path / "data") as server:
        with connect(server.uri) as client:
            client.create_stream("shop/orders")
        with (
            command("tail", "shop/orders", "--from", "earliest", uri=server.uri) as tail,
            command("write", "shop/orders", uri=server.uri) as write,
        ):
            feed(write, b"before\n")
            assert tail.stdout is not None
            assert tail.stdout.readline() == b"before\n"
            server.kill9()
            feed(write, b"after\n")
            assert write.stdin is not None
            write.stdin.close()
            for running, what in ((tail, b"segment shop/orders/0"), (write, b"write to shop/orders")):
                assert running.stderr is not None
                line = running.stderr.readline()
                assert what in line, line
                assert re.search(rb"waiting for \d+ s: server unreachable, retrying, 5\d s left", line), line
            server.start()
            assert tail.stdout.readline() == b"after\n"
            assert write.wait(_TIMEOUT_S) == 0
            assert write.stderr is not None
            assert re.search(rb"the wait ended after \d+ s", write.stderr.read())
