"""Client certificates as proof of an account: at the controller, at the segment store, and in Penstock's client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import aio
from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    AccessDeniedError,
    AuthenticationError,
    ControllerUnavailableError,
    InvalidArgumentError,
    PenstockError,
)
from penstock.model.permissions import Permission
from penstock.runtime.client_security import Credentials, client_security
from penstock.security.audit_log import AuditSettings
from penstock.security.client_certificates import user_in, user_of_peer
from penstock.security.settings import SecuritySettings
from penstock.wire.commands import AuthTokenCheckFailed, GetStreamSegmentInfo, Hello, StreamSegmentInfo
from support.client_certificates import ClientAuthority
from support.containers import until
from support.raw_wire import RawWire
from support.secured_server import PASSWORD, SecuredServer

QUICK = ClientSettings(first_contact_timeout_s=1.0)
SEGMENT = "shop/orders/0.#epoch.0"


class Certified:
    """A secured server that accepts client certificates, and clients of it."""

    def __init__(self, directory: Path, mode: str) -> None:
        self.authority = ClientAuthority(directory / "clients")
        self.audit = directory / "audit.jsonl"
        self.running = SecuredServer(
            directory, audit=AuditSettings(file=str(self.audit)), client_certificates=mode,
            client_ca=str(self.authority.path),
        )  # fmt: skip

    def client(
        self, files: tuple[Path, Path] | None, credentials: Credentials | None = None, *, is_main_port: bool = False
    ) -> aio.Client:
        server = self.running.server
        assert server.security is not None
        assert server.front is not None
        port = server.front.port if is_main_port else server.front.certificate_port or server.front.port
        certificate, private_key = files or (None, None)
        return aio.connect(
            f"tls://localhost:{port}", QUICK, credentials=credentials, ca=server.security.paths.authority,
            certificate=certificate, private_key=private_key,
        )  # fmt: skip

    async def entry(self, **values: str) -> dict[str, object]:
        """Return the first entry of the audit log with these values; waits for it."""
        async with asyncio.timeout(60):
            while True:
                found: list[dict[str, object]] = [json.loads(line) for line in self.audit.read_text().splitlines()]
                for each in found:
                    if values.items() <= each.items():
                        return each
                await asyncio.sleep(0.05)

    async def wire(self, files: tuple[Path, Path] | None) -> RawWire:
        """Connect to the segment store."""
        context = ssl.create_default_context(cadata=self.running.authority.decode())
        if files is not None:
            context.load_cert_chain(*files)
        port = self.running.server.segment_store_port
        connection = RawWire(*await asyncio.open_connection("localhost", port, ssl=context))
        await connection.ask(Hello(16, 5), Hello)
        return connection


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the probe of an address end with an answer also on a slow machine."""
    monkeypatch.setattr("penstock.client.controller.first_contact.PROBE_TIMEOUT_S", 30.0)


@pytest.fixture
async def optional(tmp_path: Path) -> AsyncIterator[Certified]:
    found = Certified(tmp_path, "optional")
    await found.running.server.start()
    yield found
    await found.running.close()


@pytest.fixture
async def required(tmp_path: Path) -> AsyncIterator[Certified]:
    found = Certified(tmp_path, "required")
    await found.running.server.start()
    yield found
    await found.running.close()


async def write_and_read(client: aio.Client) -> None:
    await client.create_stream("shop/orders")
    async with client.event_writer("shop/orders") as writer:
        await writer.write(b"one", routing_key="a")
    async with await client.reader_group("g", ["shop/orders"]) as group, await group.reader() as reader:
        event = await reader.read(60)
        assert event is not None
        assert event.data == b"one"


async def test_a_certificate_names_an_account_and_is_in_the_audit_log(optional: Certified) -> None:
    by_common_name = optional.authority.issue("root", ["root"])
    async with optional.client(by_common_name) as root:
        await write_and_read(root)
    assert (await optional.entry(call="createStream", outcome="done"))["principal"] == "root"
    # The alternative name counts, not the common name.
    async with optional.client(optional.authority.issue("none", ["root"], ["penstock:user/none"])) as denied:
        with pytest.raises(AccessDeniedError, match="'none'"):
            await denied.create_stream("shop/others")


