"""Appends of one connection, without one: blocks as Java clients send them, limits, what comes after the end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace

import pytest

from penstock.model.errors import BadOffsetError, ProtocolError, SegmentSealedError
from penstock.model.segments import NO_VALUE
from penstock.segmentstore.append_processor import AppendProcessor
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.log.pipeline import OnDone
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.held_appends import OPERATION_OVERHEAD_BYTES
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.wire.codec import decode, encode
from penstock.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    DataAppended,
    KeepAlive,
    NoSuchSegment,
    OperationUnsupported,
    Padding,
    PartialEvent,
    SetupAppend,
    WireCommand,
    WrongHost,
)
from support.containers import QUIET, SMALL_CACHE, FaultyChunks, memory_runtime, memory_store, turns
from support.writer_slots import slots_of

A = "s/t/0.#epoch.0"
W = b"w" * 16


class NotedReplies:
    """A connection's sending side that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[WireCommand] = []
        self.aborts: list[str] = []
        self.outstanding_bytes = 0
        self.is_acknowledgement_due = False
        self.tasks: list[asyncio.Task[None]] = []

    def send(self, frame: bytes) -> None:
        type_code, length = struct.unpack_from(">ii", frame)
        assert length == len(frame) - 8
        self.sent.append(decode(type_code, memoryview(frame)[8:]))

    def abort(self, reason: str) -> None:
        self.aborts.append(reason)

    def acknowledge_later(self) -> None:
        self.is_acknowledgement_due = True

    def note_outstanding(self, byte_count: int) -> None:
        self.outstanding_bytes += byte_count

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))


class Bench:
    """A processor over a store with one container."""

    def __init__(self, **changes: int) -> None:
        runtime = memory_runtime()
        self.runtime = runtime
        self.logs = MemoryLogFactory(runtime)
        container = replace(QUIET, **changes)  # type: ignore[arg-type]  # int fields get ints.
        settings = SegmentStoreSettings(container_count=1, cache=SMALL_CACHE, container=container)
        self.store: SegmentStore = memory_store(self.logs, FaultyChunks(), runtime, settings)
        self.replies = NotedReplies()
        self.processor = AppendProcessor(self.store, self.replies, slots_of(200))

    def limit_writers(self, count: int) -> None:
        """Begin again with a connection that may have so many."""
        self.processor = AppendProcessor(self.store, self.replies, slots_of(count))

    async def set_up(self, writer_id: bytes = W) -> None:
        self.processor.set_up(SetupAppend(1, writer_id, A, ""))
        await turns(12)

    def end_block(self, command: AppendBlockEnd) -> None:
        """Take in one append by itself, as if nothing else had been received with it."""
        self.processor.end_block(command)
        self.processor.submit_gathered()

    @property
    def outstanding_bytes(self) -> int:
        """What the connection is sent by the end of the turn."""
        self.processor.settle()
        return self.replies.outstanding_bytes

    async def stored(self) -> bytes:
        await turns(12)
        return (await self.store.read(A, 0, 1 << 20)).joined()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    await made.store.start()
    await made.store.create_segment(A)
    yield made
    made.logs.release_appends(0)
    await made.store.stop()
    await made.runtime.work.close()


def end(whole: int, tail: bytes, number: int = 1) -> AppendBlockEnd:
    return AppendBlockEnd(W, whole, tail, 1, number, 7)


@pytest.mark.parametrize(
    ("data", "whole", "tail", "stored"),
    [
        (b"whole", 5, b"", b"whole"),
        (b"whole" + encode(PartialEvent(b"part")), 5, b"-rest", b"wholepart-rest"),
        (b"whole" + encode(Padding(3)), 5, b"", b"whole"),
        (encode(PartialEvent(b"part")), 0, b"-rest", b"part-rest"),
        (b"", 0, b"", b""),
    ],
)
async def test_blocks_are_put_together(bench: Bench, data: bytes, whole: int, tail: bytes, stored: bytes) -> None:
    """Whole events, then nothing, a part whose rest is in the end, or padding; an empty append is one, too."""
    await bench.set_up()
    bench.processor.begin_block(AppendBlock(W, data), data)
    bench.end_block(end(whole, tail))
    assert await bench.stored() == stored
    bench.processor.send_acknowledgements()
    ack = bench.replies.sent[-1]
    assert isinstance(ack, DataAppended)
    assert (ack.event_number, ack.previous_event_number, ack.request_id) == (1, NO_VALUE, 7)
    assert bench.outstanding_bytes == 0


