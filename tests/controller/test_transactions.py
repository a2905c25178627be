"""Transactions: life cycle, leases, ids, order, and the races around them."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest

from penstock.controller.metadata import layout
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import ActiveTransaction, TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.metadata.transaction_numbers import TransactionNumbers
from penstock.controller.settings import ControllerSettings
from penstock.controller.transactions.descriptions import TransactionDescription
from penstock.controller.transactions.lease_timers import LeaseTimers, OpenTransaction
from penstock.controller.transactions.service import PingResult
from penstock.model.errors import (
    ContainerNotFoundError,
    ControllerUnavailableError,
    CorruptionError,
    MetadataConflictError,
    NoSuchStreamError,
    OutcomeUnknownError,
    StorageError,
    StreamSealedError,
)
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.rpc import controller_pb2 as pb
from penstock_simulation.memory_store import MemoryMetadataStore
from support.clocks import pass_time
from support.controller_faults import ScriptedSegments
from support.mark_segments import without_marks

INFO = pb.StreamInfo(scope="scope", stream="stream")
OPEN, COMMITTED, ABORTED = TransactionStatus.OPEN, TransactionStatus.COMMITTED, TransactionStatus.ABORTED


@pytest.fixture
async def started(service):
    """A controller with a stream of two segments."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    return service


async def begin(service, lease_ms=10_000):
    return (await service.transactions.create("scope", "stream", lease_ms)).id


async def write(cluster, transaction, text, segment=0):
    name = transaction_segment_name(segment_name("scope", "stream", segment), transaction.high, transaction.low)
    await cluster.store.append(name, text)


async def commit(service, transaction):
    return await service.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=0)


async def abort(service, transaction):
    return await service.transactions.abort("scope", "stream", transaction)


async def status(service, transaction):
    return await service.transactions.status("scope", "stream", transaction)


@pytest.fixture
async def stub(wire):
    await wire.stub.createScope(pb.ScopeInfo(scope="scope"))
    await wire.stub.createStream(pb.StreamConfig(streamInfo=INFO, scalingPolicy=pb.ScalingPolicy(minNumSegments=2)))
    return wire.stub


