"""The controller's calls over the simulated network, in place of gRPC.

gRPC has its own threads and sockets, so it cannot run here. The relevant behaviour is reproduced: messages are
serialised, calls share a connection, a reply can get lost with it, a deadline cancels the handler, and failures are
`grpc.RpcError` with the status that the real server would send. The table of calls is that of the real server. During
calls a client pings a server that sends nothing, and drops the connection if there is no answer, as `ControllerClient`
configures gRPC. Calls hold slots as in the real server. Between calls TCP keepalive probes replace the server's pings.

A frame is a uint32 length of what follows, a uint64 call number, and: from the client a byte with the length of the
call's name, the name and the request (no name: cancel, or a ping if the number is 0). With credentials the name ends
with a zero byte, and the ``authorization`` header is before the request, as a uint16 length and its bytes. From the
server a byte with the
gRPC status and the reply, or the text that goes with a status that is not 0 and, each after a zero byte, the keys of
its metadata.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import cast

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.client.controller.controller import ControllerStub
from penstock.controller.grpc.access import AccessOf
from penstock.controller.grpc.call import Front
from penstock.controller.grpc.call_counts import CallCounts
from penstock.controller.grpc.guard import Caller, CallGuard
from penstock.controller.grpc.slots import CallSlots, subject_of
from penstock.controller.grpc.status import metadata_of, status_of
from penstock.controller.grpc.table import access_table, call_table, services
from penstock.controller.locator import ContainerLocator
from penstock.controller.service import ControllerService
from penstock.model.errors import PenstockError, PicklableError
from penstock.runtime.sockets import detect_dead_peers
from penstock_simulation.simulated.transport import SimulatedTransport

_logger = logging.getLogger(__name__)

_HEAD = struct.Struct(">IQB")
_LENGTH_OF_NUMBER = 9
_HEADER_LENGTH = struct.Struct(">H")
#: Calls are numbered from 1.
_PING = 0
_METHODS = {method.name: method for service in services() for method in service.methods}
_STATUS = {cast(tuple[int, str], status.value)[0]: status for status in grpc.StatusCode}

#: Timeout of one connection attempt, as `ControllerClient` configures gRPC.
CONNECT_TIMEOUT_S = 5.0


class SimulatedRpcError(PicklableError, grpc.RpcError):
    """Raised by a call without a reply."""

    def __init__(self, status: grpc.StatusCode, text: str, metadata_keys: Sequence[str] = ()) -> None:
        super().__init__(f"{status.name}: {text}")
        self._status = status
        self._text = text
        self._metadata_keys = tuple(metadata_keys)

    def code(self) -> grpc.StatusCode:
        """Return the gRPC status."""
        return self._status

    def details(self) -> str:
        """Return the text of the status."""
        return self._text

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:  # type: ignore[override]  # pairs, as in grpc.aio
        """Return the metadata that the server adds."""
        return tuple((key, "1") for key in self._metadata_keys)


class _Frames(asyncio.Protocol):
    """Splits the stream into frames."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._pending = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        pending = self._pending
        pending += data
        while len(pending) >= _HEAD.size:
            length, number, byte = _HEAD.unpack_from(pending)
            end = 4 + length
            if len(pending) < end:
                return
            body = bytes(pending[_HEAD.size : end])
            del pending[:end]
            self.frame_received(number, byte, body)

    def frame_received(self, number: int, byte: int, body: bytes) -> None:
        raise NotImplementedError

    def send(self, number: int, byte: int, body: bytes) -> None:
        self.transport.write(_HEAD.pack(_LENGTH_OF_NUMBER + len(body), number, byte) + body)


