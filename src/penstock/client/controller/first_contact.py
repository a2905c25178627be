"""Probes a controller's address that never replied as one, so that the error can advise what to do."""

from __future__ import annotations

from penstock.client.settings import ClientSettings
from penstock.model.errors import ConnectionLostError, ProtocolError
from penstock.wire.connection import ConnectionSettings, WireConnection, open_connection

#: Time limit of the probe, on top of `first_contact_timeout_s`: together they stay below 2 s.
LOOK_TIMEOUT_S = 0.3


class _Look(WireConnection):
    """A connection to a server that need not be a segment store."""

    def _tell_broken(self, error: ProtocolError) -> None:
        """Log nothing: the probe expects other protocols."""


async def describe_address(target: str, settings: ClientSettings) -> str:
    """Describe the server that listens at `target`, ``host:port``, with advice. Greets it as a segment store."""
    start = "'penstock standalone' starts a server on this machine"
    if target.startswith("ipv4:"):
        return f"check that servers run there ({start})"
    host, _, port = target.rpartition(":")
    look = ConnectionSettings(
        connect_timeout_s=LOOK_TIMEOUT_S,
        request_timeout_s=LOOK_TIMEOUT_S,
        keepalive_interval_s=settings.keepalive_interval_s,
    )
    try:
        connection = await open_connection(host.strip("[]"), int(port), settings=look, factory=_Look)
    except ConnectionLostError as error:
        if isinstance(error.__cause__, TimeoutError):
            return f"no answer from this address: check it, or start a server ({start})"
        if isinstance(error.__cause__, ProtocolError):
            return f"the server there does not answer as a controller: check the address, or wait for it ({start})"
        if isinstance(error.__cause__, OSError) and not isinstance(error.__cause__, ConnectionResetError):
            return f"no server listens at this address: check it, or start a server ({start})"
        return f"the server at this address is not a controller: check the address ({start})"
    except ProtocolError:
        return f"the server at this address is not a controller: check the address ({start})"
    await connection.close()
    return "a segment store listens at this address: give the controller's address, port 9090 by default"
