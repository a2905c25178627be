"""Random kills of the driver, workers, store and exporter of a query and an export, in nightly runs; and the count.

What is counted of these runs is that nothing is missing or doubled: so it is shown that the count finds both.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'penstock[spark]'")

import penstock
from penstock.jobs.export import Exporter, HereWriter
from penstock.jobs.parquet_directory import ParquetDirectory
from penstock.jobs.rows import RowShape
from penstock.jobs.source import JobSource
from penstock.spark.options import StoreSettings
from penstock.testing.server import MemoryServer
from support.spark_kills import (
    BOTH,
    EXECUTOR,
    REPETITIONS_MAX,
    VICTIMS,
    KillRuns,
    missing_and_doubled,
    rows_of_stream,
    rows_of_table,
)

RUN_COUNT = 100


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(14_400)
def test_each_row_is_once_in_stream_and_table_under_any_kill(spark_environment: None, tmp_path: Path) -> None:
    """Counted behind each run; `python -m support.spark_kills` does the same by hand, with another seed."""
    with KillRuns(tmp_path, seed=1) as runs:
        for number in range(RUN_COUNT):
            runs.run()
            assert runs.report.is_exact, f"run {number}: {runs.report}"
    report = runs.report
    assert report.runs == RUN_COUNT
    # All of them died, and while they worked.
    assert all(report.kills[victim] >= RUN_COUNT / 20 for victim in VICTIMS)
    assert all(report.moments[moment] > 0 for moment in ("micro-batch", "open", "intent", "export"))


def test_planted_duplicates_and_losses_are_counted(penstock_server: MemoryServer, tmp_path: Path) -> None:
    """Rows that are missing or doubled in the stream are so in the table; and then some of the table's own."""
    rows = [b"row %d" % number for number in range(100)]
    planted = [*rows[:7], *rows[8:], rows[3], rows[3], rows[50]]
    shape = RowShape("binary")
    with penstock_server.connect() as client:
        for stream, events in (("kills/sound", rows), ("kills/planted", planted)):
            client.create_stream(stream, scaling=penstock.Scaling.fixed(2))
            with client.event_writer(stream) as writer:
                writer.write_many(events, routing_keys=[str(number % 7) for number in range(len(events))])
            start, end = client.head(stream), client.tail(stream)
            source = JobSource(StoreSettings(uri=penstock_server.uri), start.scope, start.stream)
            target = ParquetDirectory(tmp_path / start.stream, stream, shape.schema)
            Exporter(source, target, HereWriter(source, shape), start, batch_bytes=300).run_to(end, lambda _: None)
        sound, off = rows_of_stream(client, "kills/sound"), rows_of_stream(client, "kills/planted")
    assert missing_and_doubled(sound, 100) == (0, 0)
    assert missing_and_doubled(sound, 101) == (1, 0)
    assert missing_and_doubled([*sound, b"of none"], 100) == (0, 1)
    assert missing_and_doubled(off, 100) == (1, 3)
    assert missing_and_doubled(rows_of_table(tmp_path / "planted"), 100) == (1, 3)

    table = tmp_path / "sound"
    assert missing_and_doubled(rows_of_table(table), 100) == (0, 0)
    first, *_, last = sorted(table.glob("*.parquet"))
    shutil.copy(first, table / "again.parquet")
    _, doubled = missing_and_doubled(rows_of_table(table), 100)
    assert doubled > 0
    last.unlink()
    missing, again = missing_and_doubled(rows_of_table(table), 100)
    assert missing > 0
    assert again == doubled


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_sink_that_appends_doubles_rows_when_its_driver_dies_and_the_count_says_so(
    spark_environment: None, tmp_path: Path
) -> None:
    """Killed when rows of a micro-batch are in the stream and Spark has not noted that it is done: not by chance."""
    with KillRuns(tmp_path, seed=1, is_exactly_once=False) as runs:
        for _ in range(5):
            runs.run()
            if runs.report.kills["driver"]:
                break
    report = runs.report
    assert (report.kills["driver"], report.moments["written"]) == (1, 1)
    assert report.doubled > 0
    assert report.exported_doubled == report.doubled
    assert (report.missing, report.exported_missing) == (0, 0)
    assert not report.is_exact


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_executors_that_are_processes_of_their_own_may_die(spark_environment: None, tmp_path: Path) -> None:
    """On a cluster of two; Spark starts another one, and runs what was lost again."""
    with KillRuns(tmp_path, seed=1, executors=2) as runs:
        for _ in range(10):
            runs.run(EXECUTOR)
            assert runs.report.is_exact, runs.report
            if runs.report.kills[EXECUTOR] >= 3 and runs.report.moments["micro-batch"]:
                break
    assert runs.report.kills[EXECUTOR] >= 3
    assert runs.report.moments["micro-batch"] > 0


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_a_query_whose_server_and_driver_die_together_again_and_again_is_exact(
    spark_environment: None, tmp_path: Path
) -> None:
    """Up to three times before the query was through once: the restart itself is interrupted, too."""
    with KillRuns(tmp_path, seed=1) as runs:
        for number in range(10):
            killed = runs.report.kills[BOTH]
            runs.run(BOTH, kill_count=REPETITIONS_MAX)
            assert runs.report.is_exact, f"run {number}: {runs.report}"
            assert runs.report.kills[BOTH] - killed <= REPETITIONS_MAX
    assert runs.report.kills[BOTH] > 10
    assert runs.report.moments["micro-batch"] > 0
