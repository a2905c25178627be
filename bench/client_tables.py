"""Key-value tables through the Python client: what gets, puts and scans cost, in time and in CPU on both sides.

    python bench/client_tables.py                   # 100 k keys of 16 bytes, values of 100
    python bench/client_tables.py --partitions 4

Gets are one at a time, so their time is the round trip's. A scan reads the whole table in pages, in the order of its
keys; the rate that the CPU time of both sides allows on one core stands beside the rate that was seen, because other
programs on the machine slow down the latter alone.
"""

from __future__ import annotations

import argparse
import random
import time

import uvloop

import penstock.aio
from _common import cpu_s, parser, percentiles_ms, raw_disk, report, server, work_directory
from penstock.client.tables.tables import Table

TABLE = "bench/prices"
KEY_LENGTH = 16


class Meter:
    """Time and CPU time of both sides from here on."""

    def __init__(self, server_pid: int) -> None:
        self._pid = server_pid
        self._begin = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), cpu_s(self._pid)

    def figures(self, count: int) -> dict[str, object]:
        """Return what was used for `count` of something."""
        wall_s, client_s, server_s = (now - begin for now, begin in zip(self._now(), self._begin, strict=True))
        return {
            "count": count,
            "per_s": round(count / wall_s),
            "per_cpu_s": round(count / max(client_s + server_s, 1e-9)),
            "client_cpu_us": round(client_s / count * 1e6, 2),
            "server_cpu_us": round(server_s / count * 1e6, 2),
        }


def key_of(number: int) -> bytes:
    """Return a key; neighbours in number are not neighbours in order."""
    return ((number * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big") + number.to_bytes(8, "big")


async def measure(arguments: argparse.Namespace) -> None:
    """Fill a table, get from it, change it, scan it; print the report."""
    rng = random.Random(arguments.seed)
    value = bytes(arguments.value_bytes)
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory, "--containers", "1") as running:
            async with penstock.aio.connect(running.uri) as client:
                await client.create_table(TABLE, key_length=KEY_LENGTH, partition_count=arguments.partitions)
                async with client.table(TABLE) as table:
                    meter = Meter(running.pid)
                    for first in range(0, arguments.keys, 10_000):
                        last = min(first + 10_000, arguments.keys)
                        await table.put_many([(key_of(number), value) for number in range(first, last)])
                    puts = meter.figures(arguments.keys)
                    gets = await single_calls(table, running.pid, arguments, rng, is_put=False)
                    single_puts = await single_calls(table, running.pid, arguments, rng, is_put=True)
                    meter, count = Meter(running.pid), 0
                    async for page in table.scan_pages():
                        count += len(page)
                    scan = meter.figures(count)
                    meter, count = Meter(running.pid), 0
                    async for keys in table.key_pages():
                        count += len(keys)
                    key_scan = meter.figures(count)
        if count != arguments.keys:
            raise SystemExit(f"{count} keys were scanned, {arguments.keys} were put")
        report(
            "client_tables",
            {
                "keys": arguments.keys,
                "value_bytes": arguments.value_bytes,
                "partitions": arguments.partitions,
                "put_many": puts,
                "get": gets,
                "put_on_version": single_puts,
                "scan": scan,
                "scan_keys": key_scan,
                "raw_disk": disk,
            },
        )


async def single_calls(
    table: Table[bytes, bytes], pid: int, arguments: argparse.Namespace, rng: random.Random, *, is_put: bool
) -> dict[str, object]:
    """Make calls one after another, each of a random key."""
    samples: list[float] = []
    meter = Meter(pid)
    end_s = time.perf_counter() + arguments.seconds
    while time.perf_counter() < end_s:
        key = key_of(rng.randrange(arguments.keys))
        entry = await table.entry(key) if is_put else None
        begin_s = time.perf_counter()
        if entry is not None:
            await table.put(key, entry.value, version=entry.version)
        elif await table.get(key) is None:
            raise SystemExit(f"key {key!r} is missing")
        samples.append(time.perf_counter() - begin_s)
    return {**meter.figures(len(samples)), **percentiles_ms(samples)}


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--keys", type=int, default=100_000)
    options.add_argument("--value-bytes", type=int, default=100)
    options.add_argument("--partitions", type=int, default=1)
    options.add_argument("--seed", type=int, default=1)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.keys, arguments.seconds = 2000, 0.2
    uvloop.run(measure(arguments))


if __name__ == "__main__":
    main()