async def test_passwords_are_accepted_on_both_ports_if_certificates_are_optional(optional: Certified) -> None:
    root = Credentials("root", PASSWORD)
    async with optional.client(None, root, is_main_port=True) as with_password:
        await with_password.create_stream("shop/orders")
    # A password of the call comes before the certificate of the connection.
    async with optional.client(optional.authority.issue("none", ["none"]), root) as both:
        await both.create_stream("shop/clicks")
    async with optional.client(optional.authority.issue("root", ["root"]), Credentials("root", "wrong")) as wrong:
        with pytest.raises(AuthenticationError):
            await wrong.create_stream("shop/others")


@pytest.mark.parametrize(
    ("names", "uris", "expected"),
    [
        (["stranger"], [], "'stranger', which is no account"),
        ([], [], "names one account"),
        (["root"], ["penstock:user/root", "penstock:user/none"], "names one account"),
        (["x"], ["penstock:user/"], "names one account"),
    ],
)
async def test_a_certificate_without_an_account_is_refused_with_the_reason(
    optional: Certified, names: list[str], uris: list[str], expected: str
) -> None:
    async with optional.client(optional.authority.issue("other", names, uris)) as other:
        with pytest.raises(AuthenticationError, match=expected):
            await other.create_stream("shop/orders")
    refused = await optional.entry(outcome="refused")
    assert refused["principal"] == ""
    assert re.search(expected, str(refused["detail"]))


async def test_a_removed_account_ends_its_certificate(optional: Certified) -> None:
    security = optional.running.server.security
    assert security is not None
    async with optional.client(optional.authority.issue("root", ["root"])) as root:
        await root.create_stream("shop/orders")
        lines = security.paths.accounts.read_text().splitlines()
        security.paths.accounts.write_text("\n".join(line for line in lines if not line.startswith("root:")) + "\n")
        security.reload_changed()
        with pytest.raises(AuthenticationError, match="no account"):
            await root.create_stream("shop/clicks")


async def test_without_an_accepted_certificate_the_error_says_that_one_is_required(
    required: Certified, tmp_path: Path
) -> None:
    expired = required.authority.issue("expired", ["root"], valid_days=-1)
    foreign = ClientAuthority(tmp_path / "foreign").issue("root", ["root"])
    for files in (None, expired, foreign):
        async with required.client(files, Credentials("root", PASSWORD)) as refused:
            with pytest.raises(ControllerUnavailableError, match=r"requires a client certificate.*certificate="):
                await refused.create_stream("shop/orders")


async def test_required_certificates_suffice_for_everything(required: Certified) -> None:
    async with required.client(required.authority.issue("root", ["root"])) as root:
        await write_and_read(root)
        assert (await root.statistics()).stores


async def test_a_store_refuses_a_token_without_a_certificate_if_they_are_required(
    required: Certified, caplog: pytest.LogCaptureFixture
) -> None:
    files = required.authority.issue("root", ["root"])
    async with required.client(files) as root:
        await root.create_stream("shop/orders")
    security = required.running.server.security
    assert security is not None
    assert security.signer is not None
    token = security.signer.sign({"prn::/scope:shop/stream:orders": Permission.READ})
    request = GetStreamSegmentInfo(1, SEGMENT, token)
    with_one = await required.wire(files)
    await with_one.ask(request, StreamSegmentInfo)
    await with_one.ask(replace(request, token="wrong"), AuthTokenCheckFailed)
    await with_one.close()
    assert (await required.entry(call="GetStreamSegmentInfo", outcome="refused"))["principal"] == "root"
    without = await required.wire(None)
    await without.ask(request, AuthTokenCheckFailed)
    await without.close()
    # The handshake with a certificate of another authority fails, and the store's log has the reason.
    foreign = ClientAuthority(required.audit.parent / "foreign").issue("root", ["root"])
    caplog.set_level("INFO")
    with pytest.raises((OSError, AssertionError)):
        await required.wire(foreign)
    await until(lambda: "TLS handshake failed" in caplog.text)
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text


async def test_another_authority_is_trusted_without_a_restart(optional: Certified, tmp_path: Path) -> None:
    second = ClientAuthority(tmp_path / "second", "second")
    files = second.issue("root", ["root"])
    async with optional.client(files) as refused:
        with pytest.raises(ControllerUnavailableError):
            await refused.create_stream("shop/orders")
    security = optional.running.server.security
    assert security is not None
    optional.authority.path.write_bytes(optional.authority.path.read_bytes() + second.path.read_bytes())
    security.reload_changed()
    async with optional.client(files) as root:
        await write_and_read(root)
    optional.authority.path.write_text("no certificate")
    security.reload_changed()
    assert "security.client_ca" in security.problem


