"""Clients of three projects write and read while a stream splits and merges under them, and through a kill -9.

The scales are asked for by our client: neither of the others has a public call for it.
"""

from __future__ import annotations

import collections
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

import penstock
from support import java_calls_groups as groups
from support import java_calls_streams as streams
from support.java_client import JavaCall, JavaProcess, kill_and_restart
from support.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.interop, pytest.mark.e2e]

STREAM = f"{streams.SCOPE}/orders"
KEY_COUNT = 20


def split_each(client: penstock.Client, stream: str) -> None:
    """Split every segment in two."""
    for segment in client.segments_of(stream):
        middle = (segment.key_low + segment.key_high) / 2
        ranges = [(segment.key_low, middle), (middle, segment.key_high)]
        client.scale_stream(stream, seal=[segment.segment_id], key_ranges=ranges)


def merge_all(client: penstock.Client, stream: str) -> None:
    """Put all segments together to one."""
    current = [segment.segment_id for segment in client.segments_of(stream)]
    client.scale_stream(stream, seal=current, key_ranges=[(0.0, 1.0)])


def assert_each_key_in_order(events: Iterable[str], count: int) -> None:
    """Events are ``key:number``; the numbers of all keys together are 0 to count - 1, growing within each key."""
    numbers: dict[str, list[int]] = collections.defaultdict(list)
    for event in events:
        key, _, number = event.partition(":")
        numbers[key].append(int(number))
    assert all(seen == sorted(seen) for seen in numbers.values())
    assert sorted(number for seen in numbers.values() for number in seen) == list(range(count))


def test_the_java_client_follows_splits_and_merges(java: JavaProcess, server: StandaloneProcess) -> None:
    """A writer in full swing, two readers of its group, and a transaction that a scale overtakes."""
    count = 4000
    assert java.run(streams.create_stream, "orders", 1)
    assert java.run(groups.create_group, "audit", {"orders": ("", "")}, 300)
    java.run(streams.begin_transaction, "orders", "overtaken")
    java.run(streams.write_to_transaction, "overtaken", count, count + 100, KEY_COUNT)
    writing = java.start(streams.write_events, "orders", 0, count, KEY_COUNT)
    writing.wait_for("begun")
    with penstock.connect(server.uri) as client:
        split_each(client, STREAM)
        split_each(client, STREAM)
        kill_and_restart(server)
        merge_all(client, STREAM)
        split_each(client, STREAM)
        writing.result()
        java.run(streams.commit_transaction, "overtaken")
        java.run(streams.await_status, "overtaken", "COMMITTED")
        assert len(client.segments_of(STREAM)) == 2
        read = java.run(groups.read_events, "audit", ("reader1", "reader2"), count + 100)
        # The transaction came after everything else, also for each key.
        assert_each_key_in_order((event for _, event in read), count + 100)
        java.run(groups.close_readers, "audit", ("reader1", "reader2"))
        batch, _ = java.run(streams.read_batch, "orders", "", "")
        assert collections.Counter(batch) == collections.Counter(event for _, event in read)
        with client.reader_group("ours", [STREAM]) as group, group.reader() as reader:
            ours = [reader.read(timeout_s=20).data.decode() for _ in range(count + 100)]  # type: ignore[union-attr]
    # The serializer of the Java calls writes plain text.
    assert_each_key_in_order(ours, count + 100)


def test_the_pypi_client_follows_splits_and_merges(server: StandaloneProcess) -> None:
    """A process of it writes while the stream changes, and another one reads with two readers afterwards."""
    pytest.importorskip("pravega_client", reason="the PyPI client has no wheel for this Python")
    count = 20_000
    stream = "shop/orders"
    worker = str(Path(__file__).with_name("pypi_worker.py"))

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, worker, *arguments], stdout=subprocess.PIPE, text=True)

    def lines_of(process: subprocess.Popen[str]) -> list[str]:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        return [line for line in output.splitlines() if ":" in line]

    with penstock.connect(server.uri) as client:
        client.create_stream(stream)
        writing = start("write", server.uri, "orders", "0", str(count))
        assert writing.stdout is not None
        assert writing.stdout.readline() == "begun\n"
        split_each(client, stream)
        merge_all(client, stream)
        split_each(client, stream)
        split_each(client, stream)
        lines_of(writing)
        assert len(client.segments_of(stream)) == 4
        read = lines_of(start("read", server.uri, "orders", "audit", "2", str(count)))
        with client.reader_group("ours", [stream]) as group, group.reader() as reader:
            ours = [reader.read(timeout_s=20).data.decode() for _ in range(count)]  # type: ignore[union-attr]
    assert_each_key_in_order(ours, count)
    assert_each_key_in_order(read, count)


