"""Cost of a stream's operations as its epochs grow: requests, rows and bytes, counted at the metadata store.

A real controller over memory scales one stream repeatedly: the oldest segment is split, its halves are merged, and so
on, once per (simulated) second. Counts depend on the code only; `bench/epochs.py` prints them, and a test of the
controller compares the first and the last epochs.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.controller.locator import SingleStoreLocator
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.store import MetadataStore, Removal, Row, RowPage, Write
from penstock.controller.service import ControllerService
from penstock.model.policies import Scaling, StreamConfig
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, ThreadedWork
from penstock_simulation.memory_segments import MemorySegments
from penstock_simulation.memory_store import MemoryMetadataStore

T = TypeVar("T")

_SCOPE, _STREAM = "scope", "stream"
_SEGMENTS = 4
#: Epochs between two inspections of the stream, and between two truncations.
_CHECK_EPOCHS = 50
_TRUNCATION_EPOCHS = 250
_START_MS = 1_700_000_000_000
_SCALE_MS = 1000


@dataclass(slots=True)
class Cost:
    """Cost of some requests to the metadata store."""

    requests: float = 0
    rows_read: float = 0
    rows_written: float = 0
    bytes_read: float = 0
    bytes_written: float = 0

    def values(self) -> tuple[float, ...]:
        """Return all counts, in the order of the fields."""
        return self.requests, self.rows_read, self.rows_written, self.bytes_read, self.bytes_written

    def add(self, other: Cost) -> None:
        """Add another cost."""
        sums = [mine + its for mine, its in zip(self.values(), other.values(), strict=True)]
        self.requests, self.rows_read, self.rows_written, self.bytes_read, self.bytes_written = sums

    def per(self, count: int) -> Cost:
        """Return the average of `count` operations."""
        return Cost(*(round(value / count, 2) for value in self.values()))


class CountingMetadataStore:
    """A metadata store whose requests are counted in `cost`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.cost: Cost = Cost()

    def _read(self, rows: Sequence[Row | None]) -> None:
        self.cost.requests += 1
        self.cost.rows_read += len(rows)
        self.cost.bytes_read += sum(len(row.value) for row in rows if row is not None)

    async def create_table(self, table: str) -> bool:
        """See `MetadataStore.create_table`."""
        self.cost.requests += 1
        return await self._store.create_table(table)

    async def drop_table(self, table: str, *, must_be_empty: bool = False) -> bool:
        """See `MetadataStore.drop_table`."""
        self.cost.requests += 1
        return await self._store.drop_table(table, must_be_empty=must_be_empty)

    async def get(self, table: str, keys: Sequence[str]) -> Sequence[Row | None]:
        """See `MetadataStore.get`."""
        rows = await self._store.get(table, keys)
        self._read(rows)
        return rows

    async def put(self, table: str, writes: Sequence[Write]) -> Sequence[int]:
        """See `MetadataStore.put`."""
        self.cost.requests += 1
        self.cost.rows_written += len(writes)
        self.cost.bytes_written += sum(len(write.value) for write in writes)
        return await self._store.put(table, writes)

    async def remove(self, table: str, removals: Sequence[Removal]) -> None:
        """See `MetadataStore.remove`."""
        self.cost.requests += 1
        self.cost.rows_written += len(removals)
        await self._store.remove(table, removals)

    async def rows(self, table: str, *, limit: int, token: bytes = b"") -> RowPage:
        """See `MetadataStore.rows`."""
        page = await self._store.rows(table, limit=limit, token=token)
        self._read(page.rows)
        return page


