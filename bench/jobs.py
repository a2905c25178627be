"""Jobs over whole streams: exports to Parquet and Iceberg, a replay and a backfill, of the same events.

python bench/jobs.py --events 1000000
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import penstock
from _common import parser, raw_disk, report, server, work_directory
from penstock.jobs.backfill import BackfillSource
from penstock.jobs.export import Exporter, ExportTarget, HereWriter
from penstock.jobs.iceberg_table import IcebergTable, open_catalog
from penstock.jobs.ledgered_copy import LedgeredCopy, Pace, open_job
from penstock.jobs.parquet_directory import ParquetDirectory
from penstock.jobs.replay import ReplayPlan, ReplaySource
from penstock.jobs.rows import RowShape, fields_of
from penstock.jobs.source import JobSource
from penstock.model.errors import InvalidArgumentError
from penstock.spark.options import StoreSettings

STREAM = "bench/jobs"
BATCH_BYTES = 256 * 1024 * 1024
PORTION_BYTES = 16 * 1024 * 1024


def measured(work: Callable[[], None], event_count: int) -> dict[str, float]:
    """Return how fast something was done with so many events, by the clock and by this process's CPU."""
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    work()
    elapsed_s, own_cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    return {
        "events_per_s": round(event_count / elapsed_s),
        "events_per_cpu_s": round(event_count / own_cpu_s),
        "elapsed_s": round(elapsed_s, 2),
    }


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--events", type=int, default=1_000_000)
    arguments = options.parse_args()
    if arguments.quick:
        arguments.events = 20_000
    count = arguments.events
    with work_directory(arguments) as directory:
        disk = raw_disk(directory)
        with server(directory) as running, penstock.connect(running.uri) as client:
            client.create_stream(STREAM, scaling=penstock.Scaling.fixed(2))
            with client.event_writer(STREAM) as writer:
                for first in range(0, count, 10_000):
                    numbers = range(first, min(first + 10_000, count))
                    writer.write_many([b'{"order":%d,"pad":"%080d"}' % (number, number) for number in numbers])
            start, end = client.head(STREAM), client.tail(STREAM)
            source = JobSource(StoreSettings(uri=running.uri), start.scope, start.stream)

            def export(target: ExportTarget, shape: RowShape) -> None:
                exporter = Exporter(source, target, HereWriter(source, shape), start, batch_bytes=BATCH_BYTES)
                exporter.run_to(end, lambda _: None)
                assert exporter.report.row_count == count

            def copy(portions: ReplaySource | BackfillSource, target: str) -> None:
                client.create_stream(target, scaling=penstock.Scaling.fixed(2))
                call, part = client._portal.call, client._part
                call(open_job(part, "bench", target))
                made = LedgeredCopy(call, part, "bench", target, portions)
                made.run(Pace(), lambda _: None)
                assert made.report.event_count == count

            plain, parsed = RowShape("binary"), RowShape("json", fields_of("order long, pad string"))
            backup = directory / "parquet"

            def to_parquet(place: Path, shape: RowShape) -> Callable[[], None]:
                return lambda: export(ParquetDirectory(place, STREAM, shape.schema), shape)

            figures: dict[str, object] = {
                "event_bytes": round(sum(end.positions.values()) / count),
                "export_parquet": measured(to_parquet(backup, plain), count),
                "export_parquet_json": measured(to_parquet(directory / "json", parsed), count),
            }
            try:
                catalog = open_catalog("bench", {}, directory / "iceberg")
                table = IcebergTable(catalog, "bench.jobs", STREAM, plain.schema)
                figures["export_iceberg"] = measured(lambda: export(table, plain), count)
            except InvalidArgumentError as error:
                figures["export_iceberg"] = str(error)
            plan = ReplayPlan("bench", start, end, None)
            replayed = ReplaySource(source, plan, bytes_max=PORTION_BYTES)
            figures["replay"] = measured(lambda: copy(replayed, "bench/replayed"), count)
            filled = BackfillSource([backup], bytes_max=PORTION_BYTES)
            figures["backfill"] = measured(lambda: copy(filled, "bench/filled"), count)
            report("jobs", {**figures, "raw_disk": disk})


if __name__ == "__main__":
    main()
