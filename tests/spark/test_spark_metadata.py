"""Tables about streams as data frames: option `metadata`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.server.standalone_process import StandaloneProcess

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from penstock.model.errors import InvalidArgumentError
from penstock.spark.metadata_tables import MetadataReader, MetadataTable, metadata_table
from penstock.spark.options import Column, parse_metadata_options
from support.spark_queries import read, scale

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from penstock.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def table(spark: SparkSession, store: StandaloneProcess, name: str, **options: str) -> list[Row]:
    frame = spark.read.format("penstock").options(uri=store.uri, metadata=name, **options).load()
    return frame.orderBy(frame.columns[0]).collect()


def test_streams_of_a_scope(
    spark: SparkSession, store: StandaloneProcess, client: Client, new_stream: Callable[..., str]
) -> None:
    """As Pravega's own connector names them; it requires a stream as well, of which only the scope counts."""
    stream = new_stream(1)
    scope, _, name = stream.partition("/")
    rows = table(spark, store, "Streams", scope=scope)
    assert {tuple(row) for row in rows} == {(scope, each) for each in client.streams(scope)}
    assert len(rows) == len(set(rows))
    assert name in {row.stream_name for row in rows}
    assert set(table(spark, store, "streams", stream=stream)) == set(rows)


def test_a_schema_narrows_orders_and_renames_the_columns_of_a_table(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str]
) -> None:
    stream = new_stream(1)
    scope, _, name = stream.partition("/")
    source = spark.read.format("penstock").options(uri=store.uri, metadata="Streams", scope=scope)
    frame = source.schema("Stream_Name string not null, scope_name string").load()
    assert (name, scope) in {(row.Stream_Name, row.scope_name) for row in frame.collect()}
    assert {row.stream_name for row in source.schema("stream_name string").load().collect()} >= {name}
    with pytest.raises(Exception, match="the schema has column 'stream_name int'"):
        source.schema("stream_name int").load().collect()


def test_a_table_with_null_in_a_column_that_is_not_null_is_refused() -> None:
    table = MetadataTable("T", {"a": "int"}, lambda client, options: iter([(1,), (None,)]))
    options = parse_metadata_options({"stream": "a/b", "uri": "tcp://127.0.0.1:1"}, needs_stream=True)
    assert MetadataReader(table, options, [Column("a", "int")]).partitions()[0].rows == [(1,), (None,)]  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgumentError, match="'A' as not null, but table T has null there"):
        MetadataReader(table, options, [Column("A", "int", is_nullable=False)]).partitions()


def test_where_a_stream_begins_and_ends_in_texts_that_reads_take(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
) -> None:
    stream = new_stream(2)
    write(stream, 20)
    client.truncate_stream(client.tail(stream))
    write(stream, 10, first=20)
    (row,) = table(spark, store, "StreamInfo", stream=stream)
    assert row.head_stream_cut == client.head(stream).to_text()
    assert row.tail_stream_cut == client.tail(stream).to_text()
    frame = read(spark, store, stream, start=row.head_stream_cut, until=row.tail_stream_cut)
    assert frame.count() == 10


def test_the_segment_table_has_the_retained_segments(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
) -> None:
    stream = new_stream(2)
    write(stream, 20)
    scale(store, stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    write(stream, 20, first=20)
    rows = table(spark, store, "Segments", stream=stream)
    assert [(row.key_low, row.key_high, row.first_epoch, row.is_sealed) for row in rows] == [
        (0.0, 0.5, 0, True), (0.5, 1.0, 0, False), (0.0, 0.25, 1, False), (0.25, 0.5, 1, False),
    ]  # fmt: skip
    assert sum(row.length - row.start_offset for row in rows) == 40 * 28
    client.truncate_stream(client.tail(stream))
    rows = table(spark, store, "Segments", stream=stream)
    assert [row.is_sealed for row in rows] == [False, False, False]
    assert all(row.start_offset == row.length for row in rows)


def test_segments_of_more_epochs_than_are_requested_at_once_come_once_each(
    store: StandaloneProcess, client: Client, new_stream: Callable[..., str]
) -> None:
    """The oldest begins a page of epochs or two before the latest."""
    stream = new_stream(2)
    for _ in range(105):
        client.scale_stream(stream, seal=[max(client.tail(stream).positions)], key_ranges=[(0.5, 1.0)])
    options = parse_metadata_options({"uri": store.uri, "stream": stream}, needs_stream=True)
    rows = list(metadata_table("Segments").rows(client, options))
    assert sorted((row[0] & 0xFFFFFFFF, row[1]) for row in rows) == [  # type: ignore[operator]
        (0, 0), *((number, number - 1) for number in range(1, 107)),
    ]  # fmt: skip


def test_open_transactions_and_what_sinks_have_on_record(
    spark: SparkSession, store: StandaloneProcess, client: Client, new_stream: Callable[..., str]
) -> None:
    stream = new_stream(1)
    scope = stream.partition("/")[0]
    transaction = client.begin_transaction(stream)
    transaction.write(b"12345678")
    transaction.flush()
    (row,) = table(spark, store, "Transactions", stream=stream)
    assert (row.transaction_id, row.state, row.length_bytes) == (transaction.id, "OPEN", 16)
    assert row.age_s >= 0
    assert row.lease_left_s > 0
    transaction.abort()

    frame = spark.range(10).selectExpr("cast(id as string) as event")
    frame.write.format("penstock").options(uri=store.uri, jobId=f"job of {stream}").mode("append").save(stream)
    assert spark.read.format("penstock").option("uri", store.uri).load(stream).count() == 10
    mine = [row for row in table(spark, store, "Ledger", scope=scope) if row.target == stream]
    assert [(row.app_id, row.batch, row.state) for row in mine] == [(f"job of {stream}", 0, "done")]
    assert mine[0].transaction_count >= 1
    assert mine[0].changed is not None


def test_a_ledger_without_writes_is_empty(spark: SparkSession, store: StandaloneProcess, client: Client) -> None:
    client.create_scope("never-written")
    assert table(spark, store, "Ledger", scope="never-written") == []


def test_an_unknown_table_is_refused_with_the_nearest_name(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str]
) -> None:
    stream = new_stream(1)
    with pytest.raises(Exception, match="did you mean 'StreamInfo'"):
        table(spark, store, "StreamInfos", stream=stream)
    with pytest.raises(Exception, match=r"use spark\.read in place of spark\.readStream"):
        spark.readStream.format("penstock").options(
            uri=store.uri, stream=stream, metadata="Segments"
        ).load().writeStream.format("noop").start().awaitTermination()
    with pytest.raises(Exception, match="option 'stream' is required"):
        table(spark, store, "Segments", scope="spark-tests")
