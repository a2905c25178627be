"""Small chunks are joined: which ones, beside what else continues with them, and how much of it in a round.

Crashes at each step of a join are in `test_storage_crashes`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import (
    ChunkError,
    CorruptionError,
    InvalidArgumentError,
    StorageFullError,
    StorageUnavailableError,
)
from penstock.model.segments import Buffer
from penstock.segmentstore.container_settings import GarbageSettings, JoinSettings
from penstock.segmentstore.tier2.chunk_joiner import ChunkJoiner
from penstock.segmentstore.tier2.chunk_run import run_of
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.garbage import GarbageQueue
from penstock.segmentstore.tier2.join_choice import choose_pieces
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.records import MergedRun, decode_record
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings
from support.chunk_records import SEGMENT, World, seeded_runtime

SETTINGS = ChunkedStorageSettings(chunk_length_max=1000, block_length=7, chunks_per_commit_max=4, page_length=3)
JOINS = JoinSettings(target_bytes=100, chunks_min=4, chunks_max=16, pause_s=0.0, interval_s=0.01, retry_s_max=0.02)


class Chunks(MemoryChunkStorage):
    """Does something first when a chunk is created or read."""

    def __init__(self) -> None:
        super().__init__(supports_append=False, supports_concat=False)
        self.before_creation: Callable[[], Awaitable[None]] | None = None
        self.read_count = 0

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        if self.before_creation is not None:
            await self.before_creation()
        return await super().create_with_content(name, data)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        self.read_count += 1
        return await super().read(name, offset, length)


class Stored(World):
    """Chunks of a storage that cannot append. `garbage`: what waits is not deleted by itself."""

    def __init__(self) -> None:
        super().__init__(supports_append=False)
        self.chunks: Chunks = Chunks()
        self.is_busy = False
        self.reported: list[CorruptionError] = []
        self.garbage = self.queue()
        self.open_storage = self.over(1)

    def queue(self, epoch: int = 1) -> GarbageQueue:
        settings = GarbageSettings(delay_s=1000.0)
        return GarbageQueue(self.chunks, self.table, epoch=epoch, settings=settings, wall_clock_ms=lambda: 7)

    def over(self, epoch: int) -> ChunkedStorage:
        return ChunkedStorage(
            self.chunks, self.table, epoch=epoch, runtime=seeded_runtime(epoch), settings=SETTINGS,
            orphans=OrphanChunks(self.chunks), garbage=self.garbage if epoch == 1 else self.queue(epoch),
        )  # fmt: skip

    def joiner(self, settings: JoinSettings = JOINS) -> ChunkJoiner:
        return ChunkJoiner(self.open_storage, settings, is_busy=lambda: self.is_busy)

    async def report(self, error: CorruptionError) -> None:
        self.reported.append(error)

    async def round(self, joiner: ChunkJoiner) -> bool:
        return await joiner.join_round(self.report)  # type: ignore[arg-type]

    async def write(self, lengths: Sequence[int], segment: str = SEGMENT) -> bytes:
        """Append chunks of these lengths; return all that the segment holds."""
        stored = await self.open_storage.info(segment)
        start, end = (stored.start_offset, stored.length) if stored is not None else (0, 0)
        for length in lengths:
            end = await self.open_storage.write(segment, end, [bytes((end + at) % 251 for at in range(length))])
        return bytes(at % 251 for at in range(start, end))

    async def lengths(self, segment: str = SEGMENT) -> list[int]:
        return [chunk.length for chunk in await self.chunk_records(segment)]

    async def unused(self) -> set[str]:
        """Return the chunks that no record leads to and that do not wait to be deleted."""
        names = set(await self.chunk_names())
        used: set[str] = set()
        async for stored in self.open_storage.list_segments():
            used |= {chunk.name for chunk in await self.chunk_records(stored.name)}
        return names - used - await self.garbage.queued(names)


async def rounds_until_nothing_is_joined(world: Stored, settings: JoinSettings = JOINS) -> ChunkJoiner:
    joiner = world.joiner(settings)
    before = -1
    while joiner.joined_count != before:
        before = joiner.joined_count
        assert await world.round(joiner)
        assert await world.round(joiner)
    return joiner


PIECES = st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=3), max_size=12)


@given(pieces=PIECES, count_min=st.integers(2, 6), full_length=st.integers(2, 60))
def test_the_choice_is_the_longest_range_that_is_worth_it(
    pieces: list[list[int]], count_min: int, full_length: int
) -> None:
    worth: list[int] = []
    for begin in range(len(pieces)):
        for end in range(begin + 1, len(pieces) + 1):
            chunks = [*itertools.chain(*pieces[begin:end])]
            if (len(chunks) >= count_min or sum(chunks) >= full_length) and 2 * max(chunks) <= sum(chunks):
                worth.append(sum(chunks))
    chosen = choose_pieces(pieces, count_min=count_min, full_length=full_length)
    if chosen is None:
        assert not worth
    else:
        assert sum(map(sum, pieces[chosen[0] : chosen[1]])) == max(worth)


async def test_small_chunks_become_few_and_the_bytes_stay() -> None:
    """SS-212: none gets longer than the target, the last one stays, and what was joined waits to be deleted."""
    world = Stored()
    data = await world.write([3] * 100)
    await rounds_until_nothing_is_joined(world)
    lengths = await world.lengths()
    assert lengths[-1] == 3
    assert max(lengths) <= 100
    assert len(lengths) <= 8
    for reader in (world.open_storage, world.over(2)):
        assert await reader.read(SEGMENT, 0, 1000) == data
    assert await world.unused() == set()
    assert world.open_storage._context.orphans.unrecorded_count == 0
    # Those of the garbage are there for the readers of before.
    assert len(await world.chunk_names()) > 100


async def test_what_lies_after_the_ends_of_chunks_is_not_joined() -> None:
    """SS-213: bytes of writes that failed. A join creates a new chunk and appends to none, so they do no harm;
    it copies only up to the ends in the records.
    """
    world = Stored()
    data = await world.write([3] * 40)
    olds = {chunk.name: chunk.length for chunk in await world.chunk_records()}
    for name in olds:
        world.chunks._chunks[name] += b"GARBAGE"
    await rounds_until_nothing_is_joined(world)
    records = await world.chunk_records()
    assert len(records) <= 5
    for chunk in records:
        stored = (await world.chunks.info(chunk.name)).length
        assert stored == chunk.length + (7 if chunk.name in olds else 0)
    assert [(await world.chunks.info(name)).length for name in olds] == [length + 7 for length in olds.values()]
    assert await world.over(2).read(SEGMENT, 0, 1000) == data


async def test_each_byte_is_copied_few_times_however_little_comes_at_a_time() -> None:
    """A chunk is joined only with as much again: from 3 bytes to 1000 that is eight times at the most."""
    world = Stored()
    joiner = world.joiner(replace(JOINS, target_bytes=1000))
    data = b""
    for _ in range(300):
        data = await world.write([3])
        assert await world.round(joiner)
    assert joiner.copied_bytes <= 8 * len(data)
    assert len(await world.lengths()) <= 20
    assert await world.open_storage.read(SEGMENT, 0, 1000) == data


async def test_long_chunks_and_few_ones_are_left_alone() -> None:
    world = Stored()
    await world.write([60, 60, 3, 3, 3, 60, 51, 51, 51, 51, 3])
    before = await world.chunk_names()
    await rounds_until_nothing_is_joined(world)
    assert await world.chunk_names() == before


async def test_no_chunk_gets_longer_than_its_segment_wants() -> None:
    world = Stored()
    await world.open_storage.write(SEGMENT, 0, [bytes(3)], chunk_length_max=20)
    await world.write([3] * 40)
    await rounds_until_nothing_is_joined(world)
    assert 10 < max(await world.lengths()) <= 20


async def test_the_last_chunk_is_joined_once_the_segment_is_sealed() -> None:
    world = Stored()
    data = await world.write([3] * 9)
    await world.open_storage.seal(SEGMENT)
    await rounds_until_nothing_is_joined(world)
    assert await world.lengths() == [27]
    assert (await world.record()).last_start == 0
    assert await world.over(2).read(SEGMENT, 0, 99) == data


async def merge(world: Stored, number: int, lengths: Sequence[int]) -> None:
    """Merge a transaction with chunks of these lengths."""
    source = f"{SEGMENT}#transaction.{number}"
    record = await world.record()
    end = 0
    for length in lengths:
        data = bytes((record.length + end + at) % 251 for at in range(length))
        end = await world.open_storage.write(source, end, [data])
    await world.open_storage.seal(source)
    await world.open_storage.concat(SEGMENT, record.length, source)


async def test_merged_transactions_become_few_chunks() -> None:
    """SS-215: with the records of the merges; what follows them is appended as before."""
    world = Stored()
    await world.write([3])
    for number in range(50):
        await merge(world, number, [1, 2])
        if number % 10 == 9:
            await world.write([3])
    data = await world.write([3, 3])
    await rounds_until_nothing_is_joined(world)
    assert len(await world.lengths()) <= 7
    keys = [entry.key for entry in world.table.entries() if b"#transaction." in entry.key]
    assert len(keys) <= 16  # At the end may be some that are too few.
    assert await world.over(2).read(SEGMENT, 0, 1000) == data
    assert await world.unused() == set()


async def test_chunks_are_joined_within_a_long_merged_run_and_in_one_whose_head_is_truncated() -> None:
    world = Stored()
    await world.write([3])
    await merge(world, 0, [3] * 60)
    await world.write([3])
    await world.open_storage.truncate(SEGMENT, 50)
    await rounds_until_nothing_is_joined(world)
    assert any(isinstance(extent, MergedRun) for extent in await world_extents(world))
    assert len(await world.lengths()) <= 6
    assert await world.over(2).read(SEGMENT, 50, 1000) == bytes(range(50, 186))
    await world.open_storage.truncate(SEGMENT, 186)
    assert await world.lengths() == []


async def world_extents(world: Stored) -> list[object]:
    return [decode_record(entry.key, entry.value) for entry in world.table.entries() if run_of(entry.key) is not None]


async def during_the_copy(world: Stored, change: Callable[[], Awaitable[object]], *, is_joined: bool) -> None:
    """Have something happen while chunks are copied; say whether the join is to succeed nevertheless."""

    async def once() -> None:
        world.chunks.before_creation = None
        await change()

    world.chunks.before_creation = once
    joiner = world.joiner(replace(JOINS, round_bytes=1))
    assert await world.round(joiner)
    assert world.chunks.before_creation is None
    assert bool(joiner.made_count) == is_joined  # type: ignore[unreachable]
    assert await world.unused() == set()


async def test_what_is_truncated_during_the_copy_does_not_come_back() -> None:
    world = Stored()
    data = await world.write([3] * 20)
    await during_the_copy(world, lambda: world.open_storage.truncate(SEGMENT, 30), is_joined=False)
    record = await world.record()
    assert (record.start_offset, record.first_chunk_start) == (30, 30)
    assert await world.open_storage.read(SEGMENT, 30, 99) == data[30:]


async def test_a_segment_that_is_made_again_during_the_copy_is_left_alone() -> None:
    world = Stored()
    await world.write([3] * 20)

    async def again() -> None:
        await world.open_storage.delete(SEGMENT)
        for _ in range(20):
            stored = await world.open_storage.info(SEGMENT)
            await world.open_storage.write(SEGMENT, stored.length if stored is not None else 0, [b"new"])

    await during_the_copy(world, again, is_joined=False)
    assert await world.open_storage.read(SEGMENT, 0, 99) == b"new" * 20


async def test_a_segment_that_is_merged_during_the_copy_is_left_alone() -> None:
    world = Stored()
    data = await world.write([3] * 20)
    target = "scope/stream/other"
    await world.open_storage.seal(SEGMENT)
    await during_the_copy(world, lambda: world.open_storage.concat(target, 0, SEGMENT), is_joined=False)
    assert await world.open_storage.read(target, 0, 99) == data
    await rounds_until_nothing_is_joined(world)
    assert len(await world.lengths(target)) <= 2
    assert await world.open_storage.read(target, 0, 99) == data


async def test_what_is_written_during_the_copy_is_behind_what_was_joined() -> None:
    world = Stored()
    await world.write([3] * 20)
    await during_the_copy(world, lambda: world.write([5]), is_joined=True)
    assert await world.open_storage.read(SEGMENT, 0, 99) == bytes(range(65))


async def test_a_layout_of_before_reads_what_was_joined_while_its_lease_lasts() -> None:
    world = Stored()
    data = await world.write([3] * 20)
    lease, layout = await world.open_storage.leased_layout(SEGMENT, 100.0, holder="a job")
    await rounds_until_nothing_is_joined(world)
    joined_count = len(await world.chunk_names()) - len(await world.lengths())
    for time_s in (200.0, 2000.0):
        world.garbage._note()
        marks = [(at_s - time_s, number) for at_s, number in world.garbage._marks]
        world.garbage._marks.clear()
        world.garbage._marks.extend(marks)
    assert await world.garbage.collect() == 0
    assert b"".join([await world.chunks.read(chunk.name, 0, chunk.length) for chunk in layout]) == data
    await world.garbage.leases.release(lease)
    assert await world.garbage.collect() == joined_count >= 16


async def test_damage_of_one_segment_is_reported_and_the_others_are_joined() -> None:
    world = Stored()
    damaged = "scope/stream/a"
    await world.write([3] * 20, damaged)
    await world.write([3] * 20)
    name = (await world.chunk_records(damaged))[15].name
    await world.chunks.delete(name)
    joiner = await rounds_until_nothing_is_joined(world)
    assert [error.path for error in world.reported] == [name]
    assert len(await world.lengths(damaged)) == 20
    assert len(await world.lengths()) <= 5
    assert joiner.joined_count


async def test_a_new_chunk_that_reads_differently_is_not_recorded() -> None:
    world = Stored()
    data = await world.write([3] * 20)
    before = await world.chunk_names()

    class Forgetful(Chunks):
        async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
            whole = b"".join(data)
            await super().create_with_content(name, [whole[:-1] + b"?"])
            return len(whole)

    forgetful = Forgetful()
    for name in before:
        await forgetful.create_with_content(name, [await world.chunks.read(name, 0, 99) + b"?"])
    storage = ChunkedStorage(forgetful, world.table, epoch=1, runtime=seeded_runtime(), settings=SETTINGS)
    with pytest.raises(ChunkError, match="differs from that of its creation"):
        await ChunkJoiner(storage, JOINS).join_round(world.report)  # type: ignore[arg-type]
    assert await world.open_storage.read(SEGMENT, 0, 99) == data
    assert len(await world.lengths()) == 20
    assert [info.name for info in await forgetful.list()] == before


async def test_a_round_is_as_long_as_it_may_be() -> None:
    """In bytes, in records, and not at all while the container has other things to do."""
    world = Stored()
    for number in range(6):
        await world.write([3] * 20, f"scope/stream/{number}")
    joiner = world.joiner(replace(JOINS, round_bytes=40))
    assert await world.round(joiner)
    assert joiner.made_count == 1
    world.is_busy = True
    assert not await world.round(joiner)
    assert joiner.made_count == 1
    world.is_busy = False
    assert await world.round(joiner)
    assert joiner.made_count == 2
    short = world.joiner(replace(JOINS, round_records=1))
    assert await world.round(short)
    assert short.made_count <= 1
    for _ in range(60):
        assert await world.round(short)
    for number in range(6):
        assert len(await world.lengths(f"scope/stream/{number}")) <= 5


async def test_nothing_is_read_where_there_is_nothing_new() -> None:
    world = Stored()
    await world.write([3] * 40)
    joiner = await rounds_until_nothing_is_joined(world)
    scanned: list[str] = []
    original = world.open_storage.join_chunks

    async def join_chunks(segment: str, *arguments: object) -> object:
        scanned.append(segment)
        return await original(segment, *arguments)  # type: ignore[arg-type]  # Passed on.

    world.open_storage.join_chunks = join_chunks  # type: ignore[method-assign, assignment]
    assert await world.round(joiner)
    assert scanned == []
    await world.write([3] * 4)
    assert await world.round(joiner)
    assert scanned


@pytest.mark.parametrize("problem", [StorageFullError("full"), StorageUnavailableError("away")])
async def test_rounds_continue_when_storage_does_again(problem: Exception) -> None:
    """Old chunks stay whole meanwhile, nothing is left behind, and the task does not end."""
    world = Stored()
    data = await world.write([3] * 20)
    failures = 0

    async def fail() -> None:
        nonlocal failures
        failures += 1
        if failures == 3:
            world.chunks.before_creation = None
        raise problem

    world.chunks.before_creation = fail
    joiner = world.joiner()
    task = asyncio.ensure_future(joiner.run(world.report))  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        while not joiner.made_count:
            await asyncio.sleep(0.01)
            assert not task.done()
    assert failures == 3
    assert await world.open_storage.read(SEGMENT, 0, 99) == data
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await world.unused() == set()


async def test_a_cancelled_copy_leaves_nothing_behind() -> None:
    world = Stored()
    await world.write([3] * 20)
    hangs = asyncio.Event()

    async def hang() -> None:
        hangs.set()
        await asyncio.Event().wait()

    world.chunks.before_creation = hang
    task = asyncio.ensure_future(world.round(world.joiner()))
    await hangs.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(world.open_storage._context.orphans) == 1
    assert len(await world.chunk_names()) == 20


def test_settings_that_cannot_work_are_refused() -> None:
    for settings in ({"chunks_min": 1}, {"chunks_min": 9, "chunks_max": 8}, {"target_bytes": 1}, {"chunks_max": 1000}):
        with pytest.raises(InvalidArgumentError):
            JoinSettings(**settings)  # type: ignore[arg-type]
