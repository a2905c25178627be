"""Chunks that were unlinked are deleted: none too early, none while a lease holds it, all of them in the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from penstock.model.errors import (
    ChunkError,
    ContainerOfflineError,
    CorruptionError,
    InvalidArgumentError,
    OutcomeUnknownError,
    StorageError,
    StorageFullError,
    StorageNotRespondingError,
    StorageUnavailableError,
    TooManyLeasesError,
)
from penstock.model.segments import TableRemoval, TableUpdate
from penstock.segmentstore.container_settings import GarbageSettings, OrphanSettings
from penstock.segmentstore.settings import StorageGuardSettings
from penstock.segmentstore.tier2.chunk_deletion import delete_chunks
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage, ChunkLayout
from penstock.segmentstore.tier2.garbage import GarbageQueue
from penstock.segmentstore.tier2.garbage_records import (
    GIVEN_UP_PREFIX,
    LEASE_PREFIX,
    TASK_PREFIX,
    CreationOrder,
    GarbageTask,
    LayoutLease,
    decode_lease,
    decode_task,
    encode_lease,
    encode_task,
)
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable
from penstock.segmentstore.tier2.object_storage import ObjectChunkStorage
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.storage_check import CheckedContainer, ProblemKind, StorageCheck
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings
from penstock.segmentstore.tier2.storage_guard import GuardedChunkStorage
from penstock_simulation.simulated.objects import ObjectFault, SimulatedBucket, SimulatedObjects
from support.chunk_records import seeded_runtime

SEGMENT = "s/t/0.#epoch.0"
DATA = bytes(range(60))
SETTINGS = ChunkedStorageSettings(chunk_length_max=10, block_length=4, chunks_per_commit_max=2)
#: No time goes by in these tests but what `pass_time` says.
GARBAGE = GarbageSettings(
    delay_s=1000.0, lease_s_max=5000.0, leases_max=3, attempts_max=2, tasks_per_batch=2, batch_chunks=3, pause_s=0.0
)
MARK = b"marked"


class Chunks(MemoryChunkStorage):
    """Refuses deletions for a while. `deleted`: all that were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.problem: Exception | None = None
        self.has_effect = False
        self.deleted: list[str] = []

    async def delete(self, name: str) -> None:
        self.deleted.append(name)
        if self.problem is None or self.has_effect:
            await super().delete(name)
        if self.problem is not None:
            raise self.problem


