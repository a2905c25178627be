"""A query and an export whose driver, workers, store and exporter are killed at random points. By night."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'penstock[spark]'")

from support.spark_kills import VICTIMS, KillRuns

RUN_COUNT = 100


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(14_400)
def test_each_row_is_once_in_stream_and_table_whatever_is_killed(spark_environment: None, tmp_path: Path) -> None:
    """Counted behind each run; `python -m support.spark_kills` does the same by hand, with another seed."""
    with KillRuns(tmp_path, seed=1) as runs:
        for number in range(RUN_COUNT):
            runs.run()
            assert runs.report.is_exact, f"run {number}: {runs.report}"
    report = runs.report
    assert report.runs == RUN_COUNT
    # All of them died, and in the midst of things.
    assert all(report.kills[victim] >= RUN_COUNT / 20 for victim in VICTIMS)
    assert all(report.moments[moment] > 0 for moment in ("micro-batch", "open", "intent", "export"))
