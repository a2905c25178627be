"""How much a micro-batch takes, at most and at least: `maxEventsPerTrigger`, `minBytesPerTrigger` and its delay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.server.standalone_process import StandaloneProcess
from support.live_writer import LiveWriter

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from penstock.spark.options import parse_source_options
from penstock.spark.source import PenstockStreamReader
from support.clock import SetClock
from support.live_writer import SLOW_S
from support.spark_queries import events_of, follow, run_to_the_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: What 20 bytes of an event take with their header.
EVENT_BYTES = 28


@pytest.fixture
def clock() -> SetClock:
    """The source's clock."""
    return SetClock()


def reader_of(store: StandaloneProcess, stream: str, clock: SetClock, **options: str) -> PenstockStreamReader:
    return PenstockStreamReader(parse_source_options({"uri": store.uri, "stream": stream, **options}), clock)


def test_event_limited_batches_read_everything_once(
    spark: SparkSession,
    store: StandaloneProcess,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
    tmp_path: Path,
) -> None:
    stream = new_stream(2)
    events = write(stream, 45)
    writer = live(stream, SLOW_S)
    frame = follow(spark, store, stream, start="earliest", maxEventsPerTrigger=20)
    query = run_to_the_end(frame, tmp_path / "out", tmp_path / "cp")
    counts = [report.numInputRows for report in query.recentProgress if report.numInputRows]
    events += writer.stop()
    query = run_to_the_end(frame, tmp_path / "out", tmp_path / "cp")
    counts += [report.numInputRows for report in query.recentProgress if report.numInputRows]
    assert events_of(spark.read.parquet(str(tmp_path / "out"))) == Counter(events)
    assert max(counts) <= 20
    assert sum(counts) == len(events)


def test_both_limits_hold_and_none_where_spark_requests_all(
    store: StandaloneProcess,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
    clock: SetClock,
) -> None:
    stream = new_stream(1)
    write(stream, 100)
    live(stream)
    reader = reader_of(store, stream, clock, start="earliest", maxEventsPerTrigger="10", maxBytesPerTrigger="1000")
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(1000)
    assert reader.latestOffset(start, limit)["positions"] == {"0": 10 * EVENT_BYTES}
    assert reader.latestOffset(start, ReadMaxBytes(5 * EVENT_BYTES + 1))["positions"] == {"0": 5 * EVENT_BYTES}
    assert reader.latestOffset(start, ReadMaxRows(7))["positions"] == {"0": 7 * EVENT_BYTES}
    assert reader.latestOffset(start, ReadAllAvailable())["positions"]["0"] > 100 * EVENT_BYTES


def test_too_little_waits_for_more_or_until_it_has_waited_long_enough(
    store: StandaloneProcess,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    live: Callable[..., LiveWriter],
    clock: SetClock,
) -> None:
    """The first micro-batch takes what there is: the time of the previous one is unknown."""
    stream = new_stream(1)
    writer = live(stream)
    reader = reader_of(store, stream, clock, start="earliest", minBytesPerTrigger="1m", maxTriggerDelay="60s")
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert first["positions"]["0"] >= EVENT_BYTES
    writer.wait_for(5)
    clock.now_s += 59
    assert reader.latestOffset(first, limit) == first
    write(stream, 60, size=20_000)
    second = reader.latestOffset(first, limit)
    assert second["positions"]["0"] > 60 * 20_000
    writer.wait_for(5)
    clock.now_s += 59
    assert reader.latestOffset(second, limit) == second
    clock.now_s += 1
    third = reader.latestOffset(second, limit)
    assert third["positions"]["0"] >= second["positions"]["0"] + 5 * EVENT_BYTES
    writer.stop()
    clock.now_s += 60
    fourth = reader.latestOffset(third, limit)
    # Nothing new is no micro-batch: it does not put off the next one.
    clock.now_s += 60
    assert reader.latestOffset(fourth, limit) == fourth
    write(stream, 1)
    end = fourth["positions"]["0"] + EVENT_BYTES
    assert reader.latestOffset(fourth, limit)["positions"] == {"0": end}


def test_a_run_to_the_current_end_does_not_wait(
    store: StandaloneProcess, new_stream: Callable[..., str], live: Callable[..., LiveWriter], clock: SetClock
) -> None:
    stream = new_stream(1)
    writer = live(stream)
    writer.wait_for(4)
    reader = reader_of(
        store, stream, clock, start="earliest", minBytesPerTrigger="50", maxTriggerDelay="1h", maxEventsPerTrigger="3"
    )
    there = len(writer.events)
    reader.prepareForTriggerAvailableNow()
    limit, at, ends = reader.getDefaultReadLimit(), reader.initialOffset(), [0]
    while (following := reader.latestOffset(at, limit)) != at:
        at = following
        ends.append(at["positions"]["0"] // EVENT_BYTES)
    assert all(0 < end - start <= 3 for start, end in pairwise(ends))
    # The end of the run was where the stream ended once, and stays there.
    assert ends[-1] >= there
    writer.wait_for(5)
    assert reader.latestOffset(at, limit) == at
    assert len(writer.stop()) > ends[-1]
