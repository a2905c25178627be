"""Server-sent events of a stream, through a real HTTP server: positions, scaling, gaps, limits, and who may follow."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from penstock import aio
from penstock.client.client import Client
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import Scaling
from penstock.testing import MemoryServer
from penstock.web import tail
from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.settings import WebSettings

TAIL = "/v1/scopes/shop/streams/orders/tail"
OLD = ("old one", "old two", "old three")
Message = tuple[str, str, Any]


@asynccontextmanager
async def serving(app: WebApp) -> AsyncIterator[httpx.AsyncClient]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    task = asyncio.create_task(server.serve([listening]))
    try:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with httpx.AsyncClient(base_url=address, timeout=60) as http:
            yield http
    finally:
        server.should_exit = True
        await task
        listening.close()


@pytest.fixture
async def client(penstock_server: MemoryServer) -> AsyncIterator[Client]:
    async with aio.connect(penstock_server.uri) as found:
        await found.create_scope("shop")
        await found.create_stream("shop/orders", scaling=Scaling.fixed(2))
        yield found
        await found.seal_stream("shop/orders")
        await found.delete_stream("shop/orders")
        await found.delete_scope("shop")


@pytest.fixture
async def app(penstock_server: MemoryServer) -> AsyncIterator[WebApp]:
    found = WebApp(connection_to(penstock_server.uri), WebSettings(tails_max=2, clients_max=1))
    yield found
    await found.close()


async def messages(response: httpx.Response) -> AsyncIterator[Message]:
    """Yield name, id and data of each message, without those that have neither id nor data."""
    name, number, data = "", "", None
    async for line in response.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "id":
            number = value
        elif field == "data":
            data = json.loads(value)
        elif not line and (number or data is not None):
            yield name, number, data
            name, number, data = "", "", None


async def taken(found: AsyncIterator[Message], count: int) -> list[Message]:
    """Return messages until `count` of them have data."""
    some: list[Message] = []
    async with asyncio.timeout(60):
        while sum(data is not None for _, _, data in some) < count:
            some.append(await anext(found))
    return some


async def write(client: Client, *events: str) -> None:
    async with client.event_writer("shop/orders") as writer:
        for event in events:
            await writer.write(event.encode(), routing_key=event)


def texts(found: list[Message]) -> list[str]:
    return sorted(data["text"] for name, _, data in found if not name and data is not None)


async def test_a_tail_continues_at_the_id_of_its_last_message(client: Client, app: WebApp) -> None:
    async with serving(app) as http:
        async with http.stream("GET", TAIL) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["cache-control"] == "no-store"
            await write(client, "a", "b", "c")
            found = await taken(messages(response), 3)
            assert texts(found) == ["a", "b", "c"]
            last = [number for _, number, _ in found if number][-1]
        await write(client, "d")
        async with http.stream("GET", TAIL, headers={"last-event-id": last}) as response:
            assert texts(await taken(messages(response), 1)) == ["d"]
        first = (await client.segments_of("shop/orders"))[0].segment_id
        await client.scale_stream("shop/orders", seal=[first], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
        await write(client, *"efghijkl")
        # A position before the scale leads through it.
        async with http.stream("GET", TAIL, headers={"last-event-id": last}) as response:
            found = await taken(messages(response), 9)
            assert texts(found) == list("defghijkl")
            last = [number for _, number, _ in found if number][-1]
            assert len(json.loads(last)) == 3
        for bad in ("x", '{"7": 0}', '{"0": 0}'):
            assert (await http.get(TAIL, headers={"last-event-id": bad})).status_code == 400
        assert (await http.get(TAIL + "?at=nonsense")).status_code == 400
        assert (await http.get("/v1/scopes/shop/streams/none/tail")).status_code == 404
    assert app.tail_count == 0


async def test_a_tail_reports_gaps_filters_and_the_end(client: Client, app: WebApp) -> None:
    await write(client, *OLD)
    async with serving(app) as http:
        head = {str(segment): offset for segment, offset in (await client.head("shop/orders")).positions.items()}
        await client.truncate_stream(await client.tail("shop/orders"))
        async with http.stream("GET", f"{TAIL}?contains=new", headers={"last-event-id": json.dumps(head)}) as response:
            found = messages(response)
            left = sum(map(len, OLD)) + 8 * len(OLD)
            while left > 0:
                name, _, gap = (await taken(found, 1))[-1]
                assert name == "gap"
                left -= gap["to"] - gap["from"]
            assert left == 0
            await write(client, "other", "new 1", "new 2")
            assert texts(await taken(found, 2)) == ["new 1", "new 2"]
            await client.seal_stream("shop/orders")
            assert ("end", "{}", {}) in await taken(found, 1)
        async with http.stream("GET", TAIL, headers={"last-event-id": "{}"}) as response:
            assert (await taken(messages(response), 1))[0][0] == "end"


async def test_tails_are_limited_and_keep_their_client(client: Client, app: WebApp) -> None:
    async with serving(app) as http:
        async with http.stream("GET", TAIL) as first, http.stream("GET", TAIL) as second:
            busy = await http.get(TAIL)
            assert (busy.status_code, busy.headers["retry-after"]) == (503, "10")
            # The one client is in use: another account must wait, and the tails are not disturbed.
            refused = await http.get("/v1/scopes", auth=("ann", "secret"))
            assert refused.status_code == 503
            await write(client, "x")
            for response in (first, second):
                assert texts(await taken(messages(response), 1)) == ["x"]
        async with asyncio.timeout(30):
            while app.tail_count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await http.get("/v1/scopes", auth=("ann", "secret"))).status_code != 503


async def test_an_idle_tail_sends_comments(client: Client, app: WebApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_KEEP_ALIVE_S", 0.01)
    async with serving(app) as http, http.stream("GET", TAIL) as response:
        lines = response.aiter_lines()
        assert await anext(lines) == f"retry: {tail._RECONNECT_MS}"
        async with asyncio.timeout(30):
            while await anext(lines) != ":":
                pass


def test_the_settings_refuse_no_tails() -> None:
    with pytest.raises(InvalidArgumentError, match="tails_max"):
        WebSettings(tails_max=0)
