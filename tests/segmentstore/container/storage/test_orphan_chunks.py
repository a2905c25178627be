"""Chunks without a record are deleted, by the next start or a later one; no others are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import ContainerOfflineError, PenstockError, StorageError, StorageNotRespondingError
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container_settings import OrphanSettings
from penstock.segmentstore.tier2.garbage_records import SEGMENTS_FIRST
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.orphans import OrphanChunks
from support.containers import QUIET, Incarnations, append, evict_all, pause_writer, read_all

NAME = "s/t/0.#epoch.0"


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations(replace(QUIET, orphans=OrphanSettings(sweep_names=2, sweep_pause_s=0.0)))
    yield made
    await made.close()


async def chunks_of_users(lives: Incarnations) -> list[str]:
    return [info.name for info in await lives.chunks.list("s/")]


async def recorded(container: SegmentContainer) -> list[str]:
    segment = container.segment(NAME)
    return [chunk.name for chunk in await container.storage.of(segment).chunks_of(NAME)]


async def sweep(container: SegmentContainer) -> int:
    return await container.storage.orphans.sweep(container.log.epoch, container.storage.unrecorded)


async def filled(lives: Incarnations) -> SegmentContainer:
    container = await lives.start()
    await pause_writer(container)
    await container.create(NAME)
    await append(container, NAME, b"a" * 1000)
    return container


async def test_a_chunk_whose_creation_failed_after_its_effect_is_deleted(lives: Incarnations) -> None:
    container = await filled(lives)
    lives.chunks.fail("write", has_effect=True)
    with pytest.raises(StorageError):
        await container.flush()
    assert len(await chunks_of_users(lives)) == 1
    await container.storage.orphans.collect()
    assert await chunks_of_users(lives) == []
    await container.flush()
    assert await chunks_of_users(lives) == await recorded(container)
    assert len(container.storage.orphans) == 0


async def test_a_chunk_whose_deletion_failed_is_deleted_later(lives: Incarnations) -> None:
    container = await filled(lives)
    await container.flush()
    await container.delete(NAME)
    lives.chunks.fail("delete", times=3)
    await container.flush()
    assert len(await chunks_of_users(lives)) == 1
    garbage = container.storage._user.garbage
    for _ in range(3):
        assert len(await chunks_of_users(lives)) == 1
        await garbage.collect()
    assert await chunks_of_users(lives) == []
    assert await garbage.collect() == 0


@pytest.mark.parametrize("has_effect", [True, False])
async def test_orphans_of_a_crashed_creation_are_found_at_the_next_start(lives: Incarnations, has_effect: bool) -> None:
    """The process dies behind the creation, before the commit; what it remembers dies with it."""
    container = await filled(lives)
    lives.chunks.fail("write", has_effect=has_effect)
    with pytest.raises(StorageError):
        await container.flush()
    left = await chunks_of_users(lives)
    assert len(left) == has_effect
    successor = await lives.restart(container)
    await successor.flush()
    assert sorted(await chunks_of_users(lives)) == sorted([*left, *await recorded(successor)])
    assert await sweep(successor) == has_effect
    assert await chunks_of_users(lives) == await recorded(successor)
    evict_all(successor)
    assert await read_all(successor, NAME) == b"a" * 1000


async def test_a_sweep_deletes_no_recorded_chunk(lives: Incarnations) -> None:
    """Of users' segments and the container's own, of earlier starts and this one, with indexes and merged chunks."""
    container = await filled(lives)
    other = f"{NAME}#transaction.{'0' * 32}"
    await container.create(other)
    await append(container, other, b"b" * 500)
    await container.flush()
    await container.seal(other)
    await container.merges.merge(NAME, other)
    await container.flush()
    container = await lives.restart(container)
    await append(container, NAME, b"c" * 10)
    await container.flush()
    before = [info.name for info in await lives.chunks.list()]
    assert await sweep(container) == 0
    container = await lives.restart(container)
    assert await sweep(container) == 0
    assert [info.name for info in await lives.chunks.list()] == before
    evict_all(container)
    assert await read_all(container, NAME) == b"a" * 1000 + b"b" * 500 + b"c" * 10


async def test_the_mark_is_drawn_once_in_the_life_of_a_log(lives: Incarnations) -> None:
    """So a container whose log was lost, and that restarts at the first epoch, judges nothing of before."""
    container = await filled(lives)
    mark = container.storage.orphans.mark
    assert len(mark) == 6
    container = await lives.restart(container)
    assert container.storage.orphans.mark == mark
    await container.flush()
    stranger = Incarnations(lives.settings, seed=2)
    stranger.chunks = lives.chunks
    for _ in range(3):
        container = await stranger.start()
        assert container.storage.orphans.mark != mark
        assert await sweep(container) == 0
        await stranger.stop(container)
    assert len(await chunks_of_users(lives)) == 1
    await stranger.close()


async def test_a_chunk_whose_record_is_removed_in_memory_alone_is_no_orphan(lives: Incarnations) -> None:
    """The log has not taken the removal, and never does: the next start has the record, and needs the chunk."""
    container = await filled(lives)
    await container.flush()
    container = await lives.restart(container)
    (name,) = await chunks_of_users(lives)
    segment = container.segment(NAME)
    await container.storage.of(segment).open(NAME)
    lives.logs.hold_appends(0)
    truncation = asyncio.ensure_future(container.storage.of(segment).truncate(NAME, 1000))
    checking = asyncio.ensure_future(container.storage.unrecorded([name]))
    await asyncio.sleep(0.05)
    assert not checking.done()
    await lives.crash(container)
    checking.cancel()
    truncation.cancel()
    await asyncio.gather(checking, truncation, return_exceptions=True)
    starting = asyncio.ensure_future(lives.start())
    await asyncio.sleep(0.05)  # Its claim shuts out what is on its way.
    lives.logs.release_appends(0)
    successor = await starting
    evict_all(successor)
    assert await read_all(successor, NAME) == b"a" * 1000


async def test_a_fenced_incarnation_deletes_no_unknown_chunk(lives: Incarnations) -> None:
    container = await filled(lives)
    await container.flush()
    zombie = await lives.restart(container)
    await pause_writer(zombie)
    successor = await lives.start()
    with pytest.raises(PenstockError) as raised:
        await zombie.storage.unrecorded(["s/t/0.E-1-O-0.00000000-0000-4000-8000-000000000000"])
    assert isinstance(raised.value, ContainerOfflineError)
    await append(successor, NAME, b"still there")


@pytest.mark.parametrize("has_effect", [True, False])
async def test_storage_that_fails_for_long_makes_no_queue_of_garbage(has_effect: bool) -> None:
    """SS-223: a flush is tried 600 times, as in ten minutes. What must be deleted is noted with a commit alone, and
    none comes about; what was left behind is remembered up to a bound, and all else is for the next start's sweep.
    """
    orphans = OrphanSettings(remembered_max=20, sweep_names=20, sweep_pause_s=0.0, sweep_delay_s=1e9)
    lives = Incarnations(replace(QUIET, orphans=orphans))
    container = await filled(lives)
    await container.flush()
    container = await lives.restart(container)
    await pause_writer(container)
    await append(container, NAME, b"more")
    await container.truncate(NAME, 10)
    log_bytes = sum(map(len, lives.frames()))
    lives.chunks.fail("write", times=600, has_effect=has_effect)
    for _ in range(600):
        with pytest.raises(StorageError):
            await container.writer.flush(container.segment(NAME))
    assert sum(map(len, lives.frames())) - log_bytes < 2000
    assert len(container.storage.orphans) <= 20
    for storage in (container.storage._system, container.storage._user):
        page = await storage._context.table.page(limit=10, last=SEGMENTS_FIRST)
        assert list(page.entries) == []
    await container.flush()
    await container.storage.orphans.collect()
    left = set(await chunks_of_users(lives)) - set(await recorded(container))
    assert len(left) == (580 if has_effect else 0)
    container = await lives.restart(container)
    assert await sweep(container) == len(left)
    assert sorted(await chunks_of_users(lives)) == sorted(await recorded(container))
    assert await read_all(container, NAME) == b"a" * 990 + b"more"
    await lives.close()


class Slow(MemoryChunkStorage):
    """Says of every deletion what `answers` say, in turn."""

    def __init__(self, *answers: Exception | None) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[str] = []

    async def delete(self, name: str) -> None:
        """See `ChunkStorage.delete`."""
        self.asked.append(name)
        if (answer := self.answers.pop(0) if self.answers else None) is not None:
            raise answer
        await super().delete(name)


async def test_a_chunk_that_may_come_late_is_searched_until_it_has_come() -> None:
    chunks = Slow()
    orphans = OrphanChunks(chunks, OrphanSettings(retry_s_min=0.0, late_s_max=60.0))
    orphans.add("late", may_come_late=True)
    orphans.add("never")
    await orphans.collect()
    assert len(orphans) == 1
    await chunks.create("late")
    await orphans.collect()
    assert await chunks.list() == []
    assert len(orphans) == 0
    orphans.add("too late", may_come_late=True)
    orphans._orphans["too late"].since_s -= 61.0
    await orphans.collect()
    assert len(orphans) == 0


async def test_orphans_are_remembered_up_to_a_bound() -> None:
    chunks = Slow()
    orphans = OrphanChunks(chunks, OrphanSettings(remembered_max=3))
    for number in range(5):
        orphans.add(f"chunk-{number}")
    assert len(orphans) == 3
    await orphans.collect()
    assert chunks.asked == ["chunk-2", "chunk-3", "chunk-4"]


async def test_silent_storage_gets_no_request_for_each_orphan() -> None:
    chunks = Slow(StorageNotRespondingError("hangs"))
    orphans = OrphanChunks(chunks, OrphanSettings(retry_s_min=60.0))
    orphans.add("a")
    orphans.add("b")
    await orphans.collect()
    assert chunks.asked == ["a"]
    assert len(orphans) == 2
