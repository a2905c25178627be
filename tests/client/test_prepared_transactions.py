"""Transactions that are prepared, and decided by their ids from wherever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.client.client import Client
from penstock.client.controller.controller import ControllerClient
from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchTransactionError,
    OutcomeUnknownError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionError,
    TransactionPreparedError,
)
from penstock.serializers import JsonSerializer
from penstock.testing import memory_server
from penstock.testing.server import MemoryServer

FAST = ClientSettings(retry_time_max_s=20.0)
_names = iter(range(1_000_000))


@pytest.fixture(scope="module")
def server() -> Iterator[MemoryServer]:
    with memory_server() as server:
        yield server


@pytest.fixture
def stream() -> str:
    """A fresh stream."""
    return f"prepared/s{next(_names)}"


async def contents(client: Client, stream: str) -> list[bytes]:
    async with (
        client.reader_group(f"g{next(_names)}", [stream], until="latest") as group,
        group.reader() as reader,
    ):
        return [event.data async for event in reader]


async def settled(client: Client, stream: str, transaction_id: str, state: str) -> None:
    async with asyncio.timeout(60):
        while await client.transaction_state(stream, transaction_id) != state:  # noqa: ASYNC110  # no event to await
            await asyncio.sleep(0.005)


async def test_prepared_transaction_is_committed_by_its_id_from_another_client(
    server: MemoryServer, stream: str
) -> None:
    """It contains all writes, also those not flushed before; the client that began it may be gone."""
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        async with client.begin_transaction(stream) as transaction:
            await transaction.write(b"one", "k")
            await transaction.write_many([b"two", b"three"], "k")
            transaction_id = await transaction.prepare(limit_s=600)
            assert transaction_id == transaction.id
            assert not transaction.is_open
            with pytest.raises(TransactionPreparedError):
                await transaction.write(b"four", "k")
        assert await client.transaction_state(stream, transaction_id) == "OPEN"
        assert await contents(client, stream) == []
    async with Client(server.uri, FAST) as other:
        for _ in range(2):
            await other.commit_transaction(stream, transaction_id)
        await settled(other, stream, transaction_id, "COMMITTED")
        assert await contents(other, stream) == [b"one", b"two", b"three"]
        with pytest.raises(TransactionCommittedError):
            await other.abort_transaction(stream, transaction_id)


async def test_detached_transaction_is_prepared_by_its_id_from_another_client(
    server: MemoryServer, stream: str
) -> None:
    """By a coordinator of other clients' writes: it contains what they flushed, and they write no more."""
    async with Client(server.uri, FAST) as client, Client(server.uri, FAST) as driver:
        await client.create_stream(stream)
        detached, held = [await client.begin_transaction(stream) for _ in range(2)]
        await detached.write(b"one", "k")
        await held.write(b"two", "k")
        await held.flush()
        for transaction_id in (await detached.detach(), held.id):
            for limit_s in (600, 1):
                await driver.prepare_transaction(stream, transaction_id, limit_s=limit_s)
        try:
            await held.write(b"three", "k")
            with pytest.raises(TransactionPreparedError):
                await held.flush()
        except TransactionPreparedError:
            pass  # The writer got the error of the sealed segment before.
        await driver.commit_transaction(stream, detached.id)
        await settled(driver, stream, detached.id, "COMMITTED")
        await driver.commit_transaction(stream, held.id)
        await settled(driver, stream, held.id, "COMMITTED")
        assert await contents(driver, stream) == [b"one", b"two"]
        with pytest.raises(TransactionCommittedError):
            await driver.prepare_transaction(stream, held.id)


async def test_a_prepared_transaction_cannot_be_resumed(server: MemoryServer, stream: str) -> None:
    """Otherwise a client that resumes it and fails to write would abort it by closing it undecided."""
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        transaction = await client.begin_transaction(stream)
        await transaction.write(b"one", "k")
        transaction_id = await transaction.prepare(limit_s=600)
        async with Client(server.uri, FAST) as other:
            with pytest.raises(TransactionPreparedError, match="by its id"):
                await other.transaction(stream, transaction_id)
        assert await client.transaction_state(stream, transaction_id) == "OPEN"
        await client.commit_transaction(stream, transaction_id)