@pytest.mark.parametrize(
    ("lease", "text"),
    [
        (-1, "lease value too small, min value is 10000"),
        (9_999, "lease value too small, min value is 10000"),
        (600_001, "lease value too large, max value is 600000"),
        (2**63 - 1, "lease value too large, max value is 600000"),
    ],
)
async def test_lease_out_of_bounds_is_refused(stub, lease, text):
    """API-26, S-154: UNKNOWN with the text that clients know; both bounds themselves are fine."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.createTransaction(pb.CreateTxnRequest(streamInfo=INFO, lease=lease))
    assert (failure.value.code().name, failure.value.details()) == ("UNKNOWN", text)
    for valid in (10_000, 600_000):
        made = await stub.createTransaction(pb.CreateTxnRequest(streamInfo=INFO, lease=valid))
        assert [at.segmentId.segmentId for at in made.activeSegments] == [0, 1]
        assert made.HasField("txnId")


async def test_calls_in_all_orders_over_the_wire(stub, wire):
    """API-27, S-151, S-155: every call in every state of a transaction, and for one that does not exist."""
    txn, ping, state = pb.TxnStatus, pb.PingTxnStatus, pb.TxnState

    async def ask(id):
        request = pb.TxnRequest(streamInfo=INFO, txnId=id)
        return (await stub.checkTransactionState(request)).state

    async def extend(id, lease=10_000):
        return (await stub.pingTransaction(pb.PingTxnRequest(streamInfo=INFO, txnId=id, lease=lease))).status

    async def end(call, id):
        return (await call(pb.TxnRequest(streamInfo=INFO, txnId=id, writerId="1"))).status

    async def new():
        return (await stub.createTransaction(pb.CreateTxnRequest(streamInfo=INFO, lease=10_000))).txnId

    id = await new()
    assert await ask(id) == state.OPEN
    assert await extend(id) == ping.OK
    assert await extend(id, 600_001) == ping.LEASE_TOO_LARGE
    pass_time(wire.service, 9_999)
    assert await extend(id, 2_000) == ping.MAX_EXECUTION_TIME_EXCEEDED
    assert await extend(id, 0) == ping.OK
    for _ in range(2):
        assert await end(stub.commitTransaction, id) == txn.SUCCESS
        assert await end(stub.abortTransaction, id) == txn.FAILURE
        assert await extend(id) == ping.COMMITTED
        await wire.service.idle()
        assert await ask(id) == state.COMMITTED
    id = await new()
    for _ in range(2):
        assert await end(stub.abortTransaction, id) == txn.SUCCESS
        assert await end(stub.commitTransaction, id) == txn.FAILURE
        assert await extend(id) == ping.ABORTED
        await wire.service.idle()
        assert await ask(id) == state.ABORTED
    for unknown in (pb.TxnId(highBits=0, lowBits=999), pb.TxnId(highBits=-1, lowBits=-1), pb.TxnId(highBits=7 << 32)):
        assert await ask(unknown) == state.UNKNOWN
        assert await extend(unknown) == ping.UNKNOWN
        assert await end(stub.commitTransaction, unknown) == txn.TRANSACTION_NOT_FOUND
        assert await end(stub.abortTransaction, unknown) == txn.TRANSACTION_NOT_FOUND
    elsewhere = pb.TxnRequest(streamInfo=pb.StreamInfo(scope="scope", stream="none"), txnId=id)
    assert (await stub.commitTransaction(elsewhere)).status == txn.STREAM_NOT_FOUND
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.checkTransactionState(elsewhere)
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND


async def test_completed_transactions_are_listed_newest_first_and_capped(connect):
    """API-28, S-147: empty while open; both outcomes; at most as many as set."""
    wire = await connect(ControllerSettings(completed_transactions_listed_max=3))
    service = wire.service
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig())
    ids = [await begin(service) for _ in range(5)]
    request = pb.ListCompletedTxnRequest(streamInfo=INFO)
    assert not (await wire.stub.listCompletedTransactions(request)).response
    for number, id in enumerate(ids):
        await (abort if number == 4 else commit)(service, id)
        await service.idle()
        wire.cluster.clock_ms += 1
    found = (await wire.stub.listCompletedTransactions(request)).response
    assert [(at.txnId.lowBits, at.status) for at in found] == [
        (5, pb.TxnResponse.ABORTED),
        (4, pb.TxnResponse.COMMITTED),
        (3, pb.TxnResponse.COMMITTED),
    ]


async def test_completed_transactions_are_forgotten_after_one_to_two_ttls(cluster, started):
    """S-147: the outcome is known for a day, and gone after two.

    S-134: then every call treats it as a transaction that never existed.
    """
    day_ms = started.settings.completed_transaction_ttl_ms
    old = await begin(started)
    await commit(started, old)
    await started.idle()
    for expected in (COMMITTED, TransactionStatus.UNKNOWN):
        cluster.clock_ms += day_ms
        later = await begin(started)
        await abort(started, later)
        await started.idle()
        assert await status(started, old) is expected
        assert await commit(started, old) is expected
        assert await abort(started, old) is expected
    never = TransactionId.of(0, 10**9)
    assert {await call(started, never) for call in (status, commit, abort)} == {TransactionStatus.UNKNOWN}
    assert sum("completedTransactionsBatch-" in name for name in cluster.store.tables) == 2


async def test_commits_are_merged_in_the_order_of_their_decisions(cluster, started):
    """S-137, S-139, S-166: 250 transactions, in batches of 100, in the same order in both segments."""
    ids = [await begin(started) for _ in range(250)]
    random.Random(7).shuffle(ids)
    for number, id in enumerate(ids):
        for segment in (0, 1):
            await write(cluster, id, b"%03d." % number, segment)
        assert await commit(started, id) is TransactionStatus.COMMITTING
    await started.idle()
    expected = b"".join(b"%03d." % number for number in range(250))
    for segment in (0, 1):
        assert cluster.store.segments[segment_name("scope", "stream", segment)].data == expected
    assert {await status(started, id) for id in ids} == {COMMITTED}


async def test_commit_positions_without_a_commit_are_dropped(cluster, started):
    """S-137, S-138: positions of transactions that are aborted, unknown, or have another position."""
    aborted, committed = await begin(started), await begin(started)
    catalog = started._catalog
    tables = catalog.tables_of("scope", "stream", await catalog.stream_id("scope", "stream"))
    for id in (aborted, TransactionId.of(0, 12345), committed):
        await tables.take_commit_positions([id.text], 1)
    await abort(started, aborted)
    await commit(started, committed)
    await started.idle()
    assert await tables.commit_positions() == []
    assert await status(started, committed) is COMMITTED


async def test_commit_or_abort_exactly_one_wins(started):
    """Both are asked at the same time, many times: one decision, and both callers learn the same."""
    for _ in range(20):
        id = await begin(started)
        await asyncio.gather(commit(started, id), abort(started, id), return_exceptions=True)
        await started.idle()
        first = await status(started, id)
        assert first in (COMMITTED, ABORTED)
        assert await status(started, id) is first


async def until(service, transaction, wanted):
    for _ in range(60_000):
        if await status(service, transaction) is wanted:
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"still {await status(service, transaction)}")


async def test_transaction_without_pings_is_aborted_and_leaves_nothing(cluster):
    """S-156: with a lease of a millisecond and no slack the timer aborts, deletes and unlists it."""
    service = await cluster.start(ControllerSettings(lease_ms_min=1, lease_slack_ms=0))
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2)))
    id = await begin(service, 1)
    await until(service, id, ABORTED)
    await service.idle()
    assert len(without_marks(cluster.store)) == 2
    assert not cluster.store.tables[layout.TRANSACTION_INDEX].entries
    assert service.transactions.open_count == 0


async def test_outdated_timer_does_not_abort(cluster, started):
    """S-157, S-158: a timer with an older version finds a pinged record, and waits for a lease from then on."""
    id = await begin(started)
    opened = OpenTransaction("scope", "stream", id)
    assert await started.transactions.ping("scope", "stream", id, 20_000) is PingResult.OK
    started.transactions.work.timers.disarm(opened)
    started.transactions.work._expired(opened, 0)
    await started.idle()
    assert await status(started, id) is OPEN
    assert started.transactions.open_count == 1
    version = started.transactions.work.timers.known(opened).version
    started.transactions.work.timers.disarm(opened)
    started.transactions.work._expired(opened, version)
    await started.idle()
    assert await status(started, id) is ABORTED


async def test_timer_picks_up_a_commit_whose_reply_was_lost(cluster, started, monkeypatch):
    """The decision is stored, its reply lost, the record cannot be read: the lease timer gets it merged."""
    id = await begin(started)
    await write(cluster, id, b"data")
    put = cluster.store.table_put

    async def lossy(segment, updates, **options):
        result = await put(segment, updates, **options)
        if "transactionsInEpoch" in segment:
            monkeypatch.setattr(cluster.store, "table_get", unreadable)
            raise OutcomeUnknownError("lost")
        return result

    async def unreadable(segment, keys):
        raise StorageError("out")

    monkeypatch.setattr(cluster.store, "table_put", lossy)
    with pytest.raises(StorageError):
        await commit(started, id)
    monkeypatch.undo()
    started.transactions.work._expired(OpenTransaction("scope", "stream", id), 0)
    await started.idle()
    assert await status(started, id) is COMMITTED
    assert cluster.store.segments[segment_name("scope", "stream", 0)].data == b"data"


async def test_a_ping_after_stop_returns_disconnected_and_changes_nothing(started):
    """S-160: the transaction stays as it is."""
    id = await begin(started)
    await started.stop()
    assert await started.transactions.ping("scope", "stream", id, 10_000) is PingResult.DISCONNECTED
    assert await status(started, id) is OPEN


async def test_next_controller_takes_over(cluster, started):
    """S-161: open ones stay open with a new lease; decided ones are finished."""
    left_open, committing, aborting = [await begin(started) for _ in range(3)]
    await write(cluster, committing, b"kept")
    monkey = started.transactions.work
    monkey.post_commit = monkey.post_abort = lambda opened: None  # Dies right after the decision.
    await commit(started, committing)
    await abort(started, aborting)
    await started.stop()
    cluster.clock_ms += 50_000
    second = await cluster.start()
    await second.idle()
    assert await status(second, left_open) is OPEN
    assert second.transactions.open_count == 1
    assert await status(second, committing) is COMMITTED
    assert await status(second, aborting) is ABORTED
    assert cluster.store.segments[segment_name("scope", "stream", 0)].data == b"kept"
    assert len(cluster.store.tables[layout.TRANSACTION_INDEX].entries) == 1


async def test_sealing_aborts_open_transactions_and_finishes_decided_ones(cluster, started):
    """S-086, S-136, S-168: after the seal there is one outcome for each, and no new transaction."""
    opened, decided = await begin(started), await begin(started)
    await write(cluster, decided, b"x")
    await commit(started, decided)
    await started.seal_stream("scope", "stream")
    await started.idle()
    assert await status(started, opened) is ABORTED
    assert await status(started, decided) is COMMITTED
    assert cluster.store.segments[segment_name("scope", "stream", 0)].data == b"x"
    with pytest.raises(StreamSealedError):
        await begin(started)
    with pytest.raises(NoSuchStreamError):
        await started.transactions.create("scope", "none", 10_000)


async def test_creation_that_races_with_a_seal_leaves_nothing_open(cluster, started):
    """Transactions are begun while the stream is being sealed: each fails or is aborted, no segment is left over."""
    results = await asyncio.gather(
        *(begin(started) for _ in range(30)), started.seal_stream("scope", "stream"), return_exceptions=True
    )
    await started.idle()
    made = [found for found in results if isinstance(found, TransactionId)]
    assert all(isinstance(found, (TransactionId, StreamSealedError, type(None))) for found in results)
    assert {await status(started, id) for id in made} <= {ABORTED}
    assert sorted(without_marks(cluster.store)) == [segment_name("scope", "stream", number) for number in (0, 1)]


async def test_number_of_open_transactions_is_bounded(cluster):
    """One past the limit is refused, retriably; when one ends there is room again."""
    service = await cluster.start(ControllerSettings(transactions_open_max=2))
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig())
    first, _ = await begin(service), await begin(service)
    with pytest.raises(ControllerUnavailableError):
        await begin(service)
    await abort(service, first)
    await begin(service)


async def test_missing_target_stops_the_commit_and_keeps_the_decision(cluster, started, caplog):
    """S-169: a segment to merge into is gone; the transaction stays COMMITTING; log, record and statistic say so."""
    id = await begin(started)
    await cluster.store.delete_segment(segment_name("scope", "stream", 1))
    await commit(started, id)
    await started.idle()
    assert await status(started, id) is TransactionStatus.COMMITTING
    assert "is abandoned" in caplog.text
    (record,) = await started.given_up_work()
    assert record.work == "commit transactions of stream scope/stream"
    assert started.statistics().given_up_count == 1


async def test_ids_are_unique_and_their_low_half_is_never_negative():
    """K-1, H1, S-131: over 10^6 ids of two controllers, also where the low half of the counter overflows."""
    store = MemoryMetadataStore()
    await store.create_table(layout.TRANSACTION_COUNTER)
    settings = ControllerSettings()
    controllers = [TransactionNumbers(RecordStore(store), settings) for _ in range(2)]
    numbers = [await controllers[index % 2].next() for index in range(1_000_000)]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) == 1
    edge = [*range(1, 100), *range(2**63 - 5, 2**63 + 5), 2**95 - 1]
    ids = [TransactionId.of(3, number) for number in edge]
    assert all(id.low >= 0 and id.epoch == 3 for id in ids)
    assert len(set(ids)) == len(ids)


async def test_concurrent_takers_share_a_refresh():
    """S-131: 10 000 concurrent calls over ranges of 100 get different numbers with one write per range."""
    store = MemoryMetadataStore()
    await store.create_table(layout.TRANSACTION_COUNTER)
    numbers = TransactionNumbers(RecordStore(store), ControllerSettings(transaction_id_range=100))
    taken = await asyncio.gather(*(numbers.next() for _ in range(10_000)))
    assert sorted(taken) == list(range(1, 10_001))


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "container elsewhere", "taken by another controller"])
async def test_a_transaction_begins_although_its_number_is_refused_twice(cluster, fault):
    """S-153: the third attempt to reserve numbers succeeds; numbers whose reservation is uncertain are skipped."""
    store, failures = ScriptedSegments(cluster.store), []
    service = cluster.build(ControllerSettings(retry_delay_ms_first=1, retry_delay_ms_max=2), segments=store)
    await service.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig())

    def strikes(name, arguments):
        is_struck = (name, arguments[0]) == ("table_put", layout.TRANSACTION_COUNTER) and len(failures) < 2
        if is_struck:
            failures.append(name)
        return is_struck

    errors = {
        "request lost": OutcomeUnknownError("lost"),
        "container elsewhere": ContainerNotFoundError(0),
        "taken by another controller": MetadataConflictError("taken"),
    }
    if fault == "reply lost":
        store.after_rule = strikes
    else:
        store.rule = lambda name, arguments: errors[fault] if strikes(name, arguments) else None
    first, second = await begin(service), await begin(service)
    assert len(failures) == 2
    assert first.low < second.low
    assert [await status(service, id) for id in (first, second)] == [OPEN, OPEN]


def test_ids_as_text():
    """S-130: the text is that of a UUID, as Pravega stores it; negative halves survive too."""
    assert TransactionId.of(0, 3).text == "00000000-0000-0000-0000-000000000003"
    assert TransactionId.of(1, 3).high == 4294967296
    for id in (TransactionId(-1, -5), TransactionId.of(2**31 - 1, 2**95 - 1)):
        assert TransactionId.from_text(id.text) == id


async def test_timer_is_replaced_and_forgotten():
    """S-159: arming again replaces, disarming an unknown one is harmless, clearing forgets all."""
    fired = []
    timers = LeaseTimers(lambda opened, version: fired.append((opened, version)), 2)
    first, second = (OpenTransaction("s", "t", TransactionId.of(0, number)) for number in (1, 2))
    timers.arm(first, 1, 3_600_000)
    timers.arm(first, 2, 0)
    timers.arm(second, 3, 3_600_000)
    assert timers.is_full
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fired == [(first, 2)]
    timers.disarm(first)
    timers.clear()
    assert len(timers) == 0


async def test_corrupt_record_is_reported_with_table_and_key(cluster, started, wire):
    """A flipped bit in a stored record: CorruptionError inside, DATA_LOSS outside, nothing repaired or skipped."""
    (name,) = [name for name in cluster.store.tables if "stream/metadata" in name]
    table = cluster.store.tables[name]
    entry = table.entries[b"configuration"]
    table.entries[b"configuration"] = type(entry)(entry.key, entry.value[:-1] + b"\xff", entry.version)
    with pytest.raises(CorruptionError, match=r"stream/metadata.*configuration"):
        await started.stream_configuration("scope", "stream")
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await wire.stub.getStreamConfiguration(INFO)
    assert failure.value.code() is grpc.StatusCode.DATA_LOSS


def test_lease_times_of_a_record_are_milliseconds():
    """The smaller of a day and a thousand leases bounds a transaction's life."""
    record = ActiveTransaction(0, 10_000, 10_000, 10_000_000)
    assert record.status is OPEN


