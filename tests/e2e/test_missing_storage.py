"""Long-term storage that is not mounted, vanishes, or is another one, under the real server with real mounts.

The place of the chunks, `tier2`, is where a directory elsewhere is mounted to. Mounting needs root.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.segmentstore.tier2.storage_identity import StorageIdentity
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    WrongHost,
)
from support.standalone_process import StandaloneProcess
from support.wire_client import WireClient

pytestmark = pytest.mark.e2e

SEGMENTS = [f"scope/stream{number}/0.#epoch.0" for number in range(6)]
BLOCK = bytes(range(256)) * 64
WRITER = b"w" * 16
SETTINGS = """
[segment_store.container]
flush_bytes = 65536
flush_age_s = 0.05
writer_interval_s = 0.02
writer_retry_s = 0.05
checkpoint_log_bytes_idle = 65536

[segment_store.storage_guard]
check_interval_s = 0.2
retry_interval_s = 0.1
"""


class Mount:
    """A directory that is mounted at another place, or not."""

    def __init__(self, source: Path, place: Path) -> None:
        self.source = source
        self.place = place

    def mount(self, source: Path | None = None) -> None:
        run = subprocess.run(
            ["mount", "--bind", str(source or self.source), str(self.place)],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            pytest.skip(f"this machine does not let the test mount anything: {run.stderr.strip()}")

    def unmount(self) -> None:
        """Unmount it while it is in use: open files stay usable, as with a lazy unmount."""
        subprocess.run(["umount", "--lazy", str(self.place)], check=True)

    def files_below(self) -> list[str]:
        """What lies in the place itself, now that nothing is mounted there."""
        return sorted(str(path.relative_to(self.place)) for path in self.place.rglob("*"))


@pytest.fixture
def server(make_server: Callable[..., StandaloneProcess], tmp_path: Path) -> StandaloneProcess:
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS)
    return make_server("--config", str(settings), "--log-level", "info")


@pytest.fixture
def mount(server: StandaloneProcess, tmp_path: Path) -> Iterator[Mount]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    source, place = tmp_path / "storage", server.data_dir / "tier2"
    source.mkdir()
    yield Mount(source, place)
    server.kill9()
    while subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False).returncode == 0:
        pass


def begin(server: StandaloneProcess, mount: Mount) -> None:
    """Let the server make its data directory, and move its long-term storage to where it is mounted from."""
    server.start()
    assert server.terminate() == 0, server.log
    for path in list(mount.place.iterdir()):
        path.rename(mount.source / path.name)
    mount.mount()
    server.start()


def append(client: WireClient, segment: str, number: int) -> None:
    """Append a block, acknowledged."""
    client.ask(AppendBlockEnd(WRITER, len(BLOCK), BLOCK, 1, number, client.next_id()), DataAppended)


def write(server: StandaloneProcess, count: int, *, is_new: bool) -> None:
    """Append `count` blocks to each segment, each acknowledged."""
    for segment in SEGMENTS:
        with WireClient(server.segment_store_port) as client:
            if is_new:
                client.ask(CreateSegment(client.next_id(), segment, 0, 0, "", 0), SegmentCreated)
            last = client.ask(SetupAppend(client.next_id(), WRITER, segment, ""), AppendSetup).last_event_number
            for number in range(max(last, 0) + 1, max(last, 0) + count + 1):
                append(client, segment, number)


def check_all(server: StandaloneProcess, count: int) -> None:
    """Read every segment from its start to its end."""
    for segment in SEGMENTS:
        with WireClient(server.segment_store_port) as client:
            found = bytearray()
            while len(found) < count * len(BLOCK):
                reply = client.ask(ReadSegment(segment, len(found), 1 << 20, "", client.next_id()), SegmentRead)
                assert len(reply.data), (segment, len(found))
                found += reply.data  # type: ignore[arg-type]
            assert bytes(found) == BLOCK * count, segment


def wait_until(condition: Callable[[], bool], server: StandaloneProcess, what: str) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, f"{what}: not after 60 s\n{server.log}"
        time.sleep(0.02)


def stored_bytes(place: Path) -> int:
    """Length of all chunks of the test's segments."""
    total = 0
    for path in (place / "scope").rglob("*.E-*") if (place / "scope").exists() else ():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def log_files(server: StandaloneProcess) -> dict[str, bytes]:
    tier1 = server.data_dir / "tier1"
    return {str(path.relative_to(tier1)): path.read_bytes() for path in sorted(tier1.rglob("*")) if path.is_file()}


