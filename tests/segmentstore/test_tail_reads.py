"""Reads that wait at a segment's end: records there, answered with the acknowledgements of what they waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from penstock.segmentstore.tail_read_budget import TAIL_READ_BYTES
from penstock.wire.commands import (
    DataAppended,
    DeleteSegment,
    NoSuchSegment,
    ReadSegment,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentRead,
    WrongHost,
)
from support.containers import QUIET, turns, until
from support.raw_wire import RawWire, block
from support.wire_service import CONNECTION, A, W, WireService, set_up

B = "s/t/1.#epoch.0"


@pytest.fixture
async def service() -> AsyncIterator[WireService]:
    made = WireService()
    await made.start()
    yield made
    await made.stop()


def parked_count(service: WireService) -> int:
    return sum(waits.count for waits in service.store.container(A).state.waits)


async def put_away(service: WireService, *names: str) -> None:
    """Move segments out of memory."""
    container = service.store.container(A)
    await container.flush()
    segments = [container.segment(name) for name in names]
    assert await container.catalog.deactivate(segments, len(segments)) == len(segments)


async def _parked(service: WireService, wire: RawWire, count: int, offset: int = 0) -> None:
    before = parked_count(service)
    wire.send(*(ReadSegment(A, offset, 1000, "", number) for number in range(count)))
    await until(lambda: parked_count(service) == before + count)


async def test_reads_that_wait_at_the_tail_take_no_tasks(service: WireService) -> None:
    """Fifty are parked: there are no more tasks than before. All are answered by one append."""
    wire = await service.connect()
    before = len(asyncio.all_tasks())
    await _parked(service, wire, 50)
    assert len(asyncio.all_tasks()) <= before
    await service.store.append(A, b"0123456789")
    for number in range(50):
        reply = await wire.expect(SegmentRead)
        assert (reply.request_id, bytes(reply.data), reply.at_tail) == (number, b"0123456789", True)


async def test_a_tail_read_leaves_in_one_write_with_the_acknowledgement(service: WireService) -> None:
    """A writer and a reader on one connection: what is acknowledged and what was waited for are one write.

    It leaves in the turn in which the log processes the sync, not a turn later.
    """
    wire = await service.connect()
    await set_up(wire)
    await _parked(service, wire, 1)
    (connection,) = service.server.connections
    writes: list[bytes] = []
    log = service.store.find(A)[0].log
    told, is_told = log.on_synced, False

    def tell() -> None:
        nonlocal is_told
        is_told = True
        told()
        is_told = False

    log.on_synced = tell

    class Transport:
        def write(self, data: bytes) -> None:
            self.writelines([data])

        def writelines(self, parts: Sequence[bytes]) -> None:
            assert is_told
            writes.append(b"".join(parts))
            real.writelines(parts)

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    real = connection._transport
    connection._transport = Transport()  # type: ignore[assignment]  # all that a connection uses of it
    wire.send(block(W, 1, b"abc"))
    assert isinstance(await wire.receive(), DataAppended)
    reply = await wire.expect(SegmentRead)
    assert bytes(reply.data) == b"abc"
    assert len(writes) == 1


async def test_one_answer_holds_all_that_became_durable_at_once(service: WireService) -> None:
    """Three appends become durable in one turn: the read that waited for the first gets all of them."""
    wire = await service.connect()
    await set_up(wire)
    await _parked(service, wire, 1)
    service.logs.hold_appends(0)
    for number in (1, 2, 3):
        wire.send(block(W, number, b"abc"))
        await turns(20)
    service.logs.release_appends(0)
    await wire.expect(DataAppended)
    assert bytes((await wire.expect(SegmentRead)).data) == b"abcabcabc"


async def test_a_parked_read_does_not_keep_its_segment_in_memory(service: WireService) -> None:
    """Its segment is put away, twice; then an append brings it back, and the read is answered."""
    wire = await service.connect()
    await _parked(service, wire, 3)
    for _ in range(2):
        await put_away(service, A)
        await service.store.update_policy(A, scale_type=0, target_rate=7)
    await put_away(service, A)
    assert parked_count(service) == 3
    await service.store.append(A, b"abc")
    for number in range(3):
        reply = await wire.expect(SegmentRead)
        assert (reply.request_id, bytes(reply.data)) == (number, b"abc")
    assert not service.store.tail_reads.used_bytes


async def test_a_lost_connection_leaves_no_parked_reads(service: WireService) -> None:
    """Reads of a segment in memory and of one that was put away end with their connection."""
    wire = await service.connect()
    await _parked(service, wire, 3)
    await put_away(service, A)
    await service.store.create_segment(B)
    wire.send(ReadSegment(B, 1 << 61, 1000, "", 1))
    await until(lambda: parked_count(service) == 4)
    await wire.close()
    await until(lambda: parked_count(service) == 0)
    assert not service.store.tail_reads.used_bytes
    assert not len(service.store.container(A).state.waits)


@pytest.mark.parametrize("is_in_process", [False, True])
async def test_a_reader_follows_more_segments_than_may_be_in_memory(is_in_process: bool) -> None:
    """Eight segments where four may be active: none of the reads fails, and each gets its append."""
    service = WireService(container=replace(QUIET, active_segments_max=4))
    await service.start()
    try:
        names = [f"s/t{number}/0.#epoch.0" for number in range(8)]
        for name in names:
            await service.store.create_segment(name)
            await service.store.append(name, b"old")
        wire = await service.connect()
        reads = []
        if is_in_process:
            reads = [asyncio.create_task(service.store.read(name, 3, 1000, wait=True)) for name in names]
        else:
            wire.send(*(ReadSegment(name, 3, 1000, "", number) for number, name in enumerate(names)))
        await until(lambda: parked_count(service) == 8)
        for name in names:
            await service.store.append(name, name.encode())
        if is_in_process:
            assert [(await read).joined().decode() for read in reads] == names
        else:
            replies = [await wire.expect(SegmentRead) for _ in names]
            found = {reply.request_id: bytes(reply.data).decode() for reply in replies}
            assert found == dict(enumerate(names))
    finally:
        await service.stop()


@pytest.mark.parametrize("offset", [0, 1 << 61])
async def test_a_read_of_a_segment_that_was_deactivated_ends_with_its_seal(service: WireService, offset: int) -> None:
    wire = await service.connect()
    await _parked(service, wire, 1, offset)
    await put_away(service, A)
    await service.store.seal_segment(A)
    reply = await wire.expect(SegmentIsSealed)
    assert (reply.request_id, reply.offset) == (0, offset)


async def test_a_read_of_a_segment_that_was_deactivated_and_replaced_gets_nothing_of_the_later_one(
    service: WireService,
) -> None:
    """Also when the woken read comes to be answered only after the later segment has bytes."""
    wire = await service.connect()
    await _parked(service, wire, 1)
    (connection,) = service.server.connections
    connection.is_write_blocked = True
    await service.store.append(A, b"abc")
    await put_away(service, A)
    await service.store.delete_segment(A)
    await service.store.create_segment(A)
    await service.store.append(A, b"of another life")
    connection.resume_writing()
    assert (await wire.expect(NoSuchSegment)).request_id == 0


async def test_a_woken_read_whose_segment_was_deactivated_gets_its_bytes(service: WireService) -> None:
    wire = await service.connect()
    await _parked(service, wire, 1)
    (connection,) = service.server.connections
    connection.is_write_blocked = True
    await service.store.append(A, b"abc")
    await put_away(service, A)
    connection.resume_writing()
    assert bytes((await wire.expect(SegmentRead)).data) == b"abc"


async def test_reads_that_wait_end_with_their_container(service: WireService) -> None:
    """One waits in memory, one for a segment that was put away: both are answered "not here", and may be repeated."""
    wire = await service.connect()
    await _parked(service, wire, 1)
    await put_away(service, A)
    await service.store.create_segment(B)
    wire.send(ReadSegment(B, 0, 1000, "", 1))
    await until(lambda: parked_count(service) == 2)
    service.store.set_assignment(())
    assert {(await wire.expect(WrongHost)).request_id for _ in range(2)} == {0, 1}
    assert not service.store.tail_reads.used_bytes


@pytest.mark.parametrize("limit", ["tail_read_bytes_max", "tail_reads_bytes_max"])
async def test_reads_beyond_the_budget_are_answered_without_bytes(limit: str) -> None:
    """Three may wait: the fourth is answered at once, as given up; the connection continues, and so do the others.

    A later one waits again when there is room.
    """
    room = 3 if limit == "tail_read_bytes_max" else 6
    service = WireService(replace(CONNECTION, **{limit: room * TAIL_READ_BYTES}))
    await service.start()
    try:
        wire = await service.connect()
        await _parked(service, wire, 3)
        wire.send(ReadSegment(A, 1 << 61, 1000, "", 77))
        reply = await wire.expect(SegmentRead)
        assert (reply.request_id, reply.offset, bytes(reply.data)) == (77, 1 << 61, b"")
        assert reply.at_tail
        assert not reply.end_of_segment
        assert service.store.tail_reads.refused_count == 1
        other = await service.connect()
        await _parked(service, other, 1)  # What one connection holds leaves room for others.
        await service.store.append(A, b"abc")
        for number in range(3):
            assert (await wire.expect(SegmentRead)).request_id == number
        await other.expect(SegmentRead)
        assert not service.store.tail_reads.used_bytes
        await _parked(service, wire, 3, 3)
    finally:
        await service.stop()


async def test_a_read_parked_in_a_deleted_segment_is_not_answered_from_a_later_one(service: WireService) -> None:
    """The name is used again, and the later segment has bytes, before the woken read is answered."""
    wire, other = await service.connect(), await service.connect()
    await _parked(service, wire, 1)
    await other.ask(DeleteSegment(1, A, ""), SegmentDeleted)
    await service.store.create_segment(A)
    await service.store.append(A, b"of another life")
    assert (await wire.expect(NoSuchSegment)).request_id == 0


async def test_a_parked_read_is_notified_of_the_seal(service: WireService) -> None:
    wire = await service.connect()
    await _parked(service, wire, 1)
    await service.store.seal_segment(A)
    assert (await wire.expect(SegmentIsSealed)).request_id == 0


async def test_woken_reads_wait_until_a_slow_peer_takes_them(service: WireService) -> None:
    """A connection that cannot be written to answers what was woken when it can."""
    wire = await service.connect()
    await _parked(service, wire, 2)
    (connection,) = service.server.connections
    connection.is_write_blocked = True
    await service.store.append(A, b"abc")
    await turns(20)
    assert len(connection._reads._woken) == 2
    connection.resume_writing()
    for number in (0, 1):
        assert (await wire.expect(SegmentRead)).request_id == number
    assert not connection._reads.waiting_count
