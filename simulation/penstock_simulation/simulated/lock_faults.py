"""`LockGone`: an operator removes the lock file of a data directory while its server runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from penstock.server.data_directory import LOCK_NAME
from penstock_simulation.simulated.disk_nodes import FileNode
from penstock_simulation.simulated.log_faults import epochs_of
from penstock_simulation.simulated.simulation import Simulation

_DATA = "/data"
#: The server of the host must have ended by then: it checks its lock each second, and its disk may be slow.
_ENDS_WITHIN_S = 4.0


@dataclass(frozen=True, slots=True)
class LockGone:
    """The lock file of a running server is removed.

    With `is_taken` another server locks a new file at once, and is held for `duration_s`. It is stopped then, without a
    change of any log: so all that the first one has acknowledged must be there. A container of the first one restarts
    meanwhile, as after an error of its log.
    """

    host: str
    is_taken: bool
    duration_s: float

    def strike(self, simulation: Simulation) -> None:
        """Remove the file, and schedule the rest."""
        host, loop = simulation.hosts[self.host], simulation.loop
        if not host.is_up:
            return
        file = host.disk.replace_lock(f"{_DATA}/{LOCK_NAME}", is_taken=self.is_taken)
        if file is None:
            return
        if simulation.owner_changes is not None:
            simulation.owner_changes.reassign(0, 0.01)
        if self.is_taken:
            epochs = epochs_of(host)
            loop.at(loop.now_s + _ENDS_WITHIN_S, partial(self._check_ended, simulation, host.life, file))
            loop.at(loop.now_s + self.duration_s, partial(self._end, simulation, epochs, file))

    def _check_ended(self, simulation: Simulation, life: int, file: FileNode) -> None:
        host = simulation.hosts[self.host]
        if host.disk.is_taken(file) and host.is_up and host.life == life and not host.held_s:
            simulation.problem(
                f"{host.name} still serves {_ENDS_WITHIN_S:g} s after another server locked its directory"
            )

    def _end(self, simulation: Simulation, before: Mapping[int, int], file: FileNode) -> None:
        host = simulation.hosts[self.host]
        claimed = [number for number, epoch in epochs_of(host).items() if epoch > before.get(number, 0)]
        if host.disk.is_taken(file) and claimed:
            simulation.problem(f"{host.name} has claimed logs {claimed} while another server had locked its directory")
        host.disk.give_lock_back(file)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.duration_s
