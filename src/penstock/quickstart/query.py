"""The streaming query: delays per carrier and scheduled hour, from one stream into another.

Flights come late, by their delays and because the segments of the stream are not read in step. The watermark waits
`WATERMARK_DELAY` for them, more than twice the worst that this data set shows, and the query's own count of rows
dropped as late is checked to be zero. A last event, dated long after the year, moves the watermark past the last
windows, so that they come out too; its own window never closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.quickstart.errors import QueryFailedError, SparkStartError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

WATERMARK_DELAY = "10 days"
#: About so many micro-batches the stream is read in.
BATCH_COUNT = 10
POLL_INTERVAL_S = 0.05
#: A session lives for a minute at most: the compiler that is quick pays, and collectors with threads do not.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUERY_TIMEOUT_S = 600.0

EVENT_SCHEMA = "carrier string, time_hour timestamp, hour int, dep_delay int"


@dataclass(slots=True)
class PassResult:
    """What one driver has done of the query.

    Attributes:
        event_count: events read, the end-of-year event included.
        batch_count: micro-batches that read any.
        dropped_count: aggregated rows that came after the watermark and were dropped.
        duration_s: from the query's start on, Spark's own start-up of the query included.
        hours_seen: earliest and latest scheduled hour in each of those micro-batches.
        last_batch: number of the latest micro-batch that is done; -1: none.
    """

    event_count: int = 0
    batch_count: int = 0
    dropped_count: int = 0
    duration_s: float = 0.0
    hours_seen: list[tuple[datetime, datetime]] = field(default_factory=list)
    last_batch: int = -1

    def to_text(self) -> str:
        """Return it as JSON, for `from_text`."""
        hours = [(low.isoformat(), high.isoformat()) for low, high in self.hours_seen]
        return json.dumps(asdict(self) | {"hours_seen": hours})

    @classmethod
    def from_text(cls, text: str) -> PassResult:
        """Return what `to_text` was called on."""
        fields = json.loads(text)
        hours = [(datetime.fromisoformat(low), datetime.fromisoformat(high)) for low, high in fields["hours_seen"]]
        return cls(**{**fields, "hours_seen": hours})


@contextlib.contextmanager
def _errors_into(path: Path) -> Iterator[None]:
    """Send file descriptor 2 to `path`: processes started meanwhile keep it, so Java's chatter stays out of view."""
    sys.stderr.flush()
    saved = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


def start_session(log_path: Path, core_count: int = 2) -> SparkSession:
    """Start a local Spark session; what Java and Spark's workers say goes to `log_path`.

    Raises:
        SparkStartError: Java or Spark did not start.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Otherwise Spark takes the address of the name of the host, and ends if the name has none.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with _errors_into(log_path):
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        builder = (
            SparkSession.builder.master(f"local[{core_count}]")
            .appName("penstock-quickstart")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", str(core_count))
        )
        try:
            session = builder.getOrCreate()
        except PySparkException as error:
            raise SparkStartError(f"Spark did not start: {error}; its output is in {log_path}") from error
    session.sparkContext.setLogLevel("ERROR")
    return session


def delays(session: SparkSession, uri: str, stream: str, batch_bytes: int) -> DataFrame:
    """Return the query's result, as the sink takes it: `event` is JSON, `routing_key` the carrier."""
    from pyspark.sql import functions as F

    flights = (
        session.readStream.format("penstock")
        .option("uri", uri)
        .option("stream", stream)
        .option("startingStreamCut", "earliest")
        .option("maxBytesPerTrigger", batch_bytes)
        .option("columns", "event")
        .load()
        .select(F.from_json(F.col("event").cast("string"), EVENT_SCHEMA).alias("flight"))
        .select("flight.*")
    )
    per_hour = (
        flights.withWatermark("time_hour", WATERMARK_DELAY)
        .groupBy(F.window("time_hour", "1 hour"), "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.sum("dep_delay").alias("delay_minutes"),
            F.max("dep_delay").alias("delay_minutes_max"),
            F.min("hour").alias("local_hour"),
        )
    )
    result = F.struct(
        F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("hour"),
        "carrier",
        "flights",
        "departed",
        "delay_minutes",
        "delay_minutes_max",
        "local_hour",
    )
    return per_hour.select(F.to_json(result).alias("event"), F.col("carrier").alias("routing_key"))


def run_pass(
    results: DataFrame,
    *,
    uri: str,
    stream: str,
    checkpoint: Path,
    on_progress: Callable[[PassResult], None],
) -> None:
    """Run the query from its checkpoint until it has read all there is. `on_progress` gets what it has done so far.

    Raises:
        QueryFailedError: the query failed, or took longer than `QUERY_TIMEOUT_S`.
    """
    started = time.monotonic()
    query = (
        results.writeStream.format("penstock")
        .queryName("delays")
        .option("uri", uri)
        .option("stream", stream)
        .option("checkpointLocation", str(checkpoint))
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    told = -1
    try:
        is_active = True
        while is_active:
            time.sleep(POLL_INTERVAL_S)
            # Read before the reports: if the query has ended, its last report exists.
            is_active = query.isActive
            outcome = _count(query)
            outcome.duration_s = time.monotonic() - started
            if outcome.last_batch > told:
                told = outcome.last_batch
                on_progress(outcome)
            if outcome.duration_s > QUERY_TIMEOUT_S:
                raise QueryFailedError(f"the query was not done after {QUERY_TIMEOUT_S:g} s (QUERY_TIMEOUT_S)")
        failure = query.exception()
        if failure is not None:
            raise QueryFailedError(f"the streaming query failed: {failure}") from failure
    finally:
        query.stop()


def latest_straggler(hours_seen: Iterable[tuple[datetime, datetime]]) -> timedelta:
    """Return by how much an event lay, at most, behind one of an earlier micro-batch: what the watermark must cover."""
    behind = timedelta(0)
    latest: datetime | None = None
    for low, high in hours_seen:
        if latest is not None:
            behind = max(behind, latest - low)
        latest = high if latest is None else max(latest, high)
    return behind


def _count(query: StreamingQuery) -> PassResult:
    """Add up the progress reports of a run so far."""
    reports = query.recentProgress
    return PassResult(
        event_count=sum(report.numInputRows for report in reports),
        batch_count=sum(1 for report in reports if report.numInputRows),
        last_batch=max((report.batchId for report in reports), default=-1),
        hours_seen=[
            (datetime.fromisoformat(report.eventTime["min"]), datetime.fromisoformat(report.eventTime["max"]))
            for report in reports
            if report.numInputRows
        ],
        dropped_count=sum(
            operator.numRowsDroppedByWatermark for report in reports for operator in report.stateOperators
        ),
    )
