"""Transactions that another process resumes by their ids, and the errors of those that are over."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

import penstock
from penstock.client.client import Client
from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchStreamError,
    NoSuchTransactionError,
    SerializationError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionError,
)
from penstock.serializers import JsonSerializer
from penstock.testing import memory_server
from penstock_simulation.simulated.zookeeper import Server
from support.standalone_process import child_environment

FAST = ClientSettings(retry_time_max_s=10.0)
_names = iter(range(1_000_000))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with memory_server() as server:
        yield server


@pytest.fixture
def stream() -> str:
    """A fresh stream."""
    return f"ids/s{next(_names)}"


async def contents(client: Client, stream: str) -> list[bytes]:
    async with (
        client.reader_group(f"g{next(_names)}", [stream], until="latest") as group,
        group.reader() as reader,
    ):
        return [event.data async for event in reader]


async def settled(client: Client, stream: str, transaction_id: str, state: str) -> None:
    async with asyncio.timeout(60):
        while await client.transaction_state(stream, transaction_id) != state:  # noqa: ASYNC110  # no event to await
            await asyncio.sleep(0.02)


async def test_a_detached_transaction_is_resumed_by_its_id(server: Server, stream: str) -> None:
    """Closing its first client aborts undecided transactions, but not this one."""
    async with Client(server.uri, FAST) as first:
        await first.create_stream(stream)
        transaction = await first.begin_transaction(stream)
        await transaction.write(b"one", "k")
        transaction_id = await transaction.detach()
        assert await transaction.detach() == transaction_id == transaction.id
        for step in (transaction.commit, transaction.abort, lambda: transaction.write(b"late")):
            with pytest.raises(TransactionError, match="detached"):
                await step()
    async with Client(server.uri, FAST) as second:
        assert await second.transaction_state(stream, transaction_id) == "OPEN"
        # A UUID is an id, too.
        async with second.transaction(stream, str(uuid.UUID(transaction_id))) as resumed:
            assert resumed.id == transaction_id
            await resumed.write(b"two", "k")
        await settled(second, stream, transaction_id, "COMMITTED")
        assert await contents(second, stream) == [b"one", b"two"]


_OTHER_PROCESS = """
import sys
import penstock

uri, stream, transaction_id = sys.argv[1:]
with penstock.connect(uri) as client:
    with client.transaction(stream, transaction_id, lease_s=60) as resumed:
        resumed.write(b"two", "k")
    try:
        client.transaction(stream, transaction_id)
    except penstock.TransactionCommittedError as error:
        print(error.stream, error.transaction)
