"""Objects held too long, calls that cross each other, and storage that is stuck: what a review of the container found.

Over a container with a log and chunks in memory; each test brings about one order of events that must do no harm.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence

import pytest

from penstock.model.errors import (
    ContainerOfflineError,
    NoSuchSegmentError,
    SegmentSealedError,
    StorageError,
    TableNotEmptyError,
    TooManyActiveSegmentsError,
)
from penstock.model.segments import NO_VALUE, VERSION_ANY, TableUpdate
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.storage.container_storage import attribute_index_segment, table_index_segment
from support.containers import Incarnations, append, evict_all, pause_writer, read_all, turns, until

A, B = "s/a/0.#epoch.0", "s/b/0.#epoch.0"
SMALL = {"attributes_in_memory_max": 8, "attributes_cached_max": 16, "attributes_flush_count": 10}


def ident(number: int) -> bytes:
    """Return the id of a writer."""
    return b"writer" + number.to_bytes(10, "big")


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    """A container's lives; closed in the end."""
    incarnations = Incarnations()
    yield incarnations
    await incarnations.close()


async def put_away(container: SegmentContainer, *names: str) -> None:
    """Flush and deactivate segments; every one of them must go."""
    await container.flush()
    segments = [container.state.metadata.by_name[name] for name in names]
    assert await container.catalog.deactivate(segments, len(segments)) == len(segments)


async def give_attributes(container: SegmentContainer, name: str, count: int) -> Segment:
    """Give a segment some attributes."""
    for number in range(count):
        assert await container.update_attribute(name, ident(number), value=number, expected=NO_VALUE)
    return await container.find(name)


async def cut_log(container: SegmentContainer) -> None:
    """Write a checkpoint and truncate the log to it, if only the container's tables need what is before it."""
    container.checkpoints.write()
    await container.pipeline.barrier()
    for segment in container.segments():
        if segment.is_system:
            await container.writer.flush(segment)
    container.checkpoints.truncate_log()
    await turns()


# Objects that were held while their segment left memory and came back.


async def test_a_late_flush_of_an_object_that_left_memory_takes_nothing_from_the_one_that_came_back(
    lives: Incarnations,
) -> None:
    """A job had waited for its turn since before: what the new object has to store stays known, and in the log."""
    container = await lives.start()
    old = await container.create(A)
    await append(container, A, b"abc")
    await put_away(container, A)
    new = await container.find(A)
    assert new is not old
    await append(container, A, b"def")
    await container.writer.flush(old)
    assert container.state.unflushed[new.id] is new
    await cut_log(container)
    container = await lives.restart(container)
    assert await read_all(container, A) == b"abcdef"


async def test_activity_of_a_segment_that_came_back_within_a_poll_is_counted(lives: Incarnations) -> None:
    """The note of before continues with the new object."""
    container = await lives.start()
    await container.create(A)
    container.state.activity.take()
    await append(container, A, b"abc")
    await put_away(container, A)
    new = await container.find(A)
    await append(container, A, b"defg")
    (note,) = [note for note in container.state.activity.take() if note.segment.name == A]
    assert note.segment is new
    assert note.segment.length - note.length == 7


async def test_attributes_are_not_loaded_for_an_object_that_left_memory(lives: Incarnations) -> None:
    """A holder of the old object finds the segment again; nothing is cached that would never be released."""
    container = await lives.start(**SMALL)
    await container.create(A)
    old = await give_attributes(container, A, 20)
    container.attributes.due()
    await container.attributes.flush(old)
    await put_away(container, A)
    await container.attributes.bring_in(old, [ident(1)])
    assert old.attribute_index is None


async def test_loading_one_attribute_lets_go_of_no_other_that_the_same_call_needs(lives: Incarnations) -> None:
    """One value is in memory, the oldest there, the other is not: a merge that depends on both finds both."""
    container = await lives.start(**SMALL)
    await container.create(A)
    segment = await give_attributes(container, A, 60)
    container.attributes.due()
    await container.attributes.flush(segment)
    first, *_ = segment.attributes
    missing = [ident(number) for number in range(60) if ident(number) not in segment.attributes]
    while len(segment.attributes) <= 16:
        await container.get_attribute(A, missing.pop())
    await container.attributes.load(segment, [first, missing[0]])
    assert first in segment.attributes
    assert missing[0] in segment.attributes


