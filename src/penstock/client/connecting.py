"""`connect`: opens the blocking client, whose modules are loaded at the first call.

So a program that imports `connect` and does not call it starts without gRPC, asyncio and the other modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    import ssl

    from penstock.client.settings import ClientSettings
    from penstock.client.sync import Client
    from penstock.runtime.client_security import Credentials
    from penstock.runtime.runtime import Runtime


def connect(
    controller_uri: str | None = None,
    settings: ClientSettings | None = None,
    *,
    runtime: Runtime | None = None,
    ssl_context: ssl.SSLContext | None = None,
    credentials: Credentials | None = None,
    ca: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    private_key: str | os.PathLike[str] | None = None,
) -> Client:
    """Return a client of the cluster whose controller is at `controller_uri`, as ``tcp://localhost:9090``.

    Without `controller_uri`, the environment variable `PENSTOCK_URI` applies, then ``tcp://localhost:9090``. ``tls://``
    connects to a server with TLS; `ca`: a PEM file with the certificates of the authorities that are trusted, by
    default those of the system. `credentials`: the account; or `certificate` and `private_key`: PEM files of a client
    certificate that represents the account. Without them, the variables `PENSTOCK_CA`, `PENSTOCK_USER`,
    `PENSTOCK_PASSWORD_FILE`, `PENSTOCK_CERTIFICATE` and `PENSTOCK_PRIVATE_KEY` apply. Nothing is
    connected before the first request. The client owns a thread with an event loop until it is closed.
    """
    from penstock.client import client
    from penstock.client.sync import Client

    return Client(
        client.connect(
            controller_uri,
            settings,
            runtime=runtime,
            ssl_context=ssl_context,
            credentials=credentials,
            ca=ca,
            certificate=certificate,
            private_key=private_key,
        )
    )
