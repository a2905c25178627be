"""`ChunkedStorage.write_ahead`: writes of a segment while those before are recorded (docs/write-ahead.md).

Chunks and records are in memory. Calls of both are steps: each can be held, fail before or after its effect, or be
where the caller gives up.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from penstock.model.checksum import crc32c
from penstock.model.errors import (
    BadOffsetError,
    CorruptionError,
    InconsistentStateError,
    SegmentSealedError,
    StorageConflictError,
    StorageError,
    StorageFullError,
    StorageNotPrimaryError,
)
from penstock.model.segments import Buffer, TableRemoval, TableUpdate
from penstock.runtime.work import BlockingWork
from penstock.segmentstore.tier2 import segment_write
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from support.chunk_records import SEGMENT, SMALL, World

T = TypeVar("T")

DATA = bytes(range(200))


@dataclass(frozen=True)
class Piece:
    """What one write holds; it arrived with the checksum that it has now."""

    data: list[Buffer]
    checksummed_blocks: list[tuple[Buffer, int]]


def pieces(lengths: Sequence[int], taken: list[int] | None = None) -> Callable[[int], Piece | None]:
    """Return what hands `DATA` out in writes of these lengths, again and again; `taken` gets where each begins."""
    ends = list(itertools.accumulate(itertools.islice(itertools.cycle(lengths), 200)))

    def take(position: int) -> Piece | None:
        if position >= len(DATA):
            return None
        if taken is not None:
            taken.append(position)
        end = min(next(end for end in ends if end > position), len(DATA))
        part = memoryview(DATA)[position:end]
        return Piece([part], [(part, crc32c(part))])  # type: ignore[call-arg]

    return take


@dataclass
class Steps:
    """Goes along with calls: notes them, holds those of a kind, fails one."""

    seen: list[str] = field(default_factory=list)
    held: dict[str, asyncio.Event] = field(default_factory=dict)
    fails_at: int = -1
    error: BaseException | None = None
    has_effect: bool = False
    gives_up: asyncio.Task[int] | None = None
    under_way: dict[str, int] = field(default_factory=lambda: {"write": 0, "commit": 0})
    under_way_max: int = 0
    #: A commit was interrupted: its outcome is unknown, and its chunks are left to the next start.
    is_in_doubt: bool = False

    async def do(self, kind: str, call: Callable[[], Awaitable[T]]) -> T:
        number = len(self.seen)
        self.seen.append(kind)
        self.under_way[kind] += 1
        self.under_way_max = max(self.under_way_max, self.under_way[kind])
        try:
            await asyncio.sleep(0)
            if kind in self.held:
                await self.held[kind].wait()
            is_hit = number == self.fails_at
            if is_hit and not self.has_effect:
                await self._fail()
            result = await call()
            if is_hit:
                await self._fail()
            return result
        except BaseException:
            self.is_in_doubt = self.is_in_doubt or kind == "commit"
            raise
        finally:
            self.under_way[kind] -= 1

    async def _fail(self) -> None:
        if self.error is not None:
            raise self.error
        assert self.gives_up is not None
        self.gives_up.cancel()
        await asyncio.sleep(0)

    def hold(self, kind: str) -> None:
        self.held[kind] = asyncio.Event()

    def release(self, kind: str) -> None:
        self.held.pop(kind).set()


class SteppedChunks(WrappedChunkStorage):
    steps: Steps

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        return await self.steps.do("write", lambda: self.inner.create_with_content(name, data))

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        return await self.steps.do("write", lambda: self.inner.write(name, offset, data))


class Stepped(World):
    """A world whose writes of chunks and commits are steps."""

    def __init__(self, *, supports_append: bool = True) -> None:
        super().__init__(supports_append=supports_append)
        self.steps = Steps()
        self.stepped = SteppedChunks(self.chunks)
        self.stepped.steps = self.steps
        self.orphans = OrphanChunks(self.chunks)
        original = self.table.commit

        async def commit(updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
            return await self.steps.do("commit", lambda: original(updates, removals))

        self.table.commit = commit  # type: ignore[method-assign]  # A step, then as before.

    def storage(self, epoch: int = 1, settings: ChunkedStorageSettings = SMALL) -> ChunkedStorage:
        return ChunkedStorage(
            self.stepped, self.table, epoch=epoch, runtime=self.runtime, settings=settings, orphans=self.orphans
        )

    def calm(self) -> None:
        """Hold and fail nothing from now on."""
        self.stepped.steps = self.steps = Steps()

    async def check(self, length: int = len(DATA)) -> None:
        """So much is stored, as it was given, and no chunk is there that no record leads to."""
        assert await self.storage(9).read(SEGMENT, 0, 1000) == DATA[:length]
        await self.orphans.collect()
        assert sorted(chunk.name for chunk in await self.chunk_records()) == sorted(await self.chunk_names())


async def turns(count: int = 200) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(
    storage: ChunkedStorage,
    lengths: Sequence[int] = (7,),
    *,
    offset: int = 0,
    writes_max: int = 4,
    stored: list[int] | None = None,
    taken: list[int] | None = None,
) -> asyncio.Task[int]:
    note = (lambda length: None) if stored is None else stored.append
    return asyncio.ensure_future(
        storage.write_ahead(SEGMENT, offset, pieces(lengths, taken), note, writes_max=writes_max)
    )


BOTH = pytest.mark.parametrize("supports_append", [True, False])
LENGTHS = pytest.mark.parametrize("lengths", [(7,), (10,), (3, 25, 1), (95, 105)], ids=str)


@BOTH
@LENGTHS
@pytest.mark.parametrize("writes_max", [1, 2, 8])
async def test_all_is_stored_in_order(supports_append: bool, lengths: Sequence[int], writes_max: int) -> None:
    """Chunks fill up and new ones begin during the write; `stored` is called for each write once, in order."""
    world = Stepped(supports_append=supports_append)
    stored: list[int] = []
    assert await run(world.storage(), lengths, writes_max=writes_max, stored=stored) == len(DATA)
    ends = list(itertools.accumulate(itertools.islice(itertools.cycle(lengths), 200)))
    assert stored == sorted({min(end, len(DATA)) for end in ends})
    await world.check()
    assert world.orphans.unrecorded_count == 0
    if supports_append:
        assert [chunk.length for chunk in await world.chunk_records()] == [10] * 20


@BOTH
async def test_writes_continue_while_one_is_recorded_and_no_more_than_may(supports_append: bool) -> None:
    world = Stepped(supports_append=supports_append)
    world.steps.hold("commit")
    stored: list[int] = []
    taken: list[int] = []
    task = run(world.storage(), (10,), writes_max=4, stored=stored, taken=taken)
    await turns()
    assert world.steps.seen.count("write") == 4
    assert world.steps.seen.count("commit") == 1
    assert taken == [0, 10, 20, 30], "what cannot be begun is taken from the cache as late as may be"
    assert stored == []
    assert world.steps.under_way_max == (1 if supports_append else 4)
    assert await world.storage().info(SEGMENT) is None, "nothing counts before its record"
    world.steps.release("commit")
    await task
    await world.check()


async def test_what_is_written_in_another_order_is_recorded_in_order() -> None:
    """Of objects under way together the last may be there first."""
    world = Stepped(supports_append=False)
    order: list[bytes] = []
    rng = random.Random(3)
    create = world.chunks.create_with_content

    async def late(name: str, data: Sequence[Buffer]) -> int:
        await asyncio.sleep(rng.random() * 0.01)
        order.append(bytes(data[0][:1]))
        return await create(name, data)

    world.chunks.create_with_content = late  # type: ignore[method-assign]  # Later, and then as before.
    stored: list[int] = []
    await run(world.storage(), (10,), stored=stored)
    assert order != sorted(order)
    assert stored == list(range(10, 201, 10))
    await world.check()


@BOTH
@LENGTHS
@pytest.mark.parametrize("way", ["error", "lost reply", "full", "given up", "given up behind"])
async def test_a_write_that_ends_at_any_step_leaves_a_head_and_is_resumed(
    supports_append: bool, lengths: Sequence[int], way: str
) -> None:
    """Each write of a chunk and each commit in turn fails, or its reply is lost, or the caller gives up there."""
    step = 0
    while True:
        world = Stepped(supports_append=supports_append)
        world.steps.fails_at = step
        world.steps.has_effect = way in ("lost reply", "given up behind")
        if "given up" not in way:
            world.steps.error = StorageFullError("full") if way == "full" else StorageError("failed")
        stored: list[int] = []
        storage = world.storage()
        task = run(storage, lengths, writes_max=3, stored=stored)
        world.steps.gives_up = task
        await asyncio.wait([task])
        if step >= len(world.steps.seen):
            assert task.result() == len(DATA)
            break
        assert task.cancelled() or task.exception() is not None
        assert len(asyncio.all_tasks()) == 1, "a task outlives the call"
        is_in_doubt = world.steps.is_in_doubt
        world.calm()
        found = await storage.open(SEGMENT)
        length = found.length if found is not None else 0
        counted = stored[-1] if stored else 0
        # A commit without an answer may have been applied; of what was written after it nothing is there.
        assert length == counted or (is_in_doubt and length > counted)
        if length:
            assert await storage.read(SEGMENT, 0, length) == DATA[:length]
        assert await run(storage, lengths, offset=length, stored=stored) == len(DATA)
        assert stored == sorted(set(stored))
        assert await world.storage(9).read(SEGMENT, 0, 1000) == DATA
        if not is_in_doubt:
            await world.check()
        await world.chunk_records()
        step += 1
    assert step > 4


@BOTH
async def test_a_process_that_dies_at_any_step_leaves_a_head(supports_append: bool) -> None:
    """The next owner finds what was counted, or one write more, and writes on; it appends to no chunk of before."""
    for step in range(40):
        world = Stepped(supports_append=supports_append)
        stored: list[int] = []
        world.steps.fails_at = step
        world.steps.error = StorageError("dead")
        task = run(world.storage(), (7,), writes_max=3, stored=stored)
        await asyncio.wait([task])
        is_in_doubt = world.steps.is_in_doubt
        world.calm()
        heir = world.storage(2)
        found = await heir.open(SEGMENT)
        length = found.length if found is not None else 0
        assert length == (stored[-1] if stored else 0)
        await run(heir, (9,), offset=length)
        assert await heir.read(SEGMENT, 0, 1000) == DATA
        if not is_in_doubt:
            await world.check()
        assert all(chunk.epoch == 1 for chunk in await world.chunk_records() if chunk.start < length)
        assert all(chunk.epoch == 2 for chunk in await world.chunk_records() if chunk.start >= length)


async def test_a_failure_of_a_later_write_takes_nothing_from_those_before() -> None:
    """Objects: the second fails at once, the first is still under way. It is recorded, and then the error is raised."""
    world = Stepped(supports_append=False)
    create = world.chunks.create_with_content
    first = asyncio.Event()

    async def some(name: str, data: Sequence[Buffer]) -> int:
        if data[0][0] == 0:
            await first.wait()
        if data[0][0] == 10:
            raise StorageError("the second fails")
        return await create(name, data)

    world.chunks.create_with_content = some  # type: ignore[method-assign]  # Fails for one.
    stored: list[int] = []
    task = run(world.storage(), (10,), stored=stored)
    await turns()
    assert not task.done()
    assert world.steps.seen.count("write") == 4, "behind a failure no more is begun"
    first.set()
    with pytest.raises(StorageError, match="the second fails"):
        await task
    assert stored == [10]
    await world.check(10)


async def test_after_a_failure_no_more_is_begun() -> None:
    """Objects: the third fails while the second is under way; the first is recorded, and nothing takes its place."""
    world = Stepped(supports_append=False)
    create = world.chunks.create_with_content
    gates = [asyncio.Event(), asyncio.Event()]

    async def some(name: str, data: Sequence[Buffer]) -> int:
        number = data[0][0] // 10
        if number < 2:
            await gates[number].wait()
        if number == 2:
            raise StorageError("the third fails")
        return await create(name, data)

    world.chunks.create_with_content = some  # type: ignore[method-assign]  # Fails for one.
    stored: list[int] = []
    task = run(world.storage(), (10,), stored=stored)
    await turns()
    gates[0].set()
    await turns()
    assert stored == [10]
    assert world.steps.seen.count("write") == 4
    gates[1].set()
    with pytest.raises(StorageError, match="the third fails"):
        await task
    assert stored == [10, 20]
    await world.check(20)


@BOTH
async def test_nothing_is_under_way_once_it_has_ended(supports_append: bool) -> None:
    """A cancelled write of a directory ends a while later: that is waited for, even by who gives up twice."""
    world = Stepped(supports_append=supports_append)
    ended = 0

    async def stubborn(name: str, *arguments: object) -> int:
        nonlocal ended
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.02)
            ended += 1
        return 0

    world.chunks.create_with_content = stubborn  # Ends late.  # type: ignore[assignment, method-assign]
    task = run(world.storage(), (10,))
    await turns()
    task.cancel()
    await turns(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == (1 if supports_append else 4)
    assert world.steps.under_way["write"] == 0


@BOTH
async def test_a_record_of_another_writer_is_not_overwritten(supports_append: bool) -> None:
    """Another instance of the same epoch; and this one remembers nothing, so that no version tells."""
    world = Stepped(supports_append=supports_append)
    storage, other = world.storage(), world.storage()

    def stored(length: int) -> None:
        if length == 30:
            world.steps.hold("write")

    task = asyncio.ensure_future(storage.write_ahead(SEGMENT, 0, pieces((10,)), stored, writes_max=1))
    await turns()
    gate = world.steps.held.pop("write")
    await other.truncate(SEGMENT, 15)
    storage._context.cache.forget([SEGMENT.encode()])
    gate.set()
    with pytest.raises(StorageConflictError):
        await task
    found = await storage.open(SEGMENT)
    assert found is not None
    assert (found.start_offset, found.length) == (15, 30)


@BOTH
async def test_a_writer_that_is_overtaken_records_no_more(supports_append: bool) -> None:
    world = Stepped(supports_append=supports_append)
    stored: list[int] = []
    world.steps.hold("commit")
    task = run(world.storage(), (10,), stored=stored)
    await turns()
    old = world.steps
    world.calm()
    # The table is the world's: what waits in it continues with the old steps.
    heir = world.storage(2)
    await heir.write(SEGMENT, 0, [b"heir"])
    old.release("commit")
    with pytest.raises((StorageNotPrimaryError, StorageConflictError)):
        await task
    assert stored == []
    assert await heir.read(SEGMENT, 0, 100) == b"heir"
    await world.orphans.collect()
    assert [chunk.name for chunk in await world.chunk_records()] == await world.chunk_names()


@BOTH
async def test_who_wants_the_segment_gets_it_between_two_writes(supports_append: bool) -> None:
    """What was begun is recorded; the caller continues from there. A truncation need not wait for a long flush."""
    world = Stepped(supports_append=supports_append)
    storage = world.storage()
    world.steps.hold("commit")
    task = run(storage, (10,), writes_max=3)
    await turns()
    truncation = asyncio.ensure_future(storage.truncate(SEGMENT, 15))
    await turns()
    assert not truncation.done()
    world.steps.release("commit")
    length = await task
    assert length == 30
    await truncation
    assert await run(storage, (10,), offset=length) == len(DATA)
    assert await storage.read(SEGMENT, 15, 1000) == DATA[15:]
    found = await storage.info(SEGMENT)
    assert found is not None
    assert found.start_offset == 15


@BOTH
async def test_what_is_not_what_arrived_ends_it_before_it_is_recorded(supports_append: bool) -> None:
    world = Stepped(supports_append=supports_append)
    take = pieces((10,))

    def flipped(position: int) -> Piece | None:
        piece = take(position)
        if piece is not None and position == 30:
            return Piece(piece.data, [(piece.checksummed_blocks[0][0], piece.checksummed_blocks[0][1] ^ 1)])
        return piece

    stored: list[int] = []
    with pytest.raises(InconsistentStateError):
        await world.storage().write_ahead(SEGMENT, 0, flipped, stored.append, writes_max=4)
    assert stored == [10, 20, 30]
    await world.check(30)


async def test_a_write_of_many_chunks_goes_in_commits_of_a_bounded_number() -> None:
    for supports_append in (True, False):
        world = Stepped(supports_append=supports_append)
        storage = world.storage(settings=replace(SMALL, written_chunks_per_commit_max=3))
        stored: list[int] = []
        await run(storage, (95, 105), stored=stored)
        assert stored == [30, 60, 90, 95, *([125, 155, 185, 200] if supports_append is False else [130, 160, 190, 200])]
        await world.check()


async def test_objects_that_are_complete_share_a_commit() -> None:
    """One commit takes as long as an append to the log; the objects written meanwhile are recorded by the next one."""
    world = Stepped(supports_append=False)
    stored: list[int] = []
    world.steps.hold("commit")
    task = run(world.storage(), (10,), writes_max=4, stored=stored)
    await turns()
    world.steps.release("commit")
    await task
    assert stored == list(range(10, 201, 10)), "each write is reported, in order"
    assert world.steps.seen.count("commit") <= 8, "20 writes, at most 4 at a time"
    await world.check()
    assert world.orphans.unrecorded_count == 0


async def test_a_shared_commit_has_a_bounded_number_of_chunks() -> None:
    world = Stepped(supports_append=False)
    chunk_counts: list[int] = []
    commit = world.table.commit

    async def counted(updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        chunk_counts.append(len(updates) - 1)  # One is the segment's record.
        return await commit(updates, removals)

    world.table.commit = counted  # type: ignore[method-assign]  # Counted, then as before.
    storage = world.storage(settings=replace(SMALL, written_chunks_per_commit_max=3))
    await run(storage, (10,), writes_max=8)
    assert sum(chunk_counts) == 20
    assert max(chunk_counts) == 3
    await world.check()


async def test_a_write_that_is_not_complete_keeps_later_ones_out_of_the_commit() -> None:
    world = Stepped(supports_append=False)
    create = world.chunks.create_with_content
    third = asyncio.Event()

    async def some(name: str, data: Sequence[Buffer]) -> int:
        if data[0][0] == 20:
            await third.wait()
        return await create(name, data)

    world.chunks.create_with_content = some  # type: ignore[method-assign]  # Late for one.
    stored: list[int] = []
    task = run(world.storage(), (10,), writes_max=4, stored=stored)
    await turns()
    assert stored == [10, 20]
    third.set()
    await task
    await world.check()


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_shared_commit_that_is_refused_leaves_no_chunk(is_damaged: bool) -> None:
    """Another owner writes while the commit of several writes is held: none of them may be recorded.

    Also if one of these writes differs from what arrived: those before it would be recorded, and cannot be.
    """
    world = Stepped(supports_append=False)
    stored: list[int] = []
    take = pieces((10,))

    def flipped(position: int) -> Piece | None:
        piece = take(position)
        if piece is not None and position == 30 and is_damaged:
            return Piece(piece.data, [(piece.checksummed_blocks[0][0], piece.checksummed_blocks[0][1] ^ 1)])
        return piece

    world.steps.hold("commit")
    task = asyncio.ensure_future(world.storage().write_ahead(SEGMENT, 0, flipped, stored.append, writes_max=4))
    await turns()
    old = world.steps
    assert old.seen == ["write"] * 4 + ["commit"]
    world.calm()
    heir = world.storage(2)
    await heir.write(SEGMENT, 0, [b"heir"])
    old.release("commit")
    with pytest.raises((StorageNotPrimaryError, StorageConflictError)):
        await task
    assert stored == []
    assert await heir.read(SEGMENT, 0, 100) == b"heir"
    await world.orphans.collect()
    assert sorted(chunk.name for chunk in await world.chunk_records()) == sorted(await world.chunk_names())


@pytest.mark.parametrize("position", [0, 20, 30])
async def test_a_caller_that_stops_during_checksums_leaves_no_chunk(
    position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checksums of the writes that share a commit are computed one after the other."""
    world = Stepped(supports_append=False)
    original = segment_write.sum_written
    tasks: list[asyncio.Task[int]] = []

    async def sum_slowly(
        work: BlockingWork, segment: str, offset: int, *arguments: Sequence[object]
    ) -> list[tuple[int, ...]]:
        if offset == position:
            tasks[0].cancel()
            await asyncio.sleep(0)
        return await original(work, segment, offset, *arguments)  # type: ignore[arg-type]  # As it was called.

    monkeypatch.setattr(segment_write, "sum_written", sum_slowly)
    tasks.append(run(world.storage(), (10,), writes_max=4))
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert await world.storage(9).info(SEGMENT) is None
    await world.orphans.collect()
    assert await world.chunk_names() == []


