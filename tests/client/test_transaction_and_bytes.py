"""Transactions and byte streams where replies get lost or leases run on; the rest is in `test_sync_client`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from penstock.model.errors import (
    BadOffsetError,
    InvalidArgumentError,
    StreamSealedError,
    TransactionAbortedError,
    TransactionError,
)
from penstock.rpc import STORAGE_FULL_KEY
from penstock.rpc import controller_pb2 as pb

if TYPE_CHECKING:
    from client.conftest import Cluster


async def test_lease_is_renewed_while_the_transaction_is_open(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        async with await client.begin_transaction("retail/orders", lease_s=0.03) as transaction:
            await transaction.write(b"x")
            async with asyncio.timeout(60):
                for _ in range(3):
                    cluster.controller.pinged.clear()
                    await cluster.controller.pinged.wait()
        pings = cluster.controller.pings
        await asyncio.sleep(0.05)
        assert cluster.controller.pings == pings
        assert await transaction.state() == "COMMITTED"
        assert len(transaction.id) == 32


async def test_the_lease_is_renewed_by_the_process_that_resumes_the_transaction(cluster: Cluster) -> None:
    """After a detach, by no client until it is resumed: its first client keeps nothing open."""
    async with cluster.client() as first, cluster.client() as second:
        await first.create_stream("retail/orders")
        transaction = await first.begin_transaction("retail/orders", lease_s=0.03)
        await transaction.write(b"one")
        transaction_id = await transaction.detach()
        pings = cluster.controller.pings
        await asyncio.sleep(0.05)
        assert cluster.controller.pings == pings
        async with second.transaction("retail/orders", transaction_id, lease_s=0.03) as resumed:
            async with asyncio.timeout(60):
                for _ in range(3):
                    cluster.controller.pinged.clear()
                    await cluster.controller.pinged.wait()
            await resumed.write(b"two")
        assert await second.transaction_state("retail/orders", transaction_id) == "COMMITTED"


def refused(code: grpc.StatusCode, details: str, *marks: tuple[str, str]) -> grpc.RpcError:
    metadata = grpc.aio.Metadata(*marks)
    return grpc.aio.AioRpcError(code, metadata, metadata, details)  # type: ignore[call-arg]


#: What a controller answers while a fault passes, none of it about the transaction itself.
PASSING = {
    "unreachable": lambda: refused(grpc.StatusCode.UNAVAILABLE, "connection refused"),
    "disk full": lambda: refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "no space left", (STORAGE_FULL_KEY, "1")),
    "too many calls": lambda: refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded"),
    "a proxy's limit": lambda: refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down"),
    "login refused": lambda: refused(grpc.StatusCode.UNAUTHENTICATED, "accounts are being replaced"),
    "not permitted": lambda: refused(grpc.StatusCode.PERMISSION_DENIED, "accounts are being replaced"),
    "precondition": lambda: refused(grpc.StatusCode.FAILED_PRECONDITION, "not now"),
    "internal": lambda: refused(grpc.StatusCode.INTERNAL, "container offline"),
    "unknown": lambda: refused(grpc.StatusCode.UNKNOWN, "unexpected"),
    "shutting down": lambda: pb.PingTxnStatus(status=pb.PingTxnStatus.DISCONNECTED),
    "about to end": lambda: pb.PingTxnStatus(status=pb.PingTxnStatus.COMMITTED),
}  # fmt: skip

#: What it answers when no renewal can succeed any more.
PERMANENT = {
    "too old": lambda: pb.PingTxnStatus(status=pb.PingTxnStatus.MAX_EXECUTION_TIME_EXCEEDED),
    "too long": lambda: pb.PingTxnStatus(status=pb.PingTxnStatus.LEASE_TOO_LARGE),
    "no stream": lambda: refused(grpc.StatusCode.NOT_FOUND, "no stream"),
    "unsupported": lambda: refused(grpc.StatusCode.UNIMPLEMENTED, "no transactions here"),
}  # fmt: skip


class FailingPings:
    """Answers `pingTransaction` by `answer` while there is one, and counts the requests that it got."""

    def __init__(self, cluster: Cluster, answer: Callable[[], Any] | None) -> None:
        self.answer = answer
        self.count = 0
        self._pinged = asyncio.Event()
        self._ping = cluster.controller.rpc_ping_transaction
        cluster.controller.rpc_ping_transaction = self.ping  # type: ignore[method-assign]

    async def ping(self, request: pb.PingTxnRequest) -> Any:
        self.count += 1
        self._pinged.set()
        if self.answer is None:
            return await self._ping(request)
        found = self.answer()
        if isinstance(found, Exception):
            raise found
        return found

    async def more(self, count: int) -> None:
        """Wait for `count` more requests."""
        end = self.count + count
        async with asyncio.timeout(60):
            while self.count < end:
                self._pinged.clear()
                await self._pinged.wait()


@pytest.mark.parametrize("fault", PASSING)
async def test_a_lease_is_renewed_again_after_any_fault_that_passes(
    cluster: Cluster, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.client(controller_attempt_count_max=1) as client:
        await client.create_stream("retail/orders")
        pings = FailingPings(cluster, PASSING[fault])
        async with await client.begin_transaction("retail/orders", lease_s=0.03) as transaction:
            await transaction.write(b"x")
            await pings.more(12)
            assert caplog.text.count("could not be renewed, retrying") == 1
            pings.answer = None
            await pings.more(3)
        assert await transaction.state() == "COMMITTED"


@pytest.mark.parametrize("end", PERMANENT)
async def test_a_lease_is_not_renewed_after_an_error_that_does_not_pass(cluster: Cluster, end: str) -> None:
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        pings = FailingPings(cluster, PERMANENT[end])
        transaction = await client.begin_transaction("retail/orders", lease_s=0.03)
        async with asyncio.timeout(60):
            await asyncio.wait([transaction._keeper])  # type: ignore[type-var]
        assert pings.count == 1
        pings.answer = None
        await transaction.abort()


async def test_transaction_aborted_elsewhere_fails_writes_and_commit(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream("retail/orders")
        transaction = await client.begin_transaction("retail/orders")
        await (await transaction.write(b"x"))
        await client._controller_client.abort_transaction("retail", "orders", transaction._id)
        ack = await transaction.write(b"y")
        with pytest.raises(TransactionAbortedError, match="on stream retail/orders: it was aborted on request"):
            await ack.wait(5)
        with pytest.raises(TransactionError):
            await transaction.commit()
        await transaction.abort()


@pytest.mark.parametrize("fault", ["drop_before_append", "drop_after_append"])
async def test_byte_writer_settles_an_unknown_outcome_by_reading(cluster: Cluster, fault: str) -> None:
    # The reply of an append is lost. The writer's number at the store shows whether it was stored. It is stored once.
    async with cluster.client() as client:
        await client.create_stream("retail/bytes")
        async with await client.byte_writer("retail/bytes") as writer:
            await writer.write(b"one")
            await writer.flush()
            cluster.store.faults[fault] = 1
            await writer.write(b"two")
            await writer.flush()
            assert writer.tell() == 6
        assert (await client._segment_client.read("retail/bytes/0.#epoch.0", 0, 100)).joined() == b"onetwo"


@pytest.mark.parametrize("found", [b"other", b"mine!"])
async def test_a_byte_writer_detects_another_writer_after_a_lost_reply(cluster: Cluster, found: bytes) -> None:
    # Also one that wrote the very same bytes: they are its own, not this writer's.
    async with cluster.client() as client:
        await client.create_stream("retail/bytes")
        writer = await client.byte_writer("retail/bytes")
        await client._segment_client.append("retail/bytes/0.#epoch.0", found)
        cluster.store.faults["drop_before_append"] = 1
        await writer.write(b"mine!")
        with pytest.raises(BadOffsetError):
            await writer.flush()
        with pytest.raises(BadOffsetError):
            await writer.write(b"more")
        await writer.close()


async def test_a_sealed_byte_stream_is_readable_and_refuses_writers(cluster: Cluster) -> None:
    """Its bytes stay readable. A writer gets the error of a sealed stream, not that of missing segments."""
    async with cluster.client() as client:
        await client.create_stream("retail/bytes")
        async with client.byte_writer("retail/bytes") as writer:
            await writer.write(b"all of it")
        await client.seal_stream("retail/bytes")
        async with client.byte_reader("retail/bytes") as reader:
            assert await reader.read() == b"all of it"
            assert await reader.read() == b""
        with pytest.raises(StreamSealedError, match="is sealed"):
            await client.byte_writer("retail/bytes")
        with pytest.raises(StreamSealedError, match="is sealed"):
            await client.revisioned_stream("retail/bytes")


async def test_byte_reader_reads_across_blocks_and_waits_at_the_end(cluster: Cluster) -> None:
    async with cluster.client(read_bytes=10) as client:
        await client.create_stream("retail/bytes")
        async with (
            await client.byte_writer("retail/bytes") as writer,
            await client.byte_reader("retail/bytes") as reader,
        ):
            await writer.write(bytes(range(30)))
            await writer.flush()
            found = b""
            while len(found) < 30:
                found += await reader.read(20)
            assert found == bytes(range(30))
            assert reader.tell() == await reader.current_end() == 30
            waiting = asyncio.create_task(reader.read())
            await asyncio.sleep(0.01)
            await writer.write(b"more")
            await writer.flush()
            assert await asyncio.wait_for(waiting, 60) == b"more"
            assert await reader.seek(28) == 28
            buffer = bytearray(10)
            assert await reader.readinto(buffer) == 6 or reader.tell() < 34
            with pytest.raises(InvalidArgumentError):
                await reader.seek(-1)
        await client.seal_stream("retail/bytes")
        async with client.segment_reader("retail/bytes/0.#epoch.0", 34) as rest:
            assert await rest.read() == b""