# Segments that are gone.


async def test_attributes_of_a_segment_that_is_gone_are_never_spilled(lives: Incarnations) -> None:
    """Deleted with many attributes, found gone in a checkpoint, freed: nothing about it is logged any more."""
    container = await lives.start(**SMALL)
    await pause_writer(container)
    await container.create(A)
    await give_attributes(container, A, 12)
    await append(container, A, b"abc")
    await container.flush()
    lives.chunks.fail("delete", times=1000)
    await container.delete(A)
    await cut_log(container)
    container = await lives.restart(container)
    assert container.state.gone
    lives.chunks.heal()
    await container.flush()
    assert not container.state.gone
    container.attributes.due()
    await container.pipeline.barrier()
    assert not container.state.attribute_work
    container = await lives.restart(container)
    assert not lives.failures
    with pytest.raises(NoSuchSegmentError):
        await container.find(A)


async def test_making_room_in_a_segment_that_was_merged_away_ends(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merged source's attributes go nowhere any more: waiting for that would hold the whole process."""
    container = await lives.start(**SMALL, attributes_unflushed_max=10)
    await container.create(A)
    await container.create(B)
    source = await give_attributes(container, B, 12)
    container.attributes.due()
    flush = container.attributes.flush
    calls = 0

    async def merge_first(segment: Segment) -> None:
        nonlocal calls
        calls += 1
        assert calls < 10, "it does not end"
        if not segment.is_merged:
            await container.merges.merge(A, B)
        await flush(segment)

    monkeypatch.setattr(container.attributes, "flush", merge_first)
    with pytest.raises(NoSuchSegmentError):
        await container.attributes.bring_in(source, [ident(1)])


async def test_a_table_deleted_while_its_index_is_written_leaves_no_index_behind(lives: Incarnations) -> None:
    """The freeing waits for the update of the index, which would bring the index back otherwise."""
    container = await lives.start()
    await pause_writer(container)
    segment = await container.create(A, flags=SegmentFlags.TABLE)
    updates = [TableUpdate(b"k%d" % number, b"v" * 20, VERSION_ANY) for number in range(20)]
    await container.tables.put(segment, updates, -1)
    await container.tables.flush_index(segment)
    await container.tables.put(segment, updates, -1)
    evict_all(container)
    lives.chunks.hold("read")
    before = lives.chunks.calls["read"]
    writing = asyncio.create_task(container.tables.flush_index(segment))
    await until(lambda: lives.chunks.calls["read"] > before)
    await container.delete(A)
    flushing = asyncio.create_task(container.flush())
    await turns(200)
    lives.chunks.release("read")
    await asyncio.gather(writing, flushing)
    assert not container.state.gone
    assert await container.storage._user.info(table_index_segment(segment)) is None


async def test_a_table_that_is_gone_gets_no_index_any_more(lives: Incarnations) -> None:
    """A job of before the deletion comes late."""
    container = await lives.start()
    await pause_writer(container)
    segment = await container.create(A, flags=SegmentFlags.TABLE)
    await container.tables.put(segment, [TableUpdate(b"k", b"v", VERSION_ANY)], -1)
    table = segment.table
    assert table is not None
    await container.delete(A)
    await container.flush()
    await container.tables._indexer.flush(segment, table)
    assert await container.storage._user.info(table_index_segment(segment)) is None


async def test_a_source_merged_while_its_attributes_are_written_leaves_no_index_behind(lives: Incarnations) -> None:
    """As with tables: the freeing of the source's index waits for its update."""
    container = await lives.start(**SMALL)
    await pause_writer(container)
    await container.create(A)
    await container.create(B)
    source = await give_attributes(container, B, 20)
    container.attributes.due()
    await container.attributes.flush(source)
    assert await container.update_attribute(B, ident(19), value=7, expected=19)
    evict_all(container)
    lives.chunks.hold("read")
    before = lives.chunks.calls["read"]
    writing = asyncio.create_task(container.attributes.flush(source))
    await until(lambda: lives.chunks.calls["read"] > before)
    await container.merges.merge(A, B)
    flushing = asyncio.create_task(container.flush())
    await turns(200)
    lives.chunks.release("read")
    await asyncio.gather(writing, flushing)
    assert not container.state.gone
    assert await container.storage._user.info(attribute_index_segment(source)) is None


async def test_a_transient_segment_that_outlived_its_connection_is_deleted_though_idle(lives: Incarnations) -> None:
    """It stays in memory, where the next start finds it."""
    container = await lives.start()
    name = f"{A}#transient.{'0' * 32}"
    segment = await container.create(name)
    assert segment.flags & SegmentFlags.TRANSIENT
    await append(container, name, b"part")
    await container.flush()
    assert await container.catalog.deactivate([segment], 1) == 0
    container = await lives.restart(container)
    with pytest.raises(NoSuchSegmentError):
        await container.find(name)


# Calls that cross each other.


async def test_a_table_that_is_filled_while_it_is_deleted_if_empty_stays(lives: Incarnations) -> None:
    """The put is accepted while the table's record is being removed; what was acknowledged is not deleted."""
    container = await lives.start()
    await container.create(A, flags=SegmentFlags.TABLE)
    await put_away(container, A)
    segment = await container.find(A)
    await container.tables.index_of(segment)
    lives.logs.hold_appends(0)
    deleting = asyncio.create_task(container.delete_table(A, must_be_empty=True))
    await turns()
    with segment.in_use():
        putting = asyncio.create_task(container.tables.put(segment, [TableUpdate(b"k", b"v", VERSION_ANY)], -1))
        await turns()
        lives.logs.release_appends(0)
        await putting
    with pytest.raises(TableNotEmptyError):
        await deleting
    (entry,) = await container.tables.get(await container.find(A), [b"k"])
    assert entry is not None


async def test_the_limit_holds_for_creations_that_come_together(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has to search for the name among the inactive ones first, which takes a while."""
    container = await lives.start(active_segments_max=5)
    for number in range(8):
        await container.create(f"s/t{number}/0.#epoch.0")
    assert container.catalog.has_inactive
    read = container.catalog._record

    async def read_slowly(name: str) -> bytes | None:
        await turns(3)
        return await read(name)

    monkeypatch.setattr(container.catalog, "_record", read_slowly)
    most = 0

    async def create(number: int) -> None:
        nonlocal most
        await container.create(f"s/u{number}/0.#epoch.0")
        most = max(most, container.state.metadata.active_count)

    await asyncio.gather(*map(create, range(20)))
    assert most <= 5


# Storage that is stuck or out.


async def test_a_call_that_needs_room_ends_in_time_when_storage_is_stuck(lives: Incarnations) -> None:
    """Creation and activation are refused after `active_segments_wait_s`, all that wait at the same time."""
    container = await lives.start(active_segments_max=3, active_segments_wait_s=0.2)
    names = [f"s/t{number}/0.#epoch.0" for number in range(4)]
    for name in names:
        await container.create(name)
        await append(container, name, name.encode())
        await container.flush()
    for segment in container.segments():
        if not segment.is_system:
            await append(container, segment.name, b" again")
    inactive = next(name for name in names if name not in container.state.metadata.by_name)
    lives.chunks.hold("write")
    calls = [container.create(B), container.create(A), container.find(inactive), container.find(inactive)]
    async with asyncio.timeout(60):
        results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        assert isinstance(result, TooManyActiveSegmentsError)
        assert "0.2 s" in str(result)
    lives.chunks.release("write")
    await container.flush()
    assert await read_all(container, await container.find(inactive)) == inactive.encode()


async def test_a_read_of_an_index_that_storage_does_not_answer_ends_in_time(lives: Incarnations) -> None:
    """An attribute that only the index has, and storage that is stuck: the read raises an error in time."""
    container = await lives.start(**SMALL, storage_read_timeout_s=0.05)
    await container.create(A)
    segment = await give_attributes(container, A, 40)
    container.attributes.due()
    await container.attributes.flush(segment)
    missing = next(ident(number) for number in range(40) if ident(number) not in segment.attributes)
    evict_all(container)
    lives.chunks.hold("read")
    async with asyncio.timeout(60):
        with pytest.raises(StorageError, match=r"0\.05"):
            await container.get_attribute(A, missing)
    lives.chunks.release("read")
    assert await container.get_attribute(A, missing) == int.from_bytes(missing[6:], "big")


async def test_an_index_that_storage_does_not_open_ends_in_time(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read of an index after a restart, with storage stuck."""
    container = await lives.start(**SMALL)
    await container.create(A)
    segment = await give_attributes(container, A, 40)
    container.attributes.due()
    await container.attributes.flush(segment)
    await cut_log(container)
    container = await lives.restart(container, storage_read_timeout_s=0.05)
    missing = next(ident(number) for number in range(40) if ident(number) not in container.segment(A).attributes)

    async def hang(name: str) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as stuck:
        stuck.setattr(container.storage._user, "open", hang)
        async with asyncio.timeout(60):
            with pytest.raises(StorageError, match=r"did not open it within 0\.05"):
                await container.get_attribute(A, missing)
    assert await container.get_attribute(A, missing) == int.from_bytes(missing[6:], "big")


async def test_scans_that_take_long_are_spaced_out(lives: Incarnations) -> None:
    """By this clock a scan takes 3 ms, so that the next one has to wait for 30, however often it is called for."""
    container = await lives.start()
    await pause_writer(container)
    writer = container.writer
    scans = 0
    ticks = itertools.count()

    def scan() -> Iterator[None]:
        nonlocal scans
        scans += 1
        writer._wake.set()
        return iter(())

    class SlowClock:
        """A loop whose time continues with each question."""

        def time(self) -> float:
            return next(ticks) * 0.003

        def create_task(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
            return asyncio.get_running_loop().create_task(coroutine)

    writer._scan_in_steps = scan  # type: ignore[method-assign]  # To count.
    writer._loop = SlowClock()  # type: ignore[assignment]  # What the writer uses of it.
    writer.start()
    writer._wake.set()
    await turns(20)
    assert scans == 1
    await until(lambda: scans >= 2)


async def test_names_of_segments_that_were_freed_are_forgotten(lives: Incarnations) -> None:
    """A later segment of the name waits for the earlier one to be freed, in the next life as well."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await append(container, A, b"old")
    await container.flush()
    await container.delete(A)
    later = await container.create(A)
    await append(container, A, b"new")
    assert container.state.is_name_taken(later)
    await container.writer._flusher.flush(later)
    assert later.storage_length == 0
    container = await lives.restart(container)
    await pause_writer(container)
    assert container.state.is_name_taken(container.segment(A))
    await container.flush()
    await container.flush()
    assert not container.state.is_name_taken(container.segment(A))
    assert container.segment(A).storage_length == 3
    assert not container.state._gone_ids


async def test_updates_of_attributes_wait_when_too_many_are_not_in_the_index(lives: Incarnations) -> None:
    """With storage out, new ids are refused rather than kept in memory without end; known ones continue."""
    container = await lives.start(**SMALL, attributes_unflushed_max=20)
    await pause_writer(container)
    await container.create(A)
    segment = await give_attributes(container, A, 12)
    container.attributes.due()
    lives.chunks.fail("write", times=1000)
    failed = 0
    for number in range(12, 60):
        try:
            await container.update_attribute(A, ident(number), value=number, expected=NO_VALUE)
        except StorageError:
            failed += 1
    assert failed
    assert len(segment.dirty_attributes) <= 20
    assert await container.update_attribute(A, ident(1), value=7, expected=1)
    lives.chunks.heal()
    assert await container.update_attribute(A, ident(59), value=59, expected=NO_VALUE)


# What leaves the container rests on what is durable.


async def waits_for_the_log(lives: Incarnations, call: asyncio.Task[object]) -> None:
    """Show that a call does not end before what the log was given is durable."""
    await turns()
    assert not call.done()
    lives.logs.release_appends(0)
    await asyncio.gather(call, return_exceptions=True)


@pytest.mark.parametrize("call", ["find", "seal", "info", "truncate", "get_attribute", "merge"])
async def test_a_deletion_is_not_told_before_it_is_durable(lives: Incarnations, call: str) -> None:
    """Until then a crash would bring the segment back."""
    container = await lives.start()
    await container.create(A)
    lives.logs.hold_appends(0)
    deleting = asyncio.create_task(container.delete(A))
    await turns()
    arguments: dict[str, Sequence[object]] = {"truncate": (0,), "get_attribute": (ident(1),), "merge": (A,)}
    operations = container.merges if call == "merge" else container
    task = asyncio.ensure_future(getattr(operations, call)(A, *arguments.get(call, ())))
    await waits_for_the_log(lives, task)
    with pytest.raises(NoSuchSegmentError):
        task.result()
    await deleting


@pytest.mark.parametrize("call", ["update_policy", "update_attribute"])
async def test_a_seal_is_not_told_before_it_is_durable(lives: Incarnations, call: str) -> None:
    """Until then a crash would open the segment again."""
    container = await lives.start()
    await container.create(A)
    lives.logs.hold_appends(0)
    sealing = asyncio.create_task(container.seal(A))
    await turns()
    if call == "update_policy":
        task: asyncio.Task[object] = asyncio.ensure_future(container.update_policy(A, scale_type=1, target_rate=2))
    else:
        task = asyncio.ensure_future(container.update_attribute(A, ident(1), value=1, expected=NO_VALUE))
    await waits_for_the_log(lives, task)
    with pytest.raises(SegmentSealedError):
        task.result()
    await sealing


# Memory.


async def test_nothing_is_cached_of_an_index_that_was_closed_while_it_was_read(lives: Incarnations) -> None:
    """A container stops during the read of an attribute: the cache is empty afterwards."""
    container = await lives.start(**SMALL)
    await container.create(A)
    segment = await give_attributes(container, A, 400)
    container.attributes.due()
    await container.attributes.flush(segment)
    missing = next(ident(number) for number in range(400) if ident(number) not in segment.attributes)
    evict_all(container)
    lives.chunks.hold("read")
    reading = asyncio.create_task(container.get_attribute(A, missing))
    await until(lambda: lives.chunks.calls["read"] > 0)
    await lives.stop(container)
    lives.chunks.release("read")
    await asyncio.gather(reading, return_exceptions=True)
    assert lives.cache.used_bytes == 0


async def test_after_an_index_update_that_came_late_the_cache_is_empty_in_the_end(lives: Incarnations) -> None:
    """An update fails after its effect and is repeated; no unreferenced pages are left in the cache."""
    container = await lives.start(**SMALL)
    await container.create(A)
    segment = await give_attributes(container, A, 40)
    container.attributes.due()
    await container.attributes.flush(segment)
    await container.get_attribute(A, ident(3))
    index = segment.attribute_index
    assert index is not None
    # An update from outside, as a late one of this index would be.
    other = container.attributes._open_index(segment)
    await other.update({ident(1000): bytes(8)}, b"")
    await container.update_attribute(A, ident(2), value=9, expected=2)
    await container.attributes.flush(segment)
    other.close()
    assert await container.get_attribute(A, ident(2)) == 9
    await lives.stop(container)
    assert lives.cache.used_bytes == 0


async def test_nothing_is_loaded_of_a_table_once_the_container_has_stopped(lives: Incarnations) -> None:
    """A call that comes late hears that the container is offline, and starts no job."""
    container = await lives.start()
    segment = await container.create(A, flags=SegmentFlags.TABLE)
    await lives.stop(container)
    with pytest.raises(ContainerOfflineError):
        await container.tables.index_of(segment)
    assert not container.life.jobs
