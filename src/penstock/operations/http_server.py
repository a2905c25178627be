"""`HttpServer`: a small HTTP/1.1 server for GET and HEAD requests of probes and metrics collectors.

It runs on the loop of the server process, so a loop that hangs answers no probe. Parsing and serialization are h11's.
Connections, sizes and times are bounded: a client that sends slowly, sends too much or does not read is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import h11

from penstock.operations.settings import HttpServerSettings
from penstock.runtime.tls_listener import HandshakeSettings, TlsListener
from penstock.runtime.waits import cancel_and_wait
from penstock.runtime.work import BlockingWork

logger: logging.Logger = logging.getLogger(__name__)

_READ_BYTES = 16 * 1024
_ACCEPT_BACKLOG = 100
#: Reads of what a refused client still sends, before its connection is closed.
_LINGER_READS_MAX = 64


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer: status, body, and its content type."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Sequence[tuple[str, str]] = field(default=())


#: Answers a request by its query string, without the question mark.
Handler = Callable[[str], Awaitable[HttpReply]]

_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout",
            413: "Content Too Large", 431: "Request Header Fields Too Large", 500: "Internal Server Error",
            503: "Service Unavailable"}  # fmt: skip


class HttpServer:
    """Serves the given routes, by exact path. `start` it once; `stop` closes every connection.

    A handler that raises is answered with 500, and logged: the defect must not end the server process.

    `tls`: with the certificate; None: connections are not encrypted. `work` computes handshakes, and is needed with it.

    Attributes:
        port: the listening port; 0 before `start`.
    """

    def __init__(
        self,
        routes: Mapping[str, Handler],
        settings: HttpServerSettings | None = None,
        tls: ssl.SSLContext | None = None,
        work: BlockingWork | None = None,
    ) -> None:
        self._routes = dict(routes)
        self._work = work
        self._settings = settings or HttpServerSettings()
        self._tls = tls
        self._server: asyncio.Server | TlsListener | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port: int = 0

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises `OSError` when the port cannot be listened on."""
        if self._tls is None:
            server = await asyncio.get_running_loop().create_server(self._new_protocol, host or None, port)
            self._server, self.port = server, int(server.sockets[0].getsockname()[1])
            return
        assert self._work is not None
        bounds = HandshakeSettings(waiting_max=self._settings.connections_max)
        self._server = listener = TlsListener(self._tls, self._new_protocol, bounds, work=self._work)
        await listener.bind(host, port)
        listener.listen(_ACCEPT_BACKLOG)
        self.port = int(listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the port and all connections. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        await cancel_and_wait(*self._connections)

    def _new_protocol(self) -> asyncio.BaseProtocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(_READ_BYTES), self._accept)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._settings.connections_max:
            logger.warning("health and metrics: a connection is refused, %d are served", len(self._connections))
            writer.close()
            return
        connection = _HttpConnection(reader, writer, self._routes, self._settings)
        task = asyncio.get_running_loop().create_task(connection.serve())
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)


class _HttpConnection:
    """One connection: requests are answered one after the other."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        routes: Mapping[str, Handler],
        settings: HttpServerSettings,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._routes = routes
        self._settings = settings
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=settings.request_bytes_max)

    async def serve(self) -> None:
        """Answer requests until the client closes the connection, breaks the protocol, or is too slow."""
        try:
            while await self._serve_request():
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, str(error))
        except (ConnectionError, TimeoutError):
            pass  # The client has disconnected or is too slow: it gets no answer.
        finally:
            self._writer.close()

    async def _serve_request(self) -> bool:
        """Answer the next request; return whether another one may follow."""
        request = await self._next_request()
        if request is None:
            return False
        reply = await self._answer(request)
        await self._send(reply, has_body=request.method != b"HEAD")
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _next_request(self) -> h11.Request | None:
        """Return the next request, received completely; None at the end of the connection."""
        settings = self._settings
        request: h11.Request | None = None
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + settings.idle_timeout_s
        is_begun = False
        body_bytes = 0
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body_bytes += len(event.data)
                if body_bytes > settings.request_bytes_max:
                    raise h11.RemoteProtocolError(
                        f"the body of the request exceeds {settings.request_bytes_max} bytes", error_status_hint=413
                    )
            elif isinstance(event, h11.EndOfMessage):
                return request
            elif isinstance(event, h11.ConnectionClosed):
                return None
            else:
                async with asyncio.timeout_at(deadline_s):
                    data = await self._reader.read(_READ_BYTES)
                if data and not is_begun:
                    is_begun, deadline_s = True, loop.time() + settings.request_timeout_s
                self._http.receive_data(data)

    async def _answer(self, request: h11.Request) -> HttpReply:
        if request.method not in (b"GET", b"HEAD"):
            return HttpReply(405, b"only GET and HEAD are supported\n", headers=(("Allow", "GET, HEAD"),))
        path, _, query = request.target.decode("ascii", "replace").partition("?")
        handler = self._routes.get(path)
        if handler is None:
            known = ", ".join(sorted(self._routes))
            return HttpReply(404, f"no such path; this port serves {known}\n".encode())
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                return await handler(query)
        except TimeoutError:
            return HttpReply(503, f"no answer within {self._settings.request_timeout_s:g} s\n".encode())
        except Exception:  # A defect of a handler must not end the server process.
            logger.exception("health and metrics: %s failed", path)
            return HttpReply(500, b"internal error; the server's log has the cause\n")

    async def _refuse(self, status: int, reason: str) -> None:
        """Answer a request that cannot be parsed, if HTTP still permits an answer."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        try:
            await self._send(HttpReply(status, f"{reason}\n".encode(), headers=(("Connection", "close"),)))
            self._writer.write_eof()
            # A socket closed with unread data would be reset, and the client could lose the answer.
            async with asyncio.timeout(self._settings.request_timeout_s):
                for _ in range(_LINGER_READS_MAX):
                    if not await self._reader.read(_READ_BYTES):
                        return
        except (ConnectionError, TimeoutError):
            pass  # The client has disconnected.

    async def _send(self, reply: HttpReply, *, has_body: bool = True) -> None:
        headers = [
            ("Content-Type", reply.content_type),
            ("Content-Length", str(len(reply.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *reply.headers,
        ]
        reason = _REASONS.get(reply.status, "")
        response = h11.Response(status_code=reply.status, headers=headers, reason=reason.encode())
        parts = [self._http.send(response)]
        if has_body:
            parts.append(self._http.send(h11.Data(data=reply.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        self._writer.write(b"".join(part for part in parts if part))
        async with asyncio.timeout(self._settings.request_timeout_s):
            await self._writer.drain()
