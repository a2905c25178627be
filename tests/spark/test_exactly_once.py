"""The protocol of the sink, cut off at each of its steps: the events of a batch are read once. No Spark needed."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import cast

import pytest

import penstock.aio
from penstock.client.client import Client
from penstock.client.controller.transaction_endings import TransactionInfo
from penstock.client.tables.tables import Table
from penstock.model.errors import CorruptionError, LaterVersionError, MetadataConflictError, PenstockError
from penstock.spark.errors import BatchOvertakenError, LostBatchError, OtherQueryError
from penstock.spark.exactly_once import BatchIdentity, Decisions, SinkBatch, SinkLimits, SinkTask, by_stream
from penstock.spark.ledger import (
    KEY_LENGTH,
    BatchState,
    BegunTransaction,
    Ledger,
    LedgerRow,
    SinkIdentity,
    create_ledger,
    ledger_rows,
    ledger_table,
)
from penstock.spark.ledger_parts import ROW_LENGTH_MAX, first_part_key
from penstock.testing import MemoryServer, memory_server
from support.mortal_client import Death, MortalPart

LIMITS = SinkLimits(prepared_s=3600.0, visible_s=20.0)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[MemoryServer]:
    with memory_server() as running:
        yield running


class Driver:
    """What Spark does with a sink: tasks, then a commit, or an abort when the commit fails."""

    def __init__(self, client: Client, stream: str, app: str = "app", query: str = "") -> None:
        self.client, self.stream, self.app, self.query = client, stream, app, query

    def identity(self, batch: int) -> BatchIdentity:
        return BatchIdentity(SinkIdentity(self.app, self.stream), batch, self.query)

    async def write(self, batch: int, events: list[bytes], task_count: int, client: Client | None = None) -> None:
        """Run a batch in so many tasks; `client` is mortal."""
        used = client or self.client
        prepared = []
        for at in range(task_count):
            mine = events[at::task_count]
            task = SinkTask(used, self.identity(batch), LIMITS)
            await task.begin()
            try:
                if mine:
                    await task.write(self.stream, mine)
                prepared.append(await task.prepare())
            except PenstockError:
                await SinkTask.abort(task)
                raise
        ended = SinkBatch(used, self.identity(batch), by_stream(prepared), LIMITS)
        try:
            await ended.commit()
        except PenstockError:
            await SinkBatch(self.client, self.identity(batch), by_stream(prepared), LIMITS).abort()
            raise

    async def events(self) -> Counter[bytes]:
        name = f"reading-{next(_numbers)}"
        async with (
            self.client.reader_group(name, [self.stream], until="latest") as group,
            group.reader("r") as reader,
        ):
            return Counter([event.data async for event in reader])

    async def left(self) -> list[object]:
        """Return what has not been decided upon yet: announcements and transactions."""
        ledger = await Ledger.open(self.client, SinkIdentity(self.app, self.stream))
        found: list[object] = list(await ledger.announced(1000))
        await ledger.close()
        found += [each.id async for each in self.client.open_transactions(self.stream)]
        return found


async def part_keys(driver: Driver) -> list[bytes]:
    """Return the keys of all parts of rows that the ledger stores."""
    async with await driver.client.table(ledger_table(driver.stream)) as table:
        primary = SinkIdentity(driver.app, driver.stream).key
        return [key[KEY_LENGTH:] async for key in table.keys(primary=primary, start=primary + first_part_key())]


async def parts_named(driver: Driver) -> list[bytes]:
    """Return the keys of the parts that the row names."""
    return list((await row_of(driver)).encode_with_parts()[1])


async def row_of(driver: Driver) -> LedgerRow:
    ledger = await Ledger.open(driver.client, SinkIdentity(driver.app, driver.stream))
    row, _ = await ledger.read()
    await ledger.close()
    return row


def events_of(batch: int) -> list[bytes]:
    return [b"batch %d event %d" % (batch, number) for number in range(7)]


def run(server: MemoryServer, step: Callable[[Driver], Awaitable[None]]) -> None:
    async def running() -> None:
        async with penstock.aio.connect(server.uri) as client:
            stream = f"once/sink-{next(_numbers)}"
            await client.create_stream(stream, scaling=penstock.Scaling.fixed(2))
            await create_ledger(client, stream)
            await step(Driver(client, stream))

    asyncio.run(running())


def test_batches_are_there_once_however_often_they_are_run(server: MemoryServer) -> None:
    async def step(driver: Driver) -> None:
        for batch in range(3):
            await driver.write(batch, events_of(batch), 2)
        await driver.write(2, events_of(2), 3)
        assert await driver.events() == Counter(events_of(0) + events_of(1) + events_of(2))
        assert await driver.left() == []

    run(server, step)


@pytest.fixture(params=[False, True], ids=["whole rows", "rows in parts"])
def row_length(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows as they are, or each row in several parts."""
    if request.param:
        monkeypatch.setattr("penstock.spark.ledger.ROW_LENGTH_MAX", 100)
        monkeypatch.setattr("penstock.spark.ledger_parts.PART_LENGTH", 60)


