"""Spark streaming: how long an event takes until its micro-batch is committed, against what a micro-batch takes at all.

Single events are written one after the other, each when the one before is committed, with the same trigger for all:

- `sink`: from stream to stream, exactly once;
- `noop`: from stream to nowhere, which is what Spark and the source take: the floor;
- `foreach`: from stream to `foreachBatch`, which collects the rows in this process;
- `rate`: Spark's own source to nowhere, without any Python: what an empty micro-batch takes at all;
- `foreach_rate`: Spark's own source to `foreachBatch`, which collects the rows: the floor of `foreach`.

Committed is what the checkpoint says; `readable_ms` is when a reader of the target has the event. Of `foreach`,
`entered` is when `foreachBatch` begins, `collected` when it has the rows. `foreach_to_rate` is of whole micro-batches.

    python bench/spark_latency.py --events 40
    python bench/spark_latency.py --trigger-ms 1000
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from _common import cpu_s, parser, percentiles_ms, raw_disk, report, server, work_directory
from _spark import session_cpu_s, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

SOURCE = "bench/spark-latency"
TARGET = "bench/spark-latency-copy"
#: Events of which nothing is counted: processes start, and Java compiles.
WARM_UP_COUNT = 5
WAIT_S_MAX = 120.0
POLL_S = 0.001


def committed_batch(checkpoint: Path) -> int:
    """Return the number of the last micro-batch that the checkpoint has as done; -1: none."""
    numbers = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdigit()]
    return max(numbers, default=-1)


def wait_for(checkpoint: Path, batch: int, query: StreamingQuery) -> None:
    """Return once a micro-batch later than `batch` is done."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while committed_batch(checkpoint) <= batch:
        if not query.isActive or time.monotonic() > deadline_s:
            raise SystemExit(f"no micro-batch behind {batch}: {query.exception()}")
        time.sleep(POLL_S)


def phases(progress: Sequence[dict[str, dict[str, float]]]) -> dict[str, float]:
    """Return the median of each phase of micro-batches, in milliseconds, as Spark says it."""
    names = sorted({name for each in progress for name in each["durationMs"]})
    return {name: statistics.median(each["durationMs"].get(name, 0) for each in progress) for name in names}