async def test_segments_of_a_transaction_roll_over_as_those_of_its_stream(service, cluster):
    """Merged data keeps its chunks: a stream with a small chunk size gets small chunks from transactions, too."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(2), rollover_bytes=4321))
    create, asked = cluster.store.create_segment, []

    async def recorded(segment, **options):
        asked.append((segment, options["rollover_bytes"], options["scale_type"]))
        await create(segment, **options)

    cluster.store.create_segment = recorded
    transaction = await begin(service)
    assert sorted(asked) == [
        (transaction_segment_name(segment_name("scope", "stream", segment), transaction.high, transaction.low), 4321, 0)
        for segment in (0, 1)
    ]


async def test_rows_left_by_a_dead_controller_after_a_commit_are_removed_by_the_next(cluster, started):
    """It ends between a commit and the move to the completed transactions: the outcome stays, nothing is left over."""
    transaction = await begin(started)
    await write(cluster, transaction, b"x")
    started._context.committed.add = lambda tables, transactions: None
    await commit(started, transaction)
    await started.idle()
    assert await status(started, transaction) is COMMITTED
    assert len(cluster.store.tables[layout.TRANSACTION_INDEX].entries) == 1
    described = await started.transactions.descriptions.one("scope", "stream", transaction)
    assert described == TransactionDescription(transaction, COMMITTED)
    assert not (await started.transactions.descriptions.open("scope", "stream")).transactions
    await started.stop()
    second = await cluster.start()
    assert await status(second, transaction) is COMMITTED
    await second.idle()
    assert second.transactions.open_count == 0
    assert await second.transactions.completed("scope", "stream") == [(transaction, COMMITTED)]
    assert not cluster.store.tables[layout.TRANSACTION_INDEX].entries
    (table,) = (found for name, found in cluster.store.tables.items() if "InEpoch-0" in name)
    assert not table.entries
    assert cluster.store.segments[segment_name("scope", "stream", 0)].data == b"x"


async def test_a_transaction_that_is_committed_is_listed_as_completed_at_once(cluster, service):
    """Its row is moved after a while, and when its status is requested."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    made = [await begin(service) for _ in range(3)]
    for transaction in made:
        await commit(service, transaction)
    for _ in range(10_000):
        if {await status(service, transaction) for transaction in made} == {COMMITTED}:
            break
        await asyncio.sleep(0)
    listed = await service.transactions.completed("scope", "stream")
    assert sorted(listed) == sorted((transaction, COMMITTED) for transaction in made)


