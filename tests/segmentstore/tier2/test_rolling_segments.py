"""Segments of RollingStorage are inspected and adopted as they lie; whatever interrupts that, it can begin again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from penstock.model.errors import (
    AdoptionError,
    CorruptionError,
    InvalidArgumentError,
    MissingChunkError,
    StorageError,
    StorageNotPrimaryError,
)
from penstock.model.segments import TableRemoval, TableUpdate
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container_settings import JoinSettings
from penstock.segmentstore.tier2.adoption_records import AdoptionMark, adoption_key
from penstock.segmentstore.tier2.chunk_joiner import ChunkJoiner
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage, StoredSegment
from penstock.segmentstore.tier2.garbage_records import check_garbage
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable
from penstock.segmentstore.tier2.object_storage import ObjectChunkStorage
from penstock.segmentstore.tier2.rolling_header import header_name
from penstock.segmentstore.tier2.rolling_layout import RollingLayout, read_layout, rolling_segments
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from penstock_simulation.simulated import Simulation
from penstock_simulation.simulated.objects import ObjectFault, SimulatedBucket, SimulatedObjects
from support.chunk_records import OTHER, SEGMENT, SMALL, World, seeded_runtime
from support.inline_work import InlineWork
from support.rolling_storage import put, put_rolling

PIECES = [bytes(range(at, at + length)) for at, length in ((0, 9), (9, 1), (10, 17), (27, 3), (30, 5))]


@pytest.fixture
def world() -> World:
    return World()


async def layout_of(world: World, segment: str = SEGMENT) -> RollingLayout:
    layout = await read_layout(world.chunks, segment)
    assert layout is not None
    return layout


async def everything(chunks: MemoryChunkStorage) -> dict[str, bytes]:
    return {info.name: await chunks.read(info.name, 0, info.length) for info in await chunks.list()}


async def read_all(storage: ChunkedStorage, segment: str = SEGMENT) -> bytes:
    info = await storage.info(segment)
    assert info is not None
    return await storage.read(segment, info.start_offset, info.length - info.start_offset)


async def test_a_segment_is_adopted_as_it_lies_and_continues(world: World) -> None:
    """Every range reads as it should, nothing of the older layout is touched, and new bytes go to chunks of our own."""
    data = await put_rolling(world.chunks, SEGMENT, PIECES)
    before = await everything(world.chunks)
    storage = world.storage()
    progress: list[int] = []
    assert await storage.adopt(await layout_of(world), progress.append) == StoredSegment(SEGMENT, 0, 35, False)
    assert sum(progress) == 35
    assert await everything(world.chunks) == before
    for start in range(35):
        for length in range(37 - start):
            assert await storage.read(SEGMENT, start, length) == data[start : start + length]
    # The epoch of the chunks belongs to no owner: not even an owner of that number would append.
    assert {chunk.epoch for chunk in await world.chunk_records()} == {0}
    assert await storage.write(SEGMENT, 35, [b"more"]) == 39
    names = await world.chunk_names()
    assert len(names) == len(before) + 1
    assert {name: (await everything(world.chunks))[name] for name in before} == before
    assert await world.storage(epoch=2).read(SEGMENT, 30, 9) == data[30:] + b"more"


async def test_a_truncated_head_and_an_empty_chunk_in_the_middle(world: World) -> None:
    """SS-241: the segment begins with the first chunk that is there."""
    pieces = [b"gone", b"gone too", b"", b"kept", b"", b"last"]
    header = "maxsize=9&"
    at = 0
    for number, piece in enumerate(pieces):
        header += f"{at}=chunk {number}&"
        if number not in (0, 1):
            await put(world.chunks, f"chunk {number}", piece)
        at += len(piece)
    await put(world.chunks, header_name(SEGMENT), header.encode())
    layout = await layout_of(world)
    assert (layout.start_offset, layout.length, layout.gone_count) == (12, 20, 2)
    storage = world.storage()
    assert await storage.adopt(layout) == StoredSegment(SEGMENT, 12, 20, False)
    assert await read_all(storage) == b"keptlast"
    assert [chunk.name for chunk in await world.chunk_records()] == ["chunk 3", "chunk 5"]


async def test_one_without_bytes_begins_where_it_ends(world: World) -> None:
    """A new one, and one that was truncated to its end: the older store keeps an empty chunk there."""
    await put(world.chunks, header_name(SEGMENT), b"maxsize=9&")
    await put(world.chunks, header_name(OTHER), b"maxsize=9&0=gone&7=end&")
    await put(world.chunks, "end", b"")
    storage = world.storage()
    assert await storage.adopt(await layout_of(world)) == StoredSegment(SEGMENT, 0, 0, False)
    assert await storage.adopt(await layout_of(world, OTHER)) == StoredSegment(OTHER, 7, 7, False)
    assert await storage.write(OTHER, 7, [b"abc"]) == 10


async def test_what_is_not_there_is_distinguished_from_damage(world: World) -> None:
    assert await read_layout(world.chunks, SEGMENT) is None
    await put(world.chunks, header_name(SEGMENT), b"")
    assert await read_layout(world.chunks, SEGMENT) is None
    # Deleted, but for the header.
    await put(world.chunks, header_name(SEGMENT), b"maxsize=9&0=a&5=b&")
    assert await read_layout(world.chunks, SEGMENT) is None
    await put(world.chunks, "a", b"12345")
    with pytest.raises(MissingChunkError, match="the last chunk of"):
        await read_layout(world.chunks, SEGMENT)
    await put(world.chunks, "b", b"12345")
    assert (await layout_of(world)).length == 10
    await put(world.chunks, header_name(SEGMENT), b"maxsize=9&0=a&5=gone&7=b&")
    with pytest.raises(MissingChunkError, match="its predecessor a in"):
        await read_layout(world.chunks, SEGMENT)
    await put(world.chunks, header_name(SEGMENT), b"maxsize=9&0=a&6=b&")
    with pytest.raises(CorruptionError, match="the chunk ends here") as caught:
        await read_layout(world.chunks, SEGMENT)
    assert (caught.value.path, caught.value.offset) == ("a", 5)
    await put(world.chunks, header_name(SEGMENT), b"maxsize=9&0=a&4=b")
    with pytest.raises(CorruptionError, match="truncated while"):
        await read_layout(world.chunks, SEGMENT)
    # No way out of the place of the chunks.
    await put(world.chunks, header_name(SEGMENT), b"maxsize=9&0=../a&")
    with pytest.raises(InvalidArgumentError):
        await read_layout(world.chunks, SEGMENT)


async def test_bytes_after_what_the_header_says_never_counted(world: World) -> None:
    await put(world.chunks, header_name(SEGMENT), b"maxsize=9&0=a&4=b&")
    await put(world.chunks, "a", b"12345")
    await put(world.chunks, "b", b"6789")
    layout = await layout_of(world)
    assert (layout.length, layout.surplus_bytes) == (8, 1)
    storage = world.storage()
    await storage.adopt(layout)
    assert await read_all(storage) == b"12346789"


async def test_all_headers_of_a_place_are_found(world: World) -> None:
    for number in range(5):
        await put_rolling(world.chunks, f"scope/stream/{number}.#epoch.0", PIECES)
    await put(world.chunks, "scope/else", b"x")
    found = [segment async for segment in rolling_segments(world.chunks)]
    assert sorted(found) == [f"scope/stream/{number}.#epoch.0" for number in range(5)]


class _Interrupted(WrappedChunkStorage):
    """Fails the read with the number `fails_at`, counted from 0."""

    def __init__(self, chunks: MemoryChunkStorage, fails_at: int) -> None:
        super().__init__(chunks)
        self._left = fails_at

    async def read(self, name: str, offset: int, length: int) -> bytes:
        self._left -= 1
        if self._left == -1:
            raise StorageError(f"{name} cannot be read now")
        return await super().read(name, offset, length)


async def test_an_adoption_that_fails_at_any_read_is_continued_by_the_next_owner() -> None:
    """Each commit leaves a valid head of the segment; the second attempt reads only what the first did not record."""
    for fails_at in range(len(PIECES)):
        world = World()
        data = await put_rolling(world.chunks, SEGMENT, PIECES)
        layout = await layout_of(world)
        settings = replace(SMALL, written_chunks_per_commit_max=2)
        first = ChunkedStorage(
            _Interrupted(world.chunks, fails_at), world.table, epoch=1, runtime=world.runtime, settings=settings
        )
        with pytest.raises(StorageError, match="cannot be read now"):
            await first.adopt(layout)
        recorded = fails_at - fails_at % 2
        info = await world.storage().info(SEGMENT)
        assert (info.length if info else 0) == sum(map(len, PIECES[:recorded]))
        progress: list[int] = []
        second = world.storage(epoch=2, settings=settings)
        await second.adopt(layout, progress.append)
        assert progress == [len(piece) for piece in PIECES[recorded:]]
        assert await read_all(second) == data
        await world.chunk_records()  # All invariants hold.
        # And again: nothing is left to do.
        await second.adopt(layout, progress.append)
        assert len(progress) == len(PIECES) - recorded
        assert await read_all(second) == data


async def test_joins_leave_alone_what_was_adopted(world: World) -> None:
    """An import that was cut off continues, since its head is what it was; and an older store finds what it left.

    What was written after it is joined. A run with adopted chunks that was merged is entered, and they stay, too.
    """
    pieces = [bytes([number]) * 3 for number in range(12)]
    data = await put_rolling(world.chunks, SEGMENT, pieces)
    await put_rolling(world.chunks, OTHER, pieces)
    before = await everything(world.chunks)
    settings = replace(SMALL, chunk_length_max=100, written_chunks_per_commit_max=8)
    cut_off = ChunkedStorage(
        _Interrupted(world.chunks, 9), world.table, epoch=1, runtime=world.runtime, settings=settings
    )
    with pytest.raises(StorageError, match="cannot be read now"):
        await cut_off.adopt(await layout_of(world))
    storage = world.storage(settings=settings)
    joiner = ChunkJoiner(storage, JoinSettings(target_bytes=100, chunks_min=2, chunks_max=16, pause_s=0.0))

    async def report(error: CorruptionError) -> None:
        raise error

    await joiner.join_round(report)  # type: ignore[arg-type]
    assert joiner.joined_count == 0
    await storage.adopt(await layout_of(world))
    await storage.adopt(await layout_of(world, OTHER))
    await storage.seal(OTHER)
    assert await storage.concat(SEGMENT, len(data), OTHER) == 2 * len(data)
    # Bytes of our own, in several chunks: each owner begins one.
    for epoch in range(2, 8):
        storage = world.storage(epoch=epoch, settings=settings)
        await storage.write(SEGMENT, 2 * len(data) + 2 * (epoch - 2), [b"12"])
    joiner = ChunkJoiner(storage, JoinSettings(target_bytes=100, chunks_min=2, chunks_max=64, pause_s=0.0))
    await joiner.join_round(report)  # type: ignore[arg-type]
    assert joiner.joined_count == 5
    assert await read_all(storage) == 2 * data + b"12" * 6
    now = await everything(world.chunks)
    assert {name: now[name] for name in before} == before


async def test_of_two_owners_that_adopt_at_once_the_later_one_wins() -> None:
    """The commit of the earlier one does not count any more, and nothing of its is left to be read."""
    world = World()
    data = await put_rolling(world.chunks, SEGMENT, PIECES)
    layout = await layout_of(world)
    commit = world.table.commit
    is_overtaken = False

    async def overtaken(updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        nonlocal is_overtaken
        if not is_overtaken:
            is_overtaken = True
            await world.storage(epoch=2).adopt(layout)
        return await commit(updates, removals)

    world.table.commit = overtaken  # type: ignore[method-assign]  # The later owner is faster.
    with pytest.raises(StorageNotPrimaryError):
        await world.storage(epoch=1).adopt(layout)
    assert await read_all(world.storage(epoch=2)) == data
    assert {chunk.run.epoch for chunk in await world.chunk_records()} == {2}


async def test_nothing_else_is_taken_for_a_part_of_it(world: World) -> None:
    await put_rolling(world.chunks, SEGMENT, PIECES)
    storage = world.storage()
    await storage.write(SEGMENT, 0, [b"123456789"])
    with pytest.raises(AdoptionError, match="already stored under this name"):
        await storage.adopt(await layout_of(world))
    assert await read_all(storage) == b"123456789"


async def test_what_was_adopted_and_deleted_does_not_come_back(world: World) -> None:
    """Its header stays, and its chunks may; were they adopted again, they would vanish under the new segment."""
    await put_rolling(world.chunks, SEGMENT, PIECES)
    storage = world.storage()
    layout = await layout_of(world)
    await storage.adopt(layout)
    await storage.delete(SEGMENT)
    await put_rolling(world.chunks, SEGMENT, PIECES)
    for epoch in (1, 2):
        assert await world.storage(epoch=epoch).adopt(layout) is None
        assert await world.storage(epoch=epoch).info(SEGMENT) is None
    # The name is free.
    assert await storage.write(SEGMENT, 0, [b"new"]) == 3
    with pytest.raises(AdoptionError, match="already stored under this name"):
        await storage.adopt(layout)


async def test_a_damaged_mark_of_an_adoption_is_reported(world: World) -> None:
    await put_rolling(world.chunks, SEGMENT, PIECES)
    mark = AdoptionMark(SEGMENT, OTHER, 77)
    stored = mark.encode()
    assert AdoptionMark.decode(mark.key, stored) == mark
    check_garbage(mark.key, stored)
    for at in range(len(stored)):
        damaged = stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :]
        with pytest.raises(CorruptionError):
            AdoptionMark.decode(mark.key, damaged)
    nothing = AdoptionMark(SEGMENT, "", 77).encode()
    for key, data in ((adoption_key(OTHER), stored), (mark.key, stored[:5]), (mark.key, b""), (mark.key, nothing)):
        with pytest.raises(CorruptionError):
            check_garbage(key, data)
    await world.table.commit([TableUpdate(mark.key, stored[:-1] + b"?")], [])
    with pytest.raises(CorruptionError):
        await world.storage().adopt(await layout_of(world))


async def test_chunks_that_are_not_recorded_are_no_orphans(world: World) -> None:
    """No sweep ever inspects a name that Penstock did not make: an older segment waits for as long as it likes."""
    from penstock.segmentstore.tier2.orphans import OrphanChunks

    await put_rolling(world.chunks, SEGMENT, PIECES)
    before = await everything(world.chunks)
    orphans = OrphanChunks(world.chunks, mark=b"\0" * 6)
    storage = world.storage(epoch=9)
    assert await orphans.sweep(9, storage.unrecorded) == 0
    assert await everything(world.chunks) == before


async def test_adopted_chunks_are_freed_like_others(world: World) -> None:
    data = await put_rolling(world.chunks, SEGMENT, PIECES)
    storage = world.storage()
    await storage.adopt(await layout_of(world))
    await storage.truncate(SEGMENT, 10)
    assert await read_all(storage) == data[10:]
    assert not {f"{SEGMENT}$offset.0", f"{SEGMENT}$offset.9"} & set(await world.chunk_names())
    await storage.delete(SEGMENT)
    assert await world.chunk_names() == [header_name(SEGMENT)]
    assert await read_layout(world.chunks, SEGMENT) is None


async def test_a_changed_byte_is_found_ever_after(world: World) -> None:
    await put_rolling(world.chunks, SEGMENT, PIECES)
    storage = world.storage()
    await storage.adopt(await layout_of(world))
    await put(world.chunks, f"{SEGMENT}$offset.10", b"x" * 17)
    with pytest.raises(CorruptionError):
        await read_all(storage)


def test_a_segment_in_a_bucket_is_adopted_though_requests_are_lost() -> None:
    """Objects that another program has put there, without our tags; requests fail, and are lost, on the way."""
    objects = SimulatedObjects(SimulatedBucket(), random.Random(1))
    chunks = ObjectChunkStorage(objects, random.Random(2), prefix="a/prefix")
    data = b"".join(PIECES)
    seeded = seeded_runtime()
    runtime = Runtime(disk=seeded.disk, work=InlineWork(), rng=seeded.rng, wall_clock_ms=seeded.wall_clock_ms)

    async def scenario() -> None:
        header = "maxsize=100&"
        at = 0
        for piece in PIECES:
            objects.bucket.create(f"a/prefix/{SEGMENT}$offset.{at}", piece, "")
            header += f"{at}={SEGMENT}$offset.{at}&"
            at += len(piece)
        objects.bucket.create(f"a/prefix/{header_name(SEGMENT)}", header.encode(), "")
        storage = ChunkedStorage(chunks, MemoryMetadataTable(), epoch=1, runtime=runtime, settings=SMALL)
        assert [segment async for segment in rolling_segments(chunks)] == [SEGMENT]
        objects.inject("get_range", ObjectFault.LOST_REPLY)
        layout = await read_layout(chunks, SEGMENT)
        assert layout is not None
        await storage.adopt(layout)
        assert await storage.write(SEGMENT, len(data), [b"more"]) == len(data) + 4
        assert await read_all(storage) == data + b"more"
        objects.inject("put_new", ObjectFault.LOST_REPLY)
        await put(chunks, header_name(OTHER), b"maxsize=9&")
        assert await read_layout(chunks, OTHER) is not None

    with Simulation(1) as simulation:
        simulation.run(scenario)
    assert objects.fault_counts == {ObjectFault.LOST_REPLY: 2}
