"""A rehearsal of what a take-over needs of BookKeeper leaves nothing over. Simulated bookies."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from penstock.model.errors.ledgers import LedgerError
from penstock.runtime.ledger_rehearsal import ENTRY_COUNT, LEDGER_COUNT, rehearse
from penstock_simulation.simulated.bookies import BookieSettings, SimulatedBookies
from penstock_simulation.simulated.ledgers import SimulatedLedgers, SimulatedReader
from penstock_simulation.simulated.simulation import Simulation


class NotedLedgers(SimulatedLedgers):
    """A client that notes the ledgers that it opens, and their last entries."""

    def __init__(self, cluster: SimulatedBookies) -> None:
        super().__init__(cluster, random.Random(2))
        self.recovered: list[int] = []

    async def open(self, ledger_id: int, *, is_fencing: bool) -> SimulatedReader:
        reader = await super().open(ledger_id, is_fencing=is_fencing)
        if is_fencing:
            self.recovered.append(reader.last_entry)
        return reader


def run(scenario: Callable[[SimulatedBookies, NotedLedgers], Awaitable[None]]) -> None:
    async def play() -> None:
        cluster = SimulatedBookies(random.Random(1), 3, BookieSettings())
        client = NotedLedgers(cluster)
        await scenario(cluster, client)
        await client.close()

    with Simulation(1) as simulation:
        simulation.run(play)


def test_ledgers_are_recovered_read_and_deleted() -> None:
    async def scenario(cluster: SimulatedBookies, client: NotedLedgers) -> None:
        await rehearse(client)
        assert client.recovered == [ENTRY_COUNT - 1] * LEDGER_COUNT
        assert cluster.ledgers == {}

    run(scenario)


def test_without_bookies_it_fails_and_leaves_no_ledger() -> None:
    """The bookies of the ledger do not answer any more, or there are none."""

    async def scenario(cluster: SimulatedBookies, client: NotedLedgers) -> None:
        for bookie in cluster.bookies.values():
            bookie.is_held = True
        with pytest.raises(LedgerError):
            await rehearse(client)
        assert cluster.ledgers == {}
        for bookie in cluster.bookies.values():
            bookie.is_read_only = True
        with pytest.raises(LedgerError):
            await rehearse(client)

    run(scenario)
