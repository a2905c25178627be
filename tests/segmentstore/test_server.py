"""The TCP front on a real socket, spoken to in raw frames. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from penstock.model.segments import NO_VALUE, READ_LENGTH_MAX
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.settings import CacheSettings
from penstock.wire.codec import encode
from penstock.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    CreateSegment,
    CreateTableSegment,
    CreateTransientSegment,
    DataAppended,
    DeleteSegment,
    ErrorMessage,
    GetStreamSegmentInfo,
    Hello,
    InvalidEventNumber,
    KeepAlive,
    NoSuchSegment,
    OperationUnsupported,
    ReadSegment,
    SealSegment,
    SegmentCreated,
    SegmentIsSealed,
    SegmentIsTruncated,
    SegmentRead,
    SegmentSealed,
    SetupAppend,
    StreamSegmentInfo,
    TruncateSegment,
    WireCommand,
    WrongHost,
)
from support.containers import SMALL_CACHE, evict_all, turns, until
from support.raw_wire import block
from support.wire_service import CONNECTION, A, W, WireService, set_up


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[WireService]]]:
    made: list[WireService] = []

    async def make(*, cache: CacheSettings = SMALL_CACHE, **changes: float) -> WireService:
        made.append(WireService(replace(CONNECTION, **changes), cache))  # type: ignore[arg-type]  # int fields get ints.
        await made[-1].start()
        return made[-1]

    yield make
    for service in made:
        await service.stop()


def _create_table(name: str) -> CreateTableSegment:
    return CreateTableSegment(request_id=1, segment=name, sorted_deprecated=False, key_length=0, token="")


def _data(reply: SegmentRead) -> bytes:
    assert isinstance(reply.data, bytes | bytearray | memoryview)
    return bytes(reply.data)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        struct.pack(">ii", 4, -1),
        struct.pack(">ii", 4, 1 << 30),
        struct.pack(">ii", 999, 4) + b"junk",
        struct.pack(">ii", 9, 2) + b"\0\0",
        encode(Hello(16, 5)),
    ],
)
async def test_what_is_not_the_protocol_closes_the_connection(
    serve: Callable[..., Awaitable[WireService]], garbage: bytes
) -> None:
    """Text, noise, lengths below zero and beyond the limit, unknown types, cut payloads, a second Hello."""
    service = await serve()
    wire = await service.connect()
    wire.writer.write(garbage)
    assert await wire.receive() is None
    other = await service.connect()
    await other.ask(GetStreamSegmentInfo(1, A, ""), StreamSegmentInfo)


async def test_a_frame_before_hello_closes_the_connection(serve: Callable[..., Awaitable[WireService]]) -> None:
    service = await serve()
    wire = await service.connect(greet=False)
    wire.send(GetStreamSegmentInfo(1, A, ""))
    assert await wire.receive() is None


async def test_a_peer_of_other_versions_gets_ours_and_is_closed(serve: Callable[..., Awaitable[WireService]]) -> None:
    service = await serve()
    wire = await service.connect(greet=False)
    await wire.ask(Hello(99, 98), Hello)
    assert await wire.receive() is None


async def test_silence_before_hello_is_bounded(serve: Callable[..., Awaitable[WireService]]) -> None:
    service = await serve(handshake_timeout_s=0.05)
    wire = await service.connect(greet=False)
    assert await wire.receive() is None


async def test_a_frame_that_never_ends_is_bounded(serve: Callable[..., Awaitable[WireService]]) -> None:
    service = await serve(frame_timeout_s=0.05)
    wire = await service.connect()
    wire.writer.write(encode(KeepAlive())[:5])
    assert await wire.receive() is None


async def test_frames_may_come_byte_by_byte(serve: Callable[..., Awaitable[WireService]]) -> None:
    service = await serve()
    wire = await service.connect()
    for byte in encode(GetStreamSegmentInfo(7, A, "")):
        wire.writer.write(bytes((byte,)))
        await asyncio.sleep(0)
    assert (await wire.expect(StreamSegmentInfo)).request_id == 7


async def test_connections_beyond_the_limit_are_refused(serve: Callable[..., Awaitable[WireService]]) -> None:
    service = await serve(connections_max=1)
    await service.connect()
    second = await service.connect(greet=False)
    second.send(Hello(16, 5))
    assert await second.receive() is None


async def test_appends_are_acknowledged_in_order_and_exactly(serve: Callable[..., Awaitable[WireService]]) -> None:
    """SS-144: many appends at once; each ack says the number before it; none goes back, the last covers all."""
    service = await serve()
    wire = await service.connect()
    assert await set_up(wire) == NO_VALUE
    wire.send(*(block(W, number, b"%03d" % number, request_id=number) for number in range(1, 101)))
    acked = NO_VALUE
    while acked < 100:
        ack = await wire.expect(DataAppended)
        assert ack.previous_event_number == acked
        assert ack.event_number > acked
        assert ack.request_id == ack.event_number
        assert ack.current_segment_write_offset == 3 * ack.event_number
        acked = ack.event_number
    assert acked == 100


async def test_two_writers_share_a_connection_and_a_segment(serve: Callable[..., Awaitable[WireService]]) -> None:
    service = await serve()
    wire = await service.connect()
    writers = [b"a" * 16, b"b" * 16]
    for writer in writers:
        await set_up(wire, writer)
    wire.send(*(block(writer, number, b"x") for number in range(1, 4) for writer in writers))
    acked = dict.fromkeys(writers, 0)
    while set(acked.values()) != {3}:
        ack = await wire.expect(DataAppended)
        acked[ack.writer_id] = ack.event_number
    assert (await service.store.segment_info(A)).length == 6


async def test_a_writer_that_reconnects_hears_what_is_stored(serve: Callable[..., Awaitable[WireService]]) -> None:
    """SS-142, SS-50: the acks are lost with the connection; set-up says the last number; a resend would be refused."""
    service = await serve()
    wire = await service.connect()
    await set_up(wire)
    wire.send(block(W, 1, b"one"), block(W, 5, b"five"))
    while (await wire.expect(DataAppended)).event_number < 5:
        pass
    await wire.close()
    wire = await service.connect()
    assert await set_up(wire) == 5
    wire.send(block(W, 6, b"six"))
    ack = await wire.expect(DataAppended)
    assert (ack.previous_event_number, ack.event_number) == (5, 6)
    wire.send(block(W, 6, b"six"))
    assert (await wire.expect(InvalidEventNumber)).event_number == 6
    assert await wire.receive() is None
    assert (await service.store.read(A, 0, 100)).joined() == b"onefivesix"


async def test_the_older_connection_of_a_writer_is_fenced_off(serve: Callable[..., Awaitable[WireService]]) -> None:
    """SS-143: once the new connection has written, an append of the old one is refused and the connection closed."""
    service = await serve()
    old, new = await service.connect(), await service.connect()
    await set_up(old)
    await set_up(new)
    new.send(block(W, 1, b"new"))
    await new.expect(DataAppended)
    old.send(block(W, 2, b"old"))
    assert (await old.expect(InvalidEventNumber)).event_number == 2
    assert await old.receive() is None
    assert (await service.store.read(A, 0, 100)).joined() == b"new"


async def test_a_second_set_up_is_answered_after_the_acknowledgements_of_the_first(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """The answer counts as an acknowledgement; an older one after it would run past what the client waits for."""
    service = await serve()
    wire = await service.connect()
    await set_up(wire)
    service.logs.hold_appends(0)
    wire.send(block(W, 1, b"one"), SetupAppend(2, W, A, ""))
    await asyncio.sleep(0.05)
    service.logs.release_appends(0)
    assert (await wire.expect(DataAppended)).event_number == 1
    assert (await wire.expect(AppendSetup)).last_event_number == 1


async def test_a_failed_condition_keeps_the_writer(serve: Callable[..., Awaitable[WireService]]) -> None:
    """SS-146: the refusal comes behind earlier acks; the number may be used again with the right offset."""
    service = await serve()
    wire = await service.connect()
    await set_up(wire)
    wire.send(
        ConditionalBlockEnd(W, 1, 0, b"abc", 1),
        ConditionalBlockEnd(W, 2, 0, b"no", 2),
        ConditionalBlockEnd(W, 2, 3, b"def", 3),
    )
    assert (await wire.expect(DataAppended)).event_number == 1
    assert (await wire.expect(ConditionalCheckFailed)).event_number == 2
    assert (await wire.expect(DataAppended)).event_number == 2
    assert (await service.store.read(A, 0, 100)).joined() == b"abcdef"


async def test_an_append_to_a_sealed_segment_says_so_once(serve: Callable[..., Awaitable[WireService]]) -> None:
    """SS-40: set-up still answers; the refusal names the first event; later ones are dropped until set up."""
    service = await serve()
    wire = await service.connect()
    await set_up(wire)
    service.logs.hold_appends(0)
    wire.send(block(W, 1, b"one"), SealSegment(9, A, ""))
    await until(lambda: service.store.find(A)[1].is_sealed)
    wire.send(block(W, 2, b"two"), block(W, 3, b"three"))
    await asyncio.sleep(0.02)
    service.logs.release_appends(0)
    seen = [await wire.receive() for _ in range(3)]
    kinds = [type(command) for command in seen]
    assert set(kinds) == {DataAppended, SegmentSealed, SegmentIsSealed}
    assert kinds.index(DataAppended) < kinds.index(SegmentIsSealed)
    (refusal,) = (command for command in seen if isinstance(command, SegmentIsSealed))
    assert refusal.offset == 2
    assert await set_up(wire) == 1


async def test_an_append_to_a_deleted_segment_says_no_such_segment(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """SS-25: for the writer that was set up, and for one that is not."""
    service = await serve()
    wire = await service.connect()
    await set_up(wire)
    await service.store.delete_segment(A)
    wire.send(block(W, 1, b"one"))
    assert (await wire.expect(NoSuchSegment)).segment == A
    assert (await wire.ask(SetupAppend(3, W, A, ""), NoSuchSegment)).request_id == 3


@pytest.mark.parametrize(
    "commands",
    [
        [block(b"x" * 16, 1, b"never set up")],
        [block(W, 5, b"five"), block(W, 4, b"backwards")],
        [block(W, -1, b"negative")],
        [block(W, 1, b"none", events=0)],
        [AppendBlock(W, b"half"), AppendBlock(W, b"again")],
        [AppendBlock(W, b"half"), SetupAppend(2, W, A, "")],
        [AppendBlock(W, b"half"), ConditionalBlockEnd(W, 1, 0, b"abc", 1)],
    ],
)
async def test_appends_out_of_protocol_close_the_connection(
    serve: Callable[..., Awaitable[WireService]], commands: list[AppendBlock]
) -> None:
    service = await serve()
    wire = await service.connect()
    await set_up(wire)
    wire.send(*commands)
    while await wire.receive() is not None:
        pass


async def test_a_table_takes_no_appends(serve: Callable[..., Awaitable[WireService]]) -> None:
    service = await serve()
    wire = await service.connect()
    await wire.ask(_create_table("s/_tables/a"), SegmentCreated)
    assert (await wire.ask(SetupAppend(2, W, "s/_tables/a", ""), OperationUnsupported)).request_id == 2


async def test_reads_answer_as_the_specification_says(serve: Callable[..., Awaitable[WireService]]) -> None:
    """SS-98, SS-99, SS-103: the table of wire-protocol 4.1, row by row."""
    service = await serve()
    wire = await service.connect()

    def read(offset: int, request_id: int, segment: str = A) -> ReadSegment:
        return ReadSegment(segment, offset, 1000, "", request_id)

    wire.send(read(0, 1), read(3, 2), read(100, 3))
    await asyncio.sleep(0.02)
    await service.store.append(A, b"abc")
    reply = await wire.expect(SegmentRead)
    assert (reply.request_id, reply.offset, _data(reply), reply.at_tail) == (1, 0, b"abc", True)
    await service.store.append(A, b"def")
    reply = await wire.expect(SegmentRead)
    assert (reply.request_id, reply.offset, _data(reply)) == (2, 3, b"def")
    await service.store.truncate_segment(A, 2)
    truncated = await wire.ask(read(1, 4), SegmentIsTruncated)
    assert (truncated.start_offset, truncated.offset) == (2, 1)
    await service.store.seal_segment(A)
    sealed = await wire.expect(SegmentIsSealed)
    assert (sealed.request_id, sealed.offset) == (3, 100)
    reply = await wire.ask(read(2, 5), SegmentRead)
    assert (_data(reply), reply.at_tail, reply.end_of_segment) == (b"cdef", False, True)
    reply = await wire.ask(read(6, 6), SegmentRead)
    assert (_data(reply), reply.at_tail, reply.end_of_segment) == (b"", False, True)
    assert (await wire.ask(read(7, 7), ErrorMessage)).error_code == 0
    missing = await wire.ask(read(7, 8, "s/t/9.#epoch.0"), NoSuchSegment)
    assert missing.offset == 7


async def test_a_parked_read_ends_when_its_segment_is_deleted(serve: Callable[..., Awaitable[WireService]]) -> None:
    """SS-100: the reader hears that the segment is gone."""
    service = await serve()
    wire = await service.connect()
    wire.send(ReadSegment(A, 0, 100, "", 1))
    await asyncio.sleep(0.02)
    await wire.ask(DeleteSegment(2, A, ""), NoSuchSegment)


async def test_parked_reads_do_not_keep_other_requests_out(serve: Callable[..., Awaitable[WireService]]) -> None:
    """A client that follows more segments than `requests_max` must still be heard: its append wakes every read."""
    service = await serve(requests_max=2)
    wire = await service.connect()
    await set_up(wire)
    for number in range(50):
        wire.send(ReadSegment(A, 0, 100, "", 1000 + number))
    wire.send(AppendBlockEnd(W, 3, b"abc", 1, 1, 7))
    replies = [await wire.receive() for _ in range(51)]
    assert sum(isinstance(reply, SegmentRead) and _data(reply) == b"abc" for reply in replies) == 50
    assert sum(isinstance(reply, DataAppended) for reply in replies) == 1


async def test_reads_that_need_storage_are_bounded_on_a_connection(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """Three at once may: the others wait, and the connection is not read meanwhile; all are answered, in any order."""
    service = await serve(reads_max=3)
    wire = await service.connect()
    await service.store.append(A, bytes(100))
    await service.store.container(A).flush()
    evict_all(service.store.container(A))
    service.chunks.hold("read")
    wire.send(*(ReadSegment(A, number, 100, "", number) for number in range(20)))
    (connection,) = service.server.connections
    await until(lambda: connection._reads.waiting_count == 20)
    assert len(connection._reads._tasks) == 3
    assert not connection._ingest.is_reading
    wire.send(ReadSegment(A, 100, 100, "", 20))
    other = await service.connect()
    await set_up(other)
    service.chunks.release("read")
    assert {(await wire.expect(SegmentRead)).request_id for _ in range(20)} == set(range(20))
    assert connection._ingest.is_reading
    await service.store.append(A, b"abc")  # type: ignore[unreachable]
    assert (await wire.expect(SegmentRead)).request_id == 20


async def test_connections_take_turns_where_storage_is_read(serve: Callable[..., Awaitable[WireService]]) -> None:
    """One connection asks for sixty places in storage; one read of another is served before most of them."""
    service = await serve()
    names = [f"s/u{number}/0.#epoch.0" for number in range(61)]
    for name in names:
        await service.store.create_segment(name)
        await service.store.append(name, name.encode())
    container = service.store.container(A)
    await container.flush()
    evict_all(container)
    read_names = []
    inner = container.reader._storage_read

    async def noted(segment: Segment, offset: int, length: int) -> bytes:
        read_names.append(segment.name)
        return await inner(segment, offset, length)

    container.reader._storage_read = noted
    service.chunks.hold("read")
    busy, other = await service.connect(), await service.connect()
    busy.send(*(ReadSegment(name, 0, 100, "", number) for number, name in enumerate(names[:60])))
    await until(lambda: container.reader._turns.waiting_count == 52)
    other.send(ReadSegment(names[60], 0, 100, "", 60))
    await until(lambda: container.reader._turns.waiting_count == 53)
    service.chunks.release("read")
    assert _data(await other.expect(SegmentRead)) == names[60].encode()
    assert read_names.index(names[60]) <= 9
    assert {(await busy.expect(SegmentRead)).request_id for _ in range(60)} == set(range(60))


async def test_a_read_is_clipped(serve: Callable[..., Awaitable[WireService]]) -> None:
    """At most 2 MiB and at least 8 bytes, regardless of the suggested length."""
    service = await serve(cache=CacheSettings(bytes_max=16 << 20))
    wire = await service.connect()
    for _ in range(3):
        await service.store.append(A, bytes(1 << 20))
    assert len((await wire.ask(ReadSegment(A, 0, 1 << 30, "", 1), SegmentRead)).data) == READ_LENGTH_MAX
    assert len((await wire.ask(ReadSegment(A, 0, -5, "", 2), SegmentRead)).data) == 8


async def test_a_short_read_is_whole_across_cache_and_storage(serve: Callable[..., Awaitable[WireService]]) -> None:
    """SS-104, SS-105: half of the bytes is in storage, half in the cache: one reply with all of them."""
    service = await serve()
    wire = await service.connect()
    container = service.store.container(A)
    await service.store.append(A, b"a" * 3000)
    await container.flush()
    evict_all(container)
    await service.store.append(A, b"b" * 3000)
    reply = await wire.ask(ReadSegment(A, 1000, 4000, "", 1), SegmentRead)
    assert _data(reply) == b"a" * 2000 + b"b" * 2000


async def test_too_many_unacknowledged_bytes_stop_the_reading(serve: Callable[..., Awaitable[WireService]]) -> None:
    """The server takes about the limit, then no more; when the log continues, so does the connection."""
    service = await serve(unacknowledged_bytes_max=20_000)
    wire = await service.connect()
    await set_up(wire)
    service.logs.hold_appends(0)
    for number in range(1, 41):
        wire.send(block(W, number, bytes(10_000)))
        await wire.writer.drain()
        await asyncio.sleep(0.002)  # Several reads: what one read brings is taken whole.
    (connection,) = service.server.connections
    assert not connection._ingest.is_reading
    assert 20_000 <= service.store.find(A)[1].length < 400_000
    service.logs.release_appends(0)
    while (await wire.expect(DataAppended)).event_number < 40:
        pass
    assert connection._ingest.is_reading


async def test_a_full_cache_holds_appends_until_storage_has_caught_up(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """SS-33, SS-113: the cache is full and storage stuck, on top of too many unacknowledged bytes.

    Nothing is lost, and once storage works the connections continue without outside help, one that was closed included.
    """
    service = await serve(unacknowledged_bytes_max=100_000)
    service.chunks.hold("write")
    wire, other = await service.connect(), await service.connect()
    await set_up(wire)
    await set_up(other, b"o" * 16)
    other.send(*(block(b"o" * 16, number, bytes(50_000)) for number in range(1, 5)))
    for number in range(1, 61):
        wire.send(block(W, number, bytes(50_000)))
    service.store.container(A).writer._wake.set()
    throttle = service.store.container(A).throttle
    await until(lambda: throttle.waiting_count >= 1)
    # Nine tenths of the share of one container, which is 60 %; the last one is for what is urgent.
    await until(lambda: service.store.cache.utilisation > 0.54)
    await turns()
    assert service.store.find(A)[1].length < 2_000_000
    assert service.server.budget.used_bytes > 0
    await other.close()
    service.chunks.release("write")
    writer = service.store.container(A).writer
    acked = 0
    while acked < 60:
        writer._wake.set()
        acked = (await wire.expect(DataAppended)).event_number
    assert acked == 60
    assert service.server.budget.used_bytes == 0


async def test_requests_behind_held_appends_are_answered_within_the_bound(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """Storage is stuck, the cache full, and one connection brings appends, then a read, information, group state.

    The appends are given up after the bound, their writer sent away, and what stood after them is answered. Once
    storage works the writer sets up again, hears what is durable, and continues from there.
    """
    service = await serve(
        unacknowledged_bytes_max=100_000, read_delay_s_max=0.2, cache=replace(SMALL_CACHE, bytes_max=4 << 20)
    )
    group = "s/_RGgroup/0.#epoch.0"
    await service.store.create_segment(group)
    # On a slow machine storage counts as stuck by then, and the segment's quota would hold the writer first.
    service.store.container(A).quota.bytes_max = 1 << 40
    service.chunks.hold("write")
    wire = await service.connect()
    await set_up(wire)
    await set_up(wire, b"g" * 16, group)
    wire.send(*(block(W, number, bytes(50_000)) for number in range(1, 101)))
    wire.send(ReadSegment(A, 0, 100, "", 11), GetStreamSegmentInfo(12, A, ""))
    wire.send(ConditionalBlockEnd(b"g" * 16, 1, 0, b"state", 13))
    acknowledged = 0
    answers: list[WireCommand] = []
    while len(answers) < 4:
        try:
            reply = await wire.receive()
        except TimeoutError:
            (connection,) = service.server.connections
            state = {name: getattr(connection, name) for name in ("_is_reading", "_reads_on", "_outstanding_bytes")}
            pytest.fail(f"only {answers} came, and acknowledgements of {acknowledged}; the connection: {state}")
        assert reply is not None
        if isinstance(reply, DataAppended) and reply.writer_id == W:
            acknowledged = reply.event_number
        else:
            answers.append(reply)
    kinds = {type(answer) for answer in answers}
    assert kinds == {WrongHost, SegmentRead, StreamSegmentInfo, DataAppended}
    assert acknowledged < 100
    # A turn of a busy machine may take longer than the bound of above: the writer would be sent away again.
    (connection,) = service.server.connections
    connection._ingest.settings = replace(connection._ingest.settings, read_delay_s_max=600.0)
    wire.send(SetupAppend(2, W, A, ""))
    await until(lambda: W in connection._appends.held_appends or bool(connection._appends._waiting_set_ups))
    service.chunks.release("write")
    service.store.container(A).writer._wake.set()
    durable = (await wire.expect(AppendSetup)).last_event_number
    # Appends admitted before the others were given up may have become durable after the last answer.
    assert acknowledged <= durable < 100
    acknowledged = durable
    wire.send(*(block(W, number, bytes(50_000)) for number in range(acknowledged + 1, 101)))
    while acknowledged < 100:
        service.store.container(A).writer._wake.set()
        acknowledged = (await wire.expect(DataAppended)).event_number
    assert service.store.find(A)[1].length == 100 * 50_000


async def test_an_append_longer_than_the_room_leaves_group_state_its_own(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """Storage is stuck, and the last append admitted exceeds its bound by more than is reserved for group state.

    Group state is accepted nevertheless, as far as its own reserve lasts; then it waits for storage, too.
    """
    service = await serve(cache=replace(SMALL_CACHE, bytes_max=4 << 20))
    group = "s/_RGgroup/0.#epoch.0"
    await service.store.create_segment(group)
    container = service.store.container(A)
    container.quota.bytes_max = 1 << 40  # The quotas of segments whose storage is stuck are not what this is about.
    bound_bytes, urgent_bound_bytes = (
        container.back_pressure.bounds.backlog_bytes,
        container.back_pressure.urgent_bounds.backlog_bytes,
    )
    reserved_bytes = urgent_bound_bytes - bound_bytes
    service.chunks.hold("write")
    wire = await service.connect()
    await set_up(wire)
    await set_up(wire, b"g" * 16, group)
    for number, length in enumerate((bound_bytes - 100, reserved_bytes + 10_000), 1):
        wire.send(block(W, number, bytes(length)))
        assert (await wire.expect(DataAppended)).event_number == number
    assert container.state.backlog.byte_count > urgent_bound_bytes
    assert container.back_pressure.must_wait()
    for number in (1, 2):
        wire.send(ConditionalBlockEnd(b"g" * 16, number, (number - 1) * reserved_bytes, bytes(reserved_bytes), number))
        if number == 1:
            assert (await wire.expect(DataAppended)).writer_id == b"g" * 16
    await until(lambda: container.throttle.waiting_count == 1)
    service.chunks.release("write")
    container.writer._wake.set()
    assert (await wire.expect(DataAppended)).writer_id == b"g" * 16
    container.writer._wake.set()
    await container.writer.flush_all()
    assert (container.state.backlog.urgent.byte_count, container.state.cache.urgent_lacking_bytes) == (0, 0)
    assert container.state.backlog.urgent.operation_count == 0


async def test_slow_readers_together_hold_a_bounded_amount(serve: Callable[..., Awaitable[WireService]]) -> None:
    """Above the bound slow readers get nothing more and others short answers; once they read all is as before.

    Replies are views that keep blocks alive which the cache has let go.
    """
    service = await serve(slow_reply_bytes=10_000, slow_replies_bytes_max=500_000, write_buffer_bytes_max=1 << 30)
    await service.store.append(A, bytes(1 << 19))
    slow, other = await service.connect(), await service.connect()
    for number in range(64):
        slow.send(ReadSegment(A, 0, 1 << 19, "", number))
    await until(lambda: service.server.has_too_many_slow_replies)
    connection = next(connection for connection in service.server.connections if connection._slow_reply_bytes)
    assert (connection.is_write_blocked, connection._ingest.is_reading) == (True, False)
    assert len((await other.ask(ReadSegment(A, 0, 1 << 19, "", 1), SegmentRead)).data) == 64 * 1024
    for number in range(64):
        assert (await slow.expect(SegmentRead)).request_id == number
    await until(lambda: not service.server.slow_reply_bytes)
    assert connection._ingest.is_reading
    assert len((await other.ask(ReadSegment(A, 0, 1 << 19, "", 1), SegmentRead)).data) == 1 << 19


async def test_a_lost_connection_holds_nothing_any_more(serve: Callable[..., Awaitable[WireService]]) -> None:
    service = await serve(slow_reply_bytes=10_000)
    await service.store.append(A, bytes(1 << 19))
    slow = await service.connect()
    for number in range(64):
        slow.send(ReadSegment(A, 0, 1 << 19, "", number))
    await until(lambda: service.server.slow_reply_bytes > 0)
    await slow.close()
    await until(lambda: not service.server.connections)
    assert service.server.slow_reply_bytes == 0


async def test_a_reader_that_takes_nothing_is_not_served_without_end(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """Replies pile up to a bound, then no more requests are read; when the reader takes them all come."""
    service = await serve(write_buffer_bytes_max=100_000)
    await service.store.append(A, bytes(1 << 19))
    wire = await service.connect()
    for number in range(64):
        wire.send(ReadSegment(A, 0, 1 << 19, "", number))
    await asyncio.sleep(0.1)
    for number in range(64):
        reply = await wire.expect(SegmentRead)
        assert reply.request_id == number
        assert len(reply.data) == 1 << 19


async def test_transient_segments_go_with_their_connection(serve: Callable[..., Awaitable[WireService]]) -> None:
    """SS-31: those that were not merged are deleted when the connection closes, even one just being created."""
    service = await serve()
    wire = await service.connect()
    made = await wire.ask(CreateTransientSegment(1, W, A, ""), SegmentCreated)
    assert made.segment.startswith(A)
    await service.store.segment_info(made.segment)
    service.logs.hold_appends(0)
    wire.send(CreateTransientSegment(2, W, A, ""))
    await asyncio.sleep(0.02)
    await wire.close()
    await asyncio.sleep(0.02)
    service.logs.release_appends(0)
    await until(lambda: [s.name for s in service.store.container(A).segments() if not s.is_system] == [A])


async def test_a_stopping_server_ends_parked_reads(serve: Callable[..., Awaitable[WireService]]) -> None:
    """SS-16: connections close, nothing hangs, the store stops afterwards."""
    service = await serve()
    wire = await service.connect()
    for number in range(20):
        wire.send(ReadSegment(A, 0, 100, "", number))
    await asyncio.sleep(0.02)
    async with asyncio.timeout(60):
        await service.server.stop()
    assert await wire.receive() is None
    assert service.store.find(A)[1].waits is None
    assert not service.store.tail_reads.used_bytes


async def test_a_failed_log_closes_the_connections_whose_appends_are_in_doubt(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """SS-49: no ack, no refusal: the client reconnects and sets up again; meanwhile others get WrongHost."""
    service = await serve()
    wire, other = await service.connect(), await service.connect()
    await set_up(wire)
    service.logs.fail_append(0, has_effect=True)
    wire.send(block(W, 1, b"in doubt"))
    assert await wire.receive() is None
    await other.ask(ReadSegment(A, 0, 100, "", 1), WrongHost)
    await until(lambda: service.store.is_ready)
    assert await set_up(other) == 1


async def test_a_request_whose_outcome_is_unknown_closes_the_connection(
    serve: Callable[..., Awaitable[WireService]],
) -> None:
    """Neither success nor failure may be said."""
    service = await serve()
    wire = await service.connect()
    service.logs.fail_append(0)
    wire.send(CreateSegment(1, "s/t/5.#epoch.0", 0, 0, "", 0))
    assert await wire.receive() is None


async def test_truncation_and_seal_twice_answer_as_callers_expect(serve: Callable[..., Awaitable[WireService]]) -> None:
    """SS-44, SS-43: wire-protocol 4.4."""
    service = await serve()
    wire = await service.connect()
    await service.store.append(A, b"0123456789")
    for offset, accepted in ((0, True), (5, True), (4, False), (11, False), (10, True)):
        wire.send(TruncateSegment(1, A, offset, ""))
        reply = await wire.receive()
        assert isinstance(reply, SegmentIsTruncated) != accepted
    await wire.ask(SealSegment(2, A, ""), SegmentSealed)
    await wire.ask(SealSegment(3, A, ""), SegmentIsSealed)
    await turns(1)
