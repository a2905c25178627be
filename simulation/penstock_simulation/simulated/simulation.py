"""`Simulation`: one seeded world: a loop, a network, hosts, and the trace of all events."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from penstock_simulation.simulated.cluster_faults import ClusterFaults
from penstock_simulation.simulated.disk_faults import NO_FAULTS, DiskFaults
from penstock_simulation.simulated.host import Host, Main
from penstock_simulation.simulated.links import NetworkSettings
from penstock_simulation.simulated.loop import LoopSettings, SimulatedLoop
from penstock_simulation.simulated.network import Network
from penstock_simulation.simulated.owner_changes import OwnerChanges
from penstock_simulation.simulated.trace import Trace
from penstock_simulation.simulated.work import WorkSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """Settings of the parts."""

    loop: LoopSettings = field(default_factory=LoopSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    work: WorkSettings = field(default_factory=WorkSettings)


class Simulation:
    """See the module. Close it when done, or use it as a context manager.

    ::

        with Simulation(seed=7) as simulation:
            store = simulation.host("store", main=run_store)
            client = simulation.host("client")

            async def scenario() -> None:
                await client.run(write_something(client))
                store.crash()

            simulation.run(scenario)
            print(simulation.trace.digest)

    The scenario is the driver: it runs outside of all hosts, is never slow and does not fail with them. Code under test
    belongs on hosts (`Host.run`, `Host.spawn`, `main`).
    """

    def __init__(self, seed: int, settings: SimulationSettings | None = None, *, trace: Trace | None = None) -> None:
        self.seed = seed
        self.settings: SimulationSettings = settings or SimulationSettings()
        self.trace: Trace = trace or Trace()
        self.loop: SimulatedLoop = SimulatedLoop(self.rng("loop"), self.trace, self.settings.loop)
        self.network: Network = Network(self.loop, self.rng("network"), self.settings.network)
        self.hosts: dict[str, Host] = {}
        #: Changes of containers' owners, for fault plans that include them.
        self.owner_changes: OwnerChanges | None = None
        #: What faults do to a cluster of several machines, for fault plans that include them.
        self.cluster_faults: ClusterFaults | None = None
        #: Gets each problem that a fault finds.
        self.problem: Callable[[str], None] = lambda text: None

    @property
    def work_settings(self) -> WorkSettings:
        """Durations of blocking work."""
        return self.settings.work

    def rng(self, purpose: str) -> random.Random:
        """Return the random generator for one purpose: separate generators limit the effects of a change in draws."""
        return random.Random(f"{self.seed}/{purpose}")

    def host(
        self,
        name: str,
        main: Main | None = None,
        *,
        disk_faults: DiskFaults = NO_FAULTS,
        restart_delay_s: float | None = None,
    ) -> Host:
        """Add a host and start its process. See `Host`."""
        if name in self.hosts:
            raise ValueError(f"there is a host {name} already")
        host = Host(self, name, main, disk_faults=disk_faults, restart_delay_s=restart_delay_s)
        self.hosts[name] = host
        return host

    def run(self, scenario: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run until the scenario ends; return its result. May be called again; hosts stay alive in between.

        Raises the scenario's errors, `DeadlockError`, `SimulationLimitError`.
        """

        async def play() -> T:
            return await scenario()

        return self.loop.run_until_complete(play())

    def close(self) -> None:
        """End all hosts and close the loop. Their clean-up code has no effect."""
        if self.loop.is_closed():
            return

        async def bury() -> None:
            self.loop.bury()

        # First, so that no host gets another turn.
        self.loop.kill_all()
        self.loop.run_until_complete(bury())
        self.loop.close()

    def __enter__(self) -> Simulation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
