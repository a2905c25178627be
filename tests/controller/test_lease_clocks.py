"""Leases and lifetimes of transactions where wall clocks differ, and where a controller could not receive pings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import ActiveTransaction, TransactionStatus
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.service import ControllerService
from penstock.controller.transactions.lease_timers import LeaseTimers, OpenTransaction
from penstock.controller.transactions.leases import elapsed_at_first_sight_ms, lifetime_left_ms
from penstock.controller.transactions.service import PingResult
from penstock.model.errors import StorageError
from penstock.model.policies import Scaling, StreamConfig
from support.clocks import HOUR_MS, SkewedControllers, pass_time, run_with_leaps
from support.two_controllers import until

OPEN, ABORTED = TransactionStatus.OPEN, TransactionStatus.ABORTED
LEASE_MS = 10_000
SKEWS = pytest.mark.parametrize("ahead_ms", [-48 * HOUR_MS, -2 * HOUR_MS, -7_000, 7_000, 2 * HOUR_MS, 48 * HOUR_MS])


@pytest.fixture
async def controllers() -> AsyncIterator[SkewedControllers]:
    made = SkewedControllers()
    yield made
    await made.stop()


async def start_two(
    controllers: SkewedControllers, ahead_ms: int
) -> tuple[ControllerService, ControllerService, TransactionId]:
    """Start two controllers, the second with another clock; begin a transaction at the first."""
    first, second = await controllers.start(), await controllers.start(ahead_ms)
    await first.create_scope("scope")
    await first.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    transaction = (await first.transactions.create("scope", "stream", LEASE_MS)).id
    return first, second, transaction


async def ping(service: ControllerService, transaction: TransactionId, lease_ms: int = LEASE_MS) -> PingResult:
    return await service.transactions.ping("scope", "stream", transaction, lease_ms)


async def status(service: ControllerService, transaction: TransactionId) -> TransactionStatus:
    return await service.transactions.status("scope", "stream", transaction)


async def fire(service: ControllerService, transaction: TransactionId) -> None:
    """Let the timer that a controller has for a transaction end now."""
    timers, opened = service.transactions.work.timers, OpenTransaction("scope", "stream", transaction)
    version = timers._timers[opened].version
    timers._cancel(opened)
    service.transactions.work._expired(opened, version)
    await service.idle()


@SKEWS
async def test_a_timer_leaves_a_transaction_alone_that_was_pinged_at_a_controller_with_another_clock(
    controllers: SkewedControllers, ahead_ms: int
) -> None:
    """It waits for a whole lease from then on, and aborts if nothing has changed by then."""
    first, second, transaction = await start_two(controllers, ahead_ms)
    for one, other in ((first, second), (second, first)):
        assert await ping(one, transaction) is PingResult.OK
        assert await ping(other, transaction) is PingResult.OK
        await fire(one, transaction)
        assert await status(first, transaction) is OPEN
    await fire(second, transaction)
    assert await status(first, transaction) is ABORTED


@SKEWS
async def test_pings_at_controllers_with_different_clocks_do_not_end_the_lifetime(
    controllers: SkewedControllers, ahead_ms: int
) -> None:
    """A lifetime of 10 000 s lasts through pings at both, whatever their clocks show."""
    first, second, transaction = await start_two(controllers, ahead_ms)
    for _ in range(20):
        for service in (second, first):
            pass_time(service, 1)
            assert await ping(service, transaction) is PingResult.OK


async def test_a_jump_of_the_clock_ends_no_lifetime(controllers: SkewedControllers) -> None:
    """Two days ahead, and back: the lifetime is measured by the controller's own clock."""
    service = await controllers.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    transaction = (await service.transactions.create("scope", "stream", LEASE_MS)).id
    for jump_ms in (48 * HOUR_MS, -96 * HOUR_MS, 48 * HOUR_MS):
        controllers.clocks_ms[0] += jump_ms
        assert await ping(service, transaction) is PingResult.OK
    pass_time(service, 9_995)
    assert await ping(service, transaction) is PingResult.LIFETIME_EXCEEDED
    assert await ping(service, transaction, 4_000) is PingResult.OK


@SKEWS
async def test_a_take_over_leaves_a_whole_lease_whatever_the_clocks_show(
    controllers: SkewedControllers, ahead_ms: int
) -> None:
    """What the next controller writes is a lease from then on, and a lifetime that is no longer than before."""
    first, second, transaction = await start_two(controllers, ahead_ms)
    await first.stop()
    await until(lambda: second.transactions.open_count, "the second controller has taken the transaction over")
    await second.idle()
    tables = await second._catalog.on_stream("scope", "stream", _itself)
    record = (await tables.transaction(transaction)).record  # type: ignore[union-attr]
    now_ms = controllers.clocks_ms[1]
    assert record.lease_expiry_ms == now_ms + LEASE_MS
    assert now_ms + 1000 * LEASE_MS - LEASE_MS - 5_000 <= record.execution_expiry_ms <= now_ms + 1000 * LEASE_MS
    assert await ping(second, transaction) is PingResult.OK


async def _itself(tables: StreamTables) -> StreamTables:
    return tables


async def test_a_ping_that_cannot_be_stored_keeps_the_transaction_open(
    controllers: SkewedControllers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is away for longer than the lease: the client has shown that it is alive."""
    service, _, transaction = await start_two(controllers, 0)
    put = RecordStore.put

    async def refuse(self: RecordStore, table: str, key: str, record: object, **options: int) -> int:
        if isinstance(record, ActiveTransaction) and record.status is OPEN:
            raise StorageError("the store is away")
        return await put(self, table, key, record, **options)

    monkeypatch.setattr(RecordStore, "put", refuse)
    monkeypatch.setattr(RecordStore, "put_with_others", refuse)
    with pytest.raises(StorageError):
        await ping(service, transaction)
    await fire(service, transaction)
    assert await status(service, transaction) is OPEN
    # The client does not come again: the ping counts for one lease.
    pass_time(service, 16)
    await fire(service, transaction)
    assert await status(service, transaction) is ABORTED


def test_a_suspension_longer_than_every_lease_fires_no_timer() -> None:
    """After it the time that was left is left: pings that were sent meanwhile are received before a lease ends."""

    async def main(leap: Callable[..., Any]) -> None:
        fired = []
        timers = LeaseTimers(lambda opened, version: fired.append(opened), 10)
        short, long = (OpenTransaction("s", "t", TransactionId.of(0, number)) for number in (1, 2))
        timers.arm(short, 1, 3_000)
        timers.arm(long, 1, 600_000)
        await asyncio.sleep(0.05)
        leap(3600.0)
        await asyncio.sleep(0.05)
        assert not fired, "a timer fired in the moment in which the process was resumed"
        await until(lambda: bool(fired), "the timer fires")
        assert fired == [short], "a timer has to fire when its time is up"
        timers.clear()

    run_with_leaps(main)


def test_an_estimate_from_another_clock_is_within_the_lease() -> None:
    """However far clocks are apart: between nothing and the lease with its slack."""
    record = ActiveTransaction(0, LEASE_MS, 500_000 + LEASE_MS, 900_000)
    for now_ms, expected in ((0, 0), (500_000, 0), (503_000, 3_000), (515_000, 15_000), (10**12, 15_000)):
        assert elapsed_at_first_sight_ms(record, now_ms, 5_000) == expected
    assert lifetime_left_ms(record, 100_000) == 300_000
