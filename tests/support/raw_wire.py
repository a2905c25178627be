"""`RawWire`: one asyncio connection to a segment store that says exactly what a test wants said."""

from __future__ import annotations

import asyncio
import struct
from typing import TypeVar

from penstock.wire.codec import decode, encode
from penstock.wire.commands import AppendBlockEnd, Hello, WireCommand

C = TypeVar("C", bound=WireCommand)


class RawWire:
    """Sends commands or raw bytes, receives commands; `None` is the end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, *, greet: bool = True) -> RawWire:
        """Connect, and send the greeting unless it is switched off."""
        wire = cls(*await asyncio.open_connection("127.0.0.1", port))
        if greet:
            await wire.ask(Hello(16, 5), Hello)
        return wire

    def send(self, *commands: WireCommand) -> None:
        """Send commands back to back."""
        self.writer.write(b"".join(map(encode, commands)))

    async def receive(self) -> WireCommand | None:
        """Return the next command."""
        async with asyncio.timeout(60):
            try:
                type_code, length = struct.unpack(">ii", await self.reader.readexactly(8))
                return decode(type_code, await self.reader.readexactly(length))
            except (asyncio.IncompleteReadError, ConnectionError):
                return None

    async def expect(self, kind: type[C]) -> C:
        """Return the next command, which must be of `kind`."""
        command = await self.receive()
        assert isinstance(command, kind), command
        return command

    async def ask(self, command: WireCommand, kind: type[C]) -> C:
        """Send a command and return its reply."""
        self.send(command)
        return await self.expect(kind)

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return  # The server was faster.


def block(writer_id: bytes, number: int, data: bytes, *, request_id: int = 0, events: int = 1) -> AppendBlockEnd:
    """Return an append as Rust clients send it."""
    return AppendBlockEnd(writer_id, len(data), data, events, number, request_id)
