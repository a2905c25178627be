"""`LostStore`: a real server over real long-term storage, killed under load, its data directory wiped, recovered."""

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
from support.hdfs_server import HdfsServer
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from support.standalone_process import StandaloneProcess
from support.wire_client import WireClient

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


HDFS_SETTINGS = """
[hdfs_storage.files]
webhdfs = "{webhdfs}"
"""


def event(number: int) -> bytes:
    return b"%08d " % number + bytes([number % 251]) * 300


class Load:
    """A writer that runs until the server is gone; the events below `acknowledged` are stored, in three segments."""

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


class LostStore:
    """Streams of a store, of which `covered` events of "shop/orders" are flushed when it is lost.

    `kind`: what long-term storage is, "s3", "hdfs" or "directory". There are "shop/orders" with three segments,
    "shop/cut" with a hundred events, and "shop/empty".
    """

    def __init__(
        self, kind: str, make_server: Callable[..., StandaloneProcess], tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.admin_port: int = probe.getsockname()[1]
        text = SETTINGS.format(admin_port=self.admin_port)
        self.tier2: str = str(tmp_path / "long-term")
        if kind == "s3":
            s3 = request.getfixturevalue("s3_server")
            assert isinstance(s3, S3Server)
            self.tier2 = f"s3://{s3.make_bucket(f'b{uuid.uuid4().hex[:12]}').bucket}/some/prefix"
            text += S3_SETTINGS.format(endpoint=s3.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
        elif kind == "hdfs":
            hdfs = request.getfixturevalue("hdfs_server")
            assert isinstance(hdfs, HdfsServer)
            self.tier2 = str(hdfs.new_folder())
            text += HDFS_SETTINGS.format(webhdfs=hdfs.webhdfs)
        self.config: Path = tmp_path / "settings.toml"
        self.config.write_text(text)
        self.server: StandaloneProcess = make_server("--config", str(self.config), "--tier2", self.tier2)

    def lose(self) -> int:
        """Write, flush, write on, kill, wipe. Return how many events the flush covered."""
        server = self.server.start()
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
        flush(self.admin_port)
        load.wait_for(covered + 200)
        server.kill9()
        load.end()
        shutil.rmtree(server.data_dir)
        return covered

    def recover(self) -> StandaloneProcess:
        """Build its data directory again, and start it."""
        recovered = run_command(
            "storage", "recover", "--directory", str(self.server.data_dir), "--tier2", self.tier2, "--config",
            str(self.config), "--json",
        )  # fmt: skip
        assert recovered.code == 0, recovered
        containers = recovered.json["containers"]
        assert isinstance(containers, list)
        assert [container["id"] for container in containers] == [0, 1]
        self.server.start()
        assert self.server.ready["failures"] == {}
        return self.server
