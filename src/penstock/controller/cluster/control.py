"""`ClusterControl`: what a controller answers about the members of its cluster, and changes for administrators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.controller.cluster.view import ClusterView
from penstock.model.assignment_plan import Move
from penstock.model.cluster_nodes import ClusterIdentity, ControllerNode


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """State of a cluster as it was read.

    Attributes:
        identity: see there.
        view: stores, assignment, holders.
        controllers: by name.
        leader: name of the controller that leads; empty: none.
    """

    identity: ClusterIdentity
    view: ClusterView
    controllers: Mapping[str, ControllerNode]
    leader: str

    @property
    def unserved(self) -> list[int]:
        """The containers that no live store serves."""
        held = self.view.held
        return [
            number
            for number in range(self.identity.container_count)
            if number not in held or held[number].phase != "serving" or held[number].owner not in self.view.hosts
        ]


class ClusterControl(Protocol):
    """The members of a cluster on several machines. `by`: who changes something, for people.

    All raise `ControllerUnavailableError` while the coordination service cannot be reached, and `FinalArgumentError`
    for what cannot be done. Dry runs change nothing. Returned are the moves that follow.
    """

    async def status(self) -> ClusterStatus:
        """Read the state of the cluster."""

    async def drain(self, store: str, by: str, *, is_dry: bool) -> Sequence[Move]:
        """Have a store emptied. Safe to repeat."""

    async def undrain(self, store: str, by: str, *, is_dry: bool) -> Sequence[Move]:
        """End a drain."""

    async def move(self, container_id: int, store: str, by: str, *, is_dry: bool) -> Sequence[Move]:
        """Assign a container to a store. Safe to repeat."""

    async def balance(self, by: str, *, is_dry: bool) -> Sequence[Move]:
        """Even out the stores. Safe to repeat."""
