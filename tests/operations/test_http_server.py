"""The HTTP port for health and metrics: what it answers, and how it bounds clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.operations.http_server import HttpReply, HttpServer
from penstock.operations.settings import HttpServerSettings
from support.containers import until

SETTINGS = HttpServerSettings(connections_max=2, request_bytes_max=2048, request_timeout_s=0.3, idle_timeout_s=0.3)
Serve = Callable[..., Awaitable[HttpServer]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Return a function that starts a server; all are stopped at the end."""
    servers: list[HttpServer] = []

    async def start(settings: HttpServerSettings = SETTINGS) -> HttpServer:
        async def echo(query: str) -> HttpReply:
            return HttpReply(200, query.encode())

        async def fail(query: str) -> HttpReply:
            raise RuntimeError("planted")

        async def hang(query: str) -> HttpReply:
            await asyncio.Event().wait()
            raise AssertionError

        async def large(query: str) -> HttpReply:
            return HttpReply(200, bytes(64 << 20))

        server = HttpServer({"/echo": echo, "/fail": fail, "/hang": hang, "/large": large}, settings)
        servers.append(server)
        await server.start("127.0.0.1", 0)
        return server

    yield start
    for server in servers:
        await server.stop()


async def ask(server: HttpServer, request: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request)
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def get(path: str, *, method: str = "GET", more: str = "Connection: close\r\n") -> bytes:
    """Return a request."""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode()


async def test_a_path_is_answered_with_its_query(serve: Serve) -> None:
    server = await serve()
    reply = await ask(server, get("/echo?a=1&b"))
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
    assert reply.endswith(b"\r\n\r\na=1&b")


async def test_head_has_the_length_and_no_body(serve: Serve) -> None:
    reply = await ask(await serve(), get("/echo?abc", method="HEAD"))
    assert b"content-length: 3" in reply.lower()
    assert reply.endswith(b"\r\n\r\n")


async def test_several_requests_of_one_connection_are_answered_in_order(serve: Serve) -> None:
    reply = await ask(await serve(), get("/echo?one", more="") + get("/echo?two", more="") + get("/echo?three"))
    assert reply.count(b"200 OK") == 3
    assert reply.index(b"one") < reply.index(b"two") < reply.index(b"three")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/none"), b"404"),
        (get("/echo", method="POST"), b"405"),
        (get("/fail"), b"500"),
        (get("/hang"), b"503"),
        (b"nonsense\r\n\r\n", b"400"),
        (get("/echo", more="X: " + "a" * 40_000 + "\r\n"), b"431"),
        (get("/echo", method="POST", more="Content-Length: 10000\r\n") + bytes(10_000), b"413"),
    ],
    ids=["path", "method", "defect", "hang", "nonsense", "headers", "body"],
)
async def test_unanswerable_requests_get_a_status(serve: Serve, request_bytes: bytes, status: bytes) -> None:
    server = await serve()
    reply = await ask(server, request_bytes)
    assert reply.startswith(b"HTTP/1.1 " + status), reply[:200]
    assert (await ask(server, get("/echo?fine"))).endswith(b"fine")


@pytest.mark.parametrize("begun", [b"", b"GET /echo HT"], ids=["idle", "begun"])
async def test_a_client_that_sends_nothing_more_is_disconnected(serve: Serve, begun: bytes) -> None:
    assert await ask(await serve(), begun) == b""


async def test_a_client_that_does_not_read_is_disconnected(serve: Serve) -> None:
    server = await serve()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    writer.write(get("/large"))
    await until(lambda: server.connection_count > 0)
    await until(lambda: server.connection_count == 0)
    writer.close()


async def test_connections_beyond_the_limit_are_closed_and_served_later(serve: Serve) -> None:
    server = await serve(HttpServerSettings(connections_max=2))
    open_ones = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
    await until(lambda: server.connection_count == 2)
    assert await ask(server, get("/echo?x")) == b""
    for _, writer in open_ones:
        writer.close()
    await until(lambda: server.connection_count == 0)
    assert (await ask(server, get("/echo?x"))).endswith(b"x")


async def test_stop_closes_open_connections(serve: Serve) -> None:
    server = await serve(HttpServerSettings())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(get("/hang", more=""))
    await until(lambda: server.connection_count == 1)
    async with asyncio.timeout(60):
        await server.stop()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
