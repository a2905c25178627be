"""The page of tasks: Spark queries and exports with their lag, and programs that write exactly once."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

import penstock
from penstock import aio
from penstock.client.groups.subscribers import subscriber_kind
from penstock.jobs.export_hold import GROUP_PREFIX
from penstock.model.findings import FindingKind
from penstock.spark.ledger import BatchState, Ledger, LedgerRow, SinkIdentity, create_ledger, ledger_table
from penstock.spark.options import StoreSettings
from penstock.spark.subscription import hold, new_number
from penstock.testing import MemoryServer
from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.console import overview, rates
from penstock.web.settings import WebSettings
from support.command_line import run_command

SCOPE = "tasks"
STREAM = f"{SCOPE}/orders"
HOSTILE = "<script>window.hit=1</script>\u202e"


def page_client(app: WebApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:9091", timeout=60)


async def make_streams(client: aio.Client) -> None:
    """Create two streams of one segment, one with 10 events of 16 bytes with their headers."""
    for name in ("orders", "copy"):
        await client.create_stream(f"{SCOPE}/{name}", scaling=penstock.Scaling.fixed(1))
    async with client.event_writer(STREAM) as writer:
        for number in range(10):
            await writer.write(b"event%03d" % number)


@pytest.fixture
async def pages(penstock_server: MemoryServer) -> AsyncIterator[httpx.AsyncClient]:
    app = WebApp(connection_to(penstock_server.uri), WebSettings(), controller=penstock_server.uri)
    async with page_client(app) as client:
        yield client
    await app.close()


@pytest.fixture
async def client(penstock_server: MemoryServer) -> AsyncIterator[aio.Client]:
    async with aio.connect(penstock_server.uri) as client:
        await make_streams(client)
        yield client
        await client.delete_scope(SCOPE, recursive=True)


def rows_of(page: str) -> list[list[str]]:
    """Return the texts of the cells of each row."""
    found = []
    for row in re.findall(r"<tr[^>]*>(<th scope=\"row\".*?)</tr>", page, re.DOTALL):
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        found.append([html.unescape(re.sub(r"<[^>]+>", "", each)).strip() for each in cells])
    return found


async def put_row(client: aio.Client, row: LedgerRow) -> None:
    await create_ledger(client, row.sink.target)
    ledger = await Ledger.open(client, row.sink)
    await ledger.replace(row, (await ledger.read())[1])
    await ledger.close()


@pytest.fixture
def filled(penstock_server: MemoryServer) -> Iterator[str]:
    """The address of a server with the streams of `client`, for tests that run commands."""

    async def fill() -> None:
        async with aio.connect(penstock_server.uri) as client:
            await make_streams(client)

    async def clear() -> None:
        async with aio.connect(penstock_server.uri) as client:
            await client.delete_scope(SCOPE, recursive=True)

    asyncio.run(fill())
    yield penstock_server.uri
    asyncio.run(clear())


def shown(uri: str, *paths: str) -> list[str]:
    """Return pages of the console."""

    async def pages() -> list[str]:
        app = WebApp(connection_to(uri), WebSettings(), controller=uri)
        async with page_client(app) as client:
            found = [(await client.get(path)).text for path in paths]
        await app.close()
        return found

    return asyncio.run(pages())


def test_queries_and_exports_are_shown_with_their_lag(filled: str, tmp_path: Path) -> None:
    query = f"{SCOPE}/billing-{new_number()}"
    with penstock.connect(filled) as client:
        start = {STREAM: dict(client.head(STREAM).positions)}
        hold(StoreSettings(uri=filled), query, start)
        client.reader_group(f"{SCOPE}/of-readers", [STREAM]).close()
    words = (
        "export",
        STREAM,
        "--to",
        "parquet",
        "--directory",
        str(tmp_path / "out"),
        "--once",
        "--subscriber",
        "lake",
    )
    assert run_command(*words, uri=filled).code == 0
    page, whole, group = shown(filled, f"/console/tasks?scope={SCOPE}", "/console/", f"/console/groups/{query}")
    assert rows_of(page) == [
        [query, "160 B", "—", "Spark query", STREAM, ""],
        [f"{SCOPE}/{GROUP_PREFIX}lake", "0 B", "", "export", STREAM, ""],
    ]
    # No readers are expected of them.
    assert f"group {query}" not in whole
    assert f"group {SCOPE}/of-readers" in whole
    assert "the position of a program (Spark query): see whether that runs" in group


def test_the_names_that_programs_give_their_groups_are_known() -> None:
    assert subscriber_kind(f"a/b-{new_number()}") == "Spark query"
    assert subscriber_kind(f"a/{GROUP_PREFIX}b") == "export"
    assert [subscriber_kind(f"a/{each}") for each in ("b", "billing-2026", "b-0123456g", "-01234567")] == [""] * 4


def test_replays_are_shown_with_their_range_and_how_far_they_are(filled: str) -> None:
    assert run_command("replay", STREAM, f"{SCOPE}/copy", "--name", "again", uri=filled).code == 0
    (row,) = rows_of(shown(filled, f"/console/tasks?scope={SCOPE}")[0])
    with penstock.connect(filled) as client:
        segment = client.segments_of(STREAM)[0].segment_id
    assert row[:5] == ["again", "replay", f"{SCOPE}/copy", "0", "committed"]
    assert row[6] == f'{STREAM} from {{"{segment}":0}} to {{"{segment}":160}}, finished'


async def test_sinks_and_jobs_are_shown_by_their_rows_whatever_these_contain(
    pages: httpx.AsyncClient, client: aio.Client
) -> None:
    target = f"{SCOPE}/copy"
    await put_row(client, LedgerRow(SinkIdentity(HOSTILE, target), 7, BatchState.INTENT, {}, 2_000, query="id-1"))
    files = '{"v":1,"plan":"{\\"files\\":[[\\"a\\",1],[\\"b\\",2]]}","before":null,"behind":"b:12"}'
    await put_row(client, LedgerRow(SinkIdentity("job fill", target), 3, BatchState.DONE, {}, 1_000, files))
    await put_row(client, LedgerRow(SinkIdentity("job odd", target), 1, BatchState.DONE, {}, 0, "[1]"))
    response = await pages.get(f"/console/tasks?scope={SCOPE}")
    assert "<script>window" not in response.text
    sink, fill, odd = rows_of(response.text)
    assert sink[0] == "<script>window.hit=1</script>\\u202e"
    assert sink[1:4] == ["Spark sink", target, "7"]
    assert sink[4].startswith("being committed: the next run")
    assert sink[5:] == ["1970-01-01 00:00:02 UTC", "streaming query id-1"]
    assert fill[1:] == ["backfill", target, "3", "committed", "1970-01-01 00:00:01 UTC", "2 files, at b:12"]
    assert odd[:2] + odd[6:] == ["odd", "job", ""]


async def test_a_damaged_row_is_reported_beside_the_others(pages: httpx.AsyncClient, client: aio.Client) -> None:
    target = f"{SCOPE}/copy"
    await put_row(client, LedgerRow(SinkIdentity("good", target), 1, BatchState.DONE, {}, 0))
    async with client.table(ledger_table(target)) as table:
        await table.put(SinkIdentity("bad", target).key + bytes(24), b"<b>no row")
    page = (await pages.get(f"/console/tasks?scope={SCOPE}")).text
    assert [row[0] for row in rows_of(page)] == ["good"]
    assert f"{ledger_table(target)}, row of" in page
    assert "<b>no row" not in page


def test_a_program_without_readers_is_a_problem_when_its_lag_grows() -> None:
    from penstock.client.statistics.statistics import GroupLag

    name = "a/export-lake"
    lag = GroupLag(name, {"a/b": 5}, 0, 0)
    assert overview.why_behind(name, lag, "growing") == (
        "the export does not run, or reads more slowly than events are written"
    )
    assert overview.why_behind(name, lag, "steady") == ""
    assert overview.why_behind("a/group", lag, "steady") == "it has no readers"
    sampler = rates.Sampler(groups={name: lag, "a/group": GroupLag("a/group", {"a/b": 5}, 0, 0)})
    found = overview.group_findings(sampler)
    assert [(each.kind, each.detail) for each in found] == [(FindingKind.GROUP_STUCK, "group a/group")]
