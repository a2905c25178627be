"""The REST interface: Pravega's calls with their statuses, our additions, guards, and the rights of callers."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from penstock import aio
from penstock.client.controller.controller import ControllerClient
from penstock.model.errors import (
    AuthenticationBusyError,
    AuthenticationError,
    ControllerUnavailableError,
    NoSuchStreamError,
)
from penstock.testing import MemoryServer
from penstock.web import groups, scales
from penstock.web.app import ROUTES, WebApp
from penstock.web.callers import Callers, connection_to, credentials_of
from penstock.web.openapi import openapi_document
from penstock.web.settings import WebSettings
from support.secured_server import PASSWORD, SecuredServer


def client_of(app: WebApp, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:9091", timeout=60, **options)


@pytest.fixture
async def rest(penstock_server: MemoryServer) -> AsyncIterator[httpx.AsyncClient]:
    app = WebApp(connection_to(penstock_server.uri), WebSettings())
    async with client_of(app) as client:
        yield client
    await app.close()


FIXED = {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}
WEEK = {"type": "LIMITED_DAYS", "value": 7}
RATED = {"type": "BY_RATE_IN_EVENTS_PER_SEC", "targetRate": 100, "scaleFactor": 2, "minSegments": 3}
KILOBYTES = {"type": "BY_RATE_IN_KBYTES_PER_SEC", "targetRate": 64, "scaleFactor": 3, "minSegments": 1}
SIZED = {"type": "LIMITED_SIZE_MB", "value": 100, "maxValue": 200}
HOURS = {"type": "LIMITED_DAYS", "timeBasedRetention": {"days": 1, "hours": 2, "minutes": 3}}


def shown(name: str, scaling: object, tags: tuple[str, ...] = (), **fields: object) -> dict[str, object]:
    return {
        "scopeName": "rest", "streamName": name, "scalingPolicy": scaling, "tags": list(tags),
        "timestampAggregationTimeout": 0, "rolloverSizeBytes": 0, **fields,
    }  # fmt: skip


STREAMS = "/v1/scopes/rest/streams"
SHOWN_WEEK = {**WEEK, "timeBasedRetention": {"days": 7, "hours": 0, "minutes": 0}}
#: Method, path, body, status, and reply of calls in sequence.
CALLS: list[tuple[str, str, object, int, object]] = [
    ("GET", "/ping", None, 200, None),
    ("POST", "/v1/scopes", {"scopeName": "rest"}, 201, {"scopeName": "rest"}),
    ("POST", "/v1/scopes", {"scopeName": "rest"}, 409, None),
    ("POST", "/v1/scopes", {"scopeName": "bad/name"}, 400, None),
    ("POST", "/v1/scopes", {"scopeName": ""}, 400, None),
    ("POST", "/v1/scopes", {}, 400, None),
    ("POST", "/v1/scopes", "{not json", 400, None),
    ("POST", "/v1/scopes", "", 400, None),
    ("GET", "/v1/scopes/rest", None, 200, {"scopeName": "rest"}),
    ("GET", "/v1/scopes/none", None, 404, None),
    ("POST", STREAMS, {"streamName": "orders", "scalingPolicy": FIXED, "retentionPolicy": WEEK, "streamTags": ["a"]},
     201, shown("orders", FIXED, ("a",), retentionPolicy=SHOWN_WEEK)),
    ("POST", STREAMS, {"streamName": "orders", "scalingPolicy": FIXED}, 409, None),
    ("POST", STREAMS, {"streamName": "rated", "scalingPolicy": RATED, "retentionPolicy": SIZED},
     201, shown("rated", RATED, retentionPolicy={"type": "LIMITED_SIZE_MB", "value": 100})),
    ("POST", STREAMS, {"streamName": "hours", "scalingPolicy": KILOBYTES, "retentionPolicy": HOURS},
     201, shown("hours", KILOBYTES, retentionPolicy={**HOURS, "value": 0})),
    ("POST", STREAMS, {"streamName": "plain"}, 400, None),
    ("POST", STREAMS, {"streamName": "bad name!", "scalingPolicy": FIXED}, 400, None),
    ("POST", STREAMS, {"streamName": "", "scalingPolicy": FIXED}, 400, None),
    ("POST", STREAMS, {"streamName": "wide", "scalingPolicy": {**FIXED, "minSegments": 1 << 31}}, 400, None),
    ("POST", STREAMS, {"streamName": "long", "scalingPolicy": FIXED, "rolloverSizeBytes": 1 << 63}, 400, None),
    ("POST", STREAMS + "/orders/scale", {"seal": [1 << 63], "ranges": []}, 400, None),
    ("POST", STREAMS, {"streamName": "zero", "scalingPolicy": {**FIXED, "minSegments": 0}}, 400, None),
    ("POST", STREAMS, {"streamName": "wrong", "scalingPolicy": {"type": "NO_SUCH", "minSegments": 1}}, 400, None),
    ("POST", "/v1/scopes/none/streams", {"streamName": "x", "scalingPolicy": FIXED}, 404, None),
    ("GET", STREAMS + "?filter_type=tag&filter_value=a", None, 200,
     {"streams": [shown("orders", FIXED, ("a",), retentionPolicy=SHOWN_WEEK)]}),
    ("GET", STREAMS + "?filter_type=tag&filter_value=none", None, 200, {"streams": []}),
    ("GET", "/v1/scopes/none/streams", None, 404, None),
    ("GET", STREAMS + "/none", None, 404, None),
    ("PUT", STREAMS + "/orders", {"scalingPolicy": {**FIXED, "minSegments": 4}, "streamTags": ["c"]},
     200, shown("orders", {**FIXED, "minSegments": 4}, ("c",))),
    ("GET", STREAMS + "/orders", None, 200, shown("orders", {**FIXED, "minSegments": 4}, ("c",))),
    ("PUT", STREAMS + "/none", {"scalingPolicy": FIXED}, 404, None),
    ("GET", "/v1/scopes/rest/readergroups", None, 200, {"readerGroups": []}),
    ("GET", "/v1/scopes/rest/readergroups/none", None, 404, None),
    ("GET", "/v1/scopes/none/readergroups", None, 404, None),
    ("GET", STREAMS + "/orders/scaling-events", None, 400, None),
    ("GET", STREAMS + "/orders/scaling-events?from=10&to=5", None, 400, None),
    ("GET", STREAMS + "/none/scaling-events?from=0&to=9", None, 404, None),
    ("PUT", STREAMS + "/orders/state", {"streamState": "ACTIVE"}, 400, None),
    ("DELETE", STREAMS + "/orders", None, 412, None),
    ("PUT", STREAMS + "/orders/state", {"streamState": "SEALED"}, 200, {"streamState": "SEALED"}),
    ("PUT", STREAMS + "/orders/state", {"streamState": "SEALED"}, 200, {"streamState": "SEALED"}),
    ("PUT", STREAMS + "/none/state", {"streamState": "SEALED"}, 404, None),
    ("DELETE", "/v1/scopes/rest/readergroups/none", None, 404, None),
    ("DELETE", STREAMS + "/orders", None, 204, None),
    ("DELETE", STREAMS + "/orders", None, 404, None),
    ("DELETE", "/v1/scopes/rest", None, 412, None),
    ("DELETE", "/v1/scopes/none", None, 404, None),
    ("PUT", STREAMS + "/rated/state", {"streamState": "SEALED"}, 200, None),
    ("DELETE", STREAMS + "/rated", None, 204, None),
    ("PUT", STREAMS + "/hours/state", {"streamState": "SEALED"}, 200, None),
    ("DELETE", STREAMS + "/hours", None, 204, None),
    ("DELETE", "/v1/scopes/rest", None, 204, None),
    ("GET", "/v1/nothing", None, 404, None),
    ("PATCH", "/v1/scopes", None, 405, None),
]  # fmt: skip


async def send(rest: httpx.AsyncClient, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
    content = body if isinstance(body, str) or body is None else json.dumps(body)
    answer = await rest.request(method, path, content=content, headers={"content-type": "application/json", **headers})
    if answer.is_success and path.startswith("/v1"):
        check_reply(method, answer)
    return answer


def check_reply(method: str, answer: httpx.Response) -> None:
    """Check a reply against the type in the table of routes, which is its schema in the OpenAPI document."""
    path = answer.request.url.raw_path.decode().partition("?")[0]
    (route,) = (
        route
        for route in ROUTES
        if route.method == method and re.fullmatch(re.sub(r"{\w+}", "[^/]+", route.path), path) is not None
    )
    assert answer.status_code in (route.status, route.later), (method, path)
    if not route.reply:
        assert not answer.content, (method, path)
        return
    assert any(is_of(kind, answer.content) for kind in route.reply), (method, path, answer.text)


def is_of(kind: object, content: bytes) -> bool:
    """Return whether a reply is of a type and has no field besides those of the type."""
    try:
        found: object = msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        return False
    return bool(msgspec.to_builtins(found) == json.loads(content))


async def test_calls_of_pravega_have_its_statuses_and_replies(rest: httpx.AsyncClient) -> None:
    """In sequence, as they were recorded; bad input is answered with 400 where Pravega answers 500."""
    for method, path, body, status, reply in CALLS:
        answer = await send(rest, method, path, body)
        assert answer.status_code == status, (method, path, body, answer.text)
        if reply is not None:
            assert answer.json() == reply, (method, path)
        if status >= 400:
            assert set(answer.json()) == {"error", "message"}, (method, path)
            assert answer.json()["message"]


@pytest.fixture
async def shop(rest: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """A scope ``shop`` with stream ``orders`` of two segments, deleted at the end."""
    await send(rest, "POST", "/v1/scopes", {"scopeName": "shop"})
    await send(rest, "POST", SHOP, {"streamName": "orders", "scalingPolicy": FIXED})
    yield rest
    for name in ("orders", "a.b"):
        await send(rest, "PUT", f"{SHOP}/{name}/state", {"streamState": "SEALED"})
        await send(rest, "DELETE", f"{SHOP}/{name}")
    assert (await send(rest, "DELETE", "/v1/scopes/shop")).status_code == 204


SHOP = "/v1/scopes/shop/streams"
ORDERS = SHOP + "/orders"


async def test_events_are_written_and_read_page_by_page(shop: httpx.AsyncClient) -> None:
    written: list[dict[str, object]] = [{"key": str(number), "text": f"order {number}"} for number in range(25)]
    written += [{"key": "j", "json": {"total": 3}}, {"key": "b", "base64": base64.b64encode(b"\xff\x00").decode()}]
    body = "\n".join(map(json.dumps, written))
    answer = await send(shop, "POST", ORDERS + "/events", body, **{"content-type": "application/x-ndjson"})
    assert (answer.status_code, answer.json()) == (201, {"stored": 27})
    found: list[dict[str, Any]] = []
    query = "?limit=4"
    for _ in range(20):
        page = (await send(shop, "GET", ORDERS + "/events" + query)).json()
        assert len(page["events"]) <= 4
        found += page["events"]
        if page["isEnd"]:
            break
        query = f"?limit=4&token={page['token']}"
    assert sorted(event["text"] for event in found if event.get("text", "").startswith("order")) == sorted(
        f"order {number}" for number in range(25)
    )
    assert [event["text"] for event in found if "total" in event.get("text", "")] == ['{"total": 3}']
    assert [event["base64"] for event in found if "base64" in event] == [base64.b64encode(b"\xff\x00").decode()]
    some = (await send(shop, "GET", ORDERS + "/events?contains=order%201")).json()["events"]
    assert len(some) == 11
    assert (await send(shop, "GET", ORDERS + "/events?at=latest")).json() == {
        "events": [], "scannedBytes": 0, "isEnd": True
    }  # fmt: skip
    tail = (await send(shop, "GET", ORDERS + "/segments")).json()["tail"]
    for at, count in ((json.dumps(dict.fromkeys(tail, 0)), 27), (json.dumps(tail), 0)):
        answer = await shop.get(ORDERS + "/events", params={"at": at})
        assert len(answer.json()["events"]) == count, answer.text
    for bad in ("at=nonsense", "limit=0", "limit=x", "token=x", 'at={"7":0}'):
        assert (await send(shop, "GET", ORDERS + "/events?" + bad)).status_code == 400, bad


@pytest.mark.parametrize("line", ["{", '{"text": "a", "json": 1}', "{}", '{"other": 1}', '{"base64": "?"}', ""])
async def test_a_bad_line_writes_nothing(shop: httpx.AsyncClient, line: str) -> None:
    body = '{"text": "good"}\n' + line if line else ""
    answer = await send(shop, "POST", ORDERS + "/events", body)
    assert answer.status_code == 400
    assert (await send(shop, "GET", ORDERS + "/events")).json()["events"] == []


async def test_events_of_a_transaction_are_written_together(shop: httpx.AsyncClient) -> None:
    answer = await send(shop, "POST", ORDERS + "/events?transaction=1", '{"text": "a", "key": "1"}\n{"text": "b"}')
    assert answer.json() == {"stored": 2}
    found = (await send(shop, "GET", ORDERS + "/events")).json()["events"]
    assert sorted(event["text"] for event in found) == ["a", "b"]


async def test_scales_and_truncations(shop: httpx.AsyncClient) -> None:
    await send(shop, "POST", ORDERS + "/events", '{"text": "a"}\n{"text": "b"}')
    (first, _) = (await send(shop, "GET", ORDERS + "/segments")).json()["segments"]
    ranges = [[0.0, 0.25], [0.25, 0.5]]
    scaled = await send(shop, "POST", ORDERS + "/scale", {"seal": [first["segment"]], "ranges": ranges})
    assert scaled.status_code == 200, scaled.text
    assert [each["keyLow"] for each in scaled.json()["segments"]] == [0.0, 0.25, 0.5]
    assert scaled.json()["epoch"] == 0
    old = (await send(shop, "GET", ORDERS + "/segments?epoch=0")).json()
    assert (old["epoch"], [each["keyLow"] for each in old["segments"]]) == (0, [0.0, 0.5])
    assert len((await send(shop, "GET", ORDERS + "/segments?epoch=1")).json()["segments"]) == 3
    history = (await send(shop, "GET", ORDERS + "/history")).json()
    assert [(epoch["epoch"], epoch["splits"], epoch["merges"]) for epoch in history["epochs"]] == [(0, 0, 0), (1, 1, 0)]
    end = history["epochs"][1]["beganMillis"]
    events = (await send(shop, "GET", f"{ORDERS}/scaling-events?from=0&to={end}")).json()
    assert [(event["splits"], len(event["segments"])) for event in events] == [(0, 2), (1, 3)]
    assert events[0]["segments"][0] == {
        "number": first["segment"] & 0xFFFF_FFFF, "epoch": 0, "start": events[0]["timestamp"],
        "keyStart": 0.0, "keyEnd": 0.5,
    }  # fmt: skip
    later = (await send(shop, "GET", f"{ORDERS}/scaling-events?from={end + 1}&to={end + 9}")).json()
    assert [event["timestamp"] for event in later] == [end]
    assert (await send(shop, "POST", ORDERS + "/scale", {"seal": [], "ranges": [[0.0, 0.0]]})).status_code == 409
    tried = await send(shop, "POST", ORDERS + "/truncation", {"at": "tail", "dryRun": True})
    tail = (await send(shop, "GET", ORDERS + "/segments")).json()["tail"]
    assert tried.json() == {"cut": tail, "dryRun": True}
    assert (await send(shop, "GET", ORDERS + "/events")).json()["events"]
    assert (await send(shop, "POST", ORDERS + "/truncation", {"cut": tail})).status_code == 200
    assert (await send(shop, "GET", ORDERS + "/segments")).json()["head"] == tail
    for bad in ({}, {"at": "tail", "cut": tail}, {"cut": {"x": 0}}, {"cut": {"99": 0}}, {"at": "noon"}, {"to": 1}):
        assert (await send(shop, "POST", ORDERS + "/truncation", bad)).status_code == 400, bad


async def test_the_state_of_a_scale_is_reported_by_the_epoch_in_which_it_began(
    shop: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scale that takes longer than the time for it is answered with its epoch."""
    assert (await send(shop, "GET", ORDERS + "/scale/0")).json() == {"epoch": 0, "state": "IN_PROGRESS"}
    (first, _) = (await send(shop, "GET", ORDERS + "/segments")).json()["segments"]
    body = {"seal": [first["segment"]], "ranges": [[0.0, 0.25], [0.25, 0.5]]}
    monkeypatch.setattr(scales, "_SCALE_TIME_S", -1.0)
    begun = await send(shop, "POST", ORDERS + "/scale", body)
    assert (begun.status_code, begun.json()) == (202, {"epoch": 0, "segments": []})
    for _ in range(3000):
        if (await send(shop, "GET", ORDERS + "/scale/0")).json()["state"] == "SUCCESS":
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the scale is not complete")
    for path, status in (("/scale/9", 404), ("/scale/x", 400), ("/scale/-1", 400), ("/segments?epoch=9", 404)):
        assert (await send(shop, "GET", ORDERS + path)).status_code == status, path
    assert (await send(shop, "GET", SHOP + "/none/scale/0")).status_code == 404


