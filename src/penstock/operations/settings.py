"""`OperationsSettings`: the port on which a server process reports its health and its metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.fixed_values import fixed


@dataclass(frozen=True, slots=True)
class HttpServerSettings:
    """Limits of the HTTP port for health and metrics.

    Attributes:
        connections_max: connections served at once; further ones are closed.
        request_bytes_max: length of a request line with its headers.
        request_timeout_s: time to receive a request, to answer it, and to send the answer, each.
        idle_timeout_s: how long an idle connection is kept.
    """

    connections_max: int = fixed(32)
    request_bytes_max: int = fixed(16 * 1024)
    request_timeout_s: float = fixed(10.0)
    idle_timeout_s: float = fixed(75.0)


@dataclass(frozen=True, slots=True)
class OperationsSettings:
    """Health and metrics over HTTP: ``/live``, ``/ready``, ``/v1/health`` and ``/metrics``. Off unless enabled.

    Attributes:
        is_enabled: whether to listen at all.
        port: the port; 0 takes any free one. With several segment stores, store n listens on this port plus 1 plus n.
        host: the address; empty: the server's own `host`.
        tls: whether the port is encrypted, with the certificate of the other ports. Needs `security.tls`. The port is
            then open only after the server has read its certificate.
        streams_max: streams with metrics of their own; all further ones share one series.
        groups_max: reader groups with metrics of their lag, for each controller; others have none.
        http: limits of connections and requests.
    """

    is_enabled: bool = False
    port: int = 9600
    host: str = ""
    tls: bool = False
    streams_max: int = 100
    groups_max: int = 100
    http: HttpServerSettings = field(default_factory=HttpServerSettings)

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if not 0 <= self.port <= 65535:
            raise InvalidArgumentError(f"operations.port is {self.port}: a port is between 0 (any free one) and 65535")
        for name in ("streams_max", "groups_max"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(f"operations.{name} is {getattr(self, name)}: it is 0 or more")
