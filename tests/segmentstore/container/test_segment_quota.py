"""A segment, or a container, that long-term storage does not accept does not hold up the others."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.model.errors import SegmentBackloggedError, StorageError
from penstock.model.segments import Buffer
from penstock.segmentstore.append_processor import AppendProcessor
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.pending import Backlog, PendingAppend, PendingMerge, PendingQueue, PendingTruncate
from penstock.segmentstore.container.reads.cache import Cache
from penstock.segmentstore.settings import SegmentStoreSettings, ThrottleSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from penstock.wire.codec import decode
from penstock.wire.commands import (
    AppendBlockEnd,
    AppendSetup,
    DataAppended,
    NoSuchSegment,
    SegmentIsSealed,
    SetupAppend,
    WireCommand,
    WrongHost,
)
from penstock_simulation.checks.invariants import InvariantMonitor
from support.containers import QUIET, SMALL_CACHE, memory_runtime, turns, until
from support.writer_slots import slots_of

A, B = "s/stuck/0.#epoch.0", "s/t/0.#epoch.0"
V, W = b"v" * 16, b"w" * 16
QUOTA = ThrottleSettings().segment_backlog_bytes_max(SMALL_CACHE)


class Refusing(WrappedChunkStorage):
    """Refuses every change of the chunks of segments of one stream until `is_over`."""

    prefix = "s/stuck/"
    is_over = False

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        if name.startswith(self.prefix) and not self.is_over:
            raise StorageError(f"{name}: this storage does not want it")
        return await super().create_with_content(name, data)


class NotedReplies:
    """A connection's sending side that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[WireCommand] = []
        self.aborts: list[str] = []
        self.outstanding_bytes = 0
        self.tasks: list[asyncio.Task[None]] = []

    def send(self, frame: bytes) -> None:
        self.sent.append(decode(struct.unpack_from(">i", frame)[0], memoryview(frame)[8:]))

    def abort(self, reason: str) -> None:
        self.aborts.append(reason)

    def acknowledge_later(self) -> None:
        """The test does, when it likes."""

    def note_outstanding(self, byte_count: int) -> None:
        self.outstanding_bytes += byte_count

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))


class HeldForEver:
    """A waiter that is never let in."""

    def admit(self, byte_count: int) -> bool:
        return True


class Bench:
    """A store with one container whose storage refuses one stream."""

    def __init__(self, throttle: ThrottleSettings) -> None:
        self.runtime = memory_runtime()
        self.chunks = Refusing(MemoryChunkStorage())
        container = replace(QUIET, flush_age_s=0.0, writer_interval_s=0.002, writer_retry_s=0.002)
        settings = SegmentStoreSettings(container_count=1, cache=SMALL_CACHE, container=container, throttle=throttle)
        self.store = SegmentStore(
            logs=MemoryLogFactory(self.runtime), chunks=self.chunks, runtime=self.runtime, settings=settings
        )

    async def fill(self, segment: str) -> None:
        """Append until the segment is over its quota."""
        container, found = self.store.find(segment)
        await self.store.append(segment, bytes(16 * 1024))
        await until(lambda: found.is_stuck)  # Or the container's share is full before that is known.
        while not container.quota.is_over(found):
            await self.store.append(segment, bytes(16 * 1024))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(ThrottleSettings(segment_hold_s_max=0.05))
    await made.store.start()
    for name in (A, B):
        await made.store.create_segment(name)
    yield made
    made.chunks.is_over = True
    await made.store.stop()
    await made.runtime.work.close()


