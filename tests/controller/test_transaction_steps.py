"""The steps of transactions by themselves: done again, in the wrong order, beside a batch that was left, listed.

Shows S-132, S-133, S-135, S-140, S-146, S-148, S-150, S-164, S-167 and S-170, each where it is named.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.controller.metadata import layout, record_store
from penstock.controller.metadata.record_store import RecordStore, Versioned
from penstock.controller.metadata.records import (
    ActiveTransaction,
    CommittingTransactions,
    StreamState,
    TransactionIndexEntry,
    TransactionStatus,
)
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.transaction_index import TransactionIndex
from penstock.controller.service import ControllerService
from penstock.controller.transactions.lease_timers import OpenTransaction
from penstock.controller.transactions.service import PingResult
from penstock.controller.workflows.abort import abort as abort_decided
from penstock.controller.workflows.abort import decide_abort
from penstock.controller.workflows.commit import merge_batch
from penstock.model.errors import MetadataConflictError, TransactionError
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock_simulation.memory_store import MemoryMetadataStore
from support.clocks import pass_time
from support.in_process_cluster import InProcessCluster
from support.two_controllers import announced, start_pair, tables_of, until

OPEN, COMMITTING, COMMITTED = TransactionStatus.OPEN, TransactionStatus.COMMITTING, TransactionStatus.COMMITTED
ABORTING, ABORTED = TransactionStatus.ABORTING, TransactionStatus.ABORTED


@pytest.fixture
async def started(service: ControllerService) -> ControllerService:
    """A controller with a stream of two segments."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    return service


