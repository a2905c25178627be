"""Pravega's own clients with TLS and accounts, whose delegation tokens expire every 10 s while they write and read."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_simulation.java_client import JavaUnavailableError
from support import java_calls_groups as group_calls
from support import java_calls_streams as calls
from support import java_client
from support.java_client import JavaCallError, JavaProcess
from support.standalone_process import StandaloneProcess

pytestmark = [pytest.mark.interop, pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(600)]

TOKEN_TTL_S = 10
#: Six lives of a token.
DURATION_S = 60.0
STREAM = "orders"
KEY_COUNT = 2

#: Writes for a time, and prints the number of events; or reads as many, and prints them. The client reads its settings
#: from the environment once, and its calls block, so each side is a process.
_PYPI = """
import asyncio, os, sys, time
import pravega_client

what, uri, amount = sys.argv[1], sys.argv[2], float(sys.argv[3])
manager = pravega_client.StreamManager(uri, auth_enabled=True, tls_enabled=True)

def write():
    writer = manager.create_writer("shop", "orders")
    number, end = 0, time.monotonic() + amount
    while time.monotonic() < end:
        writer.write_event(f"key{number % 2}:{number}", f"key{number % 2}")
        number += 1
        if number % 20 == 0:
            writer.flush()
        time.sleep(0.01)
    writer.flush()
    print(number, flush=True)

async def read():
    reader = manager.create_reader_group("readers", "shop", "orders").create_reader("one")
    while True:
        part = await asyncio.wait_for(reader.get_segment_slice_async(), 120)
        for event in part:
            print(event.data().decode(), flush=True)
        reader.release_segment(part)

if what == "create":
    assert manager.create_scope("shop") and manager.create_stream("shop", "orders", 2)
elif what == "write":
    write()
else:
    asyncio.run(read())
# Not an ordinary end: a thread of the client that asks for the interpreter then aborts the process at times.
os._exit(0)
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandaloneProcess]:
    """A server whose tokens are short-lived."""
    monkeypatch.setenv("PENSTOCK_SECURITY__TOKEN_TTL_S", str(TOKEN_TTL_S))
    with StandaloneProcess(tmp_path, "--secure") as running:
        yield running


def password_of(server: StandaloneProcess) -> str:
    return (server.data_dir / "security" / "admin.password").read_text().strip()


def assert_complete(events: list[str], count: int) -> None:
    """Events are ``key:number``: each once, and those of a key in order."""
    for key in range(KEY_COUNT):
        numbers = [int(event.partition(":")[2]) for event in events if event.startswith(f"key{key}:")]
        assert numbers == list(range(key, count, KEY_COUNT))


def test_pypi_writes_and_reads_through_many_lives_of_its_tokens(server: StandaloneProcess, tmp_path: Path) -> None:
    environment = os.environ | {
        "pravega_client_tls_cert_path": str(server.data_dir / "security" / "ca.crt"),
        "pravega_client_auth_method": "Basic",
        "pravega_client_auth_username": "admin",
        "pravega_client_auth_password": password_of(server),
    }
    pytest.importorskip("pravega_client", reason="needs the PyPI package pravega, which has no wheel for this Python")

    def run(what: str, amount: float = 0.0) -> subprocess.Popen[str]:
        uri = f"tls://localhost:{server.controller_port}"
        output = (tmp_path / what).open("w")
        return subprocess.Popen(
            [sys.executable, "-c", _PYPI, what, uri, str(amount)], env=environment, stdout=output,
            stderr=(tmp_path / f"{what}.errors").open("w"), text=True,
        )  # fmt: skip

    assert run("create").wait(120) == 0, (tmp_path / "create.errors").read_text()
    reading, writing = run("read"), run("write", DURATION_S)
    try:
        assert writing.wait(240) == 0, (tmp_path / "write.errors").read_text()
        count = int((tmp_path / "write").read_text())
        assert count > TOKEN_TTL_S
        end_s = time.monotonic() + 120
        while len(events := (tmp_path / "read").read_text().splitlines()) < count:
            assert reading.poll() is None, (tmp_path / "read.errors").read_text()
            assert time.monotonic() < end_s, f"{len(events)} of {count} events were read"
            time.sleep(0.5)
        assert_complete(events, count)
    finally:
        for process in (reading, writing):
            process.kill()
            process.wait()
    assert password_of(server) not in server.log


@pytest.fixture
def java(server: StandaloneProcess) -> Iterator[JavaProcess]:
    """The Java client in a process of its own, connected with TLS and the administrator's account."""
    try:
        java_client.find_java()
        process = JavaProcess(java_client.classpath())
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    with process:
        uri, authority = f"tls://localhost:{server.controller_port}", str(server.data_dir / "security" / "ca.crt")
        process.run(java_client.connect_secured, uri, authority, "admin", password_of(server))
        yield process
        if process.is_running:
            process.run(java_client.disconnect)


def test_java_writes_and_reads_through_many_lives_of_its_tokens(java: JavaProcess) -> None:
    assert java.run(calls.create_scope)
    assert java.run(calls.create_stream, STREAM, 2)
    java.run(group_calls.create_group, "readers", {STREAM: ("", "")})
    writing = java.start(calls.write_events_for, STREAM, DURATION_S, KEY_COUNT)
    # Reads until nothing has come for a time; more events than are written are asked for.
    reading = java.start(group_calls.read_events, "readers", ["one"], 1_000_000)
    count = writing.result(DURATION_S + 180)
    assert count > TOKEN_TTL_S
    events = [event for _, event in reading.result(DURATION_S + 300)]
    assert_complete(events, count)


def test_java_transactions_and_refusals_with_tls_and_accounts(java: JavaProcess, server: StandaloneProcess) -> None:
    assert java.run(calls.create_scope)
    assert java.run(calls.create_stream, STREAM, 1)
    java.run(calls.begin_transaction, STREAM, "one")
    java.run(calls.write_to_transaction, "one", 0, 10, KEY_COUNT)
    time.sleep(2.5 * TOKEN_TTL_S)  # Its tokens have expired twice when it continues.
    java.run(calls.write_to_transaction, "one", 10, 20, KEY_COUNT)
    java.run(calls.commit_transaction, "one")
    java.run(calls.await_status, "one", "COMMITTED")
    java.run(group_calls.create_group, "readers", {STREAM: ("", "")})
    events = [event for _, event in java.run(group_calls.read_events, "readers", ["one"], 20)]
    assert_complete(events, 20)
    java.run(java_client.disconnect)
    uri, authority = f"tls://localhost:{server.controller_port}", str(server.data_dir / "security" / "ca.crt")
    for password, expected in (("wrong", "UNAUTHENTICATED"), (password_of(server), "")):
        java.run(java_client.connect_secured, uri, authority, "admin", password)
        if expected:
            with pytest.raises(JavaCallError, match=expected):
                java.run(calls.list_scopes)
        else:
            assert calls.SCOPE in java.run(calls.list_scopes)
        java.run(java_client.disconnect)
