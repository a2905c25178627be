"""Groups of the official Java client 0.13.0 that hold their streams, of each retention type, at a real server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from support import java_calls_groups as calls
from support.java_calls_streams import write_events
from support.java_client import JavaProcess
from support.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.interop, pytest.mark.e2e]

QUICK = """
[controller.retention]
interval_s = 0.2
"""
TYPES = {
    "none": "NONE",
    "manual": "MANUAL_RELEASE_AT_USER_STREAMCUT",
    "automatic": "AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT",
}


@pytest.fixture
def server(make_server: Callable[..., StandaloneProcess], tmp_path: Path) -> StandaloneProcess:
    """Start a server that checks retention five times a second."""
    settings = tmp_path / "settings.toml"
    settings.write_text(QUICK)
    return make_server("--config", str(settings)).start()


def head(client: penstock.Client, name: str) -> int:
    return sum(client.head(f"shop/{name}").positions.values())


def events(first: int, last: int) -> list[tuple[str, str]]:
    return [("reader", f"key0:{number}") for number in range(first, last)]


def until_begins_at(client: penstock.Client, name: str, offset: int) -> None:
    deadline_s = time.monotonic() + 60.0
    while (found := head(client, name)) != offset:
        assert found < offset, f"{name} begins at {found}, not at {offset}"
        assert time.monotonic() < deadline_s, f"{name} begins at {found}, not at {offset}"
        time.sleep(0.05)


def test_java_subscribers_hold_the_head_and_it_moves_on_as_they_publish(
    java: JavaProcess, server: StandaloneProcess
) -> None:
    """A stream for each type, which keeps next to nothing. That of the group that does not subscribe is truncated.

    The others begin at 0 until something is published, whatever was read: at a checkpoint, or by the user.
    """
    held = ("manual", "automatic")
    with penstock.connect(server.uri) as client:
        for name, kind in TYPES.items():
            client.create_stream(f"shop/{name}", retention=penstock.Retention.by_size(1))
            assert java.run(calls.create_group, name, {name: ("", "")}, 0, kind)
            java.run(write_events, name, 10, 20, 1)
        for name in held:
            assert java.run(calls.read_events, name, ["reader"], 10) == events(10, 20)
        text, offsets = java.run(calls.stream_cuts, "manual", ["reader"])["manual"]
        deadline_s = time.monotonic() + 60.0
        with client.event_writer("shop/none") as writer:
            while not head(client, "none"):
                assert time.monotonic() < deadline_s, "nothing is truncated"
                writer.write(b"one more")
                writer.flush()
                time.sleep(0.05)
        assert [head(client, name) for name in held] == [0, 0]
        java.run(calls.checkpoint, "automatic", ["reader"], "at 10")
        for name in held:
            java.run(write_events, name, 20, 30, 1)
        until_begins_at(client, "automatic", sum(offsets.values()))
        assert head(client, "manual") == 0
        java.run(calls.publish_cut, "manual", "manual", text)
        until_begins_at(client, "manual", sum(offsets.values()))
        for name in held:
            assert java.run(calls.read_events, name, ["reader"], 10) == events(20, 30)
