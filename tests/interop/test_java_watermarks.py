"""Watermarks with the official Java client 0.13.0: its writers' times become ours, and its readers see them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.model.watermarks import MarkedSegment, Watermark
from support import java_calls_groups as groups
from support import java_calls_watermarks as calls
from support.java_calls_streams import create_stream
from support.java_client import JavaProcess, kill_and_restart
from support.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.interop, pytest.mark.e2e]

QUICK = """
[controller.watermarks]
interval_s = 0.2
"""


@pytest.fixture
def server(make_server: Callable[..., StandaloneProcess], tmp_path: Path) -> StandaloneProcess:
    """Start a server that makes watermarks five times a second."""
    settings = tmp_path / "settings.toml"
    settings.write_text(QUICK)
    return make_server("--config", str(settings)).start()


@pytest.mark.parametrize("count", [1, 2, 127, 128, 300])
def test_a_watermark_has_the_bytes_of_javas_own_class(java: JavaProcess, count: int) -> None:
    """Byte for byte, with segments whose number takes one byte and two."""
    ours = Watermark(-5, 2**62, tuple(
        MarkedSegment((index << 32) | index, index / count, (index + 1) / count, 1000 * index)
        for index in range(count)
    ))  # fmt: skip
    data, lower, upper, cut = java.run(calls.stored_again, ours.encode())
    assert data == ours.encode()
    assert (lower, upper, cut) == (-5, 2**62, ours.positions)


def test_javas_reader_sees_the_times_that_javas_writers_noted(java: JavaProcess, server: StandaloneProcess) -> None:
    """Two writers; before any event is read the window ends at the first watermark, behind all of them it begins there.

    After SIGKILL the server continues with what it had stored.
    """
    assert java.run(create_stream, "orders", 2)
    assert java.run(groups.create_group, "audit", {"orders": ("", "")})
    java.run(calls.write_and_note, "orders", "v", ["a", "b", "c"], 1000)
    assert java.run(calls.read_and_watch, "audit", "reader", "orders", 3, (1000, None)) == (
        ["a", "b", "c"], (1000, None)
    )  # fmt: skip
    kill_and_restart(server)
    java.run(calls.write_and_note, "orders", "v", ["d"], 2000)
    java.run(calls.write_and_note, "orders", "w", ["e"], 3000)
    # No writer of this stream is awaited: in the end the last time counts.
    assert java.run(calls.read_and_watch, "audit", "reader", "orders", 2, (3000, None)) == (["d", "e"], (3000, None))
    # A group that has read nothing yet.
    assert java.run(groups.create_group, "later", {"orders": ("", "")})
    assert java.run(calls.read_and_watch, "later", "fresh", "orders", 0, (None, 1000))[1] == (None, 1000)


def test_javas_reader_sees_the_time_of_a_committed_transaction(java: JavaProcess) -> None:
    """The commit notes it, with where the transaction ends."""
    assert java.run(create_stream, "orders", 1)
    assert java.run(groups.create_group, "audit", {"orders": ("", "")})
    java.run(calls.commit_with_time, "orders", ["a", "b"], 77)
    assert java.run(calls.read_and_watch, "audit", "reader", "orders", 2, (77, None)) == (["a", "b"], (77, None))


def test_each_client_sees_the_times_of_the_other_ones_writers(java: JavaProcess, server: StandaloneProcess) -> None:
    """Pravega's and our own, on one stream whose writers are awaited: no reader is ahead of the slower writer."""
    with penstock.connect(server.uri) as client:
        client.create_stream("shop/orders", timestamp_aggregation_timeout_s=3600.0)
        ours = client.event_writer("shop/orders")
        ours.write(b"a", routing_key="a")
        ours.note_time(10)
        reader = client.reader_group("shop/ours", ["shop/orders"]).reader()
        event = reader.read(30)
        assert event is not None
        assert event.data == b"a"
        wait_for(lambda: reader.time_window("shop/orders") == penstock.TimeWindow(10, None))
        assert java.run(groups.create_group, "theirs", {"orders": ("", "")})
        assert java.run(calls.read_and_watch, "theirs", "reader", "orders", 1, (10, None)) == (["a"], (10, None))
        java.run(calls.write_and_note, "orders", "v", ["b"], 30)
        ours.note_time(20)
        event = reader.read(30)
        assert event is not None
        assert event.data == b"b"
        wait_for(lambda: reader.time_window("shop/orders") == penstock.TimeWindow(20, None))
        assert java.run(calls.read_and_watch, "theirs", "reader", "orders", 1, (20, None)) == (["b"], (20, None))


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for something that comes by itself."""
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
