"""`connect`: what it costs to import, and where it goes when it is not told."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock


def test_importing_connect_loads_neither_grpc_nor_an_event_loop() -> None:
    heavy = {"grpc", "asyncio", "google.protobuf", "msgspec", "ssl"}
    ended = subprocess.run(
        [sys.executable, "-c", "import sys; from penstock import connect; print(*sys.modules)"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert not heavy & set(ended.stdout.split())


def test_the_address_comes_from_the_environment_when_it_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URI", "tcp://127.0.0.1:7")
    with penstock.connect() as client:
        assert client.uri == "tcp://127.0.0.1:7"
    with penstock.connect("tcp://127.0.0.1:8") as client:
        assert client.uri == "tcp://127.0.0.1:8"
    assert penstock.aio.connect().uri == "tcp://127.0.0.1:7"
    monkeypatch.delenv("PENSTOCK_URI")
    with penstock.connect() as client:
        assert client.uri == "tcp://localhost:9090"
