"""Pravega's client from PyPI, unmodified, against a server with TLS and accounts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.standalone_process import StandaloneProcess

pytest.importorskip("pravega_client", reason="needs the PyPI package pravega, which has no wheel for this Python")

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

#: The client reads its settings from the environment once, so it runs in a process of its own.
PROGRAM = """
import asyncio, os, sys
import pravega_client

manager = pravega_client.StreamManager(sys.argv[1], auth_enabled=True, tls_enabled=True)
assert manager.create_scope("shop")
assert manager.create_stream("shop", "orders", 2)
writer = manager.create_writer("shop", "orders")
for number in range(20):
    writer.write_event(f"{number}")
writer.flush()

async def read():
    reader = manager.create_reader_group("readers", "shop", "orders").create_reader("one")
    found = set()
    while len(found) < 20:
        part = await reader.get_segment_slice_async()
        found.update(event.data().decode() for event in part)
        reader.release_segment(part)
    return found

assert asyncio.run(read()) == {f"{number}" for number in range(20)}
# Not an ordinary end: a thread of the client that asks for the interpreter then aborts the process at times.
os._exit(0)
"""


def test_it_writes_and_reads_with_tls_and_an_account(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path, "--secure") as server:
        files = server.data_dir / "security"
        password = (files / "admin.password").read_text().strip()
        environment = os.environ | {
            "pravega_client_tls_cert_path": str(files / "ca.crt"),
            "pravega_client_auth_method": "Basic",
            "pravega_client_auth_username": "admin",
            "pravega_client_auth_password": password,
        }
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"tls://localhost:{server.controller_port}"],
            env=environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert password not in server.log