class _Served(_Frames):
    def __init__(
        self,
        table: dict[str, Callable[..., Awaitable[Message]]],
        accesses: Mapping[str, AccessOf],
        service: ControllerService,
        slots: CallSlots,
        guard: CallGuard | None,
    ) -> None:
        super().__init__()
        self._table = table
        self._accesses = accesses
        self._service = service
        self._guard = guard
        self._slots = slots
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def frame_received(self, number: int, byte: int, body: bytes) -> None:
        if not byte:
            if number == _PING:
                self.send(_PING, 0, b"")
            elif number in self._tasks:
                self._tasks[number].cancel()
            return
        name, payload, header = body[:byte].decode(), body[byte:], ""
        if name.endswith("\0"):
            (header_length,) = _HEADER_LENGTH.unpack_from(payload)
            start = _HEADER_LENGTH.size + header_length
            name, header, payload = name[:-1], payload[_HEADER_LENGTH.size : start].decode(), payload[start:]
        work = self._answer(number, name, header, payload)
        self._tasks[number] = asyncio.get_running_loop().create_task(work, name=f"answer {name}")

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _answer(self, number: int, name: str, header: str, payload: bytes) -> None:
        answer = self._table.get(name)
        try:
            if answer is None:
                self._refuse(number, grpc.StatusCode.UNIMPLEMENTED, f"{name} is not supported by this controller")
                return
            caller = await self._caller(header)
            request = GetMessageClass(_METHODS[name].input_type).FromString(payload)
            async with self._slots.hold(subject_of(request)):
                if self._guard is not None and caller is not None:
                    access_of = self._accesses[name]
                    message = await self._guard.serve(name, access_of, answer, self._service, caller, request)
                else:
                    message = await answer(request)
                reply = message.SerializeToString()
            self.send(number, 0, reply)
        except PenstockError as error:
            self._refuse(number, *status_of(error), [key for key, _ in metadata_of(error)])
        except Exception:
            # As the real server does: details go to the log, the client gets a generic message.
            _logger.exception("%s failed in a way that it should not", name)
            self._refuse(number, grpc.StatusCode.INTERNAL, f"{name} failed; the controller's log says why")
        finally:
            del self._tasks[number]

    async def _caller(self, header: str) -> Caller | None:
        """Return the caller; None: everybody may do everything. Raises `AuthenticationError`."""
        if self._guard is None:
            return None
        peer, _ = self.transport.get_extra_info("peername")
        return await self._guard.caller(header or None, peer)

    def _refuse(self, number: int, status: grpc.StatusCode, text: str, metadata_keys: Sequence[str] = ()) -> None:
        body = "\0".join((text.replace("\0", " "), *metadata_keys))
        self.send(number, cast(tuple[int, str], status.value)[0], body.encode())


async def serve_controller(
    service: ControllerService, host: str, port: int, guard: CallGuard | None = None
) -> asyncio.AbstractServer:
    """Serve the controller's calls on a port of the current simulated host, named `host`. `guard` checks callers."""
    front = Front(service, lambda: [(host, port)])
    return await _serve(front, port, CallSlots(service.settings, service.container_count), guard)


async def _serve(front: Front, port: int, slots: CallSlots, guard: CallGuard | None = None) -> asyncio.AbstractServer:
    service, table, accesses = front.service, dict(call_table(front)), access_table()
    loop = asyncio.get_running_loop()

    def served() -> _Served:
        return _Served(table, accesses, service, slots, guard)

    server = await loop.create_server(served, None, port, start_serving=False)
    detect_dead_peers(server, service.settings.dead_peers)
    await server.start_serving()
    return server


class SimulatedFront:
    """The twin of `GrpcServer` for a controller of a cluster: see `penstock.server.cluster.machine.ControllerFront`.

    Options that limit what a client may do at once have no counterpart here.
    """

    def __init__(
        self,
        service: ControllerService,
        host: str,
        port: int,
        *,
        controllers: Callable[[], list[tuple[str, int]]],
        locator: ContainerLocator,
        guard: CallGuard | None = None,
        **options: object,
    ) -> None:
        self._front = Front(service, controllers, locator)
        self._guard = guard
        self._port = port
        self._server: asyncio.AbstractServer | None = None
        self.slots: CallSlots = CallSlots(service.settings, service.container_count)
        self.calls: CallCounts = CallCounts()

    async def start(self) -> None:
        """See `ControllerFront.start`."""
        self._server = await _serve(self._front, self._port, self.slots, self._guard)

    async def stop(self) -> None:
        """See `ControllerFront.stop`. The end of the process closes its connections."""
        if self._server is not None:
            self._server.close()


