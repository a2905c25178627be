"""One table that grows to a million keys: what updates cost at each size, how much memory, how long a restart takes.

    python bench/tables.py                  # 10 k, 100 k and 1 M keys
    python bench/tables.py --keys 100000

Updates are conditional (each names the version that must be there), 100 keys at a time, all over the table, several
batches under way. The baseline is the table at its first size: the same updates then cost the same, or they do not.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from pathlib import Path

from _common import cpu_s, memory_mb, parser, percentiles_ms, raw_disk, report, server, work_directory
from _wire import ask, connect, for_each, run, say
from penstock.model.segments import VERSION_ABSENT, VERSION_ANY
from penstock.wire.commands import (
    CreateTableSegment,
    ReadTable,
    SegmentCreated,
    TableEntriesUpdated,
    TableKey,
    TableKeyValue,
    TableRead,
    UpdateTableEntries,
)
from penstock.wire.connection import WireConnection

TABLE = "bench/_tables/grows"
BATCH = 100


def key_of(number: int) -> bytes:
    """Return a key; neighbours in number are not neighbours in order."""
    return struct.pack(">QQ", (number * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF, number)


class Table:
    """The table, and the version of each key as the server told it."""

    def __init__(self, value_bytes: int, seed: int) -> None:
        self.versions: list[int] = []
        self.latencies_s: list[float] = []
        self._value = bytes(value_bytes)
        self._rng = random.Random(seed)

    async def put(self, connection: WireConnection, numbers: list[int]) -> None:
        """Write a batch, on the condition that nobody else has."""
        entries = tuple(TableKeyValue(key_of(number), self.versions[number], self._value) for number in numbers)
        begin_s = time.perf_counter()
        reply = await ask(connection, lambda id_: UpdateTableEntries(id_, TABLE, "", entries), TableEntriesUpdated)
        self.latencies_s.append(time.perf_counter() - begin_s)
        assert isinstance(reply, TableEntriesUpdated)
        for number, version in zip(numbers, reply.versions, strict=True):
            self.versions[number] = version

    async def grow(self, connection: WireConnection, batch: int) -> None:
        """Insert the keys of a batch."""
        await self.put(connection, list(range(batch * BATCH, (batch + 1) * BATCH)))

    def batches(self, count: int) -> list[list[int]]:
        """Return so many batches of keys from all over the table, none of them twice (in flight together)."""
        numbers = self._rng.sample(range(len(self.versions)), min(len(self.versions), count * BATCH))
        return [numbers[first : first + BATCH] for first in range(0, len(numbers), BATCH)]


async def measure(arguments: argparse.Namespace) -> None:
    """Grow the table step by step; print the report."""
    sizes = [size for size in (10_000, 100_000, 1_000_000) if size < arguments.keys] + [arguments.keys]
    table = Table(arguments.value_bytes, arguments.seed)
    steps: list[dict[str, object]] = []
    rates: list[float] = []
    window = {"connections": 2, "window": arguments.window}
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory, "--containers", "1", profile=arguments.profile) as running:
            connection = await connect(running.store_port)
            await ask(connection, lambda id_: CreateTableSegment(id_, TABLE, ""), SegmentCreated)
            await connection.close()
            for size in sizes:
                grown = len(table.versions) // BATCH
                table.versions += [VERSION_ABSENT] * (size - len(table.versions))
                insert_cpu_s = cpu_s(running.pid)
                insert_s = await for_each(
                    running.store_port,
                    f"inserts up to {size:,} keys, by 100",
                    range(grown, size // BATCH),
                    table.grow,
                    **window,
                )
                insert_cpu_s = cpu_s(running.pid) - insert_cpu_s
                table.latencies_s.clear()
                before_s, updated, update_s = cpu_s(running.pid), 0, 0.0
                while update_s < arguments.seconds:
                    batches = table.batches(200)

                    async def update(
                        connection: WireConnection, batch: int, batches: list[list[int]] = batches
                    ) -> None:
                        await table.put(connection, batches[batch])

                    update_s += await for_each(
                        running.store_port, "updates, by 100", range(len(batches)), update, **window
                    )
                    updated += sum(map(len, batches))
                rates.append(updated / update_s)
                step = {
                    "keys": size,
                    "inserts_per_s": round((size - grown * BATCH) / insert_s),
                    "insert_server_cpu_s": round(insert_cpu_s, 2),
                    "updates_per_s": round(rates[-1]),
                    "update_seconds": round(update_s, 1),
                    "server_cpu_us_per_update": round((cpu_s(running.pid) - before_s) / updated * 1e6, 1),
                    "batch": percentiles_ms(table.latencies_s),
                    **memory_mb(running.pid),
                }
                steps.append(step)
                say(str(step))
            if arguments.profile is None:
                running.kill()
        recovery: dict[str, object] = {}
        if arguments.profile is None:
            recovery = await recover(arguments, directory, table)
        report(
            "tables",
            {
                "value_bytes": arguments.value_bytes,
                "batch": BATCH,
                "batches_under_way": 2 * arguments.window,
                "steps": steps,
                "slowest_to_first_size": round(min(rates) / rates[0], 3),
                "recovery": recovery,
                "raw_disk": disk,
            },
        )


async def recover(arguments: argparse.Namespace, directory: Path, table: Table) -> dict[str, object]:
    """Start the killed server again; time the start and the first lookups, and check every 100th key's version."""
    with server(directory, "--containers", "1") as running:
        connection = await connect(running.store_port)
        samples: list[float] = []

        async def get(connection: WireConnection, number: int) -> None:
            begin_s = time.perf_counter()
            keys = (TableKey(key_of(number), VERSION_ANY),)
            reply = await ask(connection, lambda id_: ReadTable(id_, TABLE, "", keys), TableRead)
            samples.append(time.perf_counter() - begin_s)
            assert isinstance(reply, TableRead)
            if [entry.version for entry in reply.entries] != [table.versions[number]]:
                raise SystemExit(f"key {number}: {reply.entries}, expected version {table.versions[number]}")

        await get(connection, 0)
        first_s = samples[0]
        await connection.close()
        checked = range(0, len(table.versions), 100)
        checked_s = await for_each(running.store_port, "lookups after a kill", checked, get, connections=2, window=8)
        return {
            "ready_s": round(running.ready_s, 2),
            "first_get_s": round(first_s, 3),
            "gets_checked": len(checked),
            "gets_per_s": round(len(checked) / checked_s),
            "get": percentiles_ms(samples[1:]),
            **memory_mb(running.pid),
        }


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--keys", type=int, default=1_000_000)
    options.add_argument("--value-bytes", type=int, default=100)
    options.add_argument("--window", type=int, default=4, help="batches under way on each of two connections")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--profile", type=Path, help="run the server under cProfile; the profile goes to this file")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.keys, arguments.seconds = 2000, 0.2
    run(measure(arguments))


if __name__ == "__main__":
    main()
