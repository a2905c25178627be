"""A real server whose long-term storage hangs in the kernel.

Two ways to make it hang: a lease on chunk files, which holds up everybody else who opens them (Linux, no privileges
needed), and a frozen file system, which holds up every write (needs root and a loop device).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from penstock.wire.commands import (
    AppendSetup,
    ConditionalAppend,
    CreateSegment,
    DataAppended,
    FlushToStorage,
    ReadSegment,
    SegmentCreated,
    SetupAppend,
    StorageFlushed,
)
from support.standalone_process import StandaloneProcess
from support.wire_client import WireClient

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform != "linux", reason="leases and freezing are Linux's"),
]

SETTINGS = """
[segment_store]
container_count = 2
[segment_store.cache]
generation_s = 0.05
entry_age_s_max = 0.1
[segment_store.container]
flush_age_s = 0.05
writer_interval_s = 0.02
[segment_store.admin]
is_enabled = true
port = {admin_port}
"""
PAYLOAD = b"x" * 992
EVENT_LENGTH = 1000
SEGMENTS = [f"hung/mount/{index}.#epoch.0" for index in range(10)]


class Appender:
    """Appends events of 1 000 bytes to one segment, each acknowledged before the next."""

    def __init__(self, client: WireClient, segment: str) -> None:
        self._client = client
        self._writer = uuid.uuid4().bytes
        client.ask(SetupAppend(client.next_id(), self._writer, segment, ""), AppendSetup)
        self._count = 0

    def append(self, length: int) -> None:
        """Append at `length`, the segment's length."""
        self._count += 1
        self._client.ask(
            ConditionalAppend(self._writer, self._count, length, PAYLOAD, self._client.next_id()), DataAppended
        )


@pytest.fixture
def admin_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture
def settings(tmp_path: Path, admin_port: int) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(SETTINGS.format(admin_port=admin_port))
    return path


def fill(port: int) -> None:
    """Make the segments and append one event to each."""
    with WireClient(port) as client:
        for segment in SEGMENTS:
            client.ask(CreateSegment(client.next_id(), segment, 0, 0, "", 0), SegmentCreated)
            Appender(client, segment).append(0)


def chunks_of(directory: Path, segment: str) -> list[Path]:
    """Return the chunk files of a segment that are not empty."""
    return [path for path in (directory / segment).parent.glob(f"{Path(segment).name}.E-*") if path.stat().st_size]


def until(condition: Callable[[], bool]) -> None:
    """Wait for another process; the test's time-out bounds it."""
    while not condition():
        time.sleep(0.02)


def flush(admin_port: int) -> None:
    """Move all that the containers hold to long-term storage; what a chunk has is on record then."""
    with WireClient(admin_port) as client:
        for container in range(2):
            client.ask(FlushToStorage(container, "", client.next_id()), StorageFlushed)


