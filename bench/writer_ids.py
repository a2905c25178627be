"""A million writers, one after the other, on one segment: each is set up and appends once.

    python bench/writer_ids.py                     # 1 000 000 writers
    python bench/writer_ids.py --writers 100000

Each writer's last event number is an attribute of the segment. All settings are the default ones, but that there is
one container. The baseline is the first tenth of the same run: a writer costs the same later, or it does not. Then the
server is killed and started again, and old writers are set up: each must be told its number.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from pathlib import Path

from _common import cpu_s, memory_mb, parser, percentiles_ms, raw_disk, report, server, work_directory
from _wire import ask, connect, for_each, run, say
from penstock.wire.commands import AppendBlockEnd, AppendSetup, CreateSegment, DataAppended, SegmentCreated, SetupAppend
from penstock.wire.connection import WireConnection

SEGMENT = "bench/writers/0.#epoch.0"


def writer_of(number: int) -> bytes:
    """Return a writer's id; ids are spread evenly, as random ones are."""
    return struct.pack(">QQ", (number * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF, number)


async def measure(arguments: argparse.Namespace) -> None:
    """Run the writers in tenths; print the report."""
    event = struct.pack(">ii", 0, arguments.event_bytes) + bytes(arguments.event_bytes)
    lanes = {"connections": arguments.connections, "window": arguments.window, "per_connection_max": 4000}
    tenth = max(1, arguments.writers // 10)

    async def write(connection: WireConnection, number: int) -> None:
        writer = writer_of(number)
        await ask(connection, lambda id_: SetupAppend(id_, writer, SEGMENT, ""), AppendSetup)
        await ask(connection, lambda id_: AppendBlockEnd(writer, len(event), event, 1, number + 1, id_), DataAppended)

    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        tenths: list[dict[str, object]] = []
        rates: list[float] = []
        with server(directory, "--containers", "1", is_observed=True, profile=arguments.profile) as running:
            connection = await connect(running.store_port)
            await ask(connection, lambda id_: CreateSegment(id_, SEGMENT, 0, 0, ""), SegmentCreated)
            await connection.close()
            for first in range(0, arguments.writers, tenth):
                numbers = range(first, min(first + tenth, arguments.writers))
                before_s = cpu_s(running.pid)
                took_s = await for_each(running.store_port, f"writers from {first:,}", numbers, write, **lanes)
                rates.append(len(numbers) / took_s)
                tenths.append(
                    {
                        "writers_per_s": round(rates[-1]),
                        "server_cpu_us_per_writer": round((cpu_s(running.pid) - before_s) / len(numbers) * 1e6, 1),
                        **memory_mb(running.pid),
                        **running.counts()[0],
                    }
                )
                say(f"{numbers.stop:,} writers: {tenths[-1]}")
            if arguments.profile is None:
                running.kill()
        recovery = await set_up_again(arguments, directory) if arguments.profile is None else {}
        report(
            "writer-ids",
            {
                "writers": arguments.writers,
                "writers_per_s": round(len(rates) / sum(1 / rate for rate in rates)),
                "slowest_to_first_tenth": round(min(rates) / rates[0], 3),
                "tenths": tenths,
                "recovery": recovery,
                "raw_disk": disk,
            },
        )


async def set_up_again(arguments: argparse.Namespace, directory: Path) -> dict[str, object]:
    """Start the killed server again and set old writers up; each must hear its last number."""
    chosen = random.Random(1).sample(range(arguments.writers), min(arguments.writers, arguments.checked))
    samples: list[float] = []

    async def set_up(connection: WireConnection, position: int) -> None:
        number = chosen[position]
        begin_s = time.perf_counter()
        reply = await ask(connection, lambda id_: SetupAppend(id_, writer_of(number), SEGMENT, ""), AppendSetup)
        samples.append(time.perf_counter() - begin_s)
        assert isinstance(reply, AppendSetup)
        if reply.last_event_number != number + 1:
            raise SystemExit(f"writer {number} was told {reply.last_event_number}, its last event is {number + 1}")

    with server(directory, "--containers", "1") as running:
        connection = await connect(running.store_port)
        await set_up(connection, 0)
        await connection.close()
        took_s = await for_each(
            running.store_port,
            "old writers after a kill",
            range(1, len(chosen)),
            set_up,
            connections=4,
            window=1,
            per_connection_max=4000,
        )
        return {
            "ready_s": round(running.ready_s, 2),
            "first_set_up_s": round(samples[0], 4),
            "set_ups_per_s": round((len(chosen) - 1) / took_s),
            "set_up": percentiles_ms(samples[1:]),
            **memory_mb(running.pid),
        }


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--writers", type=int, default=1_000_000)
    options.add_argument("--event-bytes", type=int, default=100)
    options.add_argument("--connections", type=int, default=8)
    options.add_argument("--window", type=int, default=32, help="writers at work on each connection")
    options.add_argument("--checked", type=int, default=10_000, help="old writers that are set up after the kill")
    options.add_argument("--profile", type=Path, help="run the server under cProfile; the profile goes to this file")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.writers, arguments.checked = 2000, 200
    run(measure(arguments))


if __name__ == "__main__":
    main()