class EpochCosts:
    """Scales one stream and counts. `averages` has, by operation, the average cost in each block of epochs.

    Blocks have `block_epochs` epochs and start after the first hundred: in blocks of whole history chunks, the cost of
    filling a chunk is in each of them once.
    """

    def __init__(self, block_epochs: int, *, is_truncated: bool = True) -> None:
        self._block_epochs = block_epochs
        self._is_truncated = is_truncated
        self._clock_ms = _START_MS
        self._work = ThreadedWork(1)
        self._segments = MemorySegments()
        self._records = MemoryMetadataStore()
        self.store: CountingMetadataStore = CountingMetadataStore(self._records)
        #: Records of the stream before it is sealed, by kind: bytes of all records, and of the largest one.
        self.stored_bytes: Counter[str] = Counter()
        self.largest_bytes: dict[str, int] = {}
        self._service = ControllerService(
            metadata=self.store,
            segments=self._segments,
            locator=SingleStoreLocator("127.0.0.1", 6000),
            runtime=Runtime(
                disk=LocalDisk(), work=self._work, rng=random.Random(1), wall_clock_ms=lambda: self._clock_ms
            ),
        )
        self._totals: dict[str, dict[int, tuple[Cost, int]]] = defaultdict(dict)
        self._block = 0

    async def run(
        self, epochs: int, *, at_the_end: Callable[[ControllerService], Awaitable[None]] | None = None
    ) -> None:
        """Create the stream, scale it this many times, call `at_the_end`, then seal and delete the stream."""
        service = self._service
        await service.start()
        await service.create_scope(_SCOPE)
        await service.create_stream(_SCOPE, _STREAM, StreamConfig(Scaling.fixed(_SEGMENTS)))
        for epoch in range(epochs):
            self._block = (epoch - 100) // self._block_epochs
            sealed = await self._scale(epoch)
            if epoch % _CHECK_EPOCHS == 0:
                await self._measure(epoch, sealed)
            if self._is_truncated and epoch % _TRUNCATION_EPOCHS == 0:
                await self._truncate()
        await self._weigh()
        if at_the_end is not None:
            await at_the_end(service)
        await self._counted("seal", service.seal_stream(_SCOPE, _STREAM))
        await self._counted("delete", service.delete_stream(_SCOPE, _STREAM))
        await service.stop()
        await self._work.close()

    @property
    def averages(self) -> dict[str, list[Cost]]:
        """The average cost of each operation in each complete block (of the last one for seal and delete)."""
        return {
            operation: [cost.per(count) for block, (cost, count) in sorted(blocks.items()) if block >= 0]
            for operation, blocks in self._totals.items()
        }

    @property
    def segments_left(self) -> int:
        """Number of segments of the stream."""
        return sum(name.startswith(f"{_SCOPE}/{_STREAM}/") for name in self._segments.segments)

    async def _weigh(self) -> None:
        for table in self._records.table_names():
            if table.startswith(f"_system/_tables/{_SCOPE}/{_STREAM}/metadata"):
                async for row in RecordStore(self._records).walk_rows(table):
                    kind = row.key.partition("-")[0]
                    self.stored_bytes[kind] += len(row.value)
                    self.largest_bytes[kind] = max(self.largest_bytes.get(kind, 0), len(row.value))

    async def _counted(self, operation: str, call: Awaitable[T]) -> T:
        self.store.cost = Cost()
        result = await call
        await self._service.idle()
        total, count = self._totals[operation].get(self._block, (Cost(), 0))
        total.add(self.store.cost)
        self._totals[operation][self._block] = total, count + 1
        return result

    async def _scale(self, epoch: int) -> int:
        current = sorted(await self._service.current_segments(_SCOPE, _STREAM), key=lambda segment: segment.id)
        if epoch % 2 == 0:
            oldest = current[0]
            middle = (oldest.key_start + oldest.key_end) / 2
            to_seal, ranges = [oldest.id], [(oldest.key_start, middle), (middle, oldest.key_end)]
        else:
            low, high = current[-2:]
            to_seal, ranges = [low.id, high.id], [(low.key_start, high.key_end)]
        self._clock_ms += _SCALE_MS
        await self._counted("scale", self._service.scale_stream(_SCOPE, _STREAM, to_seal, ranges))
        return to_seal[0]

    async def _measure(self, epoch: int, sealed: int) -> None:
        service = self._service
        current = await self._counted("current segments", service.current_segments(_SCOPE, _STREAM))
        following = await self._counted("successors", service.successors(_SCOPE, _STREAM, sealed))
        cut: dict[int, int] = {segment.id: 0 for segment in current}
        is_valid = await self._counted("check a cut", service.is_stream_cut_valid(_SCOPE, _STREAM, cut))
        between = await self._counted("segments from a cut on", service.segments_between(_SCOPE, _STREAM, cut, {}))
        then = self._clock_ms - _SCALE_MS * (epoch // 2)
        at_time = await self._counted("segments at a time", service.queries.segments_at(_SCOPE, _STREAM, then))
        if not (following and is_valid and len(between) == len(current)) or len(at_time) > _SEGMENTS + 1:
            raise AssertionError(f"epoch {epoch + 1}: {following}, {is_valid}, {between}, {at_time}")

    async def _truncate(self) -> None:
        cut: dict[int, int] = {segment.id: 0 for segment in await self._service.current_segments(_SCOPE, _STREAM)}
        await self._counted("truncate", self._service.truncate_stream(_SCOPE, _STREAM, cut))
        if self.segments_left != len(cut):
            raise AssertionError(f"{self.segments_left} segments are left, the cut has {len(cut)}")
