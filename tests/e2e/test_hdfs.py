"""``penstock standalone --tier2 hdfs://...``: a real server over a real HDFS, killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.server.standalone_process import StandaloneProcess
from support.command_line import run_command
from support.hdfs_server import HdfsServer

pytestmark = pytest.mark.e2e

STREAM = "shop/orders"
EVENT_COUNT = 2_000
#: Flushes at once and of little, so that nearly all is in HDFS when the server is killed.
SETTINGS = """
[hdfs_storage.files]
webhdfs = "{webhdfs}"

[segment_store.container]
flush_bytes = 65536
flush_age_s = 0.05
writer_interval_s = 0.02
writer_retry_s = 0.05
checkpoint_log_bytes_idle = 65536
"""
#: No test waits so long for the next thing to happen.
GUARD_S = 120.0


def event(number: int) -> bytes:
    return b"%08d " % number + bytes([number % 251]) * 400


def write(server: StandaloneProcess) -> None:
    """Write events, and wait until they are acknowledged."""
    with penstock.connect(server.uri) as client:
        client.create_stream(STREAM, scaling=penstock.Scaling.fixed(3), exist_ok=True)
        with client.event_writer(STREAM) as writer:
            for number in range(EVENT_COUNT):
                writer.write(event(number), routing_key=str(number % 17))


def read(server: StandaloneProcess) -> list[bytes]:
    """Return all events, sorted."""
    with penstock.connect(server.uri) as client, client.batch(STREAM) as batch:
        return sorted(bytes(each.data) for part in batch.ranges for each in batch.events(part))


def test_acknowledged_events_survive_kills_over_hdfs(
    hdfs_server: HdfsServer, make_server: Callable[..., StandaloneProcess], tmp_path: Path
) -> None:
    """Killed right after the last acknowledgement; then all is flushed, and read from HDFS after another kill."""
    import hdfs_native

    config = tmp_path / "settings.toml"
    config.write_text(SETTINGS.format(webhdfs=hdfs_server.webhdfs))
    folder = hdfs_server.new_folder()
    server = make_server("--config", str(config), "--tier2", str(folder)).start()
    write(server)
    server.kill9()
    server.start()
    expected = [event(number) for number in range(EVENT_COUNT)]
    assert read(server) == expected
    client = hdfs_native.Client(folder.file_system)
    end_s = time.monotonic() + GUARD_S
    # With 8 bytes before each event. What a kill left without a record comes on top, for a minute.
    while client.get_content_summary(f"{folder.root}/{STREAM}").length < sum(8 + len(each) for each in expected):
        assert time.monotonic() < end_s
        time.sleep(0.1)
    server.kill9()
    # Its cache is empty: what is in HDFS is read from there.
    server.start()
    assert read(server) == expected
    assert not list(server.data_dir.glob("tier2/*"))


def test_hdfs_is_tried_before_and_its_chunks_verified_while_a_server_runs(
    hdfs_server: HdfsServer, make_server: Callable[..., StandaloneProcess], tmp_path: Path
) -> None:
    """`penstock storage probe` and `penstock verify`; one chunk is taken away."""
    import hdfs_native

    config = tmp_path / "settings.toml"
    config.write_text(SETTINGS.format(webhdfs=hdfs_server.webhdfs))
    folder = hdfs_server.new_folder()
    probe = ("storage", "probe", "--config", str(config), "--tier2", str(folder), "--json")
    told = run_command(*probe).ok.json
    assert (told["place"], told["supports_append"], told["supports_concat"]) == (str(folder), True, True)
    server = make_server("--config", str(config), "--tier2", str(folder)).start()
    write(server)
    length_bytes = sum(8 + len(event(number)) for number in range(EVENT_COUNT))
    end_s = time.monotonic() + GUARD_S
    while (well := run_command("verify", STREAM, "--json", uri=server.uri).ok.json)["unflushed_bytes"]:
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert well["checked_bytes"] == length_bytes
    client = hdfs_native.Client(folder.file_system)
    assert client.get_content_summary(f"{folder.root}/_probe").file_count == 0
    chunk = next(each.path for each in client.list_status(f"{folder.root}/{STREAM}") if not each.isdir)
    client.delete(chunk)
    found = run_command("verify", STREAM, "--json", uri=server.uri)
    assert found.code == 3
    assert [(each["kind"], each["chunk"].rpartition("/")[2]) for each in found.json["problems"]] == [  # type: ignore[attr-defined]
        ("chunk_missing", chunk.rpartition("/")[2])
    ]
