"""Callers that disconnect during a call, streams that end under a transaction, starts with many open transactions."""

from __future__ import annotations

import asyncio

import pytest

from penstock.controller.metadata import layout
from penstock.controller.metadata.records import ActiveTransaction, TransactionIndexEntry, TransactionStatus
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.transaction_index import TransactionIndex
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import ContainerOfflineError, PenstockError, StreamSealedError
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import VERSION_ABSENT
from support.controller_faults import BlockedSegments, ScriptedSegments
from support.in_process_cluster import InProcessCluster
from support.mark_segments import without_marks
from support.two_controllers import tables_of

COMMITTED, ABORTED = TransactionStatus.COMMITTED, TransactionStatus.ABORTED
IMPATIENT = ControllerSettings(attempts_max=2, retry_delay_ms_first=1, retry_delay_ms_max=2)


@pytest.fixture
async def started(service: ControllerService) -> ControllerService:
    """A controller with a stream of three segments."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(3)))
    return service


async def begin(service: ControllerService) -> TransactionId:
    return (await service.transactions.create("scope", "stream", 10_000)).id


async def commit(service: ControllerService, transaction: TransactionId) -> TransactionStatus:
    return await service.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=0)


def is_of_transaction(segment: str) -> bool:
    return "#transaction" in segment


def _is_third(segment: str) -> bool:
    return is_of_transaction(segment) and "/2.#epoch" in segment


# Clients that go away.


@pytest.mark.parametrize("turns", range(12))
async def test_commit_whose_client_went_away_is_merged_at_once(
    cluster: InProcessCluster, started: ControllerService, turns: int
) -> None:
    """The call is cancelled after each possible number of turns, as gRPC does: a stored decision is carried out.

    This does not wait for the end of the lease.
    """
    transaction = await begin(started)
    name = transaction_segment_name(segment_name("scope", "stream", 0), transaction.high, transaction.low)
    await cluster.store.append(name, b"data")
    call = asyncio.create_task(commit(started, transaction))
    for _ in range(turns):
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await started.idle()
    found = await started.transactions.status("scope", "stream", transaction)
    assert found is COMMITTED or (found is TransactionStatus.OPEN and turns == 0)
    assert cluster.store.segments[segment_name("scope", "stream", 0)].data == (b"data" if found is COMMITTED else b"")  # type: ignore[comparison-overlap]


async def test_commit_whose_reply_was_lost_is_merged_at_once(cluster: InProcessCluster) -> None:
    """The store's reply to the decision is lost: it is read back, carried out, and reported to the client."""
    segments = ScriptedSegments(cluster.store)
    service = cluster.build(IMPATIENT, segments=segments)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig())
    for decide in (commit, lambda service, id: service.transactions.abort("scope", "stream", id)):
        transaction = await begin(service)
        segments.after_rule = lambda name, arguments: name == "table_put" and "transactionsInEpoch" in arguments[0]  # type: ignore[operator]
        deciding = asyncio.create_task(decide(service, transaction))
        await asyncio.sleep(0.01)
        segments.after_rule = lambda name, arguments: False
        assert await deciding in (TransactionStatus.COMMITTING, TransactionStatus.ABORTING)
        await service.idle()
        assert await service.transactions.status("scope", "stream", transaction) in (COMMITTED, ABORTED)


async def test_creation_whose_client_went_away_leaves_nothing_when_its_lease_ends(cluster: InProcessCluster) -> None:
    """The call is cancelled while segments are made: the transaction is whole, runs out, and leaves nothing."""
    blocked = BlockedSegments(cluster.store, is_of_transaction)
    service = cluster.build(ControllerSettings(lease_ms_min=1, lease_slack_ms=0), segments=blocked)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(3)))
    blocked.is_blocked = True
    call = asyncio.create_task(service.transactions.create("scope", "stream", 1))
    await asyncio.sleep(0.005)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    blocked.release()
    for _ in range(200):
        await service.idle()
        if len(without_marks(cluster.store)) == 3 and not cluster.store.tables[layout.TRANSACTION_INDEX].entries:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(sorted(cluster.store.segments))


