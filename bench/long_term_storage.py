"""How fast data goes to long-term storage and comes back, beside what the same storage does raw, in turns.

    python bench/long_term_storage.py
    python bench/long_term_storage.py --megabytes 512 --rounds 7 --segments 1 4

For a directory and for S3 (versitygw, as the tests build it, on the same disk; left out, with the reason, where there
is none), in this process and without clients; the log is in memory, so that it bounds nothing:

`flush`: as much as `--megabytes` waits in the cache, of one segment and of several, and is moved; the time is that from
the first write to the last commit. `raw_file` is the same bytes in files of a chunk's length, each synced at its end;
`raw_write` is the same, synced as often as a flush is. On S3 `raw` is one upload of the same bytes by obstore, with
its own choice of parts.

`read`: the same bytes are read in order, 1 MiB at a time, when nothing of them is in the store's cache, which is full
of others, as that of any server that has run for a while: memory for what comes is what goes for it. Of a directory
they are in the page cache. `raw` reads the same chunks: by `pread`, 1 MiB at a time, or by ranges as long as those that
the store reads ahead, and as many at a time; `raw_1m` of S3 by ranges of 1 MiB. Over a socket: see `catch_up.py`.

`metadata`: one commit of the records of a write to a chunk, on a log on the disk, with chunks in memory; and, in turns
with it, a bare append of as many bytes to another log there. `beyond_ms` is the difference of the medians.

Ratios are of the medians of the rounds. CPU is this process's, in seconds per GB.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from _common import parser, percentiles_ms, raw_disk, report, work_directory
from _s3 import BUCKET, S3Server, S3UnavailableError, raw_store, read_ranges, s3_bucket
from _wire import run, say
from penstock.model.segments import Buffer
from penstock.model.sizes import MIB
from penstock.runtime.disk import LocalFile
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings, ThrottleSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.durable_log import DurableLogFactory
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.object_storage import ObjectChunkStorage
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings
from penstock.server.long_term_storage import segment_store_settings
from penstock.server.settings import StandaloneSettings

Measure = Callable[[], Awaitable[None]]

#: What one append brings, and one read asks for.
BLOCK_BYTES = MIB
_TOUCH_BLOCKS = 8
#: The cache holds so much of what is moved in one turn.
_CACHE_MULTIPLE = 3
_numbers = itertools.count()


class Turns:
    """Measurements that take turns: seconds, and CPU seconds, of each."""

    def __init__(self, directory: Path, blocks: Sequence[bytes]) -> None:
        self._directory = directory
        self._blocks = blocks
        self._byte_count = len(blocks) * BLOCK_BYTES
        self._took_s: dict[str, list[float]] = {}
        self._cpu_s: dict[str, list[float]] = {}

    async def measure(self, name: str, work: Measure) -> None:
        """Do `work`, which moves all bytes once, and note what it took."""
        _touch_memory(self._directory, self._blocks)
        before_s, begin_s = _cpu_s(), time.perf_counter()
        await work()
        self._took_s.setdefault(name, []).append(time.perf_counter() - begin_s)
        self._cpu_s.setdefault(name, []).append(_cpu_s() - before_s)
        say(f"  {name}: {self._byte_count / self._took_s[name][-1] / 1e6:.0f} MB/s")

    def figures(self, raw: str) -> dict[str, object]:
        """Return rates, and ratios to that of `raw`."""
        medians = {name: statistics.median(taken) for name, taken in self._took_s.items()}
        return {
            name: {
                "mb_per_s": round(self._byte_count / median / 1e6, 1),
                "mb_per_s_worst_best": [
                    round(self._byte_count / one / 1e6, 1) for one in (max(self._took_s[name]), min(self._took_s[name]))
                ],
                "cpu_s_per_gb": round(statistics.median(self._cpu_s[name]) / self._byte_count * 1e9, 2),
                f"to_{raw}": round(medians[raw] / median, 2),
            }
            for name, median in medians.items()
        }


def _touch_memory(directory: Path, blocks: Sequence[bytes]) -> None:
    """Fill the page cache with as much, and give it free.

    A virtual machine's host takes back what is free for some seconds, and whoever is first to use it again would pay.
    """
    path = directory / "touched"
    with path.open("wb", buffering=0) as file:
        for at in range(0, len(blocks), _TOUCH_BLOCKS):
            os.writev(file.fileno(), blocks[at : at + _TOUCH_BLOCKS])
    path.unlink()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Storage:
    """A store over some chunk storage, and what that does raw. Data are the same blocks again and again."""

    def __init__(
        self,
        directory: Path,
        chunks: ChunkStorage,
        runtime: Runtime,
        settings: SegmentStoreSettings,
        arguments: argparse.Namespace,
    ) -> None:
        self.runtime = runtime
        self.settings = settings
        self.rounds: int = arguments.rounds
        self.counts: Sequence[int] = arguments.segments
        rng = random.Random(1)
        self.blocks = [rng.randbytes(BLOCK_BYTES) for _ in range(max(int(arguments.megabytes * 1e6) // BLOCK_BYTES, 1))]
        self.byte_count = len(self.blocks) * BLOCK_BYTES
        self.flushes = Turns(directory, self.blocks)
        self.reads = Turns(directory, self.blocks)
        cache_bytes = _CACHE_MULTIPLE * self.byte_count
        self.store = _store(MemoryLogFactory(runtime), chunks, runtime, settings, cache_bytes=cache_bytes)

    @property
    def container(self) -> SegmentContainer:
        """The only one."""
        (container,) = self.store.containers
        return container

    async def measure(self) -> Mapping[str, object]:
        """Do all rounds."""
        await self.store.start()
        try:
            others = await self._write_others()
            for _ in range(self.rounds):
                await self.measure_raw_flush()
                for count in self.counts:
                    await self._measure_round(count, others)
        finally:
            await self.store.stop()
        return {"flush": self.flushes.figures(self.raw_name), "read": self.reads.figures("raw")}

    raw_name = "raw"

    async def measure_raw_flush(self) -> None:
        """Measure what the storage itself does."""
        raise NotImplementedError

    async def measure_raw_read(self, segment: str) -> None:
        """Measure how the storage itself reads back what was flushed of a segment."""
        raise NotImplementedError

    async def _write_others(self) -> Sequence[str]:
        """Store as much as the cache takes, to be read when nothing else is to be left there."""
        names = [f"bench/others/{number}.#epoch.0" for number in range(_CACHE_MULTIPLE)]
        for name in names:
            await self.store.create_segment(name)
            for block in self.blocks:
                await self.store.append(name, block)
            await self.container.flush()
        return names

    async def _measure_round(self, count: int, others: Sequence[str]) -> None:
        names = [f"bench/flushed/{next(_numbers)}.#epoch.0" for _ in range(count)]
        for name in names:
            await self.store.create_segment(name)
        for name, block in zip(itertools.cycle(names), self.blocks, strict=False):
            await self.store.append(name, block)
        container = self.container
        assert not any(container.segment(name).storage_length for name in names)
        await self.flushes.measure(f"{count}_segments", container.flush)
        if count == self.counts[0]:
            await self.measure_raw_read(names[0])
            await self._read(others)
            assert not self.container.segment(names[0]).index.cached_bytes
            await self.reads.measure("in_process", lambda: self._read(names))
        for name in names:
            await self.store.delete_segment(name)
        await container.flush()

    async def _read(self, names: Sequence[str]) -> None:
        for name in names:
            length = self.container.segment(name).storage_length
            offset = 0
            while offset < length:
                offset += sum(map(len, (await self.store.read(name, offset, BLOCK_BYTES)).data))

    async def layout(self, segment: str) -> list[tuple[str, int]]:
        """Return the chunks of a segment, with their lengths."""
        container = self.container
        return [(chunk.name, chunk.length) for chunk in await container.storage.layout(container.segment(segment))]


class DirectoryStorage(Storage):
    """A directory, and files beside it."""

    raw_name = "raw_file"

    def __init__(self, directory: Path, runtime: Runtime, arguments: argparse.Namespace) -> None:
        self.directory = directory / "tier2"
        self.beside = directory / "raw"
        for made in (self.directory, self.beside):
            made.mkdir(parents=True)
        chunks = DirectoryChunkStorage(str(self.directory), runtime)
        super().__init__(directory, chunks, runtime, segment_store_settings(StandaloneSettings()), arguments)

    async def measure_raw_flush(self) -> None:
        """See `Storage.measure_raw_flush`."""
        write_bytes = self.settings.container.flush_write_bytes_max
        for name, is_each_synced in (("raw_file", False), ("raw_write", True)):
            await self.flushes.measure(name, lambda each=is_each_synced: self._write_files(write_bytes, each))  # type: ignore[misc]
            for path in self.beside.iterdir():
                path.unlink()

    async def _write_files(self, write_bytes: int, is_each_synced: bool) -> None:
        await self.runtime.work.run(self._write_files_now, write_bytes, is_each_synced)

    def _write_files_now(self, write_bytes: int, is_each_synced: bool) -> None:
        per_write = max(write_bytes // BLOCK_BYTES, 1)
        per_file = ChunkedStorageSettings().chunk_length_max // BLOCK_BYTES
        for first in range(0, len(self.blocks), per_file):
            path = str(self.beside / str(first))
            file = LocalFile(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            mine = self.blocks[first : first + per_file]
            for at in range(0, len(mine), per_write):
                file.write(at * BLOCK_BYTES, mine[at : at + per_write])
                if is_each_synced:
                    file.sync()
            file.sync()
            file.close()
        descriptor = os.open(self.beside, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    async def measure_raw_read(self, segment: str) -> None:
        """See `Storage.measure_raw_read`."""
        chunks = await self.layout(segment)

        def read() -> None:
            for name, length in chunks:
                descriptor = os.open(self.directory / name, os.O_RDONLY)
                for offset in range(0, length, BLOCK_BYTES):
                    os.pread(descriptor, BLOCK_BYTES, offset)
                os.close(descriptor)

        async def work() -> None:
            await self.runtime.work.run(read)

        await self.reads.measure("raw", work)


class BucketStorage(Storage):
    """A bucket on S3."""

    def __init__(self, directory: Path, server: S3Server, runtime: Runtime, arguments: argparse.Namespace) -> None:
        self.prefix = "store"
        chunks = ObjectChunkStorage(server.open(BUCKET), runtime.rng, prefix=self.prefix)
        settings = segment_store_settings(StandaloneSettings(tier2=f"s3://{BUCKET}"))
        super().__init__(directory, chunks, runtime, settings, arguments)
        self.whole: Buffer = b"".join(self.blocks)
        self.server = server
        self.raw = raw_store(server)

    async def measure_raw_flush(self) -> None:
        """See `Storage.measure_raw_flush`."""
        key = f"raw/{next(_numbers)}"

        async def put() -> None:
            await self.raw.put_async(key, self.whole)

        await self.flushes.measure("raw", put)
        await self.raw.delete_async(key)

    async def measure_raw_read(self, segment: str) -> None:
        """See `Storage.measure_raw_read`."""
        lengths = {f"{self.prefix}/{name}": length for name, length in await self.layout(segment)}
        container = self.settings.container
        lanes = 1 + container.read_ahead_count_max

        async def work(range_bytes: int) -> None:
            await read_ranges(self.server, lengths, range_bytes, lanes=lanes)

        await self.reads.measure("raw", lambda: work(container.read_ahead_range_bytes))
        await self.reads.measure("raw_1m", lambda: work(BLOCK_BYTES))


def _store(
    logs: DurableLogFactory, chunks: ChunkStorage, runtime: Runtime, settings: SegmentStoreSettings, *, cache_bytes: int
) -> SegmentStore:
    """Return a store of one container that flushes when it is told to, and never holds an append."""
    return SegmentStore(
        logs=logs,
        chunks=chunks,
        runtime=runtime,
        settings=replace(
            settings,
            container_count=1,
            cache=CacheSettings(bytes_max=max(cache_bytes, 16 * MIB)),
            throttle=ThrottleSettings(backlog_percent=100, segment_backlog_percent=100),
            container=replace(settings.container, flush_bytes=1 << 40, flush_age_s=1e6),
        ),
    )


async def measure_metadata(directory: Path, runtime: Runtime, count: int) -> dict[str, object]:
    """Measure commits of storage metadata beside bare appends to a log."""
    logs = LocalLogFactory(str(directory / "tier1"), runtime)
    store = _store(logs, MemoryChunkStorage(), runtime, SegmentStoreSettings(), cache_bytes=16 * MIB)
    await store.start()
    bare = logs.create(1)
    await bare.open()
    try:
        async for _ in bare.frames():
            pass
        (container,) = store.containers
        name = "bench/committed/0.#epoch.0"
        await store.create_segment(name)
        storage = container.storage.of(container.segment(name))
        data = bytes(4096)
        commits_s: list[float] = []
        appends_s: list[float] = []
        cpu_s: list[float] = []
        frame = b""
        for number in range(count):
            logged = container.checkpoints.log_bytes
            begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
            await storage.write(name, number * len(data), [data])
            commits_s.append(time.perf_counter() - begin_s)
            cpu_s.append(time.thread_time() - begin_cpu_s)
            frame = bytes(container.checkpoints.log_bytes - logged) or frame
            begin_s = time.perf_counter()
            await bare.append([frame], len(frame))
            appends_s.append(time.perf_counter() - begin_s)
        return {
            "commits": count,
            "log_bytes": len(frame),
            "commit": percentiles_ms(commits_s),
            "bare_append": percentiles_ms(appends_s),
            "beyond_ms": round((statistics.median(commits_s) - statistics.median(appends_s)) * 1e3, 3),
            "loop_cpu_p50_ms": round(statistics.median(cpu_s) * 1e3, 3),
        }
    finally:
        await bare.close()
        await store.stop()


async def measure(arguments: argparse.Namespace) -> None:
    """Measure everything, print the report."""
    with work_directory(arguments) as directory, ExitStack() as stack:
        disk = raw_disk(directory)
        runtime = real_runtime(4)
        figures: dict[str, object] = {}
        say("directory")
        figures["directory"] = await DirectoryStorage(directory, runtime, arguments).measure()
        try:
            server = stack.enter_context(s3_bucket(directory / "s3"))
        except S3UnavailableError as error:
            figures["s3"] = {"skipped": str(error)}
        else:
            say("s3")
            figures["s3"] = await BucketStorage(directory, server, runtime, arguments).measure()
        figures["metadata"] = await measure_metadata(directory / "metadata", runtime, arguments.commits)
        await runtime.work.close()
    names = ("megabytes", "rounds", "segments", "commits")
    conditions = {name: getattr(arguments, name) for name in names}
    report("long_term_storage", {"conditions": conditions, **figures, "raw_disk": disk})


def main() -> None:
    """Run the command."""
    options = parser(__doc__)
    options.add_argument("--megabytes", type=float, default=256.0, help="data that is moved in each turn")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--segments", type=int, nargs="+", default=[1, 4], help="segments that the data are of")
    options.add_argument("--commits", type=int, default=2000, help="commits of metadata")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.megabytes, arguments.rounds, arguments.commits = 8.0, 1, 20
    run(measure(arguments))


if __name__ == "__main__":
    main()
