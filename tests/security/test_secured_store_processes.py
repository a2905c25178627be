"""A secured server whose segment stores are processes of their own."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.client.settings import ClientSettings
from penstock.runtime.client_security import Credentials
from penstock.security.certificates import make_certificates
from penstock.wire.commands import AuthTokenCheckFailed, CreateSegment, GetStreamSegmentInfo
from support.secured_server import PASSWORD, SecuredServer

STORES = 2


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[SecuredServer]:
    running = SecuredServer(tmp_path, segment_stores=STORES, token_ttl_s=1, reload_interval_s=0.1)
    await running.server.start()
    (tmp_path / "ca.crt").write_bytes(running.authority)
    yield running
    await running.close()


def root(tmp_path: Path, secured: SecuredServer) -> aio.Client:
    return aio.connect(
        secured.server.controller_uri,
        ClientSettings(),
        credentials=Credentials("root", PASSWORD),
        ca=tmp_path / "ca.crt",
    )


async def write_some(client: aio.Client, stream: str, count: int) -> None:
    """Write events to all segments of a stream, over more than the life of a token."""
    async with client.event_writer(stream) as writer:
        for number in range(count):
            await writer.write(b"%d" % number, routing_key=str(number))
            await writer.flush()
            await asyncio.sleep(0.1)


async def test_controller_and_stores_authenticate_to_each_other(tmp_path: Path, secured: SecuredServer) -> None:
    """Streams, tables and transactions work, over several lives of tokens; a client without a token is refused."""
    async with root(tmp_path, secured) as client:
        await client.create_stream("shop/orders", scaling=penstock.Scaling.fixed(4))
        await write_some(client, "shop/orders", 25)
        await client.create_table("shop/prices", key_length=5)
        async with await client.table("shop/prices") as table:
            await table.put(b"apple", b"3")
        transaction = await client.begin_transaction("shop/orders")
        await transaction.write(b"more", routing_key="a")
        await transaction.commit()
        await client.seal_stream("shop/orders")
        await client.delete_stream("shop/orders")
    wire = await secured.wire()
    for request in (
        GetStreamSegmentInfo(1, "shop/orders/0.#epoch.0", ""),
        CreateSegment(2, "shop/x/0.#epoch.0", 0, 0, "", 0),
    ):
        assert isinstance(await wire.ask(request, AuthTokenCheckFailed), AuthTokenCheckFailed)
    await secured.server.stop()
    written = "".join(path.read_text() for path in sorted(tmp_path.glob("**/audit-store-*.jsonl")))
    assert '"GetStreamSegmentInfo"' in written or '"CreateSegment"' in written


async def test_certificate_and_keys_change_under_running_processes(tmp_path: Path, secured: SecuredServer) -> None:
    """The controller reaches its stores before and after each process has read the new files."""
    assert secured.server.security is not None
    made = make_certificates(["localhost"], datetime.datetime.now(datetime.UTC))
    (tmp_path / "ca.crt").write_bytes(secured.authority + made.authority)
    async with root(tmp_path, secured) as client:
        await client.create_stream("shop/orders")
        writing = asyncio.create_task(write_some(client, "shop/orders", 20))
        (tmp_path / "server.key").write_bytes(made.private_key)
        (tmp_path / "server.crt").write_bytes(made.certificate)
        keys = (tmp_path / "token.key").read_bytes()
        (tmp_path / "token.key").write_bytes(keys + b"a second key that will sign at the next step\n")
        await asyncio.sleep(0.5)
        (tmp_path / "token.key").write_bytes(b"a second key that will sign at the next step\n" + keys)
        await writing
        # The controller connects again to the stores that take the place of these.
        assert secured.server.processes is not None
        for store in secured.server.processes.stores:
            assert store.process is not None
            store.process.kill()
        await client.create_stream("shop/clicks")
        await write_some(client, "shop/clicks", 2)
        assert not secured.server.security.problem