# Streams that end under a transaction.


@pytest.mark.parametrize("is_deleted", [False, True], ids=["sealed", "deleted"])
async def test_seal_while_a_transaction_is_being_made_leaves_no_segments(
    cluster: InProcessCluster, is_deleted: bool
) -> None:
    """A transaction's segments are made slowly; the stream is sealed, and deleted, meanwhile: none is left over."""
    blocked = BlockedSegments(cluster.store, _is_third, call_name="create_segment")
    service = cluster.build(IMPATIENT, segments=blocked)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(3)))
    blocked.is_blocked = True
    creation = asyncio.create_task(begin(service))
    await asyncio.sleep(0.005)

    async def end() -> None:
        await service.seal_stream("scope", "stream")
        if is_deleted:
            await service.delete_stream("scope", "stream")

    ending = asyncio.create_task(end())
    await asyncio.sleep(0.02)
    blocked.release()
    with pytest.raises(PenstockError):
        await creation
    await ending
    await service.idle()
    assert not [name for name in cluster.store.segments if is_of_transaction(name)]
    assert not cluster.store.tables[layout.TRANSACTION_INDEX].entries


async def test_deletion_by_another_controller_while_a_transaction_is_being_made_leaves_no_segments(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """The tables of the stream are gone when the creation continues: its segments are found without them."""
    blocked = BlockedSegments(cluster.store, _is_third, call_name="create_segment")
    first = cluster.build(IMPATIENT, segments=blocked)
    await first.start()
    blocked.is_blocked = True
    creation = asyncio.create_task(begin(first))
    await asyncio.sleep(0.005)
    second = await cluster.start(IMPATIENT)
    await second.seal_stream("scope", "stream")
    await second.delete_stream("scope", "stream")
    blocked.release()
    with pytest.raises(PenstockError):
        await creation
    await first.idle()
    assert not cluster.store.segments
    assert not cluster.store.tables[layout.TRANSACTION_INDEX].entries


async def test_creation_that_fails_half_way_leaves_no_segments(cluster: InProcessCluster) -> None:
    """One of three segments cannot be made: the others go at once, not when the lease ends."""
    segments = ScriptedSegments(cluster.store)
    service = cluster.build(IMPATIENT, segments=segments)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(3)))
    segments.rule = lambda name, arguments: (
        ContainerOfflineError(0)
        if name == "create_segment" and is_of_transaction(arguments[0]) and "/1.#epoch" in arguments[0]  # type: ignore[arg-type, operator]
        else None
    )
    with pytest.raises(ContainerOfflineError):
        await begin(service)
    await service.idle()
    assert len(without_marks(cluster.store)) == 3
    assert not cluster.store.tables[layout.TRANSACTION_INDEX].entries
    assert service.transactions.open_count == 0


