"""Which partitions get a layout of chunks, what each says of its reads, and who gives leases back. Without Spark."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from penstock.client.reading.direct_reads import DirectReads
from penstock.client.transport.chunk_layouts import SegmentLayout
from penstock.model.errors import InvalidArgumentError, PenstockError, TooManyLeasesError
from penstock.spark import source, store
from penstock.spark.direct import AUTO_BYTES_MIN, DirectPart, DirectPlan, plan_direct, shared_layouts
from penstock.spark.offsets import to_offset
from penstock.spark.options import SourceOptions, StoreSettings, parse_source_options
from penstock.spark.planner import ByteRange
from penstock.spark.source import PenstockStreamReader, SegmentRangePartition
from penstock.wire.chunk_layouts import ChunkRow, LayoutLease, StorageTold

OPTIONS = SourceOptions(StoreSettings("tcp://nowhere:1"), ("s/t",), direct_reads="always")
BLOCK = 100


class StandInStream:
    """Has `stored` bytes of each segment in long-term storage, in one chunk; `errors` in place of a layout."""

    name = "s/t"

    def __init__(self, stored: int = 1000, errors: dict[int, PenstockError] | None = None) -> None:
        self.stored = stored
        self.errors = errors or {}
        self.asked: list[ByteRange] = []
        self.given_back: list[SegmentLayout] = []

    def segment_name(self, segment: int) -> str:
        return f"s/t/{segment}"

    def layouts(self, ranges: Sequence[ByteRange], lease_s: float) -> list[SegmentLayout | PenstockError]:
        self.asked += ranges
        return [self.errors.get(each.segment) or self.layout(each) for each in ranges]

    def layout(self, wanted: ByteRange) -> SegmentLayout:
        end = max(min(wanted.end, self.stored), wanted.start)
        storage = StorageTold("/storage", "name", b"identity")
        chunks = [ChunkRow("c", 0, self.stored, BLOCK, 0, bytes(4 * (-(-self.stored // BLOCK))))]
        lease = LayoutLease(1, wanted.segment, 900.0) if end > wanted.start else None
        whole = SegmentLayout(f"s/t/{wanted.segment}", 0, self.stored, storage, chunks, lease)
        return replace(whole.clipped(wanted.start, end), start=wanted.start, end=end)

    def give_back(self, layout: SegmentLayout) -> None:
        self.given_back.append(layout)


def test_each_segment_is_requested_once_and_each_piece_gets_its_part() -> None:
    stream = StandInStream()
    pieces = [ByteRange(1, 0, 250), ByteRange(1, 250, 900), ByteRange(2, 100, 300), ByteRange(3, 1000, 1500)]
    plans = plan_direct(stream, OPTIONS, pieces)
    assert stream.asked == [ByteRange(1, 0, 900), ByteRange(2, 100, 300), ByteRange(3, 1000, 1500)]
    assert [(plan.layout.start, plan.layout.end) for plan in plans if plan.layout] == [(0, 250), (250, 900), (100, 300)]
    assert [plan.is_sole for plan in plans] == [False, False, True, False]
    assert plans[3].layout is None
    assert "it was not in long-term storage" in plans[3].reason
    assert [layout.segment for layout in shared_layouts(plans)] == ["s/t/1"]
    assert pickle.loads(pickle.dumps(plans)) == plans


def test_a_refused_layout_has_a_reason_and_the_others_are_returned() -> None:
    stream = StandInStream(errors={1: TooManyLeasesError("256 are given")})
    refused, told = plan_direct(stream, OPTIONS, [ByteRange(1, 0, 10), ByteRange(2, 0, 10)])
    assert refused.layout is None
    assert "TooManyLeasesError: 256 are given" in refused.reason
    assert told.layout is not None


def test_short_ranges_are_not_requested_unless_all_are_read_directly() -> None:
    stream = StandInStream(stored=1 << 40)
    long = ByteRange(2, 0, AUTO_BYTES_MIN)
    pieces = [ByteRange(1, 0, AUTO_BYTES_MIN - 1), long]
    stream.stored = AUTO_BYTES_MIN
    short, direct = plan_direct(stream, replace(OPTIONS, direct_reads="auto"), pieces)
    assert stream.asked == [long]
    assert short.layout is None
    assert "fewer than" in short.reason
    assert direct.layout is not None
    nothing = plan_direct(stream, replace(OPTIONS, direct_reads="never"), pieces)
    assert stream.asked == [long]
    assert [(plan.layout, plan.reason) for plan in nothing] == [(None, "directReads is never")] * 2


class StandInReads(DirectReads):
    def __init__(self, direct_bytes: int, store_bytes: int, problem: PenstockError | None = None) -> None:
        self.direct_bytes, self.store_bytes, self.problem = direct_bytes, store_bytes, problem


@pytest.mark.parametrize("is_sole", [True, False])
def test_a_task_releases_its_lease_if_no_other_task_has_it(is_sole: bool, caplog: pytest.LogCaptureFixture) -> None:
    stream = StandInStream()
    wanted = ByteRange(1, 0, 1200)
    part = DirectPart(DirectPlan(stream.layout(wanted), is_sole=is_sole), OPTIONS)
    part.note(StandInReads(1000, 150))
    part.read_bytes = 1200
    with caplog.at_level(logging.INFO, "penstock.spark.reads"):
        part.finish(stream, wanted)
    assert len(stream.given_back) == is_sole
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage() == (
        "bytes [0, 1200) of segment s/t/1: 1000 read directly from /storage, 200 through the store "
        "(the rest was not in long-term storage when the query was planned)"
    )


def test_a_task_that_cannot_read_directly_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    stream = StandInStream()
    wanted = ByteRange(1, 0, 500)
    part = DirectPart(DirectPlan(stream.layout(wanted)), OPTIONS)
    part.note(StandInReads(100, 400, PenstockError("broken")))
    assert part.layout is None
    part.read_bytes = 500
    part.finish(stream, wanted)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    told = "100 read directly from /storage, 400 through the store (PenstockError: broken)"
    assert record.getMessage().endswith(told)


def test_a_query_gives_shared_leases_back_once_their_batch_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark says so late, and never of the last one, whose lease ends by itself."""
    stream = StandInStream()
    plans: list[DirectPlan] = []

    def partitions(*_: object, **__: object) -> list[SegmentRangePartition]:
        return [SegmentRangePartition("s/t", ByteRange(1, 0, 10), plan) for plan in plans]

    monkeypatch.setattr(store, "give_back", lambda settings, layout: stream.give_back(layout))
    monkeypatch.setattr(source, "_partitions", partitions)
    reader = PenstockStreamReader(OPTIONS)
    offsets = [to_offset("s", "t", {1: at}) for at in (0, 10, 20, 30, 40)]
    for number in range(3):
        lease = LayoutLease(1, number, 900.0)
        layout = replace(stream.layout(ByteRange(1, 0, 10)), lease=lease)
        plans[:] = [DirectPlan(layout), DirectPlan(layout)]
        reader.partitions(offsets[number], offsets[number + 1])
    reader.commit(offsets[4])
    assert stream.given_back == []
    reader.commit(offsets[2])
    reader.commit(offsets[2])
    assert [layout.lease.number for layout in stream.given_back if layout.lease] == [0, 1]


def test_options_of_direct_reads() -> None:
    usual = {"stream": "s/t", "uri": "tcp://h:1"}
    options = parse_source_options(usual)
    assert (options.direct_reads, options.storage_place, options.layout_lease_s) == ("auto", "", 900.0)
    options = parse_source_options(usual | {"directreads": "Never", "storageplace": " /mnt/x ", "layoutlease": "1h"})
    assert (options.direct_reads, options.storage_place, options.layout_lease_s) == ("never", "/mnt/x", 3600.0)
    for wrong in ({"directReads": "sometimes"}, {"layoutLease": "0s"}, {"layoutLease": "soon"}):
        with pytest.raises(InvalidArgumentError):
            parse_source_options(usual | wrong)
