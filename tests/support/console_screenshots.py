"""Takes the screenshots of the guide to the web console: `python tests/support/console_screenshots.py`.

It starts a server in memory, fills it, and opens its pages in Chromium. Pictures go to ``docs/assets/console/``.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock import aio

FOLDER = Path(__file__).parents[2] / "docs" / "assets" / "console"
#: Name of the picture -> page, width, height, and whether in dark colours.
PICTURES: dict[str, tuple[str, int, int, bool]] = {
    "overview": ("/console/", 1280, 980, False),
    "group": ("/console/groups/shop/billing", 1280, 760, False),
    "storage": ("/console/storage", 1280, 560, False),
    "events": (
        "/console/streams/shop/orders/events?where=total+>+250&columns=order,customer.id,total",
        1280,
        640,
        False,
    ),
    "segments": ("/console/streams/shop/orders/segments", 1280, 900, True),
    "transactions": ("/console/streams/shop/payments/transactions", 1280, 360, False),
    "tasks": ("/console/tasks", 1280, 600, False),
    "phone": ("/console/", 390, 844, True),
}


async def filled(uri: str) -> None:
    """Fill a server: a stream that was scaled, groups with and without readers, transactions, a table."""
    import penstock
    from penstock import aio

    draw = random.Random(7)
    async with aio.connect(uri) as client:
        await client.create_stream(
            "shop/orders", scaling=penstock.Scaling.fixed(2), retention=penstock.Retention.by_size(10_000, 1 << 30)
        )
        await client.create_stream("shop/payments", retention=penstock.Retention.by_time(days=7))
        await client.create_stream("shop/clicks", scaling=penstock.Scaling.by_event_rate(1000, min_segments=3))
        async with client.reader_group("shop/billing", ["shop/orders"], retention="automatic"):
            pass
        for group, stream in (("export-lake", "shop/orders"), ("totals-1f0c2a9e", "shop/clicks")):
            async with client.reader_group(f"shop/{group}", [stream], retention="manual"):
                pass
        number = 0
        for step in range(4):
            async with client.event_writer("shop/orders") as writer:
                for _ in range(400):
                    number += 1
                    order = {"order": number, "total": draw.randrange(300), "customer": {"id": draw.choice("ABCDE")}}
                    await writer.write(json.dumps(order).encode(), routing_key=str(number))
            await asyncio.sleep(3)
            segments = sorted(await client.segments_of("shop/orders"), key=lambda each: each.key_low)
            if step == 0:
                await client.scale_stream(
                    "shop/orders", seal=[segments[0].segment_id], key_ranges=[(0.0, 0.25), (0.25, 0.5)]
                )
            elif step == 1:
                await client.scale_stream(
                    "shop/orders", seal=[segments[-1].segment_id], key_ranges=[(0.5, 0.7), (0.7, 1.0)]
                )
            elif step == 2:
                await client.scale_stream(
                    "shop/orders", seal=[each.segment_id for each in segments[1:3]],
                    key_ranges=[(segments[1].key_low, segments[2].key_high)],
                )  # fmt: skip
        await with_rows(client)
        for lease_s in (30, 600):
            transaction = await client.begin_transaction("shop/payments", lease_s=lease_s)
            await transaction.write(b'{"payment": 1}', routing_key="1")
            if lease_s == 600:
                await transaction.flush()
                await client.prepare_transaction("shop/payments", transaction.id)
            await transaction.detach()


async def with_rows(client: aio.Client) -> None:
    """Record a sink and a backfill in the ledger, as Spark and `penstock backfill` do."""
    from penstock.spark.ledger import BatchState, Ledger, LedgerRow, SinkIdentity, create_ledger

    await create_ledger(client, "shop/payments")
    plan = json.dumps({"files": [["2025.parquet", 1], ["2026.parquet", 2]]})
    files = json.dumps({"v": 1, "plan": plan, "before": None, "behind": "[1,40960]"})
    now_ms = round(time.time() * 1000)
    for app, state, batch, note, query in (
        ("purchases", BatchState.DONE, 341, "", "7f0c5a52-6a0e-4c62-9f0e-1b2f6f1c9d11"),
        ("job backfill of 2025", BatchState.INTENT, 17, files, ""),
    ):
        ledger = await Ledger.open(client, SinkIdentity(app, "shop/payments"))
        row = LedgerRow(ledger.sink, batch, state, {}, now_ms, note, query)
        await ledger.replace(row, -1)
        await ledger.close()


async def writing(uri: str) -> None:
    """Write clicks, and read them in a group, until cancelled."""
    from penstock import aio

    async with aio.connect(uri) as client, client.event_writer("shop/clicks") as writer, client.reader_group(
        "shop/audit", ["shop/clicks"]
    ) as group, group.reader("worker-1") as reader:  # fmt: skip
        number = 0
        while True:
            for _ in range(50):
                number += 1
                await writer.write(b'{"click": %d}' % number, routing_key=str(number))
            await reader.read_batch(timeout_s=0.05)
            await asyncio.sleep(0.1)


@contextmanager
def served_cluster() -> Iterator[str]:
    """Run a server, the web server and a writer; give the address of the web server."""
    from penstock.runtime.portal import Portal
    from penstock.testing import memory_server
    from penstock.web.app import WebApp
    from penstock.web.callers import connection_to
    from penstock.web.settings import WebSettings
    from support.browser import served

    with memory_server() as server:
        asyncio.run(filled(server.uri))
        portal = Portal("writer")
        try:
            task = asyncio.run_coroutine_threadsafe(writing(server.uri), portal.loop)
            app = WebApp(connection_to(server.uri), WebSettings(), controller="tcp://localhost:9090")
            with served(app) as address:
                yield address
            task.cancel()
        finally:
            portal.close()


def main() -> None:
    """Take all pictures."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.browser import opened_browser

    FOLDER.mkdir(parents=True, exist_ok=True)
    with served_cluster() as address, opened_browser(address) as browser:
        browser.open("/console/")
        time.sleep(40)  # So that charts and trends have something to show.
        for name, (path, width, height, is_dark) in PICTURES.items():
            browser.show(width, is_dark=is_dark, height=height)
            browser.open(path)
            time.sleep(6 if path == "/console/" else 2)
            target = FOLDER / f"{name}.png"
            browser.driver.save_screenshot(str(target))
            if shutil.which("pngquant"):
                subprocess.run(
                    ["pngquant", "--force", "--skip-if-larger", "--output", target, "64", target], check=False
                )
            sys.stdout.write(f"{target}: {target.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
