"""The console's pages without a browser: what they show, their guards, and the rights of accounts."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import html
import io
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

import penstock
from penstock import aio
from penstock.testing import MemoryServer
from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.console import reading, streams
from penstock.web.console.positions import short_text
from penstock.web.console.rendering import STATIC, environment, static_file, visible
from penstock.web.settings import WebSettings

#: Names of scopes that tests make begin so.
SCOPE = "console"
#: What would run in a browser that takes an event, a name or an error as a part of the page.
XSS = (
    "<script>window.hit = 1</script>",
    "<img src=x onerror=window.hit=1>",
    '"><svg onload=window.hit=1>',
    "' autofocus onfocus=window.hit=1 x='",
    "</code></pre></textarea><script>window.hit=1</script>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:window.hit=1",
    "\u202e<b>\u2066evil",
    "\x00\x1b[31m<i>",
)


def page_client(app: WebApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:9091", timeout=60)


@pytest.fixture
async def pages(penstock_server: MemoryServer) -> AsyncIterator[httpx.AsyncClient]:
    app = WebApp(connection_to(penstock_server.uri), WebSettings(), controller=penstock_server.uri)
    async with page_client(app) as client:
        yield client
    await app.close()


@pytest.fixture
async def orders(penstock_server: MemoryServer) -> AsyncIterator[str]:
    """A stream of two segments with 60 orders, of which one segment was split afterwards, and 20 more orders."""
    stream = f"{SCOPE}/orders"
    async with aio.connect(penstock_server.uri) as client:
        await client.create_stream(stream, scaling=penstock.Scaling.fixed(2), tags=["<b>retail</b>"])
        await write_orders(client, stream, range(60))
        first = (await client.segments_of(stream))[0]
        await client.scale_stream(stream, seal=[first.segment_id], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
        await write_orders(client, stream, range(60, 80))
        yield stream
        await client.delete_scope(SCOPE, recursive=True)


async def write_orders(client: aio.Client, stream: str, numbers: Sequence[int]) -> None:
    async with client.event_writer(stream) as writer:
        for number in numbers:
            event = {"order": number, "total": number * 3, "customer": {"id": ("ann", "bob")[number % 2]}}
            await writer.write(json.dumps(event).encode(), routing_key=str(number))


def shown_orders(page: str) -> list[int]:
    """Return the numbers of the orders that a page shows in its rows."""
    return [int(number) for number in re.findall(r"<summary><bdi>{&#34;order&#34;: (\d+)", page)]


def snippet(page: str, title: str) -> str:
    found = re.search(rf'<p class="title">{title}</p>\s*<div[^>]*><pre[^>]*><code>(.*?)</code>', page, re.DOTALL)
    assert found is not None, page
    return html.unescape(found[1])


async def test_the_last_events_are_shown_across_a_split(
    pages: httpx.AsyncClient, orders: str, penstock_server: MemoryServer
) -> None:
    page = (await pages.get(f"/console/streams/{orders}/events")).text
    assert sorted(shown_orders(page)) == list(range(80))
    few = shown_orders((await pages.get(f"/console/streams/{orders}/events?at=last:6")).text)
    assert len(few) == 6
    assert max(few) == 79
    async with aio.connect(penstock_server.uri) as client:
        one = (await client.segments_of(orders))[-1].segment_id
    own = (await pages.get(f"/console/streams/{orders}/events?at=last:5&segment={one}")).text
    assert len(shown_orders(own)) == 5


async def test_pages_continue_with_a_token_until_all_is_read(pages: httpx.AsyncClient, orders: str) -> None:
    found: list[int] = []
    path = f"/console/streams/{orders}/events?at=earliest&limit=7&where=order+%3E%3D+10"
    for _ in range(30):
        page = (await pages.get(path)).text
        found += shown_orders(page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        if following is None:
            break
        path = html.unescape(following[1])
    assert sorted(found) == list(range(10, 80))


async def test_a_page_stops_after_bytes_and_says_how_far_it_came(
    pages: httpx.AsyncClient, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SCANNED_BYTES_MAX", 500)
    page = (await pages.get(f"/console/streams/{orders}/events?at=earliest&contains=nothing")).text
    assert "stopped after 256 MiB" in page
    assert re.search(r"0 events, \d+ B read", page)
    assert 'rel="next"' in page


async def test_a_page_stops_after_its_time(
    pages: httpx.AsyncClient, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SCAN_TIME_MAX_S", 0.0)
    page = (await pages.get(f"/console/streams/{orders}/events?at=earliest")).text
    assert "stopped after 5 s" in page
    assert 'rel="next"' in page


async def test_columns_and_forms(pages: httpx.AsyncClient, orders: str) -> None:
    query = "at=earliest&where=order%3D7&columns=order,customer.id"
    page = (await pages.get(f"/console/streams/{orders}/events?{query}&form=json")).text
    assert "<td><bdi>7</bdi></td><td><bdi>bob</bdi></td>" in page.replace("\n", "")
    assert "{\n  &#34;order&#34;: 7," in page
    raw = (await pages.get(f"/console/streams/{orders}/events?{query}&form=hex")).text
    assert "00000000  7b 22 6f 72" in raw


@pytest.mark.parametrize(
    "query",
    ["at=noon", "at=last:0", "at=last:x", "where=a", "columns=a..b", "form=xml", "token=x", "at=%7B%2299%22%3A0%7D",
     "at=2026-13-01"],
)  # fmt: skip
async def test_a_mistake_is_shown_beside_the_form(pages: httpx.AsyncClient, orders: str, query: str) -> None:
    answer = await pages.get(f"/console/streams/{orders}/events?{query}")
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text
    assert 'name="where"' in answer.text


async def test_the_python_of_a_page_returns_its_events(
    pages: httpx.AsyncClient, orders: str, penstock_server: MemoryServer
) -> None:
    """For each kind of position and condition: the program is run."""
    async with aio.connect(penstock_server.uri) as client:
        head = short_text(await client.head(orders))
    for query in (
        "at=earliest&where=total+>+100+and+customer.id+=+ann+or+order+=+3",
        "at=earliest&where=customer.id+!=+ann&contains=order",
        "at=last:30&contains=1",
        "at=earliest&where=customer+~+bob+and+order+<=+9",
        "at=00:00",
        f"at={quote(head)}&where=order+<+5",
    ):
        page = (await pages.get(f"/console/streams/{orders}/events?limit=1000&{query}")).text
        program = snippet(page, "Python")
        output = io.StringIO()

        def run(program: str = program, output: io.StringIO = output) -> None:
            with contextlib.redirect_stdout(output):
                exec(compile(program, "snippet", "exec"), {})

        # The blocking client has a loop of its own.
        await asyncio.to_thread(run)
        lines = output.getvalue().splitlines()
        found = sorted(json.loads(ast.literal_eval(line.split(" ", 2)[2]))["order"] for line in lines)
        assert found == sorted(shown_orders(page)), query
        assert penstock_server.uri in program


async def test_segments_are_shown_as_a_map_and_as_a_table(pages: httpx.AsyncClient, orders: str) -> None:
    page = (await pages.get(f"/console/streams/{orders}/segments")).text
    assert page.count("<g class=") == 4
    assert "split 20" in page
    assert len(re.findall(r"<td>\d+, \d+</td>", page)) == 1
    assert "takes events" in page
    for span in ("1 h", "6 h", "24 h"):
        assert (await pages.get(f"/console/streams/{orders}/segments", params={"span": span})).status_code == 200
    assert (await pages.get(f"/console/streams/{orders}/segments?span=x")).status_code == 400


async def test_settings_and_groups_of_a_stream(
    pages: httpx.AsyncClient, orders: str, penstock_server: MemoryServer
) -> None:
    page = (await pages.get(f"/console/streams/{orders}/settings")).text
    assert "fixed: 2 segments" in page
    assert "&lt;b&gt;retail&lt;/b&gt;" in page
    assert "penstock stream create console/orders --segments 2" in html.unescape(page)
    async with aio.connect(penstock_server.uri) as client, client.reader_group(f"{SCOPE}/audit", [orders]):
        pass
    found = (await pages.get(f"/console/streams/{orders}/groups")).text
    assert "console/audit" in found
    assert "it has no readers" in (await pages.get("/console/")).text


async def test_one_event_is_downloaded_as_it_is(
    pages: httpx.AsyncClient, orders: str, penstock_server: MemoryServer
) -> None:
    data = b"\x00\xff<script>" * 20_000
    async with aio.connect(penstock_server.uri) as client, client.event_writer(orders) as writer:
        await writer.write(data, routing_key="1")
    page = (await pages.get(f"/console/streams/{orders}/events?contains=%3Cscript")).text
    assert "The first 64.0 KiB of " in page
    link = re.search(r'href="([^"]+)" download', page)
    assert link is not None
    answer = await pages.get(html.unescape(link[1]))
    assert answer.content == data
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    wrong = re.sub(r"end=\d+", "end=1", html.unescape(link[1]))
    assert (await pages.get(wrong)).status_code == 400


async def test_hostile_bytes_are_shown_and_never_a_part_of_the_page(
    pages: httpx.AsyncClient, orders: str, penstock_server: MemoryServer
) -> None:
    async with aio.connect(penstock_server.uri) as client, client.event_writer(orders) as writer:
        for text in XSS:
            await writer.write(text.encode(), routing_key="1")
            await writer.write(json.dumps({text: text}).encode(), routing_key="1")
    for form in ("text", "json", "hex"):
        page = (await pages.get(f"/console/streams/{orders}/events?at=last:200&form={form}")).text
        for part in ("<script>window", "<img src", "<svg onload", "' autofocus", "\u202e", "\x00", "\x1b", "49{%"):
            assert part not in page, (form, part)
    for name in ("at", "contains", "where", "columns", "form", "limit", "segment", "token", "span"):
        for text in XSS:
            for place in ("events", "segments", "none"):
                page = (await pages.get(f"/console/streams/{orders}/{place}", params={name: text})).text
                assert "<script>window" not in page
                assert "<img src" not in page
                assert "<svg onload" not in page
    for text in XSS:
        answer = await pages.get(f"/console/streams/{quote(text, safe='')}/{quote(text, safe='')}/events")
        assert answer.status_code in (400, 404)
        assert "<script>window" not in answer.text
        assert "<img src" not in answer.text


async def test_pages_have_no_inline_scripts_and_a_policy_that_refuses_them(
    pages: httpx.AsyncClient, orders: str
) -> None:
    for path in ("/", "/streams", f"/streams/{orders}/events", f"/streams/{orders}/segments", "/sign-in", "/none"):
        answer = await pages.get("/console" + path)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert re.search(r"<script(?![^>]*src=)|\son\w+=|style=", answer.text) is None
    assert (await pages.get("/console/none")).status_code == 404
    assert (await pages.get("/console")).headers["location"] == "/console/"


async def test_another_host_is_refused_with_a_page(pages: httpx.AsyncClient) -> None:
    answer = await pages.get("/console/", headers={"host": "attacker.example"})
    assert answer.status_code == 421
    assert "attacker.example" in answer.text


async def test_lists_have_pages_and_cost_no_request_per_stream(
    pages: httpx.AsyncClient, orders: str, penstock_server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ROWS_MAX", 2)
    async with aio.connect(penstock_server.uri) as client:
        for number in range(4):
            await client.create_stream(f"{SCOPE}/s{number}", tags=["numbered"])

        async def refuse(self: object, *_: object, **__: object) -> None:
            raise AssertionError("a list asked a stream")

        for name in ("stream_config", "segments_of", "head", "tail", "history", "segment_info"):
            monkeypatch.setattr(aio.Client, name, refuse)
        found: list[str] = []
        path = f"/console/streams?scope={SCOPE}&tag=numbered"
        for _ in range(5):
            page = (await pages.get(path)).text
            found += re.findall(r"<bdi>console/(\w+)</bdi>", page)
            following = re.search(r'rel="next" href="([^"]+)"', page)
            if following is None:
                break
            path = html.unescape(following[1])
        assert sorted(found) == ["s0", "s1", "s2", "s3"]
        assert "1–1 of 1" in (await pages.get("/console/streams?name=S3")).text


def test_vendored_files_are_those_of_the_sums() -> None:
    from hashlib import sha256

    folder = Path(penstock.__file__).parent / "web" / "console" / "static"
    sums = re.findall(r"sha256 (\w{64})", (folder / "LICENSES.txt").read_text(encoding="utf-8"))
    names = ("htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css")
    assert [sha256(static_file(name)).hexdigest() for name in names] == sums
    assert {path.name for path in folder.iterdir()} == {*STATIC, "LICENSES.txt"}


def test_every_template_is_valid_and_escapes() -> None:
    assert environment().list_templates()
    for name in environment().list_templates():
        environment().get_template(name)
        assert "|safe" not in (Path(penstock.__file__).parent / "web/console/templates" / name).read_text()
    assert visible("a\x1b\u202eb") == "a\\x1b\\u202eb"
