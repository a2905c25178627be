"""Spark batch read: events per second and core of `spark.read.format("penstock")`, written to nowhere.

Through the store, which has what fits there in its cache, and directly from chunks, in turns.

    python bench/spark_read.py --events 4000000 --event-bytes 100 --cores 2
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import penstock
from _common import cpu_s, parser, raw_disk, report, server, work_directory

STREAM = "bench/spark"
#: How long is waited until long-term storage has it all.
FLUSH_S_MAX = 300.0


def wait_until_flushed(uri: str) -> float:
    """Return the share of the stream that long-term storage has, once that is all or the time is over."""
    from penstock.spark.options import StoreSettings
    from penstock.spark.planner import ByteRange
    from penstock.spark.store import StoredStream, close_clients

    stream = StoredStream(StoreSettings(uri), *STREAM.split("/"))
    ranges = [ByteRange(segment, 0, end) for segment, end in stream.tail().items()]
    deadline_s = time.monotonic() + FLUSH_S_MAX
    while True:
        stored = sum(getattr(layout, "end", 0) for layout in stream.layouts(ranges, 0.0))
        share = stored / sum(each.length for each in ranges)
        if share == 1.0 or time.monotonic() > deadline_s:
            close_clients()
            return share
        time.sleep(1.0)


def main() -> None:
    options = parser(__doc__ or "")
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    options.add_argument("--events", type=int, default=4_000_000)
    options.add_argument("--event-bytes", type=int, default=100)
    options.add_argument("--segments", type=int, default=4)
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--runs", type=int, default=3)
    arguments = options.parse_args()

    from penstock.spark import ensure_java

    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    with work_directory(arguments) as directory, server(directory) as running:
        disk = raw_disk(directory)
        batch = [os.urandom(arguments.event_bytes) for _ in range(10_000)]
        with penstock.connect(running.uri) as client:
            client.create_stream(STREAM, scaling=penstock.Scaling.fixed(arguments.segments))
            with client.event_writer(STREAM) as writer:
                for _ in range(arguments.events // len(batch)):
                    writer.write_many(batch, routing_keys=[str(number) for number in range(len(batch))])
        flushed_share = wait_until_flushed(running.uri)
        spark = (
            SparkSession.builder.master(f"local[{arguments.cores}]")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.execution.arrow.maxRecordsPerBatch", "20000")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        rates = []
        counted = 0
        for columns in ("event", ""):
            frames = {}
            for path, direct in (("store", "never"), ("direct", "always")):
                frame = spark.read.format("penstock").option("uri", running.uri).option("stream", STREAM)
                if columns:
                    frame = frame.option("columns", columns)
                frames[path] = frame.option("directReads", direct).load()
                counted = frames[path].count()
            runs: dict[str, list[dict[str, float]]] = {path: [] for path in frames}
            for path, loaded in list(frames.items()) * arguments.runs:
                before_s = cpu_s(running.pid)
                begin = time.perf_counter()
                loaded.write.format("noop").mode("overwrite").save()
                elapsed_s = time.perf_counter() - begin
                runs[path].append(
                    {
                        "events_per_s": round(counted / elapsed_s),
                        "events_per_s_per_core": round(counted / elapsed_s / arguments.cores),
                        "mb_per_s": round(counted * arguments.event_bytes / elapsed_s / 1e6, 1),
                        "server_cpu_s": round(cpu_s(running.pid) - before_s, 2),
                    }
                )
            best = {path: max(run["events_per_s"] for run in each) for path, each in runs.items()}
            rates.append(
                {
                    "columns": columns or "all five",
                    "direct_to_store": round(best["direct"] / best["store"], 2),
                    **runs,
                }
            )
        spark.stop()
        report(
            "spark-read",
            {
                "events": counted,
                "event_bytes": arguments.event_bytes,
                "flushed_share": round(flushed_share, 3),
                "reads": rates,
                "raw_disk": disk,
            },
        )


if __name__ == "__main__":
    main()
