"""`ContainerLocator`: which segment store runs a container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.model.assignments import ContainerAssignment
from penstock.model.errors import ConnectionLostError
from penstock.model.names import segment_name
from penstock.model.routing import container_of


class ContainerLocator(Protocol):
    """Maps containers to segment stores. Answers from memory; never waits."""

    @property
    def container_count(self) -> int:
        """Number of containers of the cluster; never changes."""

    def endpoint_of(self, container_id: int) -> tuple[str, int] | None:
        """Return host and port of the store that runs a container, or None."""


@dataclass(frozen=True, slots=True)
class SingleStoreLocator:
    """`ContainerLocator` for one segment store that runs every container."""

    host: str
    port: int
    container_count: int = 4

    def endpoint_of(self, container_id: int) -> tuple[str, int] | None:
        """See `ContainerLocator.endpoint_of`."""
        return self.host, self.port


class AssignedLocator:
    """`ContainerLocator` for segment stores between which containers move.

    It names the store that a container is assigned to, even while that store is still starting the container or is
    briefly down: early requests are rejected there, and retried.
    """

    def __init__(self, assignment: ContainerAssignment, store_count: int) -> None:
        self.assignment = assignment
        self._endpoints: list[tuple[str, int] | None] = [None] * store_count
        self._local_endpoints: list[tuple[str, int] | None] = [None] * store_count

    @property
    def container_count(self) -> int:
        """See `ContainerLocator.container_count`."""
        return len(self.assignment.owners)

    def set_endpoint(self, store: int, host: str, port: int, *, local_host: str = "") -> None:
        """Set a store's endpoint. `local_host`: its address from this process, if that differs."""
        self._endpoints[store] = (host, port)
        self._local_endpoints[store] = (local_host or host, port)

    def endpoint_of(self, container_id: int) -> tuple[str, int] | None:
        """See `ContainerLocator.endpoint_of`."""
        return self._endpoints[self.assignment.owner_of(container_id)]

    async def resolve_locally(self, segment: str) -> tuple[str, int]:
        """Return the endpoint of a segment, given by its full name, as seen from this process; for connection pools.

        Raises `ConnectionLostError` if its store has not registered its endpoint yet; a retry is safe.
        """
        container_id = container_of(segment, self.container_count)
        found = self._local_endpoints[self.assignment.owner_of(container_id)]
        if found is None:
            raise ConnectionLostError(f"{segment}: the segment store of container {container_id} has not started yet")
        return found


def endpoint_of_segment(locator: ContainerLocator, scope: str, stream: str, segment: int) -> tuple[str, int] | None:
    """Return the endpoint of a segment, computed from its name: the segment need not exist."""
    return locator.endpoint_of(container_of(segment_name(scope, stream, segment), locator.container_count))
