"""What was accepted is stored or said not to be, whatever comes between: `close` of writers, transactions, clients."""

from __future__ import annotations

import asyncio
import logging
import typing
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client.client import Client
from penstock.client.transactions.transaction import Transaction
from penstock.client.writing.event_writer import EventWriter
from penstock.model.errors import (
    ClosedError,
    InvalidArgumentError,
    OutcomeUnknownError,
    PenstockError,
    TransactionError,
)

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "retail/orders"
SEGMENT = "retail/orders/0.#epoch.0"


async def stored_count(cluster: Cluster) -> int:
    """How many events of 8 bytes are in the stream's only segment."""
    info = await cluster.store.segments.segment_info(SEGMENT)
    return info.length // 16


async def keep_writing(writer: EventWriter, acks: list[object]) -> None:
    """Write until refused."""
    while True:
        try:
            acks.append(await writer.write(b"12345678"))
        except PenstockError:
            return
        if not len(acks) % 100:
            await asyncio.sleep(0)


# -- closing writers ------------------------------------------------------------------------------------------------


async def test_nothing_is_lost_that_a_writer_accepts_while_it_closes(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        writer = await client.event_writer(STREAM)
        acks: list[penstock.aio.Ack] = []
        cluster.store.gate.clear()
        writing = asyncio.create_task(keep_writing(writer, acks))
        await asyncio.sleep(0.01)
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0.02)
        cluster.store.gate.set()
        await closing
        await asyncio.wait_for(writing, 60)
        assert acks
        assert all(ack.is_done and ack.error is None for ack in acks)
        assert await stored_count(cluster) == len(acks)
        with pytest.raises(ClosedError, match="writer of retail/orders is closed"):
            await writer.write(b"late")


async def test_closing_the_client_flushes_its_open_writers(cluster: Cluster) -> None:
    client = cluster.client()
    async with client:
        await client.create_stream(STREAM)
        writer = await client.event_writer(STREAM)
        acks = [await writer.write(b"12345678") for _ in range(5000)]
    assert await stored_count(cluster) == 5000
    assert all(ack.is_done and ack.error is None for ack in acks)
    with pytest.raises(ClosedError):
        client.event_writer(STREAM)


async def test_acks_settle_with_an_error_when_the_client_cannot_flush(cluster: Cluster) -> None:
    client = await cluster.client(close_timeout_s=0.2).__aenter__()
    await client.create_stream(STREAM)
    writer = await client.event_writer(STREAM)
    cluster.store.gate.clear()
    acks = [await writer.write(b"12345678") for _ in range(10)]
    with pytest.raises(OutcomeUnknownError, match="10 events for retail/orders are not acknowledged"):
        await client.close()
    for ack in acks:
        with pytest.raises(OutcomeUnknownError):
            await ack.wait(0)
    await client.close()


@pytest.mark.parametrize("steps", range(0, 24, 2))
async def test_cancelling_close_at_any_moment_loses_nothing(cluster: Cluster, steps: int) -> None:
    # A cancelled caller stops waiting; the closing itself continues.
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        writer = await client.event_writer(STREAM)
        acks = [await writer.write(b"12345678") for _ in range(300)]
        closing = asyncio.create_task(writer.close())
        for _ in range(steps):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await writer.close()
        assert steps == 0 or not writer.is_open
        await asyncio.wait_for(asyncio.gather(*acks), 60)
        assert await stored_count(cluster) == 300


async def test_a_failed_block_of_a_writer_still_stores_what_it_accepted(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)

        async def use() -> None:
            async with client.event_writer(STREAM) as writer:
                for _ in range(100):
                    await writer.write(b"12345678")
                raise KeyError("the user's")

        with pytest.raises(KeyError):
            await use()
        assert await stored_count(cluster) == 100


async def test_a_write_that_waits_for_room_ends_when_the_writer_is_abandoned(cluster: Cluster) -> None:
    async with cluster.client(max_unacknowledged_bytes=1000) as client:
        await client.create_stream(STREAM)
        writer = await client.event_writer(STREAM)
        cluster.store.gate.clear()
        acks: list[penstock.aio.Ack] = []
        writing = asyncio.create_task(keep_writing(writer, acks))
        await asyncio.sleep(0.01)
        assert not writing.done()
        await writer.abandon()
        await asyncio.wait_for(writing, 60)
        assert all(ack.is_done for ack in acks)


def test_events_that_the_end_of_the_loop_cuts_off_are_said_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    """An async program leaves `asyncio.run` with an open writer: no flush is possible then, so the loss is reported."""
    from client.conftest import Cluster

    held = []

    async def main() -> None:
        cluster = Cluster()
        await cluster.store.start()
        client = await cluster.client().__aenter__()
        held.append(client)
        await client.create_stream(STREAM)
        writer = await client.event_writer(STREAM)
        cluster.store.gate.clear()
        for _ in range(7):
            await writer.write(b"12345678")

    asyncio.run(main())
    with caplog.at_level(logging.WARNING):
        held[0]._on_exit()
    assert "7 events for retail/orders are not acknowledged" in caplog.text