async def test_a_timer_does_not_abort_a_transaction_committed_elsewhere(cluster, started):
    """A controller that was pinged once fires after another one has committed, and not cleared away yet."""
    second = await cluster.start()
    transaction = await begin(started)
    assert await second.transactions.ping("scope", "stream", transaction, 10_000) is PingResult.OK
    started._context.committed.add = lambda tables, transactions: None
    await commit(started, transaction)
    await started.idle()
    cluster.clock_ms += 100_000
    second.transactions.work._expired(OpenTransaction("scope", "stream", transaction), 0)
    await second.idle()
    assert await status(second, transaction) is COMMITTED
    assert not cluster.store.tables[layout.TRANSACTION_INDEX].entries


async def test_a_transaction_that_another_controller_has_committed_is_listed_as_completed(cluster, started):
    """Its row is still in the table of open ones; this controller did not commit it, and does not move it."""
    second = await cluster.start()
    moved, waiting = await begin(started), await begin(started)
    await commit(started, moved)
    await started.idle()
    started._context.committed.add = lambda tables, transactions: None
    await commit(started, waiting)
    await started.idle()
    assert await status(second, waiting) is COMMITTED
    assert await second.transactions.completed("scope", "stream") == [(waiting, COMMITTED), (moved, COMMITTED)]


