"""Penstock's own clients against a secured server."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock import aio
from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    AccessDeniedError,
    AuthenticationError,
    ControllerUnavailableError,
    InvalidArgumentError,
    TokenRefusedError,
)
from penstock.runtime.client_security import Credentials, client_security
from penstock.security.certificates import make_certificates
from support.secured_server import PASSWORD, SecuredServer

QUICK = ClientSettings(first_contact_timeout_s=1.0)


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[SecuredServer]:
    running = SecuredServer(tmp_path)
    await running.server.start()
    (tmp_path / "ca.crt").write_bytes(running.authority)
    yield running
    await running.close()


def client(secured: SecuredServer, user: str | None = "root", password: str = PASSWORD, uri: str = "") -> aio.Client:
    """Return a client of a user."""
    assert secured.server.security is not None
    return aio.connect(
        uri or secured.server.controller_uri,
        QUICK,
        credentials=None if user is None else Credentials(user, password),
        ca=secured.server.security.paths.authority,
    )


async def write_one(writing: aio.Client, stream: str) -> None:
    """Write an event and wait until it is stored."""
    async with writing.event_writer(stream) as writer:
        await writer.write(b"two")
        await writer.flush()


async def test_events_are_written_and_read_by_a_group(secured: SecuredServer) -> None:
    async with client(secured) as root:
        await root.create_stream("shop/orders")
        async with root.event_writer("shop/orders") as writer:
            await writer.write(b"one", routing_key="a")
        async with await root.reader_group("g", ["shop/orders"]) as group, await group.reader() as reader:
            event = await reader.read(60)
            assert event is not None
            assert event.data == b"one"


async def test_everything_that_clients_store_works_with_authentication(secured: SecuredServer) -> None:
    async with client(secured) as root:
        await root.create_stream("shop/orders")
        transaction = await root.begin_transaction("shop/orders")
        await transaction.write(b"in a transaction", routing_key="a")
        await transaction.commit()
        await root.create_table("shop/prices", key_length=5)
        async with await root.table("shop/prices") as table:
            await table.put(b"apple", b"3")
            assert await table.get(b"apple") == b"3"
        async with root.byte_writer("shop/orders") as bytes_writer:
            await bytes_writer.write(b"bytes")
        assert (await root.statistics()).stores
        await root.seal_stream("shop/orders")
        await root.delete_stream("shop/orders")


async def test_a_reader_without_permission_to_write_reads(secured: SecuredServer) -> None:
    async with client(secured) as root:
        await root.create_stream("shop/orders")
        async with root.event_writer("shop/orders") as writer:
            await writer.write(b"one")
        async with client(secured, "member") as member:
            async with await member.reader_group("g", ["shop/orders"]) as group, await group.reader() as reader:
                event = await reader.read(60)
                assert event is not None
                assert event.data == b"one"
            with pytest.raises((TokenRefusedError, AccessDeniedError)):
                await write_one(member, "shop/orders")


async def test_wrong_and_missing_credentials_are_reported(secured: SecuredServer) -> None:
    for user, password in (("root", "wrong"), ("unknown", PASSWORD), (None, "")):
        async with client(secured, user, password) as refused:
            with pytest.raises(AuthenticationError, match="PENSTOCK_USER") as error:
                await refused.create_stream("shop/orders")
            assert PASSWORD not in str(error.value)
    async with client(secured, "none") as denied:
        with pytest.raises(AccessDeniedError, match="prn::/scope:shop"):
            await denied.create_stream("shop/orders")


async def test_a_certificate_that_is_not_trusted_is_reported(secured: SecuredServer) -> None:
    async with aio.connect(secured.server.controller_uri, QUICK) as stranger:
        with pytest.raises(ControllerUnavailableError, match=r"certificate is not trusted .*PENSTOCK_CA"):
            await stranger.create_scope("shop")


async def test_the_error_of_a_client_without_tls_names_tls(secured: SecuredServer) -> None:
    async with client(secured, uri=f"tcp://localhost:{secured.server.controller_port}") as plain:
        with pytest.raises(ControllerUnavailableError, match="uses TLS: connect with tls://"):
            await plain.create_scope("shop")


async def test_the_certificate_of_each_controller_is_checked_for_its_own_address(secured: SecuredServer) -> None:
    """The client connects to none whose certificate lacks its address, and uses the other one."""
    port = secured.server.controller_port
    async with client(secured, uri=f"tls://127.0.0.3:{port}") as root:
        with pytest.raises(ControllerUnavailableError):
            await root.create_stream("shop/several")
    async with client(secured, uri=f"tls://127.0.0.3:{port},127.0.0.1:{port}") as root:
        await root.create_stream("shop/several")


async def test_a_name_that_is_not_in_the_certificate_is_reported(tmp_path: Path) -> None:
    made = make_certificates(["other.example"], datetime.datetime.now(datetime.UTC))
    (tmp_path / "server.crt").write_bytes(made.certificate)
    (tmp_path / "server.key").write_bytes(made.private_key)
    (tmp_path / "ca.crt").write_bytes(made.authority)
    secured = SecuredServer(tmp_path)
    await secured.server.start()
    try:
        async with aio.connect(secured.server.controller_uri, QUICK, ca=tmp_path / "ca.crt") as other:
            with pytest.raises(ControllerUnavailableError, match="certificate is not for localhost"):
                await other.create_scope("shop")
    finally:
        await secured.close()


async def test_expiring_tokens_lose_and_delay_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer and a reader work through several lives of their tokens, without leeway and without refresh ahead."""
    for module in ("penstock.security.tokens", "penstock.segmentstore.token_access"):
        monkeypatch.setattr(f"{module}.LEEWAY_S", 0)
    monkeypatch.setattr("penstock.client.transport.delegation_tokens._AHEAD_S", -1.0)
    secured = SecuredServer(tmp_path, token_ttl_s=1)
    await secured.server.start()
    try:
        async with client(secured) as root:
            await root.create_stream("shop/orders")
            loop = asyncio.get_running_loop()
            end_s = loop.time() + 4
            written: list[bytes] = []

            async def write() -> None:
                async with root.event_writer("shop/orders") as writer:
                    while loop.time() < end_s:
                        written.append(b"%d" % len(written))
                        await writer.write(written[-1], routing_key="a")
                        await asyncio.sleep(0.02)

            async def read() -> list[bytes]:
                found: list[bytes] = []
                async with await root.reader_group("g", ["shop/orders"]) as group, await group.reader() as reader:
                    while not (writing.done() and len(found) == len(written)):
                        event = await reader.read(1)
                        if event is not None:
                            found.append(event.data)
                return found

            writing = asyncio.ensure_future(write())
            async with asyncio.timeout(120):
                found = await read()
            await writing
            assert found == written
            assert secured.server.security is not None
    finally:
        await secured.close()


def test_the_environment_gives_account_and_authorities(tmp_path: Path) -> None:
    password, authority = tmp_path / "password", tmp_path / "ca.crt"
    password.write_text("secret\nmore\n")
    authority.write_bytes(b"pem")
    found = client_security(
        environment={
            "PENSTOCK_USER": "ann", "PENSTOCK_PASSWORD_FILE": str(password), "PENSTOCK_CA": str(authority),
        }
    )  # fmt: skip
    assert found.credentials == Credentials("ann", "secret")
    assert found.ca == b"pem"
    assert "secret" not in repr(found)
    with pytest.raises(InvalidArgumentError, match="PENSTOCK_PASSWORD_FILE"):
        client_security(environment={"PENSTOCK_USER": "ann"})
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        client_security(environment={"PENSTOCK_CA": str(tmp_path / "none")})
    with pytest.raises(InvalidArgumentError, match="certificates"):
        found.tls_context()
    assert isinstance(client_security(environment={}).tls_context(), ssl.SSLContext)
