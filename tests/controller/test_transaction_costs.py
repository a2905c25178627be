"""What transactions cost: requests to segment stores, counted; not times."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock.controller.metadata.pending_work import PendingWork
from penstock.controller.metadata.records import TransactionStatus
from penstock.controller.metadata.stream_tables import CommitView, StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.service import ControllerService
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from support.controller_faults import BlockedSegments, ScriptedSegments
from support.in_process_cluster import InProcessCluster

#: Requests that one small transaction may take from its beginning to its end, without the rows that go later.
BUDGET = 12


@pytest.fixture
def segments(cluster: InProcessCluster) -> ScriptedSegments:
    return ScriptedSegments(cluster.store)


@pytest.fixture
async def started(cluster: InProcessCluster, segments: ScriptedSegments) -> ControllerService:
    """A controller whose requests are counted, with a stream of one segment that has had a transaction."""
    service = cluster.build(segments=segments)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    await play(cluster, service, b"first")
    await service.idle()
    return service


async def play(cluster: InProcessCluster, service: ControllerService, data: bytes) -> TransactionId:
    """Begin a transaction, write to it as a client does, and commit it."""
    made = await service.transactions.create("scope", "stream", 10_000)
    name = transaction_segment_name(segment_name("scope", "stream", 0), made.id.high, made.id.low)
    await cluster.store.append(name, data)
    status = await service.transactions.commit("scope", "stream", made.id, writer_id="w", timestamp=-1)
    assert status is TransactionStatus.COMMITTING
    return made.id


def note_calls(segments: ScriptedSegments) -> Counter[Any]:
    """Count requests from now on, by call and by table or segment."""
    calls: Counter[Any] = Counter()

    def note(name: str, arguments: tuple[Any, ...]) -> None:
        kind = str(arguments[0]).partition("/_tables/")[2].partition(".#")[0] or "data"
        calls[f"{name} {kind}"] += 1

    segments.rule = note
    return calls


async def until_visible(cluster: InProcessCluster, length: int) -> None:
    for _ in range(10_000):
        if len(cluster.store.segments[segment_name("scope", "stream", 0)].data) == length:
            return
        await asyncio.sleep(0)
    raise AssertionError("it was not merged")


async def test_a_transaction_stays_within_its_budget_of_requests(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService
) -> None:
    """20 transactions, one after the other has been merged: what all of them take.

    How many rows that go later go together is up to the clock: one request for each table and transaction at most.
    """
    calls = note_calls(segments)
    for number in range(20):
        await play(cluster, started, b"x")
        await until_visible(cluster, len(b"first") + number + 1)
    await started.idle()
    later = [
        calls.pop(request, 0)
        for request in (
            "table_remove scope/stream/commitOrder",
            "table_get scope/stream/transactionsInEpoch-0",
            *[request for request in calls if request.startswith("table_put completedTransactionsBatch-")],
            "table_remove scope/stream/transactionsInEpoch-0",
            "table_remove transactionIndex",
        )
    ]
    assert len(later) == 5
    assert calls.total() / 20 <= BUDGET, sorted(calls.items())
    assert all(1 <= count <= 20 for count in later), later


@pytest.mark.parametrize("count", [10, 100])
async def test_transactions_decided_at_once_share_requests(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService, count: int
) -> None:
    """Many commits at once take few requests each: positions, decisions and merges are those of all together."""
    ids = [(await started.transactions.create("scope", "stream", 10_000)).id for _ in range(count)]
    before = segments.calls
    await asyncio.gather(
        *(started.transactions.commit("scope", "stream", id, writer_id="w", timestamp=-1) for id in ids)
    )
    await started.idle()
    assert {await started.transactions.status("scope", "stream", id) for id in ids} == {TransactionStatus.COMMITTED}
    used = segments.calls - count - before
    assert used <= 40 + count * 2, used


async def test_a_commit_costs_the_same_whatever_the_transactions_size(
    cluster: InProcessCluster, segments: ScriptedSegments, started: ControllerService
) -> None:
    """Ten bytes or ten million, merged with the same requests."""
    costs = []
    for size in (10, 10_000_000):
        before = segments.calls
        await play(cluster, started, bytes(size))
        await started.idle()
        costs.append(segments.calls - before)
    assert costs[0] == costs[1]


async def test_decisions_made_during_a_merge_use_the_same_claim(cluster: InProcessCluster) -> None:
    """Batch after batch, up to a bound: work is announced and withdrawn once for all of them, and nothing is read."""
    segments = BlockedSegments(cluster.store, lambda name: "#transaction" not in name, call_name="merge_segments")
    service = cluster.build(segments=segments)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    await play(cluster, service, b"0")
    await service.idle()
    views = {"begun": 0, "read": 0}
    announce, read = service._context.claims.announce, StreamTables.commit_view

    async def counted(*arguments: PendingWork, **options: Any) -> WorkClaim:
        views["begun"] += 1
        return await announce(*arguments, **options)

    async def counted_read(tables: Any) -> CommitView:
        views["read"] += 1
        return await read(tables)

    service._context.claims.announce = counted  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamTables, "commit_view", counted_read)
        segments.is_blocked = True
        made = [await play(cluster, service, b"1")]
        for _ in range(10_000):
            if views["begun"]:
                break
            await asyncio.sleep(0)
        made += [await play(cluster, service, b"%d" % number) for number in (2, 3)]
        segments.release()
        await service.idle()
    assert views == {"begun": 1, "read": 0}
    assert cluster.store.segments[segment_name("scope", "stream", 0)].data == b"0123"
    assert {await service.transactions.status("scope", "stream", one) for one in made} == {TransactionStatus.COMMITTED}
