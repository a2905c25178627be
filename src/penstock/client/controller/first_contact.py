"""Probes a controller's address that never replied as one, so that the error can advise what to do."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from penstock.client.settings import ClientSettings
from penstock.model.errors import ConnectionLostError, ProtocolError
from penstock.wire.connection import ConnectionSettings, WireConnection, open_connection

#: Time limit of the probe, on top of `first_contact_timeout_s`: together they stay below 2 s.
PROBE_TIMEOUT_S = 0.3


class _Probe(WireConnection):
    """A connection to a server that need not be a segment store."""

    def _tell_broken(self, error: ProtocolError) -> None:
        """Log nothing: the probe expects other protocols."""


async def describe_address(
    addresses: Sequence[str], settings: ClientSettings, tls: ssl.SSLContext | None = None
) -> str:
    """Describe the server that listens at an address, ``host:port``, with advice. Greets it as a segment store.

    `tls`: the context of encrypted connections; None: the client does not encrypt.
    """
    start = "'penstock standalone' starts a server on this machine"
    if len(addresses) > 1:
        return f"check that servers run there ({start})"
    host, _, port = addresses[0].rpartition(":")
    probe = ConnectionSettings(
        connect_timeout_s=PROBE_TIMEOUT_S,
        request_timeout_s=PROBE_TIMEOUT_S,
        keepalive_interval_s=settings.keepalive_interval_s,
    )
    if (problem := await _tls_problem(host.strip("[]"), int(port), tls)) is not None:
        return problem
    if tls is not None:
        return f"check that a controller runs there ({start})"
    try:
        connection = await open_connection(host.strip("[]"), int(port), settings=probe, factory=_Probe)
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


async def _tls_problem(host: str, port: int, tls: ssl.SSLContext | None) -> str | None:
    """Return why client and server do not agree on encryption; None if they do, or nothing answers."""
    context = tls
    if context is None:
        # Whether the server encrypts. Nothing is sent, so its certificate need not be trusted.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            transport, first = await asyncio.get_running_loop().create_connection(_First, host, port, ssl=context)
    except ssl.SSLCertVerificationError as error:
        if tls is None:
            return None
        if "hostname mismatch" in error.verify_message.lower() or "ip address mismatch" in error.verify_message.lower():
            return f"the server's certificate is not for {host}: connect by a name in it ({error.verify_message})"
        if "expired" in error.verify_message:
            return f"the server's certificate is not valid at this time ({error.verify_message}); is a clock wrong?"
        return (
            f"the server's certificate is not trusted ({error.verify_message}): name the file with its certificate "
            "authority, ca= or PENSTOCK_CA; 'penstock standalone --secure' writes security/ca.crt in its data directory"
        )
    except ssl.SSLError:
        return (
            None
            if tls is None
            else "the server at this address does not use TLS: connect with tcp:// instead of tls://"
        )
    except (OSError, TimeoutError):
        return None
    if tls is None:
        transport.close()
        return "the server at this address uses TLS: connect with tls:// instead of tcp://"
    await asyncio.wait([first.is_closed_unread], timeout=PROBE_TIMEOUT_S)
    is_refused = first.is_closed_unread.done() and first.is_closed_unread.result()
    transport.close()
    if not is_refused:
        return None
    return (
        "the server at this address requires a client certificate, or does not accept this client's: give certificate= "
        "and private_key=, or PENSTOCK_CERTIFICATE and PENSTOCK_PRIVATE_KEY, of an authority in its security.client_ca"
    )


class _First(asyncio.Protocol):
    """Notes whether a server closes an encrypted connection without a byte.

    A server of gRPC sends first. Since TLS 1.3 it verifies the certificate of a client after the client's handshake is
    complete, and then closes.
    """

    def __init__(self) -> None:
        self.is_closed_unread: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if not self.is_closed_unread.done():
            self.is_closed_unread.set_result(False)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if not self.is_closed_unread.done():
            self.is_closed_unread.set_result(True)
