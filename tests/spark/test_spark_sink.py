"""The sink that writes exactly once, in a real Spark session against a real store, and through real kills."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.server.standalone_process import StandaloneProcess

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from pyspark.sql import functions as F

import penstock
import penstock.aio
from penstock.quickstart import process_tree
from penstock.spark.ledger import BatchState, Ledger, LedgerRow, SinkIdentity

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

GUARD_S = 240.0
BATCHES_WAITED = 5


def rows_of(spark: SparkSession, count: int, first: int = 0) -> DataFrame:
    return spark.range(first, first + count, numPartitions=3).select(
        F.concat(F.lit("row "), F.col("id")).alias("event"), (F.col("id") % 5).cast("string").alias("routing_key")
    )


def expected(count: int, first: int = 0) -> Counter[bytes]:
    return Counter(b"row %d" % number for number in range(first, first + count))


def write(frame: DataFrame, store: StandaloneProcess, stream: str | None, **options: str | int) -> None:
    given: dict[str, str | int] = {"uri": store.uri, **options} | ({} if stream is None else {"stream": stream})
    frame.write.format("penstock").options(**given).mode("append").save()


def events(client: Client, stream: str) -> Counter[bytes]:
    with (
        client.reader_group(f"sink-{time.time_ns()}", [stream], until="latest") as group,
        group.reader("r") as reader,
    ):
        return Counter(event.data for event in reader)


def row_of(uri: str, app: str, stream: str) -> LedgerRow:
    async def read() -> LedgerRow:
        async with penstock.aio.connect(uri) as client:
            return (await (await Ledger.open(client, SinkIdentity(app, stream))).read())[0]

    return asyncio.run(read())


def open_transactions(client: Client, stream: str) -> list[str]:
    return [each.id for each in client.open_transactions(stream)]


def test_a_batch_write_is_there_as_a_whole(
    spark: SparkSession, store: StandaloneProcess, client: Client, new_stream: Callable[..., str]
) -> None:
    stream = new_stream(2)
    write(rows_of(spark, 1000), store, stream)
    assert events(client, stream) == expected(1000)
    assert open_transactions(client, stream) == []


def test_a_batch_write_that_fails_leaves_nothing_to_read(
    spark: SparkSession, store: StandaloneProcess, client: Client, new_stream: Callable[..., str]
) -> None:
    """One row of a thousand is null: the tasks that had been written by then are undone."""
    stream = new_stream(2)
    frame = rows_of(spark, 1000).withColumn("event", F.when(F.col("event") != "row 999", F.col("event")))
    with pytest.raises(Exception, match="null event"):
        write(frame, store, stream, transactionLimit="30s")
    assert events(client, stream) == Counter()
    # Of tasks beside the one that failed each undoes what it began; Spark kills it after two seconds, and then what it
    # has begun ends with its limit.
    deadline_s = time.monotonic() + 150
    while left := open_transactions(client, stream):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.1)


def test_a_job_that_is_run_again_writes_nothing_more(
    spark: SparkSession, store: StandaloneProcess, client: Client, new_stream: Callable[..., str]
) -> None:
    stream = new_stream(2)
    for _ in range(2):
        write(rows_of(spark, 200), store, stream, jobId="backfill")
    assert events(client, stream) == expected(200)
    row = row_of(store.uri, "backfill", stream)
    assert (row.batch, row.state, len(row.transactions[stream])) == (0, BatchState.DONE, 3)
    write(rows_of(spark, 100, 200), store, stream, jobId="another")
    assert events(client, stream) == expected(300)


def test_rows_name_their_streams(
    spark: SparkSession, store: StandaloneProcess, client: Client, new_stream: Callable[..., str]
) -> None:
    even, odd = new_stream(1), new_stream(1)
    scope = even.split("/")[0]
    frame = rows_of(spark, 100).withColumn(
        "stream", F.when(F.substring("event", -1, 1).cast("int") % 2 == 0, even).otherwise(odd.split("/")[1])
    )
    write(frame, store, None, scope=scope, appId="apart", batchId=0)
    assert events(client, even) == Counter(b"row %d" % number for number in range(0, 100, 2))
    assert events(client, odd) == Counter(b"row %d" % number for number in range(1, 100, 2))


def test_errors_of_the_target_are_found_before_any_task(
    spark: SparkSession, store: StandaloneProcess, client: Client, new_stream: Callable[..., str]
) -> None:
    sealed = new_stream(1)
    client.seal_stream(sealed)
    for stream, complaint in ((sealed, "is sealed and takes no more"), ("spark-tests/absent", "absent")):
        with pytest.raises(Exception, match=complaint) as failure:
            write(rows_of(spark, 10), store, stream)
        assert "Job aborted" not in str(failure.value)
    with pytest.raises(Exception, match="scope no-such-scope does not exist"):
        write(rows_of(spark, 10).withColumn("stream", F.lit("s")), store, None, scope="no-such-scope")


def test_a_query_uses_its_own_id_and_batches(
    spark: SparkSession, store: StandaloneProcess, client: Client, new_stream: Callable[..., str], tmp_path: Path
) -> None:
    """Spark says them to each task under names of its own: `sql.streaming.queryId`, `streaming.sql.batchId`."""
    source, target = new_stream(2), new_stream(2)
    write(rows_of(spark, 300), store, source)
    query = (
        spark.readStream.format("penstock")
        .options(uri=store.uri, stream=source, start="earliest", columns="event", maxBytesPerTrigger=2000)
        .load()
        .writeStream.format("penstock")
        .options(uri=store.uri, stream=target, checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    last = max(int(path.name) for path in (tmp_path / "commits").iterdir() if path.name.isdigit())
    assert last >= 2
    row = row_of(store.uri, query.id, target)
    assert (row.batch, row.state) == (last, BatchState.DONE)
    assert events(client, target) == expected(300)


@pytest.mark.parametrize("how", ["sink", "foreachBatch"])
def test_a_query_whose_checkpoint_was_lost_fails_instead_of_dropping_its_rows(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    tmp_path: Path,
    how: str,
) -> None:
    """The second query counts its batches from 0 again, under the same `appId`."""
    source, target = new_stream(1), new_stream(1)
    write(rows_of(spark, 100), store, source)

    def append(frame: DataFrame, batch: int) -> None:
        write(frame, store, target, appId="revenue", batchId=batch)

    def run(checkpoint: Path) -> None:
        writer = (
            spark.readStream.format("penstock")
            .options(uri=store.uri, stream=source, start="earliest", columns="event")
            .load()
            .writeStream.option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
        )
        if how == "sink":
            writer = writer.format("penstock").options(uri=store.uri, stream=target, appId="revenue")
        else:
            writer = writer.foreachBatch(append)
        writer.start().awaitTermination()

    run(tmp_path / "first")
    assert row_of(store.uri, "revenue", target).query
    write(rows_of(spark, 50, 100), store, source)
    with pytest.raises(Exception, match="a batch of this number was written by query"):
        run(tmp_path / "second")
    run(tmp_path / "first")
    assert events(client, target) == expected(150)


DRIVER = """
import sys

