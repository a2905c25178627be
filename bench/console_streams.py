"""How long the console's list of streams takes to open, beside the number of streams of the cluster.

    python bench/console_streams.py --streams 10000 --opens 20

A server in memory, in this process, and the web application, called without a network: CPU is that of both together.
The first page, a page in the middle, a search by name, and the overview are opened; the page of one stream is the
baseline. What `aim_s` says is met if `by_the_clock.p95_ms` of each list is below it.
"""

from __future__ import annotations

import asyncio
import resource
import time

import httpx

from _common import parser, percentiles_ms, raw_disk, report, work_directory
from penstock import aio
from penstock.testing import memory_server
from penstock.web.app import WebApp
from penstock.web.callers import connection_to
from penstock.web.settings import WebSettings

AIM_S = 1.0
#: Streams that are created at once.
_AT_ONCE = 32


async def create(client: aio.Client, count: int) -> None:
    """Create streams ``many/s00000`` and so on."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        async with slots:
            await client.create_stream(f"many/s{number:05}", exist_ok=True)

    await one(0)
    await asyncio.gather(*map(one, range(1, count)))


async def opened(pages: httpx.AsyncClient, path: str, opens: int) -> dict[str, object]:
    """Open a page some times; return the figures."""
    clock_s: list[float] = []
    cpu_s: list[float] = []
    length = 0
    for _ in range(opens):
        before, begin_s = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        answer = await pages.get(path)
        answer.raise_for_status()
        clock_s.append(time.perf_counter() - begin_s)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        length = len(answer.content)
    return {"by_the_clock": percentiles_ms(clock_s), "cpu": percentiles_ms(cpu_s), "length_bytes": length}


async def measured(uri: str, count: int, opens: int) -> dict[str, object]:
    async with aio.connect(uri) as client:
        await create(client, count)
    app = WebApp(connection_to(uri), WebSettings(request_timeout_s=120.0), controller=uri)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:9091", timeout=120) as pages:
        await pages.get("/console/")  # Sampling begins, and templates are compiled.
        figures: dict[str, object] = {}
        for name, path in {
            "first page": "/console/streams",
            "page in the middle": f"/console/streams?from={count // 2}",
            "search by name": f"/console/streams?name=s{count - 1:05}",
            "overview": "/console/",
            "baseline: one stream": "/console/streams/many/s00000/settings",
        }.items():
            figures[name] = await opened(pages, path, opens)
    await app.close()
    return figures


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--streams", type=int, default=10_000)
    options.add_argument("--opens", type=int, default=20)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.streams, arguments.opens = 100, 2
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
    with memory_server() as server:
        figures = asyncio.run(measured(server.uri, arguments.streams, arguments.opens))
    report("console_streams", {"streams": arguments.streams, "aim_s": AIM_S, "raw_disk": disk, "pages": figures})


if __name__ == "__main__":
    main()
