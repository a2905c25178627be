"""`WireClient`: one blocking connection to a segment store that says exactly what a test wants said."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import TypeVar

from penstock.wire.codec import decode, encode
from penstock.wire.commands import Hello, ReadSegment, SegmentRead, WireCommand

C = TypeVar("C", bound=WireCommand)

READ_LENGTH = 1024 * 1024


class WireClient:
    """Sends commands or raw bytes, receives commands. Raises `EOFError` when the server has closed, `TimeoutError`."""

    def __init__(self, port: int, *, timeout_s: float = 10.0, greet: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._last_request_id = 0
        if greet:
            self.send(Hello(16, 5))
            self.receive(Hello)

    def next_id(self) -> int:
        """Return a request id that was not used on this connection."""
        self._last_request_id += 1
        return self._last_request_id

    def send(self, *commands: WireCommand) -> None:
        """Send commands back to back."""
        self.socket.sendall(b"".join(map(encode, commands)))

    def receive(self, kind: type[C] = WireCommand) -> C:  # type: ignore[assignment]  # A default for any command.
        """Return the next command, which must be of `kind`."""
        type_code, length = struct.unpack(">ii", self._read(8))
        command = decode(type_code, self._read(length))
        assert isinstance(command, kind), f"{command} is not the {kind.__name__} expected"
        return command

    def ask(self, command: WireCommand, kind: type[C] = WireCommand) -> C:  # type: ignore[assignment]  # As `receive`.
        """Send a command and return its reply, which must be of `kind`."""
        self.send(command)
        return self.receive(kind)

    def read_whole(self, segment: str, length: int, start: int = 0) -> bytes:
        """Return the bytes [start, length) of a segment."""
        parts = []
        offset = start
        while offset < length:
            wanted = min(READ_LENGTH, length - offset)
            reply = self.ask(ReadSegment(segment, offset, wanted, "", self.next_id()), SegmentRead)
            assert reply.offset == offset
            assert 0 < len(reply.data) <= wanted
            parts.append(bytes(reply.data))  # type: ignore[arg-type]
            offset += len(reply.data)
        return b"".join(parts)

    def receive_until_closed(self) -> list[WireCommand]:
        """Return what still comes until the server closes the connection. Raises `TimeoutError` if it does not."""
        commands: list[WireCommand] = []
        try:
            while True:
                commands.append(self.receive())
        except (EOFError, ConnectionError):
            return commands

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _read(self, length: int) -> bytes:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            count = self.socket.recv_into(view)
            if not count:
                raise EOFError("the server closed the connection")
            view = view[count:]
        return bytes(data)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
