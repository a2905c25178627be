"""Events per second of client CPU: written one by one and many at once, read one by one and as Arrow batches.

    python bench/client_rates.py                              # 400 000 events of 100 bytes in each measurement
    python bench/client_rates.py --event-bytes 20 --mixed     # of lengths that differ

A server in a process of its own takes and gives; what is said per second is per second of this process's CPU, all of
its threads, from the first call until everything is acknowledged or read. A busy machine changes that little, unlike
the rates by the clock beside it. The baseline in the same run: framing the same events, and cutting them out again, as
plain function calls without a client.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pyarrow as pa

import penstock
from _common import parser, percentiles_ms, raw_disk, report, server, work_directory
from _wire import run, say
from penstock import aio
from penstock.model.events import frame_events, split_events

_BATCH_BYTES = 4 * 1024 * 1024


class Rates:
    """Collects measurements by name; each is of `count` events."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._cpu_s: dict[str, list[float]] = {}
        self._wall_s: dict[str, list[float]] = {}

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Note what a block takes."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        yield
        self._cpu_s.setdefault(name, []).append(time.process_time() - cpu_s)
        self._wall_s.setdefault(name, []).append(time.perf_counter() - wall_s)
        say(f"{name}: {self.count / self._cpu_s[name][-1]:,.0f}/s of CPU")

    def figures(self) -> dict[str, object]:
        """Return, for each name, events per second of CPU (the median round, the worst, the best) and by the clock."""
        found: dict[str, object] = {}
        for name, rounds in self._cpu_s.items():
            ordered = sorted(rounds)
            wall_s = sorted(self._wall_s[name])
            found[name] = {
                "per_cpu_s": round(self.count / ordered[len(ordered) // 2]),
                "per_cpu_s_worst": round(self.count / ordered[-1]),
                "per_cpu_s_best": round(self.count / ordered[0]),
                "per_s_by_the_clock": round(self.count / wall_s[len(wall_s) // 2]),
                "round_cpu": percentiles_ms(rounds),
            }
        return found


def make_events(options: argparse.Namespace) -> list[bytes]:
    """Return the events of a round."""
    rng = random.Random(1)
    filler = rng.randbytes(options.event_bytes * 4)
    if not options.mixed:
        return [filler[at % 256 :][: options.event_bytes] for at in range(options.events)]
    lengths = (rng.randint(options.event_bytes // 2, options.event_bytes * 3 // 2) for _ in range(options.events))
    return [filler[at % 256 :][:length] for at, length in enumerate(lengths)]


async def write(uri: str, events: list[bytes], keys: list[str], rates: Rates, rounds: int) -> None:
    """Write `events` in all ways of the asyncio client, to one segment, and by key to four."""
    array, key_array = pa.array(events), pa.array(keys)
    async with aio.connect(uri) as client:
        await client.create_stream("bench/one")
        await client.create_stream("bench/four", scaling=penstock.Scaling.fixed(4))
        async with client.event_writer("bench/one") as one, client.event_writer("bench/four") as four:
            for _ in range(rounds):
                with rates.measure("write_many"):
                    await one.write_many(events)
                    await one.flush()
                with rates.measure("write_many, Arrow"):
                    await one.write_many(array)
                    await one.flush()
                with rates.measure("write_many, a key each"):
                    await four.write_many(events, keys)
                    await four.flush()
                with rates.measure("write_many, Arrow, a key each"):
                    await four.write_many(array, key_array)
                    await four.flush()
                with rates.measure("write"):
                    for event in events:
                        await one.write(event)
                    await one.flush()
                with rates.measure("write, a key each"):
                    for event, key in zip(events, keys, strict=True):
                        await four.write(event, key)
                    await four.flush()


def write_blocking(uri: str, events: list[bytes], rates: Rates, rounds: int) -> None:
    """Write `events` one by one with the blocking client."""
    with penstock.connect(uri) as client, client.event_writer("bench/one") as writer:
        for _ in range(rounds):
            with rates.measure("write, blocking"):
                for event in events:
                    writer.write(event)
                writer.flush()


@asynccontextmanager
async def reading(client: aio.Client, group: str) -> AsyncIterator[aio.Reader]:
    """Open the only reader of a new group at the head."""
    async with client.reader_group(group, ["bench/read"]) as readers, readers.reader() as reader:
        yield reader


async def read(uri: str, events: list[bytes], rates: Rates, rounds: int) -> None:
    """Read a stream that has `events`, one by one and in Arrow batches."""
    async with aio.connect(uri) as client:
        await client.create_stream("bench/read")
        async with client.event_writer("bench/read") as writer:
            await writer.write_many(events)
        for number in range(rounds):
            async with reading(client, f"one-{number}") as reader:
                with rates.measure("iterate"):
                    count = 0
                    async for _ in reader:
                        count += 1
                        if count == len(events):
                            break
            async with reading(client, f"many-{number}") as reader:
                with rates.measure("read_batch and to_arrow"):
                    count = 0
                    while count < len(events):
                        batch = await reader.read_batch(_BATCH_BYTES, 30)
                        assert batch is not None
                        count += batch.to_arrow().num_rows


def read_blocking(uri: str, events: list[bytes], rates: Rates, rounds: int) -> None:
    """Read the same stream one by one with the blocking client."""
    with penstock.connect(uri) as client:
        for number in range(rounds):
            with (
                client.reader_group(f"blocking-{number}", ["bench/read"]) as group,
                group.reader() as reader,
                rates.measure("iterate, blocking"),
            ):
                for count, _ in enumerate(reader, start=1):
                    if count == len(events):
                        break


def baseline(events: list[bytes], rates: Rates, rounds: int) -> None:
    """Frame and cut the same events without a client."""
    blocks = [frame_events(events[at : at + 8192]) for at in range(0, len(events), 8192)]
    for _ in range(rounds):
        with rates.measure("baseline: frame_events"):
            for at in range(0, len(events), 8192):
                frame_events(events[at : at + 8192])
        with rates.measure("baseline: split_events"):
            for block in blocks:
                split_events(block)


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--events", type=int, default=400_000)
    options.add_argument("--event-bytes", type=int, default=100)
    options.add_argument("--mixed", action="store_true", help="events of half to one and a half of that length")
    options.add_argument("--keys", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=5)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.events, arguments.rounds = 5000, 1
    events = make_events(arguments)
    keys = [f"key-{number % arguments.keys}" for number in range(len(events))]
    rates = Rates(len(events))
    steps: list[Callable[[str], object]] = [
        lambda uri: run(write(uri, events, keys, rates, arguments.rounds)),
        lambda uri: write_blocking(uri, events, rates, arguments.rounds),
        lambda uri: run(read(uri, events, rates, arguments.rounds)),
        lambda uri: read_blocking(uri, events, rates, arguments.rounds),
    ]
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        baseline(events, rates, arguments.rounds)
        with server(directory) as running:
            for step in steps:
                step(running.uri)
    report(
        "client_rates",
        {
            "events": len(events),
            "event_bytes": arguments.event_bytes,
            "mixed_lengths": arguments.mixed,
            "rates": rates.figures(),
            "raw_disk": disk,
        },
    )


if __name__ == "__main__":
    main()
