"""Truncations of many segments are one record of the log: replayed, carried and refused as one for each would be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.model.errors import ContainerOfflineError, CorruptionError
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.log import pipeline as pipeline_module
from penstock.segmentstore.container.log.frames import RecordReader
from penstock.segmentstore.container.log.operations import (
    Truncate,
    TruncateMany,
    decode_operation,
    encode_operation,
)
from penstock.segmentstore.container.pending import Backlog, PendingQueue, PendingTruncate
from penstock.segmentstore.container.reads.cache import Cache
from support.containers import SMALL_CACHE, Incarnations, append, pause_writer, read_all, until

NAMES = [f"s/t/{number}.#epoch.0" for number in range(5)]


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


async def five_segments(lives: Incarnations, **changes: float) -> SegmentContainer:
    """Start a container with five segments of ten bytes, and let its storage writer do nothing by itself."""
    container = await lives.start(**changes)
    await pause_writer(container)
    for name in NAMES:
        await container.create(name)
        await append(container, name, b"0123456789")
    return container


def truncations(lives: Incarnations) -> list[Truncate | TruncateMany]:
    """Return the truncations in the log."""
    reader = RecordReader()
    found = [decode_operation(record)[1] for frame in lives.frames() for record in reader.feed(frame)]
    return [operation for operation in found if isinstance(operation, (Truncate, TruncateMany))]


def test_the_bytes_of_a_record_are_pinned() -> None:
    """Type 20, sequence number 8, and msgpack of three fields."""
    operation = TruncateMany([1, 300], [3, 70_000], 9)
    record = encode_operation(8, operation)
    assert record.hex() == "140000000000000008939201cd012c9203ce0001117009"
    assert decode_operation(record) == (8, operation)


async def test_truncations_of_many_segments_are_one_record_which_is_replayed(lives: Incarnations) -> None:
    """Those that move nothing are left out; one alone has a record of the kind for one. Twice, by two restarts."""
    container = await five_segments(lives)
    segments = [container.segment(name) for name in NAMES]
    container.acceptor.truncate_all([(segment, offset) for offset, segment in enumerate(segments)])
    container.acceptor.truncate_all([(segments[0], 0), (segments[1], 7)])
    container.acceptor.truncate_all([(segments[0], 0)])
    await container.pipeline.barrier()
    together, alone = truncations(lives)
    assert isinstance(together, TruncateMany)
    assert together.segment_ids == [segment.id for segment in segments[1:]]
    assert together.offsets == [1, 2, 3, 4]
    assert isinstance(alone, Truncate)
    starts = [0, 7, 2, 3, 4]
    for _ in range(2):
        assert [container.segment(name).durable_start_offset for name in NAMES] == starts
        assert [await read_all(container, name) for name in NAMES] == [b"0123456789"[start:] for start in starts]
        container = await lives.restart(container)
    await container.flush()
    assert not container.state.unflushed
    container = await lives.restart(container)
    assert [container.segment(name).start_offset for name in NAMES] == starts


async def test_nothing_of_a_record_is_visible_before_it_is_durable(lives: Incarnations) -> None:
    """Readers read what lies before for as long; a crash that comes first leaves all as it was."""
    container = await five_segments(lives)
    lives.logs.hold_appends(0)
    container.acceptor.truncate_all([(container.segment(name), 5) for name in NAMES])
    for _ in range(5):
        await asyncio.sleep(0)
    assert [container.segment(name).start_offset for name in NAMES] == [5] * 5
    assert [container.segment(name).durable_start_offset for name in NAMES] == [0] * 5
    assert not any(isinstance(piece, PendingTruncate) for name in NAMES for piece in container.segment(name).pending)
    lives.logs.release_appends(0)
    await container.pipeline.barrier()
    assert [container.segment(name).durable_start_offset for name in NAMES] == [5] * 5


@pytest.mark.parametrize("field", ["beyond the end", "unknown segment", "an offset is missing"])
async def test_a_record_that_contradicts_the_log_is_corruption(lives: Incarnations, field: str) -> None:
    """Also if only the last of its segments does."""
    container = await five_segments(lives)
    known = [container.segment(name).id for name in NAMES]
    bad = {
        "beyond the end": TruncateMany(known, [1, 2, 3, 4, 11], 7),
        "unknown segment": TruncateMany([*known, max(known) + 1000], [1] * 6, 7),
        "an offset is missing": TruncateMany(known, [1] * 4, 7),
    }[field]
    container.pipeline.add_operation(bad, lambda _: None)
    await container.pipeline.barrier()
    with pytest.raises(CorruptionError):
        await lives.restart(container)
    await lives.logs.enable(0)


async def test_a_fault_after_accepted_truncations_ends_the_container(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The starts in memory have moved and the log will never say so: nothing more is accepted or told."""
    container = await five_segments(lives)

    def fails(number: int, operation: object) -> bytes:
        raise ZeroDivisionError(number)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline_module, "encode_operation", fails)
        with pytest.raises(ZeroDivisionError):
            container.acceptor.truncate_all([(container.segment(name), 5) for name in NAMES])
    with pytest.raises(ContainerOfflineError):
        container.acceptor.can_truncate(container.segment(NAMES[0]), 6)
    await until(lambda: bool(lives.failures))
    container = await lives.restart(container)
    assert [await read_all(container, name) for name in NAMES] == [b"0123456789"] * 5


async def test_truncations_that_came_in_one_record_are_carried_each_for_itself(lives: Incarnations) -> None:
    """Stated again one by one, the log is truncated before the record that had them all, and a restart knows each."""
    container = await five_segments(lives)
    await container.flush()
    container.acceptor.truncate_all([(container.segment(name), 5) for name in NAMES])
    await container.pipeline.barrier()
    container.checkpoints.write_now()
    await container.pipeline.barrier()
    mark = container.checkpoints.newest
    assert mark is not None
    log_rewriter = container.log_rewriter
    pinned = await log_rewriter._pinned(mark.sequence_number)
    assert [segment.name for segment in pinned] == NAMES
    await log_rewriter._carry_all(pinned, mark.sequence_number)
    await until(lambda: not any(isinstance(one, TruncateMany) for one in truncations(lives)))
    assert len(truncations(lives)) == 5
    container = await lives.restart(container)
    await pause_writer(container)
    assert [await read_all(container, name) for name in NAMES] == [b"56789"] * 5
    assert {piece.offset for name in NAMES for piece in container.segment(name).pending} == {5}  # type: ignore[union-attr]  # Nothing but truncations waits.


def test_truncations_that_wait_together_are_one() -> None:
    """A truncation replaces the one right before it, and keeps that one's waiting time.

    It is a new object: changes to the first, by a flush under way or a copy of it in the log, do not affect the second.
    """
    backlog = Backlog(Cache(SMALL_CACHE))
    pending: PendingQueue[object] = PendingQueue(backlog)
    pending.note_truncate(3, 10, 5.0)
    first = pending[0]
    pending.note_truncate(7, 20, 6.0)
    assert [(type(piece), piece.sequence_number) for piece in pending] == [(PendingTruncate, 7)]
    assert (pending.truncated_since_s, backlog.operation_count) == (5.0, 1)
    first.sequence_number = 9
    assert pending.first_number() == 7
    pending.note_append(11, 20, 30, 7.0, 100)
    pending.note_truncate(12, 25, 8.0)
    assert [piece.sequence_number for piece in pending] == [7, 11, 12]
    assert pending.truncated_since_s == 5.0
    pending.popleft()
    assert pending.truncated_since_s == 8.0
    pending.clear()
    assert (pending.truncated_since_s, backlog.operation_count) == (float("inf"), 0)
