"""Streams that change their segments, over segments in memory: what is seen when, and what transactions make of it.

Shows S-021, S-022, S-023, S-024, S-027, S-028, S-031, S-033, S-034, S-039 to S-041, S-043, S-047, S-050, S-052, S-057,
S-059, S-073, S-079 to S-081.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.controller.errors import ScalePreconditionError, ScaleUnderWayError
from penstock.controller.metadata.epoch_tables import EpochTables
from penstock.controller.metadata.pending_work import ScaleStream
from penstock.controller.metadata.records import (
    EpochRecord,
    EpochTransition,
    ScaleOrder,
    SegmentRecord,
    StreamState,
    TransactionStatus,
)
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.service import ControllerService
from penstock.controller.workflows.commit import merge_batch
from penstock.controller.workflows.scale_stream import ScaleStatus, begin_scale, resume_scale
from penstock.model.errors import InvalidArgumentError, NoSuchStreamError, StreamSealedError
from penstock.model.names import segment_id, segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.rpc import controller_pb2 as pb
from penstock_simulation.memory_segments import MemorySegments
from support.in_process_cluster import InProcessCluster
from support.mark_segments import without_marks

if TYPE_CHECKING:
    from controller.conftest import Wire

HALVES = [(0.0, 0.5), (0.5, 1.0)]


def ids(segments: Sequence[SegmentRecord]) -> list[int]:
    return [segment.id for segment in segments]


async def scale(
    service: ControllerService, to_seal: list[int], ranges: list[tuple[float, float]], stream: str = "stream"
) -> list[int]:
    """Scale, and wait until it is complete."""
    begun = await service.scale_stream("scope", stream, to_seal, ranges)
    await service.idle()
    assert await service.scale_status("scope", stream, begun.active_epoch) is ScaleStatus.SUCCESS
    return ids(begun.created)


async def tables_of(service: ControllerService, stream: str = "stream") -> StreamTables:
    return await service._catalog.on_stream("scope", stream, _itself)


async def _itself(tables: StreamTables) -> StreamTables:
    return tables


@pytest.fixture
async def stream(service: ControllerService) -> ControllerService:
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    return service


async def fill(store: MemorySegments, transaction: TransactionId, segment: int, data: bytes) -> None:
    name = transaction_segment_name(segment_name("scope", "stream", segment), transaction.high, transaction.low)
    await store.append(name, data)


async def test_a_split_and_a_merge(stream: ControllerService, cluster: InProcessCluster) -> None:
    """The segments of each epoch, who follows whom, lengths, and the policy that new segments report against."""
    await cluster.store.append("scope/stream/0.#epoch.0", b"twelve bytes")
    left, right = await scale(stream, [0], HALVES)
    assert (left, right) == (segment_id(1, 1), segment_id(2, 1))
    assert ids(await stream.current_segments("scope", "stream")) == [left, right]
    assert cluster.store.segments["scope/stream/0.#epoch.0"].is_sealed
    following = await stream.successors("scope", "stream", 0)
    assert [(one.segment.id, one.predecessors) for one in following] == [(left, (0,)), (right, (0,))]
    (whole,) = await scale(stream, [left, right], [(0.0, 1.0)])
    for before in (left, right):
        following = await stream.successors("scope", "stream", before)
        assert [(one.segment.id, one.predecessors) for one in following] == [(whole, (left, right))]
    assert await stream.successors("scope", "stream", whole) == []
    assert await stream.successors("scope", "stream", segment_id(9, 9)) == []
    tables = await tables_of(stream)
    assert await tables.sealed_sizes([0, left, right]) == {0: 12, left: 0, right: 0}
    assert [epoch.epoch for epoch in await tables.epochs(0, 2)] == [0, 1, 2]
    assert await tables.epochs(0, 2) == [await tables.epoch(number) for number in range(3)]
    assert (await tables.current_epoch()).splits == 1
    assert (await tables.current_epoch()).merges == 1
    assert [(at.segment, at.offset) for at in await stream.head("scope", "stream")] == [(0, 0)]


async def test_twelve_segments_over_five_scales(stream: ControllerService) -> None:
    """S-021: predecessors and successors of every segment of a lattice."""
    one, two, three = await scale(stream, [0], [(0.0, 0.25), (0.25, 0.5), (0.5, 1.0)])
    four, five = await scale(stream, [one, two], [(0.0, 0.125), (0.125, 0.5)])
    six, seven = await scale(stream, [three], [(0.5, 0.75), (0.75, 1.0)])
    (eight,) = await scale(stream, [five, six], [(0.125, 0.75)])
    nine, ten, eleven = await scale(stream, [four, eight, seven], [(0.0, 0.4), (0.4, 0.6), (0.6, 1.0)])
    expected = {
        0: {one: (0,), two: (0,), three: (0,)},
        one: {four: (one,), five: (one, two)},
        two: {five: (one, two)},
        three: {six: (three,), seven: (three,)},
        four: {nine: (four, eight)},
        five: {eight: (five, six)},
        six: {eight: (five, six)},
        seven: {eleven: (eight, seven)},
        eight: {nine: (four, eight), ten: (eight,), eleven: (eight, seven)},
        nine: {},
        ten: {},
        eleven: {},
    }
    for segment, following in expected.items():
        found = await stream.successors("scope", "stream", segment)
        assert {successor.segment.id: successor.predecessors for successor in found} == following
    between = await stream.segments_between("scope", "stream", {0: 0}, {nine: 0, ten: 0, eleven: 0})
    assert ids(between) == sorted(expected)
    # Ahead in some keys and behind in others: no range, whichever of them is the start.
    for start, end in (({four: 0, five: 0, three: 0}, {one: 0, eight: 0, eleven: 0}), ({five: 0}, {two: 9})):
        with pytest.raises(InvalidArgumentError, match=r"before its start|reach from epoch"):
            await stream.segments_between("scope", "stream", start, end)


async def test_states_visible_at_each_step_of_a_scale(cluster: InProcessCluster) -> None:
    """S-023: the active set changes at the last step alone, and a segment has successors before it is sealed."""
    service = await cluster.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    seen = []
    store = cluster.store
    seal, create = store.seal_segment, store.create_segment

    async def check(step: str) -> None:
        epoch = (await (await tables_of(service)).current_epoch()).epoch
        successors = len(await service.successors("scope", "stream", 0))
        status = await service.scale_status("scope", "stream", 0)
        seen.append((step, epoch, len(await service.current_segments("scope", "stream")), successors, status))

    async def seal_seen(segment: str) -> object:
        if "scope/stream" in segment:
            await check("seal")
        return await seal(segment)  # type: ignore[func-returns-value]

    async def create_seen(segment: str, **options: int) -> object:
        if segment == "scope/stream/1.#epoch.1":
            await check("create")
        return await create(segment, **options)  # type: ignore[func-returns-value]

    store.seal_segment, store.create_segment = seal_seen, create_seen  # type: ignore[assignment, method-assign]
    await scale(service, [0], HALVES)
    await check("end")
    assert seen == [
        ("create", 0, 1, 0, ScaleStatus.IN_PROGRESS),
        ("seal", 0, 1, 2, ScaleStatus.IN_PROGRESS),
        ("end", 1, 2, 2, ScaleStatus.SUCCESS),
    ]
    assert await service.scale_status("scope", "stream", 2) is ScaleStatus.UNKNOWN_EPOCH
    assert await service.scale_status("scope", "stream", 1) is ScaleStatus.IN_PROGRESS


async def test_replies_to_clients_during_a_scale(wire: Wire) -> None:
    """S-073: by the epoch of the request, the current one, and the records of a scale that is under way."""
    service, reply = wire.service, pb.ScaleStatusResponse
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    transaction = (await service.transactions.create("scope", "stream", 30_000)).id

    async def status(epoch: int, stream: str = "stream") -> Any:
        info = pb.StreamInfo(scope="scope", stream=stream)
        return (await wire.stub.checkScale(pb.ScaleStatusRequest(streamInfo=info, epoch=epoch))).status  # type: ignore[misc]

    assert await status(0, stream="none") == reply.INVALID_INPUT
    assert await status(1) == reply.INVALID_INPUT
    # Before the epoch is switched.
    assert await status(0) == reply.IN_PROGRESS
    planned = await service.scale_stream("scope", "stream", [0], HALVES)
    await service.idle()
    assert await status(0) == reply.SUCCESS
    # It is switched, the transition is there or is not, the state is not reset: as a store that writes them one after
    # the other has left it.
    tables = await tables_of(service)
    await tables.set_state(StreamState.SCALING)
    assert await status(0) == reply.IN_PROGRESS
    await tables.put_transition(planned, (await tables.transition()).version)
    assert await status(0) == reply.IN_PROGRESS
    # The next scale is not this one.
    following = replace(planned, active_epoch=1)
    await tables.put_transition(following, (await tables.transition()).version)
    assert await status(0) == reply.SUCCESS
    await tables.put_transition(EpochTransition(), (await tables.transition()).version)
    await tables.set_state(StreamState.ACTIVE)
    assert await status(0) == reply.SUCCESS
    # Two epochs later it is epoch 1 again: of that none but a duplicate was made.
    await service.transactions.commit("scope", "stream", transaction, writer_id="w", timestamp=1)
    await service.idle()
    current = await tables.current_epoch()
    assert (current.epoch, current.reference_epoch) == (3, 1)
    assert [await status(epoch) for epoch in range(5)] == [
        reply.SUCCESS, reply.IN_PROGRESS, reply.SUCCESS, reply.IN_PROGRESS, reply.INVALID_INPUT,
    ]  # fmt: skip


async def test_an_announced_scale_without_a_transition_on_record_is_planned_or_is_over(
    stream: ControllerService, cluster: InProcessCluster
) -> None:
    """S-043: by hand or by load. If nothing of it was done, it is done now; if all of it was, nothing is repeated."""
    tables = await tables_of(stream)
    order = ScaleStream(ScaleOrder(0, (0,), tuple(HALVES)))
    await stream._context.begin(tables.subject, order, tables.stream_id)
    assert (await tables.transition()).record.is_empty
    await stream._runner.settle(tables.subject)
    assert ids(await stream.current_segments("scope", "stream")) == [segment_id(1, 1), segment_id(2, 1)]
    before, rows = sorted(cluster.store.segments), cluster.store.tables[tables.metadata].length
    await stream._context.begin(tables.subject, order, tables.stream_id)
    await stream._runner.settle(tables.subject)
    assert sorted(cluster.store.segments) == before
    assert cluster.store.tables[tables.metadata].length == rows
    assert stream.statistics().given_up_count == 0
    assert (await tables.state()).record.state is StreamState.ACTIVE
    assert [subject async for subject in stream._context.claims.pending()] == []


async def test_the_same_request_again_gets_the_same_answer_and_another_one_waits_its_turn(
    cluster: InProcessCluster,
) -> None:
    """S-039, S-040: while a scale is under way."""
    service = await cluster.start()
    await service.create_scope("scope")
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    go_on = asyncio.Event()
    create = cluster.store.create_segment

    async def held(segment: str, **options: int) -> object:
        if segment.startswith("scope/stream/"):
            await go_on.wait()
        return await create(segment, **options)  # type: ignore[func-returns-value]

    cluster.store.create_segment = held  # type: ignore[assignment, method-assign]
    first = await service.scale_stream("scope", "stream", [0], HALVES)
    assert await service.scale_stream("scope", "stream", [0], list(reversed(HALVES))) == first
    with pytest.raises(ScaleUnderWayError):
        await service.scale_stream("scope", "stream", [0], [(0.0, 0.25), (0.25, 1.0)])
    go_on.set()
    await service.idle()
    assert ids(await service.current_segments("scope", "stream")) == ids(first.created)
    with pytest.raises(ScalePreconditionError):
        await service.scale_stream("scope", "stream", [0], HALVES)


async def test_invalid_scales_change_nothing(stream: ControllerService) -> None:
    """Bad ranges, unknown segments, too few segments, no such stream, a sealed stream."""
    with pytest.raises(InvalidArgumentError):
        await stream.scale_stream("scope", "stream", [0], [(0.0, 0.5)])
    with pytest.raises(ScalePreconditionError):
        await stream.scale_stream("scope", "stream", [5], HALVES)
    with pytest.raises(NoSuchStreamError):
        await stream.scale_stream("scope", "none", [0], HALVES)
    await stream.create_stream("scope", "wide", StreamConfig(Scaling.by_event_rate(1, min_segments=2)))
    with pytest.raises(ScalePreconditionError):
        await stream.scale_stream("scope", "wide", [0, 1], [(0.0, 1.0)])
    assert (await (await tables_of(stream)).transition()).record == EpochTransition()
    await stream.idle()
    assert ids(await stream.current_segments("scope", "stream")) == [0]
    await stream.seal_stream("scope", "stream")
    with pytest.raises(StreamSealedError):
        await stream.scale_stream("scope", "stream", [0], HALVES)


async def test_a_stream_that_has_scaled_is_truncated_sealed_and_deleted(
    stream: ControllerService, cluster: InProcessCluster
) -> None:
    """S-050 and the ends: no epoch leaves anything, and segment numbers continue in the next life of the name."""
    left, right = await scale(stream, [0], HALVES)
    await cluster.store.append(segment_name("scope", "stream", left), b"12345678")
    await stream.truncate_stream("scope", "stream", {left: 4, right: 0})
    assert "scope/stream/0.#epoch.0" not in cluster.store.segments
    with pytest.raises(ScalePreconditionError):
        await stream.scale_stream("scope", "stream", [0], HALVES)
    await scale(stream, [left], [(0.0, 0.125), (0.125, 0.25), (0.25, 0.5)])
    many = await scale(stream, [right], [(0.5 + n / 40, 0.5 + (n + 1) / 40) for n in range(20)])
    await stream.seal_stream("scope", "stream")
    await stream.delete_stream("scope", "stream")
    await stream.idle()
    assert not [name for name in cluster.store.segments if name.startswith("scope/")]
    await stream.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    (again,) = await stream.current_segments("scope", "stream")
    assert again.number == max(segment & 0xFFFFFFFF for segment in many) + 1


async def test_a_transaction_that_a_scale_overtook_is_rolled_over(
    stream: ControllerService, cluster: InProcessCluster
) -> None:
    """S-024, S-028, S-047, S-057: epochs 2 and 3 follow the scale, with references 0 and 1; each event is read once."""
    created = await stream.transactions.create("scope", "stream", 30_000)
    await fill(cluster.store, created.id, 0, b"of the transaction")
    await cluster.store.append("scope/stream/0.#epoch.0", b"before")
    left, right = await scale(stream, [0], HALVES)
    await cluster.store.append(segment_name("scope", "stream", left), b"after the scale")
    assert (await stream.transactions.status("scope", "stream", created.id)) is TransactionStatus.OPEN
    await stream.transactions.commit("scope", "stream", created.id, writer_id="w", timestamp=1)
    await stream.idle()
    assert (await stream.transactions.status("scope", "stream", created.id)) is TransactionStatus.COMMITTED
    middle, new_left, new_right = segment_id(0, 2), segment_id(1, 3), segment_id(2, 3)
    assert ids(await stream.current_segments("scope", "stream")) == [new_left, new_right]
    store = cluster.store.segments
    assert bytes(store[segment_name("scope", "stream", middle)].data) == b"of the transaction"
    assert all(store[segment_name("scope", "stream", old)].is_sealed for old in (0, left, right, middle))
    assert not [name for name in store if "#transaction" in name]
    for old in (left, right):
        following = await stream.successors("scope", "stream", old)
        assert [(one.segment.id, one.predecessors) for one in following] == [(middle, (left, right))]
    following = await stream.successors("scope", "stream", middle)
    assert [(one.segment.id, one.predecessors) for one in following] == [(new_left, (middle,)), (new_right, (middle,))]
    tables = await tables_of(stream)
    epochs = await tables.epochs(0, 3)
    assert [epoch.reference_epoch for epoch in epochs] == [0, 1, 0, 1]
    assert epochs[2:] == [await tables.epoch(2), await tables.epoch(3)]
    assert await stream.scale_status("scope", "stream", 0) is ScaleStatus.SUCCESS
    sizes = await tables.sealed_sizes([0, left, right, middle, new_left])
    assert sizes == {0: 6, left: 15, right: 0, middle: 18}
    # One that began after the scale goes straight into the copy of its epoch.
    later = await stream.transactions.create("scope", "stream", 30_000)
    await fill(cluster.store, later.id, left, b"straight")
    await stream.transactions.commit("scope", "stream", later.id, writer_id="w", timestamp=2)
    await stream.idle()
    assert (await tables.current_epoch()).epoch == 3
    assert bytes(store[segment_name("scope", "stream", new_left)].data) == b"straight"
    await stream.seal_stream("scope", "stream")
    await stream.delete_stream("scope", "stream")
    assert not [name for name in store if name.startswith("scope/")]


async def test_a_scale_requested_before_a_roll_is_done_after_it(
    stream: ControllerService, cluster: InProcessCluster
) -> None:
    """S-048, S-059: the segments of the same numbers are meant."""
    created = await stream.transactions.create("scope", "stream", 30_000)
    left, _right = await scale(stream, [0], HALVES)
    tables = await tables_of(stream)
    context = stream._context
    # Announced by a controller that stops there; transactions are rolled over by an earlier one that lives on.
    async with context.locks.hold("scope/stream"):
        planned = await begin_scale(context, tables, [left], [(0.0, 0.25), (0.25, 0.5)])
        await stream.transactions.commit("scope", "stream", created.id, writer_id="w", timestamp=1)
        assert await merge_batch(context, tables)
        announced = await context.claims.claim(tables.subject)
        await resume_scale(context, tables, announced, announced.work.order)  # type: ignore[arg-type, union-attr]
    await stream.idle()
    current = await stream.current_segments("scope", "stream")
    assert [(s.number, s.creation_epoch, s.key_start) for s in current] == [(3, 4, 0.0), (4, 4, 0.25), (2, 3, 0.5)]
    assert (await tables.state()).record.state is StreamState.ACTIVE
    assert (await tables.transition()).record == EpochTransition()
    assert planned.active_epoch == 1


async def test_a_stream_is_sealed_with_committed_transactions_of_an_earlier_epoch(
    stream: ControllerService, cluster: InProcessCluster
) -> None:
    """A seal ends what was decided, whatever epoch it is of."""
    created = await stream.transactions.create("scope", "stream", 30_000)
    await fill(cluster.store, created.id, 0, b"kept")
    await scale(stream, [0], HALVES)
    await stream.transactions.commit("scope", "stream", created.id, writer_id="w", timestamp=1)
    await stream.seal_stream("scope", "stream")
    await stream.idle()
    assert bytes(cluster.store.segments["scope/stream/0.#epoch.2"].data) == b"kept"
    assert all(found.is_sealed for name, found in without_marks(cluster.store).items() if name.startswith("scope/"))


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        (Scaling.fixed(2), Scaling.fixed(3), 3),
        (Scaling.fixed(3), Scaling.fixed(1), 1),
        (Scaling.by_event_rate(10, min_segments=2), Scaling.by_event_rate(10, min_segments=4), 4),
        (Scaling.by_event_rate(10, min_segments=4), Scaling.by_event_rate(10, min_segments=2), 4),
        (Scaling.fixed(2), Scaling.by_event_rate(10, min_segments=2), 2),
    ],
)
async def test_an_update_creates_the_number_of_segments_of_its_policy(
    service: ControllerService, cluster: InProcessCluster, before: Scaling, after: Scaling, count: int
) -> None:
    """S-079, S-080, S-081."""
    await service.create_stream("scope", "stream", StreamConfig(before))
    await service.update_stream("scope", "stream", StreamConfig(after))
    found = await service.current_segments("scope", "stream")
    assert len(found) == count
    assert {cluster.store.segments[segment_name("scope", "stream", one.id)].target_rate for one in found} == {
        after.target_rate
    }
    is_scaled = count != before.min_segments
    assert {one.creation_epoch for one in found} == {1 if is_scaled else 0}
    if is_scaled:
        assert [one.key_start for one in found] == [n / count for n in range(count)]


async def test_a_lost_segment_does_not_stop_a_scale(
    stream: ControllerService, cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported, and its successors take over its keys."""
    del cluster.store.segments["scope/stream/0.#epoch.0"]
    await scale(stream, [0], HALVES)
    assert "scope/stream/0.#epoch.0 is missing" in caplog.text
    assert len(await stream.current_segments("scope", "stream")) == 2


