"""Spark streaming read: rows per second and core of a query with `availableNow` into `noop`, beside a batch read.

Both read the whole stream in one session, in turns. `stream_floor` and `batch_floor` are a source in Python that gives
out one ready batch over and over, read by the same two ways: what Spark itself takes more for a streaming query.
`phases_ms` is what Spark reports of the micro-batches. `beside_ms` is what a run takes beside them: a Python process of
the query's own, its imports, and the checkpoint. `micro_batch_to_batch` compares the micro-batches alone.

    python bench/spark_stream_read.py --events 6000000 --event-bytes 100 --segments 4 --cores 2
    python bench/spark_stream_read.py --quick
"""

from __future__ import annotations

import itertools
import statistics
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import parser, raw_disk, report, server, work_directory
from _spark import in_turns, measured, medians, ratios, ready_batches, start_session, wait_until_flushed
from spark_read import SETTINGS, STREAM, write_events, write_nowhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("event", "scope", "stream", "segment_id", "offset")


class Streaming:
    """Runs of a frame as a streaming query, each with a checkpoint of its own, and what Spark reports of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        #: Of each run: the micro-batches, and the seconds before the first of them.
        self.progress: list[list[dict[str, Any]]] = []
        self.run_s: list[float] = []

    def run(self, frame: DataFrame, row_count: int) -> None:
        """Read all that is there now, and drop it."""
        checkpoint = self._directory / f"checkpoint-{next(self._numbers)}"
        begin_s = time.perf_counter()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        self.run_s.append(time.perf_counter() - begin_s)
        reports = [each for each in query.recentProgress if each["numInputRows"]]
        assert sum(each["numInputRows"] for each in reports) == row_count, reports
        self.progress.append(reports)  # type: ignore[arg-type]

    def batches_s(self) -> float:
        """Return the median of the seconds that the micro-batches of a run take, the first run left out."""
        runs = self.progress[1:] or self.progress
        return statistics.median(sum(each["durationMs"]["triggerExecution"] for each in run) for run in runs) / 1e3  # type: ignore[no-any-return]

    def figures(self) -> dict[str, Any]:
        """Return the medians of the phases over all micro-batches, and what a run takes beside them."""
        every = [each["durationMs"] for run in self.progress for each in run]
        names = sorted({name for each in every for name in each})
        beside_ms = [
            run_s * 1e3 - sum(each["durationMs"]["triggerExecution"] for each in run)
            for run, run_s in zip(self.progress, self.run_s, strict=True)
        ]
        return {
            "batches": statistics.median(len(run) for run in self.progress),
            "phases_ms": {name: statistics.median(each.get(name, 0) for each in every) for name in names},
            "beside_ms": round(statistics.median(beside_ms)),
        }


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--events", type=int, default=6_000_000)
    options.add_argument("--event-bytes", type=int, default=100)
    options.add_argument("--segments", type=int, default=4)
    options.add_argument("--cores", type=int, default=2)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--bytes-per-trigger", default="", help="maxBytesPerTrigger; none: one micro-batch")
    options.add_argument("--event-only", action="store_true", help="column `event` alone, not all five")
    options.add_argument("--sources-only", action="store_true", help="Spark's processes compile PySpark themselves")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.events, arguments.rounds = 20_000, 1
    columns = COLUMNS[:1] if arguments.event_only else COLUMNS
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory, "--cache-mb", "64", settings=SETTINGS) as running:
            write_events(running.uri, arguments.events, arguments.event_bytes, arguments.segments)
            flushed_share = wait_until_flushed(running.uri, STREAM)
            session = start_session(arguments.cores, directory, is_compiled=not arguments.sources_only)
            given = {"uri": running.uri, "stream": STREAM, "columns": ",".join(columns), "start": "earliest"}
            limit = {"maxBytesPerTrigger": arguments.bytes_per_trigger} if arguments.bytes_per_trigger else {}
            ready = (session, columns, arguments.events, arguments.event_bytes, arguments.segments)
            batch = session.read.format("penstock").options(**given).load()
            stream = session.readStream.format("penstock").options(**given, **limit).load()
            floor, stream_floor = ready_batches(*ready), ready_batches(*ready, is_streaming=True)
            streaming, streaming_floor = Streaming(directory / "source"), Streaming(directory / "floor")
            row_count = arguments.events // arguments.segments * arguments.segments
            works = {
                "batch": partial(write_nowhere, batch),
                "stream": partial(streaming.run, stream, arguments.events),
                "batch_floor": partial(write_nowhere, floor),
                "stream_floor": partial(streaming_floor.run, stream_floor, row_count),
            }
            turn = partial(
                measured,
                row_count=arguments.events, session=session, core_count=arguments.cores, server_pid=running.pid,
            )  # fmt: skip
            runs = in_turns({name: partial(turn, work) for name, work in works.items()}, arguments.rounds)
            session.stop()
        middle = medians(runs)
        report(
            "spark-stream-read",
            {
                "events": arguments.events,
                "event_bytes": arguments.event_bytes,
                "cores": arguments.cores,
                "columns": columns,
                "is_compiled": not arguments.sources_only,
                "flushed_share": round(flushed_share, 3),
                "ratio": ratios(middle, [("stream", "batch"), ("stream_floor", "batch_floor")]),
                "micro_batch_to_batch": round(middle["batch"]["elapsed_s"] / streaming.batches_s(), 2),
                "median": middle,
                "stream": streaming.figures(),
                "stream_floor": streaming_floor.figures(),
                "runs": runs,
                "raw_disk": disk,
            },
        )


if __name__ == "__main__":
    main()
