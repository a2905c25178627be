"""`StorageCheck` finds every kind of damage, and none where there is none. Chunks and records are in memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from penstock.model.errors import StorageError, StorageUnavailableError
from penstock.model.segments import TablePage, TableRemoval, TableUpdate
from penstock.segmentstore.tier2.chunk_run import ChunkRun
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.records import ChunkRecord, MergedRun
from penstock.segmentstore.tier2.storage_check import (
    CheckedContainer,
    ProblemKind,
    StorageCheck,
    StorageCheckSettings,
    StorageReport,
)
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from support.chunk_records import OTHER, SEGMENT, SMALL, World

MARK = b"\1\2\3\4\5\6"
SETTINGS = StorageCheckSettings(chunk_checks_max=2, read_bytes=8, page_length=2)


def storage_of(world: World, epoch: int = 1) -> ChunkedStorage:
    """Return storage whose chunks have a mark, as a container's have."""
    orphans = OrphanChunks(world.chunks, mark=MARK)
    return ChunkedStorage(
        world.chunks, world.table, epoch=epoch, runtime=world.runtime, settings=SMALL, orphans=orphans
    )


async def checked(
    world: World,
    *,
    chunks: ChunkStorage | None = None,
    settings: StorageCheckSettings = SETTINGS,
    is_read: bool = True,
    is_complete: bool = True,
) -> StorageReport:
    container = CheckedContainer(7, 9, MARK, [MemoryMetadataTable(), world.table])
    check = StorageCheck(chunks or world.chunks, [container], runtime=world.runtime, settings=settings)
    await check.survey()
    await check.verify(is_read=is_read)
    await check.find_orphans(is_complete=is_complete)
    return check.report


def kinds(report: StorageReport) -> Counter[ProblemKind]:
    assert len(report.problems) == report.problem_count
    assert all(problem.container == 7 for problem in report.problems)
    return Counter(problem.kind for problem in report.problems)


@pytest.fixture
async def world() -> World:
    """Two segments, one with a merge in its midst and the other truncated in a chunk: 9 chunks."""
    made = World()
    storage = storage_of(made)
    await storage.write(SEGMENT, 0, [bytes(range(25))])
    await storage.write(OTHER, 0, [bytes(range(12))])
    await storage.seal(OTHER)
    await storage.concat(SEGMENT, 25, OTHER)
    await storage.write(SEGMENT, 37, [bytes(range(5))])
    await storage.write("s/u/0.#epoch.0", 0, [bytes(35)])
    await storage.truncate("s/u/0.#epoch.0", 13)
    return made


async def test_a_store_that_is_well_has_no_problems(world: World) -> None:
    """Merged, truncated, claimed by later epochs, with bytes of failed writes behind the ends of chunks."""
    chunk = (await world.chunk_records())[-1]
    await world.chunks.write(chunk.name, chunk.length, [b"left by a write that failed"])
    await storage_of(world, epoch=3).open(SEGMENT)
    report = await checked(world)
    assert report == StorageReport(
        container_count=1,
        segment_count=2,
        chunk_count=9,
        chunk_bytes=42 + 25,
        checked_chunk_count=9,
        checked_bytes=42 + 25,
        surplus_bytes=27,
    )


async def test_random_histories_are_well(world: World) -> None:
    """Writes, merges, truncations, deletions, new segments under old names, several epochs."""
    rng = random.Random(14)
    storage, lengths = storage_of(world, epoch=2), dict[str, int]()
    for step in range(300):
        name = f"s/{rng.randrange(4)}/0"
        length = lengths.setdefault(name, 0)
        match rng.randrange(12):
            case 0 if step < 250:
                await storage.delete(name)
                lengths[name] = 0
            case 1 if length:
                await storage.truncate(name, rng.randrange(length + 1))
            case 2:
                source = f"{name}#{step}"
                await storage.write(source, 0, [bytes(rng.randrange(1, 30))])
                stored = await storage.info(source)
                assert stored is not None
                await storage.seal(source)
                lengths[name] = await storage.concat(name, length, source)
            case 3:
                storage = storage_of(world, epoch=storage.epoch + 1)
            case _:
                lengths[name] = await storage.write(name, length, [bytes(rng.randrange(1, 30))])
    report = await checked(world)
    assert not report.problems
    assert not report.unused_record_count
    assert report.checked_chunk_count == report.chunk_count > 40


Damage = Callable[[World, ChunkRecord], Awaitable[None]]


async def lose(world: World, chunk: ChunkRecord) -> None:
    await world.chunks.delete(chunk.name)


async def shorten(world: World, chunk: ChunkRecord) -> None:
    data = await world.chunks.read(chunk.name, 0, chunk.length - 3)
    await world.chunks.delete(chunk.name)
    await world.chunks.create_with_content(chunk.name, [data])


