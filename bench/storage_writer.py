"""What moving data to long-term storage costs the server, by number of segments: counts, and CPU.

    python bench/storage_writer.py
    python bench/storage_writer.py --counts 1 100 1000 --megabytes 1000

In process, without clients: appends go to one container over local directories as fast as it lets them in, to all
segments in turn. What is counted: syncs of chunks and of their directories, syncs of the log, changes of records of
chunks and other operations of the container's own. CPU is that of the process, its threads included, per gigabyte of
appended data. As much as the `--warm-up` share of the data is written before: until the cache has filled, nothing has
to be moved. `--turns` adds the longest CPU time between two turns of another task, which takes CPU itself.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import time
from collections import Counter
from pathlib import Path

from _common import TurnWatch, parser, raw_disk, report, work_directory
from _wire import run, say
from penstock.model.sizes import MIB
from penstock.runtime.disk import LocalDisk, LocalFile
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage


class CountedFile(LocalFile):
    """A file whose syncs are counted."""

    counts: Counter[str]

    def sync(self) -> None:
        """See `DiskFile.sync`."""
        self.counts["log_syncs" if "/tier1/" in self.path else "chunk_syncs"] += 1
        super().sync()


class CountedDisk(LocalDisk):
    """A disk whose syncs are counted."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> LocalFile:
        """See `Disk.open`."""
        opened = super().open(path, create=create, exclusive=exclusive, writable=writable)
        file = CountedFile(path, opened._descriptor)
        file.counts = self.counts
        opened._descriptor = -1
        return file

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        if "/tier2" in path:
            self.counts["directory_syncs"] += 1
        super().sync_directory(path)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _ignore(error: BaseException | None) -> None:
    if error is not None:
        raise SystemExit(f"an append failed: {error}")


async def _append_all(container: SegmentContainer, names: list[str], data: bytes, byte_count: int, share: int) -> int:
    """Append to all segments in turn, as much as there is room for in each turn of the loop."""
    segments = [container.segment(name) for name in names]
    done = number = 0
    while done < byte_count:
        for _ in range(share):
            if container.back_pressure.must_wait():
                break
            container.acceptor.append(segments[number % len(segments)], AppendRequest(data), _ignore)
            number += 1
            done += len(data)
        else:
            await asyncio.sleep(0)
            continue
        await container.throttle.wait()
    return done


async def _measure(directory: Path, count: int, arguments: argparse.Namespace) -> dict[str, object]:
    disk = CountedDisk()
    runtime = Runtime(
        disk=disk, work=ThreadedWork(), rng=random.Random(1), wall_clock_ms=lambda: time.time_ns() // 1_000_000
    )
    settings = SegmentStoreSettings(container_count=1, cache=CacheSettings(bytes_max=arguments.cache_megabytes * MIB))
    (directory / "tier2").mkdir(parents=True)
    store = SegmentStore(
        logs=LocalLogFactory(str(directory / "tier1"), runtime),
        chunks=DirectoryChunkStorage(str(directory / "tier2"), runtime),
        runtime=runtime,
        settings=settings,
    )
    await store.start()
    try:
        (container,) = store.containers
        names = [f"bench/spread/{number}.#epoch.0" for number in range(count)]
        for at in range(0, count, 100):
            await asyncio.gather(*map(container.create, names[at : at + 100]))
        data = random.Random(1).randbytes(arguments.append_bytes)
        total = int(arguments.megabytes * 1e6)
        await _append_all(container, names, data, int(total * arguments.warm_up), arguments.appends_per_turn)
        stored_before = sum(container.segment(name).storage_length for name in names)
        counts_before = Counter(disk.counts)
        operations = container.pipeline.sequence_number
        before_s, loop_before_s, began_s = _cpu_s(), time.thread_time(), time.perf_counter()
        log_bytes_max = 0
        watch = TurnWatch()
        watching = asyncio.ensure_future(watch()) if arguments.turns else None
        done = 0
        while done < total:
            done += await _append_all(container, names, data, total // 20, arguments.appends_per_turn)
            log_bytes_max = max(log_bytes_max, container.checkpoints.log_bytes)
        if watching is not None:
            watching.cancel()
        cpu_s, loop_s, took_s = _cpu_s() - before_s, time.thread_time() - loop_before_s, time.perf_counter() - began_s
        counts = disk.counts - counts_before
        stored = sum(container.segment(name).storage_length for name in names) - stored_before
        operations = container.pipeline.sequence_number - operations - done // len(data)
        gigabytes, stored_gigabytes = done / 1e9, max(stored, 1) / 1e9
        turns = sorted(watch.turns_s)
        figures: dict[str, object] = {
            "segments": count,
            "cpu_s_per_gb": round(cpu_s / gigabytes, 2),
            "loop_cpu_s_per_gb": round(loop_s / gigabytes, 2),
            "stored_share": round(stored / done, 2),
            "chunk_syncs_per_gb": round(counts["chunk_syncs"] / stored_gigabytes),
            "directory_syncs_per_gb": round(counts["directory_syncs"] / stored_gigabytes),
            "log_syncs_per_gb": round(counts["log_syncs"] / gigabytes),
            "other_operations_per_gb": round(operations / stored_gigabytes),
            "log_mb_max": round(log_bytes_max / 1e6),
            "mb_per_s": round(done / took_s / 1e6),
        }
        if turns:
            figures["longest_turn_ms"] = round(turns[-1] * 1e3, 1)
    finally:
        await store.stop()
        await runtime.work.close()
    say(str(figures))
    return figures


async def measure(arguments: argparse.Namespace) -> None:
    """Measure each count of segments, print the report."""
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        runs = [await _measure(directory / str(count), count, arguments) for count in arguments.counts]
    names = ("append_bytes", "megabytes", "cache_megabytes", "warm_up")
    conditions = {name: getattr(arguments, name) for name in names}
    report("storage_writer", {"conditions": conditions, "counts": runs, "raw_disk": disk})


def main() -> None:
    """Run the command."""
    options = parser(__doc__)
    options.add_argument("--counts", type=int, nargs="+", default=[1, 100, 1000], help="numbers of segments")
    options.add_argument("--append-bytes", type=int, default=16 * 1024)
    options.add_argument("--megabytes", type=float, default=1000.0, help="data that is measured, of each count")
    options.add_argument("--cache-megabytes", type=int, default=256)
    options.add_argument("--warm-up", type=float, default=0.4, help="as much more of it is written before")
    options.add_argument("--turns", action="store_true")
    options.add_argument("--appends-per-turn", type=int, default=32)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.counts, arguments.megabytes, arguments.cache_megabytes = [1, 10], 4.0, 16
    run(measure(arguments))


if __name__ == "__main__":
    main()