async def test_completed_transactions_of_a_deleted_stream_are_not_listed(cluster, started):
    """Neither without a stream, nor with another one of the same name, on any controller."""
    second = await cluster.start()
    for ended in (commit, abort):
        await ended(started, await begin(started))
    await started.idle()
    assert len(await second.transactions.completed("scope", "stream")) == 2
    await started.seal_stream("scope", "stream")
    await started.delete_stream("scope", "stream")
    cluster.clock_ms += 1
    for controller in (started, second):
        assert await controller.transactions.completed("scope", "stream") == []
    await started.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    transaction = await begin(started)
    await commit(started, transaction)
    await started.idle()
    for controller in (started, second):
        assert await controller.transactions.completed("scope", "stream") == [(transaction, COMMITTED)]


async def described(service, transaction):
    return await service.transactions.descriptions.one("scope", "stream", transaction)


async def test_transactions_of_a_stream_that_another_controller_has_created_again_are_found(cluster, started):
    """This controller still knows the stream that was deleted."""
    second = await cluster.start()
    transaction = await begin(started)
    assert await status(second, transaction) is OPEN
    await started.seal_stream("scope", "stream")
    await started.delete_stream("scope", "stream")
    with pytest.raises(NoSuchStreamError):
        await second.transactions.descriptions.open("scope", "stream")
    for read in (status, described):
        await started.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
        transaction = await begin(started)
        found = await read(second, transaction)
        assert (found.status if isinstance(found, TransactionDescription) else found) is OPEN
        await started.seal_stream("scope", "stream")
        await started.delete_stream("scope", "stream")
