"""`ContainerAssignment`: which segment store is to run which containers.

An assignment is a wish, never a proof: a container belongs to whoever opened its log last. So it may be late or wrong
in both directions and does no harm. Source: segment store specification, rules R1.4 and R1.10.
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
        """Return the ids of the containers that a store is to run, ascending."""
        return tuple(container_id for container_id, owner in enumerate(self.owners) if owner == store)

    def owner_of(self, container_id: int) -> int:
        """Return the number of the store that is to run a container."""
        return self.owners[container_id]


def share_out(container_count: int, store_count: int, available: Collection[int]) -> ContainerAssignment:
    """Give each container to a store: to its home, store ``id % store_count``, if that is among the available ones.

    The containers of the others are dealt out to the available ones in turn. A container moves only if its home came or
    went, or if it is away from home. With nobody available everything is at home. Raises `InvalidArgumentError`.
    """
    if store_count < 1 or not all(0 <= store < store_count for store in available):
        raise InvalidArgumentError(f"{store_count} segment stores, of which {sorted(available)} are available")
    hosts = sorted(available) or list(range(store_count))
    owners: list[int] = []
    for container_id in range(container_count):
        home = container_id % store_count
        # The home's number is in the sum, so that the guests of two absent stores don't all go to the same host.
        owners.append(home if home in hosts else hosts[(container_id // store_count + home) % len(hosts)])
    return ContainerAssignment(tuple(owners))
