"""The Spark programs that the web console shows, run as they are copied."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from penstock.server.standalone_process import StandaloneProcess

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.settings import WebSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def program_and_orders(uri: str, path: str, title: str) -> tuple[str, list[int]]:
    """Return the program of a page, and the numbers of the orders that the page shows."""

    async def loaded() -> str:
        app = WebApp(connection_to(uri), WebSettings(), controller=uri)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9091", timeout=60) as client:
            found = (await client.get(path)).text
        await app.close()
        return str(found)

    page = asyncio.run(loaded())
    found = re.search(rf'<p class="title">{title}</p>\s*<div[^>]*><pre[^>]*><code>(.*?)</code>', page, re.DOTALL)
    assert found is not None, page
    return html.unescape(found[1]), sorted(map(int, re.findall(r"<summary><bdi>{&#34;order&#34;: (\d+)", page)))


def test_the_program_of_a_page_reads_its_events(
    spark: SparkSession, store: StandaloneProcess, client: Client, new_stream: Callable[..., str]
) -> None:
    """From positions of each kind, and with conditions of each kind."""
    stream = new_stream(2)
    with client.event_writer(stream) as writer:
        for number in range(30):
            event = {
                "order": number,
                "total": 3 * number,
                "customer": {"id": "ann's"[: 3 + number % 3]},
                "paid": number > 9,
            }
            writer.write(json.dumps(event).encode(), routing_key=str(number))
    for query in (
        "at=earliest&where=total+>+40+and+customer.id+=+ann+or+order+=+3",
        "at=earliest&where=customer.id+!=+ann+and+paid+=+true&contains=order",
        "at=earliest&where=customer.id+~+%22'%22+and+order+<=+9",
        "at=last:8",
        "at=00:00&where=order+<+5",
    ):
        program, wanted = program_and_orders(store.uri, f"/console/streams/{stream}/events?limit=1000&{query}", "Spark")
        names: dict[str, Any] = {"spark": spark}
        exec(compile(program, "snippet", "exec"), names)
        found = sorted(json.loads(row.event)["order"] for row in names["events"].collect())
        assert found == wanted, query
        assert wanted, query


def test_the_program_of_the_ledger_runs(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str]
) -> None:
    scope = new_stream(1).partition("/")[0]
    program, _ = program_and_orders(store.uri, f"/console/tasks?scope={scope}", "Ledger of a scope, in Spark")
    exec(compile(program, "snippet", "exec"), {"spark": spark})
