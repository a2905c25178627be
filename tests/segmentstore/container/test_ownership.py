"""An incarnation that was shut out stops to answer (docs/ownership.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import cast

import pytest

from penstock.model.errors import LogFencedError, OwnershipUnconfirmedError, StorageError
from penstock.model.segments import TableUpdate
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.container.container import ContainerStatus
from penstock.segmentstore.container.ownership import OwnershipLease
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.durable_log import DurableLog
from penstock.segmentstore.tier1.memory_log import MemoryLog, MemoryLogFactory
from penstock_simulation.simulated.simulation import Simulation
from support.clock import SetClock
from support.containers import QUIET, FaultyChunks, memory_runtime, memory_store, until

SEGMENT = "shop/orders/0.#epoch.0"
TABLE = "shop/prices_kvtable/0.#epoch.0"
LEASE_S = 10.0


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
async def store(clock: SetClock) -> AsyncIterator[SegmentStore]:
    runtime = memory_runtime()
    runtime.monotonic_s = clock
    settings = SegmentStoreSettings(
        container_count=1, container=replace(QUIET, ownership_lease_s=LEASE_S), restart_delay_s=3600.0
    )
    made = memory_store(MemoryLogFactory(runtime), FaultyChunks(), runtime, settings)
    await made.start()
    await made.create_segment(SEGMENT)
    await made.append(SEGMENT, b"known")
    await made.create_table(TABLE)
    await made.table_put(TABLE, [TableUpdate(b"key", b"value")])
    yield made
    await made.stop()
    await runtime.work.close()


async def test_nothing_that_may_be_out_of_date_is_answered_after_the_lease(
    store: SegmentStore, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its end all requests are answered, after it none, refusals included; a check of the log begins a new one."""
    container = store.containers[0]

    async def hang(*, is_shared: bool = False) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(container.log, "confirm_ownership", hang)  # Its disk hangs.
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "read": lambda: store.read(SEGMENT, 0, 100),
        "info": lambda: store.segment_info(SEGMENT),
        "info of nothing": lambda: store.segment_info("shop/nothing/0.#epoch.0"),
        "read of nothing": lambda: store.read("shop/nothing/0.#epoch.0", 0, 1),
        "attribute": lambda: store.get_attribute(SEGMENT, bytes(16)),
        "attribute that is not as expected": lambda: store.update_attribute(SEGMENT, bytes(16), value=1, expected=7),
        "table info": lambda: store.table_info(TABLE),
        "get": lambda: store.table_get(TABLE, [b"key"]),
        "keys": lambda: store.table_keys(TABLE, limit=10),
        "entries": lambda: store.table_entries(TABLE, limit=10),
        "delta": lambda: store.table_delta(TABLE, position=0, limit=10),
        "put that is not as expected": lambda: store.table_put(TABLE, [TableUpdate(b"key", b"other", 12345)]),
        "border": lambda: store.locate_offset(SEGMENT, 0),
    }
    clock.now_s = container.log.ownership_confirmed_s + LEASE_S
    assert (await store.read(SEGMENT, 0, 100)).joined() == b"known"
    clock.now_s += 0.001
    ends = {name: (await asyncio.gather(call(), return_exceptions=True))[0] for name, call in calls.items()}
    assert {name: type(end) for name, end in ends.items()} == dict.fromkeys(calls, OwnershipUnconfirmedError)
    # An append that succeeds is a scan.
    await store.append(SEGMENT, b" more")
    assert (await store.read(SEGMENT, 0, 100)).joined() == b"known more"
    clock.now_s += LEASE_S + 0.001
    with pytest.raises(OwnershipUnconfirmedError):
        await store.segment_info(SEGMENT)
    monkeypatch.undo()
    await container.log.confirm_ownership()
    assert (await store.segment_info(SEGMENT)).length == 10


async def test_the_length_after_a_merge_that_was_done_before_is_not_answered_without_the_lease(
    store: SegmentStore,
) -> None:
    """It comes from memory, as what is read does."""
    merged = "shop/orders/0.#transaction.0"
    await store.create_segment(merged)
    assert await store.merge_segment(SEGMENT, merged) == 5
    assert await store.merge_segment(SEGMENT, merged) == 5
    assert await store.merge_segments(SEGMENT, [merged, "shop/orders/0.#nothing.0"]) == [5, 5]
    store.containers[0].ownership.end()
    with pytest.raises(OwnershipUnconfirmedError):
        await store.merge_segment(SEGMENT, merged)
    with pytest.raises(OwnershipUnconfirmedError):
        await store.merge_segments(SEGMENT, [merged])
    with pytest.raises(OwnershipUnconfirmedError):
        await store.merge_segments(SEGMENT, ["shop/orders/0.#nothing.0"])