@pytest.mark.parametrize(
    ("data", "whole", "tail"),
    [
        (b"short", 6, b""),
        (b"short", -1, b""),
        (b"short" + b"\0" * 4, 5, b""),
        (b"short" + encode(KeepAlive()), 5, b""),
        (b"short" + encode(Padding(3)), 5, b"more"),
        (b"short" + encode(Padding(3)) + b"x", 5, b""),
    ],
)
async def test_blocks_that_contradict_themselves_are_refused(
    bench: Bench, data: bytes, whole: int, tail: bytes
) -> None:
    await bench.set_up()
    bench.processor.begin_block(AppendBlock(W, data), data)
    with pytest.raises(ProtocolError):
        bench.end_block(end(whole, tail))
    assert await bench.stored() == b""


async def test_the_end_of_another_writers_block_is_refused(bench: Bench) -> None:
    await bench.set_up()
    bench.processor.begin_block(AppendBlock(b"x" * 16, b"data"), b"data")
    with pytest.raises(ProtocolError):
        bench.end_block(end(4, b""))


async def test_an_append_before_the_set_up_is_answered_is_refused(bench: Bench) -> None:
    """The answer waits for what was accepted before; until then the writer is not set up."""
    await bench.set_up()
    bench.logs.hold_appends(0)
    bench.end_block(end(3, b"one"))
    await turns(3)
    bench.processor.set_up(SetupAppend(2, W, A, ""))
    with pytest.raises(ProtocolError):
        bench.end_block(end(3, b"two", 2))
    bench.logs.release_appends(0)
    await turns(12)
    kinds = [type(command) for command in bench.replies.sent]
    assert kinds == [AppendSetup, DataAppended, AppendSetup]


async def test_a_set_up_that_is_answered_after_the_end_of_the_connection_leaves_nothing(bench: Bench) -> None:
    bench.logs.hold_appends(0)
    bench.store.find(A)[0].acceptor.append(bench.store.find(A)[1], AppendRequest(b"x"), lambda _: None)
    bench.processor.set_up(SetupAppend(2, W, A, ""))
    bench.processor.close()
    bench.logs.release_appends(0)
    await turns(12)
    assert bench.replies.sent == []
    assert bench.processor._writers == {}


async def test_writers_of_one_connection_are_bounded(bench: Bench) -> None:
    bench.limit_writers(2)
    for number in range(2):
        await bench.set_up(bytes((number,)) * 16)
    await bench.set_up(b"\0" * 16)
    assert not bench.replies.aborts
    await bench.set_up(b"\2" * 16)
    assert len(bench.replies.aborts) == 1


async def test_a_failed_log_aborts_and_gives_the_bytes_back(bench: Bench) -> None:
    """Each of the appends in flight ends; the outstanding bytes are 0, or the connection would never be read again."""
    await bench.set_up()
    bench.logs.fail_append(0)
    for number in range(1, 4):
        bench.end_block(end(3, b"abc", number))
    assert bench.replies.outstanding_bytes == 9 + 3 * OPERATION_OVERHEAD_BYTES
    await turns(12)
    assert bench.outstanding_bytes == 0
    assert bench.replies.aborts


async def test_a_number_used_by_a_failed_condition_may_come_again(bench: Bench) -> None:
    """SS-146: it was not committed."""
    await bench.set_up()
    for offset in (5, 0):
        bench.processor.append_conditionally(ConditionalAppend(W, 3, offset, b"payload", 1), b"data")
        await turns(12)
    assert await bench.stored() == b"data"