class World:
    """Chunks and records over which owners come and go. `is_owner`: whether the log still takes what they say."""

    def __init__(self) -> None:
        self.chunks = Chunks()
        self.table = MemoryMetadataTable(persist=self.persist)
        self.runtime = seeded_runtime()
        self.is_owner = True
        self.is_log_broken = False

    async def persist(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> None:
        if self.is_log_broken:
            raise OutcomeUnknownError("the log does not answer")

    async def check_owner(self) -> None:
        if not self.is_owner:
            raise ContainerOfflineError(0, "another one has it")

    def storage(self, epoch: int = 1, settings: GarbageSettings = GARBAGE) -> ChunkedStorage:
        garbage = GarbageQueue(
            self.chunks,
            self.table,
            epoch=epoch,
            settings=settings,
            wall_clock_ms=lambda: 7,
            check_owner=self.check_owner,
        )
        return ChunkedStorage(
            self.chunks,
            self.table,
            epoch=epoch,
            runtime=self.runtime,
            settings=SETTINGS,
            orphans=OrphanChunks(self.chunks, mark=MARK),
            garbage=garbage,
        )

    async def filled(self, settings: GarbageSettings = GARBAGE) -> tuple[ChunkedStorage, list[str]]:
        """Return a storage with a segment of six chunks, and these."""
        storage = self.storage(settings=settings)
        await storage.write(SEGMENT, 0, [DATA])
        return storage, [chunk.name for chunk in await storage.chunks_of(SEGMENT)]

    async def names(self) -> set[str]:
        return {info.name for info in await self.chunks.list()}

    def keys(self, prefix: bytes) -> list[bytes]:
        return [entry.key for entry in self.table.entries() if entry.key.startswith(prefix)]


def pass_time(storage: ChunkedStorage, time_s: float) -> None:
    """Let so much time go by, with a check of the queue soon after what has happened."""
    shift(storage, GARBAGE.delay_s / 8)
    storage.garbage._note()
    shift(storage, time_s)


def shift(storage: ChunkedStorage, time_s: float) -> None:
    """Let all that happened have happened earlier."""
    garbage = storage.garbage
    marks = [(at_s - time_s, number) for at_s, number in garbage._marks]
    garbage._marks.clear()
    garbage._marks.extend(marks)
    ends = garbage.leases._ends_s
    for place in ends:
        ends[place] -= time_s


async def test_what_was_truncated_stays_for_a_while_and_goes_then() -> None:
    """SS-216: exactly the dropped chunks are garbage."""
    world = World()
    storage, names = await world.filled()
    await storage.truncate(SEGMENT, 35)
    assert await storage.garbage.queued(names) == set(names[:3])
    for _ in range(9):
        await storage.garbage.collect()
        assert await world.names() == set(names)
        shift(storage, 100.0)
    await storage.truncate(SEGMENT, 45)
    shift(storage, 300.0)
    assert await storage.garbage.collect() == 3
    assert await world.names() == set(names[3:])
    shift(storage, 1000.0)
    assert await storage.garbage.collect() == 1
    assert await world.names() == set(names[4:])
    assert world.keys(b"\0") == []


async def test_the_next_owner_deletes_what_earlier_ones_unlinked_after_the_delay() -> None:
    world = World()
    storage, names = await world.filled()
    await storage.delete(SEGMENT)
    successor = world.storage(2)
    assert await successor.garbage.collect() == 0
    shift(successor, 999.0)
    assert await successor.garbage.collect() == 0
    shift(successor, 2.0)
    assert await successor.garbage.collect() == len(names)
    assert await world.names() == set()


async def test_what_was_not_committed_is_no_garbage() -> None:
    """SS-220 in part: the task is there with the commit that unlinks, or not at all."""
    world = World()
    storage, names = await world.filled()
    world.is_log_broken = True
    with pytest.raises(OutcomeUnknownError):
        await storage.truncate(SEGMENT, 35)
    world.is_log_broken = False
    assert await storage.garbage.queued(names) == set()
    pass_time(storage, 2000.0)
    await storage.garbage.collect()
    assert await storage.read(SEGMENT, 0, 60) == DATA


async def test_a_lease_holds_back_what_is_unlinked_after_it() -> None:
    """SS-255, SS-257."""
    world = World()
    storage, names = await world.filled()
    await storage.truncate(SEGMENT, 15)
    lease, layout = await storage.leased_layout(SEGMENT, 4000.0, holder="job 1")
    await storage.delete(SEGMENT)
    pass_time(storage, 3500.0)
    assert await storage.garbage.collect() == 1
    assert [chunk.name for chunk in layout] == names[1:]
    assert b"".join([await world.chunks.read(chunk.name, 0, chunk.length) for chunk in layout]) == DATA[10:]
    await storage.garbage.leases.release(lease)
    assert await storage.garbage.collect() == 5
    assert world.keys(b"\0") == []


@pytest.mark.parametrize("ended_by", [asyncio.CancelledError, StorageError])
async def test_a_layout_that_is_given_up_says_why_though_its_lease_cannot_be_given_back(
    monkeypatch: pytest.MonkeyPatch, ended_by: type[BaseException]
) -> None:
    """What ended it is what its caller hears, a cancellation above all; the lease ends by itself."""
    storage, _ = await World().filled()

    async def chunks_of(segment: str, **what: int | None) -> list[ChunkLayout]:
        raise ended_by

    async def release(place: CreationOrder) -> None:
        raise OutcomeUnknownError("no answer")

    monkeypatch.setattr(storage, "chunks_of", chunks_of)
    monkeypatch.setattr(storage.garbage.leases, "release", release)
    with pytest.raises(ended_by) as caught:
        await storage.leased_layout(SEGMENT, 100.0, holder="job 1")
    assert "no answer" in "".join(caught.value.__notes__)
    assert len(storage.garbage.leases) == 1


async def test_a_lease_ends_and_cannot_last_forever() -> None:
    world = World()
    storage, _ = await world.filled()
    await storage.leased_layout(SEGMENT, 4000.0, holder="job 1")
    await storage.delete(SEGMENT)
    pass_time(storage, 4001.0)
    assert await storage.garbage.collect() == 6
    assert world.keys(b"\0") == []
    for duration_s in (0.0, 5001.0):
        with pytest.raises(InvalidArgumentError):
            await storage.garbage.leases.grant(duration_s, "job 2")
    for number in range(3):
        await storage.garbage.leases.grant(1.0, f"job {number}")
    with pytest.raises(TooManyLeasesError):
        await storage.garbage.leases.grant(1.0, "one too many")


async def test_the_next_owner_knows_of_leases() -> None:
    """SS-258."""
    world = World()
    storage, names = await world.filled()
    await storage.leased_layout(SEGMENT, 3000.0, holder="job 1")
    await storage.truncate(SEGMENT, 40)
    successor = world.storage(2)
    await successor.garbage.collect()
    pass_time(successor, 2000.0)
    assert await successor.garbage.collect() == 0
    # Nor does the search for orphans delete what is leased.
    orphans = OrphanChunks(world.chunks, OrphanSettings(sweep_pause_s=0.0), mark=MARK)
    assert await orphans.sweep(2, successor.unrecorded) == 0
    assert await world.names() == set(names)
    pass_time(successor, 1001.0)
    assert await successor.garbage.collect() == 4


async def test_a_commit_that_may_come_late_is_done_or_never_before_a_layout_is_leased() -> None:
    world = World()
    storage, _ = await world.filled()
    storage._context.cache.doubt(SEGMENT)
    before = world.table.entries()
    await storage.leased_layout(SEGMENT, 1.0, holder="job 1")
    versions = [
        [entry.version for entry in entries if entry.key == SEGMENT.encode()]
        for entries in (before, world.table.entries())
    ]
    assert versions[0] != versions[1]
    assert not storage._context.cache.is_doubtful(SEGMENT)


async def test_a_refused_deletion_is_tried_so_often_and_then_given_up() -> None:
    """SS-222, SS-221."""
    world = World()
    storage, names = await world.filled()
    await storage.truncate(SEGMENT, 20)
    world.chunks.problem = ChunkError("chunk", "it is locked")
    for attempt in range(3):
        pass_time(storage, 2000.0)
        await storage.garbage.collect()
        assert len(world.chunks.deleted) == 2 * min(attempt + 1, 2)
    assert world.keys(TASK_PREFIX) == []
    assert len(world.keys(GIVEN_UP_PREFIX)) == 1
    assert storage.garbage.given_up_count == 2
    world.chunks.problem = None
    await storage.garbage.take_up_again()
    await storage.garbage.collect()
    pass_time(storage, 2000.0)
    assert await storage.garbage.collect() == 2
    assert await world.names() == set(names[2:])
    assert world.keys(b"\0") == []


@pytest.mark.parametrize("problem", [StorageUnavailableError("away"), StorageNotRespondingError("it hangs")])
async def test_storage_that_is_away_costs_no_attempt(problem: StorageError) -> None:
    world = World()
    storage, _ = await world.filled()
    await storage.delete(SEGMENT)
    world.chunks.problem = problem
    for _ in range(5):
        pass_time(storage, 2000.0)
        with pytest.raises(type(problem)):
            await storage.garbage.collect()
    tasks = [decode_task(entry.key, entry.value) for entry in world.table.entries() if entry.key[:1] == b"\0"]
    assert {task.attempts for task in tasks} == {0}
    # It asked for few of them each time.
    assert len(world.chunks.deleted) <= 5 * GARBAGE.deletions_max
    world.chunks.problem = None
    assert await storage.garbage.collect() == 6


async def test_a_deletion_whose_answer_was_lost_is_done() -> None:
    world = World()
    storage, names = await world.filled()
    await storage.truncate(SEGMENT, 20)
    world.chunks.problem, world.chunks.has_effect = ChunkError("chunk", "the answer was lost"), True
    pass_time(storage, 2000.0)
    await storage.garbage.collect()
    assert await world.names() == set(names[2:])
    pass_time(storage, 2000.0)
    world.chunks.problem = None
    await storage.garbage.collect()
    assert world.keys(b"\0") == []


async def test_who_is_shut_out_deletes_nothing() -> None:
    world = World()
    storage, names = await world.filled()
    await storage.delete(SEGMENT)
    pass_time(storage, 2000.0)
    world.is_owner = False
    with pytest.raises(ContainerOfflineError):
        await storage.garbage.collect()
    assert await world.names() == set(names)


async def test_only_leases_wait_while_room_is_short() -> None:
    world = World()
    storage, _ = await world.filled()
    await storage.truncate(SEGMENT, 10)
    lease = await storage.garbage.leases.grant(10.0, "job")
    await storage.truncate(SEGMENT, 30)
    storage.garbage._is_room_short = lambda: True
    assert await storage.garbage.collect() == 1
    await storage.garbage.leases.release(lease)
    assert await storage.garbage.collect() == 2


async def test_very_many_tasks_are_done_with_few_of_them_in_memory() -> None:
    world = World()
    storage = world.storage()
    lengths: list[int] = []
    read = storage.garbage._tasks

    async def tasks(first: bytes, last: bytes, before: CreationOrder | None = None) -> list[GarbageTask]:
        found = await read(first, last, before)
        lengths.append(len(found))
        return found

    storage.garbage._tasks = tasks  # type: ignore[method-assign]
    storage.garbage._note()
    for number in range(1000):
        await world.chunks.create(f"chunk-{number}")
        transaction = storage._context.transaction()
        storage.garbage.stage(transaction, [f"chunk-{number}"])
        await transaction.commit()
        if number % 100 == 0:
            pass_time(storage, 10.0)
    pass_time(storage, 2000.0)
    storage.garbage._note()
    pass_time(storage, 2000.0)
    assert await storage.garbage.collect() == 1000
    assert max(lengths) == GARBAGE.tasks_per_batch
    assert len(storage.garbage._marks) < 100
    assert await world.names() == set()


async def test_damage_of_the_queue_is_reported() -> None:
    world = World()
    storage, _ = await world.filled()
    await storage.truncate(SEGMENT, 10)
    (key,) = world.keys(TASK_PREFIX)
    await world.table.commit([TableUpdate(key, b"damaged record")], [])
    pass_time(storage, 2000.0)
    with pytest.raises(CorruptionError, match="garbage"):
        await storage.garbage.collect()


async def test_garbage_is_no_segment() -> None:
    world = World()
    storage, _ = await world.filled()
    await storage.leased_layout(SEGMENT, 1.0, holder="job")
    await storage.truncate(SEGMENT, 10)
    assert [stored.name async for stored in storage.list_segments()] == [SEGMENT]


def test_records_come_back_as_they_were_put_and_damage_is_found() -> None:
    place = CreationOrder(3, 9)
    task = GarbageTask(place, 12, 1, ("a/b", "ü"))
    lease = LayoutLease(place, 12, 1500, "job 1")
    assert decode_task(place.key(TASK_PREFIX), encode_task(task)) == task
    assert decode_lease(place.key(LEASE_PREFIX), encode_lease(lease)) == lease
    first, second, third = CreationOrder(1, 9), CreationOrder(2, 1), CreationOrder(2, 2)
    assert first.key(TASK_PREFIX) < second.key(TASK_PREFIX) < third.key(TASK_PREFIX)
    for data, decode in ((encode_task(task), decode_task), (encode_lease(lease), decode_lease)):
        for at in range(len(data)):
            for bad in (data[:at], data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]):
                with pytest.raises(CorruptionError):
                    decode(place.key(TASK_PREFIX), bad)
    with pytest.raises(CorruptionError):
        decode_task(place.key(TASK_PREFIX), encode_lease(lease))
    with pytest.raises(InvalidArgumentError):
        encode_task(GarbageTask(place, 0, 0, ("x" * 70_000,)))


