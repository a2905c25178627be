"""What metrics cost: a scrape of a server with very many streams and groups, and appends while a server is scraped.

    python bench/metrics.py                                     # 100 000 streams, 1 000 groups
    python bench/metrics.py --streams 10000 --groups 100 --rounds 0
    python bench/metrics.py --streams 0 --rounds 10 --seconds 10
    python bench/metrics.py --filled /tmp/filled --rounds 0     # keeps the streams for the next run

Streams are created by a server in this process, without its RPCs, and their data directory is then served by
`penstock standalone`. With `--filled` the directory stays there, and is used again if it has streams.

`scrape` is one request of ``/metrics``: time for the client, CPU of the server, and what came. `pages` are pages of
`--page` entries of the listing of the scope over REST, each by the token of the page before; `groups_pages` are those
of its reader groups. `appends` are turns of `--seconds` each at full speed with events of 100 bytes, one without and
one with a scrape each second, in changing order; `ratio` is the median of bytes per second with scrapes divided by
those of the turn without, `ratio_mean` the mean, `cpu_ratio` that of the server's CPU per byte, which other work on the
machine changes less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import penstock
from _common import Server, cpu_s, free_port, parser, percentiles_ms, raw_disk, report, server, work_directory
from _wire import Progress, say
from penstock import aio
from penstock.cli.serve import new_loop
from penstock.model.policies import Scaling, StreamConfig
from penstock.runtime.settings import load_settings
from penstock.server import standalone_process
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone

_SCOPE = "bench"
_EVENT_BYTES = 100
_BATCH = 10_000
#: Streams that get events, so that each of them has metrics of its own, as far as the server's limit allows.
_WRITTEN = 200
#: Creations at once: most of the time of one is a wait for the log.
_CREATED_AT_ONCE = 384
#: A server reads the log of all these creations when it starts.
_START_TIMEOUT_S = 600.0
#: Scrapes once a second until its standard input is closed.
_SCRAPE = """
import select, sys, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1], timeout=30).read()
    print(flush=True)
    if select.select([sys.stdin], [], [], 1.0)[0]:
        break
"""
#: Flushes of hundreds of thousands of tiny segments would take most of the time, and are not what is measured.
_SETTINGS = {"segment_store.container.flush_age_s": 86_400.0}


async def each(what: str, count: int, at_once: int, create: Callable[[int], Awaitable[None]]) -> None:
    """Create things, so many at once."""
    numbers, progress = iter(range(count)), Progress(what, count)

    async def caller() -> None:
        for number in numbers:
            await create(number)
            progress.add()

    await asyncio.gather(*(caller() for _ in range(at_once)))


async def create_streams(data_directory: Path, count: int, at_once: int) -> None:
    """Create streams in a data directory that no server uses."""
    flags = {"data_dir": str(data_directory), "controller_port": 0, "segment_store_port": 0}
    settings = load_settings(StandaloneSettings, flags=flags | _SETTINGS)
    async with Standalone(settings) as running:
        service = running.service
        assert service is not None
        await service.create_scope(_SCOPE)

        async def stream(number: int) -> None:
            await service.create_stream(_SCOPE, f"s{number:06d}", StreamConfig(Scaling.fixed(1)))

        await each("streams created", count, at_once, stream)


async def fill(uri: str, stream_count: int, group_count: int, at_once: int) -> None:
    """Append to some streams, and create the groups, each of which reads one stream. Groups that exist stay."""
    async with aio.connect(uri) as client:

        async def append(number: int) -> None:
            async with client.event_writer(f"{_SCOPE}/s{number:06d}") as writer:
                await writer.write(b"event")

        async def group(number: int) -> None:
            name = f"{_SCOPE}/s{number % stream_count:06d}"
            async with await client.reader_group(f"g{number:06d}", [name], scope=_SCOPE):
                pass

        await each("streams appended to", min(stream_count, _WRITTEN), at_once, append)
        await each("groups created", group_count, at_once, group)


def get(url: str) -> bytes:
    """Return what a server answers."""
    with urllib.request.urlopen(url, timeout=120) as answer:
        found: bytes = answer.read()
    return found


def scrapes(running: Server, port: int, count: int) -> dict[str, object]:
    """Scrape so many times, with a pause after each."""
    samples_s: list[float] = []
    text = get(f"http://127.0.0.1:{port}/metrics")
    server_s = cpu_s(running.pid)
    for _ in range(count):
        begin_s = time.perf_counter()
        text = get(f"http://127.0.0.1:{port}/metrics")
        samples_s.append(time.perf_counter() - begin_s)
        time.sleep(0.2)
    server_s = cpu_s(running.pid) - server_s
    return {
        "scrapes": count,
        "series": sum(1 for line in text.decode().splitlines() if line and not line.startswith("#")),
        "bytes": len(text),
        **percentiles_ms(samples_s),
        # With what the server does by itself meanwhile.
        "server_cpu_ms": round(server_s / count * 1e3, 2),
    }


def pages(port: int, path: str, field: str, page: int, count: int) -> dict[str, object]:
    """Read the first pages of a listing."""
    samples_s: list[float] = []
    token, entry_count = "", 0
    for _ in range(count):
        begin_s = time.perf_counter()
        url = f"http://127.0.0.1:{port}{path}?limit={page}" + (f"&token={token}" if token else "")
        with urllib.request.urlopen(url, timeout=120) as answer:
            token = answer.headers.get("Penstock-Next-Token") or ""
            entry_count += len(json.load(answer)[field])
        samples_s.append(time.perf_counter() - begin_s)
        if not token:
            break
    return {"pages": len(samples_s), "entries": entry_count, "first_ms": round(samples_s[0] * 1e3, 1),
            **percentiles_ms(samples_s)}  # fmt: skip


class Scraper:
    """Scrapes once a second until the block ends, from a process of its own, as Prometheus does.

    A thread of this process would take its time from the client that writes.
    """

    def __init__(self, port: int) -> None:
        self._command = [sys.executable, "-c", _SCRAPE, f"http://127.0.0.1:{port}/metrics"]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Scraper:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # The first scrape, after which this costs no start of a process.
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.communicate(timeout=30)
        if self._process.returncode:
            raise RuntimeError(f"a scrape failed: exit code {self._process.returncode}")


@dataclass(frozen=True)
class Turn:
    """Bytes per second of one turn, and the server's CPU seconds for each MB."""

    mb_per_s: float
    cpu_s: float


