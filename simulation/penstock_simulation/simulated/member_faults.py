"""Faults of a cluster of several machines, and what its operators do. Each is a kind of `faults.Fault`, see there."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_simulation.simulated.cluster_faults import ClusterFaults
from penstock_simulation.simulated.simulation import Simulation

#: In place of a host or server: all of them.
ALL = "all"
ALL_SERVERS = -1


@dataclass(frozen=True, slots=True)
class StoreKilled:
    """The process of a store is killed. `down_s`: its parent, too, and is started again after this; 0: only the store.

    The parent records the end of the store and starts another one. Without a parent nothing proves the end.
    """

    store: str
    down_s: float = 0.0

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        _cluster(simulation).kill_store(self.store, self.down_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.down_s


@dataclass(frozen=True, slots=True)
class MachinePause:
    """A store and its parent are paused."""

    store: str
    duration_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        _cluster(simulation).pause_machine(self.store, self.duration_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class MachineLost:
    """The machine of a store loses its power, with the store and its parent; it is back after `down_s`."""

    store: str
    down_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        _cluster(simulation).lose_machine(self.store, self.down_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.down_s


@dataclass(frozen=True, slots=True)
class CoordinationCut:
    """No packet passes between a host and the coordination service, or none in one direction."""

    host: str
    duration_s: float
    to_server: bool = True
    from_server: bool = True

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        _cluster(simulation).cut_coordination(
            self.host, self.duration_s, to_server=self.to_server, from_server=self.from_server
        )

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class CoordinationDown:
    """A server of the coordination service is down, or all are (`ALL_SERVERS`)."""

    server: int
    duration_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        _cluster(simulation).stop_coordination(self.server, self.duration_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class CoordinationLag:
    """A server of the coordination service that does not lead applies nothing, and answers from what it has."""

    server: int
    duration_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule its end."""
        _cluster(simulation).hold_coordination(self.server, self.duration_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class SessionsEnd:
    """The coordination service ends the sessions of a host, or of all (`ALL`)."""

    host: str

    def strike(self, simulation: Simulation) -> None:
        """Apply the fault."""
        _cluster(simulation).expire(self.host)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return 0.0


@dataclass(frozen=True, slots=True)
class SessionsEndForClient:
    """The sessions of a host end for it, and the coordination service keeps them, and their nodes, for their timeout.

    A server that loses its leadership may end a session that the next leader keeps.
    """

    host: str

    def strike(self, simulation: Simulation) -> None:
        """Apply the fault."""
        _cluster(simulation).expire_for_client(self.host)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return 0.0


@dataclass(frozen=True, slots=True)
class AnswersLost:
    """The next `count` changes of a host at the coordination service are made, and their answers are lost."""

    host: str
    count: int

    def strike(self, simulation: Simulation) -> None:
        """Apply the fault."""
        _cluster(simulation).lose_answers(self.host, self.count)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Drain:
    """An administrator drains a store, and ends the drain after `duration_s`."""

    store: str
    duration_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start it, and schedule its end."""
        _cluster(simulation).drain(self.store, self.duration_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the drain."""
        return self.duration_s


@dataclass(frozen=True, slots=True)
class OrderlyStop:
    """The parent of a store, or a controller, gets SIGTERM, and is started again `down_s` after it has ended."""

    host: str
    down_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start it; it ends by itself."""
        _cluster(simulation).stop(self.host, self.down_s)

    @property
    def lasts_s(self) -> float:
        """About the duration."""
        return self.down_s + 5.0


@dataclass(frozen=True, slots=True)
class AdministratorMove:
    """An administrator moves a container to a store."""

    container: int
    store: str

    def strike(self, simulation: Simulation) -> None:
        """Apply it."""
        _cluster(simulation).move(self.container, self.store)

    @property
    def lasts_s(self) -> float:
        """Duration."""
        return 0.0


MemberFault = (
    StoreKilled
    | MachinePause
    | MachineLost
    | CoordinationCut
    | CoordinationDown
    | CoordinationLag
    | SessionsEnd
    | SessionsEndForClient
    | AnswersLost
    | Drain
    | OrderlyStop
    | AdministratorMove
)


def _cluster(simulation: Simulation) -> ClusterFaults:
    assert simulation.cluster_faults is not None, "the plan is for a cluster of several machines: set cluster_faults"
    return simulation.cluster_faults
