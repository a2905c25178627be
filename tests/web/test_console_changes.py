"""What the console changes: with a token, after typing the name, reported with the command and the call that do it."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import penstock
from penstock import aio
from penstock.client.controller.retention import (
    RecordedCut,
    RetentionExplanation,
    RetentionSubscriber,
    StreamPlace,
)
from penstock.model.errors import NoSuchReaderGroupError, OutcomeUnknownError
from penstock.model.stream_cuts import StreamCut
from penstock.testing import MemoryServer
from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.console.formats import lag_text
from penstock.web.console.retention_pages import holders, outcome, picture, reason
from penstock.web.console.stream_changes import limit_of
from penstock.web.errors import BadRequestError
from penstock.web.lag_times import is_at_or_after, lag_time
from penstock.web.settings import WebSettings
from support.command_line import run_command
from support.secured_server import PASSWORD, SecuredServer

SCOPE = "changed"
STREAM = f"{SCOPE}/orders"
AT = f"/console/streams/{STREAM}"


def page_client(app: WebApp, **options: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost:9091", timeout=60, **options  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
async def pages(penstock_server: MemoryServer) -> AsyncIterator[httpx.AsyncClient]:
    app = WebApp(connection_to(penstock_server.uri), WebSettings(), controller=penstock_server.uri)
    async with page_client(app) as client:
        yield client
    await app.close()


@pytest.fixture
async def client(penstock_server: MemoryServer) -> AsyncIterator[aio.Client]:
    """A client, and stream ``changed/orders`` of two segments with 10 events."""
    async with aio.connect(penstock_server.uri) as client:
        await client.create_stream(STREAM, scaling=penstock.Scaling.fixed(2), tags=["old"])
        async with client.event_writer(STREAM) as writer:
            for number in range(10):
                await writer.write(b"order %d" % number, routing_key=str(number))
        yield client
        await client.delete_scope(SCOPE, recursive=True)


async def fields_of(pages: httpx.AsyncClient, path: str) -> dict[str, str]:
    """Return the fields of the form that confirms a change, without the name to type."""
    answer = await pages.get(path)
    assert answer.status_code == 200, answer.text
    form = answer.text.partition('class="confirm"')[2]
    return {name: html.unescape(value) for name, value in re.findall(r'hidden" name="(\w+)" value="([^"]*)"', form)}


async def change(pages: httpx.AsyncClient, path: str, confirm: str) -> httpx.Response:
    """Open a change and confirm it."""
    fields = await fields_of(pages, path)
    return await pages.post(path.partition("?")[0], data={**fields, "confirm": confirm})


def snippets(page: str) -> list[str]:
    return [html.unescape(found) for found in re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", page, re.DOTALL)]


def test_a_form_needs_the_token_of_a_page() -> None:
    """Checked for each form in `test_no_form_is_accepted_without_its_guards`."""
    from penstock.web.console.console import ROUTES

    forms = [route.path for route in ROUTES if route.is_form]
    assert len(forms) >= 10
    assert all(any(word in path for word in ("change", "new-", "transaction", "filters")) for path in forms)


@pytest.mark.parametrize(
    ("headers", "field", "status"),
    [
        ({}, {}, 200),
        ({"origin": "http://localhost:9091"}, {}, 200),
        ({}, {"token_of_form": ""}, 403),
        ({}, {"token_of_form": "0" * 64}, 403),
        ({"cookie": "penstock_console=" + "a" * 32}, {}, 403),
        ({"cookie": ""}, {}, 403),
        ({"origin": "https://attacker.example"}, {}, 403),
        ({"origin": "null"}, {}, 403),
        ({"host": "attacker.example"}, {}, 421),
        ({"content-type": "text/plain"}, {}, 415),
        ({}, {"confirm": "orders"}, 400),
        ({}, {"confirm": ""}, 400),
    ],
)
async def test_no_form_is_accepted_without_its_guards(
    pages: httpx.AsyncClient, client: aio.Client, headers: dict[str, str], field: dict[str, str], status: int
) -> None:
    fields = await fields_of(pages, AT + "/change/seal")
    answer = await pages.post(AT + "/change/seal", data={**fields, "confirm": STREAM, **field}, headers=headers)
    assert answer.status_code == status, answer.text
    assert bool(await client.segments_of(STREAM)) is (status != 200)


async def test_a_stream_is_created_changed_truncated_scaled_sealed_and_deleted(
    pages: httpx.AsyncClient, client: aio.Client
) -> None:
    made = f"{SCOPE}/made"
    query = f"scope={SCOPE}&stream=made&scaling=events/s&segments=2&rate=100&keep=7d&keep_max=14d&tags=a,+b"
    page = await change(pages, "/console/new-stream?" + query, made)
    assert "is created" in page.text, page.text
    config = await client.stream_config(made)
    assert config.scaling == penstock.Scaling.by_event_rate(100, min_segments=2)
    assert config.retention == penstock.Retention.by_time(days=7, max_days=14)
    assert config.tags == ("a", "b")
    assert (await change(pages, "/console/new-stream?" + query, made)).status_code == 409

    at = f"/console/streams/{made}/change"
    page = await change(pages, at + "/policies?scaling=fixed&segments=3&keep=1MiB", made)
    assert "are changed" in page.text
    config = await client.stream_config(made)
    assert (config.scaling, config.tags) == (penstock.Scaling.fixed(3), ())
    assert config.retention == penstock.Retention.by_size(1 << 20)

    segments = await client.segments_of(STREAM)
    split = await change(pages, f"{AT}/change/scale?segments={segments[0].segment_id}&into=3", STREAM)
    assert "has 4 segments" in split.text
    ids = "+".join(str(each.segment_id) for each in (await client.segments_of(STREAM))[:3])
    merged = await change(pages, f"{AT}/change/scale?segments={ids}", STREAM)
    assert "has 2 segments" in merged.text, merged.text
    assert len(await client.segments_of(STREAM)) == 2

    assert "begins at" in (await change(pages, AT + "/change/truncate?at=latest", STREAM)).text
    assert (await client.head(STREAM)) == (await client.tail(STREAM))
    assert (await pages.get(AT + "/change/delete")).status_code == 200
    refused = await change(pages, AT + "/change/delete", STREAM)
    assert refused.status_code == 412
    assert "Nothing was changed" in refused.text
    assert "is sealed" in (await change(pages, AT + "/change/seal", STREAM)).text
    assert "is deleted" in (await change(pages, AT + "/change/delete", STREAM)).text
    assert not await client.stream_exists(STREAM)


async def test_the_command_and_the_rest_call_of_a_change_do_the_same(
    pages: httpx.AsyncClient, client: aio.Client, penstock_server: MemoryServer
) -> None:
    """Each is run as it is shown."""
    async with client.reader_group(f"{SCOPE}/audit", [STREAM]):
        pass
    first = (await client.segments_of(STREAM))[0].segment_id
    paths = [
        f"/console/new-stream?scope={SCOPE}&stream=a.b&scaling=fixed&segments=2&keep=7d&tags=x+y",
        f"{AT}/change/policies?scaling=kB/s&rate=10&segments=2&keep=10GiB&tags=",
        f"{AT}/change/scale?segments={first}&into=2",
        f"{AT}/change/truncate?at=latest",
        f"/console/groups/{SCOPE}/audit/change/reset?to=latest",
        f"/console/groups/{SCOPE}/audit/change/delete",
        f"{AT}/change/seal",
        f"{AT}/change/delete",
    ]
    import asyncio

    for path in paths:
        shown = snippets((await pages.get(path)).text)
        words = shlex.split(shown[0])
        assert words[0] == "penstock"
        done = await asyncio.to_thread(run_command, *words[1 : words.index("--uri")], uri=penstock_server.uri)
        assert done.code == 0, (path, done.stderr)
        for call in shown[1:]:
            request = shlex.split(call)
            assert request[0] == "curl"
            method = request[request.index("-X") + 1]
            body = request[request.index("-d") + 1] if "-d" in request else None
            answer = await pages.request(
                method, request[-1], content=body, headers={"content-type": "application/json"}
            )
            # The command has done it already: what counts is that the call is understood.
            is_understood = answer.status_code in (200, 201, 204, 404, 409) or "is not current" in answer.text
            assert is_understood, (path, call, answer.text)
            if body is not None:
                assert json.loads(body) is not None


async def test_a_group_is_reset_after_a_dry_run_and_deleted(pages: httpx.AsyncClient, client: aio.Client) -> None:
    group = f"{SCOPE}/billing"
    async with client.reader_group(group, [STREAM], retention="automatic"):
        pass
    page = (await pages.get(f"/console/groups/{group}")).text
    assert "it has no readers" in page
    assert "until read" in page
    dry = (await pages.get(f"/console/groups/{group}/change/reset?to=latest")).text
    tail = await client.tail(STREAM)
    assert all(str(offset) in dry for offset in tail.positions.values())
    async with client.reader_group(group) as joined:
        assert (await joined.describe()).positions[STREAM] != tail
    assert "resumes at latest" in (await change(pages, f"/console/groups/{group}/change/reset?to=latest", group)).text
    async with client.reader_group(group) as joined:
        assert (await joined.describe()).positions[STREAM] == tail
    assert (await pages.get(f"/console/groups/{group}/change/reset?to=noon")).status_code == 400
    async with client.reader_group(group) as joined, joined.reader("worker") as reader:
        await reader.read(timeout_s=0.1)
        assert "Remove worker" in (await pages.get(f"/console/groups/{group}")).text
        removed = await change(pages, f"/console/groups/{group}/readers/worker/change/remove", "worker")
        assert "Reader worker is removed" in removed.text
    assert "nothing is unread" in (await pages.get(f"/console/groups/{group}")).text
    assert "is deleted" in (await change(pages, f"/console/groups/{group}/change/delete", group)).text
    with pytest.raises(NoSuchReaderGroupError):
        async with client.reader_group(group):
            pass


async def test_a_transaction_page_names_the_cause_of_waiting_and_can_decide(
    pages: httpx.AsyncClient, client: aio.Client
) -> None:
    opened = await client.begin_transaction(STREAM, lease_s=60)
    await opened.write(b"x", routing_key="1")
    first = await opened.detach()
    other = await client.begin_transaction(STREAM, lease_s=60)
    await client.prepare_transaction(STREAM, other.id)
    second = await other.detach()
    page = (await pages.get(AT + "/transactions")).text
    assert "its writer: nothing has committed it yet. Without a renewal it is aborted in" in page
    assert "the decision of its coordinator" in page
    done = await change(pages, f"{AT}/transactions/{first}/commit", first)
    assert re.search(r"is COMMITT(ED|ING)", done.text), done.text
    assert "is ABORT" in (await change(pages, f"{AT}/transactions/{second}/abort", second)).text
    refused = await change(pages, f"{AT}/transactions/{second}/commit", second)
    assert refused.status_code == 409
    assert (await pages.get(f"{AT}/transactions/{'0' * 31}/commit")).status_code == 400
    late = await pages.get(AT + "/transactions")
    assert "Ended lately" in late.text


async def test_retention_page_shows_the_next_truncation_and_the_holding_group(
    pages: httpx.AsyncClient, client: aio.Client
) -> None:
    space = (await pages.get(f"/console/storage?scope={SCOPE}")).text
    assert STREAM in space
    assert "none: everything is kept" in space
    assert "of 1" not in space
    free = (await pages.get(f"/console/streams/{STREAM}/retention")).text
    assert "no retention policy" in free


def test_the_group_that_holds_the_head_is_named() -> None:
    def place(size_bytes: int) -> StreamPlace:
        return StreamPlace(StreamCut("a", "b", {0: size_bytes}), size_bytes)

    slow = RetentionSubscriber("a/<slow>", True, place(100), True)
    found = RetentionExplanation(
        "a/b", penstock.Retention.by_size(10), False, True, "SIZE_BETWEEN", place(100), place(10_340), None, place(100),
        RecordedCut(60.0, 9000), None, (RecordedCut(60.0, 9000),), 1, (slow,), 1, False, 60.0, 30.0,
    )  # fmt: skip
    assert holders(found) == "a/<slow>, with 10.0 KiB not acknowledged"
    assert outcome(found) == "Nothing would be deleted."
    assert "so their positions decide" in reason(found)
    drawn = str(picture(found))
    assert "a/&lt;slow&gt;" in drawn
    assert "holds the head" in drawn
    free = replace(found, row="SIZE_NO_SUBSCRIBERS", chosen=place(9000), subscribers=(), subscriber_count=0)
    assert holders(free) == ""
    assert outcome(free) == "8.7 KiB would be deleted."
    assert 'class="going"' in str(picture(free))


async def test_tables_cluster_and_account_are_shown(pages: httpx.AsyncClient, client: aio.Client) -> None:
    await client.create_table(f"{SCOPE}/prices", key_length=8)
    async with client.table(f"{SCOPE}/prices", keys=penstock.TextKeys()) as table:
        for number in range(120):
            await table.put(f"k{number:03}", b"<script>\xff")
    assert f"{SCOPE}/prices" in (await pages.get("/console/tables")).text
    page = (await pages.get(f"/console/tables/{SCOPE}/prices")).text
    assert "&lt;script&gt;\\xff" in page
    assert page.count('<th scope="row">') == 100
    following = re.search(r'rel="next" href="([^"]+)"', page)
    assert following is not None
    assert (await pages.get(html.unescape(following[1]))).text.count('<th scope="row">') == 20
    assert (await pages.get(f"/console/tables/{SCOPE}/prices?prefix=k00")).text.count('<th scope="row">') == 10
    assert (await pages.get(f"/console/tables/{SCOPE}/prices?from=?")).status_code == 400
    assert "which store serves what" in (await pages.get("/console/cluster")).text
    assert SCOPE in (await pages.get("/console/account")).text


async def test_an_unknown_outcome_is_not_shown_as_a_failure(
    pages: httpx.AsyncClient, client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(self: object, stream: str) -> None:
        raise OutcomeUnknownError("no reply in time")

    monkeypatch.setattr(aio.Client, "seal_stream", lose)
    answer = await change(pages, AT + "/change/seal", STREAM)
    assert answer.status_code == 504
    assert "whether the change was made is unknown" in answer.text
    assert "Nothing was changed" not in answer.text


async def test_an_account_without_rights_changes_nothing(tmp_path: Path) -> None:
    server = SecuredServer(tmp_path)
    await server.server.start()
    app = WebApp(connection_to(server.server.controller_uri, server.authority), WebSettings())
    try:
        from penstock.runtime.client_security import ClientSecurity, Credentials

        security = ClientSecurity(Credentials("root", PASSWORD), server.authority)
        async with aio.Client(server.server.controller_uri, security=security) as root:
            await root.create_stream("shop/orders")
            async with root.reader_group("shop/g", ["shop/orders"]):
                pass
            transaction = await (await root.begin_transaction("shop/orders")).detach()
            async with page_client(app, auth=("reader", PASSWORD)) as reader:
                for path, name in (
                    ("/console/streams/shop/orders/change/seal", "shop/orders"),
                    ("/console/streams/shop/orders/change/delete", "shop/orders"),
                    ("/console/streams/shop/orders/change/truncate?at=latest", "shop/orders"),
                    ("/console/streams/shop/orders/change/policies?scaling=fixed&segments=2", "shop/orders"),
                    ("/console/new-stream?scope=shop&stream=more&scaling=fixed", "shop/more"),
                    ("/console/groups/shop/g/change/reset?to=latest", "shop/g"),
                    ("/console/groups/shop/g/change/delete", "shop/g"),
                    (f"/console/streams/shop/orders/transactions/{transaction}/abort", transaction),
                ):
                    fields = await reader.get(path)
                    if fields.status_code == 403:
                        continue
                    answer = await change(reader, path, name)
                    assert answer.status_code == 403, (path, answer.text)
                    assert "Nothing was changed" in answer.text
            assert len(await root.segments_of("shop/orders")) == 1
            assert await root.transaction_state("shop/orders", transaction) == "OPEN"
            assert not await root.stream_exists("shop/more")
    finally:
        await app.close()
        await server.close()


@pytest.mark.parametrize("text", ["7", "7x", "x", "-1d", "1 d d", "7D"])
def test_limits_that_are_not_understood(text: str) -> None:
    if text == "7":
        assert limit_of(text) is not None
        return
    with pytest.raises(BadRequestError):
        limit_of(text)


async def test_the_lag_in_time_has_bounds(client: aio.Client) -> None:
    import datetime

    now = datetime.datetime.now(datetime.UTC)
    tail = await client.tail(STREAM)
    assert lag_text(await lag_time(client, tail, now)) == "nothing is unread"
    later = now + datetime.timedelta(seconds=30)
    found = await lag_time(client, await client.head(STREAM), later)
    assert found.least >= 29
    assert found.most is None or found.most >= found.least


def test_positions_are_compared_by_segment() -> None:
    assert is_at_or_after({0: 5, 1: 5}, {0: 5, 1: 4})
    assert not is_at_or_after({0: 5, 1: 5}, {0: 6, 1: 4})
    assert is_at_or_after({1 << 32: 0}, {0: 9})
    assert not is_at_or_after({0: 9}, {1 << 32: 1})
