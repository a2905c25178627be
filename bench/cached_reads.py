"""Reads over TCP of data that the server's cache holds, beside what a bare socket of this machine carries.

    python bench/cached_reads.py --megabytes 200

The baseline is a process that sends the same bytes over a plain socket to one that throws them away: what the network
of one machine can do at all with the same two cores.
"""

from __future__ import annotations

import argparse
import time

from _common import cpu_s, memory_mb, parser, percentiles_ms, raw_disk, report, server, work_directory
from _load import AppendLoad, block_of
from _loopback import bare_socket_mb_per_s
from _wire import ask, connect, for_each, run, say
from penstock.model.segments import READ_LENGTH_MAX, Buffer
from penstock.wire.commands import CreateSegment, ReadSegment, SegmentCreated, SegmentRead
from penstock.wire.connection import WireConnection

SEGMENT = "bench/cached/0.#epoch.0"
BLOCK_EVENTS = 64
EVENT_BYTES = 1000


async def read_once(connection: WireConnection, offset: int, length: int) -> Buffer:
    """Return what one read answers."""
    reply = await ask(connection, lambda id_: ReadSegment(SEGMENT, offset, length, "", id_), SegmentRead)
    assert isinstance(reply, SegmentRead)
    return reply.buffer


async def measure(arguments: argparse.Namespace) -> None:
    """Write, read again and again, print the report."""
    block = block_of(EVENT_BYTES, BLOCK_EVENTS)
    step = len(block)
    count = max(1, arguments.megabytes * 1_000_000 // step)
    length = count * step
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        bare = bare_socket_mb_per_s(length * 4)
        with server(directory) as running:
            connection = await connect(running.store_port)
            await ask(connection, lambda id_: CreateSegment(id_, SEGMENT, 0, 0, ""), SegmentCreated)
            await connection.close()
            load = AppendLoad({running.store_port: [SEGMENT]}, writers=1, block=block, event_count=BLOCK_EVENTS)
            await load.set_up(64)
            say(f"{length / 1e6:.0f} MB written in {await load.run_blocks(count):.1f} s")
            await load.close()
            samples: list[float] = []
            read_bytes = 0
            read_length = min(READ_LENGTH_MAX, arguments.read_bytes)
            is_checked = True

            async def read(connection: WireConnection, number: int) -> None:
                nonlocal read_bytes
                offset = number * read_length % length
                end = min(length, offset + read_length)
                while offset < end:
                    begin_s = time.perf_counter()
                    data = await read_once(connection, offset, end - offset)
                    samples.append(time.perf_counter() - begin_s)
                    at = offset % step
                    if is_checked and bytes(data) != (block * (len(data) // step + 2))[at : at + len(data)]:
                        raise SystemExit(f"read at {offset}: not what was written")
                    offset += len(data)
                    read_bytes += len(data)

            reads = range(-(-length // read_length))
            lanes = {"connections": arguments.connections, "window": arguments.window}
            await for_each(running.store_port, "first pass, compared", reads, read, **lanes)
            is_checked = False
            read_bytes = 0
            samples.clear()
            before_s, before_client_s, took_s = cpu_s(running.pid), time.process_time(), 0.0
            while took_s < arguments.seconds:
                took_s += await for_each(running.store_port, "reads", reads, read, **lanes)
            rate = round(read_bytes / took_s / 1e6, 1)
            report(
                "cached-reads",
                {
                    "segment_mb": round(length / 1e6, 1),
                    "connections": arguments.connections,
                    "reads_under_way": arguments.window,
                    "read_bytes_max": read_length,
                    "mb_per_s": rate,
                    "bare_socket_mb_per_s": bare,
                    "to_bare_socket": round(rate / bare, 3),
                    "read": percentiles_ms(samples),
                    "server_cpu_s": round(cpu_s(running.pid) - before_s, 2),
                    "client_cpu_s": round(time.process_time() - before_client_s, 2),
                    "server_memory": memory_mb(running.pid),
                    "raw_disk": disk,
                },
            )


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--megabytes", type=int, default=200, help="length of the segment; less than the cache")
    options.add_argument("--read-bytes", type=int, default=1 << 20)
    options.add_argument("--connections", type=int, default=1)
    options.add_argument("--window", type=int, default=3, help="reads under way on each connection")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.megabytes, arguments.seconds = 5, 0.2
    run(measure(arguments))


if __name__ == "__main__":
    main()
