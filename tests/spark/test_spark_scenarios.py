"""Scenarios of Pravega's own connector that no other test shows; docs/spark-features.md has all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.server.standalone_process import StandaloneProcess

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.spark.options import parse_source_options
from penstock.spark.source import PenstockStreamReader
from support.spark_queries import events_of, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_a_frame_may_be_in_a_query_twice(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    stream = new_stream(2)
    events = write(stream, 30)
    frame = read(spark, store, stream)
    assert events_of(frame.union(frame)) == Counter(events * 2)
    assert frame.join(frame.select("segment_id", "offset"), ["segment_id", "offset"]).count() == 30


def test_a_query_that_stops_before_it_has_read_anything_starts_again(
    store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    """Before it has asked anything, and with its first offset on record: the next run reads from there."""
    stream = new_stream(1)
    events = write(stream, 3)
    options = parse_source_options({"uri": store.uri, "stream": stream, "start": "earliest"})
    PenstockStreamReader(options).stop()
    reader = PenstockStreamReader(options)
    start = reader.initialOffset()
    reader.stop()
    again = PenstockStreamReader(options)
    end = again.latestOffset(start, ReadAllAvailable())
    batches = [batch for partition in again.partitions(start, end) for batch in again.read(partition)]
    assert [event for batch in batches for event in batch.column("event").to_pylist()] == events