# -- changes without an end, two writers and a group of two readers all the while

#: What happens while both writers are writing a part. The server is killed in the third.
CHANGES = (split_each, split_each, merge_all, split_each, merge_all)
KILLED_IN = 2
READ_TIMEOUT_S = 240.0
#: When nothing has come for so long the Java client's readers give up; longer than a start of a server may take.
QUIET_S = 120.0
ENOUGH = pytest.mark.timeout(3 * READ_TIMEOUT_S)


class Writers(Protocol):
    """Two writers of some client. Both write their part, and continue with the next one when all of it is stored."""

    def begin(self, parts: Sequence[tuple[int, int]]) -> None:
        """Let each begin to write its events [first, last); return when both have begun."""

    def wait(self) -> None:
        """Wait until all of it is acknowledged."""


def change_for_ever(server: StandaloneProcess, writers: Writers, part_count: int) -> None:
    """Split and merge the stream while both writers write, a part of `part_count` events each for every change."""
    per_writer = part_count * len(CHANGES)
    with penstock.connect(server.uri) as client:
        for number, change in enumerate(CHANGES):
            first = number * part_count
            writers.begin([(start + first, start + first + part_count) for start in (0, per_writer)])
            if number == KILLED_IN:
                kill_and_restart(server)
            change(client, STREAM)
            writers.wait()
        assert [len(epoch.segments) for epoch in client.history(STREAM).epochs][-1] == 1
        assert client.history(STREAM).epoch_count > sum(change is split_each for change in CHANGES)


def assert_each_writer_in_order(events: Iterable[str], part_count: int) -> None:
    """Nothing is lost or doubled, and each key's events of one writer are in the order in which it wrote them."""
    per_writer = part_count * len(CHANGES)
    by_writer: tuple[list[str], list[str]] = ([], [])
    for event in events:
        key, _, number = event.partition(":")
        writer, own_number = divmod(int(number), per_writer)
        by_writer[writer].append(f"{key}:{own_number}")
    for own in by_writer:
        assert_each_key_in_order(own, per_writer)


def read_with_ours(uri: str, count: int) -> list[str]:
    """Return the first `count` events of the stream."""
    with penstock.connect(uri) as client, client.reader_group("checks", [STREAM]) as group, group.reader() as reader:
        found = [reader.read(timeout_s=60) for _ in range(count)]
    return [event.data.decode() for event in found if event is not None]


class JavaWriters:
    def __init__(self, java: JavaProcess) -> None:
        self._java = java
        self._calls: list[JavaCall[None]] = []

    def begin(self, parts: Sequence[tuple[int, int]]) -> None:
        self._calls = [self._java.start(streams.write_events, "orders", *part, KEY_COUNT) for part in parts]
        for call in self._calls:
            call.wait_for("begun", READ_TIMEOUT_S)

    def wait(self) -> None:
        for call in self._calls:
            call.result(READ_TIMEOUT_S)


@ENOUGH
def test_the_java_client_keeps_its_promises_while_a_stream_changes_forever(
    java: JavaProcess, server: StandaloneProcess
) -> None:
    """Two writers, and two readers of a group, through splits, merges and a kill -9."""
    part_count = 600
    count = 2 * part_count * len(CHANGES)
    assert java.run(streams.create_stream, "orders", 1)
    assert java.run(groups.create_group, "audit", {"orders": ("", "")}, 300)
    reading = java.start(groups.read_events, "audit", ("reader1", "reader2"), count, QUIET_S)
    change_for_ever(server, JavaWriters(java), part_count)
    assert_each_writer_in_order((event for _, event in reading.result(READ_TIMEOUT_S)), part_count)
    java.run(groups.close_readers, "audit", ("reader1", "reader2"))
    assert_each_writer_in_order(read_with_ours(server.uri, count), part_count)


