"""`memory_server`: a complete in-memory Penstock in this process, on free ports, for tests of applications.

Unlike the simulation it uses real sockets and real time, as in production, but no disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock.runtime.portal import Portal

if TYPE_CHECKING:
    from penstock import Client
    from penstock.client.settings import ClientSettings

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 30.0


class MemoryServer:
    """A running server. Made by `memory_server`.

    Attributes:
            uri: address of its controller, for `penstock.connect` and for other Pravega clients.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def connect(self, settings: ClientSettings | None = None) -> Client:
        """Return a client of this server; close it, or use it as a context manager."""
        from penstock.client.connecting import connect

        return connect(self.uri, settings)

    def __repr__(self) -> str:
        return f"<MemoryServer: {self.uri}>"


@contextmanager
def memory_server() -> Iterator[MemoryServer]:
    """Run a server in a background thread while the block runs; its data is discarded at the end.

    Starting takes some tenths of a second. Several may run at the same time.
    """
    # Imported late: a test session without a server should not load it.
    from penstock.server.settings import StandaloneSettings
    from penstock.server.standalone import Standalone

    settings = StandaloneSettings(is_memory=True, host="127.0.0.1", controller_port=0, segment_store_port=0)
    portal = Portal("penstock-memory-server")
    try:
        server = Standalone(settings)
        portal.call(server.start(), _START_TIMEOUT_S)
        try:
            yield MemoryServer(server.controller_uri)
        finally:
            portal.call(server.stop(), _STOP_TIMEOUT_S)
    finally:
        portal.close()
