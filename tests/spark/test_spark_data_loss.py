"""Streams that are truncated before a query has read them: an error, or passed and said, as `failOnDataLoss` says."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.server.standalone_process import StandaloneProcess

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from penstock.model.errors import NoSuchSegmentError, SegmentTruncatedError
from penstock.spark import source
from penstock.spark.options import parse_source_options
from penstock.spark.planner import ByteRange, Losses
from penstock.spark.source import PenstockBatchReader
from support.spark_queries import events_of, follow, read, run_to_the_end, scale

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: What 20 bytes of an event take with their header.
EVENT_BYTES = 28


OPTIONS = {"uri": "tcp://unknown:1", "stream": "a/b"}


def plans(failure_count: int) -> Callable[[Losses | None], str]:
    """A plan under which more goes so many times while it is made."""
    left = iter([SegmentTruncatedError("a/b/0", start_offset=9, offset=0)] * failure_count)

    def plan(losses: Losses | None) -> str:
        if losses is not None:
            losses.ranges.append(ByteRange(0, 0, 9))
        if (error := next(left, None)) is not None:
            raise error
        return "planned"

    return plan


def test_a_plan_overtaken_by_truncation_is_repeated_a_bounded_number_of_times() -> None:
    passing = parse_source_options({**OPTIONS, "failOnDataLoss": "false"})
    plan, losses = source._planned(passing, plans(source.PLAN_ATTEMPTS_MAX - 1))
    # What an attempt found that came to nothing is not counted twice.
    assert (plan, losses.byte_count) == ("planned", 9)
    with pytest.raises(SegmentTruncatedError):
        source._planned(passing, plans(source.PLAN_ATTEMPTS_MAX))
    with pytest.raises(SegmentTruncatedError):
        source._planned(parse_source_options(OPTIONS), plans(1))


def test_a_segment_that_is_deleted_under_a_task_ends_its_range(
    store: StandaloneProcess, client: Client, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    stream = new_stream(1)
    write(stream, 10)
    options = {"uri": store.uri, "stream": stream}
    passing = PenstockBatchReader(parse_source_options({**options, "failOnDataLoss": "false"}))
    failing = PenstockBatchReader(parse_source_options(options))
    (partition,) = passing.partitions()
    scale(store, stream, [0], [(0.0, 1.0)])
    client.truncate_stream(client.tail(stream))
    assert list(passing.read(partition)) == []
    with pytest.raises(NoSuchSegmentError):
        list(failing.read(partition))


def test_a_batch_skips_truncated_events_only_with_the_option(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
) -> None:
    stream = new_stream(1)
    old = client.tail(stream).to_text()
    write(stream, 10)
    client.truncate_stream(client.tail(stream))
    kept = write(stream, 5, first=10)
    with pytest.raises(Exception, match="set failOnDataLoss to false"):
        read(spark, store, stream, startingStreamCut=old).count()
    assert events_of(read(spark, store, stream, startingStreamCut=old, failOnDataLoss="false")) == Counter(kept)


def test_a_query_continues_after_deleted_segments(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    tmp_path: Path,
) -> None:
    """While it was away its stream was split, merged and truncated, in the middle of a segment and over whole ones."""
    stream, out, checkpoint = new_stream(2), tmp_path / "out", tmp_path / "checkpoint"
    first = write(stream, 20)
    run_to_the_end(follow(spark, store, stream, start="earliest"), out, checkpoint)
    write(stream, 20, first=20)
    segments = sorted(client.tail(stream).positions)
    scale(store, stream, [segments[0]], [(0.0, 0.2), (0.2, 0.5)])
    write(stream, 20, first=40)
    scale(store, stream, [sorted(client.tail(stream).positions)[-1], segments[1]], [(0.2, 1.0)])
    write(stream, 20, first=60)
    cut = client.tail(stream)
    kept = write(stream, 40, first=80)
    client.truncate_stream(cut)
    assert sum(cut.positions.values()) > 0
    options = {"start": "earliest", "maxBytesPerTrigger": str(7 * EVENT_BYTES)}
    with pytest.raises(Exception, match="set failOnDataLoss to false"):
        run_to_the_end(follow(spark, store, stream, **options), out, checkpoint)
    query = run_to_the_end(follow(spark, store, stream, **options, failOnDataLoss="false"), out, checkpoint)
    assert events_of(spark.read.parquet(str(out))) == Counter(first + kept)
    # Lost bytes of segments that still exist are counted: in progress reports, and in the checkpoint.
    lost = [json.loads(report.sources[0].endOffset).get("lostBytes") for report in query.recentProgress]
    assert lost[-1] == sum(cut.positions.values())
    later = write(stream, 10, first=120)
    query = run_to_the_end(follow(spark, store, stream, **options), out, checkpoint)
    assert events_of(spark.read.parquet(str(out))) == Counter(first + kept + later)
    assert query.lastProgress is not None
    assert json.loads(query.lastProgress.sources[0].endOffset)["lostBytes"] == lost[-1]


def test_a_task_whose_range_is_truncated_reads_the_rest_once(
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Truncated between plan and read, and again in the middle of the read."""
    stream = new_stream(1)
    write(stream, 2)
    begin = client.tail(stream)
    write(stream, 300_000, first=2, size=100)
    scope, name = stream.split("/")
    (segment,) = begin.positions
    # A layout would keep the chunks that a task should find gone.
    options = {"uri": store.uri, "stream": stream, "failOnDataLoss": "false", "directReads": "never"}
    passing = PenstockBatchReader(parse_source_options(options))
    failing = PenstockBatchReader(parse_source_options({**options, "failOnDataLoss": "true"}))
    (partition,) = passing.partitions()

    client.truncate_stream(begin)
    with pytest.raises(SegmentTruncatedError):
        list(failing.read(partition))
    with caplog.at_level(logging.WARNING, logger="penstock.spark"):
        batches = passing.read(partition)
        offsets = next(batches).column("offset").to_pylist()
        middle = 2 * EVENT_BYTES + 108 * 250_000
        client.truncate_stream(type(begin)(scope, name, {segment: middle}))
        offsets += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == sorted(set(offsets))
    assert offsets[0] == begin.positions[segment]
    assert offsets[-50_000:] == list(range(middle, middle + 108 * 50_000, 108))
    lost = [record.getMessage() for record in caplog.records]
    assert lost[0] == (
        f"stream {stream}: data loss, ignored because failOnDataLoss is false: bytes [0, {2 * EVENT_BYTES}) of "
        "segment 0"
    )
    # What came before the second truncation was noticed is there without a gap; the rest is said.
    before = offsets[:-50_000]
    assert before == list(range(before[0], before[-1] + 1, 108))
    assert lost[1].endswith(f"bytes [{before[-1] + 108}, {middle}) of segment 0")
    assert len(lost) == 2
