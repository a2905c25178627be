"""`Assignment`: which store of a simulated cluster has each container."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.routing import container_of

SEGMENT_STORE_PORT = 6000


class Assignment:
    """Owner of each container, as the coordinator has it: the `ContainerLocator` of a simulated cluster."""

    def __init__(self, stores: Sequence[str], container_count: int) -> None:
        self._owners = [stores[container_id % len(stores)] for container_id in range(container_count)]

    @property
    def container_count(self) -> int:
        """Containers of the cluster."""
        return len(self._owners)

    def owner(self, container_id: int) -> str:
        """Return the store that has a container."""
        return self._owners[container_id]

    def give(self, container_id: int, store: str) -> None:
        """Assign a container to another store. The stores are not notified; see `SimulatedCluster.tell`."""
        self._owners[container_id] = store

    def containers_of(self, store: str) -> list[int]:
        """Return the containers that a store has."""
        return [container_id for container_id, owner in enumerate(self._owners) if owner == store]

    def endpoint_of(self, container_id: int) -> tuple[str, int] | None:
        """See `ContainerLocator.endpoint_of`."""
        return self._owners[container_id], SEGMENT_STORE_PORT

    async def endpoint_of_segment(self, segment: str) -> tuple[str, int]:
        """Return host and port of a segment, given by its full name."""
        return self._owners[container_of(segment, len(self._owners))], SEGMENT_STORE_PORT
