"""The log in a bucket beside the local log: throughput, latency, requests, memory, recovery and take-over.

    python bench/object_log.py                                 # 0, 10, 30 and 100 ms are added to each request
    python bench/object_log.py --delays-ms 30 --seconds 5 --no-java
    python bench/object_log.py --megabytes 512 --only recovery takeover
    python bench/object_log.py --versitygw                     # a whole S3 server, before it a proxy that delays

The bucket is on this machine, on a server that adds the delays and costs little CPU, as a service elsewhere would
(`DistantS3`): versitygw and a proxy use 7 to 9 ms of CPU for each MB. `plain_puts` is what that way takes from obstore
alone: both the log and long-term storage send their bytes on it. `..._cpu_ms_per_mb` is what each process used for each
MB of events, and `..._cpu_bound` the MB/s that all cores of this machine give then, if nothing else runs. Both servers
run, and are loaded in turns: `--rounds` of each load, whose medians count. Before each turn the servers have finished
what the one before has caused. `ratio` is the figure of the log in a bucket divided by that of the local log; on a
machine with other work that of the best rounds (`..._best`) varies least.
The server prepares 8 GiB of memory, which is enough for two rounds of one load (`--loads`): new memory takes the kernel
up to 2.3 ms for each MB.
`append_100` and `append_1000` are one writer of Penstock's client at full speed, on 1 and on 100 segments; `java_100`
and `java_1000` the same with Pravega's Java client, on 10 and 100 segments, where Java is installed. `after_pause` is a
single append after a pause longer than the interval; `rate_10k` is 10 000 events/s. `..._requests` counts those to the
bucket of the log: `writes_per_s` is at most 1/interval + bytes/8 MiB, and the one that the first interval begins with.
`idle` counts them without any load, per lease.

`recovery` fills a log, kills the server, and compares reads of all its objects by obstore alone with an open and a
replay of the log. `takeover` is the time from a kill -9 until another server, started at once, serves; without
`lease_s` of it, at most 3 s are left.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock
from _common import Server, cpu_s, memory_mb, parser, percentiles_ms, raw_disk, report, server, work_directory
from _delaying_proxy import delaying_proxy
from _load import AppendLoad, block_of
from _s3 import DistantS3, S3Server, S3UnavailableError, puts, read_ranges, s3_bucket
from _wire import ask, connect
from java_client import run_load
from latency import measure as measure_rate
from penstock.runtime.objects import ObjectPlace, ObjectStoreSettings
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.container.log.recovery import recover
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import CacheSettings
from penstock.segmentstore.tier1.object_log.factory import ObjectLogFactory
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock.wire.commands import CreateSegment, SegmentCreated
from penstock_simulation.java_client import JavaUnavailableError, classpath, java_with_compiler
from recovery import SETTINGS as UNFLUSHED

LOG_BUCKET, DATA_BUCKET = "log", "data"
INTERVAL_S = ObjectLogSettings().batch_interval_s
LEASE_S = ContainerSettings().ownership_lease_s
CONTAINERS = 4
BATCH_BYTES = ObjectLogSettings().batch_bytes_max
#: Memory for objects that the S3 server prepares, so that it needs none of the kernel while something is measured.
POOL_BYTES = 8 << 30
_IDLE_POLL_S, _IDLE_POLLS_MAX, _IDLE_SHARE_MAX = 0.5, 40, 0.1
RECOVERED = "bench/recovery/0.#epoch.0"
LOADS = ("append_100", "append_1000", "java_100", "java_1000")
PARTS = ("load", "latency", "idle", "recovery", "takeover")


class Place:
    """Buckets on one S3 server, reached by `port`. Each server gets prefixes of its own."""

    def __init__(self, s3: S3Server, port: int, proxy_pid: int = 0) -> None:
        self.s3 = s3
        self.port = port
        assert s3.process is not None
        self.pids: dict[str, int] = {"s3": s3.process.pid, **({"proxy": proxy_pid} if proxy_pid else {})}
        self._count = 0

    @property
    def way(self) -> S3Server:
        """The S3 server, by the way that the log takes."""
        found = S3Server(self.s3.directory, program=Path())
        found.port = self.port
        return found

    def prefix(self) -> str:
        """Return a prefix that was not used before."""
        self._count += 1
        return f"{self.port}-{self._count}"

    @property
    def store(self) -> ObjectStoreSettings:
        """How the buckets are reached."""
        settings = self.s3.settings
        return ObjectStoreSettings(
            endpoint=f"http://127.0.0.1:{self.port}",
            region=settings.region,
            access_key_id=settings.access_key_id,
            secret_access_key=settings.secret_access_key,
        )

    @contextmanager
    def server(
        self, directory: Path, prefix: str, *, has_object_log: bool, settings: Mapping[str, object] | None = None
    ) -> Iterator[Server]:
        """Run a server with either log."""
        options = ["--tier2", f"s3://{DATA_BUCKET}/{prefix}"]
        if has_object_log:
            options += ["--log", f"s3://{LOG_BUCKET}/{prefix}"]
        store = self.store
        place = {
            "object_storage.store.endpoint": store.endpoint,
            "object_storage.store.region": store.region,
            "object_storage.store.access_key_id": store.access_key_id,
            "object_storage.store.secret_access_key": store.secret_access_key,
        }
        with server(directory, *options, settings={**place, **(settings or {})}) as running:
            yield running


def requests(uri: str) -> dict[str, int]:
    """Return the requests to the bucket of the log so far."""
    with penstock.connect(uri) as client:
        rows = [
            load
            for store in client.statistics().stores.values()
            for bucket, load in store.objects.items()
            if bucket == f"s3://{LOG_BUCKET}"
        ]
    return {name: sum(getattr(row, name) for row in rows) for name in ("write_count", "read_count", "sent_bytes")}


def throughput(uri: str, stream: str, event_bytes: int, segments: int, seconds: float) -> dict[str, float]:
    """Write with one client at full speed; return MB/s, and the megabytes of all events, those before among them."""
    count = max(1, 1_000_000 // event_bytes)
    events = [os.urandom(event_bytes // 2) + bytes(event_bytes - event_bytes // 2) for _ in range(count)]
    keys = [str(number) for number in range(count)] if segments > 1 else None
    with penstock.connect(uri) as client:
        client.create_stream(stream, scaling=penstock.Scaling.fixed(segments))
        with client.event_writer(stream) as writer:
            writer.write_many(events, routing_keys=keys)
            writer.flush()
            written = 0
            begin_s = time.perf_counter()
            while time.perf_counter() - begin_s < seconds:
                writer.write_many(events, routing_keys=keys)
                written += count
            writer.flush()
            megabytes = written * event_bytes / 1e6
            rate = round(megabytes / (time.perf_counter() - begin_s), 1)
    return {"mb_per_s": rate, "megabytes": megabytes + count * event_bytes / 1e6}


def after_pause(uri: str, count: int) -> dict[str, float]:
    """Append single events, each after a pause longer than the interval; return the times to their acknowledgement."""
    samples_s = []
    with penstock.connect(uri) as client:
        client.create_stream("bench/paused", scaling=penstock.Scaling.fixed(1))
        with client.event_writer("bench/paused") as writer:
            for _ in range(count + 1):
                time.sleep(2 * INTERVAL_S)
                begin_s = time.perf_counter()
                writer.write(b"alone")
                writer.flush()
                samples_s.append(time.perf_counter() - begin_s)
    return percentiles_ms(samples_s[1:])


def java_load(running: Server, event_bytes: int, segments: int, seconds: float) -> dict[str, float]:
    """Write with the Java client at full speed; return the same as `throughput`."""
    figures = run_load(
        running, classpath(), 1024,
        {
            "controller": running.uri, "segments": segments, "writers": 1, "readers": 0, "event-bytes": event_bytes,
            "rate": 0.0, "warm-up-seconds": seconds, "seconds": seconds, "drain-seconds": 60.0, "pooled": True,
        },
    )  # fmt: skip
    acknowledged, sent = (int(str(figures[name])) for name in ("events_acknowledged_then", "events_sent"))
    rate = round(acknowledged * event_bytes / float(str(figures["measured_s"])) / 1e6, 1)
    return {"mb_per_s": rate, "megabytes": sent * event_bytes / 1e6}


@dataclass
class Pair:
    """Two running servers, one with each log, which are loaded in turns; and what was measured of each.

    So both figures of a ratio are from the same minute. The server that is not loaded uses next to no CPU.
    """

    place: Place
    servers: Mapping[str, Server]
    figures: dict[str, dict[str, Any]]
    rounds: int

    def in_turns(self, name: str, measure: Callable[[Server, int], dict[str, float]]) -> None:
        """Measure each server once per round; keep the medians under `name`, and CPU and requests of the last round."""
        taken: dict[str, list[dict[str, float]]] = {kind: [] for kind in self.servers}
        self._await_idle()
        for number in range(self.rounds):
            for kind, running in self.servers.items():
                has_object_log = kind == "object"
                before, began_s = requests(running.uri) if has_object_log else {}, time.perf_counter()
                pids = {"server": running.pid, **self.place.pids}
                used_s = {process: cpu_s(pid) for process, pid in pids.items()}
                clients_s = _own_cpu_s()
                found = measure(running, number)
                taken[kind].append(found)
                clients_s = _own_cpu_s() - clients_s
                after, took_s = requests(running.uri) if has_object_log else {}, time.perf_counter() - began_s
                self._await_idle()
                megabytes = found.get("megabytes", 0.0)
                if not megabytes:
                    continue
                cpu_ms = {process: (cpu_s(pid) - used_s[process]) / megabytes * 1e3 for process, pid in pids.items()}
                cpu_ms["client"] = clients_s / megabytes * 1e3
                rounded = {process: round(each, 2) for process, each in cpu_ms.items()}
                self.figures[kind][f"{name}_cpu_ms_per_mb"] = rounded
                # As fast as all of them together can be on this machine, if nothing else runs on it.
                self.figures[kind][f"{name}_cpu_bound"] = round((os.cpu_count() or 1) * 1e3 / sum(cpu_ms.values()), 1)
                if has_object_log:
                    sent = after["sent_bytes"] - before["sent_bytes"]
                    self.figures[kind][f"{name}_requests"] = {
                        "writes_per_s": round((after["write_count"] - before["write_count"]) / took_s, 2),
                        "at_most": round(1 / INTERVAL_S + sent / took_s / BATCH_BYTES + 1 / took_s, 2),
                        "reads_per_s": round((after["read_count"] - before["read_count"]) / took_s, 2),
                    }
        for kind, all_found in taken.items():
            if "mb_per_s" in all_found[0]:
                rates = [found["mb_per_s"] for found in all_found]
                self.figures[kind][name] = statistics.median(rates)
                self.figures[kind][f"{name}_best"] = max(rates)
                self.figures[kind][f"{name}_rounds"] = rates
            else:
                self.figures[kind][name] = {
                    each: round(statistics.median(found[each] for found in all_found), 3) for each in all_found[0]
                }

    def _await_idle(self) -> None:
        """Wait until the servers and the S3 server use little CPU: what they do late belongs to the turn before."""
        pids = [*(running.pid for running in self.servers.values()), *self.place.pids.values()]
        for _ in range(_IDLE_POLLS_MAX):
            used_s = sum(map(cpu_s, pids))
            time.sleep(_IDLE_POLL_S)
            if sum(map(cpu_s, pids)) - used_s < _IDLE_POLL_S * _IDLE_SHARE_MAX:
                return


def _members(figures: Mapping[str, object]) -> dict[str, object]:
    found = figures["append_to_ack"]
    assert isinstance(found, dict)
    return found


def _own_cpu_s() -> float:
    """Return the CPU time of this process, and of its children that have ended: clients in Java."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def pair(place: Place, directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure both logs in turns; return the figures of each, and the ratios."""
    seconds = arguments.seconds
    with (
        place.server(directory / "local", place.prefix(), has_object_log=False) as local,
        place.server(directory / "object", place.prefix(), has_object_log=True) as there,
    ):
        both = Pair(place, {"local": local, "object": there}, {"local": {}, "object": {}}, arguments.rounds)

        def full_speed(event_bytes: int, segments: int) -> Callable[[Server, int], dict[str, float]]:
            def measure(running: Server, number: int) -> dict[str, float]:
                stream = f"bench/full{event_bytes}x{number}"
                return throughput(running.uri, stream, event_bytes, segments, seconds)

            return measure

        def java(event_bytes: int, segments: int) -> Callable[[Server, int], dict[str, float]]:
            return lambda running, number: java_load(running, event_bytes, segments, seconds)

        def paced(running: Server, number: int) -> dict[str, float]:
            load = argparse.Namespace(rate=arguments.rate, event_bytes=100, seconds=seconds, read=False)
            return {
                name: float(str(each)) for name, each in _members(asyncio.run(measure_rate(running.uri, load))).items()
            }

        loads = {
            "append_100": full_speed(100, 1), "append_1000": full_speed(1000, 100),
            "java_100": java(100, 10), "java_1000": java(1000, 100),
        }  # fmt: skip
        for name in arguments.loads if "load" in arguments.only else ():
            if arguments.java or not name.startswith("java"):
                both.in_turns(name, loads[name])
        if "latency" in arguments.only:
            both.rounds = 1
            both.in_turns("after_pause", lambda running, number: after_pause(running.uri, arguments.appends))
            both.in_turns("rate_10k", paced)
        for kind, running in both.servers.items():
            both.figures[kind]["memory"] = memory_mb(running.pid)
    figures = both.figures
    ratios = {
        name: round(figure / figures["local"][name], 2)
        for name, figure in figures["object"].items()
        if isinstance(figure, float) and figures["local"].get(name)
    }
    more_mb = figures["object"]["memory"]["rss_max_mb"] - figures["local"]["memory"]["rss_max_mb"]
    return {**figures, "ratio": ratios, "more_memory_mb": round(more_mb, 1)}


