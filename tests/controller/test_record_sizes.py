"""Stored forms of a stream's records: pinned bytes, those of earlier versions, and how large they can become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller.metadata import layout, records
from penstock.controller.metadata.codec import decode, encode
from penstock.controller.metadata.history_records import (
    HISTORY_SEGMENTS_MAX,
    HistoryChunk,
    HistoryEntry,
    SealedSizes,
)
from penstock.controller.metadata.packing import PackedRecord
from penstock.controller.metadata.pending_work import PendingWork, ScaleStream, Subject, SubjectKind, TruncateStream
from penstock.controller.metadata.record_store import RecordStore
from penstock.controller.metadata.records import (
    HISTORY_CHUNK_EPOCHS,
    SIZE_SHARD_EPOCHS,
    SIZE_SHARD_NUMBERS,
    EpochRecord,
    SegmentRecord,
)
from penstock.controller.metadata.retention_records import (
    StreamCutRecord,
)
from penstock.controller.metadata.scale_plan import even_order, first_entry, plan_scale
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import CorruptionError
from penstock.model.names import segment_id
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import TableUpdate
from penstock_simulation.memory_store import MemoryMetadataStore
from support.cut_model import tiling
from support.in_process_cluster import InProcessCluster

MIB = 1024 * 1024
SEGMENTS_MAX = ControllerSettings().segments_per_stream_max
SEGMENT = SegmentRecord(7, 2, 1000, 0.25, 0.5)
EARLIER = segment_id(3, 1)

#: Record, its stored form, and that of version 1.
GOLDEN = [
    (
        EpochRecord(2, 1, (SEGMENT,), 1000, 3, 4),
        "02 65f21c9a 01 00000002 00000001 00000000000003e8 0000000000000003 0000000000000004 00000001"
        "00000007 00000002 00000000000003e8 3fd0000000000000 3fe0000000000000",
        "014c92ea0286a565706f636802af7265666572656e63655f65706f636801a87365676d656e74739185a66e756d62657207ae637265617469"
        "6f6e5f65706f636802aa637265617465645f6d73cd03e8a96b65795f7374617274cb3fd0000000000000a76b65795f656e64cb3fe0000000"
        "000000aa637265617465645f6d73cd03e8a673706c69747303a66d657267657304",
    ),
    (
        HistoryChunk.of([HistoryEntry(2, 2, (EARLIER,), (SEGMENT,), 1000)]),
        "02 e66d9b16 03 00000002 00000001 00000001 00000001 00000002 00000000000003e8 01 01"
        "0000000100000003 00000007 3fd0000000000000 3fe0000000000000",
        "0185cd5bdd81a7656e74726965739185a565706f636802af7265666572656e63655f65706f636802a67365616c65649185a66e756d626572"
        "03ae6372656174696f6e5f65706f636801aa637265617465645f6d73cd01f4a96b65795f7374617274cb3fd0000000000000a76b65795f65"
        "6e64cb3fe0000000000000a7637265617465649185a66e756d62657207ae6372656174696f6e5f65706f636802aa637265617465645f6d73"
        "cd03e8a96b65795f7374617274cb3fd0000000000000a76b65795f656e64cb3fe0000000000000aa637265617465645f6d73cd03e8",
    ),
    (
        SealedSizes({EARLIER: 2**62}),
        "02 d2eb7fd8 04 00000001 0000000100000003 4000000000000000",
        "018fc6330d81a573697a657381cf0000000100000003cf4000000000000000",
    ),
    (
        records.EpochTransition(1, 1000, (EARLIER,), (SEGMENT,)),
        "02 79bac9a3 02 00000001 00000000000003e8 00000001 00000001 0000000100000003"
        "00000007 00000002 00000000000003e8 3fd0000000000000 3fe0000000000000",
        "01b1ebad8884ac6163746976655f65706f636801aa737461727465645f6d73cd03e8a7746f5f7365616c91cf0000000100000003a7637265"
        "617465649185a66e756d62657207ae6372656174696f6e5f65706f636802aa637265617465645f6d73cd03e8a96b65795f7374617274cb3f"
        "d0000000000000a76b65795f656e64cb3fe0000000000000",
    ),
    (
        records.TruncationRecord({1: -1}, {1: 0}, {}, 77, True),
        "02 d666692c 05 000000000000004d 01 00000001 00000000 0000000000000001 ffffffffffffffff 00000000",
        # It had lists of deleted segments, and of those to be deleted.
        "01bcbbfa4286aa73747265616d5f6375748101ffa47370616e810100b064656c657465645f7365676d656e74739105a9746f5f64656c6574"
        "659106af73697a655f74696c6c5f62797465734dab69735f7570646174696e67c3",
    ),
    (
        StreamCutRecord(1000, 77, {EARLIER: 5, 1: -1}),
        "02 70ef9a2d 09 00000000000003e8 000000000000004d 00000002 0000000100000003 0000000000000001"
        "0000000000000005 ffffffffffffffff",
        "01f9011fa783ab7265636f726465645f6d73cd03e8aa73697a655f62797465734daa73747265616d5f63757482cf00000001000000030501"
        "ff",
    ),
]


@pytest.mark.parametrize(("record", "packed", "fields"), GOLDEN, ids=lambda value: type(value).__name__)
def test_packed_records_are_pinned_and_those_of_version_1_are_read(
    record: PackedRecord, packed: str, fields: str
) -> None:
    """Golden bytes of both versions: a change here breaks stored data."""
    assert encode(record) == bytes.fromhex(packed)
    for stored in (packed, fields):
        assert decode(type(record), bytes.fromhex(stored), table="t", key="k") == record
    for other in [another for another, _, _ in GOLDEN if another is not record]:
        with pytest.raises(CorruptionError, match=f"not a {type(other).__name__}: it is of kind"):
            decode(type(other), bytes.fromhex(packed), table="t", key="k")


def largest_records(count: int, epoch: int, number: int) -> Iterator[Any]:
    """Yield what can be on record of `count` segments in an epoch, with the largest numbers there can be."""
    current = EpochRecord(epoch, epoch, tiling(count, epoch, number), 2**41, 2**40, 2**40)
    ids = [segment.id for segment in current.segments]
    cut = dict.fromkeys(ids, 2**62)
    order = even_order(current, count)
    yield current
    yield plan_scale(current, order, segment_count_min=1, segment_count_max=count, now_ms=2**41)
    yield records.TruncationRecord(cut, dict.fromkeys(cut, 2**31 - 1), dict.fromkeys(cut, 2**31 - 1), 2**62, True)
    yield HistoryChunk.of([first_entry(EpochRecord(0, 0, tiling(count, 0, number), 0))])
    subject = Subject(SubjectKind.STREAM, "s" * 255, "t" * 255)
    for work in (TruncateStream(cut), ScaleStream(order)):
        yield PendingWork(subject, work, "0" * 36, "controller-0123456789", 2**41, "0" * 36, 2**31)
    yield records.Subscriber(2**31, cut, 2**41)
    yield records.WriterMark(2**62, cut)
    yield records.ActiveTransaction(2**41, 2**31, 2**41, 2**41, commit_offsets=cut)
    yield StreamCutRecord(2**41, 2**62, cut)


@settings(deadline=None, max_examples=8)
@given(st.integers(SEGMENTS_MAX - 20, SEGMENTS_MAX), st.integers(0, 2**31 - 3), st.integers(0, 2**31 - 30_000))
def test_every_record_of_ten_thousand_segments_stays_below_a_mebibyte(count: int, epoch: int, number: int) -> None:
    """Whatever the epoch and the numbers are; and each is read again as it was."""
    for record in largest_records(count, epoch, number):
        stored = encode(record)
        assert len(stored) < MIB, type(record)
        assert decode(type(record), stored, table="t", key="k") == record


def test_chunks_and_shards_are_full_below_a_mebibyte() -> None:
    """A chunk of epochs that each change as much as it notes; a shard whose numbers all come again in each epoch."""
    count = HISTORY_SEGMENTS_MAX // 2
    entries = [
        HistoryEntry(epoch, epoch, tuple(range(count)), tiling(count, epoch, 0), 2**41)
        for epoch in range(HISTORY_CHUNK_EPOCHS)
    ]
    chunk = HistoryChunk.of(entries[:400]).followed_by(entries[400:])
    assert list(chunk.entries()) == entries
    assert len(encode(chunk)) < 180 * 1024
    keys = {}
    for epoch in range(2 * SIZE_SHARD_EPOCHS):
        for number in range(2 * SIZE_SHARD_NUMBERS):
            segment = segment_id(number, epoch)
            keys.setdefault(layout.sealed_sizes_key(segment), {})[segment] = 2**62
    assert len(keys) == 4
    assert all(len(encode(SealedSizes(sizes))) < 256 * 1024 for sizes in keys.values())


def test_a_history_chunk_has_no_gaps() -> None:
    """S-031: an epoch that is not the next one is refused."""
    chunk = HistoryChunk.of([HistoryEntry(5, 5, (), (), 1)])
    assert chunk.next_epoch == 6
    for epoch in (5, 7):
        with pytest.raises(ValueError, match="epoch 6 comes next"):
            chunk.followed_by([HistoryEntry(epoch, epoch, (), (), 1)])


async def test_sizes_that_an_early_release_put_elsewhere_are_found() -> None:
    """S-032: shards were by creation epoch alone once. What is in neither is unknown."""
    tables = RecordStore(MemoryMetadataStore())
    stream = StreamTables(tables, "s", "t", "id")
    await stream.create_tables()
    early, now, unknown = segment_id(1, 5), segment_id(2, 5), segment_id(3, 5)
    await tables.put(stream.metadata, "segmentsSealedSizeMapShard-0", SealedSizes({early: 17}))
    await tables.put(stream.metadata, layout.sealed_sizes_key(now), SealedSizes({now: 18}))
    assert await stream.sealed_sizes([early, now, unknown]) == {early: 17, now: 18}


async def test_a_stream_of_ten_thousand_segments_has_no_record_of_a_mebibyte(
    cluster: InProcessCluster, service: ControllerService
) -> None:
    """Made, scaled as a whole, recorded, truncated over both epochs: whatever the controller writes meanwhile."""
    largest: dict[str, int] = {}
    put = cluster.store.table_put

    async def measured(segment: str, updates: list[TableUpdate], **options: object) -> Sequence[int]:
        for update in updates:
            key = update.key.decode().partition("-")[0]
            largest[key] = max(largest.get(key, 0), len(update.value))
        return await put(segment, updates, **options)

    cluster.store.table_put = measured
    await service.create_stream("scope", "stream", StreamConfig(Scaling.fixed(SEGMENTS_MAX)))
    segments = await service.current_segments("scope", "stream")
    ranges = [(segment.key_start, segment.key_end) for segment in segments]
    await service.scale_stream("scope", "stream", [segment.id for segment in segments], ranges)
    await service.idle()
    half = SEGMENTS_MAX // 2
    current = await service.current_segments("scope", "stream")
    cut = {segment.id: 0 for segment in [*segments[:half], *current[half:]]}
    await service.truncate_stream("scope", "stream", cut)
    tables = service._catalog.tables_of("scope", "stream", await service._catalog.stream_id("scope", "stream"))
    assert await tables.retention.add(StreamCutRecord(1, 0, cut))
    await service.truncate_stream("scope", "stream", {segment.id: 0 for segment in current})
    assert {key: size for key, size in largest.items() if size >= MIB} == {}
    for key in ("epochRecord", "currentEpochRecord", "truncation", "epochTransition", "retentionCuts"):
        assert largest[key] > 16 * SEGMENTS_MAX  # They are of all segments.
    # The rest of what is on record of a stream does not know how many segments it has.
    assert largest["historyTimeSeriesChunk"] < 1024