async def test_watermarks_take_conditional_appends_only(bench: Bench) -> None:
    """A writer of events that was given a mark stream would make it unreadable."""
    marks = "s/_MARKt/0.#epoch.0"
    await bench.store.create_segment(marks)
    bench.processor.set_up(SetupAppend(1, W, marks, ""))
    await turns(12)
    bench.end_block(end(4, b"data"))
    await turns(12)
    assert [type(reply) for reply in bench.replies.sent] == [AppendSetup, OperationUnsupported]
    assert bench.replies.aborts == []
    bench.processor.set_up(SetupAppend(2, W, marks, ""))
    await turns(12)
    bench.processor.append_conditionally(ConditionalAppend(W, 1, 0, b"payload", 3), b"mark")
    await turns(12)
    assert (await bench.store.read(marks, 0, 100)).joined() == b"mark"
    assert bench.outstanding_bytes == 0


async def test_conditional_appends_are_acknowledged_one_by_one(bench: Bench) -> None:
    """Three that become durable in one turn get an answer each: Java's large events wait for every request id.

    Unconditional ones of the same writer are joined into one answer.
    """
    await bench.set_up()
    for number in range(3):
        command = ConditionalBlockEnd(W, number, 4 * number, b"data", 10 + number)
        bench.processor.append_conditionally(command, b"data")
    await turns(12)
    acknowledged = [reply for reply in bench.replies.sent if isinstance(reply, DataAppended)]
    assert [(reply.request_id, reply.event_number, reply.previous_event_number) for reply in acknowledged] == [
        (10, 0, NO_VALUE),
        (11, 1, 0),
        (12, 2, 1),
    ]
    assert [reply.current_segment_write_offset for reply in acknowledged] == [4, 8, 12]
    bench.processor.send_acknowledgements()
    assert len(bench.replies.sent) == 1 + len(acknowledged)

    for number in range(3, 6):
        bench.end_block(end(4, b"data", number))
    await turns(12)
    assert bench.replies.is_acknowledgement_due
    bench.processor.send_acknowledgements()
    joined = [reply for reply in bench.replies.sent if isinstance(reply, DataAppended)][3:]
    assert [(reply.event_number, reply.previous_event_number) for reply in joined] == [(5, 2)]


async def put_away(bench: Bench) -> None:
    """Take the segment out of memory."""
    (container,) = bench.store.containers
    await container.flush()
    assert await container.catalog.deactivate([container.segment(A)], 1) == 1


async def test_appends_to_a_segment_that_was_deactivated_keep_their_order(bench: Bench) -> None:
    """SS-18: the set-up and the first append each find it out of memory; what comes behind waits its turn."""
    await put_away(bench)
    bench.processor.set_up(SetupAppend(1, W, A, ""))
    await turns(50)
    assert isinstance(bench.replies.sent[-1], AppendSetup)
    await put_away(bench)
    for number in range(1, 6):
        bench.end_block(end(0, b"%d" % number, number))
    assert bench.replies.outstanding_bytes > 0
    await turns(50)
    bench.processor.send_acknowledgements()
    assert (await bench.store.read(A, 0, 100)).joined() == b"12345"
    assert isinstance(bench.replies.sent[-1], DataAppended)
    assert bench.replies.sent[-1].event_number == 5
    assert bench.outstanding_bytes == 0
    assert not bench.replies.aborts


async def test_a_segment_deleted_while_it_was_away_refuses_what_waits(bench: Bench) -> None:
    """The append that asked for it is refused as any other to a missing segment; nothing is left waiting."""
    await bench.set_up()
    await put_away(bench)
    await bench.store.delete_segment(A)
    for number in (1, 2):
        bench.end_block(end(0, b"x", number))
    await turns(50)
    assert isinstance(bench.replies.sent[-1], NoSuchSegment)
    assert bench.outstanding_bytes == 0


async def test_a_set_up_does_not_report_a_deletion_before_it_is_durable(bench: Bench) -> None:
    """Until then a crash would bring the segment back."""
    bench.logs.hold_appends(0)
    deleting = asyncio.create_task(bench.store.delete_segment(A))
    await turns()
    await bench.set_up()
    await turns()
    assert not bench.replies.sent
    bench.logs.release_appends(0)
    await deleting
    await turns()
    assert isinstance(bench.replies.sent[-1], NoSuchSegment)
    assert bench.outstanding_bytes == 0


