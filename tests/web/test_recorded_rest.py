"""What Pravega 0.13 answered over REST: the same calls in the same order get the same statuses and replies here.

The calls of tests/data/rest.jsonl are sent in order. Times and the order of lists are not compared. `expected` has what
differs on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.testing import MemoryServer
from penstock.testing.server import memory_server
from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.settings import WebSettings

SOURCE = Path(__file__).parents[1] / "data" / "rest.jsonl"
#: The server process answers these on its port for metrics.
OF_THE_METRICS_PORT = ("/v1/health", "/prometheus")
#: Its policy is in hours, at which Pravega fails with 500.
FAILED_AT_PRAVEGA = "hours"
#: Statuses of Pravega for bad input, and those here.
STATUSES = {
    ("PUT", "/v1/scopes/shop/streams/orders", 500): 409,  # The stream is sealed.
    ("GET", "/v1/scopes/shop/streams/orders/scaling-events?from=x&to=5", 404): 400,
}
#: Fields that are not compared.
TIMES = ("timestamp", "start")


def recorded() -> list[dict[str, Any]]:
    """Return the calls that are compared."""
    rows = [json.loads(line) for line in SOURCE.read_text().splitlines()]
    return [
        row
        for row in rows
        if not row["path"].startswith(OF_THE_METRICS_PORT)
        and FAILED_AT_PRAVEGA not in json.dumps([row["path"], row["body"]])
    ]


def expected(row: Mapping[str, Any]) -> tuple[int, object]:
    """Return status and reply as they have to be here; None: the reply of an error is not compared."""
    status = STATUSES.get((row["method"], row["path"], row["status"]), row["status"])
    if status == 500:
        return 400, None
    if status >= 400:
        return status, None
    # Pravega leaves out an empty list.
    return status, {"readerGroups": []} if row["path"].endswith("/readergroups") else row["reply"]


def comparable(reply: object) -> object:
    """Return a reply without times, and with sorted lists."""
    if isinstance(reply, dict):
        return {name: comparable(value) for name, value in reply.items() if name not in TIMES}
    if isinstance(reply, list):
        return sorted((comparable(value) for value in reply), key=json.dumps)
    return reply


@pytest.fixture
def new_server() -> Iterator[MemoryServer]:
    """A server without the scopes of other tests."""
    with memory_server() as server:
        yield server


async def test_recorded_calls_have_the_recorded_replies(new_server: MemoryServer) -> None:
    app = WebApp(connection_to(new_server.uri), WebSettings())
    transport = httpx.ASGITransport(app)
    count = 0
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9091", timeout=60) as client:
        for row in recorded():
            status, reply = expected(row)
            body = row["body"]
            path = row["path"].replace("to=17", "to=97")  # The times of the recording are long ago.
            answer = await client.request(
                row["method"], path, headers={"Content-Type": "application/json"},
                content=body if body is None or isinstance(body, str) else json.dumps(body),
            )  # fmt: skip
            assert answer.status_code == status, (row, answer.text)
            if reply is not None:
                assert comparable(answer.json()) == comparable(reply), row
            count += 1
    await app.close()
    assert count > 55
