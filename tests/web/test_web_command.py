"""`penstock web` as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import httpx
import pytest

from penstock.server.standalone_process import child_environment
from penstock.testing import MemoryServer
from support.command_line import run_command


def test_it_serves_until_it_is_terminated(penstock_server: MemoryServer) -> None:
    command = [sys.executable, "-m", "penstock", "web", "--uri", penstock_server.uri, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment()) as running:
        try:
            assert running.stdout is not None
            ready = json.loads(running.stdout.readline())
            assert ready["type"] == "web_ready"
            answer = httpx.get(ready["address"] + "/v1/scopes", timeout=60)
            assert "_system" in {each["scopeName"] for each in answer.json()["scopes"]}
            assert httpx.get(ready["address"] + "/v1/scopes/a%2Fb", timeout=60).status_code in (400, 404)
            assert "/v1/scopes" in httpx.get(ready["address"] + "/v1/openapi.json", timeout=60).json()["paths"]
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) in (0, -signal.SIGTERM)
        finally:
            running.kill()


def test_the_console_is_opened_in_a_browser(penstock_server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends as soon as the browser has loaded the page."""
    opened: list[str] = []

    def load(address: str) -> bool:
        opened.append(address)
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", load)
    done = run_command("console", uri=penstock_server.uri)
    assert len(opened) == 1
    assert opened[0].startswith("http://localhost:")
    assert opened[0].endswith("/console/")
    assert opened[0] in done.stdout


def test_the_console_is_served_without_a_browser(penstock_server: MemoryServer) -> None:
    command = [sys.executable, "-m", "penstock", "console", "--uri", penstock_server.uri, "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment()) as running:
        try:
            assert running.stdout is not None
            ready = json.loads(running.stdout.readline())
            page = httpx.get(ready["address"] + "/console/streams", timeout=60)
            assert page.status_code == 200
            assert "<h1>Streams</h1>" in page.text
            assert penstock_server.uri in httpx.get(ready["address"] + "/console/cluster", timeout=60).text
        finally:
            running.kill()


def test_listening_for_other_machines_needs_encryption(penstock_server: MemoryServer) -> None:
    refused = run_command("web", "--host", "0.0.0.0", uri=penstock_server.uri)
    assert refused.code != 0
    assert "--certificate" in refused.stderr


@pytest.mark.parametrize("command", ["web", "console"])
def test_a_missing_extra_is_named(penstock_server: MemoryServer, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    refused = run_command(command, uri=penstock_server.uri)
    assert refused.code != 0
    assert f"penstock {command} needs uvicorn" in refused.stderr
    assert "the extra 'web' of Penstock" in refused.stderr


def test_a_port_in_use_is_named(penstock_server: MemoryServer) -> None:
    port = penstock_server.uri.rpartition(":")[2]
    refused = run_command("web", "--port", port, uri=penstock_server.uri)
    assert refused.code != 0
    assert "choose another --port" in refused.stderr