@pytest.mark.usefixtures("row_length")
@pytest.mark.parametrize("how", ["before", "behind", "lost"])
def test_a_batch_interrupted_anywhere_is_stored_once_after_its_repetition(server: MemoryServer, how: str) -> None:
    """The driver dies before or after each request, or its reply is lost; then the batch is repeated by new tasks."""

    async def step(driver: Driver) -> None:
        expected = Counter[bytes]()
        for at in itertools.count():
            calls = itertools.count()
            mortal = cast(Client, MortalPart(driver.client, calls, at, how))
            try:
                await driver.write(at, events_of(at), 2, mortal)
            except (Death, PenstockError):
                await driver.write(at, events_of(at), 3)
            expected += Counter(events_of(at))
            if next(calls) <= at:
                break
        assert at > 15
        assert await driver.events() == expected
        assert await part_keys(driver) == await parts_named(driver)
        await driver.write(at + 1, [b"last"], 1)
        left = [each for each in await driver.left() if each]
        # Transactions begun and never announced have a lease without renewal; nothing is prepared.
        assert all(isinstance(each, str) for each in left)
        for each in left:
            assert (await driver.client.transaction_state(driver.stream, cast(str, each))) == "OPEN"

    run(server, step)


def test_a_late_driver_is_refused(server: MemoryServer) -> None:
    async def step(driver: Driver) -> None:
        await driver.write(0, events_of(0), 1)
        await driver.write(1, events_of(1), 1)
        with pytest.raises(BatchOvertakenError, match="batch 1 is already recorded"):
            await driver.write(0, events_of(0), 1)
        assert await driver.events() == Counter(events_of(0) + events_of(1))

    run(server, step)


def test_two_drivers_of_one_batch_write_it_once(server: MemoryServer) -> None:
    async def step(driver: Driver) -> None:
        for batch in range(5):
            await asyncio.gather(*(driver.write(batch, events_of(batch), 2) for _ in range(3)), return_exceptions=True)
            await driver.write(batch, events_of(batch), 1)
        assert await driver.events() == Counter(event for batch in range(5) for event in events_of(batch))
        assert await driver.left() == []

    run(server, step)


async def prepared(driver: Driver, batch: int, events: list[bytes]) -> dict[str, tuple[str, ...]]:
    task = SinkTask(driver.client, driver.identity(batch), LIMITS)
    await task.begin()
    await task.write(driver.stream, events)
    return by_stream([await task.prepare()])


async def intend(driver: Driver, batch: int, transactions: dict[str, tuple[str, ...]], query: str = "") -> None:
    """A driver that wrote its intent, and died."""
    sink = driver.identity(batch).sink
    ledger = await Ledger.open(driver.client, sink)
    _, version = await ledger.read()
    await ledger.replace(LedgerRow(sink, batch, BatchState.INTENT, transactions, query=query), version)
    await ledger.close()


def test_a_completely_aborted_intent_is_replaced_by_the_repeated_batch(server: MemoryServer) -> None:
    """Its limit has run out, as the driver was away for so long."""

    async def step(driver: Driver) -> None:
        one, two = await prepared(driver, 0, [b"one"]), await prepared(driver, 0, [b"two"])
        named = {driver.stream: one[driver.stream] + two[driver.stream]}
        await intend(driver, 0, named)
        await driver.client.abort_transaction(driver.stream, named[driver.stream][0])
        await driver.write(0, events_of(0), 2)
        assert await driver.events() == Counter(events_of(0))
        assert await driver.left() == []

    run(server, step)


def test_an_intent_of_which_a_part_is_committed_and_a_part_aborted_is_never_guessed_about(server: MemoryServer) -> None:
    async def step(driver: Driver) -> None:
        one, two = await prepared(driver, 0, [b"one"]), await prepared(driver, 0, [b"two"])
        named = {driver.stream: one[driver.stream] + two[driver.stream]}
        await intend(driver, 0, named)
        await driver.client.commit_transaction(driver.stream, named[driver.stream][0])
        await driver.client.abort_transaction(driver.stream, named[driver.stream][1])
        with pytest.raises(LostBatchError, match=r"batch 0 of 'app' writing to once/.* some of its transactions"):
            await driver.write(0, events_of(0), 2)
        assert await driver.events() == Counter([b"one"])

    run(server, step)


