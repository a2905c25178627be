"""Latency of small appends, from write to acknowledgement (synced), and end to end to a tail reader.

    python bench/latency.py --rate 10000     # events per second
    python bench/latency.py --rate 0         # one at a time: each waits for the one before

With `--read` the time from the write to the arrival at a reader in the same process is measured too.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import time
from functools import partial

import penstock
import penstock.aio
from _common import cpu_s, parser, percentiles_ms, raw_disk, report, server, work_directory
from penstock.client.writing.ack import when_done

STREAM = "bench/latency"


async def measure(uri: str, arguments: argparse.Namespace) -> dict[str, object]:
    """Run the load and return the samples' percentiles."""
    acknowledged_s: list[float] = []
    arrived_s: list[float] = []
    clock = time.perf_counter
    filler = bytes(max(0, arguments.event_bytes - 8))
    async with penstock.aio.connect(uri) as client:
        await client.create_stream(STREAM, scaling=penstock.Scaling.fixed(1))
        sent = 0

        async def read() -> None:
            async with client.segment_reader(f"{STREAM}/0.#epoch.0", 0) as reader:
                rest = b""
                step = arguments.event_bytes + 8
                async for block in reader:
                    data = rest + bytes(block)
                    now = clock()
                    whole = len(data) // step * step
                    arrived_s.extend(
                        now - struct.unpack_from(">d", data, offset + 8)[0] for offset in range(0, whole, step)
                    )
                    rest = data[whole:]

        reading = asyncio.create_task(read()) if arguments.read else None
        async with client.event_writer(STREAM) as writer:
            stop = clock() + arguments.seconds
            if arguments.rate == 0:
                while clock() < stop:
                    start = clock()
                    done = asyncio.Event()
                    ack = await writer.write(struct.pack(">d", start) + filler)
                    when_done(ack, done.set)
                    await done.wait()
                    if ack.error is not None:
                        raise ack.error
                    acknowledged_s.append(clock() - start)
                    sent += 1
            else:
                begin = clock()

                def note(start: float) -> None:
                    acknowledged_s.append(clock() - start)

                while (now := clock()) < stop:
                    while sent < (now - begin) * arguments.rate:
                        start = clock()
                        ack = await writer.write(struct.pack(">d", start) + filler)
                        when_done(ack, partial(note, start))
                        sent += 1
                    await asyncio.sleep(0.001)
            await writer.flush()
        if reading is not None:
            await asyncio.sleep(0.2)
            reading.cancel()
    skip = min(len(acknowledged_s) // 10, arguments.rate or 100)
    figures: dict[str, object] = {"events": sent, "append_to_ack": percentiles_ms(acknowledged_s[skip:])}
    if arguments.read:
        figures["write_to_reader"] = percentiles_ms(arrived_s[skip:])
    return figures


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--rate", type=int, default=10_000)
    options.add_argument("--event-bytes", type=int, default=100)
    options.add_argument("--read", action="store_true")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.seconds, arguments.rate = 0.5, min(arguments.rate, 1000)
    with work_directory(arguments) as directory, server(directory) as running:
        disk = raw_disk(directory)
        before_s, before_client_s = cpu_s(running.pid), time.process_time()
        figures = asyncio.run(measure(running.uri, arguments))
        report(
            "latency",
            {
                "rate_per_s": arguments.rate,
                "event_bytes": arguments.event_bytes,
                **figures,
                "server_cpu_s": round(cpu_s(running.pid) - before_s, 2),
                "client_cpu_s": round(time.process_time() - before_client_s, 2),
                "raw_disk": disk,
            },
        )


if __name__ == "__main__":
    main()