async def test_commands_that_are_held_back_count_though_they_bring_no_bytes(bench: Bench) -> None:
    """Set-ups behind one whose segment is being found: a client cannot pile them up without end."""
    await put_away(bench)
    for number in range(100):
        bench.processor.set_up(SetupAppend(number, W, A, ""))
    assert bench.replies.outstanding_bytes >= 99 * 256
    await turns(50)
    assert bench.outstanding_bytes == 0
    assert len(bench.replies.sent) == 100


@pytest.mark.parametrize("expected_offset", [None, 7])
async def test_an_append_is_not_refused_before_what_that_rests_on_is_durable(
    bench: Bench, expected_offset: int | None
) -> None:
    """A seal, or the bytes that make the expected offset wrong, in the log's hands."""
    (container,) = bench.store.containers
    bench.logs.hold_appends(0)
    sealing = asyncio.create_task(container.seal(A)) if expected_offset is None else None
    await turns()
    appending = asyncio.create_task(bench.store.append(A, b"x"))
    refused = asyncio.create_task(bench.store.append(A, b"y", expected_offset=expected_offset))
    await turns()
    assert not refused.done()
    bench.logs.release_appends(0)
    with pytest.raises((SegmentSealedError, BadOffsetError)):
        await refused
    await asyncio.gather(appending, *([sealing] if sealing is not None else ()), return_exceptions=True)


async def test_a_writer_whose_number_left_memory_is_found_again(bench: Bench) -> None:
    """SS-128, SS-142: set-up and append load the number from the index; a wrong one is refused after the load."""
    bench = Bench(attributes_in_memory_max=2, attributes_cached_max=4)
    await bench.store.start()
    await bench.store.create_segment(A)
    (container,) = bench.store.containers
    segment = container.segment(A)
    for number in range(20):
        container.state.accept_attributes(segment, {number.to_bytes(16, "big"): number})
    await bench.set_up()
    bench.end_block(end(0, b"a", 3))
    await turns(20)
    container.attributes.due()
    await container.attributes.flush(segment)
    del segment.attributes[W]
    bench.end_block(end(0, b"b", 4))
    bench.end_block(end(0, b"c", 5))
    await turns(100)
    assert (await bench.store.read(A, 0, 100)).joined() == b"abc"
    container.attributes.due()
    await container.attributes.flush(segment)
    del segment.attributes[W]
    bench.processor.set_up(SetupAppend(2, W, A, ""))
    await turns(100)
    answer = bench.replies.sent[-1]
    assert isinstance(answer, AppendSetup)
    assert answer.last_event_number == 5
    await bench.store.stop()
    await bench.runtime.work.close()


async def test_appends_wait_while_the_cache_is_nearly_full(bench: Bench) -> None:
    """SS-32, SS-33: above its mark appends are held, deletions are not; relief lets them continue by itself."""
    await bench.set_up()
    (container,) = bench.store.containers
    await bench.store.create_segment("s/u/0.#epoch.0")
    cache = bench.store.cache
    ballast = int(cache.settings.bytes_max * 0.95)
    cache.count(ballast)
    bench.end_block(end(0, b"held", 1))
    bench.end_block(end(0, b"behind", 2))
    await turns(20)
    assert container.throttle.waiting_count == 1
    assert (await bench.store.read(A, 0, 100)).joined() == b""
    await bench.store.delete_segment("s/u/0.#epoch.0")
    cache.discount(ballast)
    container.events.on_relief()
    await turns(50)
    assert (await bench.store.read(A, 0, 100)).joined() == b"heldbehind"
    assert bench.outstanding_bytes == 0


