"""One client connection to a segment store: sends frames and dispatches replies.

Many requests share a connection. Replies are matched by request id: `request` awaits one reply, `subscribe`
passes all replies of an id to a handler (an appender uses one id for its whole stream of blocks). When the connection
ends, all pending requests fail with `ConnectionLostError`: their outcome is unknown.

Source: wire-protocol 1.5 (Hello), 1.6 (request ids), 3.8 (keep-alive).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from penstock.model.errors import ConnectionLostError, OutcomeUnknownError, ProtocolError
from penstock.model.segments import Buffer
from penstock.wire.codec import decode, encode_parts
from penstock.wire.commands import Hello, KeepAlive, SegmentRead, WireCommand
from penstock.wire.framing import FrameReceiver
from penstock.wire.request_ids import tagged

_log = logging.getLogger(__name__)

#: Wire version of this client, and the oldest that it supports.
WIRE_VERSION = 17
WIRE_VERSION_OLDEST = 5


def pauses_in_writelines(version: tuple[int, ...]) -> bool:
    """Return whether asyncio's transports of a version of Python pause their protocol in `writelines`.

    Those of 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 do so in `write` only (CVE-2024-12254): what the peer does not take
    grows without a bound.
    """
    return not ((3, 12, 0) <= version < (3, 12, 9) or (3, 13, 0) <= version < (3, 13, 2))


_PAUSES = pauses_in_writelines(sys.version_info[:3])


def send_parts(transport: asyncio.WriteTransport, parts: Sequence[Buffer]) -> None:
    """Send `parts`, at least one, and pause the protocol if they exceed the bound of the transport.

    In one system call, whatever their lengths: each call is a packet, and wakes the peer. Where `writelines` does not
    pause, the last part has a call of its own. After the end of the connection they are dropped.
    """
    if len(parts) == 1:
        transport.write(parts[0])
    elif type(transport).__module__ != "asyncio.selector_events":
        transport.writelines(parts)
    elif transport.is_closing():
        # Python 3.12 raises `AttributeError` in `writelines` after the end.
        transport.write(b"".join(parts))
    elif _PAUSES:
        transport.writelines(parts)
    else:
        # `write` of no bytes does not pause.
        filled = [part for part in parts if len(part)]
        if len(filled) > 1:
            transport.writelines(filled[:-1])
        if filled:
            transport.write(filled[-1])


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Bounds of one connection.

    Attributes:
        connect_timeout_s: TCP (and TLS) connect plus the exchange of Hello.
        request_timeout_s: one request to its reply, unless the request says otherwise.
        keepalive_interval_s: a KeepAlive is sent after this long without a received byte; a second such interval
            ends the connection. So a connection that a firewall drops silently is replaced after twice the
            interval. Time in which this process was suspended does not count.
        write_buffer_bytes_max: bytes waiting in the socket before `is_writable` turns False.
        request_count_max: requests waiting for replies at one time.
        close_timeout_s: how long closing waits for the server to close its side cleanly; then the connection is
            dropped.
    """

    connect_timeout_s: float = 5.0
    request_timeout_s: float = 30.0
    keepalive_interval_s: float = 6.0
    write_buffer_bytes_max: int = 1024 * 1024
    request_count_max: int = 65536
    close_timeout_s: float = 1.0


class ReplyHandler(Protocol):
    """Receives every reply of one request id. Both calls happen in the event loop and must not block."""

    def on_reply(self, reply: WireCommand) -> None:
        """Handle a reply. Buffers in it belong to the handler."""

    def on_connection_lost(self, error: ConnectionLostError) -> None:
        """The connection has ended; no more replies come."""

    def on_writable(self) -> None:
        """The connection is writable again."""


