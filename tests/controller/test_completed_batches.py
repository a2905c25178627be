"""How long outcomes of transactions are kept, by clocks that jump or differ."""

from __future__ import annotations

import random

import pytest

from penstock.controller.metadata import layout
from penstock.controller.metadata.completed import CompletedTransactions
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import CompletedBatch, TransactionStatus
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.settings import ControllerSettings
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock_simulation.memory_store import MemoryMetadataStore

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS + 5
COMMITTED, UNKNOWN = TransactionStatus.COMMITTED, TransactionStatus.UNKNOWN


class Outcomes:
    """The outcomes as a controller sees them whose clock is ahead by `ahead_ms`."""

    clock_ms = NOW_MS

    def __init__(self, store: MemoryMetadataStore) -> None:
        self.ahead_ms = 0
        self.records = RecordStore(store)
        runtime = Runtime(
            disk=LocalDisk(),
            work=ThreadedWork(1),
            rng=random.Random(1),
            wall_clock_ms=lambda: Outcomes.clock_ms + self.ahead_ms,
        )
        self.completed = CompletedTransactions(self.records, runtime, ControllerSettings())
        self.count = 0

    async def add(self) -> TransactionId:
        """Record an outcome; return the transaction."""
        self.count += 1
        transaction = TransactionId.of(0, self.count)
        await self.completed.add("scope", "stream", [transaction], COMMITTED)
        return transaction

    async def status(self, transaction: TransactionId) -> TransactionStatus:
        return await self.completed.status("scope", "stream", transaction)

    async def batches(self) -> list[int]:
        return sorted([int(key) async for key, _ in self.records.walk(layout.COMPLETED_BATCHES, CompletedBatch)])


@pytest.fixture
async def store() -> MemoryMetadataStore:
    made = MemoryMetadataStore()
    await made.create_table(layout.COMPLETED_BATCHES)
    Outcomes.clock_ms = NOW_MS
    return made


@pytest.mark.parametrize("jump_ms", [3 * DAY_MS, 730 * DAY_MS])
@pytest.mark.parametrize("has_restart", [False, True], ids=["", "restarted"])
async def test_outcomes_are_forgotten_again_after_a_clock_was_ahead(
    store: MemoryMetadataStore, jump_ms: int, has_restart: bool
) -> None:
    """Batches follow each other once a day again, so that outcomes do not pile up in one until the false time."""
    outcomes = Outcomes(store)
    outcomes.ahead_ms = jump_ms
    early = await outcomes.add()
    outcomes.ahead_ms = 0
    if has_restart:
        outcomes = Outcomes(store)
        outcomes.count = 1
    late = await outcomes.add()
    assert (await outcomes.status(early), await outcomes.status(late)) == (COMMITTED, COMMITTED)
    for _ in range(2):
        Outcomes.clock_ms += DAY_MS
        await outcomes.add()
    assert (await outcomes.status(early), await outcomes.status(late)) == (UNKNOWN, UNKNOWN)
    assert len(await outcomes.batches()) == 2


async def test_controllers_whose_clocks_differ_by_hours_begin_one_batch_a_day(store: MemoryMetadataStore) -> None:
    """An outcome is known for a day at least, less the difference, at both."""
    behind, ahead = Outcomes(store), Outcomes(store)
    ahead.ahead_ms, ahead.count = 2 * 3_600_000, 1000
    for _ in range(6):
        one, other = await behind.add(), await ahead.add()
        Outcomes.clock_ms += DAY_MS - 3 * 3_600_000
        for outcomes in (behind, ahead):
            assert await outcomes.status(one) is COMMITTED
            assert await outcomes.status(other) is COMMITTED
        Outcomes.clock_ms += 3 * 3_600_000
    assert len(await behind.batches()) <= 2


async def test_batches_of_earlier_releases_are_read(store: MemoryMetadataStore) -> None:
    """Their number is the day on which they began; one of a day to come is corrected as any other."""
    outcomes = Outcomes(store)
    for number, expected in ((NOW_MS // DAY_MS, 20_000), (NOW_MS // DAY_MS + 9, 20_009)):
        await store.create_table(layout.completed_batch(number))
        await outcomes.records.create(layout.COMPLETED_BATCHES, str(number), CompletedBatch(number))
        outcomes = Outcomes(store)
        await outcomes.add()
        assert (await outcomes.batches())[-1] == expected
    Outcomes.clock_ms += DAY_MS
    await outcomes.add()
    assert await outcomes.batches() == [20_009, 20_010]