async def test_history_continues_in_the_next_chunk(stream: ControllerService, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-027, S-031: epochs over several chunks are read as they were written."""
    from penstock.controller.metadata import epoch_tables, layout

    monkeypatch.setattr(epoch_tables, "HISTORY_CHUNK_EPOCHS", 3)
    monkeypatch.setattr(layout, "HISTORY_CHUNK_EPOCHS", 3)
    current = [0]
    for _ in range(8):
        current = await scale(stream, current, HALVES if len(current) == 1 else [(0.0, 1.0)])
    tables = await tables_of(stream)
    every = [await tables.epoch(number) for number in range(9)]
    for first, last in ((0, 8), (2, 3), (3, 3), (5, 8), (8, 8)):
        found = await tables.epochs(first, last)
        assert (
            [(e.epoch, e.segments, e.created_ms) for e in found]
            == [
                (e.epoch, e.segments, e.created_ms)  # type: ignore[union-attr]
                for e in every[first : last + 1]
            ]
        )


async def test_an_epoch_written_between_two_reads_is_read_again(
    service: ControllerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record was not there yet, its entry in the history is: that is a conflict, and the scale continues."""
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(1)))
    add_epochs, epoch, given, written = EpochTables.add_epochs, EpochTables.epoch, [], []

    async def note(self: EpochTables, *arguments: Any) -> int:
        given[:] = arguments
        return await add_epochs(self, *arguments)

    async def write_behind(self: EpochTables, number: int) -> EpochRecord | None:
        found = await epoch(self, number)
        if given and not written:
            written.append(number)
            await add_epochs(self, *given)
        return found

    monkeypatch.setattr(EpochTables, "add_epochs", note)
    monkeypatch.setattr(EpochTables, "epoch", write_behind)
    await service.scale_stream("scope", "stream", [0], [(0.0, 0.5), (0.5, 1.0)])
    await service.idle()
    assert written == [1]
    assert len(await service.current_segments("scope", "stream")) == 2
