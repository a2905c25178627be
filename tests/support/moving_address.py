"""`MovingAddress`: ports of 127.0.0.1 behind which one server after the other stands, each on a loopback address.

A process of its own forwards the connections: the PyPI client holds the interpreter's lock while it connects. It
prints its ports; each line of its input is the address of the server from then on.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType


class MovingAddress:
    """Forwards connections to two free ports of 127.0.0.1 to the same ports of the host that `move` has named last.

    As with the address of a machine that another one takes: connections of before stay with the server that they were
    made to, until it ends.
    """

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.ports: list[int] = [int(port) for port in self._process.stdout.readline().split()]

    def move(self, host: str) -> None:
        """Give the address to the server on `host`; return when it has it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{host}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{host}\n"

    def __enter__(self) -> MovingAddress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


class _Forwarder:
    """The process: see the module."""

    host = ""

    async def run(self) -> None:
        """Listen, and follow the input to its end."""
        servers = [await asyncio.start_server(self._forward, "127.0.0.1", 0) for _ in range(2)]
        print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)  # noqa: T201  # For its parent.
        while line := await asyncio.to_thread(sys.stdin.readline):
            self.host = line.strip()
            sys.stdout.write(line)
            sys.stdout.flush()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        try:
            far_reader, far_writer = await asyncio.open_connection(self.host, port)
        except OSError:
            writer.transport.abort()  # No server.
            return
        ends = [asyncio.ensure_future(_pump(reader, far_writer)), asyncio.ensure_future(_pump(far_reader, writer))]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        for each in (writer, far_writer):
            each.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":
    asyncio.run(_Forwarder().run())
