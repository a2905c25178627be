"""`LogPlace`: the simulated bucket in which the stores of a cluster keep their logs, and their requests to it.

Each request is a call to a disk of the store's host (`Host.on_disk_call`), so that a process also dies at a request.
The bucket hangs for a host while the place of its logs stalls (`DiskStall` of ``/tier1/``).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock_simulation.simulated.host import Host
from penstock_simulation.simulated.objects import ObjectFaults, SimulatedBucket, SimulatedObjects
from penstock_simulation.simulated.remote_requests import WayToService
from penstock_simulation.simulated.simulation import Simulation

T = TypeVar("T")

#: Where the host's logs would be, for stalls.
_PATH = "/data/tier1/"
_PREFIX = "log"


@dataclass(frozen=True, slots=True)
class BucketLogSettings:
    """Logs in a bucket.

    Attributes:
        log: settings of the log.
        faults: what requests to the bucket meet.
        has_one_server: a store opens all logs as the only server, and ends when another server has started
            (`ServerClaim`). Only for stores with logs of their own.
    """

    log: ObjectLogSettings = field(default_factory=ObjectLogSettings)
    faults: ObjectFaults = field(default_factory=ObjectFaults)
    has_one_server: bool = False


class LogObjects(SimulatedObjects):
    """The bucket's client of a process on `host`.

    Attributes:
        request_counts: requests so far, by the name of the call.
    """

    def __init__(
        self, bucket: SimulatedBucket, rng: random.Random, faults: ObjectFaults, way: WayToService, host: Host
    ) -> None:
        super().__init__(bucket, rng, faults, way)
        self.request_counts: Counter[str] = Counter()
        self._host = host

    async def _attempt(self, call: str, effect: Callable[[], T]) -> T:
        self.request_counts[call] += 1
        self._host.on_disk_call(call, "bucket of the log")
        return await super()._attempt(call, effect)


class LogPlace:
    """See the module.

    Attributes:
        clients: one for each process that has used the bucket.
    """

    def __init__(self, simulation: Simulation, settings: BucketLogSettings, container_count: int) -> None:
        self.clients: list[LogObjects] = []
        self._simulation = simulation
        self._settings = settings
        self._container_count = container_count
        self._buckets: dict[str, SimulatedBucket] = {}
        self._is_healed = False

    def factory(self, host: Host, bucket: str, cluster_id: str) -> ObjectLogFactory:
        """Return the logs of one more process, which runs on `host`. `bucket`: stores with the same one share logs."""
        settings = self._settings
        name = f"{host.process.name}, process {len(self.clients)}"
        return ObjectLogFactory(
            self.objects(host, bucket),
            host.runtime,
            settings.log,
            prefix=_PREFIX,
            cluster_id=cluster_id,
            container_count=self._container_count,
            # Nothing shows that another process is dead.
            owner=LogOwner(host.runtime.random_id(), lambda token: True),
            server=name if settings.has_one_server else "",
        )

    def bucket(self, name: str) -> SimulatedBucket:
        """Return a bucket by its name. For inspection."""
        return self._buckets.setdefault(name, SimulatedBucket())

    def objects(self, host: Host, bucket: str) -> LogObjects:
        """Return the requests of one more process to a bucket with logs."""
        settings, simulation = self._settings, self._simulation
        name = f"{host.process.name}, process {len(self.clients)}"
        way = WayToService(simulation.loop, host.stalls, host.losses, _PATH)
        objects = LogObjects(
            self._buckets.setdefault(bucket, SimulatedBucket()),
            simulation.rng(f"log of {name}"),
            settings.faults,
            way,
            host,
        )
        if self._is_healed:
            objects.heal()
        self.clients.append(objects)
        return objects

    def heal(self) -> None:
        """End all faults of the bucket."""
        self._is_healed = True
        for client in self.clients:
            client.heal()