async def test_an_idle_incarnation_that_was_shut_out_ends() -> None:
    """Without any writes, the periodic check of the log finds the other owner, and the container fails."""
    runtime = memory_runtime()
    logs = MemoryLogFactory(runtime)
    settings = SegmentStoreSettings(container_count=1, restart_delay_s=3600.0,
                                    container=replace(QUIET, ownership_lease_s=0.03))  # fmt: skip
    store = memory_store(logs, FaultyChunks(), runtime, settings)
    await store.start()
    container = store.containers[0]
    other = logs.create(0)
    await other.open()
    await until(lambda: container.failure is not None)
    assert isinstance(container.failure, LogFencedError)
    await store.stop()
    await runtime.work.close()


async def test_a_log_that_cannot_say_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk error is no loss of ownership: requests are held for a while, and then served again."""
    failures = 3
    original = MemoryLog.confirm_ownership

    async def confirm(self: MemoryLog, *, is_shared: bool = False) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise StorageError("EIO")
        await original(self)

    monkeypatch.setattr(MemoryLog, "confirm_ownership", confirm)
    runtime = memory_runtime()
    settings = SegmentStoreSettings(container_count=1, container=replace(QUIET, ownership_lease_s=0.03))
    store = memory_store(MemoryLogFactory(runtime), FaultyChunks(), runtime, settings)
    await store.start()
    await until(lambda: failures < 0)
    await until(lambda: store.containers[0].ownership.is_confirmed)
    assert store.containers[0].status is ContainerStatus.RUNNING
    await store.stop()
    await runtime.work.close()


class BilledLog:
    """A log whose checks are billed: each waits until `answer` is set. Only what a lease uses of it."""

    is_check_billed = True
    may_predecessor_answer = False

    def __init__(self, now_s: float) -> None:
        self.ownership_confirmed_s = now_s
        self.check_count = 0
        self.answer = asyncio.Event()

    async def confirm_ownership(self, *, is_shared: bool = False) -> None:
        began_s = asyncio.get_running_loop().time()
        self.check_count += 1
        await self.answer.wait()
        self.ownership_confirmed_s = began_s


def billed_lease(simulation: Simulation) -> tuple[BilledLog, OwnershipLease]:
    log = BilledLog(simulation.loop.time())
    return log, OwnershipLease(0, cast("DurableLog", log), lease_s=LEASE_S, now_s=simulation.loop.time)


def test_an_answer_that_is_due_after_the_lease_waits_for_the_check_where_it_is_billed() -> None:
    with Simulation(1) as simulation:
        log, lease = billed_lease(simulation)

        async def scenario() -> list[float]:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            keeping = asyncio.create_task(lease.keep())
            await asyncio.sleep(LEASE_S - 0.5)
            await lease.confirmed()  # At once, and without a check.
            assert log.check_count == 0
            await asyncio.sleep(0.6)
            waits = [asyncio.create_task(lease.confirmed()) for _ in range(3)]
            await asyncio.sleep(0.2)
            assert not any(wait.done() for wait in waits)
            waits[0].cancel()  # The others still get the answer.
            log.answer.set()
            await asyncio.gather(*waits[1:])
            answered_s = loop.time() - began_s
            await asyncio.sleep(5 * LEASE_S)
            await cancel_and_wait(keeping)
            return [answered_s, log.check_count]

        answered_s, check_count = simulation.run(scenario)
    assert answered_s == pytest.approx(LEASE_S + 0.3, abs=0.01)
    assert check_count <= 6


def test_an_answer_waits_for_a_check_for_a_bounded_time() -> None:
    """The check hangs, then the incarnation ends: its answers are refused, at the bound and at once."""
    with Simulation(1) as simulation:
        _, lease = billed_lease(simulation)

        async def scenario() -> list[float]:
            loop = asyncio.get_running_loop()
            keeping = asyncio.create_task(lease.keep())
            await asyncio.sleep(LEASE_S + 1.0)
            waited_s = []
            for ends_after_s in (LEASE_S, 0.5):
                began_s = loop.time()
                ending = loop.call_later(ends_after_s, lease.end)
                with pytest.raises(OwnershipUnconfirmedError):
                    await lease.confirmed()
                ending.cancel()
                waited_s.append(loop.time() - began_s)
            with pytest.raises(OwnershipUnconfirmedError):
                await lease.confirmed()
            await cancel_and_wait(keeping)
            return waited_s

        assert simulation.run(scenario) == pytest.approx([0.3 * LEASE_S, 0.5], abs=0.01)


def test_the_lease_has_a_name_in_the_settings() -> None:
    assert ContainerSettings().ownership_lease_s == 10.0
