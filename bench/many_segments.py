"""Many segments in one container: created, appended to and read back, in the memory of few.

    python bench/many_segments.py                       # 100 000 segments
    python bench/many_segments.py --segments 1000       # as many as fit: what the others are compared with

All settings are the default ones, but that there is one container. Every segment has a writer of its own, as a client
with a stream of that many segments would. The phases run over all segments in order, so that each segment was put away
long before it is used again: the worst order there is for whatever keeps some in memory. The baseline is the same with
1000 segments, which all stay in memory, on a fresh server in the same run.
"""

from __future__ import annotations

import argparse
import struct
from pathlib import Path

from _common import cpu_s, memory_mb, parser, raw_disk, report, server, work_directory
from _wire import ask, for_each, run, say
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
)
from penstock.wire.connection import WireConnection


def name_of(number: int) -> str:
    """Return a segment's name."""
    return f"bench/many/{number}.#epoch.0"


def event_of(number: int, size: int) -> bytes:
    """Return a segment's event, framed, which no other segment has."""
    payload = struct.pack(">Q", number) * (size // 8 + 1)
    return struct.pack(">ii", 0, size) + payload[:size]


async def phases(
    arguments: argparse.Namespace, directory: Path, segment_count: int, profile: Path | None = None
) -> dict[str, object]:
    """Run all phases on a fresh server; return rates and memory."""
    size = arguments.event_bytes
    lanes = {"connections": arguments.connections, "window": arguments.window, "per_connection_max": 4000}
    numbers = range(segment_count)
    figures: dict[str, object] = {"segments": segment_count}

    async def create(connection: WireConnection, number: int) -> None:
        await ask(connection, lambda id_: CreateSegment(id_, name_of(number), 0, 0, ""), SegmentCreated)

    async def append(connection: WireConnection, number: int) -> None:
        writer = struct.pack(">QQ", 1, number)
        await ask(connection, lambda id_: SetupAppend(id_, writer, name_of(number), ""), AppendSetup)
        data = event_of(number, size)
        await ask(connection, lambda id_: AppendBlockEnd(writer, len(data), data, 1, 1, id_), DataAppended)

    async def read(connection: WireConnection, number: int) -> None:
        reply = await ask(connection, lambda id_: ReadSegment(name_of(number), 0, size + 8, "", id_), SegmentRead)
        assert isinstance(reply, SegmentRead)
        if bytes(reply.buffer) != event_of(number, size):
            raise SystemExit(f"{name_of(number)}: read {len(reply.buffer)} bytes that are not what was written")

    async def info(connection: WireConnection, number: int) -> None:
        reply = await ask(connection, lambda id_: GetStreamSegmentInfo(id_, name_of(number), ""), StreamSegmentInfo)
        assert isinstance(reply, StreamSegmentInfo)
        if reply.write_offset != size + 8:
            raise SystemExit(f"{name_of(number)} has {reply.write_offset} bytes, {size + 8} were written")

    with server(directory, "--containers", "1", is_observed=True, profile=profile) as running:
        figures["memory_at_start"] = memory_mb(running.pid)
        phase_figures: dict[str, object] = {}
        for what, work in (("create", create), ("append", append), ("read", read), ("info", info)):
            before_s = cpu_s(running.pid)
            took_s = await for_each(running.store_port, f"{segment_count:,} segments, {what}", numbers, work, **lanes)
            counts = running.counts()[0]
            phase_figures[what] = {
                "segments_per_s": round(segment_count / took_s),
                "seconds": round(took_s, 1),
                "server_cpu_s": round(cpu_s(running.pid) - before_s, 1),
                **memory_mb(running.pid),
                **counts,
                "inactive_segments": segment_count - counts["active_segments"],
            }
            say(f"{what}: {phase_figures[what]}")
        figures["phases"] = phase_figures
        if profile is None:
            running.kill()
    if profile is None:
        with server(directory, "--containers", "1", is_observed=True) as running:
            figures["ready_after_kill_s"] = round(running.ready_s, 2)
            await for_each(
                running.store_port, "after a kill, info", numbers[:: max(1, segment_count // 1000)], info, **lanes
            )
            figures["memory_after_kill"] = memory_mb(running.pid)
    return figures


async def measure(arguments: argparse.Namespace) -> None:
    """Measure baseline and load; print the report."""
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        baseline = {} if arguments.profile else await phases(arguments, directory / "few", arguments.baseline_segments)
        many = await phases(arguments, directory / "many", arguments.segments, arguments.profile)
        report(
            "many-segments",
            {
                "event_bytes": arguments.event_bytes,
                "connections": arguments.connections,
                "window": arguments.window,
                "many": many,
                "baseline": baseline,
                "raw_disk": disk,
            },
        )


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--segments", type=int, default=100_000)
    options.add_argument("--baseline-segments", type=int, default=1000)
    options.add_argument("--event-bytes", type=int, default=100)
    options.add_argument("--connections", type=int, default=8)
    options.add_argument("--window", type=int, default=64, help="requests under way on each connection")
    options.add_argument("--profile", type=Path, help="run the server under cProfile; the profile goes to this file")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.segments, arguments.baseline_segments = 300, 100
    run(measure(arguments))


if __name__ == "__main__":
    main()