class PypiProcess:
    """A process of the PyPI client, see ``pypi_worker.py``."""

    def __init__(self, *arguments: str) -> None:
        worker = str(Path(__file__).with_name("pypi_worker.py"))
        self._process = subprocess.Popen([sys.executable, worker, *arguments], stdout=subprocess.PIPE, text=True)

    def wait_until_begun(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begun\n"

    def events(self) -> list[str]:
        """Wait for its end, and return the events that it printed."""
        output, _ = self._process.communicate(timeout=READ_TIMEOUT_S)
        assert self._process.returncode == 0
        return [line for line in output.splitlines() if ":" in line]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class PypiWriters:
    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._processes: list[PypiProcess] = []

    def begin(self, parts: Sequence[tuple[int, int]]) -> None:
        self._processes = [PypiProcess("write", self._uri, "orders", str(first), str(last)) for first, last in parts]
        for process in self._processes:
            process.wait_until_begun()

    def wait(self) -> None:
        for process in self._processes:
            process.events()


@ENOUGH
def test_the_pypi_client_keeps_its_promises_while_a_stream_changes_forever(server: StandaloneProcess) -> None:
    """Two processes that write, and one with two readers of a group, through splits, merges and a kill."""
    pytest.importorskip("pravega_client", reason="the PyPI client has no wheel for this Python")
    part_count = 6000
    count = 2 * part_count * len(CHANGES)
    with penstock.connect(server.uri) as client:
        client.create_stream(STREAM)
    reading = PypiProcess("read", server.uri, "orders", "audit", "2", str(count))
    try:
        change_for_ever(server, PypiWriters(server.uri), part_count)
        assert_each_writer_in_order(reading.events(), part_count)
    finally:
        reading.kill()
    assert_each_writer_in_order(read_with_ours(server.uri, count), part_count)


class OurWriters:
    def __init__(self, writers: Sequence[penstock.EventWriter]) -> None:
        self._writers = writers
        self._threads = ThreadPoolExecutor(len(writers))
        self._writing: list[Future[None]] = []

    def begin(self, parts: Sequence[tuple[int, int]]) -> None:
        begun = [threading.Event() for _ in parts]
        self._writing = [
            self._threads.submit(self._write, writer, *part, event)
            for writer, part, event in zip(self._writers, parts, begun, strict=True)
        ]
        for event in begun:
            assert event.wait(READ_TIMEOUT_S)

    def _write(self, writer: penstock.EventWriter, first: int, last: int, begun: threading.Event) -> None:
        for number in range(first, last):
            key = f"key{number % KEY_COUNT}"
            writer.write(f"{key}:{number}".encode(), key)
            if number == first + (last - first) // 3:
                begun.set()
        writer.flush()

    def wait(self) -> None:
        for one in self._writing:
            one.result(READ_TIMEOUT_S)


@ENOUGH
def test_our_client_keeps_its_promises_while_a_stream_changes_forever(server: StandaloneProcess) -> None:
    """Two writers, and two readers of a group, through splits, merges and a kill -9."""
    part_count = 1000
    count = 2 * part_count * len(CHANGES)
    events: list[str] = []

    def read(name: str) -> None:
        # No reader is declared dead for being slow: events it holds then come twice, as documented.
        with (
            penstock.connect(server.uri) as client,
            client.reader_group("audit", [STREAM], reader_timeout_s=2 * READ_TIMEOUT_S) as group,
            group.reader(name) as reader,
        ):
            deadline_s = time.monotonic() + READ_TIMEOUT_S
            while len(events) < count and time.monotonic() < deadline_s:
                event = reader.read(timeout_s=0.5)
                if event is not None:
                    events.append(event.data.decode())

    with ThreadPoolExecutor(2) as threads, ExitStack() as stack:
        clients = [stack.enter_context(penstock.connect(server.uri)) for _ in range(2)]
        clients[0].create_stream(STREAM)
        reading = [threads.submit(read, name) for name in ("reader1", "reader2")]
        writers = [stack.enter_context(client.event_writer(STREAM)) for client in clients]
        change_for_ever(server, OurWriters(writers), part_count)
        for one in reading:
            one.result()
    assert_each_writer_in_order(events, part_count)
    assert_each_writer_in_order(read_with_ours(server.uri, count), part_count)