async def test_it_is_refused_as_a_write_is() -> None:
    world = Stepped()
    storage = world.storage()
    await storage.write(SEGMENT, 0, [DATA[:10]])
    with pytest.raises(BadOffsetError):
        await run(storage, offset=5)
    assert await run(storage, offset=10) == len(DATA)
    await storage.seal(SEGMENT)
    with pytest.raises(SegmentSealedError):
        await run(storage, offset=len(DATA))
    assert world.steps.under_way == {"write": 0, "commit": 0}


async def test_nothing_to_write_writes_nothing() -> None:
    world = Stepped()
    storage = world.storage()
    await storage.write(SEGMENT, 0, [DATA])
    world.calm()
    assert await run(storage, offset=len(DATA)) == len(DATA)
    assert world.steps.seen == []


async def test_a_chunk_that_is_missing_between_others_is_reported() -> None:
    world = Stepped()
    storage = world.storage(settings=replace(SMALL, chunk_length_max=1000))
    world.steps.hold("commit")
    task = run(storage, (10,), writes_max=2)
    await turns()
    (name,) = await world.chunk_names()
    await world.chunks.delete(name)
    world.steps.release("commit")
    with pytest.raises(CorruptionError, match="is missing"):
        await task


async def test_hung_storage_holds_one_write_of_each_that_may_append() -> None:
    """Nothing beyond the limit of writes under way is accepted; a cancelled caller leaves no task behind."""
    world = Stepped(supports_append=False)
    world.steps.hold("write")
    taken: list[int] = []
    task = run(world.storage(), (10,), writes_max=4, taken=taken)
    await turns()
    assert taken == [0, 10, 20, 30]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1
    assert len(world.orphans) == 4, "what may come late is deleted when it does"
    assert world.orphans.unrecorded_count == 4, "no note of a clean end"