class Bench:
    """One session and one store, and the queries one at a time."""

    def __init__(self, session: SparkSession, uri: str, server_pid: int, directory: Path, trigger_ms: int) -> None:
        self._session = session
        self._uri = uri
        self._server_pid = server_pid
        self._directory = directory
        self._trigger_ms = trigger_ms
        self._query_count = 0

    def from_stream(self, target: str | None, event_count: int) -> dict[str, object]:
        """Follow the source into `target`, or nowhere, and write so many single events."""
        frame = self._session.readStream.format("penstock").option("uri", self._uri).option("columns", "event")
        loaded = frame.load(SOURCE)
        if target is None:
            writer = loaded.writeStream.format("noop")
        else:
            writer = loaded.writeStream.format("penstock").option("uri", self._uri).option("stream", target)
        checkpoint, query = self._start(writer)
        committed_s: list[float] = []
        readable_s: list[float] = []
        used_s = 0.0
        with penstock.connect(self._uri) as client, client.event_writer(SOURCE) as events:
            segment = f"{target or SOURCE}/0.#epoch.0"
            at = client.tail(target or SOURCE).positions[0]
            while query.status["message"] == "Initializing sources" or not query.lastProgress:
                time.sleep(0.05)
            for number in range(WARM_UP_COUNT + event_count):
                # At another moment of the query's polls each time.
                time.sleep(0.05 + 0.013 * (number % 7))
                if number == WARM_UP_COUNT:
                    used_s = -session_cpu_s(self._session) - cpu_s(self._server_pid)
                batch = committed_batch(checkpoint)
                event = b"%0100d" % number
                begin_s = time.perf_counter()
                events.write(event).wait()
                with client.segment_reader(segment, at, at + len(event) + 8) as reader:
                    while at_bytes := reader.read(WAIT_S_MAX):
                        at += len(at_bytes)
                if number >= WARM_UP_COUNT:
                    readable_s.append(time.perf_counter() - begin_s)
                wait_for(checkpoint, batch, query)
                if number >= WARM_UP_COUNT:
                    committed_s.append(time.perf_counter() - begin_s)
            used_s += session_cpu_s(self._session) + cpu_s(self._server_pid)
        progress = [each for each in query.recentProgress if each["numInputRows"]][-event_count:]
        query.stop()
        query.awaitTermination()
        return {
            "event_to_commit": percentiles_ms(committed_s),
            **({"readable": percentiles_ms(readable_s)} if target else {}),
            "phases_ms": phases(progress),
            "cpu_ms_per_event": round(used_s / event_count * 1e3, 1),
        }

    def to_foreach_batch(self, event_count: int) -> dict[str, object]:
        """Follow the source into `foreachBatch`, and write so many single events."""
        entered_s: list[float] = []
        collected_s: list[float] = []
        begin_s, is_collected = 0.0, threading.Event()

        def sink(rows: DataFrame, batch: int) -> None:
            entered = time.perf_counter() - begin_s
            if rows.collect():
                entered_s.append(entered)
                collected_s.append(time.perf_counter() - begin_s)
                is_collected.set()

        frame = self._session.readStream.format("penstock").option("uri", self._uri).option("columns", "event")
        checkpoint, query = self._start(frame.load(SOURCE).writeStream.foreachBatch(sink))
        with penstock.connect(self._uri) as client, client.event_writer(SOURCE) as events:
            while query.status["message"] == "Initializing sources" or not query.lastProgress:
                time.sleep(0.05)
            for number in range(WARM_UP_COUNT + event_count):
                time.sleep(0.05 + 0.013 * (number % 7))
                batch = committed_batch(checkpoint)
                is_collected.clear()
                begin_s = time.perf_counter()
                events.write(b"%0100d" % number).wait()
                if not is_collected.wait(WAIT_S_MAX):
                    raise SystemExit(f"event {number} did not come to foreachBatch: {query.exception()}")
                wait_for(checkpoint, batch, query)
        progress = [each for each in query.recentProgress if each["numInputRows"]][-event_count:]
        query.stop()
        query.awaitTermination()
        return {
            "entered": percentiles_ms(entered_s[WARM_UP_COUNT:]),
            "collected": percentiles_ms(collected_s[WARM_UP_COUNT:]),
            "phases_ms": phases(progress),
        }

    def of_rate(self, batch_count: int, *, is_collected: bool = False) -> dict[str, object]:
        """Run Spark's own source of one row for each micro-batch into nowhere, or collect it in `foreachBatch`."""
        rate = self._session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
        writer = rate.option("numPartitions", 1).load().writeStream
        writer = writer.foreachBatch(lambda rows, batch: rows.collect()) if is_collected else writer.format("noop")
        checkpoint, query = self._start(writer)
        wait_for(checkpoint, WARM_UP_COUNT + batch_count, query)
        progress = query.recentProgress[-batch_count:]
        query.stop()
        query.awaitTermination()
        return {"phases_ms": phases(progress)}

    def _start(self, writer: DataStreamWriter) -> tuple[Path, StreamingQuery]:
        self._query_count += 1
        checkpoint = self._directory / f"checkpoint-{self._query_count}"
        writer = writer.option("checkpointLocation", str(checkpoint))
        return checkpoint, writer.trigger(processingTime=f"{self._trigger_ms} milliseconds").start()


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--events", type=int, default=40, help="of each query of each round")
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--trigger-ms", type=int, default=0, help="0: the next micro-batch begins at once")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.events, arguments.rounds = 2, 1
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory) as running:
            with penstock.connect(running.uri) as client:
                for name in (SOURCE, TARGET):
                    client.create_stream(name, scaling=penstock.Scaling.fixed(1))
            session = start_session(arguments.cores, directory)
            bench = Bench(session, running.uri, running.pid, directory, arguments.trigger_ms)
            rounds = [
                {
                    "noop": bench.from_stream(None, arguments.events),
                    "sink": bench.from_stream(TARGET, arguments.events),
                    "foreach": bench.to_foreach_batch(arguments.events),
                    "rate": bench.of_rate(arguments.events),
                    "foreach_rate": bench.of_rate(arguments.events, is_collected=True),
                }
                for _ in range(arguments.rounds)
            ]
            session.stop()

        def p50_ms(name: str) -> float:
            return statistics.median(each[name]["event_to_commit"]["p50_ms"] for each in rounds)

        def batch_ms(name: str) -> float:
            return statistics.median(each[name]["phases_ms"]["triggerExecution"] for each in rounds)

        report(
            "spark-latency",
            {
                "events": arguments.events,
                "trigger_ms": arguments.trigger_ms,
                "cores": arguments.cores,
                "sink_to_noop": round(p50_ms("sink") / p50_ms("noop"), 2),
                "foreach_to_rate": round(batch_ms("foreach") / batch_ms("foreach_rate"), 2),
                "rounds": rounds,
                "raw_disk": disk,
            },
        )


if __name__ == "__main__":
    main()
