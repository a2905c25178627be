"""Checkpoints of very many segments: encoded in parts in several turns, as of one moment nevertheless."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from penstock.model.errors import CorruptionError, PenstockError
from penstock.model.segments import NO_VALUE
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log.frames import RecordReader
from penstock.segmentstore.container.log.operations import Checkpoint, decode_operation
from penstock.segmentstore.container.metadata import ContainerSnapshot, SegmentSnapshot
from penstock.segmentstore.container.segment import Segment
from support.containers import Incarnations, append, pause_writer, read_all, turns, until


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


def checkpoint_count(lives: Incarnations) -> int:
    """Return how many parts of checkpoints are in the log."""
    reader = RecordReader()
    records = [record for frame in lives.frames() for record in reader.feed(frame)]
    return sum(isinstance(decode_operation(record)[1], Checkpoint) for record in records)


async def crowd(container: SegmentContainer, count: int) -> list[Segment]:
    """Create segments with some attributes each."""
    segments = [await container.create(f"s/t/{number}.#epoch.0") for number in range(count)]
    for number, segment in enumerate(segments):
        for attribute in range(number % 5):
            await container.update_attribute(segment.name, bytes([attribute]) * 16, value=number, expected=NO_VALUE)
    return segments


def decoded(snapshots: Sequence[bytes]) -> dict[int, SegmentSnapshot]:
    """Return the segments of a checkpoint's parts, without what may be newer than its place in the log."""
    parts = [msgspec.msgpack.decode(snapshot, type=ContainerSnapshot) for snapshot in snapshots]
    segments = [segment for part in parts for segment in part.segments]
    assert len({segment.segment_id for segment in segments}) == len(segments)
    return {
        segment.segment_id: msgspec.structs.replace(segment, storage_length=0, storage_sealed=False, has_record=False)
        for segment in segments
    }


async def test_a_large_checkpoint_is_written_in_parts_and_the_loop_turns_between_them(lives: Incarnations) -> None:
    """At most so many values in one turn; appends of others are accepted between the parts."""
    container = await lives.start(checkpoint_part_values=100)
    await pause_writer(container)
    segments = await crowd(container, 60)
    before = checkpoint_count(lives)
    container.checkpoints.write()
    accepted = 0
    while container.state.cut is not None:
        container.acceptor.append(segments[0], AppendRequest(b"1"), lambda _: None)
        accepted += 1
        await asyncio.sleep(0)
    await container.pipeline.barrier()
    count = checkpoint_count(lives) - before
    assert count >= 60 * 8 // 100
    assert accepted >= count - 1
    assert len(container.checkpoints.marks) == 1


@pytest.mark.parametrize("seed", range(30))
async def test_a_checkpoint_in_parts_is_the_state_at_its_first(lives: Incarnations, seed: int) -> None:
    """Operations accepted between the parts do not change it: each segment is as it was when the checkpoint began."""
    rng = random.Random(seed)
    container = await lives.start(
        checkpoint_part_values=rng.choice((1, 30, 200)), attributes_in_memory_max=4, flush_age_s=0.0
    )
    await pause_writer(container)
    segments = await crowd(container, 12)
    for segment in segments:
        await append(container, segment.name, b"12345")
    await container.flush()
    expected = decoded([container.state.metadata.snapshot()])
    cut = container.state.cut = container.state.metadata.cut()
    parts = []
    while not cut.is_done:
        parts.append(cut.next_part(rng.choice((1, 10, 40))))
        for _ in range(rng.randrange(8)):
            await change(container, segments, rng)
    container.state.cut = None
    assert decoded(parts) == expected


