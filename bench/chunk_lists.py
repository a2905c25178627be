"""What work on a segment of very many chunks costs, and how long it keeps the event loop from everybody else.

    python bench/chunk_lists.py --chunks 20000 --counts 10 1000 100000

`operations`: CPU time of single operations, by the number of chunks, which take turns; each on an instance with nothing
in memory.
`steps`: of what may go along all chunks, with the longest turn.
`small_chunks`: a catch-up read before and after small chunks were joined; see `_small_chunks.py`.

But for the last in process, with chunks and records in memory, so that only the work itself is measured. A task that
does nothing but ask for its turn notes the CPU time between two of its turns: the noise of a busy machine is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from _common import TurnWatch, parser, raw_disk, report, work_directory
from _small_chunks import measure_joins
from _wire import say
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.container_settings import OrphanSettings
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings

SEGMENT = "bench/chunks/0.#epoch.0"
TRUNCATED = f"{SEGMENT}.truncated"
CHUNK_BYTES = 16


async def watched(work: Callable[[], Awaitable[object]]) -> dict[str, float]:
    """Do `work`; return what it took in CPU time, with the watch's own turns, and the longest of its turns."""
    gc.collect()
    watch = TurnWatch()
    task = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    begin_s = time.thread_time()
    await work()
    took_s = time.thread_time() - begin_s
    await asyncio.sleep(0)
    task.cancel()
    return {"cpu_ms": round(took_s * 1e3, 2), "longest_turn_ms": round(watch.longest_s * 1e3, 2)}


class Operations:
    """Operations on a segment of `count` chunks, each on an instance with nothing in memory, and their CPU times."""

    def __init__(self, count: int, repeats: int) -> None:
        self.count = count
        self._repeats = repeats
        self._runtime = real_runtime(1)
        self._chunks, self._table = MemoryChunkStorage(), MemoryMetadataTable()
        self._settings = ChunkedStorageSettings(chunk_length_max=CHUNK_BYTES, block_length=CHUNK_BYTES)
        # Whole chunks; all storages are of one epoch, so each source has a name of its own.
        self._writer = self._cold()
        self._end, self._middle = count * CHUNK_BYTES, count // 2 * CHUNK_BYTES
        self._taken_s: dict[str, list[float]] = {}

    def _cold(self) -> ChunkedStorage:
        return ChunkedStorage(self._chunks, self._table, epoch=1, runtime=self._runtime, settings=self._settings)

    async def _timed(self, name: str, work: Awaitable[object]) -> None:
        begin_s = time.thread_time()
        await work
        self._taken_s.setdefault(name, []).append(time.thread_time() - begin_s)

    async def prepare(self) -> None:
        """Make the segment, and another one that is truncated again and again."""
        for segment, length in ((SEGMENT, self._end), (TRUNCATED, self._end + self._repeats * CHUNK_BYTES)):
            for offset in range(0, length, 4096):
                await self._writer.write(segment, offset, [bytes(min(4096, length - offset))])

    async def repeat(self, number: int) -> None:
        """Do each operation once."""
        source = f"{SEGMENT}#transaction.{number:032x}"
        await self._writer.write(source, 0, [bytes(CHUNK_BYTES)])
        await self._writer.seal(source)
        end, middle, timed, cold = self._end, self._middle, self._timed, self._cold
        await timed("claim", cold().open(SEGMENT))
        await timed("read near the end", cold().read(SEGMENT, end - 2 * CHUNK_BYTES, CHUNK_BYTES))
        await timed("read in the middle", cold().read(SEGMENT, middle, CHUNK_BYTES))
        await timed("page of the layout", cold().chunks_of(SEGMENT, offset=middle, limit=4))
        await timed("append", cold().write(SEGMENT, end, [bytes(CHUNK_BYTES)]))
        await timed("merge", cold().concat(SEGMENT, end + CHUNK_BYTES, source))
        await timed("truncate", cold().truncate(TRUNCATED, (number + 1) * CHUNK_BYTES))
        self._end += 2 * CHUNK_BYTES

    async def close(self) -> dict[str, float]:
        """Return the median of each in microseconds."""
        await self._runtime.work.close()
        return {name: round(statistics.median(taken) * 1e6, 1) for name, taken in self._taken_s.items()}


