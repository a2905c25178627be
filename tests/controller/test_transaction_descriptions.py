"""What the controller reports transactions: one by its id, and those of a stream that have not ended, page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import grpc.aio
import pytest

from penstock.controller.metadata.records import AbortReason, TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.controller.transactions.descriptions import TransactionDescription
from penstock.model.errors import InvalidArgumentError, NoSuchStreamError
from penstock.model.policies import Scaling, StreamConfig
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.additions_pb2_grpc import PenstockControllerServiceStub
from support.in_process_cluster import InProcessCluster

if TYPE_CHECKING:
    from controller.conftest import Wire

INFO = pb.StreamInfo(scope="scope", stream="stream")
OPEN, COMMITTING, COMMITTED = TransactionStatus.OPEN, TransactionStatus.COMMITTING, TransactionStatus.COMMITTED
ABORTING, ABORTED = TransactionStatus.ABORTING, TransactionStatus.ABORTED


@pytest.fixture
async def started(cluster: InProcessCluster) -> ControllerService:
    """A controller with a stream, and short pages."""
    service = await cluster.start(ControllerSettings(page_entries_max=3))
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    return service


async def begin(service: ControllerService, lease_ms: int = 10_000) -> TransactionId:
    return (await service.transactions.create("scope", "stream", lease_ms)).id


async def described(service: ControllerService, transaction: TransactionId) -> TransactionDescription:
    return await service.transactions.descriptions.one("scope", "stream", transaction)


async def listed(service: ControllerService) -> tuple[list[TransactionDescription], list[int]]:
    """Return all open transactions, and the lengths of the pages."""
    found, lengths, token = [], [], ""
    while True:
        page = await service.transactions.descriptions.open("scope", "stream", token)
        lengths.append(len(page.transactions))
        if not page.transactions:
            assert page.token == token
            return found, lengths
        found += page.transactions
        token = page.token


async def test_status_of_a_transaction_in_each_state(
    cluster: InProcessCluster, started: ControllerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ages and remaining leases are by the controller's clock; after the end, the time of the end is reported."""
    transaction = await begin(started, 20_000)
    cluster.clock_ms += 5_000
    slack_ms = started.settings.lease_slack_ms
    assert await described(started, transaction) == TransactionDescription(
        transaction, OPEN, 5_000, 20_000, 15_000 + slack_ms, 20_000 * 1000 - 5_000
    )
    aborted = await begin(started)
    monkeypatch.setattr(started.transactions.work, "post_commit", lambda opened: None)
    await started.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=7)
    assert await described(started, transaction) == TransactionDescription(
        transaction, COMMITTING, 5_000, 20_000, writer_id="w"
    )
    monkeypatch.undo()
    await started.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=7)
    await started.idle()
    cluster.clock_ms += 2_000
    assert await described(started, transaction) == TransactionDescription(transaction, COMMITTED, 2_000)
    monkeypatch.setattr(started.transactions.work, "post_abort", lambda opened: None)
    await started.transactions.abort("scope", "stream", aborted)
    assert await described(started, aborted) == TransactionDescription(
        aborted, ABORTING, 2_000, 10_000, abort_reason=AbortReason.REQUESTED
    )
    monkeypatch.undo()
    await started.transactions.abort("scope", "stream", aborted)
    await started.idle()
    assert await described(started, aborted) == TransactionDescription(
        aborted, ABORTED, 0, abort_reason=AbortReason.REQUESTED
    )
    never = TransactionId.of(0, 10**9)
    assert await described(started, never) == TransactionDescription(never, TransactionStatus.UNKNOWN)
    with pytest.raises(NoSuchStreamError):
        await started.transactions.descriptions.one("scope", "none", never)


async def test_why_a_transaction_was_aborted_is_kept_after_its_end(cluster: InProcessCluster) -> None:
    """By request, at the end of its lease, with its stream; another controller tells it, too."""
    service = await cluster.start(ControllerSettings(lease_ms_min=1, lease_slack_ms=0))
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    requested, expired, sealed = [await begin(service) for _ in range(3)]
    await service.transactions.abort("scope", "stream", requested)
    await service.transactions.ping("scope", "stream", expired, 1)
    while (await described(service, expired)).status is OPEN:
        cluster.clock_ms += 1
        await service.idle()
    await service.seal_stream("scope", "stream")
    await service.idle()
    await service.stop()
    other = await cluster.start()
    found = [await described(other, each) for each in (requested, expired, sealed)]
    assert [each.status for each in found] == [ABORTED] * 3
    assert [each.abort_reason for each in found] == [
        AbortReason.REQUESTED, AbortReason.LEASE_ENDED, AbortReason.STREAM_SEALED
    ]  # fmt: skip


