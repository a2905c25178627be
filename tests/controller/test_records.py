"""Records, their stored form, stream cuts against history, and what queries cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, get_args

import pytest

from penstock.controller.epochs import successors
from penstock.controller.metadata import (
    given_up,
    history_records,
    layout,
    pending_work,
    records,
    retention_records,
    scope_records,
)
from penstock.controller.metadata.codec import decode, encode
from penstock.controller.metadata.history_records import HistoryChunk, HistoryEntry, SealedSizes, TimeIndexNode
from penstock.controller.metadata.pending_work import Lane, PendingWork, Subject, SubjectKind, WaitingRequest
from penstock.controller.metadata.records import EpochRecord, SegmentRecord
from penstock.controller.metadata.retention_records import (
    RetentionChunk,
    RetentionEntry,
    RetentionSet,
    StreamCutRecord,
)
from penstock.controller.metadata.scope_records import ChildState, GroupCut, ReaderGroupConfig
from penstock.controller.metadata.segments_store import SegmentsMetadataStore
from penstock.controller.metadata.store import Row
from penstock.controller.service import ControllerService
from penstock.controller.steps import at_once
from penstock.controller.stream_cuts import epoch_bounds, is_equal_or_after, size_between
from penstock.model.errors import CorruptionError, InvalidArgumentError
from penstock.model.names import segment_id
from penstock.model.policies import Retention, Scaling, StreamConfig
from support.cut_model import is_valid_cut, position_of, segments_between
from support.in_process_cluster import InProcessCluster

SEGMENT = SegmentRecord(7, 2, 1000, 0.25, 0.5)
GROUP = ReaderGroupConfig((GroupCut("s", "t", {0: 5}),), (GroupCut("s", "t"),), scope_records.GroupRetention.MANUAL, 7)
SAMPLES = [
    records.ScopeRecord("id", True),
    records.StreamEntry("id"),
    records.LastSegment(7),
    records.CreationTime(1000),
    records.SealedEpoch(3),
    TimeIndexNode.of([1000, 2000]),
    records.SubscriberSet(("s/g",)),
    records.WriterMark(-5, {0: 3}, False),
    records.ListedLife("id"),
    records.EpochWithTransactions(3),
    records.CompletedTransaction(1000, records.TransactionStatus.ABORTED, records.AbortReason.LEASE_ENDED),
    records.CompletedBatch(3),
    records.CommitCounter(3),
    records.CommitPosition("a"),
    records.TransactionCounter(3),
    records.TransactionIndexEntry("host", 1000),
    scope_records.ReaderGroupRecord("id", ChildState.DELETING, 1000, GROUP, 3, GROUP, ("s/u",)),
    scope_records.KeyValueTableRecord(
        "id", ChildState.CREATING, 1000, scope_records.KeyValueTableConfig(3, 8, 4, 1 << 20)
    ),
    pending_work.AnnouncementFence(3, (WaitingRequest("stream/s/t", Lane.COMMIT, "owner", "ticket"),)),
    given_up.GivenUpRecord(3, "work", "owner", 1000, "why"),
    given_up.GivenUpCounter(3),
    records.TagChunk(("a", "b")),
    records.ConfigurationRecord(
        "s", "t", StreamConfig(Scaling.by_event_rate(5), Retention.by_size(9), ("x",)), True, ("y",)
    ),
    records.StateRecord(records.StreamState.COMMITTING_TXN),
    EpochRecord(2, 1, (SEGMENT,), 5, 3, 4),
    HistoryChunk.of([HistoryEntry(2, 2, (1, 2), (SegmentRecord(7, 2, 9, 0.25, 0.5),), 9)]),
    SealedSizes({4294967296: 2**62}),
    records.TruncationRecord({1: -1}, {1: 0}, {0: 0}, 77, True),
    records.CommittingTransactions(3, ("a",), 9),
    records.EpochTransition(1, 2, (3,), (SEGMENT,)),
    RetentionSet(3, 9, 2, RetentionEntry(1000, 2**62)),
    RetentionChunk.of(1000, [RetentionEntry(1000, 7), RetentionEntry(2000, 7)]),
    StreamCutRecord(1000, 7, {0: 5, 4294967297: -1}),
    records.Subscriber(1, {0: 3}, 9),
    records.ActiveTransaction(1, 2, 3, 4, records.TransactionStatus.COMMITTING, "w", -(2**63), 7, {0: 1}, 5),
    records.ActiveTransaction(
        1, 2, 3, 4, records.TransactionStatus.ABORTING, abort_reason=records.AbortReason.STREAM_SEALED
    ),
    *(
        PendingWork(Subject(SubjectKind.STREAM, "s", "t"), order, "life", "owner", 1, "work", 2)
        for order in (
            pending_work.CreateStream(StreamConfig()),
            pending_work.UpdateStream(StreamConfig(Scaling.fixed(2))),
            pending_work.TruncateStream({4294967296: 7}),
            pending_work.SealStream(),
            pending_work.CommitTransactions(),
            pending_work.DeleteStream(),
            pending_work.ScaleStream(records.ScaleOrder(3, (1,), ((0.0, 1.0),))),
            pending_work.CreateGroup(),
            pending_work.UpdateGroup(),
            pending_work.DeleteGroup(),
            pending_work.CreateTable(),
            pending_work.DeleteTable(),
            pending_work.DeleteScope(),
        )
    ),
]


@pytest.mark.parametrize("record", SAMPLES, ids=lambda record: getattr(record, "kind", type(record).__name__))
def test_records_survive_storage_and_damage_is_noticed(record: object) -> None:
    """S-255: each decodes to itself; every single changed byte, and every truncation, is reported as corruption."""
    stored = encode(record)
    assert decode(type(record), stored, table="t", key="k") == record
    for at in range(len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 0x41
        with pytest.raises(CorruptionError, match="table t, key 'k'"):
            decode(type(record), bytes(damaged), table="t", key="k")
        with pytest.raises(CorruptionError):
            decode(type(record), stored[:at], table="t", key="k")


#: What is never stored but as a part of something else.
PARTS = {
    records.ScaleOrder, HistoryEntry, RetentionEntry, GroupCut, ReaderGroupConfig, scope_records.KeyValueTableConfig,
    Subject, WaitingRequest,
}  # fmt: skip
#: Packed records that were no maps of fields once, or whose maps are pinned beside their packed form.
WITHOUT_DEFAULTS = {HistoryChunk, SealedSizes, TimeIndexNode, RetentionSet}
#: Fields without which no record was ever written, and the record that they make.
EARLIER = [
    ({"id": "a"}, records.ScopeRecord("a")),
    (
        {"scope": "s", "stream": "t", "configuration": {}},
        records.ConfigurationRecord("s", "t", StreamConfig(), False, ()),
    ),
    (
        {"epoch": 2, "reference_epoch": 1, "segments": [], "created_ms": 5},
        EpochRecord(2, 1, (), 5, 0, 0),
    ),
    ({}, records.TruncationRecord({}, {}, {}, 0, False)),
    ({}, records.EpochTransition(records.EPOCH_NONE, 0, (), ())),
    ({}, records.CommittingTransactions(records.EPOCH_NONE, (), None)),
    ({}, records.SubscriberSet(())),
    ({"timestamp": 1, "position": {0: 2}}, records.WriterMark(1, {0: 2}, True)),
    (
        {"completed_ms": 1, "status": 5},
        records.CompletedTransaction(1, records.TransactionStatus.ABORTED, records.AbortReason.NONE),
    ),
    ({"number": 3}, records.CompletedBatch(3, -1)),
    (
        {"created_ms": 1, "lease_ms": 2, "lease_expiry_ms": 3, "execution_expiry_ms": 4},
        records.ActiveTransaction(
            1, 2, 3, 4, records.TransactionStatus.OPEN, "", -(2**63), -1, {}, -1, records.AbortReason.NONE
        ),
    ),
    (
        {"id": "a", "state": "active", "created_ms": 1, "config": {"starts": [{"scope": "s", "stream": "t"}]}},
        scope_records.ReaderGroupRecord(
            "a",
            ChildState.ACTIVE,
            1,
            ReaderGroupConfig((GroupCut("s", "t", {}),), (), scope_records.GroupRetention.NONE, 3000, 30_000, 3, 0),
            0,
            None,
            (),
        ),
    ),
    (
        {
            "subject": {"kind": "scope", "scope": "s"}, "order": {"kind": "seal_stream"}, "life": "l", "owner": "o",
            "created_ms": 1, "work_id": "w",
        },
        PendingWork(Subject(SubjectKind.SCOPE, "s", ""), pending_work.SealStream(), "l", "o", 1, "w", 1),
    ),
    ({"count": 3}, pending_work.AnnouncementFence(3, ())),
]  # fmt: skip


def has_defaults(kind: type[object]) -> bool:
    return any(
        each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
        for each in dataclasses.fields(kind)
    )


def test_every_kind_of_record_is_tried() -> None:
    """S-255: none of the kinds that may be stored is missing among the samples, nor among those of earlier releases."""
    modules = (records, history_records, retention_records, scope_records, pending_work, given_up)
    kinds = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
    }
    assert {type(record) for record in SAMPLES} == kinds - PARTS
    assert {type(record) for _, record in EARLIER} == {
        kind for kind in kinds - PARTS if has_defaults(kind)
    } - WITHOUT_DEFAULTS


@pytest.mark.parametrize(("fields", "record"), EARLIER, ids=lambda value: type(value).__name__)
def test_a_record_of_an_earlier_release_has_the_defaults_of_newer_fields(
    fields: dict[str, Any], record: object
) -> None:
    """S-255: what an earlier release has stored; of a group also in what its record consists of."""
    assert decode(type(record), encode(fields), table="t", key="k") == record


def test_stored_bytes_are_pinned() -> None:
    """Golden bytes: version 1, CRC32C of version and payload, MessagePack map. A change here breaks stored data."""
    assert encode(records.StateRecord(records.StreamState.ACTIVE)).hex() == (
        "01" "a5391cf6" "81a57374617465a6616374697665"
    )  # fmt: skip


def test_stored_bytes_of_announcements_are_pinned() -> None:
    """Golden bytes: the kind of an order is part of the order, beside its arguments."""
    work = PendingWork(
        Subject(SubjectKind.STREAM, "s", "t"), pending_work.TruncateStream({1: 7}), "life", "owner", 5, "work"
    )
    assert encode(work).hex() == (
        "01" "e1a02e45"
        "87a77375626a65637483a46b696e64a673747265616da573636f7065a173a46e616d65a174a56f72"
        "64657282a46b696e64af7472756e636174655f73747265616daa73747265616d5f637574810107a4"
        "6c696665a46c696665a56f776e6572a56f776e6572aa637265617465645f6d7305a7776f726b5f69"
        "64a4776f726ba7617474656d707401"
    )  # fmt: skip


def test_every_kind_of_announcement_is_stored_and_can_be_finished(service: ControllerService) -> None:
    """An announcement of an unregistered kind would never be finished; one without a sample would never be tested."""
    kinds = set(get_args(pending_work.Order))
    assert service._registry.kinds == kinds
    assert {type(record.order) for record in SAMPLES if isinstance(record, PendingWork)} == kinds


def test_announcement_of_an_unknown_kind_is_corruption() -> None:
    """Work of a later release is reported, with table and key, and neither skipped nor taken for another kind."""
    stored = encode({"subject": Subject(SubjectKind.SCOPE, "s"), "order": {"kind": "paint_stream"}})
    with pytest.raises(CorruptionError, match=r"table t, key 'k'.*paint_stream"):
        decode(PendingWork, stored, table="t", key="k")


def test_record_of_another_kind_is_corruption() -> None:
    """A checksum alone does not make a record: its fields must fit."""
    with pytest.raises(CorruptionError, match="not a EpochRecord"):
        decode(EpochRecord, encode(records.ScopeRecord("x")), table="t", key="k")


def epoch(number: int, *segments: tuple[int, int, float, float], reference: object = None) -> EpochRecord:
    made = tuple(SegmentRecord(n, e, 0, start, end) for n, e, start, end in segments)
    return EpochRecord(number, number if reference is None else reference, made, number)


#: 0, 1 -> 1 stays and 0 is split into 2, 3 -> 3 and 1 become 4.
EPOCHS = [
    epoch(0, (0, 0, 0.0, 0.5), (1, 0, 0.5, 1.0)),
    epoch(1, (2, 1, 0.0, 0.25), (3, 1, 0.25, 0.5), (1, 0, 0.5, 1.0)),
    epoch(2, (2, 1, 0.0, 0.25), (4, 2, 0.25, 1.0)),
]
S2, S3, S4 = segment_id(2, 1), segment_id(3, 1), segment_id(4, 2)


def test_successors_come_with_their_predecessors() -> None:
    """Three epochs: two for a split segment, one with two predecessors for a merged one."""
    split = at_once(successors(EPOCHS[0].segments[0], EPOCHS[1], EPOCHS[0]))
    assert [(found.segment.id, found.predecessors) for found in split] == [(S2, (0,)), (S3, (0,))]
    merged = at_once(successors(EPOCHS[0].segments[1], EPOCHS[2], EPOCHS[1]))
    assert [(found.segment.id, found.predecessors) for found in merged] == [(S4, (S3, 1))]


@pytest.mark.parametrize(
    ("cut", "is_valid"),
    [
        ({0: 1, 1: 1}, True),
        ({S2: 0, S3: 0, 1: 5}, True),
        ({S2: 0, S4: 0}, True),
        ({0: 1}, False),
        ({0: 1, S2: 0, 1: 0}, False),
        ({S2: 0, 1: 0}, False),
        ({S2: 0, S3: -1, 1: 0}, True),
        ({0: 5, 1: 5, S2: -1}, True),
        ({S2: 0, 1: 5, S4: -1}, True),
        # The future one leaves a part of the gap open.
        ({1: 5, S4: -1}, False),
        ({0: -1, S2: 3, 1: 0}, False),
        ({0: 5, 1: -2}, False),
    ],
)
def test_cut_must_cover_the_keys_once(cut: dict[int, int], is_valid: bool) -> None:
    """S-098: full, mixed epochs, a missing range, overlaps, future segments that fill a gap or do not.

    The cuts that are errors are in `test_senseless_cuts_are_errors`.
    """
    assert is_valid_cut(cut, EPOCHS) is is_valid


def test_senseless_cuts_are_errors() -> None:
    """S-098: unknown segments, only future segments, none at all, negative ids."""
    for cut in ({9: 0}, {0: -1, 1: -1}, {}):
        with pytest.raises(InvalidArgumentError):
            is_valid_cut(cut, EPOCHS)
    for cut in ({}, {-1: 0}):
        with pytest.raises(InvalidArgumentError):
            epoch_bounds(cut)


def test_segments_between_cuts_and_their_size() -> None:
    """Three epochs: the segments that were read between two cuts, and their bytes with sealed sizes."""
    start, end = {0: 10, 1: 10}, {S2: 10, S4: 5}
    first, last = position_of(start, EPOCHS), position_of(end, EPOCHS)
    assert (first.span, last.span) == ({0: 0, 1: 0}, {S2: 2, S4: 2})
    between = segments_between(first, last, EPOCHS)
    assert [found.id for found in between] == [0, 1, S2, S3, S4]
    assert size_between(start, end, between, {0: 40, 1: 30, S3: 7}) == 30 + 20 + 10 + 7 + 5
    assert at_once(is_equal_or_after(last, first))
    assert not at_once(is_equal_or_after(first, last))
    assert at_once(is_equal_or_after(first, first))


async def test_queries_cost_the_specified_number_of_requests(cluster: InProcessCluster) -> None:
    """controller-internals 2, cost of operations: rows read by each query once the stream's id is known.

    The head is ours: its state is read along with truncation and first epoch, all in one request.
    """
    service = await cluster.start()
    await service.create_scope("s")
    await service.create_stream("s", "t", StreamConfig(Scaling.fixed(4)))
    reads = []
    get = SegmentsMetadataStore.get

    async def counted(self: object, table: str, keys: list[str]) -> Sequence[Row | None]:
        reads.append(len(keys))
        return await get(self, table, keys)

    SegmentsMetadataStore.get = counted
    try:
        for call, cost in (
            (service.current_segments("s", "t"), [2]),
            (service.head("s", "t"), [3]),
            (service.successors("s", "t", 0), [1]),
            (service.epoch_segments("s", "t", 0), [1]),
            (service.stream_configuration("s", "t"), [1]),
            # The epoch of the cut is the current one, which is read anyway.
            (service.is_stream_cut_valid("s", "t", {0: 0, 1: 0, 2: 0, 3: 0}), [1]),
        ):
            reads.clear()
            await call
            assert reads == cost, call
    finally:
        SegmentsMetadataStore.get = get


async def test_tables_carry_the_id_of_their_stream(cluster: InProcessCluster) -> None:
    """S-012: names as Pravega's, with the stream's UUID; a stream created again has others."""
    service = await cluster.start()
    await service.create_scope("s")
    lives = []
    for _ in range(2):
        await service.create_stream("s", "t", StreamConfig())
        lives.append(sorted(name for name in cluster.store.tables if name.startswith("_system/_tables/s/t/")))
        await service.seal_stream("s", "t")
        await service.delete_stream("s", "t")
    kinds = [name.split("/")[-1].split(".#.")[0] for name in lives[0]]
    assert kinds == ["commitOrder", "epochsWithTransactions", "metadata"]
    assert not set(lives[0]) & set(lives[1])
    assert {layout.SCOPES, layout.PENDING_WORK} <= set(cluster.store.tables)
