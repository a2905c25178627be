"""`OperationsSettings`: the port on which a server process reports its health and its metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.errors import InvalidArgumentError
from penstock.operations.http_server import HttpServerSettings


@dataclass(frozen=True, slots=True)
class OperationsSettings:
    """Health and metrics over HTTP: ``/live``, ``/ready``, ``/v1/health`` and ``/metrics``. Off unless enabled.

    Attributes:
        is_enabled: whether to listen at all.
        port: the port; 0 takes any free one. With several segment stores, store n listens on this port plus 1 plus n.
        host: the address; empty: the server's own `host`.
        streams_max: streams with metrics of their own; all further ones share one series.
        http: limits of connections and requests.
    """

    is_enabled: bool = False
    port: int = 9600
    host: str = ""
    streams_max: int = 100
    http: HttpServerSettings = field(default_factory=HttpServerSettings)

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if not 0 <= self.port <= 65535:
            raise InvalidArgumentError(
                f"operations.port is {self.port}: a port is between 0 (any free one) and 65535"
            )
        if self.streams_max < 0:
            raise InvalidArgumentError(f"operations.streams_max is {self.streams_max}: it is 0 or more")
