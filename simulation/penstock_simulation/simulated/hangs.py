"""`Hang`: a server's event loop is held in the middle of a turn. A kind of `faults.Fault`, see there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.simulation import Simulation

#: A process that does not answer for this long counts as hung.
NOTICED_AFTER_S = 0.4
_DOWN_S = 0.2


@dataclass(frozen=True, slots=True)
class Hang:
    """A server takes this much CPU time between two callbacks of one turn; its threads continue.

    If it is still held when that is noticed, it is killed and started again (`is_killed`), or its containers are moved
    to other stores, if the stores share their storage: a supervisor that must not kill does the latter.
    """

    host: str
    duration_s: float
    is_killed: bool

    def strike(self, simulation: Simulation) -> None:
        """Start the fault, and schedule what follows."""
        host, loop = simulation.hosts[self.host], simulation.loop
        if not host.is_up:
            return
        host.stall(self.duration_s)
        loop.at(loop.now_s + NOTICED_AFTER_S, partial(self._notice, simulation, host.life))

    def _notice(self, simulation: Simulation, life: int) -> None:
        host, loop = simulation.hosts[self.host], simulation.loop
        if not host.is_up or host.life != life or not host.is_busy:
            return
        if self.is_killed:
            host.crash(Death.KILL)
            loop.at(loop.now_s + _DOWN_S, host.restart)
        elif simulation.owner_changes is not None:
            simulation.owner_changes.give_away(self.host, old_hears_s=self.duration_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s + _DOWN_S