async def test_a_held_append_that_fails_unexpectedly_ends_its_connection_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is stored after the gap, its counted bytes are released, and the other waiters are let in."""
    await bench.set_up()
    other = AppendProcessor(bench.store, NotedReplies(), slots_of(2))
    other.set_up(SetupAppend(1, b"o" * 16, A, ""))
    await turns(12)
    (container,) = bench.store.containers
    cache = bench.store.cache
    ballast = int(cache.settings.bytes_max * 0.95)
    cache.count(ballast)
    for number in (1, 2):
        bench.end_block(end(0, b"held", number))
    other.end_block(AppendBlockEnd(b"o" * 16, 0, b"other", 1, 1, 7))
    other.submit_gathered()
    assert container.throttle.waiting_count == 2
    append = container.acceptor.append

    def failing(segment: Segment, request: AppendRequest, on_done: OnDone, *, stored_event_number: int) -> int:
        if request.writer_id == W and request.event_number == 1:
            raise RuntimeError("an unexpected error")
        return append(segment, request, on_done, stored_event_number=stored_event_number)

    monkeypatch.setattr(container.acceptor, "append", failing)
    cache.discount(ballast)
    container.events.on_relief()
    await turns(50)
    assert await bench.stored() == b"other"
    assert len(bench.replies.aborts) == 1
    assert "an unexpected error" in caplog.text
    assert bench.outstanding_bytes == 0
    assert container.throttle.waiting_count == 0
    bench.end_block(end(0, b"late", 3))
    assert await bench.stored() == b"other"


async def test_a_writer_that_is_rejected_is_set_up_once_appends_are_taken_again(bench: Bench) -> None:
    """While appends are refused its set-up is not answered: it would send, be sent away, and set up again at once.

    The container is a healthy one; appends of others are what fills the connection. Group state is not concerned.
    """
    group = "s/_RGgroup/0.#epoch.0"
    await bench.store.create_segment(group)
    await bench.set_up()
    bench.processor.reset_writers()
    bench.end_block(end(4, b"data", 1))
    assert [type(reply) for reply in bench.replies.sent[1:]] == [WrongHost]
    for request_id in (2, 3):
        bench.processor.set_up(SetupAppend(request_id, W, A, ""))
    bench.processor.set_up(SetupAppend(4, b"g" * 16, group, ""))
    await turns(12)
    assert [reply.request_id for reply in bench.replies.sent if isinstance(reply, AppendSetup)] == [1, 4]
    bench.processor.resume_writers()
    await turns(12)
    assert [reply.request_id for reply in bench.replies.sent if isinstance(reply, AppendSetup)] == [1, 4, 2, 3]
    bench.end_block(end(4, b"data", 1))
    assert await bench.stored() == b"data"


async def test_a_set_up_that_waited_for_its_segment_waits_on_while_appends_are_refused(bench: Bench) -> None:
    """It was in line when its connection began to send writers away."""
    await bench.set_up()
    bench.store.cache.count(ballast := int(bench.store.cache.settings.bytes_max * 0.95))
    bench.processor.set_up(SetupAppend(2, W, A, ""))
    bench.processor.reset_writers()
    bench.store.cache.discount(ballast)
    bench.store.containers[0].events.on_relief()
    await turns(20)
    assert [reply.request_id for reply in bench.replies.sent if isinstance(reply, AppendSetup)] == [1]
    bench.processor.resume_writers()
    await turns(12)
    assert [reply.request_id for reply in bench.replies.sent if isinstance(reply, AppendSetup)] == [1, 2]


async def test_set_ups_that_wait_are_bounded(bench: Bench) -> None:
    bench.limit_writers(2)
    bench.processor.reset_writers()
    for number in range(3):
        bench.processor.set_up(SetupAppend(number, bytes([number]) * 16, A, ""))
    assert len(bench.replies.aborts) == 1


async def test_what_a_receive_buffer_holds_is_counted_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends of two writers: the connection gets one call, and the container is asked once whether it has room."""
    other = b"o" * 16
    await bench.set_up()
    await bench.set_up(other)
    noted: list[int] = []
    asked: list[bool] = []
    monkeypatch.setattr(bench.replies, "note_outstanding", noted.append)
    monkeypatch.setattr(bench.store.containers[0].back_pressure, "must_wait", lambda **_: bool(asked.append(True)))  # type: ignore[func-returns-value]
    for writer_id in (W, other):
        bench.processor.end_block(AppendBlockEnd(writer_id, 4, b"data", 1, 1, 7))
    bench.processor.submit_gathered()
    assert noted == [2 * (4 + OPERATION_OVERHEAD_BYTES)]
    assert len(asked) == 1
    await turns(12)
    bench.processor.send_acknowledgements()
    assert noted == [2 * (4 + OPERATION_OVERHEAD_BYTES), -2 * (4 + OPERATION_OVERHEAD_BYTES)]
