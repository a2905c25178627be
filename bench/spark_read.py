"""Spark batch read: rows per second and core of `spark.read.format("penstock")`, written to nowhere, beside Parquet.

Through the store, directly from chunks, and the same rows from Parquet files that Spark wrote, in turns in one session;
`floor` is a source in Python that gives out one ready batch over and over, which no source in Python can outdo.
The store is restarted with a cache that is smaller than the stream, so that it reads chunks, too; `--cached`: with
one that holds it all.

    python bench/spark_read.py --events 4000000 --event-bytes 100 --cores 2
    python bench/spark_read.py --cores 1 --cached
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from _common import parser, raw_disk, report, server, work_directory
from _spark import in_turns, measured, medians, ratios, ready_batches, start_session, wait_until_flushed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "bench/spark"
WRITTEN_AT_ONCE = 10_000
ALL_COLUMNS = ("event", "scope", "stream", "segment_id", "offset")
#: Nothing is measured before all of it is flushed: the wait for that is short.
SETTINGS = {"segment_store.container.flush_age_s": 1.0}


def write_events(uri: str, count: int, event_bytes: int, segment_count: int) -> None:
    """Fill the stream with events that all differ, so that no dictionary makes Parquet's work less."""
    keys = [str(number) for number in range(WRITTEN_AT_ONCE)]
    with penstock.connect(uri) as client:
        client.create_stream(STREAM, scaling=penstock.Scaling.fixed(segment_count))
        with client.event_writer(STREAM) as writer:
            for first in range(0, count, WRITTEN_AT_ONCE):
                some = min(WRITTEN_AT_ONCE, count - first)
                text = os.urandom((some * event_bytes + 1) // 2).hex().encode()
                events = [text[at : at + event_bytes] for at in range(0, some * event_bytes, event_bytes)]
                writer.write_many(events, routing_keys=keys[:some])


def frames(session: SparkSession, uri: str, files: Path, columns: tuple[str, ...]) -> dict[str, DataFrame]:
    """Return the same rows by all ways."""
    source = session.read.format("penstock").option("uri", uri).option("stream", STREAM)
    source = source.option("columns", ",".join(columns))
    return {
        "store": source.option("directReads", "never").load(),
        "direct": source.option("directReads", "always").load(),
        "parquet": session.read.parquet(str(files / "uncompressed")).select(*columns),
        "parquet_snappy": session.read.parquet(str(files / "snappy")).select(*columns),
    }


def write_nowhere(frame: DataFrame) -> None:
    """Have every row made, and dropped."""
    frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--events", type=int, default=4_000_000)
    options.add_argument("--event-bytes", type=int, default=100)
    options.add_argument("--segments", type=int, default=4)
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--cached", action="store_true", help="a store whose cache holds the stream")
    options.add_argument("--event-only", action="store_true", help="column `event` alone, not all five in turn")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.events, arguments.rounds = 20_000, 1
    cache_mb = 1024 if arguments.cached else 64
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        if not arguments.cached:
            with server(directory, settings=SETTINGS) as running:
                write_events(running.uri, arguments.events, arguments.event_bytes, arguments.segments)
                wait_until_flushed(running.uri, STREAM)
        with server(directory, "--cache-mb", str(cache_mb), settings=SETTINGS) as running:
            if arguments.cached:
                write_events(running.uri, arguments.events, arguments.event_bytes, arguments.segments)
            flushed_share = wait_until_flushed(running.uri, STREAM)
            session = start_session(arguments.cores, directory)
            made = session.read.format("penstock").option("uri", running.uri).load(STREAM)
            for compression in ("uncompressed", "snappy"):
                made.write.option("compression", compression).parquet(str(directory / compression))
            counted = session.read.parquet(str(directory / "uncompressed")).count()
            assert counted == arguments.events

            def turn(frame: DataFrame) -> dict[str, float]:
                return measured(
                    partial(write_nowhere, frame), counted,
                    session=session, core_count=arguments.cores, server_pid=running.pid,
                )  # fmt: skip

            reads: dict[str, object] = {}
            for columns in [("event",)] if arguments.event_only else [("event",), ALL_COLUMNS]:
                works: dict[str, Callable[[], dict[str, float]]] = {
                    name: partial(turn, frame)
                    for name, frame in frames(session, running.uri, directory, columns).items()
                }
                ready = ready_batches(session, columns, counted, arguments.event_bytes, arguments.segments)
                works["floor"] = partial(turn, ready)
                runs = in_turns(works, arguments.rounds)
                middle = medians(runs)
                pairs = [
                    *(("store", "parquet"), ("direct", "parquet"), ("direct", "store")),
                    *(("store", "parquet_snappy"), ("direct", "parquet_snappy")),
                    *(("floor", "parquet"), ("floor", "parquet_snappy"), ("direct", "floor")),
                ]
                reads["event" if len(columns) == 1 else "all"] = {
                    "median": middle,
                    "ratio": ratios(middle, pairs),
                    "runs": runs,
                }
            session.stop()
        report(
            "spark-read",
            {
                "events": counted,
                "event_bytes": arguments.event_bytes,
                "cores": arguments.cores,
                "cache_mb": cache_mb,
                "flushed_share": round(flushed_share, 3),
                "reads": reads,
                "raw_disk": disk,
            },
        )


if __name__ == "__main__":
    main()