async def change(container: SegmentContainer, segments: list[Segment], rng: random.Random) -> None:
    """Do anything that changes what a checkpoint holds."""
    segment = rng.choice(segments)
    name = segment.name
    writer = bytes([rng.randrange(20)]) * 16
    match rng.randrange(12):
        case 0 | 1 | 2:
            request = AppendRequest(b"12345", 1, writer, 1, 1)
            request = msgspec.structs.replace(request, event_number=rng.randrange(1 << 40))
            try:
                stored = await container.get_attribute(name, writer)
                container.acceptor.append(segment, request, lambda _: None, stored_event_number=stored)
            except PenstockError:
                pass
        case 3:
            container.attributes.spill_if_due(segment)
        case 4:
            await container.truncate(name, segment.length)
        case 5:
            await container.update_policy(name, scale_type=1, target_rate=rng.randrange(1000))
        case 6:
            value = await container.get_attribute(name, writer)
            await container.update_attribute(name, writer, value=rng.randrange(1000), expected=value)
        case 7:
            await container.delete(name)
        case 8:
            other = rng.choice(segments)
            if other is not segment and not other.start_offset:
                await container.merges.merge(name, other.name)
                segments.remove(other)
        case 9:
            await container.flush()
        case 10:
            await container.flush()
            await container.catalog.deactivate([segment], 1)
        case 11:
            await container.seal(name)
    if segment.is_deleted or segment.is_sealed or segment.is_merged or segment.is_inactive:
        segments[:] = [one for one in segments if one.name != name]
        if segment.is_inactive and rng.random() < 0.7:
            segments.append(await container.find(name))
        elif not segment.is_inactive and segment.is_deleted:
            segments.append(await container.create(name))
    if not segments:
        segments.append(await container.create(f"s/t/more-{rng.randrange(1 << 40)}"))


@pytest.mark.parametrize("seed", range(20))
async def test_a_log_cut_at_a_checkpoint_in_parts_is_replayed_whole(lives: Incarnations, seed: int) -> None:
    """What was accepted between the parts is in the log between them, and nowhere else; crashes strike there, too."""
    rng = random.Random(seed)
    container = await lives.start(
        checkpoint_part_values=40, attributes_in_memory_max=4, flush_age_s=0.0, checkpoint_log_bytes=3000
    )
    segments = await crowd(container, 20)
    for _ in range(12):
        for _ in range(rng.randrange(1, 8)):
            await change(container, segments, rng)
        if rng.random() < 0.5:
            await pause_writer(container)
            container.checkpoints.write()
            for _ in range(rng.randrange(6)):
                await change(container, segments, rng)
            if rng.random() < 0.5:
                await container.flush()
                container.checkpoints.truncate_log()
            container.writer.start()
        await container.pipeline.barrier()
        if rng.random() < 0.4:
            # What is accepted of the container's own, in its own time, and is not durable yet, goes with the crash.
            while not container.pipeline.is_all_durable:
                await container.pipeline.barrier()
            expected = decoded([container.state.metadata.snapshot()])
            container = await lives.restart(container)
            assert {
                id_: one
                for id_, one in decoded([container.state.metadata.snapshot()]).items()
                if not (one.is_deleted or one.is_merged)
            } == {id_: one for id_, one in expected.items() if not (one.is_deleted or one.is_merged)}
            segments = [one for one in container.segments() if not one.is_system and not one.is_sealed]


async def test_an_unfinished_checkpoint_is_ignored(lives: Incarnations) -> None:
    """A crash between its parts: the recovery begins with the one before; the next one is whole again."""
    container = await lives.start(checkpoint_part_values=10)
    await pause_writer(container)
    segments = await crowd(container, 30)
    container.checkpoints.write()
    await asyncio.sleep(0)
    assert container.state.cut is not None
    await append(container, segments[3].name, b"between")
    assert container.state.cut is not None
    container.pipeline.abandon("it crashes")  # Or the parts that are left would be logged before the tasks have ended.
    container = await lives.restart(container)
    assert not container.checkpoints.marks
    assert await read_all(container, segments[3].name) == b"between"
    await pause_writer(container)
    container.checkpoints.write()
    await container.flush()
    await until(lambda: not container.checkpoints.is_pending)
    container.checkpoints.truncate_log()
    await turns()
    assert lives.logs._get(0).truncation_address > 0
    container = await lives.restart(container)
    assert await read_all(container, segments[3].name) == b"between"
    assert len(container.segments()) >= 30


async def test_parts_that_do_not_follow_each_other_are_corruption(lives: Incarnations) -> None:
    """A part that is missing would leave segments out."""
    container = await lives.start(checkpoint_part_values=50)
    await crowd(container, 30)
    container.checkpoints.write()
    await until(lambda: container.state.cut is None)
    await container.flush()
    container.checkpoints.truncate_log()
    await turns()
    assert lives.logs.create(0)._stored.truncation_address > 0
    await lives.crash(container)
    frames = lives.logs._get(0).frames
    reader = RecordReader()
    missing = next(
        index
        for index, frame in enumerate(frames)
        for record in reader.feed(frame.data)
        if isinstance(operation := decode_operation(record)[1], Checkpoint) and operation.part == 2
    )
    del frames[missing]
    with pytest.raises(CorruptionError):
        await lives.start()
    await lives.logs.enable(0)