def bucket_chunks(bucket: SimulatedBucket) -> tuple[ObjectChunkStorage, SimulatedObjects]:
    objects = SimulatedObjects(bucket, random.Random(1))
    return ObjectChunkStorage(objects, random.Random(2), prefix="p"), objects


async def test_object_storage_deletes_many_in_one_request() -> None:
    bucket = SimulatedBucket()
    chunks, objects = bucket_chunks(bucket)
    for number in range(5):
        await chunks.create_with_content(f"s/{number}", [b"x"])
    requests: list[str] = []
    attempt = objects._attempt

    async def counted(call: str, effect: object) -> object:
        requests.append(call)
        return await attempt(call, effect)  # type: ignore[arg-type]

    objects._attempt = counted  # type: ignore[assignment, method-assign]
    names = [f"s/{number}" for number in range(4)]
    assert await delete_chunks(chunks, [*names, "s/gone"], limit=2) == {}
    assert set(requests) == {"delete_many"}
    assert list(bucket.contents) == ["p/s/4"]
    objects.inject("delete_many", *[ObjectFault.THROTTLE] * 3)
    with pytest.raises(StorageError):
        await delete_chunks(chunks, ["s/4"], limit=2)
    await chunks.close()


async def test_which_of_many_is_refused_is_found_out_one_by_one() -> None:
    chunks, objects = bucket_chunks(SimulatedBucket())
    for number in range(3):
        await chunks.create_with_content(f"s/{number}", [b"x"])

    async def refuse(keys: Sequence[str]) -> None:
        raise StorageFullError("one of them cannot go")

    delete = objects.delete

    async def delete_one(key: str) -> None:
        if key == "p/s/1":
            raise StorageFullError("it cannot go")
        await delete(key)

    objects.delete_many = refuse  # type: ignore[method-assign]
    objects.delete = delete_one  # type: ignore[method-assign]
    assert list(await delete_chunks(chunks, ["s/0", "s/1", "s/2"], limit=2)) == ["s/1"]
    assert [info.name for info in await chunks.list()] == ["s/1"]
    await chunks.close()


