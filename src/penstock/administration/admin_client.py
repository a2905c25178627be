"""`AdminClient`: sends requests to a segment store through its administrator's port, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.administration.errors import AdminRefusedError
from penstock.model.errors import (
    ConnectionLostError,
    InvalidArgumentError,
    OutcomeUnknownError,
    ProtocolError,
)
from penstock.segmentstore.admin_server import FRAME_HEADER
from penstock.wire import commands as wire
from penstock.wire.codec import FRAME_LENGTH_MAX, decode, encode
from penstock.wire.commands import WireCommand
from penstock.wire.connection import WIRE_VERSION, WIRE_VERSION_OLDEST

_CONNECT_TIMEOUT_S = 10.0
#: Time limit of a flush, or of an image until its first part; the store has time limits of its own.
_ANSWER_TIMEOUT_S = 600.0


class AdminClient:
    """One connection. Created by `open`; unusable after an error."""

    def __init__(self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address: str = address
        self._reader = reader
        self._writer = writer
        self._last_id = 0

    @classmethod
    async def open(cls, host: str, port: int) -> AdminClient:
        """Connect. Raises `ConnectionLostError` when nothing listens there, `ProtocolError` for another server."""
        address = f"{host}:{port}"
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            raise ConnectionLostError(f"cannot connect to an administration port at {address}: {error}") from error
        client = cls(address, reader, writer)
        try:
            hello = await client._ask(wire.Hello(WIRE_VERSION, WIRE_VERSION_OLDEST))
            if not isinstance(hello, wire.Hello):
                raise ProtocolError(f"{address} answers Hello with {type(hello).__name__}")
        except BaseException:
            await client.close()
            raise
        return client

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def flush(self, container_id: int) -> bool:
        """Flush a container to long-term storage; False if it does not run there.

        Raises `AdminRefusedError`, `ConnectionLostError`, `OutcomeUnknownError`.
        """
        self._last_id += 1
        reply = await self._ask(wire.FlushToStorage(container_id, "", self._last_id))
        return not self._is_elsewhere(reply, wire.StorageFlushed)

    async def image(self, container_id: int, note: Callable[[int], None]) -> tuple[str, bytes] | None:
        """Return the id of the cluster and an image of a container; None if it does not run there.

        `note` is called with each part's length. Raises what `flush` raises, and `ProtocolError`.
        """
        self._last_id += 1
        reply = await self._ask(wire.GetContainerImage(container_id, "", self._last_id))
        pieces: list[bytes] = []
        at = 0
        while not self._is_elsewhere(reply, wire.ContainerImagePart):
            assert isinstance(reply, wire.ContainerImagePart)
            if reply.offset != at:
                raise ProtocolError(f"{self.address} sent byte {reply.offset} of an image, expected byte {at}")
            pieces.append(reply.data)
            at += len(reply.data)
            note(len(reply.data))
            if at >= reply.length:
                return reply.cluster_id, b"".join(pieces)
            reply = await self._receive()
        return None

    def _is_elsewhere(self, reply: WireCommand, expected: type[WireCommand]) -> bool:
        if isinstance(reply, wire.WrongHost):
            return True
        if isinstance(reply, expected):
            return False
        said = getattr(reply, "message", "") or type(reply).__name__
        raise AdminRefusedError(f"the segment store at {self.address} refused the request: {said}")

    async def _ask(self, command: WireCommand) -> WireCommand:
        self._writer.write(encode(command))
        return await self._receive()

    async def _receive(self) -> WireCommand:
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                type_code, length = FRAME_HEADER.unpack(await self._reader.readexactly(FRAME_HEADER.size))
                if not 0 <= length <= FRAME_LENGTH_MAX:
                    raise ProtocolError(f"{self.address} sends a frame of {length} bytes")
                return decode(type_code, memoryview(await self._reader.readexactly(length)))
        except TimeoutError as error:
            raise OutcomeUnknownError(f"{self.address} has not answered within {_ANSWER_TIMEOUT_S:g} s") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ConnectionLostError(
                f"the segment store at {self.address} closed the connection; see its log for the reason"
            ) from error


def parse_endpoints(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Parse addresses of the form ``host:port``. Raises `InvalidArgumentError` for anything else."""
    found: list[tuple[str, int]] = []
    for text in texts:
        host, _, port = text.rpartition(":")
        if not host or not port.isdigit():
            raise InvalidArgumentError(f"{text!r} is not the address of an administration port: write host:port")
        found.append((host, int(port)))
    return found
