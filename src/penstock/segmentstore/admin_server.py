"""`AdminServer`: the administration endpoint of a segment store, off unless it is given a separate port.

It answers only Hello, KeepAlive, FlushToStorage, ListStorageChunks and GetContainerImage; the client port does not
answer the last three. Requests of one connection are answered sequentially. Containers' own segments are found by the
number in their names, which client requests never use.

Source: segment-store 11 and R1.3; wire-protocol 2.7.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections.abc import Callable

from penstock.model.errors import (
    ContainerNotFoundError,
    InvalidArgumentError,
    NoSuchSegmentError,
    PenstockError,
    ProtocolError,
)
from penstock.model.names import ContainerId
from penstock.model.routing import admin_container_of
from penstock.runtime.sockets import detect_dead_peers
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.request_processor import UNSPECIFIED, error_reply
from penstock.segmentstore.settings import AdminSettings
from penstock.segmentstore.store import SegmentStore
from penstock.wire import commands as wire
from penstock.wire.codec import decode_request, encode
from penstock.wire.commands import WireCommand
from penstock.wire.connection import WIRE_VERSION, WIRE_VERSION_OLDEST

logger: logging.Logger = logging.getLogger(__name__)

#: Images are sent in parts of this length.
_IMAGE_PART_BYTES = 1024 * 1024
FRAME_HEADER = struct.Struct(">ii")

#: Returns if a request's token permits administration, else raises `PenstockError`.
Authorise = Callable[[str], None]


def allow_all(token: str) -> None:
    """Allow every client that can reach the port."""


class AdminServer:
    """Listens for administrators. `authorise` is called with the token of each request. `tls` encrypts it."""

    def __init__(
        self,
        store: SegmentStore,
        *,
        settings: AdminSettings | None = None,
        authorise: Authorise = allow_all,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._store = store
        self._settings = settings or store.settings.admin
        self._authorise = authorise
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], None] = {}
        self._image_lock = asyncio.Lock()
        self.port: int = 0

    async def start(self) -> None:
        """Listen, if enabled; `port` is then the actual port. Raises `InvalidArgumentError` if that is not possible."""
        settings = self._settings
        if not settings.is_enabled:
            return
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._new_protocol,
                settings.host,
                settings.port,
                ssl=self._tls,
                start_serving=False,
                ssl_handshake_timeout=None if self._tls is None else self._settings.handshake_timeout_s,
            )
            detect_dead_peers(self._server, settings.dead_peers)
            await self._server.start_serving()
        except OSError as error:
            raise InvalidArgumentError(
                f"cannot listen for administration requests on {settings.host}:{settings.port}: {error}; stop the "
                "program that uses the port, or choose another `port` in the settings of the administration port"
            ) from error
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the port and every connection; operations in progress in a container continue."""
        if self._server is not None:
            self._server.close()
        await cancel_and_wait(*self._connections)

    def _new_protocol(self) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._settings.connections_max:
            logger.warning("refused an administration connection: %d are open already", len(self._connections))
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections[task] = None
        task.add_done_callback(lambda task: self._connections.pop(task, None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._converse(reader, writer)
        except (ProtocolError, asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
            logger.info("administration connection ended: %r", error)
        except PenstockError as error:
            logger.warning("closing an administration connection: %s", error)
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._settings.handshake_timeout_s):
            hello = await self._receive(reader)
        if not isinstance(hello, wire.Hello):
            raise ProtocolError(f"{type(hello).__name__} before Hello")
        writer.write(encode(wire.Hello(WIRE_VERSION, WIRE_VERSION_OLDEST)))
        if hello.low > WIRE_VERSION or hello.high < WIRE_VERSION_OLDEST:
            raise ProtocolError(f"peer speaks versions {hello.low} to {hello.high}")
        while True:
            command = await self._receive(reader)
            if isinstance(command, wire.GetContainerImage):
                await self._send_image(command, writer)
            else:
                await self._send(await self._answer(command), writer)

    async def _send(self, reply: WireCommand, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(reply))
        async with asyncio.timeout(self._settings.frame_timeout_s):
            await writer.drain()

    async def _send_image(self, command: wire.GetContainerImage, writer: asyncio.StreamWriter) -> None:
        # One image in memory at a time, until it is sent: other requests wait.
        async with self._image_lock:
            try:
                self._authorise(command.token)
                image = await self._container(command.container_id).capture.image()
            except ContainerNotFoundError as error:
                await self._send(error_reply(error, command.request_id, "", type(command).__name__), writer)
                return
            except PenstockError as error:
                # The client is an administrator's command: an error message is more useful than a closed connection.
                await self._send(wire.ErrorMessage(command.request_id, "", str(error), UNSPECIFIED), writer)
                return
            data = memoryview(b"".join(image.encode()))
            for offset in range(0, len(data), _IMAGE_PART_BYTES):
                part = bytes(data[offset : offset + _IMAGE_PART_BYTES])
                await self._send(
                    wire.ContainerImagePart(command.request_id, self._store.cluster_id, len(data), offset, part),
                    writer,
                )

    async def _receive(self, reader: asyncio.StreamReader) -> WireCommand:
        # Idle time is unlimited between requests, but not within one: connections are few.
        header = await reader.readexactly(1)
        async with asyncio.timeout(self._settings.frame_timeout_s):
            header += await reader.readexactly(FRAME_HEADER.size - len(header))
            type_code, length = FRAME_HEADER.unpack(header)
            if not 0 <= length <= self._settings.frame_length_max:
                raise ProtocolError(f"a frame of {length} bytes to the administration port")
            content = await reader.readexactly(length)
        return decode_request(type_code, memoryview(content))

    async def _answer(self, command: WireCommand) -> WireCommand:
        name = type(command).__name__
        match command:
            case wire.KeepAlive():
                return command
            case wire.FlushToStorage():
                segment = ""
            case wire.ListStorageChunks():
                segment = command.segment
            case _:
                return wire.OperationUnsupported(getattr(command, "request_id", -1), name)
        try:
            self._authorise(command.token)
            if isinstance(command, wire.FlushToStorage):
                await self._container(command.container_id).flush()
                return wire.StorageFlushed(command.request_id)
            return wire.StorageChunksListed(command.request_id, await self._chunks(segment))
        except PenstockError as error:
            return error_reply(error, command.request_id, segment, name)

    def _container(self, container_id: int) -> SegmentContainer:
        if not 0 <= container_id < self._store.settings.container_count:
            raise InvalidArgumentError(
                f"no container {container_id}: the store has {self._store.settings.container_count}"
            )
        for container in self._store.containers:
            if container.id == container_id:
                return container
        raise ContainerNotFoundError(ContainerId(container_id), "it is not running here")

    async def _chunks(self, segment: str) -> list[wire.StorageChunk]:
        container = self._container(admin_container_of(segment, self._store.settings.container_count))
        found = await container.find(segment)
        with found.in_use():
            try:
                layout = await container.storage.layout(found)
            except NoSuchSegmentError:
                return []  # Long-term storage has no part of it yet.
            chunks = []
            for chunk in layout:
                length = await self._store.chunk_length(chunk.name)
                chunks.append(
                    wire.StorageChunk(chunk.length, length or 0, chunk.start_offset, chunk.name, length is not None)
                )
            return chunks
