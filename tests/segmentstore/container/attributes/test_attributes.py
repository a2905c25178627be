"""Attributes of segments that have more than memory may hold: spilled, loaded, flushed, trimmed, recovered.

Over a container with a log and chunks in memory; `lives.restart` crashes it and replays the log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from penstock.model.errors import (
    AttributesNotLoadedError,
    BadAttributeError,
    BadEventNumberError,
    CorruptionError,
    SegmentSealedError,
    StorageError,
    UnsupportedOperationError,
)
from penstock.model.segments import NO_VALUE
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.attributes.updates import AttributeUpdate, UpdateKind
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container.storage.container_storage import attribute_index_segment
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from support.containers import Incarnations, append, pause_writer, turns, until

A = "s/a/0.#epoch.0"
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


async def write(container: SegmentContainer, writer: int, number: int, stored: int = NO_VALUE) -> None:
    """Append as a writer with an event number, loading what the append asks for, as a connection does."""
    segment = await container.find(A)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for _ in range(2):
        try:
            container.acceptor.append(
                segment,
                AppendRequest(b"x", writer_id=ident(writer), event_number=number, first_event_number=number),
                completer(done),
                stored_event_number=stored,
            )
            break
        except AttributesNotLoadedError as error:
            await container.attributes.load(segment, error.attribute_ids)
    await done


async def flushed(container: SegmentContainer) -> None:
    """Move all attributes to the index."""
    container.attributes.due()
    await container.attributes.flush(await container.find(A))


async def test_few_attributes_make_no_index(lives: Incarnations) -> None:
    """A segment with a handful of writers costs nothing in long-term storage but its bytes."""
    container = await lives.start(**SMALL)
    await container.create(A)
    for writer in range(8):
        await write(container, writer, 1)
    container.attributes.due()
    segment = container.segment(A)
    assert not segment.has_attribute_index
    await container.flush()
    assert await container.storage.of(segment).info(attribute_index_segment(segment)) is None


async def test_a_thousand_writers_continue_with_ten_in_memory(lives: Incarnations) -> None:
    """SS-130: every writer's number is found again, in memory or in the index, through flushes and crashes."""
    container = await lives.start(**SMALL)
    await container.create(A)
    numbers = [0] * 1000
    rng = random.Random(5)
    for _ in range(3):
        for writer in rng.sample(range(1000), 700):
            before = numbers[writer] or NO_VALUE
            numbers[writer] += rng.randrange(1, 5)
            await write(container, writer, numbers[writer], before)
            if rng.random() < 0.1:
                await flushed(container)
                assert len(container.segment(A).attributes) <= 16
        container = await lives.restart(container)
    for writer, number in enumerate(numbers):
        assert await container.get_attribute(A, ident(writer)) == (number or NO_VALUE)
        if writer % 50 == 0:
            with pytest.raises(BadEventNumberError):
                await write(container, writer, number + 1, number + 7)


async def test_the_storage_writer_moves_attributes_by_itself(lives: Incarnations) -> None:
    """Enough changed values become an index and leave memory without a request."""
    container = await lives.start(**SMALL, writer_interval_s=0.01)
    await container.create(A)
    for writer in range(200):
        await write(container, writer, 1)
    segment = container.segment(A)
    await until(lambda: len(segment.dirty_attributes) < 10 and segment.has_attribute_index)
    assert segment.attribute_index is not None
    assert segment.attribute_index.entry_count > 150


async def test_an_update_that_depends_on_a_value_in_the_index_loads_it_once(lives: Incarnations) -> None:
    """SS-128, SS-129: replace-if-equals of a value that left memory succeeds, or fails after one read."""
    container = await lives.start(**SMALL)
    await container.create(A)
    for writer in range(40):
        assert await container.update_attribute(A, ident(writer), value=writer, expected=NO_VALUE)
    await flushed(container)
    segment = container.segment(A)
    missing = next(writer for writer in range(40) if ident(writer) not in segment.attributes)
    with pytest.raises(AttributesNotLoadedError):
        segment.attribute(ident(missing))
    assert await container.update_attribute(A, ident(missing), value=100, expected=missing)
    assert await container.get_attribute(A, ident(missing)) == 100
    other = next(writer for writer in range(40) if ident(writer) not in segment.attributes)
    calls = lives.chunks.calls["read"]
    assert not await container.update_attribute(A, ident(other), value=100, expected=other + 1)
    assert await container.get_attribute(A, ident(other)) == other
    assert lives.chunks.calls["read"] <= calls + 1


