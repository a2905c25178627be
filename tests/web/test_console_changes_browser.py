"""Every change of the console in Chromium: with a wrong name, with the right one, and with too few rights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.testing import memory_server
from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.console.console import ROUTES
from penstock.web.settings import WebSettings
from support.browser import Browser, opened_browser, served
from support.secured_server import PASSWORD
from web.test_console_browser import cluster_shown, secured, sign_in

pytestmark = pytest.mark.nightly
STREAM, GROUP = "shop/made", "shop/billing"
AT = f"/console/streams/{STREAM}"
#: Page, the name to type, and what the result says. In this sequence: later changes need the earlier ones.
CHANGES = (
    ("/console/new-stream?scope=shop&stream=made&scaling=fixed&segments=1&keep=7d", STREAM, "is created"),
    (f"{AT}/change/scale?segments=0&into=2", STREAM, "2 segments"),
    (f"{AT}/change/policies?scaling=fixed&segments=2&keep=1MiB", STREAM, "changed"),
    (f"{AT}/transactions/PREPARED0/commit", "PREPARED0", "COMMIT"),
    (f"{AT}/transactions/PREPARED1/abort", "PREPARED1", "ABORT"),
    (f"{AT}/change/truncate?at=latest", STREAM, "begins at"),
    (f"/console/groups/{GROUP}/change/reset?to=latest", GROUP, "resumes at"),
    (f"/console/groups/{GROUP}/readers/r1/change/remove", "r1", "is removed"),
    (f"/console/groups/{GROUP}/change/delete", GROUP, "is deleted"),
    (f"{AT}/change/seal", STREAM, "sealed"),
    (f"{AT}/change/delete", STREAM, "is deleted"),
    ("/console/cluster/stores/a/change/drain", "a", "done"),
    ("/console/cluster/stores/a/change/undrain", "a", "done"),
    ("/console/cluster/containers/1/change/move?store=a", "1", "done"),
    ("/console/cluster/change/balance", "balance", "done"),
)


def test_each_form_that_changes_the_cluster_is_in_the_list() -> None:
    forms = [route.path for route in ROUTES if route.is_form and not route.path.endswith("/filters")]
    assert len(forms) == len(CHANGES)


@pytest.fixture
def changes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


async def prepared(uri: str) -> list[str]:
    """Begin two transactions on the new stream, and prepare them; return their ids."""
    found = []
    async with aio.connect(uri) as client:
        for _ in range(2):
            transaction = await client.begin_transaction(STREAM, lease_s=600)
            await client.prepare_transaction(STREAM, transaction.id)
            found.append(transaction.id)
            await transaction.detach()
    return found


def confirm(browser: Browser, name: str) -> None:
    browser.field("Type").clear()
    browser.field("Type").send_keys(name)
    browser.find("form.confirm button").click()


def test_every_change_is_refused_with_a_wrong_name_and_done_with_the_right_one(changes: ExitStack) -> None:
    server = changes.enter_context(memory_server())
    changes.enter_context(cluster_shown())
    app = WebApp(connection_to(server.uri), WebSettings(), controller=server.uri)
    browser = changes.enter_context(opened_browser(changes.enter_context(served(app))))
    client = changes.enter_context(penstock.connect(server.uri))
    ids: list[str] = []
    for path, name, result in CHANGES:
        for number, transaction in enumerate(ids):
            path, name = (text.replace(f"PREPARED{number}", transaction) for text in (path, name))
        browser.open(path)
        confirm(browser, "wrong")
        browser.until(lambda: "Nothing was changed" in browser.text, f"the refusal of {path}")
        assert browser.violations() == []
        confirm(browser, name)
        browser.until(lambda: browser.driver.find_elements("css selector", "[role=status]"), f"the result of {path}")
        assert result in browser.find("[role=status]").text, path
        assert "The same without the console" in browser.text
        assert "penstock " in browser.text
        assert "/v1/" in browser.text
        if "new-stream" in path:
            # Removed, and its group deleted, while it runs: it is not closed.
            group = client.reader_group(GROUP, [STREAM])
            reader = group.reader("r1")
            reader.read(0.1)
        if "policies" in path:
            ids = asyncio.run(prepared(server.uri))
    assert not client.stream_exists(STREAM)


def test_no_change_is_made_with_too_few_rights(tmp_path: Path) -> None:
    with secured(tmp_path) as (_, address), opened_browser(address) as browser:
        browser.open("/console/streams/shop/orders/events")
        sign_in(browser, "reader", PASSWORD)
        browser.until(lambda: "shop/orders" in browser.title, "the page that was requested first")
        for path, name, _ in CHANGES:
            path, name = (text.replace(STREAM, "shop/orders").replace("made", "orders2") for text in (path, name))
            path = path.replace("PREPARED0", "0" * 32).replace("PREPARED1", "0" * 32)
            name = name.replace("PREPARED0", "0" * 32).replace("PREPARED1", "0" * 32)
            if "new-stream" in path:
                name = "shop/orders2"
            browser.open(path)
            if browser.driver.find_elements("css selector", "form.confirm"):
                confirm(browser, name)
                browser.until(lambda: "Nothing was changed" in browser.text, f"the refusal of {path}")
            else:
                assert browser.title != "Sign in", path
                assert browser.driver.find_elements("css selector", "[role=alert]") or "ot permitted" in browser.text
