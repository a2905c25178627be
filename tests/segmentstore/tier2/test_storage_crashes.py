"""`ChunkedStorage` keeps every byte over a crash at every point, and over any history of operations.

A world counts the calls that change chunks or records. At the n-th one it dies, before the effect, after it, or in the
midst of it (half of the bytes written); from then on nothing of that incarnation takes effect. An incarnation of the
next epoch opens the segments, inspects the recorded lengths and continues from there, as the storage writer does. The
bytes must be those of a plain model. Then the same with the dead incarnation still writing (a zombie).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model.errors import (
    NoSuchSegmentError,
    OutcomeUnknownError,
    SegmentError,
    StorageError,
    StorageNotPrimaryError,
)
from penstock.model.segments import Buffer, TableEntry, TablePage, TableRemoval, TableUpdate
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.container_settings import JoinSettings, OrphanSettings
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage
from penstock.segmentstore.tier2.hdfs_storage import HdfsChunkStorage
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.metadata import MemoryMetadataTable, MetadataTable, MetadataTransaction
from penstock.segmentstore.tier2.object_storage import ObjectChunkStorage
from penstock.segmentstore.tier2.orphans import OrphanChunks
from penstock.segmentstore.tier2.storage_context import ChunkedStorageSettings
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from penstock_simulation.simulated.files import FileFaults, SimulatedFiles, SimulatedFileSystem
from penstock_simulation.simulated.objects import ObjectFaults, SimulatedBucket, SimulatedObjects
from support.chunk_records import checked_chunks

SETTINGS = ChunkedStorageSettings(chunk_length_max=8, block_length=3, chunks_per_commit_max=2, page_length=3)
JOINS = JoinSettings(target_bytes=8, chunks_min=2, chunks_max=8)
MARK = b"marked"
MODES = ["before", "half", "after"]
REAL = real_runtime(1)


def seeded_runtime(seed: int = 3) -> Runtime:
    return Runtime(disk=REAL.disk, work=REAL.work, rng=random.Random(seed), wall_clock_ms=lambda: 0)


class Died(StorageError):
    """The process is dead: this call's caller learns nothing."""


@dataclass
class Fate:
    """When and how an incarnation dies. `is_transient`: it lives on, only the one call fails."""

    at: int = -1
    mode: str = "before"
    is_transient: bool = False
    calls: int = 0
    is_dead: bool = field(default=False)

    def strikes(self) -> bool:
        """Count a changing call; say whether this is the one."""
        if self.is_dead:
            raise Died("dead already")
        self.calls += 1
        if self.calls - 1 != self.at:
            return False
        self.is_dead = not self.is_transient
        return True


