"""What each call says of a transaction that is over, to both clients: how it ended, and what to do."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import penstock
from penstock.client.client import Client
from penstock.client.common.pickling import NotPicklable
from penstock.client.controller.transaction_ids import id_of
from penstock.client.settings import ClientSettings
from penstock.client.transactions.transaction import Transaction
from penstock.controller.metadata.completed import CompletedTransactions
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    NoSuchStreamError,
    NoSuchTransactionError,
    StreamSealedError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionError,
    TransactionExpiredError,
    TransactionPreparedError,
    TransactionStreamDeletedError,
    TransactionStreamSealedError,
    UnsupportedOperationError,
)
from penstock.rpc import additions_pb2 as added
from penstock.runtime.portal import Portal
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone

FAST = ClientSettings(retry_time_max_s=30.0)
_names = iter(range(1_000_000))


@contextmanager
def server_with(controller: ControllerSettings) -> Iterator[str]:
    """Run a server in memory, in a thread of this process; yield its address."""
    settings = StandaloneSettings(
        is_memory=True, host="127.0.0.1", controller_port=0, segment_store_port=0, controller=controller
    )
    portal = Portal("endings-server")
    try:
        server = Standalone(settings)
        portal.call(server.start(), 60)
        try:
            yield server.controller_uri
        finally:
            portal.call(server.stop(), 60)
    finally:
        portal.close()


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    """A server whose leases may be short, and end when they end."""
    with server_with(ControllerSettings(lease_ms_min=1, lease_slack_ms=0)) as uri:
        yield uri


async def settled(client: Client, stream: str, transaction_id: str, state: str) -> None:
    async with asyncio.timeout(60):
        while await client.transaction_state(stream, transaction_id) != state:  # noqa: ASYNC110  # no event to await
            await asyncio.sleep(0.02)


async def expire(client: Client, stream: str, transaction_id: str) -> None:
    await client._controller_client.ping_transaction(*stream.split("/"), id_of(transaction_id), lease_ms=1)
    await settled(client, stream, transaction_id, "ABORTED")


async def abort(client: Client, stream: str, transaction_id: str) -> None:
    await (await client.transaction(stream, transaction_id)).abort()
    await settled(client, stream, transaction_id, "ABORTED")


async def commit(client: Client, stream: str, transaction_id: str) -> None:
    await (await client.transaction(stream, transaction_id)).commit()
    await settled(client, stream, transaction_id, "COMMITTED")


async def seal(client: Client, stream: str, transaction_id: str) -> None:
    await client.seal_stream(stream)


async def delete(client: Client, stream: str, transaction_id: str) -> None:
    await client.seal_stream(stream)
    await client.delete_stream(stream)


#: How it ends -> who does that, the error, its words, and the call that is fine then, as there is nothing left to do.
ENDINGS = {
    "expired": (expire, TransactionExpiredError, r"as its lease ran out without renewal", "abort"),
    "aborted": (abort, TransactionAbortedError, r"it was aborted on request .* s ago; none of its events", "abort"),
    "committed": (commit, TransactionCommittedError, r"it was committed .* s ago: its events are readable", "commit"),
    "sealed": (seal, TransactionStreamSealedError, r"as the stream was sealed", "abort"),
    "deleted": (delete, TransactionStreamDeletedError, r"the stream was deleted", None),
    "unknown": (abort, NoSuchTransactionError, r"the stream has none with this id", None),
}  # fmt: skip


async def done(value: Awaitable[Any] | NotPicklable | None) -> NotPicklable | None:
    """Return what a call of either client returns."""
    return await value if inspect.isawaitable(value) else value


async def write(transaction: Transaction) -> None:
    ack = await done(transaction.write(b"late", "k"))
    await done(ack.wait(60))


async def flush(transaction: Transaction) -> None:
    await done(transaction.write(b"late", "k"))
    await done(transaction.flush(60))


async def ask(call: str, transaction: Transaction, client: Client, stream: str, lease_s: int) -> None:
    match call:
        case "write":
            await write(transaction)
        case "flush":
            await flush(transaction)
        case "commit":
            await done(transaction.commit())
        case "abort":
            await done(transaction.abort())
        case "resume":
            await done(client.transaction(stream, transaction.id, lease_s=lease_s))


TRIED = {"write": "write to", "flush": "write to"}


@pytest.mark.parametrize("is_blocking", [False, True], ids=["asyncio", "blocking"])
@pytest.mark.parametrize("call", ["write", "flush", "commit", "abort", "resume"])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_each_call_on_an_ended_transaction_names_how_it_ended(
    uri: str, monkeypatch: pytest.MonkeyPatch, ending: str, call: str, is_blocking: bool
) -> None:
    """Every call raises the same kind of error, which names the call, the transaction and its stream."""
    end, kind, words, fine = ENDINGS[ending]
    stream = f"endings/s{next(_names)}"
    async with Client(uri, FAST) as other:
        await other.create_stream(stream)
        client = penstock.connect(uri, settings=FAST) if is_blocking else Client(uri, FAST)
        if not is_blocking:
            await client.__aenter__()
        try:
            transaction = await done(client.begin_transaction(stream, lease_s=60))
            await end(other, stream, transaction.id)
            if ending == "unknown":
                # As more than a day later.
                async def find(
                    self: CompletedTransactions, scope: str, stream: str, transaction: TransactionId
                ) -> None:
                    return None

                monkeypatch.setattr(CompletedTransactions, "find", find)
            if call == fine:
                await ask(call, transaction, client, stream, 60)
                return
            if call == "resume" and ending == "deleted":
                # With an id alone a client cannot know whether the stream existed.
                kind, words = NoSuchStreamError, "stream"
            with pytest.raises(kind, match=words) as raised:
                await ask(call, transaction, client, stream, 60)
            tried = f"cannot {TRIED.get(call, call)} transaction {transaction.id} on stream {stream}"
            if isinstance(raised.value, TransactionError):
                assert tried in str(raised.value)
                assert (raised.value.stream, raised.value.transaction) == (stream, transaction.id)
            if call != "resume":
                # Later calls raise the same error.
                with pytest.raises(kind):
                    await write(transaction)
        finally:
            await done(client.abandon())


async def test_errors_of_endings_are_subclasses_of_transaction_error() -> None:
    """Handlers of sealed and missing streams and of aborted transactions catch these errors, too."""
    assert issubclass(TransactionStreamSealedError, (StreamSealedError, TransactionAbortedError))
    assert issubclass(TransactionStreamDeletedError, (NoSuchStreamError, TransactionError))
    assert issubclass(TransactionExpiredError, TransactionAbortedError)
    assert issubclass(TransactionStreamSealedError, StreamSealedError)
    assert issubclass(TransactionStreamDeletedError, NoSuchStreamError)


async def test_a_write_into_a_prepared_transaction_is_refused_with_the_reason(uri: str) -> None:
    """It waits for its decision, which can be made by its id; what was written too late is not in it."""
    async with Client(uri, FAST) as client:
        stream = f"endings/s{next(_names)}"
        await client.create_stream(stream)
        transaction = await client.begin_transaction(stream, lease_s=60)
        calls = client._controller_client
        await calls.prepare_transaction(*stream.split("/"), transaction._id, limit_ms=60_000)
        with pytest.raises(TransactionPreparedError, match=f"cannot write to transaction {transaction.id} on"):
            await write(transaction)
        found = await calls.describe_transaction(*stream.split("/"), transaction._id)
        assert (found.state, found.lifetime_left_s) == ("PREPARED", None)
        assert found.lease_left_s > 0
        await transaction.abort()
        with pytest.raises(TransactionAbortedError, match="cannot prepare transaction"):
            await calls.prepare_transaction(*stream.split("/"), transaction._id, limit_ms=60_000)


async def test_a_controller_that_is_not_penstocks_tells_the_state_alone(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pravega's has no call that describes a transaction: it was aborted, for an unknown reason."""
    async with Client(uri, FAST) as client:
        stream = f"endings/s{next(_names)}"
        await client.create_stream(stream)
        transaction = await client.begin_transaction(stream)
        await abort(client, stream, transaction.id)

        async def unsupported(
            request: added.DescribeTransactionRequest,
            *,
            timeout: float | None = None,
            metadata: tuple[tuple[str, str]] = (),
        ) -> None:
            raise UnsupportedOperationError("describeTransaction is not supported by this controller")

        monkeypatch.setattr(client._controller_client._stub, "describeTransaction", unsupported)
        found = await client._controller_client.describe_transaction(*stream.split("/"), transaction._id)
        assert (found.state, found.abort_reason, found.age_s) == ("ABORTED", "", None)
        with pytest.raises(TransactionAbortedError, match="on request or because its lease ran out") as raised:
            await transaction.commit()
        assert not isinstance(raised.value, TransactionExpiredError)


async def test_a_lease_that_the_server_no_longer_renews_raises(uri: str) -> None:
    """It is still open then, and can be committed until the lease has run out."""
    settings = ControllerSettings(transaction_lifetime_ms_max=100_000)
    with server_with(settings) as uri:
        async with Client(uri, FAST) as client:
            stream = f"endings/s{next(_names)}"
            await client.create_stream(stream)
            transaction = await client.begin_transaction(stream, lease_s=60)
            with pytest.raises(TransactionExpiredError, match="the maximum time that the server allows"):
                await client.transaction(stream, transaction.id, lease_s=200)
            await transaction.commit()
            assert await transaction.state() in ("COMMITTING", "COMMITTED")