class WireConnection(asyncio.BufferedProtocol):
    """A connection that has exchanged Hello. Create it with `open_connection`."""

    def __init__(self, address: str, settings: ConnectionSettings) -> None:
        #: ``host:port``, for messages.
        self.address = address
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._receiver = FrameReceiver()
        self._transport: asyncio.Transport | None = None
        self._futures: dict[int, asyncio.Future[WireCommand]] = {}
        self._handlers: dict[int, ReplyHandler] = {}
        self._last_request_id = 0
        self._hello: asyncio.Future[Hello] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._error: ConnectionLostError | None = None
        self._is_writable = True
        self._received_s = self._loop.time()
        # Whether a KeepAlive was sent after the byte received last.
        self._keepalive_pending = False
        self._keepalive_timer: asyncio.TimerHandle | None = None
        #: The lower of both sides' wire versions.
        self.wire_version: int = WIRE_VERSION
        #: Called before pending requests fail because the server was silent. It must not block.
        self.on_silence: Callable[[], None] | None = None

    # -- requests -----------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True until the connection was lost or closed."""
        return self._error is None

    @property
    def is_writable(self) -> bool:
        """False while the socket's buffer is full; `on_writable` of the handlers reports the end of that."""
        return self._is_writable

    @property
    def request_count(self) -> int:
        """Requests and subscriptions in flight."""
        return len(self._futures) + len(self._handlers)

    def next_request_id(self) -> int:
        """Return an id that no other request in flight on this connection has, with the tag of the present call."""
        while True:
            self._last_request_id += 1
            found = tagged(self._last_request_id)
            # Ids with a tag come again, and subscriptions keep theirs for long.
            if found not in self._futures and found not in self._handlers:
                return found

    def send(self, command: WireCommand) -> None:
        """Send without waiting for anything. Raises `ConnectionLostError` if the connection has ended."""
        if self._error is not None or self._transport is None:
            raise self._lost()
        send_parts(self._transport, encode_parts(command))

    async def request(self, request_id: int, command: WireCommand, *, timeout_s: float | None = -1.0) -> WireCommand:
        """Send `command`, which carries `request_id`, and return its reply, an error reply included.

        `timeout_s`: None waits as long as the connection lives (long polls), -1 means the settings' default.
        If cancelled, the request may still be carried out; its reply is dropped.

        Raises:
            ConnectionLostError: the connection ended first.
            OutcomeUnknownError: no reply within the time.
        """
        if len(self._futures) >= self._settings.request_count_max:
            raise OutcomeUnknownError(
                f"{self.address}: {len(self._futures)} requests wait for replies already (request_count_max)"
            )
        future: asyncio.Future[WireCommand] = self._loop.create_future()
        self.send(command)
        self._futures[request_id] = future
        if timeout_s == -1.0:
            timeout_s = self._settings.request_timeout_s
        try:
            if timeout_s is None:
                return await future
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise OutcomeUnknownError(
                f"{self.address}: no reply to {type(command).__name__} within {timeout_s:g} s"
            ) from error
        finally:
            self._futures.pop(request_id, None)

    def subscribe(self, request_id: int, handler: ReplyHandler) -> None:
        """Give every reply with `request_id` to `handler` until `unsubscribe`."""
        if self._error is not None:
            raise self._lost()
        self._handlers[request_id] = handler

    def unsubscribe(self, request_id: int) -> None:
        """End a subscription; no error if there is none."""
        self._handlers.pop(request_id, None)

    async def close(self) -> None:
        """Close the connection and wait until it is closed. Pending requests fail with `ConnectionLostError`.

        Unsent data are dropped, because their callers have just been told that the outcome is unknown. So a server that
        reads nothing, or does not answer the end of TLS, delays the close by `close_timeout_s` at most.
        """
        if self._transport is None:
            return
        self._fail(ConnectionLostError(f"{self.address}: the connection was closed by this client"))
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()
        done, _ = await asyncio.wait([self._closed], timeout=self._settings.close_timeout_s)
        if not done:
            self._transport.abort()
            await asyncio.shield(self._closed)

    def abort(self, reason: str, cause: BaseException | None = None, *, silent_s: float = 0.0) -> None:
        """Drop the connection at once because its state can no longer be trusted. `silent_s`: see the error."""
        error = ConnectionLostError(f"{self.address}: {reason}")
        error.silent_s = silent_s
        error.__cause__ = cause
        self._fail(error)
        if self._transport is not None:
            self._transport.abort()

    async def exchange_hello(self) -> None:
        """Send Hello, check the server's. Raises `ProtocolError` when the version ranges do not overlap."""
        self.send(Hello(high=WIRE_VERSION, low=WIRE_VERSION_OLDEST))
        hello = await self._hello
        if hello.low > WIRE_VERSION or hello.high < WIRE_VERSION_OLDEST:
            raise ProtocolError(
                f"{self.address} speaks wire versions {hello.low} to {hello.high}, "
                f"this client {WIRE_VERSION_OLDEST} to {WIRE_VERSION}"
            )
        self.wire_version = min(WIRE_VERSION, hello.high)
        self._check_alive_at(self._loop.time() + self._settings.keepalive_interval_s)

    # -- the protocol, called by the loop -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes_max)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
        self._received_s = self._loop.time()
        self._keepalive_pending = False
        if self._error is not None:
            return
        try:
            for code, payload, owned in self._receiver.buffer_updated(nbytes):
                # Read data that share the receive buffer are copied here, because replies outlive this call. All other
                # fields are copied by the decoder.
                if code == SegmentRead.TYPE and not owned:
                    payload = memoryview(bytes(payload))
                self._dispatch(decode(code, payload))
        except ProtocolError as error:
            self._tell_broken(error)
            self.abort(f"the server broke the protocol: {error}", error)

    def eof_received(self) -> bool:
        """See `asyncio.BufferedProtocol`."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.BufferedProtocol`."""
        error = ConnectionLostError(f"{self.address}: the connection was lost ({exc or 'closed by the server'})")
        error.__cause__ = exc
        self._fail(error)
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._is_writable = False

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._is_writable = True
        for handler in list(self._handlers.values()):
            handler.on_writable()

    # -- inside -------------------------------------------------------------------------------------------------

    def _tell_broken(self, error: ProtocolError) -> None:
        """Log that the server violates the protocol."""
        _log.warning("%s: dropping the connection: %s", self.address, error)

    def _dispatch(self, reply: WireCommand) -> None:
        request_id: int | None = getattr(reply, "request_id", None)
        if request_id is not None:
            handler = self._handlers.get(request_id)
            if handler is not None:
                handler.on_reply(reply)
                return
            future = self._futures.get(request_id)
            if future is not None:
                if not future.done():
                    future.set_result(reply)
                return
            # The caller was cancelled or timed out, and treats the outcome as unknown.
            _log.debug("%s: a late %s for request %d", self.address, type(reply).__name__, request_id)
        elif isinstance(reply, KeepAlive):
            pass  # Any byte shows that the server is alive.
        elif isinstance(reply, Hello):
            if not self._hello.done():
                self._hello.set_result(reply)
        else:
            raise ProtocolError(f"unexpected {type(reply).__name__} from the server")

    def _check_alive_at(self, due_s: float) -> None:
        self._keepalive_timer = self._loop.call_at(due_s, self._check_alive, due_s)

    def _check_alive(self, due_s: float) -> None:
        if self._error is not None:
            return
        interval_s = self._settings.keepalive_interval_s
        now_s = self._loop.time()
        if now_s - due_s > interval_s / 4:
            # This process was suspended when the check was due. Bytes of the server may wait in the socket.
            self._check_alive_at(now_s + interval_s)
            return
        if self._received_s + interval_s > due_s:
            self._check_alive_at(self._received_s + interval_s)
            return
        if self._keepalive_pending:
            silent_s = now_s - self._received_s
            if self.on_silence is not None:
                self.on_silence()
            self.abort(f"no byte was received for {silent_s:.1f} s, though a KeepAlive was sent", silent_s=silent_s)
            return
        self._keepalive_pending = True
        self.send(KeepAlive())
        self._check_alive_at(now_s + interval_s)

    def _lost(self) -> ConnectionLostError:
        if self._error is None:
            return ConnectionLostError(f"{self.address}: not connected")
        error = ConnectionLostError(str(self._error))
        error.__cause__ = self._error.__cause__
        return error

    def _fail(self, error: ConnectionLostError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        futures, self._futures = self._futures, {}
        handlers, self._handlers = self._handlers, {}
        for future in futures.values():
            if not future.done():
                future.set_exception(self._lost())
        if not self._hello.done():
            self._hello.set_exception(self._lost())
            self._hello.exception()  # Marks it as retrieved: `exchange_hello` may not be waiting yet.
        for handler in handlers.values():
            handler.on_connection_lost(error)


async def open_connection(
    host: str,
    port: int,
    *,
    settings: ConnectionSettings,
    ssl_context: ssl.SSLContext | None = None,
    factory: Callable[[str, ConnectionSettings], WireConnection] = WireConnection,
) -> WireConnection:
    """Connect to a segment store and exchange Hello.

    Raises:
        ConnectionLostError: no connection within `connect_timeout_s`, or it ended during Hello. No request was sent
            yet, so a retry is safe.
        ProtocolError: the server's versions do not overlap with this client's.
    """
    loop = asyncio.get_running_loop()
    address = f"{host}:{port}"
    connection = factory(address, settings)
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            await loop.create_connection(lambda: connection, host, port, ssl=ssl_context)
            await connection.exchange_hello()
    except TimeoutError as error:
        connection.abort("no Hello in time", error)
        raise ConnectionLostError(
            f"{address}: could not connect within {settings.connect_timeout_s:g} s (connect_timeout_s)"
        ) from error
    except socket.gaierror as error:
        lost = ConnectionLostError(f"{address}: this machine cannot resolve the name {host}: {error.strerror}")
        lost.unresolved_host = host
        raise lost from error
    except OSError as error:
        raise ConnectionLostError(f"{address}: could not connect: {error}") from error
    except BaseException:
        connection.abort("the connection attempt was given up")
        raise
    return connection
