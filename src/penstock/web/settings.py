"""`WebSettings`: the port and the limits of the web server."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Limits of the web server.

    Attributes:
        hosts: names under which clients may reach it, besides those of this machine: other ``Host`` headers are
            refused, so that a web page of another site cannot use it through the user's browser.
        body_bytes_max: length of the body of a request.
        requests_max: requests served at once; further ones get status 503.
        request_timeout_s: time to receive a request, and time to answer it.
        tails_max: streams followed at once over server-sent events; further ones get status 503.
        clients_max: connections to the cluster, one for each account; the one unused for longest is closed.
    """

    hosts: tuple[str, ...] = ()
    body_bytes_max: int = 1024 * 1024
    requests_max: int = 64
    request_timeout_s: float = 30.0
    tails_max: int = 64
    clients_max: int = 64

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        for name in ("body_bytes_max", "requests_max", "request_timeout_s", "tails_max", "clients_max"):
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(f"{name} of the web server is {getattr(self, name)}: it is above 0")