async def test_a_stuck_segment_is_held_alone_and_then_refused(bench: Bench) -> None:
    """Its appends wait, then say why they were refused; those of others continue, many times its quota."""
    await bench.fill(A)
    with pytest.raises(SegmentBackloggedError, match=f"at most {QUOTA} may"):
        await bench.store.append(A, b"more")
    bench.store.containers[0].quota._hold_s_max = 60.0
    held = asyncio.ensure_future(bench.store.append(A, b"more"))
    for _ in range(5 * QUOTA // 4096):
        await bench.store.append(B, bytes(4096))
    assert bench.store.containers[0].quota.held_count == 1
    assert bench.store.container_statistics()[0].held_append_count == 1
    bench.chunks.is_over = True
    await held


async def test_a_held_segment_can_still_be_sealed_truncated_and_deleted(bench: Bench) -> None:
    """Operations that relieve are never held, and afterwards no caller is held."""
    await bench.fill(A)
    await bench.store.truncate_segment(A, 10)
    await bench.store.seal_segment(A)
    await bench.store.delete_segment(A)
    assert not bench.store.containers[0].quota.held_count
    assert bench.store.containers[0].state.backlog.byte_count < 1000


async def test_a_writer_of_a_stuck_segment_delays_no_other_on_its_connection(bench: Bench) -> None:
    """On the wire: the writer is sent away once there is room; another one on the connection is answered at once."""
    replies = NotedReplies()
    processor = AppendProcessor(bench.store, replies, slots_of(4))
    processor.set_up(SetupAppend(1, V, A, ""))
    processor.set_up(SetupAppend(2, W, B, ""))
    await turns(5)
    assert [type(reply) for reply in replies.sent] == [AppendSetup, AppendSetup]
    await bench.fill(A)
    replies.sent.clear()
    for number in range(1, 4):
        processor.end_block(AppendBlockEnd(V, 0, b"stuck", 1, number, 7))
        processor.end_block(AppendBlockEnd(W, 0, b"flows", 1, number, 8))
        processor.submit_gathered()
    await turns(10)
    processor.send_acknowledgements()
    assert [reply.writer_id for reply in replies.sent if isinstance(reply, DataAppended)] == [W]
    assert len(replies.sent) == 1
    assert replies.outstanding_bytes == 0  # Nothing of it is kept.
    length = (await bench.store.segment_info(A)).length
    bench.chunks.is_over = True
    await until(lambda: len(replies.sent) > 1)
    assert isinstance(replies.sent[1], WrongHost)
    assert replies.sent[1].segment == A
    assert (await bench.store.segment_info(A)).length == length
    assert not replies.aborts
    # It comes again, with what was not acknowledged.
    processor.set_up(SetupAppend(3, V, A, ""))
    await turns(5)
    processor.end_block(AppendBlockEnd(V, 0, b"stuck", 1, 1, 9))
    processor.submit_gathered()
    await turns(10)
    assert (await bench.store.segment_info(A)).length == length + 5


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_writer_learns_that_a_stuck_segment_is_sealed_or_gone(bench: Bench, is_deleted: bool) -> None:
    """It would be rejected and retry without end: waiting gives no room to a segment that storage does not accept."""
    replies = NotedReplies()
    processor = AppendProcessor(bench.store, replies, slots_of(4))
    processor.set_up(SetupAppend(1, V, A, ""))
    await turns(5)
    await bench.fill(A)
    container, segment = bench.store.find(A)
    await bench.store.seal_segment(A)
    if is_deleted:
        segment.is_deleted = True
    assert container.quota.is_over(segment)
    replies.sent.clear()
    processor.end_block(AppendBlockEnd(V, 0, b"stuck", 1, 1, 7))
    processor.submit_gathered()
    await turns(10)
    assert [type(reply) for reply in replies.sent] == [NoSuchSegment if is_deleted else SegmentIsSealed]
    segment.is_deleted = False


async def test_a_container_is_held_at_its_share_of_the_cache(bench: Bench) -> None:
    """The bytes that wait are counted, not the segments; before, 60 stuck segments counted as 60."""
    segments = [f"s/stuck/{number}.#epoch.0" for number in range(1, 5)]
    for name in segments:
        await bench.store.create_segment(name)
    container = bench.store.containers[0]
    sent = 0
    while not container.back_pressure.must_wait():
        for name in segments:
            container.acceptor.append(container.segment(name), AppendRequest(bytes(1024)), lambda _: None)
            sent += 1
        await container.pipeline.barrier()
    backlog = container.state.backlog
    assert backlog.operation_count >= sent
    assert backlog.byte_count >= sent * 1024
    assert sent * 1024 <= SMALL_CACHE.bytes_max * 60 // 100
    assert container.state.cache.used_bytes < SMALL_CACHE.target_bytes
    bench.chunks.is_over = True
    await until(lambda: not container.back_pressure.must_wait())


@pytest.mark.parametrize(("stuck_count", "is_violation"), [(1, True), (4, False)])
async def test_the_simulation_takes_it_for_wrong_when_callers_are_held_without_need(
    bench: Bench, stuck_count: int, is_violation: bool
) -> None:
    """One stuck segment within its quota is no reason to hold writers; four take all that may wait for storage.

    In a small cache over slow storage four were stuck at a time, rightly, and seeds failed for it.
    """
    container = bench.store.containers[0]
    segments = [f"s/stuck/{number}.#epoch.0" for number in range(1, 1 + stuck_count)]
    for name in segments:
        await bench.store.create_segment(name)
    sent = 0
    while not container.back_pressure.must_wait() and sent < QUOTA:
        for name in segments:
            container.acceptor.append(container.segment(name), AppendRequest(bytes(1024)), lambda _: None)
        sent += 1024
        await container.pipeline.barrier()
    assert container.back_pressure.must_wait() == (stuck_count == 4)
    await until(lambda: all(container.segment(name).is_stuck for name in segments))
    container.throttle.hold(HeldForEver())
    monitor = InvariantMonitor()
    violations = [violation for _ in range(20) for violation in monitor.observe([container])]
    assert bool(violations) == is_violation
    assert all("callers are held although only stuck segments wait" in violation for violation in violations)


# The queue of one segment.


def queue() -> tuple[PendingQueue[Any], Backlog]:
    backlog = Backlog(Cache(SMALL_CACHE))
    return PendingQueue(backlog), backlog


def shape(pending: PendingQueue[Any]) -> list[tuple[int, int, int]]:
    """Return number, start and end of its appends."""
    return [(p.sequence_number, p.start, p.end) for p in pending if isinstance(p, PendingAppend)]


def test_a_queue_counts_what_is_in_it() -> None:
    pending, backlog = queue()
    pending.note_append(1, 0, 100, 0.0, 1000)
    pending.note_append(2, 100, 150, 0.0, 1000)
    pending.note_truncate(3, 10, 0.0)
    assert (pending.byte_count, backlog.byte_count, backlog.operation_count) == (150, 150, 3)
    pending.flushed(40)
    assert (pending.byte_count, backlog.byte_count, backlog.operation_count) == (110, 110, 3)
    pending.flushed(150)
    assert (pending.byte_count, backlog.byte_count, backlog.operation_count) == (0, 0, 1)
    pending.clear()
    assert (backlog.byte_count, backlog.operation_count) == (0, 0)


def test_bytes_that_are_stated_again_take_the_later_number() -> None:
    pending, backlog = queue()
    for number in range(4):
        pending.note_append(number + 1, number * 10, number * 10 + 10, 0.0, 10)
    pending.rewrite(9, 0, 10, 5.0, 100)
    assert shape(pending) == [(9, 0, 10), (2, 10, 20), (3, 20, 30), (4, 30, 40)]
    assert pending.first_number() == 2
    pending.rewrite(10, 10, 25, 5.0, 100)
    assert shape(pending) == [(9, 0, 25), (3, 25, 30), (4, 30, 40)]
    assert pending.first_number() == 3
    assert (backlog.byte_count, backlog.operation_count) == (40, 4)
    pending.flushed(40)
    assert (backlog.byte_count, backlog.operation_count, pending.is_carried) == (0, 0, False)


def test_bytes_that_were_cut_off_come_in_at_their_place() -> None:
    """Behind what comes before them, before a truncation that is about them, before what follows."""
    pending, backlog = queue()
    pending.note_append(5, 0, 10, 0.0, 10)
    pending.note_truncate(6, 25, 0.0)
    pending.note_append(7, 30, 40, 0.0, 10)
    pending.rewrite(9, 10, 30, 0.0, 100)
    assert [type(piece) for piece in pending] == [PendingAppend, PendingAppend, PendingTruncate, PendingAppend]
    assert shape(pending) == [(5, 0, 10), (9, 10, 30), (7, 30, 40)]
    assert backlog.byte_count == 40


def test_a_merge_that_is_stated_again_comes_in_once() -> None:
    pending, backlog = queue()
    source = object()
    pending.note_append(5, 0, 10, 0.0, 10)
    pending.note_append(7, 30, 40, 0.0, 10)
    assert not pending.restate_merge(9, source, 10, 30, 0.0)  # Only compared.
    assert [type(piece) for piece in pending] == [PendingAppend, PendingMerge, PendingAppend]
    assert pending.restate_merge(11, source, 10, 30, 0.0)
    assert [piece.sequence_number for piece in pending] == [5, 11, 7]
    assert backlog.operation_count == 3
