"""Reading a stream with Spark, in a batch and as a query that runs to the end; and scaling one meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.client import client as aio
from penstock.server.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def read(spark: SparkSession, store: StandaloneProcess, stream: str, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(uri=store.uri, stream=stream, **options).load()


def events_of(frame: DataFrame) -> Counter[bytes]:
    return Counter(bytes(row.event) for row in frame.select("event").collect())


def follow(spark: SparkSession, store: StandaloneProcess, stream: str, **options: str) -> DataFrame:
    return spark.readStream.format("penstock").options(uri=store.uri, stream=stream, **options).load()


def run_to_the_end(frame: DataFrame, sink: Path, checkpoint: Path) -> StreamingQuery:
    """Run a stream to its current end into a Parquet directory, which records each batch once; return the query."""
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(sink))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    return query


def scale(store: StandaloneProcess, stream: str, seal: list[int], key_ranges: list[tuple[float, float]]) -> None:
    """Replace segments by new ones, as an administrator would."""

    async def run() -> None:
        async with aio.Client(store.uri) as connected:
            await connected._controller_client.scale_stream(*stream.split("/"), seal=seal, key_ranges=key_ranges)  # type: ignore[arg-type]

    asyncio.run(run())
