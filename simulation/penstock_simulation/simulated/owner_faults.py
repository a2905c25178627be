"""Faults of a container's ownership: taken over, taken away, moved. Each is a kind of `faults.Fault`, see there."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_simulation.simulated.owner_changes import OwnerChanges
from penstock_simulation.simulated.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Takeover:
    """The log of a container is opened a second time in its store, without notice to the first owner.

    With `is_patient` the second owner waits until the first can no longer answer reads, as it should.
    """

    container: int
    is_patient: bool

    def strike(self, simulation: Simulation) -> None:
        """Start the fault; it ends by itself."""
        _changes(simulation).take_over(self.container, is_patient=self.is_patient)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault: the plan's player waits for its end."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A container is taken from its store, which stops it cleanly, and given back after `away_s`."""

    container: int
    away_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault; it ends by itself."""
        _changes(simulation).reassign(self.container, self.away_s)

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return self.away_s


@dataclass(frozen=True, slots=True)
class Move:
    """A container moves to another store. Both are notified late: the old one keeps serving meanwhile, as a zombie."""

    container: int
    target: str
    old_hears_s: float
    new_hears_s: float

    def strike(self, simulation: Simulation) -> None:
        """Start the fault; it ends by itself."""
        _changes(simulation).move(
            self.container, self.target, old_hears_s=self.old_hears_s, new_hears_s=self.new_hears_s
        )

    @property
    def lasts_s(self) -> float:
        """Duration of the fault."""
        return max(self.old_hears_s, self.new_hears_s)


def _changes(simulation: Simulation) -> OwnerChanges:
    assert simulation.owner_changes is not None, "the plan changes owners: set owner_changes"
    return simulation.owner_changes
