"""Reads that wait at a segment's end: records there, answered with the acknowledgements of what they waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from penstock.wire.commands import (
    DataAppended,
    DeleteSegment,
    NoSuchSegment,
    ReadSegment,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentRead,
)
from support.containers import turns, until
from support.raw_wire import RawWire, block
from support.wire_service import A, W, WireService, set_up


@pytest.fixture
async def service() -> AsyncIterator[WireService]:
    made = WireService()
    await made.start()
    yield made
    await made.stop()


async def _parked(service: WireService, wire: RawWire, count: int, offset: int = 0) -> None:
    before = len(service.store.find(A)[1].waiters)
    wire.send(*(ReadSegment(A, offset, 1000, "", number) for number in range(count)))
    await until(lambda: len(service.store.find(A)[1].waiters) == before + count)


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

    It leaves in the turn in which the log hears of the sync, not a turn later.
    """
    wire = await service.connect()
    await set_up(wire)
    await _parked(service, wire, 1)
    (connection,) = service.server.connections
    writes: list[bytes] = []
    log = service.store.find(A)[0]._log
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


async def test_a_parked_read_keeps_its_segment_in_memory_until_it_ends(service: WireService) -> None:
    wire = await service.connect()
    await _parked(service, wire, 3)
    segment = service.store.find(A)[1]
    assert segment.use_count == 3
    await wire.close()
    await until(lambda: segment.use_count == 0)
    assert not segment.waiters


async def test_a_read_parked_in_a_deleted_segment_is_not_answered_from_a_later_one(service: WireService) -> None:
    """The name is used again, and the later segment has bytes, before the woken read is answered."""
    wire, other = await service.connect(), await service.connect()
    await _parked(service, wire, 1)
    await other.ask(DeleteSegment(1, A, ""), SegmentDeleted)
    await service.store.create_segment(A)
    await service.store.append(A, b"of another life")
    assert (await wire.expect(NoSuchSegment)).request_id == 0


async def test_a_parked_read_hears_of_the_seal(service: WireService) -> None:
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