async def test_prepared_transaction_is_aborted_by_its_id(server: MemoryServer, stream: str) -> None:
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        transaction = await client.begin_transaction(stream)
        await transaction.write(b"one", "k")
        transaction_id = await transaction.prepare()
        for _ in range(2):
            await client.abort_transaction(stream, transaction_id)
        await settled(client, stream, transaction_id, "ABORTED")
        with pytest.raises(TransactionAbortedError):
            await client.commit_transaction(stream, transaction_id)
        assert await contents(client, stream) == []


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
async def test_a_prepared_transaction_is_decided_by_its_preparer(
    is_commit: bool, server: MemoryServer, stream: str
) -> None:
    """Also behind its close; prepared again it is prepared, and once it is decided it is not prepared any more."""
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        transaction = await client.begin_transaction(stream)
        await transaction.write(b"one", "k")
        for _ in range(2):
            await transaction.prepare(limit_s=600)
        await transaction.close()
        assert await transaction.state() == "OPEN"
        for _ in range(2):
            await (transaction.commit() if is_commit else transaction.abort())
        with pytest.raises(TransactionError):
            await transaction.prepare()
        await settled(client, stream, transaction.id, "COMMITTED" if is_commit else "ABORTED")
        assert await contents(client, stream) == ([b"one"] if is_commit else [])


@pytest.mark.parametrize("limit_s", [0, -1, 8 * 86_400])
async def test_limit_out_of_bounds_is_refused_and_the_transaction_can_be_prepared_or_decided(
    limit_s: int, server: MemoryServer, stream: str
) -> None:
    """The error is raised at once and is not an unknown outcome; a valid limit is accepted afterwards."""
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        transaction = await client.begin_transaction(stream)
        await transaction.write(b"one", "k")
        with pytest.raises(InvalidArgumentError, match="604800000"):
            await transaction.prepare(limit_s=limit_s)
        assert transaction.is_open
        await transaction.prepare(limit_s=600)
        await transaction.commit()
        await settled(client, stream, transaction.id, "COMMITTED")
        assert await contents(client, stream) == [b"one"]


async def test_preparation_without_an_answer_is_repeated_or_undone(
    server: MemoryServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been prepared: closing then aborts it, because it is undecided."""
    original = ControllerClient.prepare_transaction

    async def lose_the_reply(self: ControllerClient, *given: Any, **options: Any) -> float:
        await original(self, *given, **options)
        raise OutcomeUnknownError("no answer")

    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        first, second = [await client.begin_transaction(stream) for _ in range(2)]
        for transaction in (first, second):
            await transaction.write(b"%d" % (transaction is second), "k")
            with monkeypatch.context() as patch:
                patch.setattr(ControllerClient, "prepare_transaction", lose_the_reply)
                with pytest.raises(OutcomeUnknownError):
                    await transaction.prepare(limit_s=600)
            with pytest.raises(TransactionPreparedError):
                await transaction.write(b"more", "k")
        await first.prepare(limit_s=600)
        await second.close()
        await client.commit_transaction(stream, first.id)
        await settled(client, stream, first.id, "COMMITTED")
        await settled(client, stream, second.id, "ABORTED")
        assert await contents(client, stream) == [b"0"]


async def test_aborted_and_unknown_transactions_cannot_be_prepared_or_decided(
    server: MemoryServer, stream: str
) -> None:
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        transaction = await client.begin_transaction(stream)
        await client.abort_transaction(stream, transaction.id)
        with pytest.raises(TransactionAbortedError):
            await transaction.prepare()
        await transaction.close()
        for call in (client.commit_transaction, client.abort_transaction):
            with pytest.raises(NoSuchTransactionError):
                await call(stream, "f" * 32)
            with pytest.raises(InvalidArgumentError):
                await call(stream, "no id")


async def test_stream_is_sealed_once_its_prepared_transaction_is_decided(server: MemoryServer, stream: str) -> None:
    """Before, the seal is refused; what is committed is read."""
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        transaction = await client.begin_transaction(stream)
        await transaction.write(b"one", "k")
        await transaction.prepare(limit_s=600)
        with pytest.raises(TransactionPreparedError, match=transaction.id):
            await client.seal_stream(stream)
        await transaction.commit()
        await client.seal_stream(stream)
        assert await contents(client, stream) == [b"one"]


def test_blocking_client_prepares_and_decides(server: MemoryServer, stream: str) -> None:
    """The generated one, with values."""
    with penstock.connect(server.uri, settings=FAST) as client:
        client.create_stream(stream)
        with client.begin_transaction(stream, serializer=JsonSerializer()) as transaction:
            transaction.write({"order": 1}, "k")
            transaction_id = transaction.prepare(limit_s=600)
        dropped = client.begin_transaction(stream)
        dropped.prepare()
        client.commit_transaction(stream, transaction_id)
        client.abort_transaction(stream, dropped.id)
        group = client.reader_group(f"g{next(_names)}", [stream], until="latest")
    with penstock.connect(server.uri, settings=FAST) as client:
        client.seal_stream(stream)
        with client.reader_group(f"g{next(_names)}", [stream], until="latest") as group, group.reader() as reader:
            assert [event.data for event in reader] == [b'{"order":1}']