async def operations(counts: Sequence[int], repeats: int) -> dict[str, dict[str, float]]:
    """Return the median CPU time in microseconds of operations, by the number of chunks.

    All numbers take turns: what else the machine does disturbs each of them alike.
    """
    made = [Operations(count, repeats) for count in counts]
    for one in made:
        await one.prepare()
        say(f"{one.count} chunks are written")
    gc.collect()
    for number in range(repeats):
        for one in made:
            await one.repeat(number)
    return {str(one.count): await one.close() for one in made}


async def measure(arguments: argparse.Namespace) -> None:
    """Make the segment, work on it, print the report."""
    runtime = real_runtime(1)
    chunks, table = MemoryChunkStorage(), MemoryMetadataTable()
    orphans = OrphanChunks(chunks, OrphanSettings(sweep_pause_s=0.0), mark=b"marked")
    settings = ChunkedStorageSettings(chunk_length_max=CHUNK_BYTES, block_length=CHUNK_BYTES)
    count: int = arguments.chunks
    length = count * CHUNK_BYTES

    def storage(epoch: int) -> ChunkedStorage:
        return ChunkedStorage(chunks, table, epoch=epoch, runtime=runtime, settings=settings, orphans=orphans)

    writer = storage(1)
    for offset in range(0, length, 4096):
        await writer.write(SEGMENT, offset, [bytes(min(4096, length - offset))])
    say(f"{count} chunks are written")
    # Another incarnation: nothing of it is in memory.
    cold = storage(2)
    await cold.open(SEGMENT)
    steps = {
        "read near the end, cold": lambda: cold.read(SEGMENT, length - 2 * CHUNK_BYTES, CHUNK_BYTES),
        "the same again": lambda: cold.read(SEGMENT, length - 2 * CHUNK_BYTES, CHUNK_BYTES),
        "read in the middle": lambda: cold.read(SEGMENT, length // 2, CHUNK_BYTES),
        "list the chunks": lambda: cold.chunks_of(SEGMENT),
        "find orphans": lambda: orphans.sweep(3, storage(3).unrecorded),
        "truncate in the middle": lambda: cold.truncate(SEGMENT, length // 2),
        "delete": lambda: cold.delete(SEGMENT),
    }
    figures: dict[str, dict[str, float]] = {}
    for name, step in steps.items():
        figures[name] = await watched(step)
        say(f"{name}: {figures[name]}")
    await runtime.work.close()
    by_count = await operations(arguments.counts, arguments.repeats)
    say(f"microseconds of CPU by the number of chunks: {by_count}")
    with work_directory(arguments) as directory:
        small, longest_s = await measure_joins(
            Path(directory), count=arguments.small_chunks, chunk_bytes=arguments.small_chunk_bytes,
            latency_ms=arguments.latency_ms,
        )  # fmt: skip
        say(f"small chunks: {small}")
        disk = raw_disk(Path(directory))
    report(
        "chunk-lists",
        {
            "chunks": count,
            "steps": figures,
            "operations_cpu_us": by_count,
            "operations_cpu_ratio": {
                name: round(max(costs) / min(costs), 2)
                for name in by_count[str(arguments.counts[0])]
                for costs in [[one[name] for one in by_count.values()]]
            },
            "longest_turn_ms": max(
                round(longest_s * 1e3, 2), *(figure["longest_turn_ms"] for figure in figures.values())
            ),
            "small_chunks": small,
            "raw_disk": disk,
        },
    )


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--chunks", type=int, default=20_000, help="how many the segment has")
    options.add_argument("--counts", type=int, nargs="+", default=[10, 1_000, 100_000], help="chunks, for operations")
    options.add_argument("--repeats", type=int, default=300, help="how often each operation is measured")
    options.add_argument("--small-chunks", type=int, default=2000, help="how many are joined")
    options.add_argument("--small-chunk-bytes", type=int, default=60_000, help="length of each")
    options.add_argument("--latency-ms", type=float, default=20.0, help="what a request for one waits")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.small_chunks, arguments.small_chunk_bytes, arguments.latency_ms = 60, 6000, 1.0
        arguments.chunks, arguments.counts, arguments.repeats = 300, [10, 300], 20
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()
