"""The longest time that work on a segment of very many chunks keeps the event loop from everybody else.

    python bench/chunk_lists.py --chunks 20000

In process, with chunks and records in memory, so that only the work itself is measured. A task that does nothing but
ask for its turn notes the CPU time between two of its turns: the noise of a busy machine is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from _common import TurnWatch, parser, raw_disk, report, work_directory
from _wire import say
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.settings import OrphanSettings
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings

SEGMENT = "bench/chunks/0.#epoch.0"
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
        "look for orphans": lambda: orphans.sweep(3, storage(3).unrecorded),
        "truncate in the middle": lambda: cold.truncate(SEGMENT, length // 2),
        "delete": lambda: cold.delete(SEGMENT),
    }
    figures: dict[str, dict[str, float]] = {}
    for name, step in steps.items():
        figures[name] = await watched(step)
        say(f"{name}: {figures[name]}")
    await runtime.work.close()
    with work_directory(arguments) as directory:
        disk = raw_disk(Path(directory))
    report(
        "chunk-lists",
        {
            "chunks": count,
            "steps": figures,
            "longest_turn_ms": max(figure["longest_turn_ms"] for figure in figures.values()),
            "raw_disk": disk,
        },
    )


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--chunks", type=int, default=20_000, help="how many the segment has")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.chunks = 300
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()
