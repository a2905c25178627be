"""A real server that forgets what its streams' policies do not keep, and the chunks with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from support.standalone_process import StandaloneProcess

pytestmark = pytest.mark.e2e

SETTINGS = """
[controller.retention]
interval_s = 0.2
[segment_store.container]
flush_age_s = 0.2
writer_interval_s = 0.05
[segment_store.container.garbage]
delay_s = 2.0
interval_s = 0.5
"""
EVENT = bytes(9_992)


@pytest.fixture
def quick_server(make_server: Callable[..., StandaloneProcess], tmp_path: Path) -> StandaloneProcess:
    """A server that checks retention five times a second."""
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS)
    return make_server("--config", str(settings)).start()


def head(client: penstock.Client, stream: str) -> int:
    return sum(client.head(stream).positions.values())


def tail(client: penstock.Client, stream: str) -> int:
    return sum(client.tail(stream).positions.values())


def chunk_bytes(server: StandaloneProcess, stream: str) -> int:
    return sum(path.stat().st_size for path in (server.data_dir / "tier2" / stream).rglob("*") if path.is_file())


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that comes by itself, however slow the machine is."""
    deadline_s = time.monotonic() + 100.0
    while not condition():
        assert time.monotonic() < deadline_s, f"not so after 100 s: {what}"
        time.sleep(0.05)


def test_a_stream_by_size_keeps_its_minimum_and_its_disk_space_stays_bounded(quick_server: StandaloneProcess) -> None:
    """Many times its minimum are written, and the server is killed half-way: what is kept is its end, whole."""
    least = 2_000_000
    with penstock.connect(quick_server.uri) as client:
        client.create_stream("s/sized", retention=penstock.Retention.by_size(least), rollover_bytes=1 << 20)
        client.create_stream("s/other")

        def kept() -> int:
            return tail(client, "s/sized") - head(client, "s/sized")

        written = 0
        for part in range(10):
            if part == 5:
                quick_server.kill9()
                quick_server.start()
            with client.event_writer("s/sized") as writer:
                writer.write_many([EVENT] * 200)
                written += 200
                # How finely it is truncated depends on what comes between two checks: so something comes.
                deadline_s = time.monotonic() + 100.0
                while kept() > 2 * least:
                    assert time.monotonic() < deadline_s, "it is not truncated"
                    writer.write_many([EVENT] * 10)
                    writer.flush()
                    written += 10
                    time.sleep(0.05)
            assert kept() >= least
        assert tail(client, "s/sized") == written * 10_000
        until(lambda: chunk_bytes(quick_server, "s/sized") <= 3 * least, "chunks go")
        with client.event_writer("s/other") as writer:
            writer.write(b"untouched")
        # A sealed stream is not truncated any more: nothing goes from under the reader.
        client.seal_stream("s/sized")
        with client.reader_group("s/all", ["s/sized"]) as group, group.reader() as reader:
            count = kept() // 10_000
            assert [reader.read(30).data for _ in range(count)] == [EVENT] * count  # type: ignore[union-attr]
        assert head(client, "s/other") == 0


def test_a_stream_with_retention_by_time_is_truncated(quick_server: StandaloneProcess) -> None:
    """Two seconds: what was written is gone some time later, and what comes then is kept for its time."""
    with penstock.connect(quick_server.uri) as client:
        client.create_stream("s/timed", retention=penstock.Retention.by_time(seconds=2))
        with client.event_writer("s/timed") as writer:
            for number in range(3):
                began_s = time.monotonic()
                writer.write(b"event %d" % number)
                writer.flush()
                # A cut may have been recorded inside the first event: never before its first byte.
                assert head(client, "s/timed") < tail(client, "s/timed") or time.monotonic() - began_s > 2
                until(lambda: head(client, "s/timed") == tail(client, "s/timed"), "all of it is forgotten")
                assert time.monotonic() - began_s >= 2
