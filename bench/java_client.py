"""Load from Pravega's official Java client (0.13.0), with readers following: whose appends are small and many.

    python bench/java_client.py --event-bytes 100 --segments 10
    python bench/java_client.py --event-bytes 1000 --segments 100
    python bench/java_client.py --event-bytes 1000 --segments 100 --rate-mb 150
    python bench/java_client.py --event-bytes 100 --segments 10 --rate 10000

`--rate` is in events per second, of all writers together, `--rate-mb` the same in MB; 0: as fast as the client takes
them. Latencies at a rate begin when an event was due, so they say something only where the rate was reached: compare
`events_per_s` with `offered_events_per_s`. At full speed they follow from `in_flight_mean_mb`, whatever is held
anywhere between the writer and the log, divided by what gets done. The client runs in a
Java process of its own (`java/EventLoad.java`, compiled as it starts), so that its CPU is seen apart. What is counted
begins after `--warm-up-seconds`, when Java has compiled itself. Needs a JDK and Maven, which fetches the client once.

Writers and readers share connections (`maxConnectionsPerSegmentStore`, 10 by default), unless `--no-pooling` gives
each segment's writer one of its own. A reader has kept up when at the end of the measured time it is at most
a second's events behind the acknowledgements.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from _common import Server, cpu_s, memory_mb, parser, raw_disk, report, server, work_directory
from _held_memory import add_option, held_memory
from _loopback import bare_socket_mb_per_s
from penstock_simulation.java_client import CLIENT_VERSION, JavaUnavailableError, classpath, java_with_compiler

SOURCE = Path(__file__).parent / "java" / "EventLoad.java"
LOOPBACK_BYTES = 1 << 30
MIB = 1 << 20

#: What a person reads from a run: members of `EventLoad`'s figures by their names here.
PERCENTILES = ("p50_ms", "p95_ms", "p99_ms", "max_ms")


def event_load(
    jars: list[str], heap_mib: int, options: dict[str, object], at_bound: Callable[[], object] | None = None
) -> dict[str, object]:
    """Run the load to its end; return its figures. `at_bound`: called at both bounds of the measured time."""
    command = [
        *(java_with_compiler(), f"-Xms{heap_mib}m", f"-Xmx{heap_mib}m", "-Dio.netty.tryReflectionSetAccessible=false"),
        *("-cp", os.pathsep.join(jars), str(SOURCE)),
        *(f"{name}={str(value).lower()}" for name, value in options.items()),
    ]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            client_s: list[float] = []
            line = ""
            for line in process.stdout:
                if line.strip() in ("begin", "end"):
                    client_s.append(cpu_s(process.pid))
                    if at_bound is not None:
                        at_bound()
            if process.wait() != 0:
                raise SystemExit(f"the Java client's load ended with code {process.returncode}")
        finally:
            process.kill()
    figures: dict[str, object] = json.loads(line)
    return {**figures, "client_cpu_s": client_s[1] - client_s[0]}


def run_load(running: Server, jars: list[str], heap_mib: int, options: dict[str, object]) -> dict[str, object]:
    """Run the load to its end; return its figures, and what server and client used in the measured time."""
    used_s: list[float] = []
    figures = event_load(jars, heap_mib, options, lambda: used_s.append(cpu_s(running.pid)))
    return {**figures, "server_cpu_s": used_s[1] - used_s[0]}


def rates(figures: dict[str, object], count: str, event_bytes: int) -> dict[str, object]:
    """Return events and MB per second of the measured time."""
    per_s = float(str(figures[count])) / float(str(figures["measured_s"]))
    return {"events_per_s": round(per_s), "mb_per_s": round(per_s * event_bytes / 1e6, 1)}


def of_reader(figures: dict[str, object], event_bytes: int) -> dict[str, object]:
    """Return what readers did. Raises `SystemExit` when they read more than was written."""
    lag, read, sent = (int(str(figures[name])) for name in ("lag_at_end", "events_read", "events_sent"))
    if read > sent:
        raise SystemExit(f"{read} events were read, {sent} were written")
    acknowledged_per_s = float(str(figures["events_acknowledged_then"])) / float(str(figures["measured_s"]))
    by_second = figures["read_by_second"]
    assert isinstance(by_second, list)
    return {
        **rates(figures, "events_read_then", event_bytes),
        "worst_second_events": min(by_second, default=0),
        "longest_gap_s": figures["longest_gap_s"],
        "has_kept_up": lag <= acknowledged_per_s,
        "lag_at_end_events": lag,
        "lag_at_end_s": round(lag / acknowledged_per_s, 2),
        "is_drained": read == sent,
        "drained_after_s": figures["drained_after_s"],
        "write_to_reader": {name: figures.get(f"arrival_{name}") for name in PERCENTILES},
        "events_by_second": by_second,
    }


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--event-bytes", type=int, default=100, help="at least 8")
    options.add_argument("--segments", type=int, default=10)
    options.add_argument("--writers", type=int, default=1)
    options.add_argument("--readers", type=int, default=1, help="0: none follows")
    rate = options.add_mutually_exclusive_group()
    rate.add_argument("--rate", type=float, default=0.0, help="events per second of all writers; 0: at full speed")
    rate.add_argument("--rate-mb", type=float, default=0.0, help="the same in MB per second")
    options.add_argument("--warm-up-seconds", type=float, default=10.0)
    options.add_argument("--drain-seconds", type=float, default=60.0, help="how long readers may take for the rest")
    options.add_argument("--no-pooling", action="store_true", help="a connection for each segment's writer")
    options.add_argument("--cache-mib", type=int, default=512, help="the server's cache")
    options.add_argument("--heap-mib", type=int, default=1024, help="the client's memory")
    options.add_argument("--profile", type=Path, help="profile the server (half as fast) into this file")
    add_option(options)
    arguments = options.parse_args()
    if arguments.event_bytes < 8:
        options.error("--event-bytes is at least 8: events carry the time at which they were written")
    if arguments.rate_mb:
        arguments.rate = arguments.rate_mb * 1e6 / arguments.event_bytes
    if arguments.quick:
        arguments.seconds, arguments.warm_up_seconds, arguments.rate = 1.0, 0.5, 1000.0
    try:
        jars = classpath()
        java_with_compiler()
    except JavaUnavailableError as error:
        raise SystemExit(f"the Java client cannot run: {error}") from error

    with held_memory(arguments.hold_memory), work_directory(arguments) as directory:
        disk = raw_disk(directory)
        loopback = bare_socket_mb_per_s(LOOPBACK_BYTES // (64 if arguments.quick else 1))
        with server(directory, "--cache-mb", str(arguments.cache_mib), profile=arguments.profile) as running:
            idle = memory_mb(running.pid)
            figures = run_load(
                running,
                jars,
                arguments.heap_mib,
                {
                    "controller": running.uri,
                    "segments": arguments.segments,
                    "writers": arguments.writers,
                    "readers": arguments.readers,
                    "event-bytes": arguments.event_bytes,
                    "rate": arguments.rate,
                    "warm-up-seconds": arguments.warm_up_seconds,
                    "seconds": arguments.seconds,
                    "drain-seconds": arguments.drain_seconds,
                    "pooled": not arguments.no_pooling,
                },
            )
            memory = memory_mb(running.pid)
        acknowledged = int(str(figures["events_acknowledged_then"]))
        if not acknowledged:
            raise SystemExit(f"nothing was acknowledged in {arguments.seconds:g} s")
        server_cpu_s = float(str(figures["server_cpu_s"]))
        cache_mb = arguments.cache_mib * MIB / 1e6
        report(
            "java-client",
            {
                "client": f"io.pravega:pravega-client:{CLIENT_VERSION}",
                "event_bytes": arguments.event_bytes,
                "segments": arguments.segments,
                "writers": arguments.writers,
                "readers": arguments.readers,
                "offered_events_per_s": arguments.rate or "as fast as it goes",
                "has_pooled_connections": not arguments.no_pooling,
                "seconds": figures["measured_s"],
                "is_memory_held": arguments.hold_memory,
                **rates(figures, "events_acknowledged_then", arguments.event_bytes),
                "append_to_ack": {name: figures.get(f"ack_{name}") for name in PERCENTILES},
                "in_flight_mean_mb": round(int(str(figures["in_flight_mean"])) * arguments.event_bytes / 1e6, 2),
                "in_flight_at_end_events": figures["in_flight_at_end"],
                "is_flushed": figures["events_sent"] == figures["events_acknowledged"],
                "flushed_after_s": figures["flushed_after_s"],
                "events_by_second": figures["acknowledged_by_second"],
                "reader": of_reader(figures, arguments.event_bytes) if arguments.readers else None,
                "server_cpu_s": round(server_cpu_s, 2),
                "server_cpu_s_per_million_events": round(server_cpu_s / acknowledged * 1e6, 2),
                "server_cpu_s_per_gb": round(server_cpu_s / (acknowledged * arguments.event_bytes) * 1e9, 2),
                "client_cpu_s": round(float(str(figures["client_cpu_s"])), 2),
                "cache_mb": round(cache_mb, 1),
                "server_memory_idle": idle,
                "server_memory": memory,
                "rss_max_over_cache_mb": round(memory["rss_max_mb"] - cache_mb, 1),
                "raw_disk": disk,
                "bare_socket_mb_per_s": loopback,
            },
        )


if __name__ == "__main__":
    main()
