"""Prepared transactions: nothing is written into them any more, and only a decision by their id ends them in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from penstock.controller.grpc.access import Access
from penstock.controller.grpc.call import Front
from penstock.controller.grpc.table import ADDITIONS, CALLS
from penstock.controller.metadata.records import AbortReason, ActiveTransaction, StreamState, TransactionStatus
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.service import ControllerService
from penstock.controller.transactions.lease_timers import OpenTransaction
from penstock.controller.transactions.service import PingResult
from penstock.controller.workflows import prepare as prepare_module
from penstock.controller.workflows import seal_stream as seal_module
from penstock.controller.workflows.abort import decide_abort
from penstock.controller.workflows.context import WorkflowContext
from penstock.model.errors import (
    ControllerUnavailableError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchSegmentError,
    NoSuchStreamError,
    ScopeExistsError,
    SegmentSealedError,
    StreamExistsError,
    TransactionPreparedError,
)
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.permissions import Permission
from penstock.model.policies import Scaling, StreamConfig
from penstock.rpc import additions_pb2
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.additions_pb2_grpc import PenstockControllerServiceStub
from penstock_simulation.memory_segments import MemorySegments
from support.crash_script import at_each_write, run, run_with_survivor
from support.failing_segments import Fault
from support.in_process_cluster import InProcessCluster
from support.two_controllers import start_pair, tables_of, until

if TYPE_CHECKING:
    from controller.conftest import Wire

OPEN, COMMITTING, COMMITTED = TransactionStatus.OPEN, TransactionStatus.COMMITTING, TransactionStatus.COMMITTED
ABORTING, ABORTED, UNKNOWN = TransactionStatus.ABORTING, TransactionStatus.ABORTED, TransactionStatus.UNKNOWN
LEASE_MS, LIMIT_MS = 10_000, 3_600_000


@pytest.fixture
async def started(service: ControllerService) -> ControllerService:
    """A controller with a stream of two segments."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    return service


def piece(transaction: TransactionId, segment: int, scope: str = "scope", stream: str = "stream") -> str:
    return transaction_segment_name(segment_name(scope, stream, segment), transaction.high, transaction.low)


async def begin(cluster: InProcessCluster, service: ControllerService, data: bytes = b"data") -> TransactionId:
    """Begin a transaction with `data` in both segments."""
    transaction = (await service.transactions.create("scope", "stream", LEASE_MS)).id
    for segment in (0, 1):
        await cluster.store.append(piece(transaction, segment), data)
    return transaction


async def prepare(
    service: ControllerService, transaction: TransactionId, limit_ms: int = LIMIT_MS
) -> ActiveTransaction | TransactionStatus:
    return await service.transactions.prepare("scope", "stream", transaction, limit_ms)


async def commit(service: ControllerService, transaction: TransactionId) -> TransactionStatus:
    return await service.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=0)


async def abort(service: ControllerService, transaction: TransactionId) -> TransactionStatus:
    return await service.transactions.abort("scope", "stream", transaction)


async def status(service: ControllerService, transaction: TransactionId) -> TransactionStatus:
    return await service.transactions.status("scope", "stream", transaction)


async def record_of(service: ControllerService, transaction: TransactionId) -> ActiveTransaction:
    return (await (await tables_of(service)).transaction(transaction)).record


async def end_of_time(service: ControllerService, transaction: TransactionId, version: int) -> None:
    """Let a timer of a transaction fire, which has seen `version` of its record."""
    service.transactions.work._expired(OpenTransaction("scope", "stream", transaction), version)
    await service.idle()


def data_of(cluster: InProcessCluster) -> list[bytes]:
    """Return what is in the first two segments of the stream."""
    return [bytes(cluster.store.segments[segment_name("scope", "stream", segment)].data) for segment in (0, 1)]


