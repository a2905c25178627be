"""Programs and filters of the page of events: curl is run, saved filters are kept by the browser."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

import penstock
from penstock.testing import MemoryServer
from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.console import saved_filters
from penstock.web.console.saved_filters import COOKIE, SavedFilter, cookie_of, filters_in
from penstock.web.settings import WebSettings
from support.browser import served

SCOPE = "snippets"
STREAM = f"{SCOPE}/orders"
EVENTS = f"/console/streams/{STREAM}/events"
HOSTILE = '"><script>window.hit=1</script>\u202e'


@pytest.fixture
def orders(penstock_server: MemoryServer) -> Iterator[penstock.Client]:
    """Stream ``snippets/orders`` of two segments with 20 orders, one of them with signs that shells know."""
    with penstock_server.connect() as client:
        client.create_stream(STREAM, scaling=penstock.Scaling.fixed(2))
        with client.event_writer(STREAM) as writer:
            for number in range(19):
                writer.write(json.dumps({"order": number, "total": 10 * number}).encode(), routing_key=str(number))
            writer.write(b'{"order": 19, "note": "$(date) it\'s `x` & %0A +"}', routing_key="19")
        yield client
        client.delete_scope(SCOPE, recursive=True)


@pytest.fixture
async def pages(penstock_server: MemoryServer, orders: penstock.Client) -> AsyncIterator[httpx.AsyncClient]:
    app = WebApp(connection_to(penstock_server.uri), WebSettings(), controller=penstock_server.uri)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost:9091", timeout=60
    ) as client:
        yield client
    await app.close()


def snippet(page: str, title: str) -> str:
    found = re.search(rf'<p class="title">{title}</p>\s*<div[^>]*><pre[^>]*><code>(.*?)</code>', page, re.DOTALL)
    assert found is not None, page
    return html.unescape(found[1])


def shown_orders(page: str) -> list[int]:
    return sorted(map(int, re.findall(r"<summary><bdi>{&#34;order&#34;: (\d+)", page)))


def test_the_curl_of_a_page_returns_its_events(orders: penstock.Client, penstock_server: MemoryServer) -> None:
    """From each kind of position, and from the stream cut of an event, as a shell runs what was copied."""
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    app = WebApp(connection_to(penstock_server.uri), WebSettings(), controller=penstock_server.uri)
    with served(app) as address, httpx.Client(base_url=address, timeout=60) as pages:
        whole = pages.get(f"{EVENTS}?at=earliest").text
        (from_here, *_) = [html.unescape(each) for each in re.findall(r'<a href="([^"]+at=%7B[^"]+)"', whole)][9:]
        for path in (
            f"{EVENTS}?at=earliest", f"{EVENTS}?at=last:6", f"{EVENTS}?at=00:00&contains=1", from_here,
            f"{EVENTS}?at=earliest&contains=%24%28date%29+it%27s+%60x%60+%26+%250A+%2B",
        ):  # fmt: skip
            page = pages.get(path).text
            copied = snippet(page, "curl")
            ran = subprocess.run(["sh", "-c", copied], capture_output=True, text=True, timeout=60, check=True)
            found = [json.loads(each["text"])["order"] for each in json.loads(ran.stdout)["events"]]
            assert sorted(found) == shown_orders(page), path
            assert found, path
        assert len(shown_orders(pages.get(from_here).text)) < 20


async def test_a_filter_is_saved_used_replaced_and_removed(pages: httpx.AsyncClient) -> None:
    async def post(**fields: str) -> httpx.Response:
        page = (await pages.get(EVENTS)).text
        token = re.search(r'name="token_of_form" value="([^"]+)"', page)
        assert token is not None
        return await pages.post(f"/console/streams/{STREAM}/filters", data={"token_of_form": token[1], **fields})

    def links(page: str) -> dict[str, str]:
        found = re.search(r'<nav class="saved".*?</nav>', page, re.DOTALL)
        pairs = [] if found is None else re.findall(r'<a href="([^"]+)"[^>]*><bdi>(.*?)</bdi>', found[0])
        return {html.unescape(name): html.unescape(address) for address, name in pairs}

    assert "Saved filters" not in (await pages.get(EVENTS)).text
    saved = await post(action="save", filter_name="large", at="earliest", where="total > 170", columns="order")
    assert saved.status_code == 303
    assert "HttpOnly; SameSite=Strict" in saved.headers["set-cookie"]
    page = (await pages.get(saved.headers["location"])).text
    assert list(links(page)) == ["large"]
    assert 'aria-current="true"' in page
    assert shown_orders((await pages.get(links(page)["large"])).text) == [18]
    await post(action="save", filter_name="large", at="earliest", where="total > 160")
    await post(action="save", filter_name=HOSTILE, contains=HOSTILE)
    page = (await pages.get(EVENTS)).text
    assert "<script>window" not in page
    assert list(links(page)) == ["large", HOSTILE.replace("\u202e", "\\u202e")]
    assert shown_orders((await pages.get(links(page)["large"])).text) == [17, 18]
    await post(action="remove", filter_name="large")
    assert "large" not in links((await pages.get(EVENTS)).text)
    assert (await post(action="save", filter_name="")).status_code == 400
    assert (await post(action="save", filter_name="long", where="x" * 1000, contains="y" * 1024,
                       columns="z" * 1024)).status_code == 400  # fmt: skip
    assert (await post(action="save", filter_name="a", token_of_form="foreign")).status_code == 403
    other = (await pages.get(f"/console/streams/{SCOPE}/none/filters")).headers["location"]
    assert other == f"/console/streams/{SCOPE}/none/events"


def test_a_cookie_holds_the_latest_filters_and_a_damaged_one_none() -> None:
    many = [SavedFilter("a/b", f"n{number}", {"where": "x" * 300}) for number in range(40)]
    text = cookie_of(many)
    assert len(f"{COOKIE}={text}") < 3600
    assert filters_in(text)[-1] == many[-1]
    assert 0 < len(filters_in(text)) <= saved_filters.FILTERS_MAX
    for damaged in ("", "x", "!!", base64.b64encode(b'{"a": 1}').decode(), base64.b64encode(b'[["a", 1]]').decode()):
        assert filters_in(damaged) == []
