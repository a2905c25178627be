"""`StandaloneProcess` with stand-ins for the server: what it says when one does not start, and what a restart keeps.

Real servers under it are in ``tests/e2e``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.server.errors import ServerProcessError
from penstock.server.standalone_process import StandaloneProcess


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo bad luck >&2; exit 3", r"ended with code 3.*bad luck"),
        ("""echo '{"type": "error", "message": "port 9090 is taken"}'; exit 1""", "did not start: port 9090 is taken"),
    ],
)
def test_a_server_that_does_not_start_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, complaint: str
) -> None:
    monkeypatch.setattr(StandaloneProcess, "command", lambda self: ["/bin/sh", "-c", script])
    server = StandaloneProcess(tmp_path)
    with pytest.raises(ServerProcessError, match=f"(?s){complaint}"):
        server.start()
    assert not server.is_running
    server.stop()


def test_a_server_keeps_its_ports_over_a_restart_and_is_stopped_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ready = '{"type": "ready", "controller": "tcp://127.0.0.1:1234", "segment_store": "127.0.0.1:5678"}'
    commands: list[list[str]] = []
    real = StandaloneProcess.command

    def stand_in(self: StandaloneProcess) -> list[str]:
        commands.append(real(self))
        return ["/bin/sh", "-c", f"echo '{ready}'; exec sleep 60"]

    monkeypatch.setattr(StandaloneProcess, "command", stand_in)
    with StandaloneProcess(tmp_path, has_own_session=True) as server:
        assert server.uri == "tcp://127.0.0.1:1234"
        assert server.is_running
        server.stop()
        assert not server.is_running
        server.stop()  # type: ignore[unreachable]
        server.start()
    assert not server.is_running
    assert commands[0][-4:] == ["--controller-port", "0", "--segment-store-port", "0"]
    assert commands[1][-4:] == ["--controller-port", "1234", "--segment-store-port", "5678"]