def test_server_acknowledges_and_stops_while_chunk_files_cannot_be_opened(
    make_server: Callable[..., StandaloneProcess], settings: Path, admin_port: int
) -> None:
    """Eight cold reads hang in `open`; the log continues; SIGTERM ends the process, long before the hang ends."""
    server = make_server("--config", str(settings)).start()
    tier2 = server.data_dir / "tier2"
    fill(server.segment_store_port)
    # Otherwise the stop cuts flushes off, and their bytes are in other chunks later, without a lease of this test.
    flush(admin_port)
    assert server.terminate() == 0

    # An `open` that breaks the lease waits for us, up to 45 s (/proc/sys/fs/lease-break-time).
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        leased: dict[str, BinaryIO] = {}
        with contextlib.ExitStack() as files:
            for segment in SEGMENTS:
                for path in chunks_of(tier2, segment):
                    file = leased[segment] = files.enter_context(path.open("r+b"))
                    try:
                        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                    except OSError as error:
                        pytest.skip(f"no leases on this file system: {error}")
            server.start()
            port = server.segment_store_port
            with contextlib.ExitStack() as readers, WireClient(port) as client:
                asked: dict[str, WireClient] = {}

                def is_hung(segment: str) -> bool:
                    # No second read of a file before this one is answered: it would take another of the eight threads.
                    if segment not in asked:
                        asked[segment] = readers.enter_context(WireClient(port))
                        asked[segment].send(ReadSegment(segment, 0, 100, "", asked[segment].next_id()))
                    if select.select([asked[segment].socket], [], [], 0.1)[0]:
                        asked.pop(segment).receive()
                        return False
                    return fcntl.fcntl(leased[segment], fcntl.F_GETLEASE) != fcntl.F_WRLCK

                # What the log gave back stays in memory until it was not used for a while; reads are answered then.
                hung: set[str] = set()
                while len(hung) < 8:
                    time.sleep(0.5)
                    for segment in SEGMENTS:
                        if segment not in hung and len(hung) < 8 and is_hung(segment):
                            hung.add(segment)
                appenders = [Appender(client, segment) for segment in SEGMENTS]
                for round_number in range(1, 6):
                    for appender in appenders:
                        appender.append(round_number * EVENT_LENGTH)
            assert server.terminate() == 0
    finally:
        signal.signal(signal.SIGIO, before)

    server.start()
    with WireClient(server.segment_store_port) as client:
        for segment in SEGMENTS:
            assert client.read_whole(segment, 6 * EVENT_LENGTH).count(PAYLOAD) == 6


@contextlib.contextmanager
def small_ext4(image: Path, mount: Path) -> Iterator[None]:
    """Mount a new ext4 of 64 MiB over a directory, and take over what is in there."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    for tool in ("mkfs.ext4", "mount", "umount", "fsfreeze"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} here")
    with image.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mount.mkdir(exist_ok=True)
    before = image.with_name("before")
    shutil.copytree(mount, before)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(mount)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no loop device: {mounted.stderr.strip()}")
    try:
        shutil.copytree(before, mount, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@contextlib.contextmanager
def frozen(mount: Path) -> Iterator[None]:
    """Let every write to a file system hang."""
    subprocess.run(["fsfreeze", "--freeze", str(mount)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(mount)], check=True)


def count_in_kernel(pid: int) -> int:
    """Return how many threads of a process are in a call that cannot be interrupted."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return states.count("D")


def test_server_acknowledges_while_its_long_term_storage_is_frozen(
    make_server: Callable[..., StandaloneProcess], settings: Path, tmp_path: Path
) -> None:
    """Flushes of all segments hang in the kernel; once it thaws they continue, and nothing is lost or doubled."""
    server = make_server("--config", str(settings))
    mount = server.data_dir / "tier2"
    server.start()
    assert server.terminate() == 0
    with small_ext4(tmp_path / "image", mount):
        server.start()
        fill(server.segment_store_port)
        until(lambda: all(chunks_of(mount, segment) for segment in SEGMENTS))
        with frozen(mount), WireClient(server.segment_store_port) as client:
            appenders = [Appender(client, segment) for segment in SEGMENTS]
            for round_number in range(1, 21):
                for appender in appenders:
                    appender.append(round_number * EVENT_LENGTH)
                if round_number == 1:
                    until(lambda: count_in_kernel(server.pid) >= 8)
            for segment in SEGMENTS:
                assert client.read_whole(segment, 21 * EVENT_LENGTH).count(PAYLOAD) == 21
        until(lambda: all(sum(path.stat().st_size for path in chunks_of(mount, segment)) >= 21 * EVENT_LENGTH
                          for segment in SEGMENTS))  # fmt: skip
        assert server.terminate() == 0
        server.start()
        with WireClient(server.segment_store_port) as client:
            for segment in SEGMENTS:
                assert client.read_whole(segment, 21 * EVENT_LENGTH).count(PAYLOAD) == 21
        assert server.terminate() == 0