async def test_what_retention_would_delete_is_explained(shop: httpx.AsyncClient) -> None:
    kept = (await send(shop, "GET", ORDERS + "/retention")).json()
    assert (kept["policy"], kept["row"], kept["reason"], kept["newHead"]) == (None, "", "", None)
    policy = {"type": "LIMITED_SIZE_MB", "value": 1}
    await send(shop, "PUT", ORDERS, {"scalingPolicy": FIXED, "retentionPolicy": policy})
    await send(shop, "POST", ORDERS + "/events", '{"text": "a"}')
    kept = (await send(shop, "GET", ORDERS + "/retention")).json()
    assert kept["policy"] == policy
    assert (kept["keptBytes"], kept["bytesToDelete"], kept["tail"]["writtenBytes"]) == (9, 0, 9)
    assert (kept["row"], kept["isSealed"], kept["subscribers"]) == ("NO_CUTS", False, [])
    assert kept["reason"].startswith("no cut is recorded yet")
    assert (await send(shop, "GET", SHOP + "/none/retention")).status_code == 404


async def test_events_are_chosen_by_conditions(shop: httpx.AsyncClient) -> None:
    lines = [{"json": {"total": 3, "id": "ax"}}, {"json": {"total": 300, "id": "b"}}, {"text": "total"}]
    await send(shop, "POST", ORDERS + "/events", "\n".join(map(json.dumps, lines)))
    found = (await shop.get(ORDERS + "/events", params={"where": "total > 100 or id ~ x"})).json()
    assert sorted(json.loads(each["text"])["id"] for each in found["events"]) == ["ax", "b"]
    found = (await shop.get(ORDERS + "/events", params={"where": "total > 1", "contains": "300"})).json()
    assert [json.loads(each["text"])["total"] for each in found["events"]] == [300]
    for path in ("/events", "/tail"):
        assert (await shop.get(ORDERS + path, params={"where": "total >"})).status_code == 400


