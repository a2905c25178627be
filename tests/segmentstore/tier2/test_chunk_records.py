"""Records of chunks as ordered keys: what work on very many chunks touches, merged runs, pages of a layout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.model.segments import TableEntry, TablePage, TableRemoval, TableUpdate
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage, ChunkLayout
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable, MetadataTransaction
from penstock.segmentstore.tier2.records import MergedRun
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from support.chunk_records import OTHER, SEGMENT, SMALL, World


@pytest.fixture
def world() -> World:
    return World()


class CountedTable(MemoryMetadataTable):
    """Counts what is read: keys that are looked up, records that are handed out; and records that are written."""

    calls = 0
    looked_up = 0
    handed_out = 0
    written = 0

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        self.calls += 1
        self.looked_up += len(keys)
        found = await super().get(keys)
        self.handed_out += sum(entry is not None for entry in found)
        return found

    async def page(self, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None) -> TablePage:
        self.calls += 1
        self.looked_up += 1
        page = await super().page(limit=limit, token=token, first=first, last=last)
        self.handed_out += len(page.entries)
        return page

    async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        self.written += len(updates) + len(removals)
        return await super().commit(updates, removals)

    def take(self) -> tuple[int, int, int]:
        """Return the counts since the last call."""
        counts = (self.looked_up, self.handed_out, self.written)
        self.looked_up = self.handed_out = self.written = 0
        return counts


async def touched(count: int) -> dict[str, tuple[int, int, int]]:
    """Return what each kind of work touches in segments of `count` chunks, with next to nothing in memory."""
    world = World()
    world.table = table = CountedTable()
    settings = replace(SMALL, chunk_length_max=1, records_cached_max=4, page_length=256)
    await world.storage(settings=settings).write(SEGMENT, 0, [bytes(count)])
    await world.storage(settings=settings).write(OTHER, 0, [b"x" * count])
    await world.storage(settings=settings).seal(OTHER)
    orphan = f"{SEGMENT}.E-1-O-{count // 2}.00000000-0000-4000-8000-000000000000"
    storage = world.storage(epoch=2, settings=settings)
    steps: dict[str, Callable[[], Awaitable[object]]] = {
        "claim": lambda: storage.open(SEGMENT),
        "read at the end": lambda: storage.read(SEGMENT, count - 2, 1),
        "read in the middle": lambda: storage.read(SEGMENT, count // 2, 3),
        "read at the start": lambda: storage.read(SEGMENT, 0, 1),
        "page of the layout": lambda: storage.chunks_of(SEGMENT, offset=count // 2, limit=3),
        "append": lambda: storage.write(SEGMENT, count, [b"y"]),
        "truncate": lambda: storage.truncate(SEGMENT, 2),
        "find orphans": lambda: storage.unrecorded([orphan]),
        "list": lambda: listed(storage),
        "merge": lambda: storage.concat(SEGMENT, count + 1, OTHER),
        "read of what was merged": lambda: storage.read(SEGMENT, count + 1 + count // 2, 1),
        "append after it": lambda: storage.write(SEGMENT, 2 * count + 1, [b"z"]),
    }
    found: dict[str, tuple[int, int, int]] = {}
    for name, step in steps.items():
        table.take()
        await step()
        found[name] = table.take()
    return found


async def listed(storage: ChunkedStorage) -> list[str]:
    return [segment.name async for segment in storage.list_segments()]


async def test_work_on_a_chunk_touches_as_many_records_however_many_there_are() -> None:
    """Some hundreds, or four thousand: reads, appends, truncations, merges and pages of the layout cost the same."""
    few, many = await touched(600), await touched(4000)
    assert few == many
    assert all(looked_up <= 8 for looked_up, _, _ in many.values()), many
    # Two of a truncation are the task for its chunks, and the end of that.
    assert all(written <= 8 for _, _, written in many.values()), many
    listing = many.pop("list")
    assert listing[1] <= 2 * 256
    assert all(handed_out <= 20 for _, handed_out, _ in many.values()), many


async def test_a_read_over_many_chunks_reads_a_bounded_number_of_them_at_once(world: World) -> None:
    class Watched(WrappedChunkStorage):
        now = 0
        most = 0

        async def read(self, name: str, offset: int, length: int) -> bytes:
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await asyncio.sleep(0)
                return await super().read(name, offset, length)
            finally:
                self.now -= 1

    data = bytes(range(200))
    await world.storage().write(SEGMENT, 0, [data])
    for limit in (1, 5):
        chunks = Watched(world.chunks)
        settings = replace(SMALL, chunk_reads_max=limit)
        storage = ChunkedStorage(chunks, world.table, epoch=1, runtime=world.runtime, settings=settings)
        assert await storage.read(SEGMENT, 3, 190) == data[3:193]
        assert chunks.most == limit


async def test_pages_of_a_layout_are_the_layout(world: World) -> None:
    """Over merged runs, from every offset, and of a segment that begins within a chunk."""
    storage = await nested(world)
    await storage.truncate(SEGMENT, 17)
    whole = await storage.chunks_of(SEGMENT)
    assert len(whole) == (await world.record()).chunk_count
    for limit in (1, 2, 100):
        found: list[ChunkLayout] = []
        offset: int | None = None
        while page := await storage.chunks_of(SEGMENT, offset=offset, limit=limit):
            assert len(page) <= limit
            found += page
            offset = page[-1].start_offset + page[-1].length
        assert found == whole
    for offset in range((await world.record()).length):
        (chunk,) = await storage.chunks_of(SEGMENT, offset=offset, limit=1)
        assert chunk.start_offset <= max(offset, 17) < chunk.start_offset + chunk.length
    for wrong in (storage.chunks_of(SEGMENT, offset=-1), storage.chunks_of(SEGMENT, limit=0)):
        with pytest.raises(InvalidArgumentError):
            await wrong


NESTED = b"".join(bytes([number]) * length for number, length in enumerate((15, 12, 7, 25, 3, 11, 4), 1))


async def nested(world: World) -> ChunkedStorage:
    """Make a segment of `NESTED` into which segments were merged that others had been merged into."""
    storage = world.storage()
    await storage.write("inner", 0, [NESTED[27:34]])
    await storage.seal("inner")
    await storage.write("middle", 0, [NESTED[15:27]])
    await storage.concat("middle", 12, "inner")
    await storage.write("middle", 19, [NESTED[34:59]])
    await storage.seal("middle")
    await storage.write("head", 0, [NESTED[:15]])
    await storage.seal("head")
    await storage.concat(SEGMENT, 0, "head")
    await storage.concat(SEGMENT, 15, "middle")
    await storage.write(SEGMENT, 59, [NESTED[59:73]])
    await storage.write("last", 0, [NESTED[73:]])
    await storage.seal("last")
    assert await storage.concat(SEGMENT, 73, "last") == len(NESTED) == 77
    return storage


@pytest.mark.parametrize("begin", range(0, 77, 4))
async def test_merged_runs_within_merged_runs_are_read_truncated_and_deleted(world: World, begin: int) -> None:
    """Each record of theirs goes with the last of its bytes."""
    await nested(world)
    chunks = await world.chunk_records()
    assert [chunk.length for chunk in chunks] == [10, 5, 10, 2, 7, 10, 10, 5, 10, 4, 4]
    assert await world.storage(9).unrecorded(await world.chunk_names()) == []
    for storage in (world.storage(), world.storage(2)):
        for end in range(begin + 1, 78):
            assert await storage.read(SEGMENT, begin, end - begin) == NESTED[begin:end]
    await storage.truncate(SEGMENT, begin)
    kept = await world.chunk_records()
    assert kept == [chunk for at, chunk in enumerate(chunks) if sum(c.length for c in chunks[: at + 1]) > begin]
    assert await world.chunk_names() == sorted(chunk.name for chunk in kept)
    for reader in (storage, world.storage(5)):
        assert await reader.read(SEGMENT, begin, 78 - begin) == NESTED[begin:]
    await storage.write(SEGMENT, 77, [b"behind"])
    await world.chunk_records()
    assert await storage.read(SEGMENT, 77, 99) == b"behind"
    await storage.delete(SEGMENT)
    assert world.table.entries() == []
    assert await world.chunk_names() == []


async def test_a_merge_changes_three_records_however_many_chunks_come_with_it(world: World) -> None:
    world.table = table = CountedTable()
    storage = world.storage()
    await storage.write(SEGMENT, 0, [bytes(25)])
    await storage.write(OTHER, 0, [bytes(990)])
    await storage.seal(OTHER)
    before = await world.chunk_records(OTHER)
    table.take()
    await storage.concat(SEGMENT, 25, OTHER)
    _, _, written = table.take()
    assert written == 4  # Both segments, what leads to the merged run; and the key of the source, which goes.
    assert (await world.chunk_records())[3:] == before


async def test_many_small_merges_are_read_by_a_few_reads_of_the_table(world: World) -> None:
    """As transactions leave them, each a chunk of its own: a call of the table may wait for the log."""
    world.table = table = CountedTable()
    storage = world.storage()
    data = bytes(range(120))
    for begin in range(0, 120, 3):
        await storage.write(OTHER, 0, [data[begin : begin + 3]])
        await storage.seal(OTHER)
        await storage.concat(SEGMENT, begin, OTHER)
    for epoch in (1, 2):
        reader = world.storage(epoch, replace(SMALL, page_length=16))
        table.calls = 0
        assert await reader.read(SEGMENT, 1, 118) == data[1:119]
        assert len(await reader.chunks_of(SEGMENT)) == 40
        assert table.calls <= 24
        assert await reader.read(SEGMENT, 40, 9) == data[40:49]


async def test_a_segment_made_again_shares_no_record_with_its_merged_namesake(world: World) -> None:
    """Also in a later epoch, and when both are merged into one."""
    first, second = world.storage(1), world.storage(2)
    for storage in (first, first, second):
        at = await storage.open(SEGMENT)
        await storage.write(OTHER, 0, [bytes([storage.epoch]) * 13])
        await storage.seal(OTHER)
        await storage.concat(SEGMENT, at.length if at is not None else 0, OTHER)
        await storage.write(OTHER, 0, [b"another"])
        await world.chunk_records()
        assert await storage.unrecorded(await world.chunk_names()) == []
        await storage.delete(OTHER)
    assert await world.storage(3).read(SEGMENT, 0, 99) == bytes([1]) * 26 + bytes([2]) * 13


async def test_a_merged_run_whose_bytes_are_not_what_is_recorded_is_reported(world: World) -> None:
    await nested(world)
    record = await world.record()
    merged = await MetadataTransaction(world.table, epoch=0).extent(record.run, 15)
    assert isinstance(merged, MergedRun)
    chunks = await world.chunk_records()
    inner = next(chunk for chunk in chunks if chunk.run.segment == "inner")
    for wrong in (
        replace(merged, source=replace(merged.source, number=77)),
        replace(merged, length=43),
        replace(merged, is_active=False),
        replace(inner, is_active=False),
        replace(inner, length=6),
    ):
        await world.put(wrong)
        for call in (
            world.storage(2).read(SEGMENT, 0, 77),
            world.storage(2).chunks_of(SEGMENT),
            world.storage(2).chunks_of(SEGMENT, limit=99),
            world.storage(2, replace(SMALL, chunks_per_commit_max=99)).truncate(SEGMENT, 76),
        ):
            with pytest.raises(CorruptionError):
                await call
        await world.put(merged, inner)
    assert await world.storage(2).read(SEGMENT, 0, 77) == NESTED


async def test_chunks_that_overlap_are_reported(world: World) -> None:
    """Bytes are never served twice: a chunk ends where the next begins."""
    await world.storage().write(SEGMENT, 0, [bytes(range(35))])
    chunks = await world.chunk_records()
    await world.chunks.write(chunks[1].name, 10, [b"more"])
    await world.put(replace(chunks[1], length=14, block_checksums=(*chunks[1].block_checksums[:2], 1, 2)))
    for call in (world.storage().read(SEGMENT, 12, 20), world.storage().chunks_of(SEGMENT)):
        with pytest.raises(CorruptionError, match="begins at 20"):
            await call
