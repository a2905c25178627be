"""Recovery: how long a killed server takes to serve again, by the length of the appends that its log holds.

    python bench/recovery.py                          # 1 GB each of appends of 1, 8 and 64 KB
    python bench/recovery.py --megabytes 200 --block-bytes 1000
    python bench/recovery.py --megabytes 4 --block-bytes 100 --window 1

Nothing is moved to long-term storage meanwhile (settings see to that), so that the log holds everything and nothing of
it can be cut. Before each measurement the log's files are dropped from the page cache. Phases: `read` is the files
read from one end to the other, the baseline; `frames` is the log opened and all frames read and checked, without
a container; `replay` is the log replayed into a container's state, in CPU time of this process, with the longest
turn of the event loop meanwhile (CPU time of its thread, so that a busy machine does not count), and beside it what
reading the same files alone takes, in blocks of 4 KiB, which is what a single append lies in; `ready` is a whole
server, from its process to its ready line, and `ready_empty` one without data.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path

from _common import cpu_s, memory_mb, parser, raw_disk, report, server, work_directory
from _load import AppendLoad, block_of
from _wire import ask, connect, run, say
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.container.log.recovery import recover
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import CacheSettings
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.wire.commands import CreateSegment, GetStreamSegmentInfo, SegmentCreated, StreamSegmentInfo

SEGMENT = "bench/recovery/0.#epoch.0"
EVENT_BYTES = 100
#: Flushing begins when so much waits, or waits for so long, or the cache is so full: never.
SETTINGS = {
    "segment_store.container.flush_bytes": 1 << 40,
    "segment_store.container.flush_age_s": 1e9,
    "segment_store.container.flush_pressure_percent": 1000,
    "segment_store.throttle.backlog_operations_max": 1 << 40,
    "segment_store.throttle.backlog_percent": 100,
}


def log_files(directory: Path) -> list[Path]:
    """Return the files of the logs."""
    return sorted(path for path in (directory / "store" / "tier1").rglob("*") if path.is_file())


def forget_pages(paths: list[Path]) -> None:
    """Ask the kernel to drop files from the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_files(paths: list[Path]) -> float:
    """Read files through; return the seconds."""
    buffer = bytearray(1 << 20)
    begin_s = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - begin_s


async def read_frames(directory: Path) -> dict[str, object]:
    """Open the log as a container does and read all frames."""
    runtime = real_runtime(8)
    log = LocalLogFactory(str(directory / "store" / "tier1"), runtime).create(0)
    begin_s = time.perf_counter()
    frame_count = byte_count = 0
    try:
        await log.open()
        open_s = time.perf_counter() - begin_s
        async for frame in log.frames():
            frame_count += 1
            byte_count += len(frame.data)
        took_s = time.perf_counter() - begin_s
        await log.close()
    finally:
        await runtime.work.close()
    return {
        "frames_s": round(took_s, 2),
        "open_s": round(open_s, 3),
        "frame_count": frame_count,
        "frame_mb": round(byte_count / 1e6, 1),
    }


async def replay_log(directory: Path) -> dict[str, object]:
    """Replay the log into an empty state; return the records per CPU second and the longest turn of the loop."""
    runtime = real_runtime(8)
    log = LocalLogFactory(str(directory / "store" / "tier1"), runtime).create(0)
    state = ContainerState(0, Cache(CacheSettings(bytes_max=1 << 40)), ContainerSettings())
    turn_s_max = 0.0

    async def watch() -> None:
        nonlocal turn_s_max
        before_s = time.thread_time()
        while True:
            await asyncio.sleep(0.0005)
            now_s = time.thread_time()
            turn_s_max = max(turn_s_max, now_s - before_s)
            before_s = now_s

    try:
        await log.open()
        watching = asyncio.create_task(watch())
        begin_s = time.process_time()
        recovered = await recover(log, state)
        took_s = time.process_time() - begin_s
        watching.cancel()
        await log.close()
    finally:
        await runtime.work.close()
    # What the kernel takes to hand out the same bytes: the files are in the page cache by now.
    files = log_files(directory)
    begin_s = time.process_time()
    read_files(files)
    read_cpu_s = time.process_time() - begin_s
    return {
        "read_cpu_s": round(read_cpu_s, 3),
        "read_blocks_per_cpu_s": round(sum(path.stat().st_size for path in files) / 4096 / max(read_cpu_s, 1e-6)),
        "replay_cpu_s": round(took_s, 2),
        "replay_records_per_cpu_s": round(recovered.operation_count / max(took_s, 1e-6)),
        "replay_turn_ms_max": round(turn_s_max * 1e3, 1),
    }