@pytest.fixture
def only_decides(started: ControllerService, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let nothing follow from a decision."""
    monkeypatch.setattr(started.transactions.work, "post_commit", lambda opened: None)
    monkeypatch.setattr(started.transactions.work, "post_abort", lambda opened: None)
    return monkeypatch


def piece(transaction: TransactionId, segment: int) -> str:
    return transaction_segment_name(segment_name("scope", "stream", segment), transaction.high, transaction.low)


async def begin(cluster: InProcessCluster, service: ControllerService, data: bytes = b"data") -> TransactionId:
    """Begin a transaction with `data` in both segments."""
    transaction = (await service.transactions.create("scope", "stream", 10_000)).id
    for segment in (0, 1):
        await cluster.store.append(piece(transaction, segment), data)
    return transaction


async def commit(service: ControllerService, transaction: TransactionId) -> TransactionStatus:
    return await service.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=0)


async def abort(service: ControllerService, transaction: TransactionId) -> TransactionStatus:
    return await service.transactions.abort("scope", "stream", transaction)


async def ping(service: ControllerService, transaction: TransactionId, lease_ms: int = 10_000) -> PingResult:
    return await service.transactions.ping("scope", "stream", transaction, lease_ms)


async def status(service: ControllerService, transaction: TransactionId) -> TransactionStatus:
    return await service.transactions.status("scope", "stream", transaction)


def data_of(cluster: InProcessCluster) -> list[bytes]:
    """Return what is in the segments of the stream."""
    return [bytes(cluster.store.segments[segment_name("scope", "stream", segment)].data) for segment in (0, 1)]


async def transaction_of(tables: StreamTables, transaction: TransactionId) -> Versioned[ActiveTransaction]:
    """Return the record of a transaction, which exists."""
    found = await tables.transaction(transaction)
    assert found is not None
    return found


def is_gone(cluster: InProcessCluster, transaction: TransactionId) -> bool:
    return not any(piece(transaction, segment) in cluster.store.segments for segment in (0, 1))


async def test_each_repeated_step_changes_nothing(
    cluster: InProcessCluster, started: ControllerService, only_decides: pytest.MonkeyPatch
) -> None:
    """S-132: creation, ping, both decisions, merge and abort. S-150, S-170: what follows from a decision, once."""
    tables, work = await tables_of(started), started.transactions.work
    kept, dropped = await begin(cluster, started, b"kept"), await begin(cluster, started, b"dropped")
    created = await transaction_of(tables, kept)
    with pytest.raises(MetadataConflictError):
        await tables.create_transaction(kept, created.record)
    assert await tables.transaction(kept) == created

    cluster.clock_ms += 1000
    pass_time(started, 1)
    version = created.version
    for _ in range(2):
        assert await ping(started, kept, 20_000) is PingResult.OK
        pinged = await transaction_of(tables, kept)
        assert pinged.version > version
        expected = replace(
            created.record,
            lease_ms=20_000,
            lease_expiry_ms=cluster.clock_ms + 20_000,
            execution_expiry_ms=pinged.record.execution_expiry_ms,
        )
        assert pinged.record == expected
        # The rest of its lifetime is measured by the controller's own clock, which also runs during this test.
        assert abs(pinged.record.execution_expiry_ms - created.record.execution_expiry_ms) < 1000
        version = pinged.version

    for decide, transaction, decided in ((commit, kept, COMMITTING), (abort, dropped, ABORTING)):
        assert await decide(started, transaction) is decided
        found = await transaction_of(tables, transaction)
        assert found.record.status is decided
        assert await decide(started, transaction) is decided
        assert await tables.transaction(transaction) == found

    only_decides.undo()
    completed = []
    for _ in range(2):
        work.post_commit(OpenTransaction("scope", "stream", kept))
        work.post_abort(OpenTransaction("scope", "stream", dropped))
        await started.idle()
        assert (await status(started, kept), await status(started, dropped)) == (COMMITTED, ABORTED)
        assert data_of(cluster) == [b"kept", b"kept"]
        assert is_gone(cluster, kept)
        assert is_gone(cluster, dropped)
        completed.append(await started.transactions.completed("scope", "stream"))
        cluster.clock_ms += 1000
    assert completed[0] == completed[1]
    assert sorted(completed[0]) == sorted([(kept, COMMITTED), (dropped, ABORTED)])
    assert (await commit(started, kept), await abort(started, dropped)) == (COMMITTED, ABORTED)
    assert (await tables.state()).record.state is StreamState.ACTIVE
    assert not cluster.store.tables[layout.TRANSACTION_INDEX].entries


async def test_steps_in_the_wrong_order_are_refused_and_change_nothing(
    cluster: InProcessCluster, started: ControllerService, only_decides: pytest.MonkeyPatch
) -> None:
    """S-133: merging an open or aborted one, deleting an open or committed one, pinging a decided one."""
    tables, context = await tables_of(started), started._context
    opened, committing, aborting = [await begin(cluster, started, text) for text in (b"open", b"kept", b"dropped")]
    # Each has a place in the order, as if its commit had been about to be decided.
    await tables.take_commit_positions([opened.text, aborting.text], 1)
    await commit(started, committing)
    await abort(started, aborting)
    before = [await tables.transaction(one) for one in (opened, committing, aborting)]
    for wrong in (opened, committing):
        with pytest.raises(TransactionError):
            await abort_decided(context, tables, wrong)
    assert await abort(started, committing) is COMMITTING
    assert await commit(started, aborting) is ABORTING
    assert await ping(started, committing) is PingResult.COMMITTED
    assert await ping(started, aborting) is PingResult.ABORTED
    assert [await tables.transaction(one) for one in (opened, committing, aborting)] == before
    assert not any(is_gone(cluster, one) for one in (opened, committing, aborting))
    assert await merge_batch(context, tables) == (committing,)
    assert await merge_batch(context, tables) == ()
    assert data_of(cluster) == [b"kept", b"kept"]
    assert await tables.transaction(opened) == before[0]
    assert await tables.transaction(aborting) == before[2]


async def test_a_decision_at_another_version_is_a_conflict(
    cluster: InProcessCluster, started: ControllerService, only_decides: pytest.MonkeyPatch
) -> None:
    """S-135: the one that its lease's timer has seen is gone with a ping; without a version any will do."""
    tables, context = await tables_of(started), started._context
    first, second = await begin(cluster, started), await begin(cluster, started)
    seen = (await transaction_of(tables, first)).version
    await ping(started, first)
    pinged = await transaction_of(tables, first)
    with pytest.raises(MetadataConflictError):
        await decide_abort(context, tables, first, at_version=seen)
    assert await tables.transaction(first) == pinged
    assert await decide_abort(context, tables, first) is ABORTING
    seen = (await transaction_of(tables, second)).version
    assert await decide_abort(context, tables, second, at_version=seen) is ABORTING


@pytest.mark.parametrize("is_posted", [False, True], ids=["alone", "by a decision that comes later"])
async def test_a_batch_that_was_left_comes_before_what_waits(
    cluster: InProcessCluster, started: ControllerService, only_decides: pytest.MonkeyPatch, is_posted: bool
) -> None:
    """S-140: a recorded batch is processed as it is; without one a batch is picked.

    S-167: this also holds when a commit comes later; its own transaction follows, in the order of decisions.
    """
    tables, context = await tables_of(started), started._context
    made = [await begin(cluster, started, b"%d" % number) for number in range(4)]
    for transaction in made:
        await commit(started, transaction)
    left = CommittingTransactions(0, (made[2].text, made[1].text))
    await tables.put_commit(left, await tables.commit_view())
    if is_posted:
        only_decides.undo()
        started.transactions.work.post_commit(OpenTransaction("scope", "stream", made[3]))
        await started.idle()
    else:
        assert await merge_batch(context, tables) == (made[2], made[1])
        assert data_of(cluster) == [b"21", b"21"]
        assert await merge_batch(context, tables) == (made[0], made[3])
    assert data_of(cluster) == [b"2103", b"2103"]
    assert {await status(started, one) for one in made} == {COMMITTED}
    assert (await tables.commit_view()).committing.record.is_empty
    assert (await tables.state()).record.state is StreamState.ACTIVE


@pytest.mark.parametrize("is_taken_for_dead", [False, True], ids=["continues", "is taken for dead"])
async def test_commits_concurrent_with_a_paused_one_are_merged_once_in_order(
    cluster: InProcessCluster, is_taken_for_dead: bool
) -> None:
    """S-164: at two controllers; the one that stalls during a merge resumes, or is overtaken and then resumes."""
    first, second, held = await start_pair(cluster)
    made = [await begin(cluster, first, b"<%d>" % number) for number in range(4)]
    held.is_blocked, held.call_name = True, "merge_segments"
    await commit(first, made[0])
    await until(lambda: announced(cluster), "the merge is announced")
    await commit(second, made[1])
    await commit(first, made[2])
    await commit(second, made[3])
    if is_taken_for_dead:
        cluster.expire(first)
        await until(lambda: second.statistics().taken_over_count, "the other one has taken it over")
        await second.idle()
    held.release()
    for _ in range(2):
        await first.idle()
        await second.idle()
    assert {await status(second, one) for one in made} == {COMMITTED}
    assert data_of(cluster) == [bytes(100) + b"<0><1><2><3>"] * 2
    assert announced(cluster) == []


async def test_a_listing_of_open_transactions_continues_when_one_of_them_ends(
    cluster: InProcessCluster, started: ControllerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-146: one that was not listed yet is removed between two pages; the rest is listed."""
    monkeypatch.setattr(record_store, "_PAGE_ROWS", 2)
    tables = await tables_of(started)
    made = [await begin(cluster, started) for _ in range(5)]
    found: list[TransactionId] = []
    async for transaction, _ in tables.transactions():
        if not found:
            await tables.remove_transactions(0, [made[3]])
        found.append(transaction)
    assert sorted(found) == sorted([*made[:3], made[4]])


async def test_the_index_names_the_owner_of_each_transaction() -> None:
    """S-148: added, listed, taken over, removed, removed again; of a controller without any there are none.

    There is nothing for a controller itself that would have to be added or removed.
    """
    records = RecordStore(MemoryMetadataStore())
    await records.store.create_table(layout.TRANSACTION_INDEX)
    index = TransactionIndex(records)
    ids = [TransactionId.of(0, number) for number in (1, 2, 3)]
    for transaction, host in zip(ids, "aab", strict=True):
        await index.add_transaction("s", "t", transaction, TransactionIndexEntry(host, 7))

    async def of(host: str) -> list[tuple[str, str, TransactionId]]:
        pages = [page async for page in index.pages()]
        return [(scope, stream, id) for page in pages for scope, stream, id, entry in page if entry.host == host]

    assert await of("a") == [("s", "t", ids[0]), ("s", "t", ids[1])]
    assert await of("b") == [("s", "t", ids[2])]
    assert await of("c") == []
    await index.add_transaction("s", "t", ids[0], TransactionIndexEntry("b", 7))
    assert await of("a") == [("s", "t", ids[1])]
    for _ in range(2):
        await index.remove_transactions("s", "t", [ids[1]])
        assert await of("a") == []
    assert await of("b") == [("s", "t", ids[0]), ("s", "t", ids[2])]
    await index.remove_transactions("s", "t", ids)
    assert [page async for page in index.pages()] == []
