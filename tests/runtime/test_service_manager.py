"""Messages to the service manager: what is sent when, and that a missing or hung one does not disturb the server."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from penstock.runtime import service_manager
from penstock.runtime.service_manager import ServiceManager


def listening(address: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.bind(address)
    found.settimeout(10)
    return found


@pytest.mark.parametrize("is_abstract", [False, True])
async def test_a_service_reports_its_start_its_life_and_its_stop(tmp_path: Path, is_abstract: bool) -> None:
    name = f"@penstock-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with listening("\0" + name[1:] if is_abstract else name) as received:
        manager = ServiceManager.of_environment({
            "NOTIFY_SOCKET": name, "WATCHDOG_USEC": "60000", "WATCHDOG_PID": str(os.getpid()),
        })  # fmt: skip
        assert manager.watchdog_s == 0.06
        manager.status("opening containers")
        manager.ready("controller tcp://localhost:9090")
        messages = [await asyncio.to_thread(received.recv, 4096) for _ in range(4)]
        manager.stopping()
        while messages[-1] == b"WATCHDOG=1":
            messages.append(await asyncio.to_thread(received.recv, 4096))
    assert messages[:4] == [
        b"STATUS=opening containers", b"READY=1\nSTATUS=controller tcp://localhost:9090", b"WATCHDOG=1", b"WATCHDOG=1",
    ]  # fmt: skip
    assert messages[-1] == b"STOPPING=1\nSTATUS=stopping"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": ""},
        {"NOTIFY_SOCKET": "/tmp/x", "WATCHDOG_USEC": "many"},
        {"NOTIFY_SOCKET": "/tmp/x", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
    ],
)
async def test_without_a_watchdog_no_signs_of_life_are_sent(environment: dict[str, str]) -> None:
    manager = ServiceManager.of_environment(environment)
    assert manager.watchdog_s == 0
    manager._address = ""
    manager.ready("x")
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "watchdog of systemd"]


async def test_a_missing_or_hung_service_manager_is_reported_and_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ServiceManager(str(tmp_path / "none")).stopping()
    assert "cannot report STOPPING=1" in caplog.text
    caplog.clear()
    monkeypatch.setattr(service_manager, "_SEND_TIMEOUT_S", 0.01)
    with listening(str(tmp_path / "full")):
        manager = ServiceManager(str(tmp_path / "full"))
        for _ in range(100_000):
            manager.status("x" * 1000)
            if caplog.text:
                break
    assert "cannot report STATUS=" in caplog.text
