"""Makes the logs in BookKeeper of `tests/data/old/ledgers`, each with the code of an earlier commit.

    git archive COMMIT | tar x -C /tmp/old
    PYTHONPATH=/tmp/old/src:/tmp/old/simulation:/tmp/old/tests python tests/support/old_ledgers.py DATE-COMMIT.json.xz

Bookies and coordination service are simulated: the bytes of records and entries are those of real ones. What is in it,
the constants say. The first owner of the log crashed; the second one has fenced it, and crashed as well. It uses only
what all of these commits have. `tests/test_old_logs.py` opens it with the code of today.
"""

from __future__ import annotations

import json
import lzma
import random
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

from penstock.runtime.disk import LocalDisk
from penstock.runtime.ledgers import LedgerQuorum
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.bookkeeper.bookkeeper_log import BookKeeperLog
from penstock.segmentstore.tier1.bookkeeper.factory import BookKeeperLogFactory
from penstock.segmentstore.tier1.bookkeeper.log_record import record_path
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings
from penstock.segmentstore.tier1.durable_log import LogAddress
from penstock_simulation.simulated.bookies import BookieSettings, LedgerMetadata, LedgerState, SimulatedBookies
from penstock_simulation.simulated.ledgers import SimulatedLedgers
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper, ZooKeeperSettings
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination
from support.inline_work import InlineWork

CLUSTER_ID = "old"
#: Frames of the first owner, and of the second one after it. All before `KEPT_FROM` are truncated.
FIRST = [f"first-{number}-" + "x" * 40 for number in range(20)]
SECOND = [f"second-{number}" for number in range(5)]
KEPT_FROM = 7
_SETTINGS = BookKeeperSettings(truncate_interval_s=0.0, request_timeout_s=5.0, ledger_bytes=400, ledger_bytes_limit=800)
_BOOKIES = 3


class LedgerWorld:
    """Bookies, a coordination service, and processes with the log of container 0."""

    def __init__(self) -> None:
        settings = BookieSettings(latency_s_min=0.001, latency_s_max=0.002)
        self.bookies = SimulatedBookies(random.Random(1), _BOOKIES, settings)
        self._zookeeper = SimulatedZooKeeper(random.Random(2), ZooKeeperSettings(server_count=1))
        self._runtime = Runtime(disk=LocalDisk(), work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0)
        self.factories: list[BookKeeperLogFactory] = []

    def factory(self) -> BookKeeperLogFactory:
        """Begin another process."""
        number = len(self.factories)
        self.factories.append(
            BookKeeperLogFactory(
                SimulatedLedgers(self.bookies, random.Random(number)), self.service(f"host {number}"), self._runtime,
                _SETTINGS, cluster_id=CLUSTER_ID, container_count=1,
            )
        )  # fmt: skip
        return self.factories[-1]

    def service(self, host: str) -> SimulatedCoordination:
        """Return a client of the coordination service."""
        return SimulatedCoordination(self._zookeeper, host, random.Random(host))

    async def opened(self) -> BookKeeperLog:
        """Open the log in another process."""
        log = self.factory().create(0)
        await log.open()
        return log

    async def close(self) -> None:
        """End all processes."""
        for factory in self.factories:
            await factory.close()


async def append(log: BookKeeperLog, texts: list[str]) -> list[LogAddress]:
    """Append one frame after the other; return their addresses."""
    return [await log.append([text.encode()], len(text)) for text in texts]


def described(bookies: SimulatedBookies, record: bytes) -> dict[str, object]:
    """Return metadata of ledgers, entries, and the record, as JSON has them."""
    return {
        "path": record_path(0),
        "record": b64encode(record).decode(),
        "ledgers": [
            {
                "id": each.ledger_id,
                "quorum": [each.quorum.ensemble, each.quorum.ack],
                "labels": {name: b64encode(label).decode() for name, label in each.labels.items()},
                "ensembles": each.ensembles,
                "state": each.state.name,
                "last_entry": each.last_entry,
                "length_bytes": each.length_bytes,
                "version": each.version,
            }
            for each in bookies.ledgers.values()
        ],
        "entries": [
            [bookie.name, ledger, entry, b64encode(data).decode(), lac]
            for bookie in bookies.bookies.values()
            for ledger, entries in sorted(bookie.entries.items())
            for entry, (data, lac) in sorted(entries.items())
        ],
        "fenced": {bookie.name: sorted(bookie.fenced) for bookie in bookies.bookies.values()},
    }


def restore(bookies: SimulatedBookies, archive: dict[str, Any]) -> None:
    """Give bookies what those of an archive had. New ledgers have higher numbers."""
    numbers = {each["id"] for each in archive["ledgers"]}
    while bookies.create(LedgerQuorum(1, 1), {}).ledger_id < max(numbers):
        pass
    bookies.ledgers.clear()
    for each in archive["ledgers"]:
        bookies.ledgers[each["id"]] = LedgerMetadata(
            each["id"], LedgerQuorum(*each["quorum"]),
            {name: b64decode(label) for name, label in each["labels"].items()},
            tuple((first, tuple(names)) for first, names in each["ensembles"]),
            LedgerState[each["state"]], each["last_entry"], each["length_bytes"], each["version"],
        )  # fmt: skip
    for name, ledger, entry, data, lac in archive["entries"]:
        bookies.bookies[name].entries.setdefault(ledger, {})[entry] = (b64decode(data), lac)
    for name, ledgers in archive["fenced"].items():
        bookies.bookies[name].fenced.update(ledgers)


async def _written() -> dict[str, object]:
    world = LedgerWorld()
    first = await world.opened()
    addresses = await append(first, FIRST)
    await first.truncate(addresses[KEPT_FROM - 1])
    second = await world.opened()
    assert [frame.data.decode() async for frame in second.frames()] == FIRST[KEPT_FROM:]
    await append(second, SECOND)
    stored = await world.factories[-1].process.records.read(0)
    assert stored is not None
    found = described(world.bookies, stored.record.encode())
    await world.close()
    return found


def main(target: Path) -> None:
    """Write an archive."""
    found: list[dict[str, object]] = []

    async def write() -> None:
        found.append(await _written())

    with Simulation(1) as simulation:
        simulation.run(write)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(lzma.compress(json.dumps(found[0], sort_keys=True).encode(), preset=9))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
