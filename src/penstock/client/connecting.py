"""`connect`: the door to the blocking client. What is behind it is loaded when it is opened.

So a program that names `connect` among its imports and does not call it starts without gRPC, asyncio and the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from penstock.client.settings import ClientSettings
    from penstock.client.sync import Client
    from penstock.runtime.runtime import Runtime


def connect(
    controller_uri: str | None = None,
    settings: ClientSettings | None = None,
    *,
    runtime: Runtime | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> Client:
    """Return a client of the cluster whose controller is at `controller_uri`, as ``tcp://localhost:9090``.

    Without it, `PENSTOCK_URI` of the environment counts, then ``tcp://localhost:9090``. Nothing is connected before the
    first request. The client owns a thread with an event loop until it is closed.
    """
    from penstock.client import client
    from penstock.client.sync import Client

    return Client(client.connect(controller_uri, settings, runtime=runtime, ssl_context=ssl_context))