async def test_a_merge_checks_conditions_on_values_in_the_index(lives: Incarnations) -> None:
    """SS-132, SS-30: a merge's conditional update of its target's attribute sees a value that left memory."""
    container = await lives.start(**SMALL)
    await container.create(A)
    for writer in range(40):
        await container.update_attribute(A, ident(writer), value=writer, expected=NO_VALUE)
    await flushed(container)
    source = f"{A}#transaction.{'0' * 32}"
    await container.create(source)
    wrong = AttributeUpdate(ident(0), UpdateKind.REPLACE_IF_EQUALS, 9, 8)
    with pytest.raises(BadAttributeError):
        await container.merges.merge(A, source, [wrong])
    assert (await container.info(source)).length == 0
    assert (await container.info(A)).length == 0
    await append(container, source, b"abc")
    right = AttributeUpdate(ident(0), UpdateKind.REPLACE_IF_EQUALS, 9, 0)
    assert await container.merges.merge(A, source, [right]) == 3
    container = await lives.restart(container)
    assert await container.get_attribute(A, ident(0)) == 9


async def test_a_value_written_while_it_is_loaded_wins(lives: Incarnations) -> None:
    """SS-131: the load finds the old value in storage; the update that was accepted meanwhile stays."""
    container = await lives.start(**SMALL)
    await container.create(A)
    for writer in range(40):
        await container.update_attribute(A, ident(writer), value=writer, expected=NO_VALUE)
    await flushed(container)
    container = await lives.restart(container)
    segment = await container.find(A)
    lives.chunks.hold("read")
    loading = asyncio.create_task(container.attributes.load(segment, [ident(3)]))
    await turns()
    container.state.accept_attributes(segment, {ident(3): 77})
    lives.chunks.release("read")
    await loading
    assert segment.attribute(ident(3)) == 77


async def test_a_removed_attribute_does_not_return(lives: Incarnations) -> None:
    """An attribute set to null stays removed through flush, trim and crash, whatever value the index had."""
    container = await lives.start(**SMALL)
    await container.create(A)
    for writer in range(40):
        await container.update_attribute(A, ident(writer), value=writer, expected=NO_VALUE)
    await flushed(container)
    assert await container.update_attribute(A, ident(7), value=NO_VALUE, expected=7)
    container = await lives.restart(container)
    assert await container.get_attribute(A, ident(7)) == NO_VALUE
    await flushed(container)
    container = await lives.restart(container)
    assert await container.get_attribute(A, ident(7)) == NO_VALUE
    assert await container.get_attribute(A, ident(8)) == 8


@pytest.mark.parametrize("has_effect", [False, True])
async def test_a_failed_write_of_the_index_changes_no_value(lives: Incarnations, has_effect: bool) -> None:
    """SS-186, SS-187: lost or landed, the values are flushed again; accumulated sums are not applied twice."""
    container = await lives.start(**SMALL)
    await container.create(A)
    for writer in range(40):
        await container.update_attribute(A, ident(writer), value=1, expected=NO_VALUE)
    source = f"{A}#transaction.{'0' * 32}"
    await container.create(source)
    await container.merges.merge(A, source, [AttributeUpdate(ident(1), UpdateKind.ACCUMULATE, 5)])
    await pause_writer(container)  # It would do it again at once.
    lives.chunks.fail("write", has_effect=has_effect)
    with pytest.raises(StorageError):
        await flushed(container)
    assert len(container.segment(A).dirty_attributes) == 40
    assert await container.get_attribute(A, ident(1)) == 6
    # The log is truncated although the index lacks them: the checkpoint has what is dirty.
    while container.state.unflushed:
        await container.flush()
    container.checkpoints.write()
    await container.pipeline.barrier()
    before = len(lives.frames())
    container.checkpoints.truncate_log()
    await until(lambda: len(lives.frames()) < before)
    container = await lives.restart(container)
    assert await container.get_attribute(A, ident(1)) == 6
    await flushed(container)
    container = await lives.restart(container)
    assert await container.get_attribute(A, ident(1)) == 6
    assert await container.get_attribute(A, ident(39)) == 1


