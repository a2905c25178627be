"""`penstock cluster log` and `penstock cluster sweep` over ledgers, beside open logs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from penstock.administration.bookkeeper_administration import BookKeeperAdministration
from penstock.administration.ledger_rebuild import ClusterLogs
from penstock.administration.log_administration import LogState
from penstock.model.errors import InvalidArgumentError, LogDamagedError, LogDisabledError, LogFencedError
from penstock.runtime.disk import LocalDisk
from penstock.runtime.ledger_rehearsal import REHEARSAL
from penstock.runtime.ledgers import LedgerQuorum
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.bookkeeper.bookkeeper_log import BookKeeperLog
from penstock.segmentstore.tier1.bookkeeper.factory import BookKeeperLogFactory
from penstock.segmentstore.tier1.bookkeeper.ledger_chain import OpenLedger
from penstock.segmentstore.tier1.bookkeeper.log_record import LedgerLabels
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings
from penstock_simulation.simulated.bookies import BookieSettings, SimulatedBookies
from penstock_simulation.simulated.ledgers import SimulatedLedgers
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper, ZooKeeperSettings
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination
from support.inline_work import InlineWork


class World:
    """A process with logs of three containers, and their administration."""

    def __init__(self) -> None:
        self.cluster: SimulatedBookies = SimulatedBookies(random.Random(1), 4, BookieSettings())
        zookeeper = SimulatedZooKeeper(random.Random(2), ZooKeeperSettings(server_count=1))
        runtime = Runtime(disk=LocalDisk(), work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)
        settings = BookKeeperSettings()
        self.client: SimulatedLedgers = SimulatedLedgers(self.cluster, random.Random(3))
        self.factory: BookKeeperLogFactory = BookKeeperLogFactory(
            self.client, SimulatedCoordination(zookeeper, "host", random.Random(4)), runtime, settings, cluster_id="a",
            container_count=3,
        )  # fmt: skip
        self.logs: BookKeeperAdministration = BookKeeperAdministration(
            ClusterLogs(self.client, self.factory.process.records, settings, runtime, 3)
        )

    async def opened(self, container_id: int = 0) -> BookKeeperLog:
        """Open a log and append a frame."""
        log = self.factory.create(container_id)
        await log.open()
        await log.append([b"frame"], 5)
        return log

    async def ledger(self, cluster_id: str, ordinal: int, epoch: int) -> int:
        """Create a ledger that no record names."""
        labels = LedgerLabels(cluster_id, 0, ordinal, epoch)
        return (await self.client.create(LedgerQuorum(), labels.encode(), OpenLedger(ordinal))).ledger_id


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def play() -> None:
        world = World()
        await scenario(world)
        await world.factory.close()

    with Simulation(1) as simulation:
        simulation.run(play)


def test_the_list_has_each_container_with_its_state_and_fences_nothing() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened(0)
        await (await world.opened(1)).disable()
        reports = await world.logs.reports()
        assert [each.state for each in reports] == [LogState.ENABLED, LogState.DISABLED, LogState.MISSING]
        assert (reports[0].epoch, reports[0].file_count) == (1, 1)
        await log.append([b"more"], 4)
        assert await world.logs.owners() == {world.factory.process.owner.token.hex()}

    run(scenario)


def test_a_disabled_log_ends_its_owner_and_is_enabled_when_its_frames_are_read() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await world.logs.disable(0)
        with pytest.raises(LogFencedError):
            await log.append([b"late"], 4)
        with pytest.raises(LogDisabledError):
            await world.opened()
        with pytest.raises(InvalidArgumentError):
            await world.logs.disable(0)
        ledger_id = next(iter(world.cluster.ledgers))
        kept = {bookie.name: bookie.entries.pop(ledger_id) for bookie in world.cluster.bookies.values()
                if ledger_id in bookie.entries}  # fmt: skip
        with pytest.raises(LogDamagedError, match="missing"):
            await world.logs.enable(0)
        for name, entries in kept.items():
            world.cluster.bookies[name].entries[ledger_id] = entries
        await world.logs.enable(0)
        again = world.factory.create(0)
        await again.open()
        assert [frame.data async for frame in again.frames()] == [b"frame"]

    run(scenario)


def test_the_sweep_deletes_what_no_record_can_name_any_more_and_nothing_else() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        named = set(world.cluster.ledgers)
        left_over = await world.ledger("a", 1, 1)
        may_be_added = await world.ledger("a", 2, 1)
        claimants = await world.ledger("a", 2, 2)
        foreign = await world.ledger("b", 1, 1)
        rehearsed = (await world.client.create(LedgerQuorum(1, 1), {"application": REHEARSAL}, OpenLedger(0))).ledger_id
        found = await world.logs.sweep(is_dry_run=True)
        assert (list(found.unnamed), found.kept_count, found.foreign_count) == ([left_over, rehearsed], 3, 1)
        assert left_over in world.cluster.ledgers
        await world.logs.sweep(is_dry_run=False)
        assert set(world.cluster.ledgers) == {*named, may_be_added, claimants, foreign}
        await log.close()
        await world.opened()
        await asyncio.sleep(1)
        assert set((await world.logs.sweep(is_dry_run=False)).unnamed) == {may_be_added, claimants}

    run(scenario)