async def flip(world: World, chunk: ChunkRecord) -> None:
    data = bytearray(await world.chunks.read(chunk.name, 0, chunk.length))
    data[9] ^= 1
    await world.chunks.delete(chunk.name)
    await world.chunks.create_with_content(chunk.name, [data])


async def forget_record(world: World, chunk: ChunkRecord) -> None:
    await world.table.commit([], [TableRemoval(chunk.key)])


async def flip_record(world: World, chunk: ChunkRecord) -> None:
    (entry,) = await world.table.get([chunk.key])
    assert entry is not None
    value = bytearray(entry.value)
    value[30] ^= 1
    await world.table.commit([TableUpdate(chunk.key, bytes(value))], [])


async def lengthen_record(world: World, chunk: ChunkRecord) -> None:
    await world.put(replace(chunk, length=chunk.length + 1))


async def shorten_record(world: World, chunk: ChunkRecord) -> None:
    await world.put(replace(chunk, length=chunk.length - 1))


async def empty_record(world: World, chunk: ChunkRecord) -> None:
    await world.put(replace(chunk, length=0, block_checksums=()))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lose, {ProblemKind.CHUNK_MISSING: 1}),
        (shorten, {ProblemKind.CHUNK_SHORT: 1}),
        (flip, {ProblemKind.BLOCK_DAMAGED: 1}),
        (forget_record, {ProblemKind.GAP: 1}),
        (flip_record, {ProblemKind.RECORD_DAMAGED: 1, ProblemKind.GAP: 1}),
        (lengthen_record, {ProblemKind.OVERLAP: 1, ProblemKind.CHUNK_SHORT: 1}),
        (shorten_record, {ProblemKind.GAP: 1, ProblemKind.BLOCK_DAMAGED: 1}),
        (empty_record, {ProblemKind.RECORDS_CONTRADICT: 1, ProblemKind.GAP: 1}),
    ],
)
@pytest.mark.parametrize("number", [0, 1, 3])
async def test_each_damage_of_a_chunk_or_its_record_is_found(
    world: World, damage: Damage, expected: dict[ProblemKind, int], number: int
) -> None:
    """At a segment's head, in its midst, and within what was merged into it; the rest is inspected nevertheless."""
    chunk = (await world.chunk_records())[number]
    await damage(world, chunk)
    report = await checked(world)
    assert kinds(report) == expected
    for problem in report.problems:
        assert problem.segment in (SEGMENT, OTHER), problem
        assert problem.chunk in ("", chunk.name), problem
    assert report.checked_chunk_count >= 8


async def test_a_damage_is_reported_with_its_place(world: World) -> None:
    chunk = (await world.chunk_records())[1]
    await flip(world, chunk)
    (problem,) = (await checked(world)).problems
    assert (problem.segment, problem.chunk, problem.offset) == (SEGMENT, chunk.name, 8)
    await forget_record(world, (await world.chunk_records())[0])
    gap = next(p for p in (await checked(world)).problems if p.kind is ProblemKind.GAP)
    assert (gap.segment, gap.chunk, gap.offset, gap.message) == (SEGMENT, "", 0, "no record of bytes 0 to 10")


async def test_a_check_of_lengths_does_not_read_bytes(world: World) -> None:
    first, second, *_ = await world.chunk_records()
    await flip(world, first)
    await shorten(world, second)
    report = await checked(world, is_read=False)
    assert kinds(report) == {ProblemKind.CHUNK_SHORT: 1}
    assert not report.checked_bytes


async def test_a_short_chunk_is_read_as_far_as_it_goes(world: World) -> None:
    """Its whole blocks are compared, the one that is cut is not."""
    chunk = (await world.chunk_records())[0]
    data = bytearray(await world.chunks.read(chunk.name, 0, 7))
    data[1] ^= 1
    await world.chunks.delete(chunk.name)
    await world.chunks.create_with_content(chunk.name, [data])
    assert kinds(await checked(world)) == {ProblemKind.CHUNK_SHORT: 1, ProblemKind.BLOCK_DAMAGED: 1}


async def test_contradictions_of_a_segment_with_its_chunks_are_found(world: World) -> None:
    record = await world.record()
    await world.put(replace(record, chunk_count=record.chunk_count + 1))
    assert kinds(await checked(world)) == {ProblemKind.RECORDS_CONTRADICT: 1}
    await world.put(replace(record, length=record.length + 3))
    (problem,) = (await checked(world)).problems
    assert (problem.kind, problem.offset) == (ProblemKind.GAP, record.length)
    await world.put(replace(record, start_offset=record.length + 1))
    assert kinds(await checked(world)) == {ProblemKind.RECORDS_CONTRADICT: 1}
    # The first chunk begins earlier than its segment says.
    await world.put(replace(record, start_offset=5, first_chunk_start=5))
    assert kinds(await checked(world)) == {ProblemKind.RECORDS_CONTRADICT: 1}