class FailingChunks(WrappedChunkStorage):
    """Fails one changing call as `fate` says."""

    def __init__(self, inner: ChunkStorage, fate: Fate) -> None:
        super().__init__(inner)
        self._fate = fate

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        if not self._fate.strikes():
            return await super().create_with_content(name, data)
        if self._fate.mode == "after":
            await super().create_with_content(name, data)
        elif self._fate.mode == "half":
            whole = b"".join(data)
            await super().create_with_content(name, [whole[: len(whole) // 2 or 1]])
        raise Died(name)

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        if not self._fate.strikes():
            return await super().write(name, offset, data)
        if self._fate.mode == "after":
            await super().write(name, offset, data)
        elif self._fate.mode == "half":
            whole = b"".join(data)
            await super().write(name, offset, [whole[: len(whole) // 2]])
        raise Died(name)

    async def delete(self, name: str) -> None:
        if not self._fate.strikes():
            return await super().delete(name)
        if self._fate.mode == "after":
            await super().delete(name)
        raise Died(name)


class FailingTable:
    """`MetadataTable` that fails one commit as `fate` says; "half" means that the removals were not done."""

    def __init__(self, inner: MetadataTable, fate: Fate) -> None:
        self._inner = inner
        self._fate = fate

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        return await self._inner.get(keys)

    async def page(self, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None) -> TablePage:
        return await self._inner.page(limit=limit, token=token, first=first, last=last)

    async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        if not self._fate.strikes():
            return await self._inner.commit(updates, removals)
        if self._fate.mode == "after":
            await self._inner.commit(updates, removals)
        elif self._fate.mode == "half":
            await self._inner.commit(updates, [])
        raise OutcomeUnknownError("the process died")


class World:
    """Chunks and records, over which incarnations come and go."""

    def __init__(self, *, supports_append: bool = True, chunks: ChunkStorage | None = None) -> None:
        self.chunks: ChunkStorage = chunks or MemoryChunkStorage(supports_append=supports_append)
        self.table = MemoryMetadataTable()
        self.runtime = seeded_runtime()
        self.epoch = 0

    def incarnation(self, fate: Fate | None = None) -> ChunkedStorage:
        self.epoch += 1
        fate = fate or Fate()
        return ChunkedStorage(
            FailingChunks(self.chunks, fate),
            FailingTable(self.table, fate),
            epoch=self.epoch,
            runtime=self.runtime,
            settings=SETTINGS,
            orphans=OrphanChunks(self.chunks, mark=MARK),
        )

    async def check(self) -> set[str]:
        """Check all invariants of segment-store 8.4 and return the chunks that are in use."""
        used: set[str] = set()
        async for stored in self.reader().list_segments():
            for chunk in (await checked_chunks(self.table, stored.name))[1]:
                assert chunk.length <= (await self.chunks.info(chunk.name)).length
                assert chunk.name not in used
                used.add(chunk.name)
        return used

    def reader(self) -> ChunkedStorage:
        return ChunkedStorage(
            self.chunks, self.table, epoch=self.epoch + 1, runtime=seeded_runtime(9), settings=SETTINGS
        )


# The history that is interrupted everywhere: what each segment is to hold, and how a caller brings it about.

A, B, C, D = "s/a/0.#epoch.0", "s/a/0.#epoch.0#transaction.1", "s/c/0", "s/d/0.#epoch.0"
A_DATA = bytes(range(40))
B_DATA = bytes(range(100, 120))
#: In D small chunks come first, then small merges, then chunks again.
D_DATA = bytes(range(30))
D_MERGES = (12, 15, 18)


async def advance(storage: ChunkedStorage, segment: str, data: bytes, step: int, *, until: int) -> None:
    """Write `data` up to `until`, from the recorded length on."""
    stored = await storage.open(segment)
    position = stored.length if stored is not None else 0
    while position < until:
        end = min(position + step, until)
        position = await storage.write(segment, position, [data[position:end]])


async def tell_story(storage: ChunkedStorage) -> None:
    """Do what is not yet done of: fill A, fill and seal B, merge B into A, write on, truncate A, fill and delete C."""
    whole = A_DATA[:20] + B_DATA + A_DATA[20:]
    merged_to = 20 + len(B_DATA)
    await advance(storage, A, whole, 5, until=20)
    stored = await storage.open(A)
    assert stored is not None
    if stored.length < merged_to:
        await advance(storage, B, B_DATA, 11, until=len(B_DATA))
        await storage.seal(B)
        await storage.concat(A, 20, B)
    await advance(storage, A, whole, 17, until=len(whole))
    if (await storage.info(C)) is None and stored.start_offset < 30:
        await advance(storage, C, whole, 50, until=50)
    await storage.truncate(A, 30)
    await storage.delete(C)
    await storage.seal(A)


async def check_story(world: World) -> None:
    whole = A_DATA[:20] + B_DATA + A_DATA[20:]
    reader = world.reader()
    stored = [segment async for segment in reader.list_segments()]
    assert [(s.name, s.start_offset, s.length, s.is_sealed) for s in stored] == [(A, 30, 60, True)]
    for start in range(30, 60):
        assert await reader.read(A, start, 99) == whole[start:]
    await check_chunks(world)


async def check_chunks(world: World) -> None:
    """Each chunk is in use, or in the queue of garbage, or found by the sweep; and those that are not in use go."""
    reader = world.reader()
    used = await world.check()
    # Whatever else lies about was never recorded, or waits in the queue of garbage; nothing that is in use does.
    names = {info.name for info in await world.chunks.list()}
    queued = await reader.garbage.queued(names)
    left = set(await reader.unrecorded(sorted(names)))
    assert (queued | left, queued & left) == (names - used, set())
    orphans = OrphanChunks(world.chunks, OrphanSettings(sweep_names=3, sweep_pause_s=0.0), mark=MARK)
    assert await orphans.sweep(world.epoch + 1, reader.unrecorded) == len(left)
    await reader.garbage.collect()
    assert {info.name for info in await world.chunks.list()} == used


async def count_calls(supports_append: bool) -> int:
    fate = Fate()
    world = World(supports_append=supports_append)
    await tell_story(world.incarnation(fate))
    await check_story(world)
    return fate.calls


@pytest.mark.parametrize("supports_append", [True, False])
@pytest.mark.parametrize("mode", MODES)
async def test_crash_at_every_point_loses_and_doubles_nothing(mode: str, supports_append: bool) -> None:
    for at in range(await count_calls(supports_append)):
        world = World(supports_append=supports_append)
        fate = Fate(at, mode)
        try:
            await tell_story(world.incarnation(fate))
        except (Died, OutcomeUnknownError):
            pass
        # A failed deletion of a dropped chunk is not the caller's problem: then the story may continue to its end.
        assert fate.is_dead
        await world.check()
        await tell_story(world.incarnation())
        await check_story(world)


@pytest.mark.parametrize("supports_append", [True, False])
@pytest.mark.parametrize("mode", MODES)
async def test_two_crashes_in_a_row_lose_and_double_nothing(mode: str, supports_append: bool) -> None:
    for at in range(0, await count_calls(supports_append), 2):
        for second in range(6):
            world = World(supports_append=supports_append)
            for fate in (Fate(at, mode), Fate(second, mode)):
                storage = world.incarnation(fate)
                try:
                    await tell_story(storage)
                except (Died, OutcomeUnknownError):
                    assert fate.is_dead
            await tell_story(world.incarnation())
            await check_story(world)


@pytest.mark.parametrize("supports_append", [True, False])
@pytest.mark.parametrize("mode", MODES)
async def test_a_failed_call_is_repeated_by_the_same_incarnation(mode: str, supports_append: bool) -> None:
    # No restart: one call fails, the caller asks for the recorded length and continues with the same instance.
    # SS-197: commits that were applied although they failed are among them. Neither the queue of garbage nor the next
    # start's sweep takes their chunks.
    for at in range(await count_calls(supports_append)):
        world = World(supports_append=supports_append)
        storage = world.incarnation(Fate(at, mode, is_transient=True))
        try:
            await tell_story(storage)
        except (Died, OutcomeUnknownError):
            await tell_story(storage)
        await check_story(world)


@pytest.mark.parametrize("supports_append", [True, False])
async def test_zombie_at_every_point_does_no_harm(supports_append: bool) -> None:
    # SS-226 for user segments: the old instance stops anywhere, its successor does everything, the old one continues.
    for at in range(await count_calls(supports_append)):
        world = World(supports_append=supports_append)
        fate = Fate(at, "half")
        old = world.incarnation(fate)
        try:
            await tell_story(old)
        except (Died, OutcomeUnknownError):
            pass
        new = world.incarnation()
        await tell_story(new)
        fate.is_dead = False
        with pytest.raises(StorageNotPrimaryError):
            await old.open(A)
        before = world.table.entries()
        # What it remembers may be so old that it refuses for another reason, or finds nothing to do.
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda old=old: old.write(A, 60, [b"ZOMBIE"]),  # type: ignore[misc]  # Bound now, called below.
            lambda old=old: old.write(A, 5, [b"ZOMBIE"]),  # type: ignore[misc]
            lambda old=old: old.truncate(A, 55),  # type: ignore[misc]
            lambda old=old: old.seal(A),  # type: ignore[misc]
            lambda old=old: old.concat(A, 60, B),  # type: ignore[misc]
            lambda old=old: old.delete(A),  # type: ignore[misc]
        ]
        for call in calls:
            try:
                await call()
            except (StorageError, SegmentError):
                pass
            assert world.table.entries() == before
        await check_story(world)


# Joins of small chunks, interrupted everywhere.


async def join_all(storage: ChunkedStorage, segment: str) -> int:
    """Join what can be joined; return how many chunks were."""
    count = 0
    upper = 99
    while upper > 0:
        step = await storage.join_chunks(segment, 0, upper, JOINS)
        assert step.upper < upper or step.chunk_count
        upper = step.upper
        count += step.chunk_count
    return count


async def filled_with_small_chunks(supports_append: bool) -> World:
    """Return a world with D in 17 chunks, each of an epoch of its own where storage can append."""
    world = World(supports_append=supports_append)
    while (stored := await world.reader().info(D)) is None or stored.length < len(D_DATA):
        storage = world.incarnation()
        length = stored.length if stored is not None else 0
        if length in D_MERGES:
            source = f"{D}#transaction.{length}"
            await storage.write(source, 0, [D_DATA[length : length + 2]])
            source_again = world.incarnation()
            await source_again.write(source, 2, [D_DATA[length + 2 : length + 3]])
            await source_again.seal(source)
            await source_again.concat(D, length, source)
        else:
            await advance(storage, D, D_DATA, 2, until=min(length + 2, len(D_DATA)))
    assert len(await world.reader().chunks_of(D)) == 17
    return world


async def check_joined(world: World) -> None:
    reader = world.reader()
    for start in range(len(D_DATA)):
        assert await reader.read(D, start, 99) == D_DATA[start:]
    assert len(await reader.chunks_of(D)) <= 6
    await check_chunks(world)


async def count_join_calls(supports_append: bool) -> int:
    fate = Fate()
    world = await filled_with_small_chunks(supports_append)
    assert await join_all(world.incarnation(fate), D) >= 14
    await check_joined(world)
    return fate.calls


@pytest.mark.parametrize("supports_append", [True, False])
@pytest.mark.parametrize("mode", MODES)
async def test_crashes_at_every_point_of_joins_lose_and_double_nothing(mode: str, supports_append: bool) -> None:
    """SS-214: and one more in the next epoch, at several points."""
    for at in range(await count_join_calls(supports_append)):
        for second in (-1, 1):
            world = await filled_with_small_chunks(supports_append)
            for fate in (Fate(at, mode), Fate(second, mode)):
                try:
                    await join_all(world.incarnation(fate), D)
                except (Died, OutcomeUnknownError):
                    assert fate.is_dead
                await world.check()
            await join_all(world.incarnation(), D)
            await check_joined(world)


@pytest.mark.parametrize("supports_append", [True, False])
@pytest.mark.parametrize("mode", MODES)
async def test_a_join_that_failed_is_repeated_by_the_same_incarnation(mode: str, supports_append: bool) -> None:
    for at in range(await count_join_calls(supports_append)):
        world = await filled_with_small_chunks(supports_append)
        storage = world.incarnation(Fate(at, mode, is_transient=True))
        try:
            await join_all(storage, D)
        except (Died, OutcomeUnknownError):
            pass
        await advance(storage, D, D_DATA + b"and on", 3, until=len(D_DATA) + 6)
        await join_all(storage, D)
        await storage.truncate(D, 3)
        assert await storage.read(D, 3, 99) == (D_DATA + b"and on")[3:]
        await check_chunks(world)


@pytest.mark.parametrize("supports_append", [True, False])
async def test_a_zombie_at_every_point_of_a_join_does_no_harm(supports_append: bool) -> None:
    refused_count = 0
    for at in range(await count_join_calls(supports_append)):
        world = await filled_with_small_chunks(supports_append)
        fate = Fate(at, "half")
        old = world.incarnation(fate)
        try:
            await join_all(old, D)
        except (Died, OutcomeUnknownError):
            pass
        new = world.incarnation()
        await new.open(D)
        fate.is_dead = False
        before = world.table.entries()
        try:
            assert await join_all(old, D) == 0  # It had come to its end.
        except StorageNotPrimaryError:
            refused_count += 1
        assert world.table.entries() == before
        await join_all(new, D)
        await check_joined(world)
    assert refused_count


# An old owner that hangs during a call, and resumes when its successor has completed everything.


class LateChunks(WrappedChunkStorage):
    """Holds the call number `at` that changes chunks until `goes_on`; it is under way once `is_held`."""

    def __init__(self, inner: ChunkStorage, at: int) -> None:
        super().__init__(inner)
        self.calls = 0
        self.is_held = asyncio.Event()
        self.goes_on = asyncio.Event()
        self._at = at

    async def _come_late(self) -> None:
        self.calls += 1
        if self.calls - 1 == self._at:
            self.is_held.set()
            await self.goes_on.wait()

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        await self._come_late()
        return await super().create_with_content(name, data)

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        await self._come_late()
        return await super().write(name, offset, data)

    async def delete(self, name: str) -> None:
        await self._come_late()
        await super().delete(name)


class AppendedChunks(WrappedChunkStorage):
    """Remembers which chunks were appended to."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self.appended: set[str] = set()

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        self.appended.add(name)
        return await super().write(name, offset, data)


class FencedTable:
    """`MetadataTable` of an incarnation; once it `is_fenced` the log refuses its commits, as it would."""

    def __init__(self, inner: MetadataTable) -> None:
        self._inner = inner
        self.is_fenced = False

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        return await self._inner.get(keys)

    async def page(self, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None) -> TablePage:
        return await self._inner.page(limit=limit, token=token, first=first, last=last)

    async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        if self.is_fenced:
            raise StorageNotPrimaryError("the log", owner_epoch=2, epoch=1)
        return await self._inner.commit(updates, removals)


def chunks_of(binding: str) -> ChunkStorage:
    """Return an empty storage that answers at once."""
    if binding == "bucket":
        objects = SimulatedObjects(SimulatedBucket(), random.Random(1), ObjectFaults(0.0, 0.0))
        return ObjectChunkStorage(objects, random.Random(2))
    if binding == "hdfs":
        files = SimulatedFiles(SimulatedFileSystem(), random.Random(1), FileFaults(0.0, 0.0, recovery_s=0.0))
        return HdfsChunkStorage(files, random.Random(2), "/root")
    return MemoryChunkStorage()


async def late_story(binding: str, at: int) -> int:
    """Hold an old owner's call, let a new one tell the story, then let the old one continue. Return its calls."""
    world = World(chunks=chunks_of(binding))
    late, table = LateChunks(world.chunks, at), FencedTable(world.table)
    world.epoch += 1
    old = ChunkedStorage(
        late, table, epoch=world.epoch, runtime=world.runtime, settings=SETTINGS,
        orphans=OrphanChunks(late, mark=MARK),
    )  # fmt: skip
    telling = asyncio.create_task(tell_story(old))
    holding = asyncio.create_task(late.is_held.wait())
    await asyncio.wait((telling, holding), return_when=asyncio.FIRST_COMPLETED)
    table.is_fenced = True
    if telling.done():
        holding.cancel()
        return late.calls
    world.chunks = new = AppendedChunks(world.chunks)
    await tell_story(world.incarnation())
    # Not even where the storage would refuse what comes late.
    assert all(f".E-{world.epoch}-" in name for name in new.appended)
    late.goes_on.set()
    (outcome,) = await asyncio.gather(telling, return_exceptions=True)
    assert isinstance(outcome, StorageError | SegmentError)
    await check_story(world)
    return late.calls


@pytest.mark.parametrize("binding", ["directory", "bucket", "hdfs"])
async def test_what_an_old_owner_writes_late_is_never_read(binding: str) -> None:
    """SS-200, SS-201: it hangs in each call of writes, rolls, merges, truncations and deletions.

    Its successor appends to no chunk of it, and reads none beyond its recorded length. All that it leaves is found.
    """
    count = await late_story(binding, -1)
    assert count > 10
    for at in range(count):
        await late_story(binding, at)


# Any history: a state machine against a bytearray.


@dataclass
class Model:
    """A segment, obviously right."""

    data: bytearray
    start: int = 0
    is_sealed: bool = False


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [*["write"] * 3, "truncate", "skip", "seal", "concat", "delete", "join", "join", "reopen", "die", "zombie"]
        ),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 30),
        st.sampled_from(MODES),
    ),
    max_size=40,
)


@pytest.mark.parametrize("supports_append", [True, False])
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS)
async def test_any_history_equals_the_model(
    supports_append: bool, operations: list[tuple[str, int, int, int, str]]
) -> None:
    world = World(supports_append=supports_append)
    fate = Fate()
    storage = world.incarnation(fate)
    zombie: ChunkedStorage | None = None
    zombie_fate = fate
    models: dict[str, Model] = {}
    names = ["s/x/0", "s/y/0", "s/z/0"]
    filler = random.Random(5)
    for operation, first, second, number, mode in operations:
        name, other = names[first], names[second]
        model = models.get(name)
        if operation in ("reopen", "die"):
            zombie = storage
            zombie_fate = fate
            fate = Fate(at=number % 4 if operation == "die" else -1, mode=mode)
            storage = world.incarnation(fate)
            for known in models:
                try:
                    await storage.open(known)
                except OutcomeUnknownError:
                    fate = Fate()
                    storage = world.incarnation(fate)
            continue
        if operation == "zombie":
            if zombie is not None:
                zombie_fate.at, zombie_fate.is_dead = -1, False
                stored = await world.reader().info(name)
                record = await MetadataTransaction(world.table, epoch=0).segment(name)
                if record is not None and record.owner_epoch > zombie.epoch and stored is not None:
                    with pytest.raises(StorageNotPrimaryError):
                        await zombie.write(name, stored.length, [b"ZOMBIE" * 3])
            continue
        data = filler.randbytes(number)
        target: Model | None = None
        try:
            if operation == "write" and (model is None or not model.is_sealed):
                target = Model(bytearray((model.data if model else b"") + data), model.start if model else 0)
                await storage.write(name, len(model.data) if model else 0, [data[:7], data[7:]])
                if model is None and not data:
                    continue
            elif operation == "truncate" and model is not None:
                offset = max(model.start, min(number, len(model.data)))
                target = Model(model.data, offset, model.is_sealed)
                await storage.truncate(name, offset)
            elif operation == "skip" and (model is None or not model.is_sealed):
                # Skip bytes that are never requested.
                skipped = bytearray(model.data if model else b"") + bytes(number)
                target = Model(skipped, len(skipped))
                await storage.skip(name, len(skipped))
            elif operation == "seal" and model is not None:
                target = Model(model.data, model.start, True)
                await storage.seal(name)
            elif operation == "join":
                target = model
                await join_all(storage, name)
                if model is None:
                    continue
            elif operation == "delete":
                await storage.delete(name)
                models.pop(name, None)
                continue
            elif operation == "concat" and name != other and model is not None and not model.is_sealed:
                source = models.get(other)
                if source is None or not source.is_sealed or source.start:
                    continue
                target = Model(model.data + source.data, model.start)
                await storage.concat(name, len(model.data), other)
                del models[other]
            else:
                continue
            models[name] = target  # type: ignore[assignment]
        except (Died, OutcomeUnknownError):
            # The next incarnation checks which of the two states there is; there is no third.
            fate = Fate()
            storage = world.incarnation(fate)
            stored = await storage.open(name)
            if stored is None:
                assert operation == "delete" or model is None
                models.pop(name, None)
                continue
            assert operation != "delete" or (stored.start_offset, stored.length) == (
                (model.start, len(model.data)) if model else None
            )
            state = (stored.start_offset, stored.length, stored.is_sealed)
            options = [option for option in (model, target) if option is not None]
            if operation == "truncate" and model is not None:
                # A long truncation goes in steps, each of which is a truncation.
                assert target is not None
                assert model.start <= stored.start_offset <= target.start
                options = [Model(model.data, stored.start_offset, model.is_sealed)]
            if operation == "skip" and model is not None and stored.length == len(model.data):
                # So does what lies before the bytes that are skipped.
                assert model.start <= stored.start_offset
                options.append(Model(model.data, stored.start_offset, model.is_sealed))
            matching = [o for o in options if (o.start, len(o.data), o.is_sealed) == state]
            assert matching
            models[name] = matching[-1]
            if operation == "concat" and (await storage.info(other)) is None:
                del models[other]
    await world.check()
    for reader in (storage, world.reader()):
        for name in names:
            model = models.get(name)
            if model is None:
                with pytest.raises(NoSuchSegmentError):
                    await reader.read(name, 0, 0)
                continue
            stored = await reader.info(name)
            assert stored is not None
            assert (stored.start_offset, stored.length, stored.is_sealed) == (
                model.start,
                len(model.data),
                model.is_sealed,
            )
            if model.start < len(model.data):
                assert await reader.read(name, model.start, 10_000) == model.data[model.start :]
