"""`ContainerAssignment`: the segment store that should run each container.

An assignment is a target, not a proof of ownership: a container belongs to the store that opened its log last. A late
or wrong assignment is therefore harmless. Source: segment-store R1.4 and R1.10.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class ContainerAssignment:
    """The desired owner of every container.

    `owners`: for each container id, in order, the number of its segment store.
    """

    owners: tuple[int, ...]

    def containers_of(self, store: int) -> tuple[int, ...]:
        """Return the ids of the containers assigned to a store, ascending."""
        return tuple(container_id for container_id, owner in enumerate(self.owners) if owner == store)

    def owner_of(self, container_id: int) -> int:
        """Return the number of the store that a container is assigned to."""
        return self.owners[container_id]


def share_out(container_count: int, store_count: int, available: Collection[int]) -> ContainerAssignment:
    """Assign each container to its home store, ``id % store_count``, if that is available, else to another store.

    Containers whose home is unavailable are distributed over the available stores in turn. A container moves only if
    its home became available or unavailable, or if it is away from home. If no store is available, every container is
    assigned to its home. Raises `InvalidArgumentError`.
    """
    if store_count < 1 or not all(0 <= store < store_count for store in available):
        raise InvalidArgumentError(f"{store_count} segment stores, of which {sorted(available)} are available")
    hosts = sorted(available) or list(range(store_count))
    owners: list[int] = []
    for container_id in range(container_count):
        home = container_id % store_count
        # The sum includes the home's number, so that the containers of two absent stores do not all go to the same
        # host.
        owners.append(home if home in hosts else hosts[(container_id // store_count + home) % len(hosts)])
    return ContainerAssignment(tuple(owners))
