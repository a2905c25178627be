"""Real servers without a local disk whose bucket is full: versitygw on a small tmpfs, which takes root.

See docs/object-log.md, "A full bucket". `test_full_bucket.py` of the log has the same in virtual time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.server.standalone_process import StandaloneProcess, run_penstock
from support.bucket_server import Make, bucket_options
from support.s3_server import S3Server, S3UnavailableError

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(240)]

MIB = 1024 * 1024
FILE_SYSTEM_BYTES = 48 * MIB
#: Left free by the ballast: less than the load needs.
LEFT_BYTES = 6 * MIB
STREAM = "shop/orders"
EVENT_BYTES = 16 * 1024
EVENT_COUNT = 1200
STEP = 50


@pytest.fixture
def small_s3(tmp_path: Path) -> Iterator[S3Server]:
    """Run an S3 server on a file system of its own."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a file system of its own takes Linux and root")
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={FILE_SYSTEM_BYTES}", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        try:
            server = S3Server(place).start()
        except S3UnavailableError as error:
            pytest.skip(str(error))
        yield server
        server.kill()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def make(make_server: Make, small_s3: S3Server, tmp_path: Path) -> Callable[[], StandaloneProcess]:
    """Make a server, as on another machine: nothing is there but the options."""
    options = bucket_options(small_s3, tmp_path)
    return lambda: make_server(*options)


class Ballast:
    """A file beside the buckets that takes all room but `LEFT_BYTES`."""

    def __init__(self, s3: S3Server) -> None:
        self._path = s3.directory / "ballast"

    def put(self) -> None:
        """Take the room."""
        there = os.statvfs(self._path.parent)
        self._path.write_bytes(bytes(there.f_bavail * there.f_frsize - LEFT_BYTES))

    def remove(self) -> None:
        """Give it back."""
        self._path.unlink()


class Load:
    """A writer in a thread; `acknowledged` grows with each flush."""

    def __init__(self, uri: str) -> None:
        self.acknowledged = 0
        self.error: BaseException | None = None
        self._uri = uri
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with penstock.connect(self._uri) as client:
                client.create_stream(STREAM, scaling=penstock.Scaling.fixed(1))
                with client.event_writer(STREAM) as writer:
                    for first in range(0, EVENT_COUNT, STEP):
                        for number in range(first, first + STEP):
                            writer.write(b"%08d" % number + os.urandom(EVENT_BYTES - 8))
                        writer.flush()
                        self.acknowledged = first + STEP
        except BaseException as error:
            self.error = error
            raise

    def finish(self) -> None:
        """Wait until all of it is acknowledged."""
        self._thread.join(120.0)
        assert not self._thread.is_alive()
        assert self.error is None


def numbers(uri: str) -> list[int]:
    """Return the numbers of all events, in their order."""
    with penstock.connect(uri) as client, client.batch(STREAM) as batch:
        return [int(bytes(each.data)[:8]) for part in batch.ranges for each in batch.events(part)]


def until_full(server: StandaloneProcess) -> str:
    """Wait until the server is not ready because its bucket is full; return what `ready` says."""
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s:
        ready = run_penstock("ready", "--uri", server.uri, "--timeout", "5s")
        if ready.returncode == 1 and "writes wait" in ready.stderr:
            return ready.stderr
    raise AssertionError(server.log)


def until_ready(server: StandaloneProcess) -> None:
    """Wait until the server is ready."""
    ready = run_penstock("ready", "--uri", server.uri, "--timeout", "60s", timeout_s=90.0)
    assert ready.returncode == 0, ready.stderr + server.log


def test_writes_wait_while_the_bucket_is_full_and_resume_by_themselves(
    make: Callable[[], StandaloneProcess], small_s3: S3Server
) -> None:
    """Meanwhile reads are answered and `ready` says why it is not. Then all of it is there, once and in order."""
    ballast = Ballast(small_s3)
    server = make().start()
    until_ready(server)
    ballast.put()
    load = Load(server.uri)
    assert "disk full on segment store" in until_full(server)
    acknowledged = load.acknowledged
    assert 0 < acknowledged < EVENT_COUNT
    assert numbers(server.uri)[:acknowledged] == list(range(acknowledged))
    time.sleep(3.0)  # Longer than a lease.
    assert load.error is None
    assert server.is_running
    ballast.remove()
    until_ready(server)
    load.finish()
    assert numbers(server.uri) == list(range(EVENT_COUNT))
    assert "has space again" in server.log
