"""A store whose machine is gone, built anew by ``penstock storage recover`` from its long-term storage alone."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.wire.commands import (
    AppendSetup,
    ConditionalAppend,
    DataAppended,
    FlushToStorage,
    SetupAppend,
    StorageFlushed,
)
from support.command_line import run_command
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.standalone_process import StandaloneProcess
from support.wire_client import WireClient

pytestmark = pytest.mark.e2e

CONTAINERS = 2
#: Numbers of events that are written after the recovery.
LATER = 90_000_000
SETTINGS = """
[segment_store]
container_count = 2

[segment_store.admin]
is_enabled = true
port = {admin_port}

[segment_store.container]
flush_age_s = 0.2
writer_interval_s = 0.02
checkpoint_log_bytes_idle = 65536

[segment_store.container.images]
interval_s = 0.5
deletions_delay_s = 0.2
"""
S3_SETTINGS = """
[object_storage]
flush_bytes = 65536
flush_age_s = 0.2

[object_storage.store]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "{access_key}"
secret_access_key = "{secret_key}"
"""


def event(number: int) -> bytes:
    return b"%08d " % number + bytes([number % 251]) * 300


class Load:
    """A writer that goes on until the server is gone; the events below `acknowledged` are stored, in three segments."""

    def __init__(self, port: int, stream: str) -> None:
        self.acknowledged = 0
        self._port = port
        self._segments = [f"{stream}/{number}.#epoch.0" for number in range(3)]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        lengths = [0, 0, 0]
        with contextlib.suppress(EOFError, OSError), WireClient(self._port, timeout_s=60) as client:
            writers = [uuid.uuid4().bytes for _ in self._segments]
            for writer, segment in zip(writers, self._segments, strict=True):
                client.ask(SetupAppend(client.next_id(), writer, segment, ""), AppendSetup)
            while True:
                number = self.acknowledged
                at, data = number % 3, event(number)
                append = ConditionalAppend(writers[at], number + 1, lengths[at], data, client.next_id())
                client.ask(append, DataAppended)
                lengths[at] += 8 + len(data)
                self.acknowledged += 1

    def wait_for(self, count: int) -> None:
        """Wait until so many events are acknowledged."""
        while self.acknowledged < count:
            assert self._thread.is_alive()
            time.sleep(0.01)

    def end(self) -> None:
        """The server is gone."""
        self._thread.join(60)
        assert not self._thread.is_alive()


def flush(admin_port: int) -> None:
    with WireClient(admin_port, timeout_s=60) as client:
        for container in range(CONTAINERS):
            client.ask(FlushToStorage(container, "", client.next_id()), StorageFlushed)


def read(uri: str, stream: str) -> list[bytes]:
    """Return all events, sorted."""
    with penstock.connect(uri) as client, client.batch(stream) as batch:
        return sorted(bytes(each.data) for part in batch.ranges for each in batch.events(part))


@pytest.mark.parametrize("kind", ["s3", pytest.param("directory", marks=pytest.mark.nightly)])
def test_a_store_that_was_flushed_is_built_anew_from_its_long_term_storage(
    kind: str, make_server: Callable[..., StandaloneProcess], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Under load: flushed, killed, its data directory wiped. Every event that the flush covered is there, byte for
    byte, with its stream, and streams that were empty; of those behind it a head of each segment, in order. It goes on.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        admin_port: int = probe.getsockname()[1]
    text = SETTINGS.format(admin_port=admin_port)
    tier2 = str(tmp_path / "long-term")
    if kind == "s3":
        s3 = request.getfixturevalue("s3_server")
        assert isinstance(s3, S3Server)
        tier2 = f"s3://{s3.make_bucket(f'b{uuid.uuid4().hex[:12]}').bucket}/some/prefix"
        text += S3_SETTINGS.format(endpoint=s3.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    config = tmp_path / "settings.toml"
    config.write_text(text)
    server = make_server("--config", str(config), "--tier2", tier2).start()
    with penstock.connect(server.uri) as client:
        client.create_stream("shop/orders", scaling=penstock.Scaling.fixed(3), tags=("a", "b"))
        client.create_stream("shop/empty", scaling=penstock.Scaling.fixed(2))
        client.create_stream("shop/cut", scaling=penstock.Scaling.fixed(1))
        with client.event_writer("shop/cut") as writer:
            for number in range(100):
                writer.write(event(number))

    load = Load(server.segment_store_port, "shop/orders")
    load.wait_for(1000)
    covered = load.acknowledged
    flush(admin_port)
    load.wait_for(covered + 200)
    server.kill9()
    load.end()
    shutil.rmtree(server.data_dir)

    refused = run_command("storage", "recover", "--directory", str(config.parent), "--tier2", tier2, "--config",
                          str(config), "--json")  # fmt: skip
    assert (refused.code, refused.json["kind"]) == (1, "DataDirectoryError")
    recovered = run_command(
        "storage", "recover", "--directory", str(server.data_dir), "--tier2", tier2, "--config", str(config), "--json"
    )
    assert (recovered.code, recovered.stderr) == (0, "")
    containers = recovered.json["containers"]
    assert isinstance(containers, list)
    assert [container["id"] for container in containers] == [0, 1]

    server.start()
    assert server.ready["failures"] == {}
    found = read(server.uri, "shop/orders")
    numbers = [int(data[:8]) for data in found]
    assert found == [event(number) for number in numbers]
    assert numbers[:covered] == list(range(covered))
    for segment in range(3):
        mine = [number for number in numbers if number % 3 == segment]
        assert mine == list(range(segment, segment + 3 * len(mine), 3)), "each image is of one moment"
    assert read(server.uri, "shop/cut") == [event(number) for number in range(100)]
    assert read(server.uri, "shop/empty") == []
    with penstock.connect(server.uri) as client:
        assert len(client.segments_of("shop/orders")) == 3
        with client.event_writer("shop/orders") as writer:
            for number in range(LATER, LATER + 100):
                writer.write(event(number), routing_key=str(number % 17))
    assert read(server.uri, "shop/orders") == [*found, *(event(number) for number in range(LATER, LATER + 100))]
    flush(admin_port)
    assert server.terminate() == 0
    well = run_command(
        "storage", "check", "--data-dir", str(server.data_dir), "--tier2", tier2, "--config", str(config)
    )
    assert well.ok.lines[-1] == "all is as it should be"