class _Channel(_Frames):
    """A client's connection. `keepalive_interval_s`: from the last byte to a ping, and from the ping to the drop."""

    def __init__(self, host: str, keepalive_interval_s: float) -> None:
        super().__init__()
        self.host = host
        self.is_lost = False
        #: The connection was dropped because a ping was not answered.
        self.is_silent = False
        self._keepalive_interval_s = keepalive_interval_s
        self._last_number = 0
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # gRPC sets TCP_USER_TIMEOUT to the timeout of its pings.
        cast(SimulatedTransport, transport).set_timeouts(None, self._keepalive_interval_s)
        self._watch(self._ping)

    def data_received(self, data: bytes) -> None:
        self._watch(self._ping)
        super().data_received(data)

    def _watch(self, then: Callable[[], None]) -> None:
        """Call `then` unless something arrives within the interval."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._keepalive_interval_s, then)

    def _ping(self) -> None:
        if self._calls:
            self.send(_PING, 0, b"")
            self._watch(self._give_up)
        else:
            self._watch(self._ping)

    def _give_up(self) -> None:
        self.is_silent = self.is_lost = True
        self.transport.abort()

    def frame_received(self, number: int, byte: int, body: bytes) -> None:
        future = self._calls.pop(number, None)
        if future is None or future.done():
            return
        if byte:
            text, *metadata_keys = body.decode().split("\0")
            future.set_exception(SimulatedRpcError(_STATUS[byte], text, metadata_keys))
        else:
            future.set_result(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(SimulatedRpcError(grpc.StatusCode.UNAVAILABLE, f"connection lost: {exc}"))

    async def call(self, name: str, header: bytes, payload: bytes) -> bytes:
        if self.is_lost:
            raise SimulatedRpcError(grpc.StatusCode.UNAVAILABLE, "connection lost")
        self._last_number = number = self._last_number + 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[number] = future
        encoded, credentials = name.encode(), b""
        if header:
            encoded, credentials = encoded + b"\0", _HEADER_LENGTH.pack(len(header)) + header
        self.send(number, len(encoded), encoded + credentials + payload)
        try:
            return await future
        except asyncio.CancelledError:
            if not self.is_lost:
                self.send(number, 0, b"")
            raise
        finally:
            self._calls.pop(number, None)


class _Stub:
    """Has every call of the services as an attribute."""

    def __init__(self, hosts: Sequence[str], port: int, keepalive_interval_s: float, header: str) -> None:
        self._header = header.encode()
        self._keepalive_interval_s = keepalive_interval_s
        #: Hosts in order of preference; the first is tried first.
        self._hosts = list(hosts)
        self._port = port
        self._channel: _Channel | None = None
        self._connecting = asyncio.Lock()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Message]]:
        if name not in _METHODS:
            raise AttributeError(f"the controller has no call {name}")
        return partial(self._call, name)

    async def _call(self, name: str, request: Message, *, timeout: float | None = None) -> Message:
        channel: _Channel | None = None
        try:
            async with asyncio.timeout(timeout):
                channel = await self._connected()
                reply = await channel.call(name, self._header, request.SerializeToString())
        except SimulatedRpcError:
            if channel is not None and channel.is_silent:
                # gRPC does a handshake before it uses a connection: a stalled server does not complete it.
                self._turn_from(channel.host)
            raise
        except TimeoutError as error:
            raise SimulatedRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, f"no reply to {name}") from error
        return GetMessageClass(_METHODS[name].output_type).FromString(reply)

    async def _connected(self) -> _Channel:
        async with self._connecting:
            if self._channel is None or self._channel.is_lost:
                self._channel = await self._connect()
            return self._channel

    async def _connect(self) -> _Channel:
        """Return a connection to the first host that accepts one, as gRPC's policy "pick first" does."""
        failure: Exception | None = None
        for host in tuple(self._hosts):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, channel = await asyncio.get_running_loop().create_connection(
                        partial(_Channel, host, self._keepalive_interval_s), host, self._port
                    )
                return channel
            except (OSError, TimeoutError) as error:
                failure = error
                self._turn_from(host)
            except asyncio.CancelledError:
                # The call's own deadline has passed: the next call must not wait here again.
                self._turn_from(host)
                raise
        raise SimulatedRpcError(grpc.StatusCode.UNAVAILABLE, f"cannot connect: {failure}") from failure

    def _turn_from(self, host: str) -> None:
        """Move this host to the end of the order for the next attempt."""
        self._hosts.remove(host)
        self._hosts.append(host)


def simulated_stub(
    host: str, port: int, others: Sequence[str] = (), *, keepalive_interval_s: float = 6.0, header: str = ""
) -> ControllerStub:
    """Return a stub for `ControllerClient` whose calls go over the simulated network from the host that uses it.

    `others`: hosts of further controllers, tried when `host` does not answer. `keepalive_interval_s`: as in the
    client's settings. `header`: the ``authorization`` of all calls; empty: none.
    """
    return cast(ControllerStub, _Stub([host, *others], port, keepalive_interval_s, header))
