"""`OwnerChanges`: what faults of owners ask of a cluster. The faults are in `owner_faults`."""

from __future__ import annotations

from typing import Protocol


class OwnerChanges(Protocol):
    """What changes owners in a cluster. Each call begins a change; a container that does not run now is left alone."""

    def take_over(self, container: int, *, is_patient: bool) -> None:
        """See `owner_faults.Takeover`."""

    def reassign(self, container: int, away_s: float) -> None:
        """See `owner_faults.Reassignment`."""

    def move(self, container: int, target: str, *, old_hears_s: float, new_hears_s: float) -> None:
        """See `owner_faults.Move`."""
