"""Where a streaming query starts: fixed once, independent of writes, truncations and restarts before its first commit.

Spark 4.3 calls `initialOffset` before each plan and each run of the first micro-batch, stores only the end of that
batch, and freezes the end of an AvailableNow run before it knows the start. A producer writes throughout each test.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.server.standalone_process import StandaloneProcess
from support.live_writer import LiveWriter

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from penstock.model.errors import PenstockError
from penstock.spark.options import parse_source_options
from penstock.spark.source import PenstockStreamReader
from support.live_writer import check_gapless
from support.spark_queries import events_of, follow, run_to_the_end, scale

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.datasource import ReadLimit

    from penstock.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

STARTS = ["latest", "earliest", "cut", "time", "unbounded"]


class SparkCalls:
    """The calls of Spark's micro-batch engine on a source, in its order, with offsets that pass through JSON text.

    `offsets` and `commits` are what the checkpoint holds. A new instance with those of an older one is a restart: its
    reader is new.
    """

    def __init__(
        self,
        store: StandaloneProcess,
        stream: str,
        is_available_now: bool,
        of: SparkCalls | None = None,
        **options: str,
    ) -> None:
        given = {"uri": store.uri, "stream": stream, "directReads": "never", **options}
        self.reader = PenstockStreamReader(parse_source_options(given))
        self.offsets: list[str] = [] if of is None else of.offsets
        self.commits: list[int] = [] if of is None else of.commits
        self.committed: str | None = self.offsets[len(self.commits) - 1] if self.commits else None
        if is_available_now:
            self.reader.prepareForTriggerAvailableNow()

    def plan(self, limit: ReadLimit | None = None) -> None:
        """Store the offset of the next micro-batch, unless the batch before is not committed."""
        if len(self.offsets) > len(self.commits):
            return
        limit = limit or self.reader.getDefaultReadLimit()
        end = self.reader.latestOffset(json.loads(self.committed or json.dumps(self.reader.initialOffset())), limit)
        if (text := json.dumps(end)) != self.committed:
            self.offsets.append(text)

    def run(self) -> list[bytes]:
        """Read the micro-batch that is planned."""
        start, end = self.committed or json.dumps(self.reader.initialOffset()), self.offsets[-1]
        partitions = self.reader.partitions(json.loads(start), json.loads(end))
        batches = [batch for partition in partitions for batch in self.reader.read(partition)]
        return [event for batch in batches for event in batch.column("event").to_pylist()]

    def commit(self) -> None:
        """Note that the micro-batch is done."""
        self.commits.append(len(self.commits))
        self.committed = self.offsets[-1]

    def step(self, limit: ReadLimit | None = None) -> list[bytes]:
        """Plan, read and commit a micro-batch, if there is one."""
        self.plan(limit)
        if len(self.offsets) == len(self.commits):
            return []
        events = self.run()
        self.commit()
        return events


def start_text(client: Client, stream: str, start: str) -> str:
    if start == "cut":
        return client.tail(stream).to_text()
    return datetime.now(UTC).isoformat() if start == "time" else start


@pytest.mark.parametrize("is_available_now", [False, True])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_query_on_a_live_stream_reads_each_event_from_its_start_once(
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    live: Callable[..., LiveWriter],
    start: str,
    is_available_now: bool,
    is_alone: bool,
) -> None:
    stream = new_stream(2)
    writer = live(stream)
    writer.wait_for(20)
    names = stream if is_alone else f"{stream},{new_stream(1)}"
    query = SparkCalls(store, names, is_available_now, start=start_text(client, stream, start))
    query.reader.initialOffset()
    earlier_count = len(writer.events)
    seen: list[bytes] = []
    for _ in range(3):
        seen += query.step()
        writer.wait_for(5)
    everything = writer.stop()
    seen += SparkCalls(store, names, False, query).step()
    check_gapless(everything, seen)
    assert set(everything[earlier_count + 1 :]) <= set(seen)
    if start != "time":  # A time resolves to a place somewhat before it.
        assert (len(seen) == len(everything)) == (start in ("earliest", "unbounded"))


@pytest.mark.parametrize("is_available_now", [False, True])
@pytest.mark.parametrize("start", STARTS)
def test_a_first_micro_batch_that_failed_is_repeated_with_its_start(
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    live: Callable[..., LiveWriter],
    start: str,
    is_available_now: bool,
) -> None:
    """Restarted twice, once with another start: the checkpoint decides."""
    stream = new_stream(2)
    writer = live(stream)
    writer.wait_for(20)
    query = SparkCalls(store, stream, is_available_now, start=start_text(client, stream, start))
    start_of_query = query.reader.initialOffset()
    writer.wait_for(10)
    query.plan()
    planned = query.run()
    writer.wait_for(10)
    for other in (start_text(client, stream, start), "earliest" if start == "latest" else "latest"):
        query = SparkCalls(store, stream, is_available_now, query, start=other)
        assert Counter(query.run()) == Counter(planned)
        writer.wait_for(10)
    assert json.loads(query.offsets[0])["since"] == start_of_query["positions"]
    query.commit()
    everything = writer.stop()
    seen = planned + SparkCalls(store, stream, False, query).step()
    check_gapless(everything, seen)


def test_an_empty_first_micro_batch_fixes_the_start_too(
    store: StandaloneProcess, client: Client, new_stream: Callable[..., str], live: Callable[..., LiveWriter]
) -> None:
    """Spark runs one where a query starts and nothing is there: what comes before it is committed is not skipped."""
    stream = new_stream(2)
    query = SparkCalls(store, stream, False)
    query.plan()
    writer = live(stream)
    writer.wait_for(20)
    query = SparkCalls(store, stream, False, query)
    assert query.run() == []
    query.commit()
    query.plan()
    writer.wait_for(5)
    query = SparkCalls(store, stream, False, query)
    seen = query.run()
    query.commit()
    everything = writer.stop()
    seen += SparkCalls(store, stream, False, query).step()
    assert Counter(seen) == Counter(everything)
    # Later offsets carry the start no longer.
    assert "since" not in json.loads(query.offsets[-1])


def test_limits_hold_from_the_start_on_of_a_live_stream(
    store: StandaloneProcess, new_stream: Callable[..., str], live: Callable[..., LiveWriter]
) -> None:
    stream = new_stream(3)
    writer = live(stream)
    writer.wait_for(20)
    query = SparkCalls(store, stream, False, start="earliest")
    counts, seen = [], list[bytes]()
    for _ in range(10):
        seen += (got := query.step(ReadMaxBytes(10 * 28)))
        counts.append(len(got))
        query = SparkCalls(store, stream, False, query, start="latest")
    everything = writer.stop()
    assert max(counts) <= 10
    assert sum(counts) >= 20
    seen += SparkCalls(store, stream, False, query).step(ReadAllAvailable())
    assert Counter(seen) == Counter(everything)


@pytest.mark.parametrize("is_replayed", [False, True])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_events_truncated_before_the_first_batch_ran_are_an_error_and_never_skipped(
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    live: Callable[..., LiveWriter],
    write: Callable[..., list[bytes]],
    is_replayed: bool,
    is_scaled: bool,
) -> None:
    """In the middle of a segment, and whole segments, in the process of the query and after a restart."""
    stream = new_stream(1)
    write(stream, 10)
    writer = live(stream)
    writer.wait_for(10)
    query = SparkCalls(store, stream, False, start="earliest")
    query.plan()
    if is_scaled:
        scale(store, stream, [0], [(0.0, 0.5), (0.5, 1.0)])
        writer.wait_for(5)
    client.truncate_stream(client.tail(stream))
    writer.wait_for(5)
    if is_replayed:
        query = SparkCalls(store, stream, False, query, start="earliest")
    with pytest.raises(PenstockError, match=r"gone|truncated|no such segment"):
        query.run()
    # A query that may skip truncated bytes skips them, from its own start, and reads the rest once.
    passing = SparkCalls(store, stream, False, query, start="earliest", failOnDataLoss="false")
    assert passing.run() == []
    passing.commit()
    head = sum(client.head(stream).positions.values())
    seen = passing.step()
    assert head > 0 or is_scaled
    assert max(Counter(seen).values()) == 1


def test_events_truncated_between_two_plans_of_a_query_are_an_error(
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    live: Callable[..., LiveWriter],
    write: Callable[..., list[bytes]],
) -> None:
    """The start of `earliest` is the head at the first call, and does not move with retention."""
    stream = new_stream(1)
    write(stream, 10)
    writer = live(stream)
    reader = PenstockStreamReader(parse_source_options({"uri": store.uri, "stream": stream, "start": "earliest"}))
    assert reader.initialOffset()["positions"] == {"0": 0}
    client.truncate_stream(client.tail(stream))
    writer.wait_for(5)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with pytest.raises(PenstockError, match="lost"):
        reader.partitions(reader.initialOffset(), end)


def test_the_subscriber_of_a_query_is_one_over_all_attempts_of_its_first_batch(
    store: StandaloneProcess, new_stream: Callable[..., str], live: Callable[..., LiveWriter]
) -> None:
    stream = new_stream(1)
    live(stream)
    query = SparkCalls(store, stream, False, subscriber="billing")
    assert query.reader.initialOffset() == query.reader.initialOffset()
    query.plan()
    number = json.loads(query.offsets[0])["subscriber"]
    query.step()
    later = SparkCalls(store, stream, False, query, subscriber="billing")
    later.step()
    assert json.loads(later.offsets[-1])["subscriber"] == number


@pytest.mark.parametrize(
    ("start", "trigger"), [("latest", {"processingTime": "0 seconds"}), ("earliest", {"availableNow": True})]
)
def test_a_query_starts_and_restarts_in_a_session_while_events_are_written(
    spark: SparkSession,
    store: StandaloneProcess,
    new_stream: Callable[..., str],
    live: Callable[..., LiveWriter],
    tmp_path: Path,
    start: str,
    trigger: dict[str, Any],
) -> None:
    """Its first batch fails in the sink; then it restarts from its checkpoint, each time with rows of its own."""
    stream = new_stream(2)
    writer = live(stream)
    writer.wait_for(20)
    batches: dict[int, Counter[bytes]] = {}
    failed: list[int] = []

    def sink(frame: DataFrame, batch_id: int) -> None:
        rows = events_of(frame)
        if batch_id in batches or batch_id in failed:
            assert batches.get(batch_id, rows) == rows, "the batch came again with other rows"
        if rows and not failed:
            failed.append(batch_id)
            raise RuntimeError("the sink failed")
        batches[batch_id] = rows

    def run(is_enough: Callable[[], bool]) -> BaseException | None:
        frame = follow(spark, store, stream, start=start, maxBytesPerTrigger="20k")
        sinking = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = sinking.trigger(**trigger).start()
        end_s = time.monotonic() + 120
        while query.isActive and not is_enough():
            assert time.monotonic() < end_s
            time.sleep(0.05)
        error = query.exception()
        query.stop()
        return error

    assert "the sink failed" in str(run(lambda: False))
    for _ in range(2):
        count = len(batches)
        assert run(lambda count=count: len(batches) > count + 2) is None
    everything = writer.stop()
    assert run(lambda: any(everything[-1] in rows for rows in batches.values())) is None
    seen = [event for rows in batches.values() for event in rows.elements()]
    check_gapless(everything, seen)
    assert start == "latest" or len(seen) == len(everything)


def test_another_run_with_other_options_goes_by_its_checkpoint(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    live: Callable[..., LiveWriter],
    write: Callable[..., list[bytes]],
    tmp_path: Path,
) -> None:
    """Start, limit, columns and a scale event change from run to run, and a producer writes throughout."""
    stream, out, checkpoint = new_stream(2), tmp_path / "out", tmp_path / "checkpoint"
    writer = live(stream)
    events = write(stream, 50)

    def run(**options: object) -> None:
        frame = follow(spark, store, stream, **options).select("event")
        run_to_the_end(frame, out, checkpoint)

    run(start="earliest")
    run(start="latest", maxBytesPerTrigger="20k")
    run(columns="event,offset", maxEventsPerTrigger="500")
    scale(store, stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    writer.wait_for(20)
    run(subscriber="counts")
    events += writer.stop()
    run(start="latest", subscriber="counts")
    assert events_of(spark.read.parquet(str(out))) == Counter(events)
