"""The port of REST and console: its process starts with the first connection, and ends with the server."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.permissions import Permission
from penstock.security.access_list import AccessEntry, AccessList
from penstock.security.accounts import Account, format_accounts
from penstock.security.passwords import SALT_LENGTH, hash_password
from support.standalone_process import StandaloneProcess, child_environment

pytestmark = pytest.mark.e2e
pytest.importorskip("uvicorn", reason="needs the extra web")

#: Bound of waits, far above what they take.
WAIT_S = 60


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def wait_until(check: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def scopes(server: StandaloneProcess, context: ssl.SSLContext | None = None) -> tuple[int, object]:
    """Return status and body of a REST call, repeated while the connection is lost."""
    scheme = "http" if context is None else "https"
    url = f"{scheme}://localhost:{server.ready['web_port']}/v1/scopes"
    end_s = time.monotonic() + WAIT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=WAIT_S, context=context) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except OSError:
            assert time.monotonic() < end_s
            time.sleep(0.1)


def test_the_web_process_starts_with_a_connection_and_again_after_a_kill(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path, memory=True) as server:
        assert children_of(server.pid) == []
        assert scopes(server) == (200, {"scopes": [{"scopeName": "_system"}]})
        (first,) = children_of(server.pid)
        assert scopes(server)[0] == 200
        assert children_of(server.pid) == [first]
        os.kill(first, signal.SIGKILL)
        assert scopes(server)[0] == 200
        (second,) = children_of(server.pid)
        assert second != first
        # The end of the server is the end of the web process, also without a stop.
        server.kill9()
        wait_until(lambda: not Path(f"/proc/{second}").exists())


def test_an_idle_web_process_ends(tmp_path: Path) -> None:
    settings = tmp_path / "penstock.toml"
    settings.write_text("[web]\nidle_s = 0.2\n")
    with StandaloneProcess(tmp_path, "--config", str(settings), memory=True) as server:
        for _ in range(2):
            assert scopes(server)[0] == 200
            wait_until(lambda: not children_of(server.pid))
        assert "web process" not in server.log


def test_a_chosen_port_that_is_in_use_stops_the_start_and_a_derived_one_does_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = StandaloneProcess(tmp_path, "--web-port", str(port), memory=True)
        line = server.launch()
        assert line["type"] == "error"
        assert f"127.0.0.1:{port}" in str(line["message"])
        server.kill9()
        server = StandaloneProcess(tmp_path, memory=True)
        server.controller_port = port - 1
        with server:
            assert server.ready["web_port"] is None
    with StandaloneProcess(tmp_path, "--no-web", memory=True) as server:
        assert server.ready["web_port"] is None


def test_a_secure_server_serves_https_with_its_own_certificate(tmp_path: Path) -> None:
    with StandaloneProcess(tmp_path, "--secure") as server:
        context = ssl.create_default_context(cafile=server.data_dir / "security" / "ca.crt")
        status, body = scopes(server, context)
        assert (status, isinstance(body, dict)) == (401, True)
        password = (server.data_dir / "security" / "admin.password").read_text().strip()
        request = urllib.request.Request(
            f"https://localhost:{server.ready['web_port']}/v1/whoami",
            headers={"Authorization": "Basic " + base64.b64encode(f"admin:{password}".encode()).decode()},
        )
        with urllib.request.urlopen(request, timeout=WAIT_S, context=context) as reply:
            assert json.loads(reply.read()) == {"user": "admin"}


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["optional", "required"])
def test_client_certificates_prove_accounts_at_the_web_server_of_a_standalone_server(tmp_path: Path, mode: str) -> None:
    """The account in the environment of the server opens the sessions, and may do so for one account alone."""
    pytest.importorskip("cryptography", reason="needs the extra [security]")
    from support.client_certificates import ClientAuthority

    authority, directory = ClientAuthority(tmp_path / "clients"), tmp_path / "data" / "security"
    hashed = hash_password("of web", bytes(SALT_LENGTH), 1000)
    entries = AccessList((AccessEntry("prn::/account:ann", Permission.READ_UPDATE),))
    passwd = format_accounts([Account("web", hashed, entries)]) + "ann:!:\nroot:!:prn::*,READ_UPDATE\n"
    for path, text in ((tmp_path / "passwd", passwd), (tmp_path / "password", "of web\n")):
        path.write_text(text)
        path.chmod(0o600)
    command = [
        sys.executable, "-m", "penstock", "standalone", "--json", "--secure", "--data-dir", str(tmp_path / "data"),
        "--controller-port", "0", "--segment-store-port", "0", "--accounts", str(tmp_path / "passwd"),
    ]  # fmt: skip
    environment = child_environment(
        PENSTOCK_USER="web", PENSTOCK_PASSWORD_FILE=str(tmp_path / "password"),
        PENSTOCK_SECURITY__CLIENT_CA=str(authority.path), PENSTOCK_SECURITY__CLIENT_CERTIFICATES=mode,
    )  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as server:
        try:
            assert server.stdout is not None
            url = f"https://localhost:{json.loads(server.stdout.readline())['web_port']}/v1/whoami"

            def answer(name: str) -> tuple[int, object]:
                context = ssl.create_default_context(cafile=directory / "ca.crt")
                if name:
                    context.load_cert_chain(*authority.issue(name, [name]))
                try:
                    with urllib.request.urlopen(url, timeout=WAIT_S, context=context) as reply:
                        return reply.status, json.loads(reply.read())
                except urllib.error.HTTPError as error:
                    return error.code, None

            assert answer("ann") == (200, {"user": "ann"})
            assert answer("root") == (403, None)
            if mode == "optional":
                assert answer("") == (401, None)
            else:
                with pytest.raises(OSError, match=r"(?i)certificate|reset|closed"):
                    answer("")
        finally:
            server.kill()
