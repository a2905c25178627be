"""A TCP proxy that drops established flows without a word, as a firewall does that forgot them. New flows pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class DroppingProxy:
    """Forwards connections to a port of this machine. After `drop` no byte of the connections so far passes."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._dropped: set[asyncio.Task[None]] = set()
        self._flows: set[asyncio.Task[None]] = set()
        self._generation = 0
        self.port = 0
        self.connection_count = 0

    def drop(self) -> None:
        """Discard everything that the connections so far send from now on, in both directions."""
        self._generation += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        generation = self._generation
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            await asyncio.gather(self._pump(reader, far_writer, generation), self._pump(far_reader, writer, generation))
        except asyncio.CancelledError:
            pass  # The end of the test. asyncio's own callback does not expect a cancelled task.
        finally:
            for each in (writer, far_writer):
                each.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, generation: int) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if generation == self._generation:
                    writer.write(data)
                    await writer.drain()
            if generation == self._generation:
                writer.close()


@asynccontextmanager
async def dropping_proxy(target_port: int) -> AsyncIterator[DroppingProxy]:
    """Run a proxy on a free port."""
    proxy = DroppingProxy(target_port)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
