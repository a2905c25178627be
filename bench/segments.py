"""Write throughput on 1, 10, 100 and 1000 segments at equal load, by several writers.

    python bench/segments.py
    python bench/segments.py --writers 1 --counts 1 100
    python bench/segments.py --rate-mb 100
    python bench/segments.py --stores 2

At each count the same bytes are under way in blocks of the same length, from the same number of writers; each of them
writes to all segments in turn. Rounds over all counts alternate, each run has a fresh server, and what is reported is
the median: the machine of one minute is not that of the next. The baseline is the first count, one segment.

How much of the moving to long-term storage falls into the time that is measured depends on how much each segment gets:
`in_chunks_mb` tells. The client's CPU is told beside the server's: what it needs for a reply of each segment is missing
to the server where they share two cores. One segment uses one container and its log, many use all of them;
`--containers 1` takes that out. With `--stores` there are several segment stores, each a process of its own with a part
of the containers and a cache of its own: one segment uses one of them, many use all, and each writer has a connection
to each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from _common import cpu_s, memory_mb, parser, percentiles_ms, raw_disk, report, server, work_directory
from _held_memory import add_option, held_memory
from _load import AppendLoad, block_of
from _wire import ask as ask_for
from _wire import for_each, run, say
from penstock.model.routing import container_of
from penstock.wire.commands import CreateSegment, SegmentCreated
from penstock.wire.connection import WireConnection


async def one_run(arguments: argparse.Namespace, directory: Path, count: int) -> dict[str, object]:
    """Measure one count of segments on a fresh server."""
    names = [f"bench/spread/{number}.#epoch.0" for number in range(count)]
    block = block_of(arguments.event_bytes, arguments.block_events)

    async def create(connection: WireConnection, number: int) -> None:
        await ask_for(connection, lambda id_: CreateSegment(id_, names[number], 0, 0, ""), SegmentCreated)

    options = ("--containers", str(arguments.containers), "--segment-stores", str(arguments.stores))
    with server(directory, *options) as running:
        places: dict[int, list[int]] = {}
        for number, name in enumerate(names):
            container = container_of(name, arguments.containers)
            place = next(store for store in running.stores if container in store.containers)
            places.setdefault(place.port, []).append(number)
        for port, numbers in places.items():
            await for_each(port, "create", numbers, create, connections=1, window=64)
        load = AppendLoad(
            {port: [names[number] for number in numbers] for port, numbers in places.items()},
            writers=arguments.writers,
            block=block,
            event_count=arguments.block_events,
        )
        await load.set_up(arguments.window)
        pids = {running.pid, *(store.pid for store in running.stores)}
        before_s, client_before_s = sum(map(cpu_s, pids)), time.process_time()
        if arguments.rate_mb:
            rate = arguments.rate_mb * 1e6 / (arguments.block_events * arguments.event_bytes)
            blocks, took_s = await load.offer_for(arguments.seconds, rate)
        else:
            blocks, took_s = await load.run_for(arguments.seconds)
        used_s, client_used_s = sum(map(cpu_s, pids)) - before_s, time.process_time() - client_before_s
        await load.close()
        chunks = (directory / "store" / "tier2" / "bench").rglob("*")
        chunk_bytes = sum(path.stat().st_size for path in chunks if path.is_file())
        payload = blocks * arguments.block_events * arguments.event_bytes
        figures: dict[str, object] = {
            "mb_per_s": round(payload / took_s / 1e6, 1),
            "events_per_s": round(blocks * arguments.block_events / took_s),
            "server_cpu_s_per_gb": round(used_s / max(1, payload) * 1e9, 2),
            "client_cpu_s_per_gb": round(client_used_s / max(1, payload) * 1e9, 2),
            "in_chunks_mb": round(chunk_bytes / 1e6, 1),
            "append_to_ack": percentiles_ms(load.latencies_s),
            **memory_mb(running.stores[0].pid),
        }
    say(f"{count} segments: {figures}")
    return figures


async def measure(arguments: argparse.Namespace) -> None:
    """Measure all counts in rounds; print the report."""
    runs: dict[int, list[dict[str, object]]] = {count: [] for count in arguments.counts}
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        for round_number in range(arguments.rounds):
            for count in arguments.counts:
                place = directory / f"{round_number}-{count}"
                runs[count].append(await one_run(arguments, place, count))
        medians = {
            count: statistics.median(float(str(figures["mb_per_s"])) for figures in found)
            for count, found in runs.items()
        }
        first = medians[arguments.counts[0]]
        report(
            "segments",
            {
                "writers": arguments.writers,
                "containers": arguments.containers,
                "segment_stores": arguments.stores,
                "event_bytes": arguments.event_bytes,
                "block_events": arguments.block_events,
                "blocks_under_way": arguments.window,
                "offered_mb_per_s": arguments.rate_mb or "as fast as it goes",
                "median_mb_per_s": medians,
                # On a machine that is busy enough nothing may be done in the time of `--quick`.
                "to_first_count": {
                    count: round(median / first, 3) if first else None for count, median in medians.items()
                },
                "runs": runs,
                "raw_disk": disk,
            },
        )


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--counts", type=int, nargs="+", default=[1, 10, 100, 1000], help="numbers of segments")
    options.add_argument("--writers", type=int, default=10)
    options.add_argument("--containers", type=int, default=4, help="one segment uses one of them, many use all")
    options.add_argument("--stores", type=int, default=1, help="segment stores")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--event-bytes", type=int, default=1000)
    options.add_argument("--block-events", type=int, default=16, help="events in each append")
    options.add_argument("--rate-mb", type=float, default=0.0, help="offered load in MB/s; 0: as fast as it goes")
    options.add_argument("--window", type=int, default=500, help="blocks under way, of all writers together")
    add_option(options)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.counts, arguments.rounds, arguments.seconds = [1, 10], 1, 0.3
    with held_memory(arguments.hold_memory):
        run(measure(arguments))


if __name__ == "__main__":
    main()
