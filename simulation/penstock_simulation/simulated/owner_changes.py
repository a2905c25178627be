"""`OwnerChanges`: the interface of a cluster to faults of owners. The faults are in `owner_faults`."""

from __future__ import annotations

from typing import Protocol


class OwnerChanges(Protocol):
    """Changes owners in a cluster. Each call starts a change; a container that is not running is left alone."""

    def take_over(self, container: int, *, is_patient: bool) -> None:
        """See `owner_faults.Takeover`."""

    def reassign(self, container: int, away_s: float) -> None:
        """See `owner_faults.Reassignment`."""

    def move(self, container: int, target: str, *, old_hears_s: float, new_hears_s: float) -> None:
        """See `owner_faults.Move`."""

    def give_away(self, host: str, *, old_hears_s: float) -> None:
        """Move all containers of a store that hangs to other stores: see `hangs.Hang`."""