async def test_the_certificate_of_the_server_itself_names_no_account(required: Certified) -> None:
    """Its processes present it to the controller. One of the names in it may be that of an account."""
    security = required.running.server.security
    assert security is not None
    line = next(line for line in security.paths.accounts.read_text().splitlines() if line.startswith("root:"))
    with security.paths.accounts.open("a") as file:
        file.write(line.replace("root:", "localhost:", 1) + "\n")
    security.reload_changed()
    own = (security.paths.certificate, security.paths.private_key)
    async with required.client(own) as without:
        with pytest.raises(AuthenticationError, match="needs credentials"):
            await without.create_stream("shop/orders")
    async with required.client(own, Credentials("root", PASSWORD)) as with_password:
        await with_password.create_stream("shop/orders")


async def test_several_store_processes_work_with_required_certificates(tmp_path: Path) -> None:
    certified = Certified(tmp_path, "required")
    await certified.running.close()
    several = SecuredServer(
        tmp_path, segment_stores=2, client_certificates="required", client_ca=str(certified.authority.path)
    )
    certified.running = several
    await several.server.start()
    try:
        async with certified.client(certified.authority.issue("root", ["root"])) as root:
            await write_and_read(root)
    finally:
        await several.close()


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"needs security\.tls and security\.auth"):
        SecuritySettings(tls="on", client_certificates="required", client_ca="ca.crt")
    with pytest.raises(InvalidArgumentError, match=r"security\.client_ca names no file"):
        SecuritySettings(tls="on", auth="on", client_certificates="optional")
    with pytest.raises(InvalidArgumentError, match="none, optional or required"):
        SecuritySettings(client_certificates="yes")
    with pytest.raises(InvalidArgumentError, match="certificate_port"):
        SecuritySettings(certificate_port=70_000)


async def test_a_missing_file_of_authorities_is_named_at_the_start(tmp_path: Path) -> None:
    server = SecuredServer(tmp_path, client_certificates="optional", client_ca=str(tmp_path / "missing.crt")).server
    with pytest.raises(PenstockError, match=r"security\.client_ca: .*missing\.crt cannot be read"):
        await server.start()


def test_the_client_finds_its_certificate_in_the_environment_and_checks_it(tmp_path: Path) -> None:
    certificate, private_key = ClientAuthority(tmp_path).issue("root", ["root"])
    variables = {"PENSTOCK_CERTIFICATE": str(certificate), "PENSTOCK_PRIVATE_KEY": str(private_key)}
    found = client_security(environment=variables)
    assert found.has_account
    assert found.key_and_chain() == (private_key.read_bytes(), certificate.read_bytes())
    with pytest.raises(InvalidArgumentError, match=r"private_key is missing.*PENSTOCK_PRIVATE_KEY"):
        client_security(environment={"PENSTOCK_CERTIFICATE": str(certificate)})
    with pytest.raises(InvalidArgumentError, match="private_key is missing"):
        client_security(environment=variables, certificate=certificate)
    _, other = ClientAuthority(tmp_path / "other").issue("root", ["root"])
    with pytest.raises(InvalidArgumentError, match="cannot be used"):
        client_security(environment={}, certificate=certificate, private_key=other).key_and_chain()
    with pytest.raises(InvalidArgumentError, match=f"cannot be used: {os.strerror(2)}"):
        client_security(environment={}, certificate=certificate, private_key=tmp_path / "none").tls_context()


def test_names_of_certificates() -> None:
    assert user_in(["spiffe://x", "penstock:user/ann"], ["other"]) == "ann"
    assert user_in(["spiffe://x"], ["ann"]) == "ann"
    assert user_of_peer(None) == ""
    subject = ((("countryName", "CH"),), (("commonName", "ann"),))
    assert user_of_peer({"subject": subject}) == "ann"
    assert user_of_peer({"subject": subject, "subjectAltName": (("URI", "penstock:user/bob"),)}) == "bob"
    # Only names of type URI count.
    assert user_of_peer({"subject": subject, "subjectAltName": (("DNS", "penstock:user/bob"),)}) == "ann"
    assert user_of_peer({"subject": ((("commonName", "a"),), (("commonName", "b"),))}) == ""
