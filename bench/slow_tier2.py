"""What slow syncs of long-term storage do to a single append: the ratio of its latencies with and without, in one run.

    python bench/slow_tier2.py                 # syncs of chunks take 0.5 s longer
    python bench/slow_tier2.py --sync-s 2

A segment store in this process, with real files; a load in the background keeps eight flushes under way at any time.
Rounds with and without slow syncs take turns, so that a busy machine disturbs both. The ratio of the medians is to
stay below 1.2.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from dataclasses import replace
from pathlib import Path

from _common import parser, percentiles_ms, raw_disk, report, work_directory
from penstock.runtime.disk import LocalDisk, LocalFile
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage

LONE = "bench/slow/lone.#epoch.0"
LOADED = [f"bench/slow/{number}.#epoch.0" for number in range(64)]
LOAD_BYTES = 20_000
LOAD_PAUSE_S = 0.01


class SlowFile(LocalFile):
    """A chunk file whose syncs take `disk.sync_s` longer."""

    def __init__(self, plain: LocalFile, disk: SlowDisk) -> None:
        super().__init__(plain.path, plain._descriptor)
        self._disk = disk

    def sync(self) -> None:
        """See `DiskFile.sync`."""
        if self._disk.sync_s:
            self._disk.slow_count += 1
            time.sleep(self._disk.sync_s)
        super().sync()


class SlowDisk(LocalDisk):
    """The machine's disk, but for syncs of what lies in `tier2`."""

    def __init__(self) -> None:
        self.sync_s = 0.0
        self.slow_count = 0

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, writable: bool = True) -> LocalFile:
        """See `Disk.open`."""
        plain = super().open(path, create=create, exclusive=exclusive, writable=writable)
        return SlowFile(plain, self) if "/tier2/" in path else plain


async def single_appends(store: SegmentStore, seconds: float) -> list[float]:
    """Append 100 bytes again and again, each after the one before was acknowledged; return the seconds each took."""
    samples: list[float] = []
    stop_s = time.perf_counter() + seconds
    while (begin_s := time.perf_counter()) < stop_s:
        await store.append(LONE, bytes(100))
        samples.append(time.perf_counter() - begin_s)
    return samples


async def load(store: SegmentStore) -> None:
    """Append to many segments, so that there is always something to flush."""
    while True:
        for segment in LOADED:
            await store.append(segment, bytes(LOAD_BYTES))
            await asyncio.sleep(LOAD_PAUSE_S)


async def measure(arguments: argparse.Namespace, directory: Path) -> dict[str, object]:
    """Let rounds take turns; return the figures."""
    disk = SlowDisk()
    work = ThreadedWork()
    runtime = Runtime(disk=disk, work=work, rng=random.Random(1), wall_clock_ms=lambda: 0)
    container = replace(ContainerSettings(), flush_age_s=0.05, writer_interval_s=0.05, flush_slow_s=0.1)
    store = SegmentStore(
        logs=LocalLogFactory(str(directory / "tier1"), runtime),
        chunks=DirectoryChunkStorage(str(directory / "tier2"), runtime),
        runtime=runtime,
        settings=SegmentStoreSettings(container_count=1, container=container),
    )
    await store.start()
    for segment in (LONE, *LOADED):
        await store.create_segment(segment)
    loading = asyncio.create_task(load(store))
    samples: dict[bool, list[float]] = {False: [], True: []}
    try:
        await single_appends(store, arguments.seconds / 10)
        for round_number in range(arguments.rounds):
            is_slow = round_number % 2 == 1
            disk.sync_s = arguments.sync_s if is_slow else 0.0
            # What the last round left is flushed at this one's pace.
            await single_appends(store, arguments.seconds / arguments.rounds / 4)
            samples[is_slow] += await single_appends(store, arguments.seconds / arguments.rounds)
    finally:
        loading.cancel()
        disk.sync_s = 0.0
        await asyncio.gather(loading, return_exceptions=True)
        await store.stop()
        await work.close()
    fast, slow = percentiles_ms(samples[False]), percentiles_ms(samples[True])
    return {
        "slow_sync_s": arguments.sync_s,
        "slow_syncs": disk.slow_count,
        "append_to_ack": fast,
        "append_to_ack_with_slow_syncs": slow,
        "p50_ratio": round(slow["p50_ms"] / fast["p50_ms"], 2),
    }


def main() -> None:
    """Measure and report."""
    options = parser(__doc__ or "")
    options.add_argument("--sync-s", type=float, default=0.5, help="how much longer a sync of a chunk takes")
    options.add_argument("--rounds", type=int, default=10, help="half of them with slow syncs")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.seconds, arguments.rounds, arguments.sync_s = 1.0, 2, 0.1
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        report("slow_tier2", {**asyncio.run(measure(arguments, directory)), "raw_disk": disk})


if __name__ == "__main__":
    main()
