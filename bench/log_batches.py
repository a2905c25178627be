"""Small batches of several logs beside a busy event loop: what each batch costs in threads, switches and CPU time.

    python bench/log_batches.py                              # four logs, 2000 batches each
    python bench/log_batches.py --frame-bytes 1000000 --batches 200
    python bench/log_batches.py --directory /dev/shm         # a disk that costs nothing: the threads alone
    python bench/log_batches.py --threads                    # not through io_uring
    python bench/log_batches.py --two-calls                  # by threads that write and sync in two calls

Each log gets a single append at a time, as when many clients write a little: so each append is a batch. The loop works
meanwhile without a pause, in small pieces, as that of a server under load. `log_threads` is what the threads that write
and sync used, ours and the kernel's workers: their CPU time and their voluntary context switches for each batch (a
thread that waits for the interpreter's lock switches; a machine that has other things to do makes it wait longer, and
more often). `process_cpu_s` is all of the process, with the loop, which is busy for as long as that takes.
`device_bytes_per_byte` is what the kernel wrote to the device for each byte that was appended.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

from _common import parser, percentiles_ms, raw_disk, report, work_directory
from _wire import run
from penstock.runtime.disk import LocalFile
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.tier1.durable_log import DurableLog
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_settings import LocalLogSettings

#: Steps of a loop in Python: some 50 us.
_PIECE = 2000


def log_threads() -> list[Path]:
    """Return the threads that write and sync batches: ours, and the kernel's workers for this process."""
    tasks = Path("/proc/self/task")
    ours = [
        tasks / str(thread.native_id)
        for thread in threading.enumerate()
        if "-writes" in thread.name and thread.native_id
    ]
    return ours + [task for task in tasks.iterdir() if (task / "comm").read_text().startswith("iou-wrk")]


def thread_figures() -> tuple[float, int, int]:
    """Return the CPU seconds of these threads, and their voluntary and involuntary context switches."""
    cpu_s, voluntary, involuntary = 0.0, 0, 0
    for place in log_threads():
        cpu_s += int((place / "schedstat").read_text().split()[0]) / 1e9
        for line in (place / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                voluntary += int(line.split()[1])
            elif line.startswith("nonvoluntary_ctxt_switches"):
                involuntary += int(line.split()[1])
    return cpu_s, voluntary, involuntary


def device_bytes() -> int:
    """Return the bytes that this process has caused to be written to a device."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


async def stay_busy() -> None:
    """Keep the loop busy, and let others have their turns."""
    while True:
        sum(range(_PIECE))
        await asyncio.sleep(0)


async def append_alone(log: DurableLog, payload: bytes, count: int, took_s: list[float]) -> None:
    """Append again and again, each when the one before is durable."""
    for _ in range(count):
        begin_s = time.perf_counter()
        await log.append([payload], len(payload))
        took_s.append(time.perf_counter() - begin_s)


async def measure(arguments: argparse.Namespace) -> None:
    """Measure, print the report."""
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        runtime = real_runtime(8)
        settings = LocalLogSettings()
        if arguments.threads or arguments.two_calls:
            settings = replace(settings, threadless_batch_bytes_max=0)
        LocalFile.knows_synced_writes = LocalFile.knows_synced_writes and not arguments.two_calls
        factory = LocalLogFactory(str(Path(directory) / "tier1"), runtime, settings)
        logs = [factory.create(number) for number in range(arguments.logs)]
        for log in logs:
            await log.open()
        payload = os.urandom(arguments.frame_bytes)
        await asyncio.gather(*(log.append([payload], len(payload)) for log in logs))
        busy = asyncio.create_task(stay_busy())
        took_s: list[float] = []
        before, bytes_before = thread_figures(), device_bytes()
        process_before_s = time.process_time()
        await asyncio.gather(*(append_alone(log, payload, arguments.batches, took_s) for log in logs))
        cpu_s, voluntary, involuntary = (now - then for now, then in zip(thread_figures(), before, strict=True))
        process_s = time.process_time() - process_before_s
        busy.cancel()
        for log in logs:
            await log.close()
        written = device_bytes() - bytes_before
        await runtime.work.close()
    count = len(took_s)
    report(
        "log_batches",
        {
            "logs": arguments.logs,
            "frame_bytes": arguments.frame_bytes,
            "batches": count,
            "append_to_durable": percentiles_ms(took_s),
            "by": "two calls" if arguments.two_calls else "threads" if arguments.threads else "whatever is at hand",
            "process_cpu_s": round(process_s, 2),
            "log_threads": {
                "cpu_us_per_batch": round(cpu_s / count * 1e6, 1),
                "voluntary_switches_per_batch": round(voluntary / count, 2),
                "involuntary_switches_per_batch": round(involuntary / count, 2),
            },
            "device_bytes_per_byte": round(written / (count * arguments.frame_bytes), 2),
            "raw_disk": disk,
        },
    )


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--logs", type=int, default=4)
    options.add_argument("--threads", action="store_true", help="write by threads, also where io_uring is at hand")
    options.add_argument("--two-calls", action="store_true", help="by threads, which write and then sync")
    options.add_argument("--batches", type=int, default=2000, help="of each log")
    options.add_argument("--frame-bytes", type=int, default=800)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.batches = 50
    run(measure(arguments))


if __name__ == "__main__":
    main()