from penstock.spark import ensure_java

ensure_java()

from pyspark.sql import SparkSession

uri, source, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.readStream.format("penstock").options(
    uri=uri, stream=source, start="earliest", columns="event", maxBytesPerTrigger=3000, minPartitions=2
).load()
query = frame.writeStream.format("penstock").options(
    uri=uri, stream=target, checkpointLocation=checkpoint, appId="killed"
).trigger(availableNow=True).start()
query.awaitTermination()
"""


def test_a_driver_that_is_killed_writes_each_row_once(
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write_rows: Callable[[str, int], int],
    tmp_path: Path,
) -> None:
    """Driver, JVM and workers are killed as soon as an intent is seen; a second run ends the query."""
    source, target = new_stream(2), new_stream(2)
    count = write_rows(source, 2000)
    script, checkpoint = tmp_path / "driver.py", tmp_path / "checkpoint"
    script.write_text(DRIVER)
    arguments = [sys.executable, str(script), store.uri, source, target, str(checkpoint)]
    with (tmp_path / "driver.log").open("wb") as log:

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)

        driver = start()
        try:
            await_intent(store.uri, target, driver, Path(log.name))
        finally:
            process_tree.kill(driver.pid)
            driver.wait()
        assert start().wait(GUARD_S) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert events(client, target) == Counter({b"row %d" % number: 1 for number in range(count)})
    assert open_transactions(client, target) == []
    row = row_of(store.uri, "killed", target)
    offsets = json.loads((checkpoint / "offsets" / str(row.batch)).read_text().splitlines()[-1])
    assert {int(segment): at for segment, at in offsets["positions"].items()} == client.tail(source).positions


def await_intent(uri: str, target: str, driver: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for an intent; after some batches without having seen one, for any moment."""

    async def read() -> None:
        async with penstock.aio.connect(uri) as client:
            ledger = None
            deadline_s = time.monotonic() + GUARD_S
            while time.monotonic() < deadline_s:
                assert driver.poll() is None, f"it ended before it could be killed: {log.read_text()[-3000:]}"
                try:
                    ledger = ledger or await Ledger.open(client, SinkIdentity("killed", target))
                    row, _ = await ledger.read()
                except penstock.NoSuchTableError:
                    await asyncio.sleep(0.05)
                    continue
                if row.state is BatchState.INTENT or row.batch > BATCHES_WAITED:
                    return
                await asyncio.sleep(0.002)
        raise AssertionError(f"no batch in {GUARD_S:g} s")

    asyncio.run(read())


@pytest.fixture
def write_rows(client: Client) -> Callable[[str, int], int]:
    """Return a function that writes so many numbered rows and returns how many."""

    def write_all(stream: str, count: int) -> int:
        with client.event_writer(stream) as writer:
            writer.write_many([b"row %d" % number for number in range(count)])
        return count

    return write_all
