"""Spark batch sink: events per second and core of a frame that is written exactly once, beside Parquet.

The same cached frame into a stream exactly once (with an id, so through the ledger), with routing keys too, at least
once, into Parquet files, and nowhere, in turns in one session.

    python bench/spark_sink.py --events 2000000 --event-bytes 100 --cores 2
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import penstock
from _common import parser, raw_disk, report, server, work_directory
from _spark import in_turns, measured, medians, ratios, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "bench/spark-sink"
KEY_COUNT = 1000


def events(session: SparkSession, event_count: int, event_bytes: int, core_count: int) -> DataFrame:
    """Return a cached frame of events that all differ, with a routing key each, a partition for each core."""
    from pyspark.sql import functions as F

    text = F.lit("")
    for number in range(-(-event_bytes // 64)):
        text = F.concat(text, F.sha2(F.concat(F.col("id").cast("string"), F.lit(f"/{number}")), 256))
    frame = session.range(0, event_count, numPartitions=core_count).select(
        F.substring(text, 1, event_bytes).cast("binary").alias("event"),
        F.concat(F.lit("key-"), F.col("id") % KEY_COUNT).alias("routing_key"),
    )
    frame = frame.cache()
    assert frame.count() == event_count
    return frame


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--events", type=int, default=2_000_000)
    options.add_argument("--event-bytes", type=int, default=100)
    options.add_argument("--segments", type=int, default=4)
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--rounds", type=int, default=3)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.events, arguments.rounds = 20_000, 1
    event_count: int = arguments.events
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory) as running:
            with penstock.connect(running.uri) as client:
                client.create_stream(STREAM, scaling=penstock.Scaling.fixed(arguments.segments))
            session = start_session(arguments.cores, directory)
            keyed = events(session, event_count, arguments.event_bytes, arguments.cores)
            unkeyed = keyed.select("event")
            jobs = count()

            def into_stream(frame: DataFrame, *, is_exactly_once: bool) -> None:
                sink = frame.write.format("penstock").option("uri", running.uri).mode("append")
                if is_exactly_once:
                    sink = sink.option("jobId", f"bench-{next(jobs)}")
                else:
                    sink = sink.option("exactlyOnce", "false")
                sink.save(STREAM)

            def into_files() -> None:
                unkeyed.write.option("compression", "uncompressed").mode("overwrite").parquet(str(directory / "files"))

            ways: dict[str, Callable[[], None]] = {
                "exactly_once": lambda: into_stream(unkeyed, is_exactly_once=True),
                "exactly_once_keyed": lambda: into_stream(keyed, is_exactly_once=True),
                "at_least_once": lambda: into_stream(unkeyed, is_exactly_once=False),
                "parquet": into_files,
                "nowhere": lambda: unkeyed.write.format("noop").mode("overwrite").save(),
            }
            turns: dict[str, Callable[[], dict[str, float]]] = {
                name: partial(
                    measured, way, event_count, session=session, core_count=arguments.cores, server_pid=running.pid
                )
                for name, way in ways.items()
            }
            runs = in_turns(turns, arguments.rounds)
            session.stop()
            middle = medians(runs)
            others = ("parquet", "at_least_once", "nowhere")
            with penstock.connect(running.uri) as client:
                written_bytes = sum(client.tail(STREAM).positions.values())
            # Each round writes all of it three times; an event has a header of 8 bytes.
            assert written_bytes == 3 * (arguments.rounds + 1) * event_count * (arguments.event_bytes + 8)
        report(
            "spark-sink",
            {
                "events": event_count,
                "event_bytes": arguments.event_bytes,
                "cores": arguments.cores,
                "median": middle,
                "ratio": ratios(middle, [("exactly_once", other) for other in others]),
                "runs": runs,
                "raw_disk": disk,
            },
        )


if __name__ == "__main__":
    main()