async def test_groups_transactions_tables_and_the_cluster(
    shop: httpx.AsyncClient, penstock_server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aio.connect(penstock_server.uri) as client:
        async with client.event_writer("shop/orders") as writer:
            await writer.write(b"unread")
        transaction = await client.begin_transaction("shop/orders")
        async with await client.reader_group("audit", ["shop/orders"], scope="shop"):
            lag = (await send(shop, "GET", "/v1/scopes/shop/readergroups/audit/lag")).json()
            assert lag["unreadBytes"] == {"shop/orders": 14}
            assert lag["unreadSeconds"] is None
            timed = (await send(shop, "GET", "/v1/scopes/shop/readergroups/audit/lag?seconds=1")).json()
            (age,) = timed["unreadSeconds"].values()
            assert list(timed["unreadSeconds"]) == ["shop/orders"]
            assert 0 <= age["atLeast"] < 60
            assert age["atMost"] is None or age["atMost"] >= age["atLeast"]
            monkeypatch.setattr(groups, "_TIMED_STREAMS_MAX", 0)
            refused = await send(shop, "GET", "/v1/scopes/shop/readergroups/audit/lag?seconds=1")
            assert refused.status_code == 400
            group = (await send(shop, "GET", "/v1/scopes/shop/readergroups/audit")).json()
            assert group["streamList"] == ["orders"]
            listed = (await send(shop, "GET", "/v1/scopes/shop/readergroups")).json()
            assert listed == {"readerGroups": [{"readerGroupName": "audit"}]}
        await client.create_table("shop/prices", key_length=8)
        assert (await send(shop, "GET", "/v1/scopes/shop/tables")).json() == {"tables": ["prices"]}
        await client.delete_table("shop/prices")
        open_ones = (await send(shop, "GET", ORDERS + "/transactions")).json()["transactions"]
        assert [each["id"] for each in open_ones] == [transaction.id]
        done = await send(shop, "POST", f"{ORDERS}/transactions/{transaction.id}/abort", {})
        assert done.json() == {"state": "ABORTED"}
    assert (await send(shop, "DELETE", "/v1/scopes/shop/readergroups/audit")).status_code == 204
    cluster = (await send(shop, "GET", "/v1/cluster")).json()
    assert cluster["stores"][0]["containers"] == list(range(cluster["containerCount"]))


async def test_lists_are_divided_into_pages(shop: httpx.AsyncClient) -> None:
    await send(shop, "POST", SHOP, {"streamName": "a.b", "scalingPolicy": FIXED})
    first = await send(shop, "GET", SHOP + "?limit=1&fields=names")
    token = first.headers["Penstock-Next-Token"]
    second = await send(shop, "GET", f"{SHOP}?limit=1&fields=names&token={token}")
    assert "Penstock-Next-Token" not in second.headers
    names = {each["streamName"] for page in (first, second) for each in page.json()["streams"]}
    assert names == {"orders", "a.b"}
    assert (await send(shop, "GET", SHOP + "?token=x")).status_code == 400
    assert (await send(shop, "GET", SHOP + "?limit=1001")).status_code == 400


@pytest.mark.parametrize(
    ("path", "field", "key"),
    [
        ("/v1/scopes/shop/readergroups", "readerGroups", "readerGroupName"),
        ("/v1/scopes/shop/tables", "tables", None),
        ("/v1/scopes", "scopes", "scopeName"),
    ],
)
async def test_pages_of_a_list_have_every_name_once(
    shop: httpx.AsyncClient, penstock_server: MemoryServer, path: str, field: str, key: str | None
) -> None:
    """Of reader groups, tables and scopes, although the last names of a page are deleted before the next."""
    wanted = [f"n{number}" for number in range(9)]
    async with aio.connect(penstock_server.uri) as client:
        create: Callable[[str], Awaitable[object]]
        delete: Callable[[str], Awaitable[None]]
        if field == "tables":
            create, delete = lambda name: client.create_table(f"shop/{name}", key_length=8), client.delete_table
        elif field == "scopes":
            create, delete = client.create_scope, client.delete_scope
        else:
            create = lambda name: client.reader_group(f"shop/{name}", ["shop/orders"])  # noqa: E731
            delete = client.delete_reader_group
        for name in wanted:
            await create(name)
        found: list[str] = []
        query = "?limit=3"
        while query:
            answer = await send(shop, "GET", path + query)
            names = [each[key] if key else each for each in answer.json()[field]]
            assert 0 < len(names) <= 3
            found += names
            token = answer.headers.get("Penstock-Next-Token")
            query = f"?limit=3&token={token}" if token else ""
            # The last one that was read, or the one before it.
            for name in [each for each in names if each in wanted][-2 + len(found) // 3 % 2 :]:
                await delete(name if field == "scopes" else f"shop/{name}")
                wanted.remove(name)
        assert sorted(each for each in found if re.fullmatch(r"n\d", each)) == [f"n{number}" for number in range(9)]
        for name in wanted:
            await delete(name if field == "scopes" else f"shop/{name}")
    for bad in ("limit=0", "limit=1001", "token=x"):
        assert (await send(shop, "GET", f"{path}?{bad}")).status_code == 400


async def test_a_list_of_streams_fails_if_a_configuration_cannot_be_read(
    shop: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that was deleted after it was listed is left out; any other failure is no shorter list."""
    errors: list[Exception] = [NoSuchStreamError("deleted"), ControllerUnavailableError("no answer")]

    async def fail(self: aio.Client, stream: str) -> None:
        raise errors[0]

    monkeypatch.setattr(aio.Client, "stream_config", fail)
    assert (await send(shop, "GET", SHOP)).json() == {"streams": []}
    del errors[0]
    assert (await send(shop, "GET", SHOP)).status_code == 503


async def test_a_slash_in_a_name_is_part_of_the_name(rest: httpx.AsyncClient) -> None:
    answer = await send(rest, "GET", "/v1/scopes/a%2Fb")
    assert answer.status_code in (400, 404)
    assert "a/b" in answer.json()["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "attacker.example:9091"}, 421),
        ({"host": "attacker.example"}, 421),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"origin": "https://attacker.example"}, 403),
        ({"origin": "http://localhost:9091"}, 201),
        ({"content-type": "application/json; charset=utf-8"}, 201),
    ],
)
async def test_pages_of_other_sites_cannot_use_the_server(
    rest: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    answer = await send(rest, "POST", "/v1/scopes", {"scopeName": "guarded"}, **headers)
    assert answer.status_code == status
    if status == 201:
        assert answer.headers["x-content-type-options"] == "nosniff"
        await send(rest, "DELETE", "/v1/scopes/guarded")


async def test_a_long_body_and_too_many_requests_are_refused(penstock_server: MemoryServer) -> None:
    app = WebApp(connection_to(penstock_server.uri), WebSettings(body_bytes_max=100, requests_max=1))
    async with client_of(app) as rest:
        assert (await send(rest, "POST", "/v1/scopes", {"scopeName": "x" * 200})).status_code == 413
        app.under_way += 1
        busy = await send(rest, "GET", "/v1/scopes")
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
    await app.close()


async def test_a_cluster_that_cannot_be_reached_is_reported_in_time() -> None:
    app = WebApp(connection_to("tcp://127.0.0.1:1"), WebSettings(request_timeout_s=1))
    async with client_of(app) as rest:
        answer = await send(rest, "GET", "/v1/scopes")
        assert answer.status_code in (503, 504)
        assert answer.json()["message"]
    await app.close()


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[SecuredServer]:
    running = SecuredServer(tmp_path)
    await running.server.start()
    yield running
    await running.close()


async def test_a_request_has_the_rights_of_its_sender(secured: SecuredServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account in the environment of the web server is not used."""
    monkeypatch.setenv("PENSTOCK_USER", "root")
    monkeypatch.setenv("PENSTOCK_PASSWORD", PASSWORD)
    app = WebApp(connection_to(secured.server.controller_uri, secured.authority), WebSettings())
    async with client_of(app) as rest, client_of(app, auth=("root", PASSWORD)) as root, client_of(
        app, auth=("reader", PASSWORD)
    ) as reader, client_of(app, auth=("root", "wrong")) as wrong:  # fmt: skip
        assert (await send(root, "POST", "/v1/scopes", {"scopeName": "shop"})).status_code == 201
        assert (await send(root, "POST", SHOP, {"streamName": "orders", "scalingPolicy": FIXED})).status_code == 201
        assert (await send(root, "POST", SHOP, {"streamName": "clicks", "scalingPolicy": FIXED})).status_code == 201
        for refused_client in (rest, wrong):
            answer = await send(refused_client, "GET", "/v1/scopes")
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Basic")
        assert (await send(reader, "GET", ORDERS)).status_code == 200
        assert (await send(reader, "PUT", ORDERS + "/state", {"streamState": "SEALED"})).status_code == 403
        assert (await send(reader, "GET", SHOP + "/clicks")).status_code == 403
        names = (await send(reader, "GET", SHOP + "?fields=names")).json()
        assert names == {"streams": [{"streamName": "orders"}]}
        assert (await send(reader, "GET", "/v1/whoami")).json() == {"user": "reader"}
        assert (await send(root, "POST", ORDERS + "/events", '{"text": "a"}')).status_code == 201
        refused = await send(reader, "POST", ORDERS + "/events", '{"text": "a"}')
        assert refused.status_code == 403, refused.text
        assert len((await send(reader, "GET", ORDERS + "/events")).json()["events"]) == 1
    await app.close()


async def test_a_session_replaces_the_password(secured: SecuredServer) -> None:
    """As a token, or as a cookie; with the rights of its account; until it is ended."""
    connect = connection_to(secured.server.controller_uri, secured.authority)
    app, other = WebApp(connect, WebSettings()), WebApp(connect, WebSettings())
    async with client_of(app) as rest, client_of(app, auth=("reader", PASSWORD)) as reader, client_of(other) as second:
        assert (await send(rest, "POST", "/v1/sessions")).status_code == 401
        opened = await send(reader, "POST", "/v1/sessions")
        assert opened.status_code == 201, opened.text
        assert opened.json()["user"] == "reader"
        token, cookie = opened.json()["token"], opened.headers["set-cookie"]
        assert cookie == f"penstock_session={token}; Path=/; HttpOnly; SameSite=Strict"
        as_token, as_cookie = {"authorization": f"Bearer {token}"}, {"cookie": f"penstock_session={token}"}
        for sent in (as_token, as_cookie):
            for client in (rest, second):
                assert (await send(client, "GET", "/v1/whoami", **sent)).json() == {"user": "reader"}
                assert (await send(client, "POST", "/v1/scopes", {"scopeName": "s"}, **sent)).status_code == 403
        renewed = await send(rest, "POST", "/v1/sessions", **as_cookie)
        assert renewed.status_code == 201
        assert renewed.json()["expiresAt"] >= opened.json()["expiresAt"]
        refused = await send(rest, "GET", "/v1/whoami", cookie=f"penstock_session={token}x")
        assert refused.status_code == 401
        assert "www-authenticate" not in refused.headers
        assert "Max-Age=0" in refused.headers["set-cookie"]
        # A page of another site does not end it either.
        foreign = await send(rest, "DELETE", "/v1/sessions/current", **as_cookie, origin="http://evil.example")
        assert foreign.status_code == 403
        ended = await send(rest, "DELETE", "/v1/sessions/current", **as_cookie)
        assert ended.status_code == 204
        assert "Max-Age=0" in ended.headers["set-cookie"]
        for sent in (as_token, as_cookie):
            assert (await send(rest, "GET", "/v1/whoami", **sent)).status_code == 401
        assert (await send(reader, "GET", "/v1/whoami")).json() == {"user": "reader"}
    await app.close()
    await other.close()


async def test_a_cluster_without_accounts_has_no_sessions(rest: httpx.AsyncClient) -> None:
    assert (await send(rest, "POST", "/v1/sessions")).status_code == 501
    assert (await send(rest, "GET", "/v1/whoami")).json() == {"user": None}


async def test_a_client_is_closed_for_wrong_credentials_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = WebApp(connection_to("tcp://127.0.0.1:1"), WebSettings())
    forgotten: list[object] = []
    monkeypatch.setattr(Callers, "forget", lambda self, client: forgotten.append(client))
    async with client_of(app, auth=("ann", "secret")) as rest:
        for error, status, count in ((AuthenticationBusyError("later"), 503, 0), (AuthenticationError("no"), 401, 1)):

            async def refuse(self: object, scope: str, error: Exception = error) -> bool:
                raise error

            monkeypatch.setattr(ControllerClient, "scope_exists", refuse)
            assert (await send(rest, "GET", "/v1/scopes/shop")).status_code == status
            assert len(forgotten) == count
    await app.close()


@pytest.mark.parametrize(
    "header", ["", "Bearer ?", "Digest x", "Basic ?", "Basic " + base64.b64encode(b"nocolon").decode()]
)
def test_headers_that_are_no_credentials_are_refused(header: str) -> None:
    with pytest.raises(AuthenticationError):
        credentials_of(header)


def test_the_openapi_document_describes_every_route() -> None:
    document = openapi_document(ROUTES)
    described = {(method.upper(), path) for path, found in document["paths"].items() for method in found}
    assert described == {(route.method, route.path) for route in ROUTES}
    names = [operation["operationId"] for found in document["paths"].values() for operation in found.values()]
    assert len(set(names)) == len(names)
    for route in ROUTES:
        assert bool(route.reply) == (route.status != 204 and not route.is_stream), route.path
    text = msgspec.json.encode(document).decode()
    for reference in set(re.findall(r'"\$ref":"#/components/schemas/(\w+)"', text)):
        assert reference in document["components"]["schemas"]


async def test_a_group_is_reset_and_a_reader_removed(shop: httpx.AsyncClient, penstock_server: MemoryServer) -> None:
    group = "/v1/scopes/shop/readergroups/audit"
    async with aio.connect(penstock_server.uri) as client:
        async with client.event_writer("shop/orders") as writer:
            for number in range(10):
                await writer.write(b"%d" % number, routing_key=str(number))
        async with await client.reader_group("audit", ["shop/orders"], scope="shop") as joined:
            reader = await joined.reader("one")
            tail = {str(key): value for key, value in (await client.tail("shop/orders")).positions.items()}
            planned = (await send(shop, "POST", group + "/reset", {"at": "latest", "dryRun": True})).json()
            assert planned == {
                "before": {"shop/orders": dict.fromkeys(tail, 0)},
                "after": {"shop/orders": tail},
                "isDone": False,
            }
            assert (await joined.unread_bytes()) == sum(tail.values())
            done = (await send(shop, "POST", group + "/reset", {"cuts": {"shop/orders": tail}})).json()
            assert done == {**planned, "isDone": True}
            assert (await joined.unread_bytes()) == 0
            for bad in (
                {},
                {"at": "latest", "cuts": {}},
                {"at": "noon"},
                {"cuts": {"shop/orders": {"9": 0}}},
                {"to": 1},
            ):
                assert (await send(shop, "POST", group + "/reset", bad)).status_code == 400, bad
            assert (await send(shop, "DELETE", group + "/readers/none")).status_code == 404
            assert list((await joined.describe()).readers) == ["one"]
            assert (await send(shop, "DELETE", group + "/readers/one")).status_code == 204
            assert list((await joined.describe()).readers) == []
            await reader.close()
        await client.delete_reader_group("shop/audit")
    assert (await send(shop, "POST", group + "/reset", {"at": "latest"})).status_code == 404
    assert (await send(shop, "DELETE", group + "/readers/one")).status_code == 404


async def test_entries_of_a_table_come_in_pages(shop: httpx.AsyncClient, penstock_server: MemoryServer) -> None:
    entries = "/v1/scopes/shop/tables/prices/entries"
    async with aio.connect(penstock_server.uri) as client:
        await client.create_table("shop/prices", key_length=4, partition_count=2)
        async with client.table("shop/prices") as prices:
            await prices.put_many([(b"a%03d" % number, b"%d" % number) for number in range(25)])
            await prices.put(b"b\xff\x00\x01", b"\xff" * 70_000)
        found: list[dict[str, Any]] = []
        query = ""
        while True:
            page = (await send(shop, "GET", f"{entries}?limit=7{query}")).json()
            found += page["entries"]
            if "token" not in page:
                break
            query = f"&token={page['token']}"
        assert [(entry["keyText"], entry["text"]) for entry in found[:25]] == [
            (f"a{number:03d}", str(number)) for number in range(25)
        ]
        assert (found[25]["keyBase64"], found[25]["length"], found[25]["isCut"]) == ("Yv8AAQ==", 70_000, True)
        some = (await send(shop, "GET", entries + "?prefix=a00")).json()["entries"]
        assert [entry["keyText"] for entry in some] == [f"a{number:03d}" for number in range(10)]
        for bad in ("limit=0", "token=?", "token=YQ=="):
            assert (await send(shop, "GET", f"{entries}?{bad}")).status_code == 400, bad
        await client.delete_table("shop/prices")
    assert (await send(shop, "GET", entries)).status_code == 404