"""


async def test_a_transaction_is_resumed_by_another_process(server: Server, stream: str) -> None:
    """The other process writes, commits, and gets the outcome."""
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        transaction = await client.begin_transaction(stream, lease_s=60)
        await transaction.write(b"one", "k")
        transaction_id = await transaction.detach()
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _OTHER_PROCESS, server.uri, stream, transaction_id,
            stdout=subprocess.PIPE, env=child_environment(),
        )  # fmt: skip
        told, _ = await asyncio.wait_for(other.communicate(), 120)
        assert (other.returncode, told.decode().split()) == (0, [stream, transaction_id])
        await settled(client, stream, transaction_id, "COMMITTED")
        assert await contents(client, stream) == [b"one", b"two"]


async def test_transaction_of_a_client_that_crashed_is_decided_by_its_id(server: Server, stream: str) -> None:
    """What was flushed is in it."""
    first = Client(server.uri, FAST)
    async with first:
        await first.create_stream(stream)
        transaction = await first.begin_transaction(stream)
        await transaction.write_many([b"one", b"two"], "k")
        await transaction.flush()
        await transaction.abandon()
        async with Client(server.uri, FAST) as second:
            resumed = await second.transaction(stream, transaction.id)
            await resumed.commit()
            await settled(second, stream, transaction.id, "COMMITTED")
            assert await contents(second, stream) == [b"one", b"two"]


async def test_resumed_transaction_without_commit_or_abort_is_aborted(server: Server, stream: str) -> None:
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        transaction_id = await (await client.begin_transaction(stream)).detach()
        with pytest.raises(KeyError):
            async with client.transaction(stream, transaction_id):
                raise KeyError("processing failed")
        await settled(client, stream, transaction_id, "ABORTED")


async def test_transaction_that_is_over_says_how(server: Server, stream: str) -> None:
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        committed = await client.begin_transaction(stream)
        await committed.commit()
        with pytest.raises(TransactionCommittedError):
            await client.transaction(stream, committed.id)
        aborted = await client.begin_transaction(stream)
        await aborted.abort()
        with pytest.raises(TransactionAbortedError):
            await client.transaction(stream, aborted.id)
        with pytest.raises(NoSuchTransactionError):
            await client.transaction(stream, "0" * 31 + "7")
        assert await client.transaction_state(stream, "0" * 31 + "7") == "UNKNOWN"
        for bad in ("", "xyz", "12", None):
            with pytest.raises(InvalidArgumentError, match="32 hexadecimal digits"):
                await client.transaction(stream, bad)
        with pytest.raises(NoSuchStreamError):
            await client.transaction("ids/none", committed.id)
        other = await client.begin_transaction(stream)
        with pytest.raises(InvalidArgumentError, match="longer than the server allows"):
            await client.transaction(stream, other.id, lease_s=10_000_000)


async def test_transaction_takes_values(server: Server, stream: str) -> None:
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        async with client.begin_transaction(stream, serializer=JsonSerializer()) as transaction:
            await transaction.write({"order": 1}, "k")
            await transaction.write_many([{"order": number} for number in range(2, 5)], "k")
            with pytest.raises(SerializationError):
                await transaction.write(object(), "k")
            transaction_id = transaction.id
        await settled(client, stream, transaction_id, "COMMITTED")
        assert await contents(client, stream) == [b'{"order":%d}' % number for number in range(1, 5)]


def test_blocking_client_continues_with_transactions_and_values(server: Server, stream: str) -> None:
    with penstock.connect(server.uri, settings=FAST) as client:
        client.create_stream(stream)
        transaction = client.begin_transaction(stream, serializer=JsonSerializer())
        transaction.write({"order": 1}, "k")
        transaction_id = transaction.detach()
        with client.transaction(stream, transaction_id, serializer=JsonSerializer()) as resumed:
            resumed.write_many([{"order": 2}, {"order": 3}], "k", timeout_s=5)
        while client.transaction_state(stream, transaction_id) != "COMMITTED":
            pass
        group = client.reader_group(f"g{next(_names)}", [stream], until="latest")
        with group, group.reader(serializer=JsonSerializer()) as reader:
            found = list(reader)
            assert [event.value for event in found] == [{"order": number} for number in range(1, 4)]
            assert found[0].stream == stream


async def test_transaction_committed_elsewhere_closes_in_good_order(server: Server, stream: str) -> None:
    """Nothing of it is lost, so closing it undecided is no error."""
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream)
        transaction = await client.begin_transaction(stream)
        await transaction.write(b"one", "k")
        await transaction.flush()
        await client._controller_client.commit_transaction(*stream.split("/"), transaction._id)
        await transaction.close()
        await settled(client, stream, transaction.id, "COMMITTED")
        assert await contents(client, stream) == [b"one"]


async def test_open_transactions_are_listed_with_their_properties(server: Server, stream: str) -> None:
    """Age, lease or limit, size, and whether it is prepared; one that has ended is not among them."""
    async with Client(server.uri, FAST) as client:
        await client.create_stream(stream, scaling=penstock.Scaling.fixed(3))
        assert [each async for each in client.open_transactions(stream)] == []
        begun_s = asyncio.get_running_loop().time()
        written = await client.begin_transaction(stream, lease_s=60)
        for number in range(4):
            await written.write(bytes(92), f"key{number}")
        await written.flush()
        prepared = await client.begin_transaction(stream, lease_s=60)
        await prepared.prepare(limit_s=7200)
        ended = await client.begin_transaction(stream)
        await ended.commit()
        await settled(client, stream, ended.id, "COMMITTED")
        found = {each.id: each async for each in client.open_transactions(stream)}
        passed_s = asyncio.get_running_loop().time() - begun_s
        assert found.keys() == {written.id, prepared.id}
        one, other = found[written.id], found[prepared.id]
        assert isinstance(one, penstock.TransactionInfo)
        assert (one.state, one.is_prepared, one.length_bytes, one.lease_s) == ("OPEN", False, 400, 60)
        assert (other.state, other.is_prepared, other.length_bytes) == ("PREPARED", True, 0)
        assert 0 <= one.age_s <= passed_s + 1
        assert 59 - passed_s < one.lease_left_s < one.lifetime_left_s
        assert 7199 - passed_s < other.lease_left_s <= 7210
        assert other.lifetime_left_s is None
        with pytest.raises(NoSuchStreamError):
            [each async for each in client.open_transactions("ids/none")]
        await client.abort_transaction(stream, prepared.id)


def test_blocking_client_lists_open_transactions(server: Server, stream: str) -> None:
    with penstock.connect(server.uri, settings=FAST) as client:
        client.create_stream(stream)
        made = [client.begin_transaction(stream) for _ in range(3)]
        assert {each.id for each in client.open_transactions(stream)} == {each.id for each in made}
        assert {each.state for each in client.open_transactions(stream)} == {"OPEN"}