def idle(place: Place, directory: Path, seconds: float) -> dict[str, float]:
    """Count the requests of a server without load to the bucket of the log."""
    with place.server(directory, place.prefix(), has_object_log=True) as running:
        time.sleep(min(seconds, 2 * LEASE_S))
        before = requests(running.uri)
        time.sleep(seconds)
        after = requests(running.uri)
    found = {name: after[name] - before[name] for name in ("read_count", "write_count")}
    return {**found, "leases": seconds / LEASE_S, "per_lease": round(sum(found.values()) * LEASE_S / seconds, 2)}


async def fill(running: Server, byte_count: int) -> None:
    """Append so many bytes to one segment."""
    connection = await connect(running.store_port)
    try:
        await ask(connection, lambda id_: CreateSegment(id_, RECOVERED, 0, 0, ""), SegmentCreated)
    finally:
        await connection.close()
    load = AppendLoad({running.store_port: [RECOVERED]}, writers=1, block=block_of(1000, 64), event_count=64)
    await load.set_up(64)
    await load.run_blocks(-(-byte_count // 64_000))
    await load.close()


async def replay(place: Place, prefix: str) -> float:
    """Open and replay all logs below a prefix together, as a start does; return the seconds."""
    runtime = real_runtime(2)
    objects = runtime.open_objects(ObjectPlace("s3", LOG_BUCKET, prefix), place.store)
    logs = ObjectLogFactory(objects, runtime, prefix=prefix, container_count=CONTAINERS)

    async def one(container_id: int) -> None:
        log = logs.create(container_id)
        await log.open()
        cache = Cache(CacheSettings(bytes_max=1 << 31))
        await recover(log, ContainerState(container_id, cache, ContainerSettings()))
        await log.close()

    try:
        begin_s = time.perf_counter()
        await asyncio.gather(*(one(container_id) for container_id in range(CONTAINERS)))
        return time.perf_counter() - begin_s
    finally:
        await logs.close()
        await runtime.work.close()


async def listed(place: Place, folder: str) -> dict[str, int]:
    """Return the lengths of all objects below a folder of the log's bucket."""
    objects = place.way.open(LOG_BUCKET)
    return {info.key: info.length_bytes async for page in objects.list(folder) for info in page}


def recovery(place: Place, directory: Path, megabytes: int) -> dict[str, Any]:
    """Fill a log, kill its server, read its objects, and replay it."""
    prefix = place.prefix()
    settings = {**UNFLUSHED, "segment_store.cache.bytes_max": (megabytes << 20) * 3}
    with place.server(directory, prefix, has_object_log=True, settings=settings) as running:
        asyncio.run(fill(running, megabytes << 20))
        running.kill()
    lengths = asyncio.run(listed(place, f"{prefix}/j"))
    plain_s = asyncio.run(read_ranges(place.way, lengths, BATCH_BYTES, lanes=16, bucket=LOG_BUCKET))
    replay_s = asyncio.run(replay(place, prefix))
    return {
        "megabytes": round(sum(lengths.values()) / 1e6), "objects": len(lengths), "plain_reads_s": round(plain_s, 2),
        "replay_s": round(replay_s, 2), "ratio": round(replay_s / plain_s, 2),
    }  # fmt: skip


def takeover(place: Place, directory: Path) -> dict[str, float]:
    """Kill a server that has acknowledged events, and start another one; return how long that takes to serve."""
    prefix = place.prefix()
    with place.server(directory / "first", prefix, has_object_log=True) as first:
        throughput(first.uri, "bench/taken", 1000, 4, 1.0)
        first.kill()
        with place.server(directory / "second", prefix, has_object_log=True) as second:
            serves_s = second.ready_s
    return {"serves_after_s": round(serves_s, 2), "lease_s": LEASE_S, "beyond_lease_s": round(serves_s - LEASE_S, 2)}


@contextmanager
def reached(directory: Path, delay_s: float, *, is_versitygw: bool) -> Iterator[Place]:
    """Run an S3 server on `directory`, each of whose requests takes `delay_s` longer, with both buckets."""
    if not is_versitygw:
        distant = DistantS3(directory, delay_s=delay_s, pool_bytes=POOL_BYTES).start()
        try:
            for name in (LOG_BUCKET, DATA_BUCKET):
                distant.make_bucket(name)
            yield Place(distant, distant.port)
        finally:
            distant.kill()
        return
    with s3_bucket(directory) as s3, delaying_proxy(s3.port, delay_s) as (port, pid):
        for name in (LOG_BUCKET, DATA_BUCKET):
            s3.make_bucket(name)
        yield Place(s3, port, pid)


def main() -> None:
    """Measure and report."""
    options = parser(__doc__ or "")
    options.add_argument("--delays-ms", type=float, nargs="+", default=[0.0, 10.0, 30.0, 100.0])
    options.add_argument("--rate", type=int, default=10_000, help="events per second of `rate_10k`")
    options.add_argument("--rounds", type=int, default=3, help="turns of each server at full speed")
    options.add_argument("--appends", type=int, default=30, help="single appends after a pause")
    options.add_argument("--megabytes", type=int, default=512, help="of the log that is recovered")
    options.add_argument("--idle-seconds", type=float, default=60.0)
    options.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to measure")
    options.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS, help="of the part `load`")
    options.add_argument("--versitygw", action="store_true", help="versitygw, and before it a proxy that delays")
    options.add_argument("--no-java", dest="java", action="store_false", help="leave Pravega's Java client out")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.delays_ms, arguments.seconds, arguments.appends, arguments.rate = [5.0], 0.5, 3, 1000
        arguments.megabytes, arguments.idle_seconds, arguments.java, arguments.rounds = 8, 1.0, False, 1
    figures: dict[str, object] = {"batch_interval_s": INTERVAL_S}
    if arguments.java:
        try:
            classpath()
            java_with_compiler()
        except JavaUnavailableError as error:
            arguments.java, figures["java"] = False, f"not measured: {error}"
    with work_directory(arguments) as directory:
        figures["raw_disk"] = raw_disk(directory)
        try:
            for delay_ms in arguments.delays_ms:
                there = directory / f"{delay_ms:g}"
                with reached(there / "s3", delay_ms / 1e3, is_versitygw=arguments.versitygw) as place:
                    found: dict[str, object] = {}
                    if "load" in arguments.only:
                        seconds = min(arguments.seconds, 5.0)
                        found["plain_puts"] = asyncio.run(
                            puts(place.way, BATCH_BYTES, seconds, lanes=4, bucket=DATA_BUCKET)
                        )
                    if {"load", "latency"} & set(arguments.only):
                        found.update(pair(place, there, arguments))
                    if "recovery" in arguments.only:
                        found["recovery"] = recovery(place, there / "recovery", arguments.megabytes)
                    if "takeover" in arguments.only:
                        found["takeover"] = takeover(place, there / "takeover")
                    if "idle" in arguments.only and delay_ms == arguments.delays_ms[0]:
                        found["idle"] = idle(place, there / "idle", arguments.idle_seconds)
                    figures[f"{delay_ms:g}_ms"] = found
        except S3UnavailableError as error:
            raise SystemExit(f"there is no S3 server: {error}") from error
    report("object_log", figures)


if __name__ == "__main__":
    main()