async def test_open_transactions_of_all_epochs_are_listed_page_by_page(
    cluster: InProcessCluster, started: ControllerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once; what has ended is not among them, nor what is another stream's."""
    assert await listed(started) == ([], [0])
    await started.create_stream("scope", "other", StreamConfig(Scaling.fixed(1)))
    await started.transactions.create("scope", "other", 10_000)
    made = [await begin(started) for _ in range(5)]
    await started.scale_stream("scope", "stream", [0], [(0.0, 0.25), (0.25, 0.5)])
    await started.idle()
    made += [await begin(started) for _ in range(4)]
    assert {each.epoch for each in made} == {0, 1}
    found, lengths = await listed(started)
    assert sorted(each.id for each in found) == sorted(made)
    assert [each.id.epoch for each in found] == [0] * 5 + [1] * 4
    assert lengths == [3, 3, 3, 0]
    await started.transactions.abort("scope", "stream", made[0])
    await started.idle()
    monkeypatch.setattr(started.transactions.work, "post_commit", lambda opened: None)
    await started.transactions.commit("scope", "stream", made[8], writer_id="w", timestamp=0)
    found, _ = await listed(started)
    assert {each.id: each.status for each in found} == {
        each: COMMITTING if each == made[8] else OPEN for each in made[1:]
    }


async def test_a_listing_continues_after_its_last_entry_has_ended(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """All of the page before and of its epoch end between two pages, and the table of the epoch goes."""
    first = [await begin(started) for _ in range(3)]
    page = await started.transactions.descriptions.open("scope", "stream")
    assert sorted(each.id for each in page.transactions) == sorted(first)
    for each in first:
        await started.transactions.abort("scope", "stream", each)
    await started.scale_stream("scope", "stream", [0], [(0.0, 0.25), (0.25, 0.5)])
    await started.idle()
    later = await begin(started)
    following = await started.transactions.descriptions.open("scope", "stream", page.token)
    assert [each.id for each in following.transactions] == [later]


@pytest.mark.parametrize("token", ["x", "0:%", "a:AA==", ":", "0"])
async def test_an_invalid_token_is_refused(started: ControllerService, token: str) -> None:
    await begin(started)
    with pytest.raises(InvalidArgumentError, match="not a continuation token of open transactions"):
        await started.transactions.descriptions.open("scope", "stream", token)


async def test_the_calls_over_the_wire(connect: Callable[..., Awaitable[Wire]]) -> None:
    """Pages end with an empty one. A bad token is a permanent error, a stream that does not exist is NOT_FOUND."""
    wire = await connect(ControllerSettings(page_entries_max=2))
    ours = PenstockControllerServiceStub(wire.channel)
    await wire.stub.createScope(pb.ScopeInfo(scope="scope"))
    await wire.stub.createStream(pb.StreamConfig(streamInfo=INFO, scalingPolicy=pb.ScalingPolicy(minNumSegments=2)))
    for _ in range(3):
        made = await wire.stub.createTransaction(pb.CreateTxnRequest(streamInfo=INFO, lease=10_000))
    request = added.PrepareTransactionRequest(streamInfo=INFO, txnId=made.txnId, limitMillis=60_000)
    assert (await ours.prepareTransaction(request)).state == added.PREPARED
    wire.cluster.clock_ms += 1_000
    found = await ours.describeTransaction(added.DescribeTransactionRequest(streamInfo=INFO, txnId=made.txnId))
    assert (found.txnId, found.state, found.ageMillis) == (made.txnId, added.PREPARED, 1_000)
    assert found.leaseLeftMillis == 59_000 + wire.service.settings.lease_slack_ms
    lengths, states, token = [], [], ""
    while not lengths or lengths[-1]:
        page = await ours.listOpenTransactions(added.OpenTransactionsRequest(streamInfo=INFO, token=token))
        lengths.append(len(page.transactions))
        states += [each.state for each in page.transactions]
        token = page.token
    assert lengths == [2, 1, 0]
    assert sorted(states) == [added.OPEN, added.OPEN, added.PREPARED]
    elsewhere = pb.StreamInfo(scope="scope", stream="none")
    for request, code in (
        (added.OpenTransactionsRequest(streamInfo=INFO, token="x"), "INVALID_ARGUMENT"),
        (added.OpenTransactionsRequest(streamInfo=elsewhere), "NOT_FOUND"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await ours.listOpenTransactions(request)
        assert failure.value.code().name == code