async def test_what_another_place_says_of_many_is_not_believed() -> None:
    """A bucket that was put in the place of the right one has none of them, and says that it is done."""
    bucket = SimulatedBucket()
    chunks, _ = bucket_chunks(bucket)
    guard = GuardedChunkStorage(chunks, cluster_id="ours", settings=StorageGuardSettings())

    async def has_logs() -> bool:
        return False

    await guard.claim(has_logs)
    await guard.create_with_content("s/0", [b"x"])
    right, bucket.contents = bucket.contents, {}
    with pytest.raises(StorageUnavailableError):
        await delete_chunks(guard, ["s/0"], limit=2)
    bucket.contents = right
    await guard.check()
    assert await delete_chunks(guard, ["s/0"], limit=2) == {}
    assert await guard.list() == []
    await guard.close()


async def test_a_check_of_storage_knows_garbage_and_finds_damage_of_it() -> None:
    world = World()
    storage, _ = await world.filled()
    await storage.leased_layout(SEGMENT, 1.0, holder="job")
    await storage.truncate(SEGMENT, 30)

    async def problems() -> list[ProblemKind]:
        container = CheckedContainer(0, 1, MARK, [world.table])
        check = StorageCheck(world.chunks, [container], runtime=world.runtime)
        await check.survey()
        await check.verify()
        await check.find_orphans(is_complete=True)
        assert check.report.checked_chunk_count == 3
        assert check.report.orphan_count == 0
        return [problem.kind for problem in check.report.problems]

    assert await problems() == []
    key = world.keys(TASK_PREFIX)[0]
    await world.table.commit([TableUpdate(key, b"damaged record, and of some length")], [])
    assert await problems() == [ProblemKind.RECORD_DAMAGED]
