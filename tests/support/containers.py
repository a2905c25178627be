"""Segment containers over a log and chunks in memory, to be crashed, restarted and disturbed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.model.errors import StorageError
from penstock.model.segments import Buffer, SegmentData
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock.runtime.work import BlockingWork
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container.opening import ContainerOpening
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container_settings import ContainerSettings, GarbageSettings
from penstock.segmentstore.container_start import ContainerStart
from penstock.segmentstore.settings import CacheSettings, SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage

#: The storage writer does nothing by itself but what seals, truncations, merges and deletions wake it for.
QUIET = ContainerSettings(
    writer_interval_s=3600.0,
    writer_retry_s=0.0,
    flush_age_s=1e9,
    truncate_delay_s=0.0,
    merge_delay_s=0.0,
    stop_timeout_s=2.0,
    garbage=GarbageSettings(delay_s=0.0),
)
SMALL_CACHE = CacheSettings(bytes_max=1 << 20, block_length=4096, small_append_length=1024)


def memory_runtime(seed: int = 1, work: BlockingWork | None = None) -> Runtime:
    """Return a runtime whose clock does not advance. `work`: by default one thread."""
    work = work or ThreadedWork(1)
    return Runtime(disk=LocalDisk(), work=work, rng=random.Random(seed), wall_clock_ms=lambda: 1_000)


class FaultyChunks(WrappedChunkStorage):
    """Chunks that outlive the stores over them, fail on demand before or after the effect, and can be held up."""

    def __init__(self, inner: MemoryChunkStorage | None = None) -> None:
        super().__init__(inner or MemoryChunkStorage())
        self.calls: Counter[str] = Counter()
        self._faults: dict[str, list[bool]] = {}
        self._gates: dict[str, asyncio.Event] = {}

    def fail(self, operation: str, *, times: int = 1, has_effect: bool = False) -> None:
        """Let the next `times` calls of `operation` raise, after their effect with `has_effect`."""
        self._faults.setdefault(operation, []).extend([has_effect] * times)

    def heal(self) -> None:
        """Fail and hold nothing any more."""
        self._faults.clear()
        for operation in list(self._gates):
            self.release(operation)

    def hold(self, operation: str) -> None:
        """Keep calls of `operation` waiting until `release`."""
        self._gates[operation] = asyncio.Event()

    def release(self, operation: str) -> None:
        """Release the held calls."""
        self._gates.pop(operation).set()

    async def _before(self, operation: str) -> bool:
        self.calls[operation] += 1
        if gate := self._gates.get(operation):
            await gate.wait()
        faults = self._faults.get(operation)
        if not faults:
            return False
        has_effect = faults.pop(0)
        if not has_effect:
            raise StorageError(f"injected failure of {operation}")
        return True

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.create_with_content`."""
        fails = await self._before("write")
        length = await super().create_with_content(name, data)
        if fails:
            raise StorageError("injected failure after write")
        return length

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.write`."""
        fails = await self._before("write")
        length = await super().write(name, offset, data)
        if fails:
            raise StorageError("injected failure after write")
        return length

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkStorage.read`."""
        await self._before("read")
        return await super().read(name, offset, length)

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """See `ChunkStorage.list`."""
        await self._before("list")
        return await super().list(prefix)

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        """See `ChunkStorage.names`."""
        await self._before("names")
        return await super().names(limit=limit, after=after)

    async def delete(self, name: str) -> None:
        """See `ChunkStorage.delete`."""
        fails = await self._before("delete")
        await super().delete(name)
        if fails:
            raise StorageError("injected failure after delete")

    async def close(self) -> None:
        """Stay open: the next incarnation uses it."""


class Incarnations:
    """One container's lives. Each starts over the same log and chunks with a cache of its own."""

    def __init__(
        self,
        settings: ContainerSettings = QUIET,
        *,
        cache: CacheSettings = SMALL_CACHE,
        frame_length_max: int = 64 * 1024,
        seed: int = 1,
        work: BlockingWork | None = None,
    ) -> None:
        self.runtime = memory_runtime(seed, work)
        self.logs = MemoryLogFactory(self.runtime, frame_length_max_bytes=frame_length_max)
        self.chunks = FaultyChunks()
        self.settings = settings
        self.cache_settings = cache
        self.cache = Cache(cache)
        self.failures: list[BaseException] = []
        self.live: list[SegmentContainer] = []

    def new(self) -> ContainerOpening:
        """Return the opening of the next incarnation."""
        self.cache = Cache(self.cache_settings)
        return ContainerOpening(
            0,
            log=self.logs.create(0),
            chunks=self.chunks,
            cache=self.cache,
            runtime=self.runtime,
            settings=self.settings,
            on_failure=lambda _, error: self.failures.append(error),
        )

    async def open(self, opening: ContainerOpening, steps: ContainerStart | None = None) -> SegmentContainer:
        """Open a container; `close` stops it."""
        container = await opening.open(steps)
        self.live.append(container)
        return container

    async def start(self, **changes: float) -> SegmentContainer:
        """Start the next incarnation, with some settings changed."""
        if changes:
            self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]  # int fields get ints.
        return await self.open(self.new())

    async def crash(self, container: SegmentContainer) -> None:
        """End a container's tasks where they are; nothing is finished or reported."""
        self.live.remove(container)
        tasks = [*container.life.jobs, *container.reader._tasks, *container.writer.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def restart(self, container: SegmentContainer, **changes: float) -> SegmentContainer:
        """Crash a container and start the next incarnation."""
        await self.crash(container)
        return await self.start(**changes)

    async def stop(self, container: SegmentContainer) -> None:
        """Stop a container in good order."""
        self.live.remove(container)
        await container.stop()

    async def close(self) -> None:
        """End everything."""
        self.chunks.heal()
        self.logs.release_appends(0)
        for container in list(self.live):
            await self.stop(container)
        await self.runtime.work.close()

    def frames(self) -> list[bytes]:
        """Return what the log holds now."""
        return [frame.data for frame in self.logs._get(0).frames]


async def pause_writer(container: SegmentContainer) -> None:
    """End the storage writer's loop; `flush` still works."""
    tasks, container.writer._task = container.writer.tasks, None
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def append(container: SegmentContainer, name: str, data: bytes, expected_offset: int | None = None) -> int:
    """Append, durably."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    end = container.acceptor.append(
        container.segment(name), AppendRequest(data, expected_offset=expected_offset), completer(future)
    )
    await future
    return end


async def read_all(container: SegmentContainer, segment: Segment | str) -> bytes:
    """Read a segment from its start to its durable end, in whatever pieces come."""
    if isinstance(segment, str):
        segment = container.segment(segment)
    parts = []
    offset = segment.durable_start_offset
    while offset < segment.durable_length:
        data = (await container.reader.read(segment, offset, 1 << 20)).joined()
        assert data, f"nothing at {offset} of {segment.durable_length}"
        parts.append(data)
        offset += len(data)
    return b"".join(parts)


async def read_waiting(container: SegmentContainer, segment: Segment, offset: int) -> SegmentData:
    """Read from `offset`, and wait for bytes there or the end of the segment, which is to stay in memory meanwhile."""
    data = await container.reader.read(segment, offset, 1 << 20)
    while data.is_at_tail and not data.data:
        await container.reader.wait(segment, offset)
        data = await container.reader.read(segment, offset, 1 << 20)
    return data


def evict_all(container: SegmentContainer) -> None:
    """Drop everything from the cache that may go, and nothing else."""
    container.state.cache.evict_all()


def memory_store(
    logs: MemoryLogFactory,
    chunks: FaultyChunks,
    runtime: Runtime,
    settings: SegmentStoreSettings,
) -> SegmentStore:
    """Return a segment store over the given parts, not started."""
    return SegmentStore(logs=logs, chunks=chunks, runtime=runtime, settings=settings)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds, at most 60 s."""
    for _ in range(12_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


async def turns(count: int = 20) -> None:
    """Let the loop go round a number of times."""
    for _ in range(count):
        await asyncio.sleep(0)
