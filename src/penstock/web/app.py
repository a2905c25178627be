"""`WebApp`: the REST interface as an ASGI application, with its guards.

Guards hold without authentication, too: the ``Host`` must be one of this server's names, and a change needs a JSON
content type and no foreign ``Origin``. So a page of another site cannot use the server through the user's browser.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import unquote

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.model.errors import AuthenticationBusyError, AuthenticationError, PenstockError
from penstock.web import administration, events, groups, retention, scales, sessions, streams, tables, tail
from penstock.web.callers import Callers, Connect, Lease, user_of
from penstock.web.certificates import CertifiedSessions, RequestCredentials
from penstock.web.console.console import FORM_TYPE, Console, Endpoint
from penstock.web.errors import Refusal, refusal_of
from penstock.web.openapi import openapi_document
from penstock.web.routes import Reply, Request, Route
from penstock.web.sessions import COOKIE, session_cookie
from penstock.web.settings import WebSettings

logger: logging.Logger = logging.getLogger(__name__)

ROUTES: tuple[Route, ...] = (
    *streams.ROUTES, *scales.ROUTES, *retention.ROUTES, *events.ROUTES, *tail.ROUTES, *groups.ROUTES, *tables.ROUTES,
    *sessions.ROUTES, *administration.ROUTES,
)  # fmt: skip
#: Media types of requests that change something. Forms of other sites cannot send them.
_CHANGE_TYPES = ("application/json", "application/x-ndjson")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'",
}
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class WebApp:
    """See the module.

    Args:
        connect: makes the clients of callers.
        hosts: further names of this server.
        controller: address of the cluster, for the commands that the console shows.
        certified: sessions for the accounts of client certificates; None: certificates prove no accounts.
    """

    def __init__(
        self,
        connect: Connect,
        settings: WebSettings,
        hosts: Iterable[str] = (),
        *,
        controller: str = "tcp://localhost:9090",
        certified: CertifiedSessions | None = None,
    ) -> None:
        self._settings = settings
        self._hosts = {*_LOOPBACK, *settings.hosts, *hosts}
        self._callers = Callers(connect, settings.clients_max, os.urandom)
        #: Requests being served, without those that follow a stream; and those.
        self.under_way: int = 0
        self.tail_count: int = 0
        self._credentials = RequestCredentials(certified)
        self._console = Console(self._callers, self._credentials, controller, settings, os.urandom)
        self._document = openapi_document(ROUTES)
        methods: dict[str, list[Route]] = {}
        for route in ROUTES:
            methods.setdefault(route.path, []).append(route)
        self._app = Starlette(
            routes=[
                HttpRoute("/ping", _ping),
                HttpRoute("/v1/openapi.json", self._openapi),
                *(self._http_route(path, found) for path, found in methods.items()),
                *(self._page_route(*endpoint) for endpoint in self._console.endpoints()),
            ],
            exception_handlers={HTTPException: _http_refusal},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self.close()

    async def close(self) -> None:
        """Close the clients of callers, and the console."""
        await self._console.close()
        await self._callers.close()
        await self._credentials.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, see ASGI."""
        if scope["type"] == "http":
            # Paths are matched as they were sent: a %2F belongs to a name.
            scope = {**scope, "path": scope["raw_path"].decode("latin-1")}
        app: ASGIApp = self._app
        await app(scope, receive, send)

    def _http_route(self, path: str, routes: list[Route]) -> HttpRoute:
        by_method = {route.method: route for route in routes}

        async def serve(http: HttpRequest) -> Response:
            method = "GET" if http.method == "HEAD" else http.method
            refusal = self._refusal(http, is_stream=by_method[method].is_stream)
            if refusal is not None:
                return _response(refusal.status, refusal.body, refusal.headers)
            self.under_way += 1
            try:
                return await self._answer(by_method[method], http)
            finally:
                self.under_way -= 1

        return HttpRoute(path, serve, methods=list(by_method))

    def _page_route(self, path: str, endpoint: Endpoint, methods: list[str]) -> HttpRoute:
        """Return a route of the console, with the guards of all routes; changes are forms."""

        async def serve(http: HttpRequest) -> Response:
            refusal = self._refusal(http, change_types=(FORM_TYPE,))
            if refusal is not None:
                return self._console.refused(http, refusal)
            self.under_way += 1
            try:
                return await endpoint(http)
            finally:
                self.under_way -= 1

        return HttpRoute(path, serve, methods=methods)

    def _refusal(
        self, http: HttpRequest, *, is_stream: bool = False, change_types: Sequence[str] = _CHANGE_TYPES
    ) -> Refusal | None:
        """Return why a request is refused before anything else. `change_types`: media types of changes."""
        host = http.headers.get("host", "")
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name not in self._hosts:
            return Refusal(
                421, "WrongHost", f"the server is not known as {name!r}: name it with --allow-host to reach it so"
            )
        if http.method not in ("GET", "HEAD"):
            media = http.headers.get("content-type", "").partition(";")[0].strip().lower()
            if http.method != "DELETE" and media not in change_types:
                return Refusal(415, "MediaType", f"the content type is {media!r}, expected {change_types[0]}")
            origin = http.headers.get("origin")
            if origin is not None and origin.partition("://")[2] != host:
                return Refusal(403, "ForeignOrigin", f"requests from pages of {origin} are refused")
        if self.under_way >= self._settings.requests_max:
            return Refusal(503, "Busy", "too many requests at once", {"Retry-After": "1"})
        if is_stream and self.tail_count >= self._settings.tails_max:
            text = f"{self.tail_count} streams are followed already (tails_max)"
            return Refusal(503, "Busy", text, {"Retry-After": "10"})
        return None

    async def _answer(self, route: Route, http: HttpRequest) -> Response:
        lease = None
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                header = await self._credentials.header(http)
            lease = self._callers.take(header)
            user = "" if header is None else user_of(header)
            async with asyncio.timeout(self._settings.request_timeout_s):
                body = await self._body(http)
            if isinstance(body, Refusal):
                return _response(body.status, body.body)
            path = {name: unquote(value) for name, value in http.path_params.items()}
            request = Request(
                lease.client, path, dict(http.query_params), body, user, http.url.scheme == "https",
                partial(self._callers.end, header), http.headers.get("last-event-id", ""),
            )  # fmt: skip
            async with asyncio.timeout(self._settings.request_timeout_s):
                reply = await route.answer(request)
            if reply.stream is not None:
                return self._tail(reply.stream, lease)
        except (PenstockError, TimeoutError) as error:
            # Busy is no verdict on the credentials: other requests use the client.
            is_wrong = isinstance(error, AuthenticationError) and not isinstance(error, AuthenticationBusyError)
            if is_wrong:
                self._credentials.refused(http)
            if is_wrong and lease is not None:
                self._callers.forget(lease.client)
            refusal = refusal_of(error)
            headers = dict(refusal.headers)
            if is_wrong and COOKIE in http.cookies and "authorization" not in http.headers:
                # The browser does not ask for a password of its own, and forgets the session.
                headers = {"Set-Cookie": session_cookie("", is_https=http.url.scheme == "https")}
            return _response(refusal.status, refusal.body, headers)
        except Exception:
            # Last resort: the log gets the details.
            logger.exception("%s %s failed with an unexpected error", route.method, route.path)
            return _response(500, {"error": "Internal", "message": "see the log of the web server for the reason"})
        finally:
            if lease is not None and not lease.is_kept:
                lease.release()
        return _reply(reply)

    def _tail(self, stream: AsyncGenerator[bytes, None], lease: Lease) -> Response:
        """Return a response that sends a stream, and uses the caller's client until it ends."""

        def ended() -> None:
            self.tail_count -= 1
            lease.release()

        lease.is_kept = True
        self.tail_count += 1
        return _ServerSentEvents(stream, ended)

    async def _body(self, http: HttpRequest) -> bytes | Refusal:
        parts: list[bytes] = []
        length = 0
        async for part in http.stream():
            length += len(part)
            if length > self._settings.body_bytes_max:
                text = f"the body is longer than {self._settings.body_bytes_max} bytes"
                return Refusal(413, "TooLarge", text)
            parts.append(part)
        return b"".join(parts)

    async def _openapi(self, http: HttpRequest) -> Response:
        return _response(200, self._document)


class _ServerSentEvents(StreamingResponse):
    """Server-sent events. However the response ends, also before it begins, the stream is closed and `ended` called."""

    def __init__(self, stream: AsyncGenerator[bytes, None], ended: Callable[[], None]) -> None:
        super().__init__(stream, headers=_HEADERS, media_type="text/event-stream")
        self._stream = stream
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, see ASGI."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            try:
                await self._stream.aclose()
            finally:
                self._ended()


def _reply(reply: Reply) -> Response:
    if not reply.has_content:
        return Response(status_code=reply.status, headers={**_HEADERS, **reply.headers})
    return _response(reply.status, reply.content, reply.headers)


def _response(status: int, content: object, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(content), status, {**_HEADERS, **(headers or {})}, media_type="application/json"
    )


async def _ping(http: HttpRequest) -> Response:
    return Response(status_code=200, headers=_HEADERS)


async def _http_refusal(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: "NotFound", 405: "MethodNotAllowed"}.get(error.status_code, "Refused")
    headers = {**_HEADERS, **(error.headers or {})}
    content = {"error": what, "message": f"{http.method} {http.url.path}: {error.detail}"}
    return JSONResponse(content, error.status_code, headers)