def test_an_earlier_batch_that_was_aborted_after_its_intent_stops_the_query(server: MemoryServer) -> None:
    async def step(driver: Driver) -> None:
        named = await prepared(driver, 0, [b"one"])
        await intend(driver, 0, named)
        await driver.client.abort_transaction(driver.stream, named[driver.stream][0])
        with pytest.raises(LostBatchError, match="all of its transactions were aborted"):
            await driver.write(1, events_of(1), 1)
        assert await driver.events() == Counter()

    run(server, step)


def test_an_earlier_batch_that_was_left_at_its_intent_is_finished_first(server: MemoryServer) -> None:
    async def step(driver: Driver) -> None:
        await intend(driver, 0, await prepared(driver, 0, [b"one"]))
        await driver.write(1, events_of(1), 1)
        assert await driver.events() == Counter([b"one", *events_of(1)])

    run(server, step)


def test_an_abort_spares_committing_transactions_and_fences_running_writes(server: MemoryServer) -> None:
    async def step(driver: Driver) -> None:
        own = await prepared(driver, 0, [b"one"])
        sink = driver.identity(0).sink
        ledger = await Ledger.open(driver.client, sink)
        _, version = await ledger.read()
        await SinkBatch(driver.client, driver.identity(0), own, LIMITS).abort()
        # The intent that names them comes late.
        with pytest.raises(MetadataConflictError):
            await ledger.replace(LedgerRow(sink, 0, BatchState.INTENT, own), version)
        assert await driver.client.transaction_state(driver.stream, own[driver.stream][0]) == "ABORTED"

        named = await prepared(driver, 0, [b"two"])
        await intend(driver, 0, named)
        await SinkBatch(driver.client, driver.identity(0), named, LIMITS).abort()
        await driver.write(0, events_of(0), 1)
        assert await driver.events() == Counter([b"two"])
        await ledger.close()

    run(server, step)


def test_a_batch_without_events_costs_the_ledger_nothing_and_ends_an_intent(server: MemoryServer) -> None:
    async def step(driver: Driver) -> None:
        await driver.write(0, [], 2)
        ledger = await Ledger.open(driver.client, driver.identity(0).sink)
        assert (await ledger.read())[1] == -1
        named = await prepared(driver, 1, [b"one"])
        await intend(driver, 1, named)
        await driver.client.abort_transaction(driver.stream, named[driver.stream][0])
        await driver.write(1, [], 1)
        assert (await ledger.read())[0].state is BatchState.DONE
        await driver.write(2, [b"two"], 1)
        assert await driver.events() == Counter([b"two"])
        await ledger.close()

    run(server, step)


