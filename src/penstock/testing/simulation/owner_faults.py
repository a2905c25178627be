"""Faults of who owns a container: taken over, taken away, moved. Each is a kind of `faults.Fault`, see there."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.testing.simulation.owner_changes import OwnerChanges
from penstock.testing.simulation.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Takeover:
    """The log of a container is opened a second time in its store, beside the first, which does not know.

    With `is_patient` the second one waits until the first can answer no read any more, as it should.
    """

    container: int
    is_patient: bool

    def strike(self, simulation: Simulation) -> None:
        """Begin; it ends by itself."""
        _changes(simulation).take_over(self.container, is_patient=self.is_patient)

    @property
    def lasts_s(self) -> float:
        """How long it lasts: whoever plays the plan waits for its end."""
        return 0.0


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A container is taken from its store, which stops it in order, and given back after `away_s`."""

    container: int
    away_s: float

    def strike(self, simulation: Simulation) -> None:
        """Begin; it ends by itself."""
        _changes(simulation).reassign(self.container, self.away_s)

    @property
    def lasts_s(self) -> float:
        """How long it lasts."""
        return self.away_s


@dataclass(frozen=True, slots=True)
class Move:
    """A container is given to another store. Either hears of it late: the old one serves on meanwhile, as a zombie."""

    container: int
    target: str
    old_hears_s: float
    new_hears_s: float

    def strike(self, simulation: Simulation) -> None:
        """Begin; it ends by itself."""
        _changes(simulation).move(
            self.container, self.target, old_hears_s=self.old_hears_s, new_hears_s=self.new_hears_s
        )

    @property
    def lasts_s(self) -> float:
        """How long it lasts."""
        return max(self.old_hears_s, self.new_hears_s)


def _changes(simulation: Simulation) -> OwnerChanges:
    assert simulation.owner_changes is not None, "the plan changes owners, and nobody said how: set owner_changes"
    return simulation.owner_changes
