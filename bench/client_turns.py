"""How long a writer or reader holds the event loop at most, and how much a reader reads ahead.

    python bench/client_turns.py

Another task takes a turn whenever it can. The CPU time of the loop's thread between two of its turns is what it was
held for: a busy machine changes that little. What the garbage collector took of it is said beside it, as that depends
on what else the program keeps; `idle` is the baseline, the same loop with nothing to do.

`seal` is the worst case for a writer: the server is stopped (SIGSTOP) while all that a writer may have unacknowledged
is on its way to a segment that is sealed, and goes on then; all of it has to move to two other segments.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pyarrow as pa

import penstock
from _common import Server, parser, percentiles_ms, raw_disk, report, server, work_directory
from _wire import run, say
from penstock import aio
from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.writing.event_writer import EventWriter
from penstock.model.names import SegmentId, segment_name

READ_AHEAD_BYTES = 8 * 1024 * 1024
#: Ids of the segments that follow begin here: those of one stream are all different.
_AFTER = 100


class Turns:
    """Measures the turns of the loop while a block runs."""

    def __init__(self) -> None:
        self.figures: dict[str, object] = {}
        self._collecting_s = 0.0
        self._began_s = 0.0
        gc.callbacks.append(self._collector)

    def _collector(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began_s = time.thread_time()
        else:
            self._collecting_s += time.thread_time() - self._began_s

    @asynccontextmanager
    async def measure(self, name: str) -> AsyncIterator[None]:
        """Note how long the loop is held while the block runs."""
        held_s: list[float] = []
        collected_s: list[float] = []
        ticking = asyncio.create_task(self._tick(held_s, collected_s))
        await asyncio.sleep(0)
        try:
            yield
        finally:
            ticking.cancel()
            await asyncio.wait([ticking])
        own_s = [held - collected for held, collected in zip(held_s, collected_s, strict=True)]
        self.figures[name] = {
            "turns": len(held_s),
            "held": percentiles_ms(held_s),
            "without_collector": percentiles_ms(own_s),
            "collector_max_ms": round(max(collected_s, default=0.0) * 1e3, 3),
        }
        say(f"{name}: {self.figures[name]}")

    async def _tick(self, held_s: list[float], collected_s: list[float]) -> None:
        before_s, collected_before_s = time.thread_time(), self._collecting_s
        while True:
            await asyncio.sleep(0)
            now_s, collected_now_s = time.thread_time(), self._collecting_s
            held_s.append(now_s - before_s)
            collected_s.append(collected_now_s - collected_before_s)
            before_s, collected_before_s = now_s, collected_now_s


async def write(client: aio.Client, turns: Turns, count: int, length: int) -> None:
    """Write in all ways, never waiting for anything else."""
    await client.create_stream("bench/turns", scaling=penstock.Scaling.fixed(4))
    events = [bytes(length)] * count
    keys = [f"key-{number % 1000}" for number in range(count)]
    array, key_array = pa.array(events), pa.array(keys)
    large = pa.array([bytes(100 * length)] * (count // 100))
    gc.collect()
    gc.freeze()  # What the collector has to go through is then what the client keeps, and not this command.
    async with client.event_writer("bench/turns") as writer:
        await writer.write_many(array[:1], key_array[:1])  # The first array loads what they need.
        async with turns.measure("write"):
            for event, key in zip(events, keys, strict=True):
                await writer.write(event, key)
        await writer.flush()
        async with turns.measure("write_many, a key each"):
            await writer.write_many(events, keys)
        await writer.flush()
        async with turns.measure("write_many, Arrow, a key each"):
            await writer.write_many(array, key_array)
        await writer.flush()
        async with turns.measure("write_many, Arrow, large events"):
            await writer.write_many(large)
        await writer.flush()
        async with turns.measure("write_many of ten, over and over"):
            for at in range(0, count, 10):
                await writer.write_many(events[at : at + 10])
        await writer.flush()


class Split:
    """A stream of one segment that is followed by the two of another stream, as if it had been split."""

    name = "bench/before"

    def __init__(self, client: aio.Client) -> None:
        self._client = client

    async def segments(self) -> Sequence[SegmentRange]:
        return await self._client._controller_client.current_segments("bench", "before")

    async def successors(self, sealed: SegmentRange) -> Sequence[SegmentRange]:
        after = await self._client._controller_client.current_segments("bench", "after")
        return [replace(segment, segment_id=SegmentId(segment.segment_id + _AFTER)) for segment in after]

    def segment_name(self, segment: SegmentRange) -> str:
        return segment_name("bench", segment.stream, SegmentId(segment.segment_id % _AFTER))


async def seal(client: aio.Client, running: Server, turns: Turns, length: int, unacknowledged_bytes: int) -> None:
    """Let a segment be split while as much as may be is on its way to it."""
    await client.create_stream("bench/before")
    await client.create_stream("bench/after", scaling=penstock.Scaling.fixed(2))
    async with EventWriter(Split(client), client._open_pool(), client.settings, random.Random(1)) as writer:
        await (await writer.write(b"first"))
        await client.seal_stream("bench/before")
        running.process.send_signal(signal.SIGSTOP)
        try:
            written = 0
            while written < unacknowledged_bytes:
                writer._put(bytes(length), f"key-{written % 1000}")
                written += length + 8
                if not written % 1000:
                    await asyncio.sleep(0)
        finally:
            running.process.send_signal(signal.SIGCONT)
        async with turns.measure(f"seal with {written >> 20} MiB on the way"):
            await writer.flush()


async def read(client: aio.Client, turns: Turns, count: int, length: int, segments: int) -> dict[str, object]:
    """Read a stream of many segments slowly; return how much was held ahead at most."""
    stream = f"bench/read-{segments}"
    await client.create_stream(stream, scaling=penstock.Scaling.fixed(segments))
    async with client.event_writer(stream) as writer:
        await writer.write_many([bytes(length)] * count, [f"key-{number}" for number in range(count)])
    held_bytes_max = found = 0
    async with (
        client.reader_group(f"slow-{segments}", [stream]) as group,
        group.reader() as reader,
        turns.measure(f"read_batch, {segments} segments"),
    ):
        while found < count:
            batch = await reader.read_batch(64 * 1024, 30)
            assert batch is not None
            found += len(batch)
            held_bytes_max = max(held_bytes_max, reader.read_ahead_bytes)
    return {"segments": segments, "held_ahead_bytes_max": held_bytes_max, "setting_bytes": READ_AHEAD_BYTES}


async def measure(running: Server, options: argparse.Namespace, turns: Turns) -> list[dict[str, object]]:
    """Measure all of it."""
    settings = penstock.ClientSettings(reader_read_ahead_bytes_max=READ_AHEAD_BYTES)
    async with aio.connect(running.uri, settings) as client:
        async with turns.measure("idle"):
            await asyncio.sleep(min(options.seconds, 1.0))
        await write(client, turns, options.events, options.event_bytes)
        unacknowledged_bytes = client.settings.max_unacknowledged_bytes // (64 if options.quick else 1)
        await seal(client, running, turns, options.event_bytes, unacknowledged_bytes)
        return [
            await read(client, turns, options.events, options.event_bytes, segments) for segments in options.segments
        ]


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--events", type=int, default=400_000)
    options.add_argument("--event-bytes", type=int, default=100)
    options.add_argument("--segments", type=int, nargs="+", default=[1, 16, 128])
    arguments = options.parse_args()
    if arguments.quick:
        arguments.events, arguments.segments, arguments.seconds = 5000, [1, 4], 0.1
    turns = Turns()
    ahead: list[dict[str, object]] = []

    async def whole(running: Server) -> None:
        ahead.extend(await measure(running, arguments, turns))

    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory) as running:
            run(whole(running))
    report("client_turns", {"turns": turns.figures, "read_ahead": ahead, "raw_disk": disk})


if __name__ == "__main__":
    main()
