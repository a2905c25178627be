"""The console in Chromium: each page at both widths and in both colours, accessibility, hostile contents, rights."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.client.controller.administration import (
    AccountList,
    AccountRights,
    AuditEntries,
    ClusterMembers,
    ContainerMove,
    MemberContainer,
    MemberStore,
)
from penstock.client.controller.controller import ControllerClient
from penstock.spark.ledger import BatchState, Ledger, LedgerRow, SinkIdentity, create_ledger
from penstock.testing import MemoryServer, memory_server
from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.settings import WebSettings
from support.browser import NARROW, WIDE, Browser, opened_browser, served
from support.secured_server import PASSWORD, SecuredServer

#: See `test_console_pages`: what would run if it became a part of a page.
HOSTILE = (
    b"<script>window.hit = 1</script>",
    b'<img src="/none" onerror="window.hit=1">',
    b"</pre></details><svg onload=window.hit=1>",
    b'{"<img src=x onerror=window.hit=1>": "<script>window.hit=1</script>"}',
    "\u202e<b>\u2066\x1b[31m".encode(),
)
#: Rules that a width and colours do not change are checked once; contrast in light colours in nightly runs.
IS_NIGHTLY = os.environ.get("PENSTOCK_TEST_PROFILE") == "nightly"
PAGES = (
    "/console/",
    "/console/streams",
    "/console/streams?scope=none",
    "/console/streams/shop/orders/events?at=last:12",
    "/console/streams/shop/orders/events?at=earliest&columns=order,customer.id&where=total+>+10&form=json&limit=5",
    "/console/streams/shop/orders/events?where=wrong",
    "/console/streams/shop/orders/segments",
    "/console/streams/shop/orders/groups",
    "/console/streams/shop/orders/settings",
    "/console/streams/shop/orders/tail",
    "/console/streams/shop/orders/retention",
    "/console/streams/shop/orders/transactions",
    "/console/streams/shop/orders/change/truncate?at=latest",
    "/console/streams/shop/orders/change/policies?scaling=fixed&segments=3&keep=7d",
    "/console/new-stream",
    "/console/groups",
    "/console/groups/shop/billing",
    "/console/groups/shop/billing/change/reset?to=latest",
    "/console/tables",
    "/console/tables/shop/prices",
    "/console/storage",
    "/console/tasks",
    "/console/cluster",
    "/console/cluster/stores/a/change/drain",
    "/console/cluster/containers/1/change/move?store=a",
    "/console/account",
    "/console/account/audit",
    "/console/sign-in",
    "/console/none",
)


@pytest.fixture(scope="module")
def shop() -> Iterator[MemoryServer]:
    """A server with a stream of orders, of which a segment was split, and a group that is behind."""
    with memory_server() as server:
        asyncio.run(fill(server.uri))
        yield server


async def fill(uri: str) -> None:
    async with aio.connect(uri) as client:
        await client.create_stream("shop/orders", scaling=penstock.Scaling.fixed(2), tags=["<i>retail"])
        async with client.event_writer("shop/orders") as writer:
            for number in range(40):
                event = {"order": number, "total": number, "customer": {"id": "ann"}}
                await writer.write(json.dumps(event).encode(), routing_key=str(number))
            for data in HOSTILE:
                await writer.write(data, routing_key="1")
        first = (await client.segments_of("shop/orders"))[0]
        await client.scale_stream("shop/orders", seal=[first.segment_id], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
        async with client.reader_group("shop/billing", ["shop/orders"], retention="automatic"):
            pass
        for group in ("export-lake", "totals-0123abcd"):
            async with client.reader_group(f"shop/{group}", ["shop/orders"], retention="manual"):
                pass
        await create_ledger(client, "shop/orders")
        for app in (HOSTILE[1].decode(), "job again"):
            ledger = await Ledger.open(client, SinkIdentity(app, "shop/orders"))
            await ledger.replace(LedgerRow(ledger.sink, 3, BatchState.INTENT, query=HOSTILE[0].decode()), -1)
            await ledger.close()
        await client.create_table("shop/prices", key_length=32)
        async with client.table("shop/prices", keys=penstock.TextKeys()) as table:
            await table.put("<img src=x onerror=hit=1>", HOSTILE[0])
        for _ in range(2):
            transaction = await client.begin_transaction("shop/orders", lease_s=600)
            await client.prepare_transaction("shop/orders", transaction.id)
            await transaction.detach()


#: What runs if a name of a store or an account, or a line of the audit log, becomes a part of a page.
NAME = "<img src=x onerror=window.hit=1>"


def members_shown() -> ClusterMembers:
    """A cluster with a drained store, a container on its way, and hostile texts."""
    stores = [
        MemberStore("a", ("a:6000",), NAME, "up", "0.1.0", 0.4, (0, 1), (0,)),
        MemberStore(NAME, ("b:6000",), "zone", "draining", NAME, None, (2,), (1, 2)),
    ]
    containers = [
        MemberContainer(0, "a", "a", "serving", 3, ""), MemberContainer(1, "a", NAME, "closing", 4, NAME),
        MemberContainer(2, NAME, NAME, "serving", 1, ""),
    ]  # fmt: skip
    return ClusterMembers("ab" * 16, stores, containers, (NAME, "c2"), NAME, [ContainerMove(1, NAME, "a", NAME)])


@contextmanager
def cluster_shown() -> Iterator[None]:
    """Let controllers answer as those of a cluster on several machines with accounts and an audit log."""
    line = json.dumps({"time": "2026-11-26T10:00:00Z", "principal": NAME, "call": "seal", "outcome": "refused",
                       "peer": "ipv4:10.0.0.7", "resource": NAME, "detail": NAME, "change": {NAME: NAME}})  # fmt: skip

    async def members(self: object) -> ClusterMembers:
        return members_shown()

    async def change_assignment(self: object, *given: object, **options: object) -> list[ContainerMove]:
        return [ContainerMove(0, "a", NAME, "drain")]

    async def accounts(self: object) -> AccountList:
        own = AccountRights(NAME, True, (f"{NAME},READ", "prn::/,READ_UPDATE"))
        return AccountList(own, [own, AccountRights("monitor", False, ())])

    async def audit_entries(self: object, limit: int) -> AuditEntries:
        return AuditEntries([line, NAME], f"/data/{NAME}.jsonl", NAME, 3)

    with pytest.MonkeyPatch.context() as patched:
        for answer in (members, change_assignment, accounts, audit_entries):
            patched.setattr(ControllerClient, answer.__name__, answer)
        yield


@pytest.fixture(scope="module")
def address(shop: MemoryServer) -> Iterator[str]:
    with cluster_shown(), served(WebApp(connection_to(shop.uri), WebSettings(), controller=shop.uri)) as found:
        yield found


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:
    with opened_browser(address) as found:
        yield found


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_accessible_fits_both_widths_and_runs_nothing_hostile(browser: Browser, path: str) -> None:
    for width, is_dark in ((WIDE, False), (NARROW, True)):
        browser.show(width, is_dark=is_dark)
        browser.open(path)
        assert not browser.is_wider_than_window(), width
        browser.driver.execute_script("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        if width == NARROW:
            assert browser.violations() == []
        elif IS_NIGHTLY:
            assert browser.violations(only="color-contrast") == []
        assert browser.driver.execute_script("return window.hit === undefined")
        assert browser.problems() == []


def test_a_page_is_used_with_the_keyboard(browser: Browser) -> None:
    """The first key leads past the menu, and all that can be used gets the focus visibly."""
    from selenium.webdriver.common.keys import Keys

    browser.show(WIDE)
    browser.open("/console/streams")
    browser.find("body").send_keys(Keys.TAB)
    skip = browser.driver.switch_to.active_element
    assert skip.text == "Skip to the content"
    assert skip.is_displayed()
    skip.send_keys(Keys.ENTER)
    assert browser.driver.switch_to.active_element.get_attribute("id") == "main"
    for _ in range(40):
        browser.driver.switch_to.active_element.send_keys(Keys.TAB)
        focused = browser.driver.switch_to.active_element
        outline = browser.driver.execute_script("return getComputedStyle(arguments[0]).outlineStyle", focused)
        assert outline != "none", focused.get_attribute("outerHTML")
        if focused.text == "shop/orders":
            focused.send_keys(Keys.ENTER)
            break
    browser.until(lambda: "shop/orders" in browser.title, "the page of the stream")


def test_pages_work_without_javascript(address: str) -> None:
    with opened_browser(address, has_script=False) as browser:
        browser.open("/console/")
        browser.link("Streams").click()
        browser.link("shop/orders").click()
        browser.field("where").send_keys("order < 3")
        browser.field("from").clear()
        browser.field("from").send_keys("earliest")
        browser.press("Show")
        browser.until(lambda: "3 events" in browser.text, "the events")
        browser.link("segments").click()
        assert len(browser.driver.find_elements("css selector", "svg .box")) == 4
        browser.link("Tasks").click()
        browser.until(lambda: "lake" in browser.text, "the export")
        browser.link("Cluster").click()
        browser.link("drain…").click()
        browser.field("Type").send_keys("a")
        browser.press("Drain")
        browser.until(lambda: "Drain store a: done" in browser.text, "the result")
        browser.open("/console/account/audit")
        browser.until(lambda: "10.0.0.7" in browser.text, "the audit log")


def test_a_filter_and_columns_are_used_as_a_reader_of_events_would(browser: Browser) -> None:
    browser.show(WIDE)
    browser.open("/console/")
    browser.link("Streams").click()
    browser.link("shop/orders").click()
    browser.field("columns").send_keys("order, customer.id")
    browser.field("where").send_keys("order = 7")
    browser.press("Show")
    browser.until(lambda: "1 event," in browser.text, "one event")
    assert [cell.text for cell in browser.driver.find_elements("css selector", "tbody td")][3:5] == ["7", "ann"]
    browser.find("td.event summary").click()
    assert "Download" in browser.text
    for each in browser.driver.find_elements("css selector", "details.snippets summary"):
        each.click()
    browser.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.press("Copy")
    browser.until(lambda: "Copied" in browser.text, "the result of copying")


def test_questions_of_a_user_with_a_problem_take_three_clicks(browser: Browser) -> None:
    """Each begins at the overview; the guide lists them."""
    browser.show(WIDE)
    browser.open("/console/")
    browser.link("shop/billing").click()
    browser.until(lambda: "Why it is behind: it has no readers" in browser.text, "why a group is behind")

    browser.open("/console/")
    browser.link("Storage").click()
    browser.link("shop/orders").click()
    browser.until(lambda: "Held by" in browser.text, "who holds the space")

    browser.open("/console/")
    browser.link("Streams").click()
    browser.link("shop/orders").click()
    browser.field("from").clear()
    browser.field("from").send_keys("00:00")
    browser.press("Show")
    browser.until(lambda: '"order"' in browser.text and "00:00" in browser.driver.current_url.replace("%3A", ":"),
                  "the events of a time")  # fmt: skip

    browser.open("/console/")
    browser.link("Streams").click()
    browser.link("shop/orders").click()
    browser.link("transactions").click()
    browser.until(lambda: "the decision of its coordinator" in browser.text, "what a transaction waits for")


def test_new_events_are_shown_as_they_are_stored(browser: Browser, shop: MemoryServer) -> None:
    """Also after a pause, without a gap, and whatever they contain."""
    with shop.connect() as client, client.event_writer("shop/orders") as writer:
        browser.show(WIDE)
        browser.open("/console/streams/shop/orders/tail")
        browser.until(lambda: "live, 0 events" in browser.text, "the connection")
        for data in (b"first", *HOSTILE):
            writer.write(data, routing_key="1")
        writer.flush()
        browser.until(lambda: f"live, {1 + len(HOSTILE)} events" in browser.text, "the events")
        assert "<script>window.hit = 1</script>" in browser.text
        assert browser.driver.execute_script("return window.hit === undefined")
        browser.press("Pause")
        writer.write(b"during the pause", routing_key="1")
        writer.flush()
        browser.press("Continue")
        browser.until(lambda: "during the pause" in browser.text, "the event of the pause")
        assert browser.problems() == []


def test_a_filter_is_saved_and_used_again(browser: Browser) -> None:
    browser.show(WIDE)
    browser.open("/console/streams/shop/orders/events?at=earliest&where=order+%3C+3")
    browser.until(lambda: "3 events" in browser.text, "the events")
    browser.find("details.help summary").click()
    browser.field("name").send_keys("small orders")
    browser.press("Save")
    browser.until(lambda: "Saved filters:" in browser.text, "the saved filter")
    browser.open("/console/streams/shop/orders/events")
    browser.link("small orders").click()
    browser.until(lambda: "3 events" in browser.text, "the events of the saved filter")
    assert browser.violations() == []
    browser.find("td.event summary").click()
    browser.link("Read from here").click()
    browser.until(lambda: "%7B" in browser.driver.current_url, "the events from a stream cut")


def test_a_store_is_drained_after_typing_its_name(browser: Browser) -> None:
    browser.show(WIDE)
    browser.open("/console/")
    browser.link("Cluster").click()
    browser.link("drain…").click()
    browser.until(lambda: "Before and after" in browser.driver.page_source, "the moves that follow")
    browser.field("Type").send_keys("a")
    browser.press("Drain")
    browser.until(lambda: "Drain store a: done" in browser.text, "the result")
    assert "penstock cluster drain a" in browser.text
    assert "/v1/cluster/assignment" in browser.text


def test_charts_are_drawn(browser: Browser) -> None:
    browser.show(WIDE)
    browser.open("/console/")
    browser.until(lambda: len(browser.driver.find_elements("css selector", ".charts canvas")) == 3, "the charts")
    browser.open("/console/groups/shop/billing")
    browser.until(lambda: browser.driver.find_elements("css selector", ".charts canvas"), "the chart of a group")
    assert browser.problems() == []


def test_a_change_is_confirmed_by_typing_the_name(browser: Browser) -> None:
    browser.show(WIDE)
    browser.open("/console/streams")
    browser.link("New stream…").click()
    browser.field("scope").send_keys("shop")
    browser.field("name").send_keys("made")
    browser.field("keep").send_keys("7d")
    browser.press("Show what this would do")
    browser.until(lambda: "keeps 7 d" in browser.text, "the effects")
    assert browser.violations() == []
    browser.field("Type").send_keys("shop/wrong")
    browser.press("Create")
    browser.until(lambda: "Nothing was changed" in browser.text, "the mistake")
    browser.field("Type").send_keys("shop/made")
    browser.press("Create")
    browser.until(lambda: "is created" in browser.text, "the result")
    assert "penstock stream create shop/made" in browser.text
    assert browser.violations() == []


@contextmanager
def secured(directory: Path) -> Iterator[tuple[SecuredServer, str]]:
    """Run a server with accounts in a thread, and the console for it."""
    from penstock.runtime.portal import Portal

    portal = Portal("secured-server")
    try:
        server = SecuredServer(directory)
        portal.call(server.server.start())
        uri = server.server.controller_uri
        try:
            with served(WebApp(connection_to(uri, server.authority), WebSettings(), controller=uri)) as address:
                portal.call(make_shop(server))
                yield server, address
        finally:
            portal.call(server.close())
    finally:
        portal.close()


async def make_shop(server: SecuredServer) -> None:
    from penstock.runtime.client_security import ClientSecurity, Credentials

    security = ClientSecurity(Credentials("root", PASSWORD), server.authority)
    async with aio.Client(server.server.controller_uri, security=security) as client:
        await client.create_stream("shop/orders")
        await client.create_stream("shop/secrets")
        async with client.event_writer("shop/orders") as writer:
            await writer.write(b'{"order": 1}', routing_key="1")


def sign_in(browser: Browser, user: str, password: str) -> None:
    browser.field("account").send_keys(user)
    browser.field("password").send_keys(password)
    browser.press("Sign in")


def test_an_account_sees_what_its_rights_allow(tmp_path: Path) -> None:
    with secured(tmp_path) as (_, address), opened_browser(address) as browser:
        browser.open("/console/streams/shop/orders/events")
        assert browser.title == "Sign in"
        sign_in(browser, "reader", "wrong")
        browser.until(lambda: browser.driver.find_elements("css selector", "[role=alert]"), "the refusal")
        sign_in(browser, "reader", PASSWORD)
        browser.until(lambda: "shop/orders" in browser.title, "the page that was requested first")
        assert "account reader" in browser.text
        assert '{"order": 1}' in browser.text
        assert browser.violations() == []
        browser.open("/console/streams/shop/orders/change/seal")
        browser.field("Type").send_keys("shop/orders")
        browser.press("Seal")
        browser.until(lambda: "Nothing was changed" in browser.text, "the refusal of a change")
        browser.open("/console/streams/shop/secrets/events")
        assert browser.title == "Not permitted"
        assert browser.violations() == []
        browser.open("/console/")
        assert "No rates" in browser.text
        browser.open("/console/streams")
        assert "enter a scope" in browser.text
        browser.field("scope").send_keys("shop")
        browser.press("Find")
        browser.link("shop/orders")
        assert "secrets" not in browser.text
        browser.find(".user button").click()
        browser.until(lambda: browser.title == "Sign in", "the page to sign in")
        browser.open("/console/streams/shop/orders/events")
        assert browser.title == "Sign in"
