"""The log in BookKeeper beside plain appends of BookKeeper's Java client, on the same bookies.

    python bench/bookkeeper.py                     # three bookies, 100 B and 64 KB
    python bench/bookkeeper.py --seconds 20 --lengths 100

Bookies, ZooKeeper and the client share this machine. Both sides append entries of the same length to ledgers on 3
bookies of which 2 confirm, with the same number of entries in flight, one after the other in alternating rounds.
`ratio` is the median rate of the log divided by that of plain Java. `loop_cpu_us` is CPU time of the event loop's
thread per entry of the log, with the event loop that stores use; `alone_p50_ms` the median of single appends.
`memory_mb` is the peak of the log's process above that of a process that appends the same to a local log. Needs Java
with a compiler, and Maven.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections import deque
from dataclasses import replace
from pathlib import Path

from _common import parser, raw_disk, report, work_directory

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from penstock.cli.serve import new_loop
from penstock.runtime.bookkeeper import open_ledger_store
from penstock.runtime.java_machine import exit_beside_java, start_java
from penstock.runtime.ledgers import LedgerClientSettings, LedgerPlace
from penstock.runtime.runtime import real_runtime
from penstock.runtime.zookeeper import ZooKeeper
from penstock.segmentstore.tier1.bookkeeper.factory import BookKeeperLogFactory
from penstock.segmentstore.tier1.durable_log import DurableLog, LogAddress
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock_simulation.java_client import JavaUnavailableError, java_with_compiler
from support.bookkeeper_server import Bookies, BookiesUnavailableError
from support.zookeeper_server import ZooKeeperServers, ZooKeeperUnavailableError

_SOURCE = Path(__file__).with_name("java") / "LedgerAppends.java"
_ROUNDS = 3
_ALONE_COUNT = 200
#: Bytes in flight, and the most entries.
_WINDOW_BYTES = 8 * 1024 * 1024
_WINDOW_MAX = 256
#: The log's entries in flight are sent in so many parts, each when the oldest one is answered.
_PARTS = 4


def java_rate(bookies: Bookies, length: int, window: int, seconds: float) -> tuple[float, float]:
    """Return entries per second of the Java client alone, and the median of single appends in milliseconds."""
    uri = LedgerPlace.parse(bookies.url).service_uri
    done = subprocess.run(
        [
            java_with_compiler(), "-Xmx256m", "-XX:MaxDirectMemorySize=256m", "-XX:+UseSerialGC", "-Dlog4j2.level=OFF",
            "-cp", f"{bookies.jars}/*", str(_SOURCE), uri, str(length), str(window), str(seconds),
        ],
        capture_output=True, text=True, timeout=300 + seconds * 10, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise JavaUnavailableError(f"the Java client failed: {done.stderr[-2000:]}")
    found = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("RATE ", "ALONE ")))
    if len(found) != 2:
        raise JavaUnavailableError(f"the Java client printed no figures: {done.stdout[-1000:]}")
    return float(found["RATE"]), float(found["ALONE"])


async def log_rate(log: DurableLog, length: int, window: int, seconds: float) -> tuple[float, float]:
    """Return entries per second of the log, and microseconds of CPU of the loop's thread per entry."""
    frame = bytes(length)
    loop = asyncio.get_running_loop()
    # Most of the window is always in flight, as Java has it: otherwise the disks would wait for the log.
    part = max(1, window // _PARTS)
    parts: deque[asyncio.Future[LogAddress]] = deque()
    began_s, cpu_s = loop.time(), time.thread_time()
    count = 0
    while loop.time() - began_s < seconds:
        while len(parts) < _PARTS:
            parts.append([log.append([frame], length) for _ in range(part)][-1])
            count += part
        await parts.popleft()
    while parts:
        await parts.popleft()
    return count / (loop.time() - began_s), (time.thread_time() - cpu_s) / count * 1e6


async def alone(log: DurableLog, length: int) -> float:
    """Return the median of appends of which each waits for the one before, in milliseconds."""
    taken_s = []
    for _ in range(_ALONE_COUNT):
        began_s = time.perf_counter()
        await log.append([bytes(length)], length)
        taken_s.append(time.perf_counter() - began_s)
    return statistics.median(taken_s) * 1000


async def measure(bookies: Bookies, lengths: list[int], seconds: float) -> dict[str, object]:
    """Return the figures of each length."""
    runtime = real_runtime()
    place = LedgerPlace.parse(bookies.url)
    service = ZooKeeper(replace(place.zookeeper, root=f"/bench/{uuid.uuid4().hex}"))
    session = await service.open_session(makes_root=True)
    await session.close()
    ledgers = open_ledger_store(place, LedgerClientSettings("penstock"), runtime.work)
    factory = BookKeeperLogFactory(ledgers, service, runtime, cluster_id="bench", container_count=1)
    figures: dict[str, object] = {}
    log = factory.create(0)
    await log.open()
    for length in lengths:
        window = window_of(length)
        await log_rate(log, length, window, min(seconds, 1.0))
        ours, java, loop_us, single_ms, java_single_ms = [], [], [], [], []
        for _ in range(_ROUNDS):
            rate, median_ms = await asyncio.to_thread(java_rate, bookies, length, window, seconds)
            java.append(rate)
            java_single_ms.append(median_ms)
            rate, cpu_us = await log_rate(log, length, window, seconds)
            ours.append(rate)
            loop_us.append(cpu_us)
            single_ms.append(await alone(log, length))
        figures[str(length)] = {
            "in_flight": window,
            "log_per_s": [round(each) for each in ours],
            "java_per_s": [round(each) for each in java],
            "ratio": round(statistics.median(ours) / statistics.median(java), 3),
            "loop_cpu_us": round(statistics.median(loop_us), 2),
            "alone_p50_ms": round(statistics.median(single_ms), 3),
            "java_alone_p50_ms": round(statistics.median(java_single_ms), 3),
        }
    await log.close()
    await factory.close()
    await runtime.work.close()
    return figures


def window_of(length: int) -> int:
    """Return how many entries are in flight."""
    return max(2, min(_WINDOW_MAX, _WINDOW_BYTES // length))


async def append_to_local_log(directory: str, lengths: list[int], seconds: float) -> None:
    """Append to a local log what `measure` appends to the one in BookKeeper."""
    runtime = real_runtime()
    log = LocalLogFactory(directory, runtime).create(0)
    await log.open()
    for length in lengths:
        for _ in range(_ROUNDS):
            await log_rate(log, length, window_of(length), seconds)
            await alone(log, length)
    await log.close()
    await runtime.work.close()


def local_peak_mb(directory: Path, lengths: list[int], seconds: float) -> float:
    """Return the peak of a process that appends to a local log."""
    arguments = ["--local", str(directory), "--seconds", str(seconds), "--lengths", *map(str, lengths)]
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the local log failed: {done.stderr[-2000:]}")
    return float(done.stdout)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run the servers and measure."""
    made = parser(__doc__ or "")
    made.add_argument("--lengths", type=int, nargs="+", default=[100, 65_000])
    made.add_argument("--local", metavar="DIR", help="append to a local log there, and print the peak of memory in MB")
    options = made.parse_args()
    seconds = 0.3 if options.quick else options.seconds
    if options.local:
        asyncio.run(append_to_local_log(options.local, options.lengths, seconds))
        print(_peak_mb())
        return
    problem = ""
    with work_directory(options) as directory:
        zookeeper = bookies = None
        try:
            java_with_compiler()
            zookeeper = ZooKeeperServers(Path(directory) / "zookeeper", 1).start()
            bookies = Bookies(Path(directory) / "bookies", zookeeper.address, 3).start()
            disk = raw_disk(Path(directory))
            local_mb = local_peak_mb(Path(directory) / "local", options.lengths, seconds)
            start_java("the bench", str(bookies.jars), heap_mb=128, direct_mb=256)
            with asyncio.Runner(loop_factory=new_loop()) as runner:
                figures = runner.run(measure(bookies, options.lengths, seconds))
            peak_mb = _peak_mb()
            report(
                "bookkeeper",
                {
                    "raw_disk": disk,
                    "lengths": figures,
                    "memory_mb": round(peak_mb - local_mb),
                    "peak_mb": round(peak_mb),
                    "local_peak_mb": round(local_mb),
                },
            )
        except (BookiesUnavailableError, JavaUnavailableError, ZooKeeperUnavailableError) as error:
            problem = f"nothing can be measured: {error}"
            print(problem, file=sys.stderr)
        finally:
            for servers in (bookies, zookeeper):
                if servers is not None:
                    servers.stop()
    exit_beside_java(problem or None)
    if problem:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
