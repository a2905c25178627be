"""What joins of small chunks cost and save: requests, records and time of a catch-up read, before and after.

A part of `chunk_lists.py`. A segment of small chunks, in a directory that is used as a bucket is: no appends, and each
request waits so long first. It is read from its head to its end in reads of 1 MiB with nothing in memory; then its
chunks are joined, round by round without the pauses of a server; then it is read again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from _common import TurnWatch
from penstock.model.errors import CorruptionError
from penstock.model.segments import Buffer
from penstock.runtime.runtime import real_runtime
from penstock.segmentstore.container_settings import GarbageSettings, JoinSettings
from penstock.segmentstore.tier2.chunk_joiner import ChunkJoiner
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage
from penstock.segmentstore.tier2.garbage import GarbageQueue
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage

SEGMENT = "bench/small/0.#epoch.0"
READ_BYTES = 1024 * 1024


class SlowChunks(WrappedChunkStorage):
    """Appends nothing, waits before each read and creation, and counts them."""

    def __init__(self, inner: ChunkStorage, latency_s: float) -> None:
        super().__init__(inner)
        self.latency_s = latency_s
        self.read_count = 0
        self.creation_count = 0

    @property
    def supports_append(self) -> bool:
        return False

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        self.creation_count += 1
        await asyncio.sleep(self.latency_s)
        return await super().create_with_content(name, data)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        self.read_count += 1
        await asyncio.sleep(self.latency_s)
        return await super().read(name, offset, length)


async def read_all(chunks: SlowChunks, storage: ChunkedStorage, table: MemoryMetadataTable) -> dict[str, float]:
    """Read the segment; return what that took."""
    stored = await storage.info(SEGMENT)
    assert stored is not None
    before = chunks.read_count
    begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
    for offset in range(0, stored.length, READ_BYTES):
        await storage.read(SEGMENT, offset, READ_BYTES)
    took_s = time.perf_counter() - begin_s
    return {
        "chunks": len(await storage.chunks_of(SEGMENT)),
        "records": len(table.entries()),
        "requests": chunks.read_count - before,
        "seconds": round(took_s, 3),
        "mb_per_s": round(stored.length / took_s / 1e6, 1),
        "loop_cpu_ms": round((time.thread_time() - begin_cpu_s) * 1e3, 1),
    }


async def report_damage(error: CorruptionError) -> None:
    raise error


async def measure_joins(
    directory: Path, *, count: int, chunk_bytes: int, latency_ms: float
) -> tuple[dict[str, object], float]:
    """Make the segment, read it, join its chunks, read it again; return figures and the loop's longest turn in s."""
    runtime = real_runtime(1)
    table = MemoryMetadataTable()
    chunks = SlowChunks(DirectoryChunkStorage(directory / "chunks", runtime), 0.0)  # type: ignore[arg-type]
    await chunks.create_identity(b"bench")

    def storage() -> ChunkedStorage:
        # What was joined is deleted at once, so that it is not counted among the records.
        garbage = GarbageQueue(
            chunks, table, epoch=1, settings=GarbageSettings(delay_s=0.0), wall_clock_ms=runtime.wall_clock_ms
        )
        return ChunkedStorage(chunks, table, epoch=1, runtime=runtime, garbage=garbage)

    writer = storage()
    end = 0
    for _ in range(count):
        end = await writer.write(SEGMENT, end, [bytes(chunk_bytes)])
    chunks.latency_s = latency_ms / 1e3
    before = await read_all(chunks, storage(), table)
    joiner = ChunkJoiner(storage(), JoinSettings(pause_s=0.0))
    requests = chunks.read_count + chunks.creation_count
    watch = TurnWatch()
    begin_s, copied_bytes = time.perf_counter(), -1
    while joiner.copied_bytes != copied_bytes:
        copied_bytes = joiner.copied_bytes
        for _ in range(2):
            await watch.during(joiner.join_round(report_damage))  # type: ignore[arg-type]
    joins = {
        "joined_chunks": joiner.joined_count,
        "made_chunks": joiner.made_count,
        "copied_bytes_per_byte": round(joiner.copied_bytes / end, 2),
        "requests": chunks.read_count + chunks.creation_count - requests,
        "seconds": round(time.perf_counter() - begin_s, 3),
        "longest_turn_ms": round(watch.longest_s * 1e3, 2),
    }
    after = await read_all(chunks, storage(), table)
    await chunks.close()
    await runtime.work.close()
    figures: dict[str, object] = {"chunk_bytes": chunk_bytes, "latency_ms": latency_ms}
    return figures | {"before": before, "joins": joins, "after": after}, watch.longest_s