def appends(running: Server, port: int, rounds: int, seconds: float) -> dict[str, object]:
    """Append in turns without and with scrapes."""
    events = [os.urandom(_EVENT_BYTES // 2) + bytes(_EVENT_BYTES // 2) for _ in range(_BATCH)]
    found: list[tuple[Turn, Turn]] = []
    with penstock.connect(running.uri) as client:
        client.create_stream(f"{_SCOPE}/appends")
        with client.event_writer(f"{_SCOPE}/appends") as writer:

            def turn() -> Turn:
                writer.write_many(events)
                writer.flush()
                server_s, begin_s, count = cpu_s(running.pid), time.perf_counter(), 0
                while time.perf_counter() - begin_s < seconds:
                    writer.write_many(events)
                    count += _BATCH
                writer.flush()
                took_s, megabytes = time.perf_counter() - begin_s, count * _EVENT_BYTES / 1e6
                return Turn(megabytes / took_s, (cpu_s(running.pid) - server_s) / megabytes)

            def scraped_turn() -> Turn:
                with Scraper(port):
                    return turn()

            turn()
            for number in range(rounds):
                if number % 2:
                    scraped, without = scraped_turn(), turn()
                else:
                    without, scraped = turn(), scraped_turn()
                say(f"round {number}: {without.mb_per_s:.1f} MB/s, with scrapes {scraped.mb_per_s:.1f} MB/s")
                found.append((without, scraped))
    ratios = [scraped.mb_per_s / without.mb_per_s for without, scraped in found]
    return {
        "rounds": rounds,
        "without_mb_per_s": [round(without.mb_per_s, 1) for without, _ in found],
        "scraped_mb_per_s": [round(scraped.mb_per_s, 1) for _, scraped in found],
        "ratio": round(statistics.median(ratios), 3),
        "ratio_mean": round(statistics.geometric_mean(ratios), 3),
        "ratio_lowest": round(min(ratios), 3),
        "ratio_highest": round(max(ratios), 3),
        "cpu_ratio": round(
            statistics.median(scraped.cpu_s / max(without.cpu_s, 1e-9) for without, scraped in found), 3
        ),
    }


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the figures of both parts."""
    metrics_port, web_port = free_port(), free_port()
    found: dict[str, object] = {"streams": arguments.streams, "groups": arguments.groups}
    options = ("--metrics-port", str(metrics_port), "--web-port", str(web_port))
    with ExitStack() as held:
        directory = Path(arguments.filled) if arguments.filled else held.enter_context(work_directory(arguments))
        directory.mkdir(parents=True, exist_ok=True)
        found["raw_disk"] = raw_disk(directory)
        begin_s = time.perf_counter()
        if arguments.streams and not (directory / "store").exists():
            with asyncio.Runner(loop_factory=new_loop()) as runner:
                runner.run(create_streams(directory / "store", arguments.streams, _CREATED_AT_ONCE))
            found["streams_created_s"] = round(time.perf_counter() - begin_s, 1)
        running = held.enter_context(server(directory, *options, settings=_SETTINGS))
        found["ready_s"] = round(running.ready_s, 2)
        if arguments.streams:
            begin_s = time.perf_counter()
            asyncio.run(fill(running.uri, arguments.streams, arguments.groups, arguments.clients))
            found["filled_s"] = round(time.perf_counter() - begin_s, 1)
            found["scrape"] = scrapes(running, metrics_port, arguments.scrapes)
            get(f"http://127.0.0.1:{web_port}/v1/scopes?limit=1")  # The web process starts.
            path = f"/v1/scopes/{_SCOPE}"
            found["pages"] = pages(web_port, f"{path}/streams", "streams", arguments.page, 20)
            found["groups_pages"] = pages(web_port, f"{path}/readergroups", "readerGroups", arguments.page, 20)
            say(f"{found}")
        if arguments.rounds:
            if not arguments.streams:
                with penstock.connect(running.uri) as client:
                    client.create_scope(_SCOPE)
            found["appends"] = appends(running, metrics_port, arguments.rounds, arguments.seconds)
    return found


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--streams", type=int, default=100_000)
    options.add_argument("--groups", type=int, default=1_000)
    options.add_argument("--clients", type=int, default=64, help="calls at once that create groups")
    options.add_argument("--filled", help="directory that keeps the streams; one that has some is used as it is")
    options.add_argument("--scrapes", type=int, default=50)
    options.add_argument("--page", type=int, default=100, help="entries of a page of a listing")
    options.add_argument("--rounds", type=int, default=5, help="turns of appends without and with scrapes")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.streams, arguments.groups, arguments.scrapes, arguments.rounds = 30, 3, 2, 1
        arguments.page, arguments.seconds = 10, 0.3
    standalone_process.START_TIMEOUT_S = _START_TIMEOUT_S
    report("metrics", measure(arguments))


if __name__ == "__main__":
    main()