# -- byte writers ---------------------------------------------------------------------------------------------------


async def test_a_closed_byte_writer_takes_no_bytes(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        writer = await client.byte_writer(STREAM)
        await writer.write(b"one")
        await writer.close()
        with pytest.raises(ValueError, match="closed"):
            await writer.write(b"two")
        with pytest.raises(ValueError, match="closed"):
            await writer.flush()
        await writer.close()
        assert (await cluster.store.segments.read(SEGMENT, 0, 100)).joined() == b"one"


@pytest.mark.parametrize("steps", range(0, 16, 2))
async def test_cancelling_the_flush_of_bytes_at_any_moment_loses_and_doubles_nothing(
    cluster: Cluster, steps: int
) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        writer = await client.byte_writer(STREAM)
        await writer.write(b"one")
        flushing = asyncio.create_task(writer.flush())
        for _ in range(steps):
            await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.wait([flushing])
        assert await writer.write(b"two") == 3
        assert writer.tell() == 6
        await writer.close()
        assert (await cluster.store.segments.read(SEGMENT, 0, 100)).joined() == b"onetwo"


async def test_closing_the_client_flushes_byte_writers(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        await (await client.byte_writer(STREAM)).write(b"left in the writer")
    assert (await cluster.store.segments.read(SEGMENT, 0, 100)).joined() == b"left in the writer"


# -- transactions ---------------------------------------------------------------------------------------------------


async def half_written(cluster: Cluster, client: Client) -> Transaction:
    """Return a transaction of 10 events, 5 of which can no longer be stored."""
    transaction = await client.begin_transaction(STREAM, lease_s=0.06)
    for _ in range(5):
        await transaction.write(b"12345678")
    await transaction.flush()
    cluster.store.refuses = True
    cluster.store.drop_all()
    for _ in range(5):
        await transaction.write(b"12345678")
    return transaction


async def test_a_commit_repeated_after_a_failed_flush_commits_nothing(cluster: Cluster) -> None:
    # It stored 5 of 10 events when the second call skipped the flush.
    async with cluster.client(retry_time_max_s=0.1) as client:
        await client.create_stream(STREAM)
        transaction = await half_written(cluster, client)
        with pytest.raises(OutcomeUnknownError):
            await transaction.commit()
        cluster.store.refuses = False
        with pytest.raises(TransactionError, match="cannot be committed"):
            await transaction.commit()
        assert await stored_count(cluster) == 0
        await transaction.abort()
        assert await transaction.state() == "ABORTED"
        assert await stored_count(cluster) == 0


async def test_a_failed_block_of_a_transaction_aborts_it_and_stops_renewing_its_lease(cluster: Cluster) -> None:
    async with cluster.client(retry_time_max_s=0.1) as client:
        await client.create_stream(STREAM)

        async def use() -> None:
            async with await half_written(cluster, client) as transaction:
                assert await transaction.state() == "OPEN"

        with pytest.raises(OutcomeUnknownError):
            await use()
        assert list(cluster.controller.transactions.values()) == ["ABORTED"]
        pings = cluster.controller.pings
        await asyncio.sleep(0.1)
        assert cluster.controller.pings == pings
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("lease of")]


@pytest.mark.parametrize("steps", range(0, 24, 2))
async def test_a_commit_cancelled_at_any_moment_is_whole_or_not_at_all(cluster: Cluster, steps: int) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        transaction = await client.begin_transaction(STREAM)
        for _ in range(10):
            await transaction.write(b"12345678")
        committing = asyncio.create_task(transaction.commit())
        for _ in range(steps):
            await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait([committing])
        if steps % 4 == 0:
            await transaction.commit()
            assert await stored_count(cluster) == 10
            assert await transaction.state() == "COMMITTED"
    # Closing the client decides about what was not: by now it is one or the other.
    assert await stored_count(cluster) in (0, 10)
    assert cluster.controller.transactions[1] in ("COMMITTED", "ABORTED")


async def test_closing_the_client_aborts_undecided_transactions(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        transaction = await client.begin_transaction(STREAM)
        await transaction.write(b"12345678")
    assert list(cluster.controller.transactions.values()) == ["ABORTED"]
    assert "was closed without commit: aborting it" in caplog.text
    with pytest.raises(TransactionError):
        await transaction.write(b"late")


async def test_an_aborted_transaction_may_be_aborted_again_and_never_committed(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        async with client.begin_transaction(STREAM) as transaction:
            await transaction.abort()
            await transaction.abort()
        with pytest.raises(TransactionError, match="cannot be committed, it is aborted"):
            await transaction.commit()
        async with client.begin_transaction(STREAM) as transaction:
            await transaction.write(b"12345678")
            await transaction.commit()
        await transaction.commit()
        with pytest.raises(TransactionError, match="cannot be aborted"):
            await transaction.abort()
    assert await stored_count(cluster) == 1


# -- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["write", "write_many", "write_many by key", "arrow"])
async def test_writing_lets_others_have_their_turn(cluster: Cluster, way: str) -> None:
    """Between two turns of another task at most a few thousand events are taken, whatever room there is."""
    pyarrow = pytest.importorskip("pyarrow")
    count = 100_000
    turns: list[int] = []

    async with cluster.client() as client:
        await client.create_stream(STREAM)
        async with client.event_writer(STREAM) as writer:
            cluster.store.gate.clear()

            async def watch() -> None:
                while True:
                    turns.append(writer.unacknowledged_bytes // 24)
                    await asyncio.sleep(0)

            watching = asyncio.create_task(watch())
            await asyncio.sleep(0)
            events = [b"0123456789012345"] * count
            if way == "write":
                for event in events:
                    await writer.write(event)
            elif way == "arrow":
                await writer.write_many(pyarrow.array(events, pyarrow.binary()))
            else:
                await writer.write_many(events, ["key"] * count if "key" in way else None)
            turns.append(writer.unacknowledged_bytes // 24)
            watching.cancel()
            cluster.store.gate.set()
    assert turns[-1] == count
    steps = [after - before for before, after in pairwise(turns)]
    assert max(steps) <= (1100 if way == "write" else 8192)


async def test_an_event_above_the_limit_is_refused_however_it_is_written(cluster: Cluster) -> None:
    """Also with a limit below that from which an event needs a transient segment."""
    pyarrow = pytest.importorskip("pyarrow")
    async with cluster.client(large_event_bytes_max=100) as client:
        await client.create_stream(STREAM)
        async with client.event_writer(STREAM) as writer:
            large, small = b"x" * 101, b"x" * 100
            for work in (
                lambda: writer.write(large),
                lambda: writer.write_many([small, large]),
                lambda: writer.write_many([large], "key"),
                lambda: writer.write_many([small, large], ["a", "b"]),
                lambda: writer.write_many(pyarrow.array([small, large])),
            ):
                with pytest.raises(ValueError, match="101 bytes is above large_event_bytes_max") as caught:
                    await work()
                assert (caught.value.length_bytes, caught.value.length_bytes_max) == (101, 100)
            await writer.write(small)
            await writer.write_many([small, small])


async def test_a_write_waits_for_room_within_its_time_limit(cluster: Cluster) -> None:
    async with cluster.client(max_unacknowledged_bytes=10_000, block_bytes_max=2000) as client:
        await client.create_stream(STREAM)
        async with client.event_writer(STREAM) as writer:
            cluster.store.gate.clear()
            with pytest.raises(TimeoutError, match="no room for another event within") as caught:
                await writer.write_many([b"x" * 92] * 500, timeout_s=0.05)
            taken = caught.value.taken_count
            assert 0 < taken < 500
            assert writer.unacknowledged_event_count == taken
            with pytest.raises(penstock.WriteTimeoutError):
                await writer.write(b"x", timeout_s=0.01)
            with pytest.raises(TimeoutError):
                await writer.flush(0.01)
            assert writer.unacknowledged_event_count == taken
            cluster.store.gate.set()
            await writer.flush(5)


async def test_delivery_is_reported_once_for_each_event(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[int, BaseException | None]] = []
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        async with client.event_writer(STREAM) as writer:
            for number in range(5):
                await writer.write(b"x", on_delivery=lambda error, number=number: told.append((number, error)))
            await writer.write(b"y", on_delivery=lambda error: 1 // 0)
            await writer.write(b"z", on_delivery=lambda error: told.append((5, error)))
            await writer.flush()
            assert told == [(number, None) for number in range(6)]
            cluster.store.gate.clear()
            await writer.write(b"x", on_delivery=lambda error: told.append((6, error)))
            await writer.abandon()
    assert len(told) == 7
    assert isinstance(told[6][1], OutcomeUnknownError)
    assert "a delivery callback failed" in caplog.text


async def test_what_a_client_makes_shows_what_it_is(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        writer = await client.event_writer(STREAM)
        assert repr(writer) == "<EventWriter: writer of retail/orders, open>"
        cluster.store.gate.clear()
        await writer.write(b"x")
        assert "1 events for retail/orders are not acknowledged" in repr(client)
        cluster.store.gate.set()
        await writer.close()
        assert repr(writer) == "<EventWriter: writer of retail/orders, closed>"


def test_a_client_is_refused_in_another_event_loop() -> None:
    """Connections, locks and tasks belong to the loop they were made in; used in another they would hang."""
    client = penstock.aio.connect("tcp://127.0.0.1:1")

    async def open_it() -> None:
        client._open()

    async def use_it() -> None:
        with pytest.raises(InvalidArgumentError, match="belongs to the event loop in which it was opened"):
            await client.stream_exists("a/b")

    asyncio.run(open_it())
    asyncio.run(use_it())
    client._on_forked()


def test_what_a_write_returns_can_be_awaited_as_far_as_type_checkers_know() -> None:
    """They refused to await what `write` returned, which was any kind of acknowledgement."""
    for kind in (penstock.aio.EventWriter, penstock.aio.Transaction, penstock.aio.ValueWriter):
        assert typing.get_type_hints(kind.write)["return"] is penstock.aio.Ack