def test_a_server_whose_storage_is_not_mounted_waits_for_it_and_loses_nothing(
    server: StandaloneProcess, mount: Mount
) -> None:
    """It reports the state, creates nothing below the mount point, claims and truncates no log, and resumes unaided."""
    begin(server, mount)
    write(server, 20, is_new=True)
    wait_until(lambda: stored_bytes(mount.source) >= 20 * len(BLOCK) * len(SEGMENTS), server, "the flush")
    write(server, 5, is_new=False)
    server.kill9()
    mount.unmount()
    logs = log_files(server)

    server.spawn()
    wait_until(lambda: "waiting for long-term storage" in server.log, server, "the warning")
    assert f"{mount.place} is not the long-term storage used so far" in server.log
    time.sleep(1.0)  # It checks several times.
    assert mount.files_below() == []
    assert log_files(server) == logs
    assert server.is_running
    mount.mount()
    server.wait_ready()
    check_all(server, 25)
    write(server, 1, is_new=False)
    check_all(server, 26)
    assert server.terminate() == 0, server.log


def test_a_missing_mount_point_is_not_created(server: StandaloneProcess, mount: Mount) -> None:
    """The directory itself is absent; a server that is asked to stop while it waits stops."""
    begin(server, mount)
    write(server, 1, is_new=True)
    assert server.terminate() == 0, server.log
    mount.unmount()
    mount.place.rmdir()
    server.spawn()
    wait_until(lambda: "waiting for long-term storage" in server.log, server, "the warning")
    assert server.terminate() == 0, server.log
    assert not mount.place.exists()


def test_a_running_server_waits_for_storage_that_disappears(server: StandaloneProcess, mount: Mount) -> None:
    """Appends continue, nothing is written below the mount point, and the flush resumes when the storage is back."""
    begin(server, mount)
    write(server, 20, is_new=True)
    mount.unmount()
    wait_until(lambda: "long-term storage is unavailable" in server.log, server, "the alarm")
    write(server, 20, is_new=False)
    time.sleep(1.0)  # The flush is due many times.
    assert mount.files_below() == []
    assert server.is_running
    # A container that is started again meanwhile, or the whole server, claims nothing.
    mount.mount()
    wait_until(lambda: "is available again" in server.log, server, "the all-clear")
    wait_until(lambda: stored_bytes(mount.source) >= 40 * len(BLOCK) * len(SEGMENTS), server, "the flush")
    check_all(server, 40)
    server.restart()
    check_all(server, 40)


def test_reads_of_temporarily_missing_chunks_are_refused_on_an_open_connection(
    server: StandaloneProcess, mount: Mount
) -> None:
    """What is only in storage is answered with WrongHost, "not here, not now": clients try again."""
    begin(server, mount)
    write(server, 20, is_new=True)
    wait_until(lambda: stored_bytes(mount.source) >= 20 * len(BLOCK) * len(SEGMENTS), server, "the flush")
    for _ in range(8):  # Until the logs are cut, a start brings the bytes back into memory.
        time.sleep(0.5)
        server.restart()
    mount.unmount()
    wait_until(lambda: "long-term storage is unavailable" in server.log, server, "the alarm")
    refused = 0
    with WireClient(server.segment_store_port) as client:
        for segment in SEGMENTS:
            client.send(ReadSegment(segment, 0, 1 << 20, "", client.next_id()))
            reply = client.receive()  # type: ignore[var-annotated]
            assert isinstance(reply, SegmentRead | WrongHost)
            refused += isinstance(reply, WrongHost)
            info = client.ask(GetStreamSegmentInfo(client.next_id(), segment, ""), StreamSegmentInfo)
            assert info.write_offset == 20 * len(BLOCK)
    assert refused, "every segment was still in memory"
    mount.mount()
    wait_until(lambda: "is available again" in server.log, server, "the all-clear")
    check_all(server, 20)


def test_the_storage_of_another_cluster_is_refused(server: StandaloneProcess, mount: Mount, tmp_path: Path) -> None:
    """At the start with an error that says whose it is; neither side is touched."""
    begin(server, mount)
    write(server, 1, is_new=True)
    assert server.terminate() == 0, server.log
    mount.unmount()
    other = tmp_path / "other"
    other.mkdir()
    identity = (mount.source / "penstock-storage.toml").read_bytes()
    (other / "penstock-storage.toml").write_bytes(StorageIdentity("another").encode())
    mount.mount(other)
    refused = server.launch()
    assert refused["kind"] == "StorageIdentityError"
    assert "belongs to cluster another" in str(refused["message"])
    assert server.wait() == 1
    assert [path.name for path in other.iterdir()] == ["penstock-storage.toml"]
    mount.unmount()
    (mount.source / "penstock-storage.toml").write_bytes(identity[:-1])
    mount.mount()
    server.start()  # Only a line's end is missing.
    server.kill9()
    (mount.source / "penstock-storage.toml").write_bytes(identity[:-5])
    refused = server.launch()
    assert refused["kind"] == "StorageIdentityError"
    assert "checksum of its identity" in str(refused["message"])
    assert server.wait() == 1