async def test_nothing_reaches_the_index_before_it_is_durable(lives: Incarnations) -> None:
    """A writer's number in the index without its events in the log would make the writer drop them."""
    container = await lives.start(**SMALL)
    await container.create(A)
    for writer in range(40):
        await write(container, writer, 1)
    container.attributes.due()
    await turns()
    segment = container.segment(A)
    lives.logs.hold_appends(0)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    container.acceptor.append(
        segment,
        AppendRequest(b"y", writer_id=ident(0), event_number=2, first_event_number=2),
        completer(done),
        stored_event_number=1,
    )
    flushing = asyncio.create_task(container.attributes.flush(segment))
    await turns(50)
    assert not flushing.done()
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    await lives.crash(container)
    container = await lives.start()
    done.cancel()
    assert await container.get_attribute(A, ident(0)) == 1


async def test_a_segment_with_an_index_can_be_deactivated(lives: Incarnations) -> None:
    """SS-128: its record names the index; the values are found again when it comes back."""
    container = await lives.start(**SMALL)
    await container.create(A)
    for writer in range(100):
        await write(container, writer, writer + 1)
    await container.flush()
    segment = container.segment(A)
    container.attributes.due()
    assert await container.catalog.deactivate([segment], 1) == 0  # Values wait for the index.
    await flushed(container)
    assert await container.catalog.deactivate([segment], 1) == 1
    container = await lives.restart(container)
    assert await container.get_attribute(A, ident(50)) == 51
    await write(container, 50, 60, 51)


async def test_deleting_a_segment_frees_its_attribute_index(lives: Incarnations) -> None:
    """SS-147: also of a segment without bytes; and a merged source's index goes with it."""
    container = await lives.start(**SMALL)
    source = f"{A}#transaction.{'0' * 32}"
    for name in (A, source):
        await container.create(name)
        for writer in range(40):
            await container.update_attribute(name, ident(writer), value=1, expected=NO_VALUE)
        container.attributes.due()
        await container.attributes.flush(container.segment(name))
    indexes = [attribute_index_segment(container.segment(name)) for name in (A, source)]
    for index in indexes:
        assert await container.storage._user.info(index) is not None
    await append(container, source, b"abc")
    await container.merges.merge(A, source)
    await container.flush()
    assert await container.storage._user.info(indexes[1]) is None
    await container.delete(A)
    await container.flush()
    assert await container.storage._user.info(indexes[0]) is None


async def test_sealed_and_transient_segments_refuse(lives: Incarnations) -> None:
    """SS-138, SS-140: no updates behind the seal; a transient segment has at most sixteen attributes."""
    container = await lives.start(**SMALL)
    await container.create(A)
    for writer in range(40):
        await container.update_attribute(A, ident(writer), value=1, expected=NO_VALUE)
    await container.seal(A)
    with pytest.raises(SegmentSealedError):
        await container.update_attribute(A, ident(1), value=2, expected=1)
    await flushed(container)  # What was accepted before the seal still goes to the index.
    assert not container.segment(A).dirty_attributes
    transient = f"{A}#transient.{'0' * 32}"
    await container.create(transient)
    for writer in range(16):
        assert await container.update_attribute(transient, ident(writer), value=1, expected=NO_VALUE)
    with pytest.raises(UnsupportedOperationError):
        await container.update_attribute(transient, ident(16), value=1, expected=NO_VALUE)


async def test_a_damaged_index_is_reported(lives: Incarnations) -> None:
    """A flipped byte of the index is corruption, named; no value is made up."""
    container = await lives.start(**SMALL)
    await container.create(A)
    for writer in range(40):
        await container.update_attribute(A, ident(writer), value=writer, expected=NO_VALUE)
    await flushed(container)
    index = attribute_index_segment(container.segment(A))
    (chunk,) = await container.storage._user.chunks_of(index)
    stored = lives.chunks.inner
    assert isinstance(stored, MemoryChunkStorage)
    stored._chunks[chunk.name][30] ^= 1
    assert await container.catalog.deactivate([container.segment(A)], 1) == 1
    await container.pipeline.barrier()
    container = await lives.restart(container)
    with pytest.raises(CorruptionError):
        await container.get_attribute(A, ident(0))
