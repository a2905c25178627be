"""Other projects' clients write and read while a stream splits and merges under them, and through a kill -9.

The scales are asked for by our client: neither of the others has a public call for it.
"""

from __future__ import annotations

import collections
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import penstock
from support import java_calls_groups as groups
from support import java_calls_streams as streams
from support.java_client import JavaProcess, kill_and_restart
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
    """A writer in full swing, two readers of a group behind it, and a transaction that a scale overtakes."""
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
            ours = [reader.read(timeout_s=20).data.decode() for _ in range(count + 100)]
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
        output, _ = process.communicate(timeout=90)
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
            ours = [reader.read(timeout_s=20).data.decode() for _ in range(count)]
    assert_each_key_in_order(ours, count)
    assert_each_key_in_order(read, count)
