"""Other projects' clients write and read while servers without a disk take the log in a bucket over from each other.

The servers have one address, as machines that take a service's address. Each take-over begins while the client works
and the server before still runs; that one ends by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.conftest import JavaHolder
from interop.test_java_client_streams import KEY_COUNT, assert_each_key_in_order
from penstock_simulation.java_client import JavaUnavailableError
from support import java_calls_streams as calls
from support import java_client
from support.bucket_server import Make, bucket_options
from support.moving_address import MovingAddress
from support.s3_server import S3Server
from support.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.interop, pytest.mark.e2e, pytest.mark.timeout(600)]

EVENT_COUNT = 20_000


class Successors:
    """Servers that take one log over from each other, behind one address."""

    def __init__(self, make_server: Make, options: tuple[str, ...]) -> None:
        self._make_server = make_server
        self._options = options
        self._hosts = (f"127.0.0.{number}" for number in itertools.count(2))
        self._host = ""
        self.address = MovingAddress()
        self.present = self._make()
        self.present.start()
        self.address.move(self._host)

    @property
    def uri(self) -> str:
        """The controller's address, whichever server has it."""
        return self.present.uri

    def _make(self) -> StandaloneProcess:
        self._host = next(self._hosts)
        made = self._make_server(*self._options, "--host", self._host, "--advertise", "127.0.0.1")
        made.controller_port, made.segment_store_port = self.address.ports
        return made

    def take_over(self) -> None:
        """Start another server on the log, and wait until the one before has ended because of it."""
        before, after = self.present, self._make()
        after.start()
        self.address.move(self._host)
        self.present = after
        assert b"another server has taken over the log" in before.read_line()
        assert before.wait() == 1


@pytest.fixture
def servers(make_server: Make, s3_server: S3Server, tmp_path: Path) -> Iterator[Successors]:
    """The first server runs."""
    made = Successors(make_server, bucket_options(s3_server, tmp_path))
    with made.address:
        yield made


def test_the_pypi_client_writes_and_reads_through_take_overs(servers: Successors) -> None:
    client = pytest.importorskip("pravega_client", reason="PyPI pravega exists for Python 3.11 and older only")
    # Its tests are skipped where that client is missing, and these must not be.
    from interop import test_pypi_pravega as pypi

    manager = client.StreamManager(servers.uri)
    assert manager.create_scope("shop") is True
    assert manager.create_stream("shop", "orders", 2)
    writing = pypi.worker("write", servers.uri, "orders", "0", str(EVENT_COUNT))
    pypi.await_begun(writing)
    servers.take_over()
    pypi.finish(writing)
    reading = pypi.worker("read", servers.uri, "orders", "audit", "2", str(EVENT_COUNT))
    pypi.await_begun(reading)
    servers.take_over()
    pypi.assert_each_key_in_order(pypi.finish(reading), EVENT_COUNT)


def test_the_java_client_writes_and_reads_through_take_overs(servers: Successors, java_holder: JavaHolder) -> None:
    try:
        java = java_holder.running()
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    java.run(java_client.connect, servers.uri)
    assert java.run(calls.create_scope)
    assert java.run(calls.create_stream, "orders", 2)
    writing = java.start(calls.write_events, "orders", 0, EVENT_COUNT, KEY_COUNT)
    writing.wait_for("begun")
    servers.take_over()
    writing.result()
    assert_each_key_in_order(java.run(calls.read_batch, "orders", "", "")[0], EVENT_COUNT)
    servers.take_over()
    assert_each_key_in_order(java.run(calls.read_batch, "orders", "", "")[0], EVENT_COUNT)
    java.run(java_client.disconnect)