async def test_a_prepared_transaction_refuses_events_and_appears_open_to_other_clients(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """Its segments are sealed; it reads as OPEN, and is committed with what it had."""
    transaction = await begin(cluster, started)
    prepared = await prepare(started, transaction)
    assert prepared == await record_of(started, transaction)
    assert (prepared.prepared_ms, prepared.lease_expiry_ms) == (cluster.clock_ms, cluster.clock_ms + LIMIT_MS)
    for segment in (0, 1):
        with pytest.raises(SegmentSealedError):
            await cluster.store.append(piece(transaction, segment), b"more")
    assert await status(started, transaction) is OPEN
    assert await commit(started, transaction) is COMMITTING
    await started.idle()
    assert (await status(started, transaction), data_of(cluster)) == (COMMITTED, [b"data", b"data"])


async def test_prepared_transaction_is_aborted_by_its_id(cluster: InProcessCluster, started: ControllerService) -> None:
    """Its segments go, and prepared again it is what it is."""
    transaction = await begin(cluster, started)
    await prepare(started, transaction)
    assert await abort(started, transaction) is ABORTING
    await started.idle()
    assert await prepare(started, transaction) is ABORTED
    assert data_of(cluster) == [b"", b""]
    assert not any(piece(transaction, segment) in cluster.store.segments for segment in (0, 1))


async def test_the_lease_does_not_end_a_prepared_transaction(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """Neither the timer that was armed before, nor that of a controller that has not heard of it, aborts it."""
    transaction = await begin(cluster, started)
    opened = (await (await tables_of(started)).transaction(transaction)).version
    await prepare(started, transaction)
    cluster.clock_ms += 100 * LEASE_MS
    other = await cluster.start()
    for service in (started, other):
        await end_of_time(service, transaction, opened)
        assert await status(service, transaction) is OPEN
    assert await commit(other, transaction) is COMMITTING


async def test_limit_of_a_prepared_transaction_ends_it(cluster: InProcessCluster, started: ControllerService) -> None:
    """It was undecided for its whole limit: it is aborted, because its id may be lost."""
    transaction = await begin(cluster, started)
    await prepare(started, transaction)
    found = await (await tables_of(started)).transaction(transaction)
    cluster.clock_ms += LIMIT_MS + started.settings.lease_slack_ms
    await end_of_time(started, transaction, found.version)
    assert await status(started, transaction) is ABORTED


async def test_timer_of_a_prepared_transaction_is_that_of_its_limit(
    cluster: InProcessCluster, started: ControllerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One timer, armed with the version that the preparation wrote, for the limit and not for the lease."""
    transaction = await begin(cluster, started)
    armed = []
    timers = started.transactions.work.timers
    monkeypatch.setattr(timers, "arm", lambda *given: armed.append(given))
    record = await prepare(started, transaction)
    version = (await (await tables_of(started)).transaction(transaction)).version
    opened = OpenTransaction("scope", "stream", transaction)
    assert armed == [(opened, version, LIMIT_MS + started.settings.lease_slack_ms, record)]


async def test_a_ping_has_no_effect_on_a_prepared_transaction(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """A writer that keeps pinging gets OK, and the limit stays as it is."""
    transaction = await begin(cluster, started)
    await prepare(started, transaction)
    before = await (await tables_of(started)).transaction(transaction)
    ping = started.transactions.ping
    assert await ping("scope", "stream", transaction, LEASE_MS) is PingResult.OK
    too_long = started.settings.lease_ms_max + 1
    assert await ping("scope", "stream", transaction, too_long) is PingResult.LEASE_TOO_LARGE
    assert await (await tables_of(started)).transaction(transaction) == before
    await commit(started, transaction)
    assert await ping("scope", "stream", transaction, LEASE_MS) is PingResult.COMMITTED


async def test_a_second_preparation_only_extends_the_limit(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """What comes twice, or late, does no harm; when it was prepared first stays on record."""
    transaction = await begin(cluster, started)
    first = await prepare(started, transaction)
    cluster.clock_ms += 1000
    assert await prepare(started, transaction, 1) == first
    later = await prepare(started, transaction)
    assert later == replace(first, lease_expiry_ms=first.lease_expiry_ms + 1000,
                            execution_expiry_ms=first.execution_expiry_ms + 1000)  # fmt: skip
    assert await record_of(started, transaction) == later


@pytest.mark.parametrize("limit_ms", [0, -1, 604_800_001])
async def test_limits_of_preparations_have_bounds(
    limit_ms: int, cluster: InProcessCluster, started: ControllerService
) -> None:
    """Nothing is sealed then, and the transaction takes more."""
    transaction = await begin(cluster, started)
    with pytest.raises(InvalidArgumentError, match="1 to 604800000"):
        await prepare(started, transaction, limit_ms)
    await cluster.store.append(piece(transaction, 0), b"more")


async def test_preparing_a_decided_or_unknown_transaction_returns_its_state(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """And of a stream that there is not."""
    committed, aborted = await begin(cluster, started), await begin(cluster, started)
    await commit(started, committed)
    await abort(started, aborted)
    assert await prepare(started, committed) in (COMMITTING, COMMITTED)
    assert await prepare(started, aborted) in (ABORTING, ABORTED)
    await started.idle()
    assert (await prepare(started, committed), await prepare(started, aborted)) == (COMMITTED, ABORTED)
    assert await prepare(started, TransactionId.of(0, 1 << 20)) is UNKNOWN
    with pytest.raises(NoSuchStreamError):
        await started.transactions.prepare("scope", "other", committed, LIMIT_MS)


async def test_preparing_a_transaction_that_lost_a_segment_fails_with_the_reason(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """It is as open as it was, and its lease will end it."""
    transaction = await begin(cluster, started)
    await cluster.store.delete_segment(piece(transaction, 1))
    with pytest.raises(NoSuchSegmentError):
        await prepare(started, transaction)
    assert not (await record_of(started, transaction)).is_prepared


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
async def test_a_decision_before_the_preparation_is_written_is_kept(
    is_commit: bool, cluster: InProcessCluster, started: ControllerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments are sealed, or gone, already: the preparation finds out, and says what it is."""
    transaction = await begin(cluster, started)
    other = await cluster.start()
    seal_segments = prepare_module._seal_segments

    async def decide_and_seal(*given: WorkflowContext | StreamTables | TransactionId) -> None:
        await (commit if is_commit else abort)(other, transaction)
        await other.idle()
        await seal_segments(*given)

    async def seal_and_decide(*given: WorkflowContext | StreamTables | TransactionId) -> None:
        await seal_segments(*given)
        await (commit if is_commit else abort)(other, another)
        await other.idle()

    monkeypatch.setattr(prepare_module, "_seal_segments", decide_and_seal)
    assert await prepare(started, transaction) is (COMMITTED if is_commit else ABORTED)
    another = await begin(cluster, started)
    monkeypatch.setattr(prepare_module, "_seal_segments", seal_and_decide)
    assert await prepare(started, another) is (COMMITTED if is_commit else ABORTED)
    assert data_of(cluster) == ([b"datadata"] * 2 if is_commit else [b"", b""])


async def test_lease_that_ends_while_the_transaction_is_prepared_has_one_outcome(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """The abort is on condition of the version that it has seen: whichever write comes first decides."""
    tables = await tables_of(started)
    first, second = await begin(cluster, started), await begin(cluster, started)
    seen = await tables.transaction(first)
    await prepare(started, first)
    with pytest.raises(MetadataConflictError):
        await decide_abort(started._context, tables, first, at_version=seen.version)
    assert await status(started, first) is OPEN
    seen = await tables.transaction(second)
    await decide_abort(started._context, tables, second, at_version=seen.version)
    assert await prepare(started, second) is ABORTING


# What becomes of it when its stream changes.


async def test_stream_with_a_prepared_transaction_is_not_sealed(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """Nothing has changed then, another open transaction neither; once it is decided the stream is sealed."""
    prepared, other = await begin(cluster, started, b"kept"), await begin(cluster, started, b"open")
    await prepare(started, prepared)
    with pytest.raises(TransactionPreparedError, match=prepared.text):
        await started.seal_stream("scope", "stream")
    assert [await status(started, one) for one in (prepared, other)] == [OPEN, OPEN]
    assert (await (await tables_of(started)).state()).record.state is StreamState.ACTIVE
    assert (await started.transactions.create("scope", "stream", LEASE_MS)).id
    assert await commit(started, prepared) is COMMITTING
    await started.seal_stream("scope", "stream")
    assert [await status(started, one) for one in (prepared, other)] == [COMMITTED, ABORTED]
    assert data_of(cluster) == [b"kept", b"kept"]
    await started.delete_stream("scope", "stream")


async def test_stream_whose_transaction_is_prepared_while_it_is_sealed_is_active_again(
    cluster: InProcessCluster, started: ControllerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first scan missed it: the second scan, in state SEALING, finds it; transactions decided then are merged."""
    prepared, decided = await begin(cluster, started, b"kept"), await begin(cluster, started, b"<>")
    ended = started._context.creations.ended

    async def prepare_meanwhile(stream: str) -> None:
        await prepare(started, prepared)
        await commit(started, decided)
        await ended(stream)

    monkeypatch.setattr(started._context.creations, "ended", prepare_meanwhile)
    with pytest.raises(TransactionPreparedError):
        await started.seal_stream("scope", "stream")
    tables = await tables_of(started)
    assert (await tables.state()).record.state is StreamState.ACTIVE
    assert (await tables.commit_view()).committing.record.is_empty
    assert [await status(started, one) for one in (prepared, decided)] == [OPEN, COMMITTED]
    monkeypatch.undo()
    await commit(started, prepared)
    await started.idle()
    assert data_of(cluster) == [b"<>kept", b"<>kept"]
    await started.seal_stream("scope", "stream")


async def test_preparation_right_before_a_seal_would_abort_the_transaction_is_spared(
    cluster: InProcessCluster, started: ControllerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing has shown it as open; the abort reads it again, and the next round finds it prepared."""
    transaction = await begin(cluster, started)

    async def prepare_and_decide(
        context: WorkflowContext, tables: StreamTables, which: TransactionId, **options: bool | AbortReason
    ) -> TransactionStatus:
        monkeypatch.undo()
        await prepare(started, which)
        return await decide_abort(context, tables, which, **options)

    monkeypatch.setattr(seal_module, "decide_abort", prepare_and_decide)
    with pytest.raises(TransactionPreparedError):
        await started.seal_stream("scope", "stream")
    assert await status(started, transaction) is OPEN
    assert (await (await tables_of(started)).state()).record.state is StreamState.ACTIVE


async def test_seal_that_another_controller_takes_over_spares_what_was_prepared_since(
    cluster: InProcessCluster,
) -> None:
    """The first one dies in state SEALING; its successor takes the seal back, and the stream is active again."""
    first, second, held = await start_pair(cluster)
    dropped, kept = await begin(cluster, first, b"dropped"), await begin(cluster, first, b"kept")
    held.is_blocked, held.call_name = True, "delete_segment"
    sealing = asyncio.ensure_future(first.seal_stream("scope", "stream"))
    async with asyncio.timeout(60):
        while await status(second, dropped) is OPEN:  # noqa: ASYNC110  # There is no event to await.
            await asyncio.sleep(0)
    assert isinstance(await prepare(second, kept), ActiveTransaction)
    cluster.expire(first)
    await until(lambda: second.statistics().taken_over_count, "the other one has taken it over")
    await second.idle()
    assert (await (await tables_of(second)).state()).record.state is StreamState.ACTIVE
    held.release()
    await asyncio.gather(sealing, return_exceptions=True)
    await first.idle()
    assert [await status(second, one) for one in (dropped, kept)] == [ABORTED, OPEN]
    assert await commit(second, kept) is COMMITTING
    await second.idle()
    assert data_of(cluster) == [bytes(100) + b"kept"] * 2


async def test_a_recursive_deletion_aborts_prepared_transactions(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """Where their events would go is gone with them; nothing is left."""
    transaction = await begin(cluster, started)
    await prepare(started, transaction)
    await started.delete_scope_recursive("scope")
    await started.idle()
    assert not cluster.store.segments
    assert started.transactions.open_count == 0 or not await _has_index_entries(started)


async def _has_index_entries(service: ControllerService) -> list[Any]:
    return [each async for page in service._context.index.pages() for each in page]


async def test_prepared_transaction_is_committed_after_its_stream_was_scaled(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """It rolls over as any other one of an earlier epoch."""
    transaction = await begin(cluster, started, b"early")
    await prepare(started, transaction)
    await started.scale_stream("scope", "stream", [1], [(0.5, 0.75), (0.75, 1.0)])
    await started.idle()
    assert await commit(started, transaction) is COMMITTING
    await started.idle()
    everything = b"".join(bytes(found.data) for found in cluster.store.segments.values())
    assert everything.count(b"early") == 2
    assert await status(started, transaction) is COMMITTED


async def test_prepared_transaction_keeps_its_limit_through_a_restart(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """Downtime counts: the limit is where it was."""
    transaction = await begin(cluster, started)
    record = await prepare(started, transaction)
    await started.stop()
    cluster.clock_ms += 10 * LEASE_MS
    after = await cluster.start()
    await after.idle()
    assert await record_of(after, transaction) == record
    assert after.transactions.open_count == 1
    assert await commit(after, transaction) is COMMITTING


async def test_limit_that_ended_while_no_controller_was_there_leaves_a_lease_to_decide(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """No decision was possible: after the take-over there is as long as the writer's lease to decide."""
    transaction = await begin(cluster, started)
    record = await prepare(started, transaction)
    await started.stop()
    cluster.clock_ms += 2 * LIMIT_MS
    after = await cluster.start()
    await after.idle()
    expiry_ms = cluster.clock_ms + LEASE_MS
    assert await record_of(after, transaction) == replace(record, lease_expiry_ms=expiry_ms)
    assert await status(after, transaction) is OPEN
    found = await (await tables_of(after)).transaction(transaction)
    cluster.clock_ms = expiry_ms + after.settings.lease_slack_ms
    await end_of_time(after, transaction, found.version)
    assert await status(after, transaction) is ABORTED


# What clients see.


async def test_prepared_transaction_is_open_on_pravegas_wire_and_prepared_on_ours(wire: Wire) -> None:
    """The calls of both services, on one port; a completed or unknown transaction is reported as such."""
    service, info = wire.service, pb.StreamInfo(scope="scope", stream="stream")
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    ours = PenstockControllerServiceStub(wire.channel)
    created = await wire.stub.createTransaction(pb.CreateTxnRequest(streamInfo=info, lease=LEASE_MS))
    named = {"streamInfo": info, "txnId": created.txnId}

    for limit_ms in (0, 604_800_001):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ours.prepareTransaction(additions_pb2.PrepareTransactionRequest(limitMillis=limit_ms, **named))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    prepare = additions_pb2.PrepareTransactionRequest(limitMillis=LIMIT_MS, **named)
    reply = await ours.prepareTransaction(prepare)
    assert reply == additions_pb2.PrepareTransactionReply(state=additions_pb2.PREPARED, leftMillis=LIMIT_MS)
    assert (await wire.stub.checkTransactionState(pb.TxnRequest(**named))).state == pb.TxnState.OPEN
    ping = pb.PingTxnRequest(lease=LEASE_MS, **named)
    assert (await wire.stub.pingTransaction(ping)).status == pb.PingTxnStatus.OK
    assert (await wire.stub.sealStream(info)).status == pb.UpdateStreamStatus.FAILURE
    assert (await wire.stub.commitTransaction(pb.TxnRequest(**named))).status == pb.TxnStatus.SUCCESS
    await service.idle()
    assert (await ours.prepareTransaction(prepare)).state == additions_pb2.COMMITTED
    named["txnId"] = pb.TxnId(highBits=0, lowBits=1 << 40)
    unknown = await ours.prepareTransaction(additions_pb2.PrepareTransactionRequest(limitMillis=LIMIT_MS, **named))
    assert unknown.state == additions_pb2.UNKNOWN


async def test_calls_of_our_service_each_have_one_row() -> None:
    """No call of Pravega's is among them, and each needs the permission that its like of Pravega's does."""
    described = additions_pb2.DESCRIPTOR.services_by_name["PenstockControllerService"]
    assert [call.name for call in ADDITIONS] == [method.name for method in described.methods]
    assert not {call.name for call in ADDITIONS} & {call.name for call in CALLS}
    request = additions_pb2.PrepareTransactionRequest(streamInfo=pb.StreamInfo(scope="s", stream="t"))
    groups = additions_pb2.DescribeReaderGroupsRequest(scopeInfo=pb.ScopeInfo(scope="s"))
    session = additions_pb2.OpenSessionRequest()
    requests = {"describeReaderGroups": groups, "openSession": session}
    assert {call.name: call.access(requests.get(call.name, request)) for call in ADDITIONS} == {
        "prepareTransaction": Access("prn::/scope:s/stream:t", Permission.READ_UPDATE),
        "describeTransaction": Access("prn::/scope:s/stream:t", Permission.READ),
        "listOpenTransactions": Access("prn::/scope:s/stream:t", Permission.READ),
        "explainRetention": Access("prn::/scope:s/stream:t", Permission.READ),
        "describeReaderGroups": Access("prn::/scope:s", Permission.READ),
        "findWholeTail": Access("prn::/scope:s/stream:t", Permission.READ),
        "describeStream": Access("prn::/scope:s/stream:t", Permission.READ),
        "describeHistory": Access("prn::/scope:s/stream:t", Permission.READ),
        "openSession": Access("prn::/", Permission.NONE),
        "describeCaller": Access("prn::/", Permission.NONE),
        "describeMembers": Access("prn::/", Permission.READ),
        "changeAssignment": Access("prn::/", Permission.READ_UPDATE),
        "describeAccounts": Access("prn::/", Permission.NONE),
        "readAudit": Access("prn::/", Permission.READ_UPDATE),
    }


async def test_a_conflicting_preparation_must_be_retried() -> None:
    """As with decisions: it is no answer, and FAILED_PRECONDITION would be taken for one."""

    class Contended:
        transactions = None

        async def prepare(self, *given: str | int | TransactionId) -> None:
            raise MetadataConflictError("keeps changing")

    service = Contended()
    service.transactions = service
    (row,) = (call for call in ADDITIONS if call.name == "prepareTransaction")
    info = pb.StreamInfo(scope="s", stream="t")
    with pytest.raises(ControllerUnavailableError):
        await row.serve(Front(service, list), additions_pb2.PrepareTransactionRequest(streamInfo=info))


# Crashes during the work.


class Script:
    """Prepares three transactions; commits one at once, one after a scale, and aborts one; ends their stream."""

    def __init__(self, store: MemorySegments) -> None:
        self.store = store
        self.made = {}
        self.prepared = set()

    def steps(self) -> list[Callable[..., Awaitable[Any]]]:
        begins = [step for number in range(3) for step in (self.begins(number), self.prepares(number))]
        decisions = [self.commits(0), self.settle, self.scale, self.settle, self.aborts(1), self.commits(2)]
        return [
            self.create, *begins, self.refused_seal, *decisions, self.settle, self.check,
            self.seal, self.delete, self.delete_scope,
        ]  # fmt: skip

    async def create(self, service: ControllerService) -> None:
        try:
            await service.create_scope("s")
        except ScopeExistsError:
            pass
        try:
            await service.create_stream("s", "t", StreamConfig(Scaling.fixed(2)))
        except StreamExistsError:
            pass

    def begins(self, number: int) -> Callable[..., Awaitable[Any]]:
        async def begin(service: ControllerService) -> None:
            self.made[number] = made = (await service.transactions.create("s", "t", LEASE_MS)).id
            for segment in (0, 1):
                await self.store.append(piece(made, segment, "s", "t"), b"<%d>" % number)

        return begin

    def prepares(self, number: int) -> Callable[..., Awaitable[Any]]:
        async def prepare(service: ControllerService) -> None:
            made = self.made[number]
            found = await service.transactions.prepare("s", "t", made, LIMIT_MS)
            assert isinstance(found, ActiveTransaction), found
            # What is acknowledged takes nothing more.
            assert all(self.store.segments[piece(made, segment, "s", "t")].is_sealed for segment in (0, 1))

        return prepare

    async def refused_seal(self, service: ControllerService) -> None:
        with pytest.raises(TransactionPreparedError):
            await service.seal_stream("s", "t")

    def commits(self, number: int) -> Callable[..., Awaitable[Any]]:
        async def commit(service: ControllerService) -> None:
            status = await service.transactions.commit("s", "t", self.made[number], writer_id="w", timestamp=number)
            assert status in (COMMITTING, COMMITTED), status

        return commit

    def aborts(self, number: int) -> Callable[..., Awaitable[Any]]:
        async def abort(service: ControllerService) -> None:
            status = await service.transactions.abort("s", "t", self.made[number])
            assert status in (ABORTING, ABORTED), status

        return abort

    async def scale(self, service: ControllerService) -> None:
        segments = await service.current_segments("s", "t")
        if len(segments) == 2:
            await service.scale_stream("s", "t", [1], [(0.5, 0.75), (0.75, 1.0)])

    async def settle(self, service: ControllerService) -> None:
        await service.idle()

    async def check(self, service: ControllerService) -> None:
        """Each is what was decided, and its events are there once in each of its segments, or not at all."""
        everything = b"".join(bytes(found.data) for found in self.store.segments.values())
        for number, wanted in enumerate((COMMITTED, ABORTED, COMMITTED)):
            assert await service.transactions.status("s", "t", self.made[number]) is wanted
            assert everything.count(b"<%d>" % number) == (2 if wanted is COMMITTED else 0)

    async def seal(self, service: ControllerService) -> None:
        await service.seal_stream("s", "t")

    async def delete(self, service: ControllerService) -> None:
        if await service.stream_exists("s", "t"):
            await service.delete_stream("s", "t")

    async def delete_scope(self, service: ControllerService) -> None:
        if "s" in (await service.list_scopes("")).names:
            await service.delete_scope("s")


@pytest.mark.parametrize("fault", list(Fault))
async def test_prepared_transactions_end_as_decided_whichever_write_fails(
    fault: Fault, fresh: Callable[[], InProcessCluster]
) -> None:
    """The controller dies, or a request or a reply is lost, at each write from their beginning to their end."""
    await at_each_write(run, fresh, Script, fault)


async def test_prepared_transactions_are_kept_by_the_controller_that_is_alive(
    fresh: Callable[[], InProcessCluster],
) -> None:
    """The first one dies behind each write; the other one has never seen what it has prepared."""
    await at_each_write(run_with_survivor, fresh, Script, Fault.DIES_AFTER)