async def test_runs_that_are_merged_in_a_circle_end_the_walk(world: World) -> None:
    run = ChunkRun(OTHER, 1, 99)
    back = ChunkRun(SEGMENT, 1, 99)
    record = await world.record()
    await world.put(
        replace(record, run=run, length=12, last_start=0),
        MergedRun(run=run, start=0, length=12, source=back),
        MergedRun(run=back, start=0, length=12, source=run),
    )
    found = kinds(await checked(world, settings=replace(SETTINGS, merge_depth_max=20)))
    assert found[ProblemKind.RECORDS_CONTRADICT] >= 1


async def test_chunks_without_a_record_are_counted_and_are_no_problem(world: World) -> None:
    """Those with the container's mark are orphans, others are strangers, whatever their names say."""
    storage = storage_of(world)
    await storage.write("s/gone/0", 0, [bytes(25)])
    ours = [name for name in await world.chunk_names() if name.startswith("s/gone")]
    for entry in world.table.entries():
        if entry.key.startswith(b"s/gone"):
            await world.table.commit([], [TableRemoval(entry.key)])
    await world.storage().write("s/strange/0", 0, [bytes(15)])
    for entry in world.table.entries():
        if entry.key.startswith(b"s/strange"):
            await world.table.commit([], [TableRemoval(entry.key)])
    await world.chunks.create_with_content("a foreign file", [b"x"])
    report = await checked(world)
    assert not report.problems
    assert report.orphan_count == 3
    assert sorted(report.orphans) == ours
    assert report.stranger_count == 3
    few = await checked(world, settings=replace(SETTINGS, orphans_max=1))
    assert (few.orphan_count, len(few.orphans)) == (3, 1)


async def test_records_that_no_segment_leads_to_are_counted(world: World) -> None:
    """As a deletion leaves them that was cut off: the next start continues with it."""
    record = await world.record("s/u/0.#epoch.0")
    await world.put(replace(record, is_active=False))
    report = await checked(world)
    assert not report.problems
    assert (report.segment_count, report.unused_record_count) == (1, 3)


async def test_problems_beyond_a_number_are_only_counted(world: World) -> None:
    for chunk in await world.chunk_records():
        await world.chunks.delete(chunk.name)
    report = await checked(world, settings=replace(SETTINGS, problems_max=2))
    assert (len(report.problems), report.problem_count) == (2, 6)


class Failing(WrappedChunkStorage):
    """Chunks of which one cannot be read."""

    def __init__(self, inner: MemoryChunkStorage, name: str, error: StorageError) -> None:
        super().__init__(inner)
        self._name = name
        self._error = error

    async def read(self, name: str, offset: int, length: int) -> bytes:
        if name == self._name:
            raise self._error
        return await super().read(name, offset, length)


async def test_a_chunk_that_cannot_be_read_is_a_problem_and_storage_that_is_away_ends_it(world: World) -> None:
    name = (await world.chunk_records())[2].name
    report = await checked(world, chunks=Failing(world.chunks, name, StorageError("bad sector")))
    assert [(problem.kind, problem.chunk) for problem in report.problems] == [(ProblemKind.CHUNK_UNREADABLE, name)]
    assert report.checked_chunk_count == 9
    with pytest.raises(StorageUnavailableError):
        await checked(world, chunks=Failing(world.chunks, name, StorageUnavailableError("unmounted")))


class Counted(MemoryMetadataTable):
    """A table that knows how much was asked of it at once."""

    page_max = 0
    keys_max = 0

    async def page(self, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None) -> TablePage:
        self.page_max = max(self.page_max, limit)
        return await super().page(limit=limit, token=token, first=first, last=last)

    async def get(self, keys):  # type: ignore[no-untyped-def]
        self.keys_max = max(self.keys_max, len(keys))
        return await super().get(keys)


async def test_a_check_takes_records_in_pages_however_many_there_are() -> None:
    """What is in memory at once does not grow with the chunks of a segment."""
    world = World()
    await storage_of(world).write(SEGMENT, 0, [bytes(20_000)])
    world.table = Counted(world.table.entries())
    report = await checked(world, settings=StorageCheckSettings(page_length=16, chunk_checks_max=3))
    assert report.checked_chunk_count == report.chunk_count == 2000
    assert not report.problems
    assert world.table.page_max <= 16
    assert world.table.keys_max <= 4 * 16