def test_events_become_durable_while_their_transaction_is_announced_and_it_is_prepared_after_that(
    server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def step(driver: Driver) -> None:
        is_announced = asyncio.Event()
        announce = Ledger.announce

        async def announce_late(ledger: Ledger, announcement: BegunTransaction) -> None:
            await is_announced.wait()
            await announce(ledger, announcement)

        monkeypatch.setattr(Ledger, "announce", announce_late)
        writing = asyncio.create_task(prepared(driver, 0, [b"one"]))
        found: list[TransactionInfo] = []
        async with asyncio.timeout(60):
            while not (found and found[0].length_bytes):
                await asyncio.sleep(0.01)
                found = [each async for each in driver.client.open_transactions(driver.stream)]
        assert found[0].state == "OPEN"
        is_announced.set()
        own = await writing
        await SinkBatch(driver.client, driver.identity(0), own, LIMITS).commit()
        assert await driver.events() == Counter([b"one"])
        assert await driver.left() == []

    run(server, step)


def test_leftovers_are_removed_only_after_the_batch_is_committed(
    server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def step(driver: Driver) -> None:
        left, own = await prepared(driver, 0, [b"left"]), await prepared(driver, 0, [b"one"])
        (left_id,) = left[driver.stream]
        may_commit, may_be_noted = asyncio.Event(), asyncio.Event()
        commit, replace = Decisions.commit, Ledger.replace

        async def commit_late(decisions: Decisions, transactions: Mapping[str, Sequence[str]]) -> None:
            await may_commit.wait()
            await commit(decisions, transactions)

        async def replace_late(ledger: Ledger, row: LedgerRow, version: int) -> int:
            if row.state is BatchState.DONE:
                await may_be_noted.wait()
            return await replace(ledger, row, version)

        monkeypatch.setattr(Decisions, "commit", commit_late)
        monkeypatch.setattr(Ledger, "replace", replace_late)
        committing = asyncio.create_task(SinkBatch(driver.client, driver.identity(0), own, LIMITS).commit())
        ledger = await Ledger.open(driver.client, driver.identity(0).sink)
        async with asyncio.timeout(60):
            while (await ledger.read())[0].state is not BatchState.INTENT:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert len(await ledger.announced(0)) == 2
            assert await driver.client.transaction_state(driver.stream, left_id) == "OPEN"
            may_commit.set()
            while await ledger.announced(0):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert (await driver.client.transaction_state(driver.stream, left_id)).startswith("ABORT")
            assert (await ledger.read())[0].state is BatchState.INTENT
            may_be_noted.set()
            await committing
        assert (await ledger.read())[0].state is BatchState.DONE
        await ledger.close()
        assert await driver.events() == Counter([b"one"])

    run(server, step)


def test_sinks_of_one_application_count_their_batches_apart(server: MemoryServer) -> None:
    async def step(driver: Driver) -> None:
        other = Driver(driver.client, f"{driver.stream}-b")
        await driver.client.create_stream(other.stream)
        await driver.write(5, [b"five"], 1)
        await other.write(5, [b"five"], 1)
        assert await driver.events() == await other.events() == Counter([b"five"])

    run(server, step)


def test_an_invalid_row_is_reported() -> None:
    row = LedgerRow(SinkIdentity("a", "s/t"), 3, BatchState.INTENT, {"s/t": ("00" * 16,)}, 17)
    assert LedgerRow.decode(row.encode(), "here") == row
    for damaged in (b"", b"{}", row.encode()[:-1], row.encode().replace(b"intent", b"indent")):
        with pytest.raises(CorruptionError, match="here"):
            LedgerRow.decode(damaged, "here")
    with pytest.raises(LaterVersionError, match="version 3, this version reads 1 to 2"):
        LedgerRow.decode(row.encode().replace(b'"v":1', b'"v":3'), "here")
    assert ledger_table("s/t") == "s/spark-ledger"


@pytest.mark.parametrize("is_done", [True, False])
def test_a_query_that_lost_its_checkpoint_is_refused_at_the_number_that_it_wrote_before(
    server: MemoryServer, is_done: bool
) -> None:
    """A new query counts from 0 again: its batch 0 is not a repetition of the old query's batch 0."""

    async def step(driver: Driver) -> None:
        driver.query = "old"
        if is_done:
            await driver.write(0, events_of(0), 2)
        else:
            named = await prepared(driver, 0, events_of(0))
            await intend(driver, 0, named, query="old")
        again = Driver(driver.client, driver.stream, query="new")
        state = "was written" if is_done else "may be written in part"
        with pytest.raises(OtherQueryError, match=rf"query new.*{state}.* by query old.*another appId"):
            await again.write(0, [b"other rows"], 1)
        with pytest.raises(OtherQueryError):
            await again.write(0, [], 1)
        await driver.write(0, events_of(0), 1)
        assert await driver.events() == Counter(events_of(0))
        assert (await row_of(driver)).query == "old"

    run(server, step)


def test_a_query_that_another_query_overtook_at_its_commit_is_refused(server: MemoryServer) -> None:
    """Both began before the ledger had a row; the tasks of the second one have prepared their transactions."""

    async def step(driver: Driver) -> None:
        driver.query = "one"
        two = Driver(driver.client, driver.stream, query="two")
        late = await prepared(two, 0, [b"other rows"])
        await driver.write(0, events_of(0), 1)
        with pytest.raises(OtherQueryError):
            await SinkBatch(driver.client, two.identity(0), late, LIMITS).commit()
        await SinkBatch(driver.client, two.identity(0), late, LIMITS).abort()
        assert await driver.events() == Counter(events_of(0))

    run(server, step)


def test_a_row_without_a_query_belongs_to_the_next_query(server: MemoryServer) -> None:
    """Rows of earlier versions have none, and a batch write outside of a streaming query has none."""

    async def step(driver: Driver) -> None:
        await driver.write(0, events_of(0), 1)
        driver.query = "one"
        await driver.write(0, events_of(0), 1)
        assert (await row_of(driver)).query == ""
        await driver.write(1, events_of(1), 1)
        assert (await row_of(driver)).query == "one"
        driver.query = ""
        await driver.write(1, events_of(1), 1)
        assert await driver.events() == Counter(events_of(0) + events_of(1))

    run(server, step)


def test_a_row_that_an_earlier_version_stored_is_read() -> None:
    stored = (
        b'{"v":1,"app":"a","target":"s/t","batch":3,"state":"intent","transactions":{"s/t":["%s"]},"changed_ms":17}'
        % (b"00" * 16)
    )
    row = LedgerRow.decode(stored, "here")
    assert row == LedgerRow(SinkIdentity("a", "s/t"), 3, BatchState.INTENT, {"s/t": ("00" * 16,)}, 17)
    assert row.encode_with_parts()[1] == {}


def many_transactions(streams: int, tasks: int) -> dict[str, tuple[str, ...]]:
    return {f"s/stream-{s}": tuple(f"{s * tasks + at:032x}" for at in range(tasks)) for s in range(streams)}


@pytest.mark.parametrize(("streams", "tasks"), [(1, 40_000), (200, 200)])
def test_a_row_of_tens_of_thousands_of_transactions_is_stored_and_read_again(
    server: MemoryServer, streams: int, tasks: int
) -> None:
    async def step(driver: Driver) -> None:
        sink = driver.identity(0).sink
        ledger = await Ledger.open(driver.client, sink)
        row = LedgerRow(sink, 7, BatchState.INTENT, many_transactions(streams, tasks), 17, "a note", "query")
        version = await ledger.replace(row, -1)
        assert await ledger.read() == (row, version)
        fenced = await ledger.fence(18)
        assert fenced == row
        parts = await part_keys(driver)
        assert parts == await parts_named(driver)
        assert len(parts) > 1
        # Its table is read by people, too.
        await ledger.close()

        def rows() -> list[LedgerRow]:
            with penstock.connect(server.uri) as client:
                return [each for each in ledger_rows(client, "once") if each.sink == sink]

        (shown,) = await asyncio.to_thread(rows)
        assert shown.transactions == row.transactions
        # Parts of earlier batches go; announcements and the row stay.
        ledger = await Ledger.open(driver.client, sink)
        await ledger.announce(BegunTransaction(7, "s/t", "00" * 16))
        _, at = await ledger.read()
        short = LedgerRow(sink, 8, BatchState.INTENT, {"s/t": ("11" * 16,)}, 19)
        await ledger.replace(short, at)
        assert await part_keys(driver) == parts
        await ledger.forget_parts(short)
        assert await part_keys(driver) == []
        assert [each.batch for each in await ledger.announced(7)] == [7]
        assert (await ledger.read())[0] == short
        await ledger.close()

    run(server, step)


def test_a_row_whose_parts_are_missing_or_damaged_is_reported(server: MemoryServer) -> None:
    async def step(driver: Driver) -> None:
        sink = driver.identity(0).sink
        ledger = await Ledger.open(driver.client, sink)
        row = LedgerRow(sink, 7, BatchState.INTENT, many_transactions(1, ROW_LENGTH_MAX // 32), 17)
        await ledger.replace(row, -1)
        (first, *_) = parts = await part_keys(driver)
        async with await driver.client.table(ledger_table(driver.stream)) as table:
            whole = await table.get(sink.key + first)
            assert whole is not None
            await table.put(sink.key + first, whole.replace(b"0", b"1"))
            with pytest.raises(CorruptionError, match=f"its {len(parts)} parts do not have the SHA-256"):
                await ledger.read()
            await table.remove(sink.key + first)
            with pytest.raises(CorruptionError, match=f"1 of its {len(parts)} parts are missing"):
                await ledger.read()
        await ledger.close()

    run(server, step)


def test_a_row_that_is_replaced_while_its_parts_are_read_is_read_again(
    server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def step(driver: Driver) -> None:
        sink = driver.identity(0).sink
        ledger, other = await Ledger.open(driver.client, sink), await Ledger.open(driver.client, sink)
        long = LedgerRow(sink, 7, BatchState.INTENT, many_transactions(1, ROW_LENGTH_MAX // 32), 17)
        short = LedgerRow(sink, 8, BatchState.INTENT, {"s/t": ("11" * 16,)}, 19)
        version = await ledger.replace(long, -1)
        entry, calls = Table.entry, itertools.count()

        async def entry_late(table: Table[bytes, bytes], key: bytes) -> object:
            if table is ledger._table and next(calls) == 1:
                await other.replace(short, version)
                await other.forget_parts(short)
            return await entry(table, key)

        monkeypatch.setattr(Table, "entry", entry_late)
        assert (await ledger.read())[0] == short
        await ledger.close()
        await other.close()

    run(server, step)