async def one_size(
    arguments: argparse.Namespace, directory: Path, block_bytes: int, empty_s: float
) -> dict[str, object]:
    """Fill a log with appends of about `block_bytes`, kill the server, time its way back."""
    event_count = max(1, block_bytes // (EVENT_BYTES + 8))
    block = block_of(EVENT_BYTES, event_count)
    count = arguments.megabytes * 1_000_000 // len(block)
    cache_mb = str(max(512, arguments.megabytes * 2))
    options = ("--containers", "1", "--cache-mb", cache_mb)
    with server(directory, *options, settings=SETTINGS) as running:
        connection = await connect(running.store_port)
        await ask(connection, lambda id_: CreateSegment(id_, SEGMENT, 0, 0, ""), SegmentCreated)
        await connection.close()
        load = AppendLoad({running.store_port: [SEGMENT]}, writers=1, block=block, event_count=event_count)
        await load.set_up(arguments.window or max(8, 4_000_000 // len(block)))
        write_s = await load.run_blocks(count)
        say(f"{count:,} appends of {len(block):,} bytes written in {write_s:.1f} s")
        length = count * len(block)
        running.kill()
    files = log_files(directory)
    files_mb = round(sum(path.stat().st_size for path in files) / 1e6, 1)
    forget_pages(files)
    read_s = read_files(files)
    forget_pages(files)
    frames = await read_frames(directory)
    replay = await replay_log(directory)
    forget_pages(log_files(directory))
    with server(directory, *options, settings=SETTINGS) as running:
        connection = await connect(running.store_port)
        reply = await ask(connection, lambda id_: GetStreamSegmentInfo(id_, SEGMENT, ""), StreamSegmentInfo)
        await connection.close()
        assert isinstance(reply, StreamSegmentInfo)
        if reply.write_offset != length:
            raise SystemExit(f"{reply.write_offset} bytes came back, {length} were acknowledged")
        figures: dict[str, object] = {
            "append_bytes": len(block),
            "appends": count,
            "log_files_mb": files_mb,
            "read_s": round(read_s, 2),
            **frames,
            **replay,
            "ready_s": round(running.ready_s, 2),
            "ready_empty_s": round(empty_s, 2),
            "replay_and_start_s": round(running.ready_s - empty_s - float(str(frames["frames_s"])), 2),
            "mb_per_s": round(length / max(1e-3, running.ready_s - empty_s) / 1e6, 1),
            "server_cpu_s": round(cpu_s(running.pid), 2),
            **memory_mb(running.pid),
        }
        running.kill()
    say(str(figures))
    return figures


async def measure(arguments: argparse.Namespace) -> None:
    """Measure each length of appends; print the report."""
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory / "empty", "--containers", "1") as running:
            empty_s = running.ready_s
        sizes = []
        for block_bytes in arguments.block_bytes:
            sizes.append(await one_size(arguments, directory / str(block_bytes), block_bytes, empty_s))
            for path in log_files(directory / str(block_bytes)):
                path.unlink()
        report(
            "recovery", {"event_bytes": EVENT_BYTES, "log_mb": arguments.megabytes, "sizes": sizes, "raw_disk": disk}
        )


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--megabytes", type=int, default=1000, help="bytes of appends that the log holds")
    options.add_argument("--block-bytes", type=int, nargs="+", default=[1000, 8000, 64_000], help="lengths of appends")
    options.add_argument("--window", type=int, default=0, help="blocks under way; 0: 4 MB, 1: a frame each")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.megabytes, arguments.block_bytes = 5, [8000]
    run(measure(arguments))


if __name__ == "__main__":
    main()
