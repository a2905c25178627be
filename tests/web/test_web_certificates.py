"""Client certificates at the web server: REST and console with the rights of the account that a certificate names."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from penstock import aio
from penstock.model.errors import InvalidArgumentError
from penstock.model.permissions import Permission
from penstock.runtime.client_security import ClientSecurity, Credentials
from penstock.security.access_list import AccessEntry, AccessList
from penstock.security.accounts import Account, format_accounts
from penstock.security.audit_log import AuditSettings
from penstock.security.certificates import make_certificates
from penstock.security.errors import SecurityFileError
from penstock.security.passwords import hash_password
from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.certificates import CertifiedSessions
from penstock.web.settings import WebSettings
from penstock.web.tls import CertificateProtocol, ServedTls, TlsFiles
from support.client_certificates import ClientAuthority
from support.command_line import run_command
from support.secured_server import PASSWORD, SecuredServer, accounts

pytest.importorskip("cryptography", reason="needs the extra [security]")


class Web:
    """A secured server in memory, and a web server with TLS, whose account may open sessions for some others."""

    def __init__(self, directory: Path, *, requires_certificates: bool) -> None:
        self.running = SecuredServer(directory, audit=AuditSettings(file=str(directory / "audit.jsonl")))
        entries = tuple(AccessEntry(f"prn::/account:{name}", Permission.READ_UPDATE) for name in ("reader", "gone"))
        web = Account("web", hash_password(PASSWORD, bytes(32), 10), AccessList(entries))
        self.passwd = directory / "passwd"
        self.passwd.write_text(accounts() + format_accounts([web]))
        self.authority = ClientAuthority(directory / "clients")
        made = make_certificates(["localhost"], datetime.datetime.now(datetime.UTC))
        self.own_ca = made.authority
        (directory / "web.crt").write_bytes(made.certificate)
        (directory / "web.key").write_bytes(made.private_key)
        (directory / "web.key").chmod(0o600)
        self.files = TlsFiles(directory / "web.crt", directory / "web.key", self.authority.path, requires_certificates)
        self.tls = ServedTls(self.files)

    async def start(self) -> None:
        await self.running.server.start()
        uri = f"tls://localhost:{self.running.server.controller_port}"
        ca = self.running.authority
        own = ClientSecurity(Credentials("web", PASSWORD), ca)
        app = WebApp(
            connection_to(uri, ca), WebSettings(), certified=CertifiedSessions(lambda: aio.Client(uri, security=own))
        )
        config = uvicorn.Config(
            app, log_level="warning", http=CertificateProtocol, ssl_certfile=str(self.files.certificate),
            ssl_keyfile=str(self.files.private_key),
        )  # fmt: skip
        config.load()
        config.ssl = self.tls.context
        self._server = uvicorn.Server(config)
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._task
        await self.running.close()

    async def ask(
        self, files: tuple[Path, Path] | None, path: str, *, method: str = "GET", **options: Any
    ) -> httpx.Response:
        """Send a request over a connection of its own."""
        context = ssl.create_default_context(cadata=self.own_ca.decode())
        if files is not None:
            context.load_cert_chain(*files)
        async with httpx.AsyncClient(verify=context, timeout=60) as client:
            return await client.request(method, f"https://localhost:{self.port}{path}", **options)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    made = Web(tmp_path, requires_certificates=False)
    await made.start()
    yield made
    await made.stop()


async def test_a_certificate_has_the_rights_of_its_account_over_rest_and_in_the_console(
    web: Web, tmp_path: Path
) -> None:
    files = web.authority.issue("reader", ["other"], ["penstock:user/reader"])
    assert (await web.ask(files, "/v1/whoami")).json() == {"user": "reader"}
    refused = await web.ask(files, "/v1/scopes", method="POST", json={"scopeName": "made"})
    assert refused.status_code == 403
    assert "'reader'" in refused.json()["message"]
    page = await web.ask(files, "/console/")
    assert page.status_code == 200
    assert "reader" in page.text
    # The audit log has the session that the web server has opened, and for which account.
    text = (tmp_path / "audit.jsonl").read_text()
    assert '"principal": "web"' in text
    assert "prn::/account:reader" in text


async def test_a_password_of_the_request_comes_before_the_certificate(web: Web) -> None:
    files = web.authority.issue("reader", ["reader"])
    found = await web.ask(files, "/v1/whoami", auth=("root", PASSWORD))
    assert found.json() == {"user": "root"}
    assert (await web.ask(files, "/v1/whoami", auth=("root", "wrong"))).status_code == 401


async def test_the_web_server_opens_sessions_for_the_permitted_accounts_alone(web: Web) -> None:
    """Not for an administrator, whatever its certificate says; and not for accounts that do not exist."""
    for name, text in (("root", "'web' lacks READ_UPDATE on prn::/account:root"), ("gone", "no account 'gone'")):
        found = await web.ask(web.authority.issue(name, [name]), "/v1/whoami")
        assert found.status_code == 403
        assert text in found.json()["message"]
    both = web.authority.issue("both", ["x"], ["penstock:user/reader", "penstock:user/root"])
    found = await web.ask(both, "/v1/whoami")
    assert found.status_code == 401
    assert "names one account" in found.json()["message"]


async def test_without_a_certificate_or_with_a_foreign_one_there_is_no_account(web: Web, tmp_path: Path) -> None:
    assert (await web.ask(None, "/v1/whoami")).status_code == 401
    foreign = ClientAuthority(tmp_path / "foreign").issue("reader", ["reader"])
    expired = web.authority.issue("expired", ["reader"], valid_days=-1)
    for files in (foreign, expired):
        with pytest.raises((httpx.TransportError, ssl.SSLError)):
            await web.ask(files, "/v1/whoami")


async def test_a_removed_account_ends_at_once_and_another_session_is_opened_after_a_change(web: Web) -> None:
    files = web.authority.issue("reader", ["reader"])
    assert (await web.ask(files, "/v1/whoami")).status_code == 200
    security = web.running.server.security
    assert security is not None
    before = web.passwd.read_text()
    web.passwd.write_text("".join(line for line in before.splitlines(True) if not line.startswith("reader:")))
    security.reload_changed()
    assert (await web.ask(files, "/v1/whoami")).status_code == 401
    assert (await web.ask(files, "/v1/whoami")).status_code == 403
    web.passwd.write_text(before)
    security.reload_changed()
    assert (await web.ask(files, "/v1/whoami")).json() == {"user": "reader"}


async def test_the_account_of_the_web_server_itself_is_named_when_it_is_refused(web: Web) -> None:
    security = web.running.server.security
    assert security is not None
    kept = [line for line in web.passwd.read_text().splitlines(True) if not line.startswith("web:")]
    web.passwd.write_text("".join(kept))
    security.reload_changed()
    found = await web.ask(web.authority.issue("reader", ["reader"]), "/v1/whoami")
    assert found.status_code == 503
    assert "account of this web server" in found.json()["message"]


async def test_required_certificates_refuse_clients_without_one(tmp_path: Path) -> None:
    made = Web(tmp_path, requires_certificates=True)
    await made.start()
    try:
        with pytest.raises((httpx.TransportError, ssl.SSLError)):
            await made.ask(None, "/ping")
        assert (await made.ask(made.authority.issue("reader", ["reader"]), "/v1/whoami")).status_code == 200
    finally:
        await made.stop()


async def test_files_are_read_again_and_bad_ones_leave_the_previous_state(web: Web) -> None:
    old_ca = web.own_ca
    made = make_certificates(["localhost"], datetime.datetime.now(datetime.UTC))
    web.files.certificate.write_bytes(made.certificate)
    web.tls.reload_changed()  # Only one of the two files is new.
    assert "cannot be used" in web.tls.problem
    assert (await web.ask(None, "/ping")).status_code == 200
    web.files.private_key.write_bytes(made.private_key)
    web.tls.reload_changed()
    assert web.tls.problem == ""
    with pytest.raises(httpx.TransportError):
        await web.ask(None, "/ping")
    web.own_ca = made.authority
    assert (await web.ask(None, "/ping")).status_code == 200
    assert old_ca != made.authority


def test_options_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SecurityFileError):
        ServedTls(TlsFiles(tmp_path / "missing.crt", tmp_path / "missing.key"))
    assert issubclass(SecurityFileError, InvalidArgumentError)
    monkeypatch.delenv("PENSTOCK_USER", raising=False)
    for options, text in (
        (("--client-ca", "x"), "--client-ca needs --certificate"),
        (("--require-certificates",), "needs --client-ca"),
        (("--certificate", "x", "--client-ca", "x"), "an account of its own"),
    ):
        refused = run_command("web", *options, uri="tls://localhost:1")
        assert refused.code != 0
        assert text in refused.stderr
