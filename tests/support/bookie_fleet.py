"""`BookieFleet`: a `LogFleet` over simulated bookies, which die, hang, are slow, fence and lose their metadata."""

from __future__ import annotations

import asyncio
import random

from penstock.model.errors import PenstockError
from penstock.segmentstore.tier1.bookkeeper.factory import BookKeeperLogFactory
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings
from penstock_simulation.simulated.bookies import Bookie, BookieSettings, SimulatedBookies
from penstock_simulation.simulated.ledgers import SimulatedLedgers
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper, ZooKeeperSettings
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination
from support.log_fleet import LogFleet

SETTINGS = BookKeeperSettings(
    frame_length_max_bytes=200,
    in_flight_bytes_max=400,
    ledger_bytes=500,
    ledger_bytes_limit=1500,
    ensemble_wait_s=1.0,
    append_stall_s=4.0,
    degraded_roll_s=3.0,
    bookies_interval_s=0.5,
    retry_s=0.2,
    request_timeout_s=5.0,
    read_bytes=200,
    kept_bytes_max=300,
    truncate_interval_s=0.5,
    deletion_delay_s=2.0,
    change_wait_s=2.0,
)
BOOKIES = BookieSettings(
    latency_s_min=0.002,
    latency_s_max=0.02,
    add_timeout_s=1.5,
    request_timeout_s=1.5,
    session_s=1.0,
    lost_reply_rate=0.03,
    stuck_rate=0.03,
)
#: BookKeeper's auto-recovery fences a ledger whose bookie is down for so long.
_AUTO_RECOVERY_S = 5.0


class BookieFleet(LogFleet):
    """See the module."""

    def __init__(self, seed: int, *, duration_s: float = 60.0, bookie_count: int = 4) -> None:
        super().__init__(seed, duration_s=duration_s)
        self._chance = random.Random(f"faults {seed}")
        self.cluster: SimulatedBookies = SimulatedBookies(random.Random(f"bookies {seed}"), bookie_count, BOOKIES)
        self._ensemble: SimulatedZooKeeper | None = None
        self._is_healed = False
        #: Loop time until which a fault of a bookie lasts.
        self._until_s: dict[str, float] = {}
        self._metadata_until_s = 0.0
        self._processes: list[SimulatedLedgers] = []

    async def _scenario(self) -> None:
        settings = ZooKeeperSettings(lost_reply_rate=0.02)
        self._ensemble = SimulatedZooKeeper(random.Random(self._chance.random()), settings)
        tasks = [asyncio.ensure_future(self._disturb()), asyncio.ensure_future(self._recover_by_itself())]
        try:
            await super()._scenario()
        finally:
            for task in tasks:
                task.cancel()

    def _begin(self) -> tuple[BookKeeperLogFactory, SimulatedLedgers]:
        assert self._ensemble is not None
        self._clients += 1
        client = SimulatedLedgers(self.cluster, random.Random(self._chance.random()))
        service = SimulatedCoordination(self._ensemble, f"host {self._clients}", random.Random(self._chance.random()))
        self._processes.append(client)
        factory = BookKeeperLogFactory(
            client, service, self._runtime, SETTINGS, cluster_id="a", container_count=len(self.histories)
        )
        return factory, client

    async def _disturb(self) -> None:
        """Have faults begin and end."""
        rng, loop = self._chance, asyncio.get_running_loop()
        while True:
            await asyncio.sleep(rng.expovariate(2.0))
            if self._is_healed:
                return
            for name, until_s in list(self._until_s.items()):
                if loop.time() >= until_s:
                    del self._until_s[name]
                    self._restore(self.cluster.bookies[name])
            self.cluster.is_metadata_away = loop.time() < self._metadata_until_s
            if rng.random() < 0.05:
                self._metadata_until_s = loop.time() + rng.uniform(0.5, 6.0)
            if rng.random() < 0.3 and self._processes:
                # An append of one of the last processes fails although its bookies have it.
                rng.choice(self._processes[-4:]).fail_next.append(rng.choice([-6, -11, -12, -23, -105]))
            if rng.random() < 0.15 and len(self._until_s) < 2:
                name = rng.choice(sorted(set(self.cluster.bookies) - set(self._until_s)))
                self._until_s[name] = loop.time() + rng.choice([0.3, 2.0, 12.0])
                self._break(name)

    def _break(self, name: str) -> None:
        bookie = self.cluster.bookies[name]
        match self._chance.randrange(4):
            case 0:
                self.cluster.kill(name)
            case 1:
                bookie.is_held = True
            case 2:
                bookie.delay_s = 2.0  # Entries arrive after they were given up.
            case _:
                bookie.is_read_only = True

    def _restore(self, bookie: Bookie) -> None:
        bookie.is_up = True
        bookie.is_held = bookie.is_read_only = False
        bookie.delay_s = 0.0

    def _heal(self) -> None:
        self._is_healed = True
        for client in self._processes:
            client.fail_next.clear()
        self.cluster.is_metadata_away = False
        for bookie in self.cluster.bookies.values():
            self._restore(bookie)

    async def _recover_by_itself(self) -> None:
        """Fence ledgers that are still written, as BookKeeper's auto-recovery does."""
        client = SimulatedLedgers(self.cluster, random.Random(self._chance.random()))
        while True:
            await asyncio.sleep(1.0)
            for ledger_id in self.cluster.without_bookies(_AUTO_RECOVERY_S):
                try:
                    await client.open(ledger_id, is_fencing=True)
                except PenstockError:
                    continue