async def test_segments_left_by_a_controller_that_died_are_deleted_before_their_stream(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """A transaction was aborted while its segments were made, by a controller that died then: the next one clears up.

    Even if the stream is deleted as soon as that one has started.
    """
    transaction = await begin(started)
    await started.stop()
    tables = await started._catalog.on_stream("scope", "stream", _itself)
    await tables.remove_transactions(0, [transaction])
    second = await cluster.start()
    await second.seal_stream("scope", "stream")
    await second.delete_stream("scope", "stream")
    await second.idle()
    assert not cluster.store.segments
    assert not cluster.store.tables[layout.TRANSACTION_INDEX].entries


async def _itself(tables: StreamTables) -> StreamTables:
    return tables


# Starts.


async def _begin_many(cluster: InProcessCluster, service: ControllerService, count: int) -> None:
    """Leave so many open transactions behind as if each had been begun, without a call for each."""
    made = [TransactionId.of(0, 1_000_000 + number) for number in range(count)]
    now_ms = cluster.clock_ms
    record = ActiveTransaction(now_ms, 10_000, now_ms + 10_000, now_ms + 10_000_000)
    entry = TransactionIndexEntry(service._context.host, now_ms)
    tables = await tables_of(service)
    for first in range(0, count, 500):
        some = made[first : first + 500]
        index = TransactionIndex.keys("scope", "stream", some)
        await service._records.put_all(layout.TRANSACTION_INDEX, [(key, entry, VERSION_ABSENT) for key in index])
        await service._records.put_all(
            layout.transactions_in_epoch(*tables.key, 0), [(each.text, record, VERSION_ABSENT) for each in some]
        )
    for each in made:
        for segment in range(3):
            await cluster.store.create_segment(
                transaction_segment_name(segment_name("scope", "stream", segment), each.high, each.low)
            )


async def test_start_does_not_wait_for_open_transactions(cluster: InProcessCluster, started: ControllerService) -> None:
    """With 10 000 open transactions a start makes as many requests as with none, before it serves; then all are kept.

    Then they are listed, page by page, with a few requests for each.
    """
    counts = []
    for count in (0, 10_000):
        if count:
            await begin(started)
            await _begin_many(cluster, started, count - 1)
            await started.stop()
        segments = ScriptedSegments(cluster.store)
        service = cluster.build(segments=segments)
        await service.start()
        counts.append(segments.calls)
        # Calls are served meanwhile, also for transactions that this controller does not track yet.
        if count:
            assert service.transactions.open_count < count
            last = await begin(service)
            assert await service.transactions.abort("scope", "stream", last) is TransactionStatus.ABORTING
        await service.idle()
        assert service.transactions.open_count == count
        if count:
            before, token, pages, listed = segments.calls, "", 0, set()
            while (page := await service.transactions.descriptions.open("scope", "stream", token)).transactions:
                assert len(page.transactions) <= service.settings.page_entries_max
                listed |= {each.id for each in page.transactions}
                token, pages = page.token, pages + 1
            assert len(listed) == count
            assert pages == count / service.settings.page_entries_max
            assert segments.calls - before <= 6 * (pages + 1)
        await service.stop()
    assert counts[1] == counts[0]


async def test_take_over_is_repeated_until_it_is_done(cluster: InProcessCluster, started: ControllerService) -> None:
    """The list of transactions cannot be read at the start: it is read when that works again."""
    transaction = await begin(started)
    await started.stop()
    segments = ScriptedSegments(cluster.store)
    is_out = True
    segments.rule = lambda name, arguments: (
        ContainerOfflineError(0)
        if is_out and name == "table_entries" and arguments[0] == layout.TRANSACTION_INDEX
        else None
    )
    service = cluster.build(IMPATIENT, segments=segments)
    await service.start()
    await asyncio.sleep(0.01)
    assert service.transactions.open_count == 0
    is_out = False
    await service.idle()
    assert service.transactions.open_count == 1
    assert await commit(service, transaction) is TransactionStatus.COMMITTING


async def test_a_start_asks_who_is_alive_once_per_page_of_the_transaction_index(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """Each answer may be a request to another service; once per entry, a start would make as many as transactions."""
    await cluster.coordinator.join("alive")
    index = started._context.index
    for number in range(1_200):
        entry = TransactionIndexEntry("alive", 7)
        await index.add_transaction("scope", "stream", TransactionId.of(0, 1_000 + number), entry)
    service = cluster.build(IMPATIENT)
    claims, reads = service._context.claims, []
    living = claims.live_members

    async def counted() -> frozenset[str]:
        reads.append(None)
        return await living()

    claims.live_members = counted  # type: ignore[method-assign]
    await service.start()
    await service.idle()
    pages = [len(page) async for page in index.pages()]
    assert sum(pages) == 1_200
    assert len(pages) <= len(reads) <= len(pages) + 5
    assert service.transactions.open_count == 0


async def test_sealed_stream_takes_no_transaction_and_keeps_none(
    cluster: InProcessCluster, started: ControllerService
) -> None:
    """A creation that begins after the seal fails with `StreamSealedError` and makes nothing."""
    await started.seal_stream("scope", "stream")
    with pytest.raises(StreamSealedError):
        await begin(started)
    assert len(without_marks(cluster.store)) == 3
