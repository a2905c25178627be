"""`ContainerLocator`: which segment store runs a container."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.model.names import segment_name
from penstock.model.routing import container_of


class ContainerLocator(Protocol):
    """Knows the segment stores. Answers from memory; never waits."""

    @property
    def container_count(self) -> int:
        """Number of containers of the cluster; never changes."""

    def endpoint_of(self, container_id: int) -> tuple[str, int] | None:
        """Return host and port of the store that runs a container, None while nobody does."""


@dataclass(frozen=True, slots=True)
class SingleStoreLocator:
    """`ContainerLocator` for one segment store that runs every container."""

    host: str
    port: int
    container_count: int = 4

    def endpoint_of(self, container_id: int) -> tuple[str, int] | None:
        """See `ContainerLocator.endpoint_of`."""
        return self.host, self.port


def endpoint_of_segment(locator: ContainerLocator, scope: str, stream: str, segment: int) -> tuple[str, int] | None:
    """Return where a segment is, by its name alone: the segment need not exist."""
    return locator.endpoint_of(container_of(segment_name(scope, stream, segment), locator.container_count))
