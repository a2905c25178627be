"""`ChunkedStorage` follows the rules of segment-store 8.5 to 8.8, one test per rule.

Chunks and records are in memory; a second instance with a higher epoch over both represents the container's next owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from penstock.model.block_checksums import verify_blocks
from penstock.model.errors import (
    BadOffsetError,
    CorruptionError,
    InvalidArgumentError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    SegmentSealedError,
    SegmentTruncatedError,
    StorageConflictError,
    StorageFullError,
    StorageNotPrimaryError,
)
from penstock.model.segments import Buffer, TableRemoval, TableUpdate
from penstock.segmentstore.container_settings import JoinSettings, OrphanSettings
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage, StoredSegment
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from support.chunk_records import OTHER, SEGMENT, SMALL, World


@pytest.fixture
def world() -> World:
    return World()


async def test_write_rolls_over_and_reads_back_at_every_range(world: World) -> None:
    # SS-193, SS-209: three chunks, unique names, every range including those one byte around the borders.
    storage = world.storage()
    data = bytes(range(35))
    assert await storage.write(SEGMENT, 0, [data[:3], bytearray(data[3:20]), b"", memoryview(data)[20:]]) == 35
    chunks = await world.chunk_records()
    assert [chunk.length for chunk in chunks] == [10, 10, 10, 5]
    assert len({chunk.name for chunk in chunks}) == 4
    assert all(chunk.name.startswith(f"{SEGMENT}.E-1-O-") for chunk in chunks)
    for reader in (storage, world.storage(), world.storage(epoch=9)):
        for start in range(35):
            for length in range(37 - start):
                assert await reader.read(SEGMENT, start, length) == data[start : start + length]


async def test_a_write_of_many_chunks_goes_in_commits_of_a_bounded_number(world: World) -> None:
    """One commit, an append to the container's log, never grows with the ratio of write to chunk."""
    commits: list[int] = []
    commit = world.table.commit

    async def counted(updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        commits.append(len(updates))
        return await commit(updates, removals)

    world.table.commit = counted  # type: ignore[method-assign]  # Counts, and passes on.
    storage = world.storage(settings=replace(SMALL, written_chunks_per_commit_max=3))
    data = bytes(range(95))
    assert await storage.write(SEGMENT, 0, [data[:50], data[50:]]) == 95
    # Three new chunks and the segment.
    assert len(commits) == 4
    assert max(commits) <= 4
    assert [chunk.length for chunk in await world.chunk_records()] == [10] * 9 + [5]
    assert await world.storage().read(SEGMENT, 0, 95) == data


async def test_work_on_very_many_chunks_lets_others_continue(world: World) -> None:
    """Every step of it finds what it needs without waiting, and 20 000 of them held everybody up for a second."""
    count = 1000
    settings = replace(SMALL, chunk_length_max=1, records_cached_max=4 * count, chunks_per_commit_max=128)
    writer = world.storage(settings=settings)
    await writer.write(SEGMENT, 0, [bytes(count)])
    storage = world.storage(epoch=2, settings=settings)
    await storage.open(SEGMENT)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: storage.read(SEGMENT, 0, count // 2),
        lambda: storage.read(SEGMENT, 0, count // 2),
        lambda: storage.chunks_of(SEGMENT),
        lambda: storage.truncate(SEGMENT, count // 2),
    ]
    for step in steps:
        await asyncio.sleep(0)
        before = turns
        await step()
        assert turns - before >= count // 2 // 64 - 1
    task.cancel()


async def test_chunks_joined_in_order_are_the_segment(world: World) -> None:
    # SS-244: chunk bytes are user bytes (G9).
    storage = world.storage()
    for start in range(0, 50, 7):
        await storage.write(SEGMENT, start, [bytes(range(start, start + 7))])
    layout = await storage.chunks_of(SEGMENT)
    parts = [(await world.chunks.read(chunk.name, 0, 100))[: chunk.length] for chunk in layout]
    assert b"".join(parts) == await storage.read(SEGMENT, 0, 100)
    assert [chunk.start_offset for chunk in layout] == [0, 10, 20, 30, 40, 50]
    for chunk, part in zip(layout, parts, strict=True):
        verify_blocks(chunk.name, 0, part, chunk.block_checksums, block_length=chunk.block_length)


async def test_small_writes_fill_one_chunk(world: World) -> None:
    storage = world.storage()
    for offset in range(10):
        assert await storage.write(SEGMENT, offset, [bytes([offset])]) == offset + 1
    (chunk,) = await world.chunk_records()
    assert chunk.length == 10
    assert await storage.read(SEGMENT, 0, 10) == bytes(range(10))


async def test_segment_keeps_its_own_chunk_length(world: World) -> None:
    storage = world.storage()
    await storage.write(SEGMENT, 0, [bytes(3)], chunk_length_max=4)
    await storage.write(SEGMENT, 3, [bytes(6)])
    assert [chunk.length for chunk in await world.chunk_records()] == [4, 4, 1]
    await storage.write(SEGMENT, 9, [bytes(3)], chunk_length_max=2)
    assert [chunk.length for chunk in await world.chunk_records()] == [4, 4, 2, 2]
    await storage.write(SEGMENT, 12, [bytes(12)], chunk_length_max=1 << 40)
    assert [chunk.length for chunk in await world.chunk_records()] == [4, 4, 2, 10, 4]


@pytest.mark.parametrize("offset", [0, 4, 6, 100])
async def test_write_at_a_wrong_offset_leaves_nothing(world: World, offset: int) -> None:
    # SS-194
    storage = world.storage()
    await storage.write(SEGMENT, 0, [b"abcde"])
    before = await world.chunks.list()
    with pytest.raises(BadOffsetError) as raised:
        await storage.write(SEGMENT, offset, [b"x"])
    assert (raised.value.expected, raised.value.actual) == (offset, 5)
    assert await world.chunks.list() == before


async def test_segment_may_begin_behind_zero(world: World) -> None:
    storage = world.storage()
    assert await storage.write(SEGMENT, 1000, [b"abc"]) == 1003
    assert await storage.open(SEGMENT) == StoredSegment(SEGMENT, 1000, 1003, False)
    with pytest.raises(SegmentTruncatedError) as raised:
        await storage.read(SEGMENT, 999, 1)
    assert (raised.value.start_offset, raised.value.offset) == (1000, 999)
    assert await storage.read(SEGMENT, 1001, 5) == b"bc"


async def test_empty_write_stores_nothing(world: World) -> None:
    storage = world.storage()
    assert await storage.write(SEGMENT, 5, [b"", b""]) == 5
    assert await storage.open(SEGMENT) is None
    await storage.write(SEGMENT, 0, [b"abc"])
    assert await storage.write(SEGMENT, 3, []) == 3
    with pytest.raises(BadOffsetError):
        await storage.write(SEGMENT, 2, [])


async def test_missing_segment_is_reported(world: World) -> None:
    storage = world.storage()
    assert await storage.open(SEGMENT) is None
    assert await storage.info(SEGMENT) is None
    await storage.delete(SEGMENT)
    for call in (
        storage.read(SEGMENT, 0, 1),
        storage.read(SEGMENT, 0, 0),
        storage.truncate(SEGMENT, 0),
        storage.seal(SEGMENT),
        storage.chunks_of(SEGMENT),
        storage.concat(OTHER, 0, SEGMENT),
    ):
        with pytest.raises(NoSuchSegmentError):
            await call
    assert world.table.entries() == []


async def test_bad_arguments_are_refused(world: World) -> None:
    storage = world.storage()
    await storage.write(SEGMENT, 0, [b"abc"])
    for call in (
        storage.write("../up", 0, [b"x"]),
        storage.write(SEGMENT, -1, [b"x"]),
        storage.write(SEGMENT, 3, [b"x"], chunk_length_max=-1),
        storage.open(""),
        storage.read(SEGMENT, -1, 1),
        storage.read(SEGMENT, 0, -1),
        storage.read(SEGMENT, 3, 1),
        storage.read(SEGMENT, 4, 1),
        storage.concat(SEGMENT, 3, SEGMENT),
        storage.concat(SEGMENT, -1, OTHER),
    ):
        with pytest.raises(InvalidArgumentError):
            await call


async def test_storage_without_append_gets_a_chunk_per_write() -> None:
    # SS-239, segment-store 8.11.
    world = World(supports_append=False)
    storage = world.storage()
    for offset in range(0, 9, 3):
        await storage.write(SEGMENT, offset, [bytes([offset]) * 3])
    await storage.write(SEGMENT, 9, [b"x" * 15])
    assert [chunk.length for chunk in await world.chunk_records()] == [3, 3, 3, 10, 5]
    assert await storage.read(SEGMENT, 0, 99) == b"\0\0\0\3\3\3\6\6\6" + b"x" * 15


# --- Ownership.


async def test_first_write_after_a_claim_begins_a_new_chunk(world: World) -> None:
    # R8.13, SS-200: what the old owner appends to its chunk afterwards is never read.
    old, new = world.storage(1), world.storage(2)
    await old.write(SEGMENT, 0, [b"abc"])
    assert await new.open(SEGMENT) == StoredSegment(SEGMENT, 0, 3, False)
    assert (await world.record()).is_ownership_changed
    await new.write(SEGMENT, 3, [b"DE"])
    assert not (await world.record()).is_ownership_changed
    await new.write(SEGMENT, 5, [b"F"])
    chunks = await world.chunk_records()
    assert [(chunk.length, chunk.epoch) for chunk in chunks] == [(3, 1), (3, 2)]
    await world.chunks.write(chunks[0].name, 3, [b"ZOMBIE"])
    assert await new.read(SEGMENT, 0, 100) == b"abcDEF"
    assert await world.storage(3).read(SEGMENT, 0, 100) == b"abcDEF"


async def test_zombie_changes_nothing_and_is_reported(world: World) -> None:
    # SS-201: after epoch 2 opened, every change of epoch 1 fails and leaves the records as they are.
    old, new = world.storage(1), world.storage(2)
    await old.write(SEGMENT, 0, [b"abcdefghijklm"])
    await old.write(OTHER, 0, [b"xyz"])
    await old.seal(OTHER)
    await new.open(SEGMENT)
    await new.open(OTHER)
    before = world.table.entries()
    chunks = await world.chunk_names()
    for _ in range(2):  # With what it remembers, and after it had to read again.
        for call in (
            old.write(SEGMENT, 13, [b"ZOMBIE" * 4]),
            old.truncate(SEGMENT, 12),
            old.seal(SEGMENT),
            old.concat(SEGMENT, 13, OTHER),
            old.delete(SEGMENT),
        ):
            with pytest.raises(StorageNotPrimaryError) as raised:
                await call
            assert (raised.value.owner_epoch, raised.value.epoch) == (2, 1)
    with pytest.raises(StorageNotPrimaryError):
        await old.open(SEGMENT)
    assert world.table.entries() == before
    assert await world.chunk_names() == chunks
    assert await old.read(SEGMENT, 0, 100) == b"abcdefghijklm"
    await new.write(SEGMENT, 13, [b"NEW"])
    assert await new.read(SEGMENT, 0, 100) == b"abcdefghijklmNEW"


@pytest.mark.parametrize("change", ["truncate", "delete"])
async def test_zombie_whose_chunks_were_deleted_does_not_cry_corruption(world: World, change: str) -> None:
    # Found by the history test: its memory names chunks that its successor has rightly deleted.
    async def lost() -> ChunkedStorage:
        old = world.storage(1)
        await old.write(SEGMENT, 0, [bytes(13)])
        await old.write(OTHER, 0, [bytes(13)])
        await old.seal(OTHER)
        return old

    old = await lost()
    new = world.storage(2)
    for segment in (SEGMENT, OTHER):
        if change == "truncate":
            await new.truncate(segment, 13)
        else:
            await new.delete(segment)
    before = world.table.entries()
    expected = StorageNotPrimaryError if change == "truncate" else StorageConflictError
    with pytest.raises(expected):
        await old.write(SEGMENT, 13, [b"x"])
    with pytest.raises(SegmentTruncatedError if change == "truncate" else NoSuchSegmentError):
        await old.read(OTHER, 0, 1)
    assert world.table.entries() == before
    assert await world.chunk_names() == []
    if change == "truncate":
        assert await old.chunks_of(OTHER) == []
    else:
        with pytest.raises(NoSuchSegmentError):
            await old.chunks_of(OTHER)


async def test_zombie_may_read_a_segment_of_a_later_epoch(world: World) -> None:
    # SS-202
    await world.storage(3).write(SEGMENT, 0, [b"abc"])
    old = world.storage(2)
    with pytest.raises(StorageNotPrimaryError):
        await old.open(SEGMENT)
    assert await old.read(SEGMENT, 0, 3) == b"abc"
    await world.storage(3).write(SEGMENT, 3, [b"def"])
    assert await old.read(SEGMENT, 0, 6) == b"abcdef"
    assert (await world.record()).owner_epoch == 3


async def test_write_without_open_claims(world: World) -> None:
    await world.storage(1).write(SEGMENT, 0, [b"abc"])
    await world.storage(2).write(SEGMENT, 3, [b"def"])
    assert [chunk.epoch for chunk in await world.chunk_records()] == [1, 2]
    assert (await world.record()).owner_epoch == 2


async def test_open_by_the_owner_writes_nothing(world: World) -> None:
    storage = world.storage()
    await storage.write(SEGMENT, 0, [b"abc"])
    before = world.table.entries()
    await storage.open(SEGMENT)
    await world.storage(1).open(SEGMENT)
    assert world.table.entries() == before


async def test_two_instances_creating_a_segment_have_one_winner(world: World) -> None:
    # SS-204: both saw that there was nothing.
    results = await asyncio.gather(
        *(world.storage(1).write(SEGMENT, 0, [bytes([n]) * 3]) for n in range(4)), return_exceptions=True
    )
    winners = [n for n, result in enumerate(results) if result == 3]
    assert len(winners) == 1
    assert all(isinstance(r, StorageConflictError | BadOffsetError) for r in results if r != 3)
    assert await world.storage(1).read(SEGMENT, 0, 9) == bytes(winners) * 3
    assert len(await world.chunk_names()) == 1


@pytest.mark.parametrize("verb", ["write", "truncate", "seal", "delete", "concat", "concat of it", "join"])
async def test_what_a_change_has_read_is_what_it_was_when_it_is_committed(world: World, verb: str) -> None:
    """SS-205: also records that the change only read. It writes that of each segment whose chunks' records it reads.

    The segment is written to between the reads and the commit of the change; then the change has no effect at all.
    """

    class Overtaken(MemoryMetadataTable):
        first: Callable[[], Awaitable[object]] | None = None

        async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
            first, self.first = self.first, None
            if first is not None:
                await first()
            return await super().commit(updates, removals)

    world.table = table = Overtaken()
    storage, other = world.storage(1), world.storage(1)
    other._context.cache = storage._context.cache  # As of one owner; its locks are not inspected.
    data = bytes(range(22))
    for at in range(0, 20, 2):
        await storage.write(SEGMENT, at, [data[at : at + 2]], chunk_length_max=2)
    await storage.write(SEGMENT, 20, [data[20:]], chunk_length_max=10)
    await storage.write(OTHER, 0, [b"other"])
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "write": lambda: storage.write(SEGMENT, 22, [b"lost"]),
        "truncate": lambda: storage.truncate(SEGMENT, 7),
        "seal": lambda: storage.seal(SEGMENT),
        "delete": lambda: storage.delete(SEGMENT),
        "concat": lambda: storage.concat(SEGMENT, 22, OTHER),
        "concat of it": lambda: storage.concat(OTHER, 5, SEGMENT),
        "join": lambda: storage.join_chunks(SEGMENT, 0, 22, JoinSettings(target_bytes=10, chunks_min=2)),
    }
    expected, start = data + b"more", 0
    if verb == "concat":
        await storage.seal(OTHER)
    if verb == "concat of it":
        await storage.seal(SEGMENT)
        expected, start = data, 3
        table.first = lambda: other.truncate(SEGMENT, 3)
    else:
        table.first = lambda: other.write(SEGMENT, 22, [b"more"])
    with pytest.raises(StorageConflictError):
        await calls[verb]()
    assert table.first is None
    for reader in (storage, world.storage(1)):  # type: ignore[unreachable]
        assert await reader.read(SEGMENT, start, 99) == expected[start:]
        assert await reader.info(SEGMENT) == StoredSegment(SEGMENT, start, len(expected), verb == "concat of it")
        assert await reader.info(OTHER) == StoredSegment(OTHER, 0, 5, verb == "concat")
    used = [chunk.name for name in (SEGMENT, OTHER) for chunk in await world.chunk_records(name)]
    assert sorted(used) == await world.chunk_names()


# --- Failures of the chunk storage.


async def test_garbage_after_the_recorded_length_makes_a_new_chunk(world: World) -> None:
    # SS-198
    storage = world.storage()
    await storage.write(SEGMENT, 0, [b"abc"])
    (first,) = await world.chunk_records()
    await world.chunks.write(first.name, 3, [b"GARBAGE"])
    assert await storage.write(SEGMENT, 3, [b"defghijklmnop"]) == 16
    assert [chunk.length for chunk in await world.chunk_records()] == [3, 10, 3]
    assert await storage.read(SEGMENT, 0, 100) == b"abcdefghijklmnop"


async def test_full_storage_stores_nothing_and_continues_later(world: World) -> None:
    # SS-238: full in the second chunk; the first chunk's file is taken back.
    storage = world.storage()
    await storage.write(SEGMENT, 0, [b"abcdefgh"])
    world.chunks.capacity_bytes = 25
    for _ in range(3):
        with pytest.raises(StorageFullError):
            await storage.write(SEGMENT, 8, [b"x" * 40])
        assert await storage.info(SEGMENT) == StoredSegment(SEGMENT, 0, 8, False)
        assert len(await world.chunk_names()) <= 2
    world.chunks.capacity_bytes = None
    assert await storage.write(SEGMENT, 8, [b"x" * 40]) == 48
    assert await storage.read(SEGMENT, 0, 99) == b"abcdefgh" + b"x" * 40


async def test_every_flipped_byte_is_reported(world: World) -> None:
    storage = world.storage()
    data = bytes(range(10))
    await storage.write(SEGMENT, 0, [data[:7]])
    await storage.write(SEGMENT, 7, [data[7:]])
    (chunk,) = await world.chunk_records()
    await world.chunks.write(chunk.name, 10, [b"not ours"])
    stored = world.chunks._chunks[chunk.name]
    for at in range(len(stored)):
        for bit in (1, 0x80):
            stored[at] ^= bit
            for start in range(10):
                for end in range(start + 1, 11):
                    block = at // 4
                    is_touched = at < 10 and start // 4 <= block <= (end - 1) // 4
                    if is_touched:
                        with pytest.raises(CorruptionError) as raised:
                            await storage.read(SEGMENT, start, end - start)
                        assert (raised.value.path, raised.value.offset) == (chunk.name, block * 4)
                    else:
                        assert await storage.read(SEGMENT, start, end - start) == data[start:end]
            stored[at] ^= bit


async def test_cut_chunk_is_reported(world: World) -> None:
    storage = world.storage()
    await storage.write(SEGMENT, 0, [b"abcdefg"])
    (chunk,) = await world.chunk_records()
    for length in range(7):
        await world.chunks.delete(chunk.name)
        await world.chunks.create(chunk.name)
        await world.chunks.write(chunk.name, 0, [b"abcdefg"[:length]])
        with pytest.raises(CorruptionError) as raised:
            await storage.read(SEGMENT, 0, 7)
        assert (raised.value.path, raised.value.offset) == (chunk.name, length)
        with pytest.raises(CorruptionError):
            await storage.read(SEGMENT, 6, 1)
        with pytest.raises(CorruptionError):
            await storage.write(SEGMENT, 7, [b"h"])
    await world.chunks.delete(chunk.name)
    with pytest.raises(CorruptionError):
        await storage.read(SEGMENT, 0, 7)
    with pytest.raises(CorruptionError):
        await storage.write(SEGMENT, 7, [b"h"])


async def test_records_that_contradict_each_other_are_reported(world: World) -> None:
    await world.storage(1).write(SEGMENT, 0, [bytes(25)])
    record = await world.record()
    chunks = await world.chunk_records()
    for wrong in (
        replace(record, length=26),
        replace(record, start_offset=26),
        replace(record, chunk_count=1),
        replace(record, chunk_count=0),
        replace(record, last_start=19),
        replace(record, last_start=10),
        replace(record, run=replace(record.run, number=99)),
        replace(record, first_chunk_start=-1),
        replace(record, chunk_length_max=0),
    ):
        await world.put(wrong)
        with pytest.raises(CorruptionError):
            await world.storage(2).open(SEGMENT)
        with pytest.raises(CorruptionError):
            await world.storage(2).write(SEGMENT, wrong.length, [b"x"])
    await world.put(record, replace(chunks[0], length=9))
    with pytest.raises(CorruptionError):
        await world.storage(2).read(SEGMENT, 0, 25)
    await world.put(replace(chunks[0], is_active=False))
    for call in (
        world.storage(2).read(SEGMENT, 5, 10),
        world.storage(2).chunks_of(SEGMENT),
        world.storage(2).chunks_of(SEGMENT, limit=1),
        world.storage(2).truncate(SEGMENT, 21),
        world.storage(2).delete(SEGMENT),
    ):
        with pytest.raises(CorruptionError):
            await call


# --- Truncate, seal, delete, concat.


@pytest.mark.parametrize("offset", range(43))
async def test_truncate_at_every_offset(world: World, offset: int) -> None:
    # SS-216, SS-217: also goes over chunks_per_commit_max, and is followed by an append.
    storage = world.storage()
    data = bytes(range(42))
    await storage.write(SEGMENT, 0, [data])
    names = [chunk.name for chunk in await world.chunk_records()]
    await storage.truncate(SEGMENT, offset)
    await storage.truncate(SEGMENT, offset // 2)
    kept = [chunk.name for chunk in await world.chunk_records()]
    assert kept == names[offset // 10 if offset < 42 else 5 :]
    assert await world.chunk_names() == sorted(kept)
    assert len(world.table.entries()) == 1 + len(kept)
    record = await world.record()
    assert (record.start_offset, record.length) == (offset, 42)
    await storage.write(SEGMENT, 42, [b"more"])
    for reader in (storage, world.storage(5)):
        assert await reader.read(SEGMENT, offset, 100) == data[offset:] + b"more"
        if offset:
            with pytest.raises(SegmentTruncatedError):
                await reader.read(SEGMENT, offset - 1, 2)


async def test_truncate_beyond_the_length_is_refused(world: World) -> None:
    storage = world.storage()
    await storage.write(SEGMENT, 0, [b"abc"])
    with pytest.raises(BadOffsetError):
        await storage.truncate(SEGMENT, 4)


@pytest.mark.parametrize("length", [0, 5, 42])
@pytest.mark.parametrize("distance", [0, 1, 100])
async def test_skipped_bytes_take_no_room_and_writes_continue_after_them(
    world: World, length: int, distance: int
) -> None:
    """Also when nothing is stored yet, and over more chunks than one commit takes."""
    storage = world.storage()
    if length:
        await storage.write(SEGMENT, 0, [bytes(length)])
    offset = length + distance
    for _ in range(2):
        await storage.skip(SEGMENT, offset)
        assert await world.chunk_records() == []
        assert await world.chunk_names() == []
        record = await world.record()
        assert (record.start_offset, record.length) == (offset, offset)
    for reader in (storage, world.storage(5)):
        assert await reader.read(SEGMENT, offset, 0) == b""
        if offset:
            with pytest.raises(SegmentTruncatedError):
                await reader.read(SEGMENT, offset - 1, 1)
    await storage.write(SEGMENT, offset, [b"behind"])
    await world.chunk_records()
    for reader in (storage, world.storage(5)):
        assert await reader.read(SEGMENT, offset, 100) == b"behind"


async def test_nothing_that_is_stored_further_on_is_skipped(world: World) -> None:
    """Bytes may be skipped only after the end, and never after a sealed end."""
    storage = world.storage()
    await storage.write(SEGMENT, 0, [b"abc"])
    with pytest.raises(BadOffsetError):
        await storage.skip(SEGMENT, 2)
    await storage.seal(SEGMENT)
    with pytest.raises(SegmentSealedError):
        await storage.skip(SEGMENT, 3)
    assert await storage.read(SEGMENT, 0, 9) == b"abc"


async def test_sealed_segment_takes_no_writes_but_can_be_truncated(world: World) -> None:
    storage = world.storage()
    await storage.write(SEGMENT, 0, [b"abc"])
    await storage.seal(SEGMENT)
    before = world.table.entries()
    await storage.seal(SEGMENT)
    assert world.table.entries() == before
    with pytest.raises(SegmentSealedError):
        await storage.write(SEGMENT, 3, [b"x"])
    assert await world.storage(2).open(SEGMENT) == StoredSegment(SEGMENT, 0, 3, True)
    await world.storage(2).truncate(SEGMENT, 2)
    assert await world.storage(2).read(SEGMENT, 2, 9) == b"c"


async def test_delete_removes_records_and_chunks_and_frees_the_name(world: World) -> None:
    # SS-219, SS-220: more chunks than one commit takes.
    storage = world.storage()
    await storage.write(SEGMENT, 0, [bytes(75)])
    await storage.delete(SEGMENT)
    assert await storage.open(SEGMENT) is None
    assert world.table.entries() == []
    assert await world.chunk_names() == []
    await storage.delete(SEGMENT)
    await storage.write(SEGMENT, 0, [b"again"])
    assert await storage.read(SEGMENT, 0, 9) == b"again"


@pytest.mark.parametrize("verb", ["write", "concat", "delete"])
@pytest.mark.parametrize("commits", range(1, 4))
async def test_interrupted_deletion_is_continued_by_the_next_use_of_the_name(
    world: World, verb: str, commits: int
) -> None:
    class Dying(MemoryMetadataTable):
        commits_left = 1 << 60

        async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
            if not self.commits_left:
                raise OutcomeUnknownError("died")
            self.commits_left -= 1
            return await super().commit(updates, removals)

    world.table = table = Dying()
    storage = world.storage(1)
    await storage.write(SEGMENT, 0, [bytes(75)])
    table.commits_left = commits
    with pytest.raises(OutcomeUnknownError):
        await storage.delete(SEGMENT)
    table.commits_left = 1 << 60
    for storage in (world.storage(1), world.storage(2)):
        assert await storage.open(SEGMENT) is None
        assert [segment async for segment in storage.list_segments()] == []
        with pytest.raises(NoSuchSegmentError):
            await storage.read(SEGMENT, 0, 1)
    await storage.write(OTHER, 0, [b"other"])
    await storage.seal(OTHER)
    if verb == "write":
        await storage.write(SEGMENT, 0, [b"again"])
        assert await storage.read(SEGMENT, 0, 9) == b"again"
    elif verb == "concat":
        await storage.concat(SEGMENT, 0, OTHER)
        assert await storage.read(SEGMENT, 0, 9) == b"other"
    else:
        await storage.delete(SEGMENT)
    live = [segment.name async for segment in storage.list_segments()]
    used = [chunk.name for segment in live for chunk in await world.chunk_records(segment)]
    assert sorted(used) == await world.chunk_names()
    # After a merge one more, which leads to what was merged.
    assert len(table.entries()) == len(live) + len(used) + (verb == "concat")


async def test_concat_joins_segments_of_all_chunk_counts(world: World) -> None:
    # SS-211
    storage = world.storage()
    for target_length in (0, 3, 10, 25):
        for source_length in (0, 1, 10, 11, 45):
            target, source = f"t{target_length}.{source_length}", f"s{target_length}.{source_length}"
            data = bytes(range(target_length)), bytes(range(100, 100 + source_length))
            await storage.write(target, 0, [data[0]])
            if source_length:
                await storage.write(source, 0, [data[1]])
            else:  # A stored segment without bytes: truncation cannot make one that begins at 0, so by hand.
                await storage.write(source, 0, [b"x"])
                record, (chunk,) = await world.record(source), await world.chunk_records(source)
                await world.put(replace(record, length=0, chunk_count=0))
                await world.table.commit([], [TableRemoval(chunk.key)])
                await world.chunks.delete(chunk.name)
                storage = world.storage()
            await storage.seal(source)
            assert await storage.concat(target, target_length, source) == target_length + source_length
            assert await storage.info(source) is None
            await world.chunk_records(target)
            assert await storage.write(target, target_length + source_length, [b"end"])
            for reader in (storage, world.storage(2)):
                assert await reader.read(target, 0, 200) == data[0] + data[1] + b"end"


async def test_concat_demands_a_whole_sealed_source_and_an_open_target(world: World) -> None:
    storage = world.storage()
    await storage.write(SEGMENT, 0, [b"abc"])
    await storage.write(OTHER, 0, [b"de"])
    with pytest.raises(InvalidArgumentError, match="sealed"):
        await storage.concat(SEGMENT, 3, OTHER)
    await storage.seal(OTHER)
    with pytest.raises(BadOffsetError):
        await storage.concat(SEGMENT, 2, OTHER)
    await storage.seal(SEGMENT)
    with pytest.raises(SegmentSealedError):
        await storage.concat(SEGMENT, 3, OTHER)
    await storage.truncate(OTHER, 1)
    with pytest.raises(SegmentTruncatedError):
        await storage.concat("new", 0, OTHER)
    assert (await storage.read(SEGMENT, 0, 9), await storage.read(OTHER, 1, 9)) == (b"abc", b"e")


async def test_chunk_of_an_old_epoch_that_came_by_merge_is_not_appended_to(world: World) -> None:
    # SS-269, SS-270: the reference implementation breaks G10 here.
    old = world.storage(1)
    await old.write(OTHER, 0, [b"old"])
    await old.seal(OTHER)
    new = world.storage(2)
    await new.write(SEGMENT, 0, [b"new"])
    await new.concat(SEGMENT, 3, OTHER)
    await new.write(SEGMENT, 6, [b"!"])
    chunks = await world.chunk_records()
    assert [(chunk.length, chunk.epoch) for chunk in chunks] == [(3, 2), (3, 1), (1, 2)]
    await world.chunks.write(chunks[1].name, 3, [b"ZOMBIE"])
    assert await new.read(SEGMENT, 0, 99) == b"newold!"


async def test_first_write_after_a_claim_begins_a_new_chunk_even_after_a_merge(world: World) -> None:
    await world.storage(1).write(SEGMENT, 0, [b"old"])
    new = world.storage(2)
    await new.open(SEGMENT)
    await new.write(OTHER, 0, [b"new"])
    await new.seal(OTHER)
    await new.concat(SEGMENT, 3, OTHER)
    await new.write(SEGMENT, 6, [b"!"])
    assert [(chunk.length, chunk.epoch) for chunk in await world.chunk_records()] == [(3, 1), (3, 2), (1, 2)]


async def test_chunk_whose_commit_was_applied_after_all_is_not_deleted(world: World) -> None:
    # A table that repeats a put by itself may meet its own effect and call it a conflict.
    class Repeating(MemoryMetadataTable):
        is_repeating = False

        async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
            if self.is_repeating:
                await super().commit(updates, removals)
            return await super().commit(updates, removals)

    table = Repeating()
    storage = ChunkedStorage(world.chunks, table, epoch=1, runtime=world.runtime, settings=SMALL)
    await storage.write(SEGMENT, 0, [bytes(8)])
    table.is_repeating = True
    with pytest.raises(StorageConflictError):
        await storage.write(SEGMENT, 8, [b"x" * 20])
    table.is_repeating = False
    assert await storage.open(SEGMENT) == StoredSegment(SEGMENT, 0, 28, False)
    assert await storage.read(SEGMENT, 0, 99) == bytes(8) + b"x" * 20


@pytest.mark.parametrize("ending", ["merge", "delete", "truncate"])
async def test_what_is_remembered_does_not_outlive_its_segment(world: World, ending: str) -> None:
    # segment-store 8.10: after a merge the old chunks live on elsewhere, so a stale record would find wrong bytes.
    storage = world.storage()
    await storage.write(OTHER, 0, [bytes(35)])
    for offset in (0, 12, 25):
        await storage.read(OTHER, offset, 1)
    assert len(storage._context.cache) == 5
    await storage.seal(OTHER)
    if ending == "merge":
        await storage.write(SEGMENT, 0, [b"target"])
        await storage.concat(SEGMENT, 6, OTHER)
        # What was remembered of the chunks is good where they are now: the target, its chunk, what leads to the rest.
        assert len(storage._context.cache) == 3 + 4
    elif ending == "truncate":
        await storage.truncate(OTHER, 22)
        assert len(storage._context.cache) == 3
        return
    else:
        await storage.delete(OTHER)
        assert len(storage._context.cache) == 0
    again = bytes(range(100, 130))
    await storage.write(OTHER, 0, [again[:7]], chunk_length_max=7)
    await storage.write(OTHER, 7, [again[7:]])
    for start in range(30):
        assert await storage.read(OTHER, start, 99) == again[start:]
    if ending == "merge":
        assert await storage.read(SEGMENT, 0, 99) == b"target" + bytes(35)
        assert await world.storage(2).unrecorded(await world.chunk_names()) == []


async def test_readers_beside_truncation_get_bytes_or_a_typed_outcome(world: World) -> None:
    # G8: readers that hold an old list while chunks are deleted.
    storage = world.storage()
    data = bytes(range(200))
    await storage.write(SEGMENT, 0, [data])

    async def read(reader: ChunkedStorage, start: int) -> None:
        for length in (1, 30, 200):
            try:
                assert await reader.read(SEGMENT, start, length) == data[start : start + length]
            except SegmentTruncatedError as error:
                assert error.offset == start < error.start_offset  # noqa: PT017  # Either outcome is right.

    async def truncate() -> None:
        for offset in range(0, 200, 13):
            await storage.truncate(SEGMENT, offset)

    await asyncio.gather(
        truncate(), *(read(reader, start) for start in range(0, 199, 7) for reader in (storage, world.storage(1)))
    )


class PausedReads(WrappedChunkStorage):
    """Holds reads of chunks until told to continue."""

    def __init__(self, inner: MemoryChunkStorage) -> None:
        super().__init__(inner)
        self.is_reached = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def read(self, name: str, offset: int, length: int) -> bytes:
        self.is_reached.set()
        await self.may_go_on.wait()
        return await super().read(name, offset, length)


@pytest.mark.parametrize("change", ["truncate", "truncate-elsewhere", "delete"])
async def test_reader_whose_chunk_is_deleted_reads_the_records_again(world: World, change: str) -> None:
    paused = PausedReads(world.chunks)
    storage = ChunkedStorage(paused, world.table, epoch=1, runtime=world.runtime, settings=SMALL)
    await storage.write(SEGMENT, 0, [bytes(range(30))])
    reading = asyncio.ensure_future(storage.read(SEGMENT, 5, 20))
    await paused.is_reached.wait()
    if change == "truncate":
        await storage.truncate(SEGMENT, 12)
    elif change == "truncate-elsewhere":
        await storage.truncate(SEGMENT, 3)
    else:
        await storage.delete(SEGMENT)
    paused.may_go_on.set()
    if change == "truncate":
        with pytest.raises(SegmentTruncatedError):
            await reading
    elif change == "delete":
        with pytest.raises(NoSuchSegmentError):
            await reading
    else:
        assert await reading == bytes(range(5, 25))


async def test_list_yields_active_segments_page_by_page(world: World) -> None:
    storage = world.storage()
    for number in range(5):
        await storage.write(f"s{number}", number, [bytes(25)])
    await storage.delete("s3")
    await storage.seal("s1")
    assert [segment async for segment in storage.list_segments()] == [
        StoredSegment(f"s{number}", number, number + 25, number == 1) for number in (0, 1, 2, 4)
    ]


async def test_orphans_are_own_chunks_of_earlier_epochs_without_a_live_record(world: World) -> None:
    """A chunk of another container, of this epoch or a later one, or of another make is none. SS-195, SS-196."""
    old = world.storage(1)
    await old.write(SEGMENT, 0, [bytes(15)])
    lost = f"{SEGMENT}.E-1-O-15.00000000-0000-4000-8000-000000000000"
    foreign = f"{SEGMENT}.E-1-O-0.00000000-0001-4000-8000-000000000000"
    own = f"{SEGMENT}.E-2-O-15.00000000-0000-4000-8000-000000000000"
    later = f"{SEGMENT}.E-3-O-15.00000000-0000-4000-8000-000000000000"
    for name in (lost, foreign, own, later, "something/else"):
        await world.chunks.create_with_content(name, [b"x"])
    names = [info.name for info in await world.chunks.list()]
    new = world.storage(2)
    assert await new.unrecorded(names) == sorted({lost, foreign, own, later, "something/else"})
    orphans = OrphanChunks(world.chunks, OrphanSettings(sweep_names=2, sweep_pause_s=0.0), mark=bytes(6))
    assert await orphans.sweep(1, new.unrecorded) == 0
    assert await orphans.sweep(2, new.unrecorded) == 1
    assert [info.name for info in await world.chunks.list()] == [name for name in names if name != lost]


async def test_commit_of_unknown_outcome_is_not_remembered(world: World) -> None:
    """The commit is applied, late, after the call that made it failed and others have read the old state."""

    class LateTable(MemoryMetadataTable):
        late: tuple[Sequence[TableUpdate], Sequence[TableRemoval]] | None = None
        is_failing = False

        async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
            if self.is_failing:
                self.is_failing = False
                self.late = (updates, removals)
                raise OutcomeUnknownError("no answer")
            return await super().commit(updates, removals)

    table = LateTable()
    storage = ChunkedStorage(world.chunks, table, epoch=1, runtime=world.runtime, settings=SMALL)
    await storage.write(SEGMENT, 0, [b"abc"])
    table.is_failing = True
    with pytest.raises(OutcomeUnknownError):
        await storage.write(SEGMENT, 3, [b"def"])
    assert await storage.info(SEGMENT) == StoredSegment(SEGMENT, 0, 3, False)
    assert await storage.read(SEGMENT, 0, 9) == b"abc"
    assert table.late is not None
    await table.commit(*table.late)
    assert await storage.open(SEGMENT) == StoredSegment(SEGMENT, 0, 6, False)
    assert await storage.read(SEGMENT, 0, 9) == b"abcdef"
    await storage.write(SEGMENT, 6, [b"ghi"])
    assert await storage.read(SEGMENT, 0, 9) == b"abcdefghi"


async def test_segments_change_side_by_side_and_each_in_turn(world: World) -> None:
    settings = replace(SMALL, operations_max=2)
    storage = world.storage(settings=settings)

    async def fill(segment: str) -> None:
        for offset in range(0, 60, 6):
            await storage.write(segment, offset, [bytes([offset]) * 6])

    async def try_all(segment: str) -> None:
        await asyncio.gather(*(storage.write(segment, 60, [b"x"]) for _ in range(5)), return_exceptions=True)

    await asyncio.gather(*(fill(f"s{n}") for n in range(6)))
    await asyncio.gather(*(try_all(f"s{n}") for n in range(6)))
    for n in range(6):
        assert await storage.info(f"s{n}") == StoredSegment(f"s{n}", 0, 61, False)
        await world.chunk_records(f"s{n}")
    assert storage._locks._locks == {}


async def test_small_caches_change_nothing(world: World) -> None:
    # SS-207: one record remembered, many segments.
    settings = replace(SMALL, records_cached_max=1)
    storage = world.storage(settings=settings)
    for turn in range(4):
        for n in range(5):
            await storage.write(f"s{n}", turn * 9, [bytes([turn, n, 7]) * 3])
            assert await storage.read(f"s{n}", 1, 5) == (bytes([0, n, 7]) * 2)[1:]
    for n in range(5):
        expected = b"".join(bytes([turn, n, 7]) * 3 for turn in range(4))
        for start in range(36):
            assert await storage.read(f"s{n}", start, 99) == expected[start:]
    assert len(storage._context.cache) <= 1


async def test_buffers_are_handed_on_without_copies(world: World) -> None:
    seen: list[Buffer] = []

    class Watching(WrappedChunkStorage):
        async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
            seen.extend(data)
            return await super().create_with_content(name, data)

    storage = ChunkedStorage(Watching(world.chunks), world.table, epoch=1, runtime=world.runtime, settings=SMALL)
    first, second = b"abcd", b"0123456789"
    await storage.write(SEGMENT, 0, [first, second])
    assert seen[0] is first
    assert all(isinstance(part, memoryview) and part.obj is second for part in seen[1:])
