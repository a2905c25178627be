"""Exports whose files Spark's executors write: the same table as without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark import cloudpickle

import penstock
from penstock.jobs.errors import ExportTargetError
from penstock.jobs.export import Exporter, FileMaker, WrittenFile
from penstock.jobs.iceberg_table import IcebergTable, open_catalog
from penstock.jobs.parquet_directory import ParquetDirectory
from penstock.jobs.rows import RowShape, fields_of
from penstock.jobs.source import JobSource
from penstock.jobs.spark_writer import SparkWriter
from penstock.spark.options import StoreSettings

SHAPE = RowShape("json", fields_of("n long"))


@dataclass(frozen=True)
class DoomedFiles:
    """Writes a file as is wanted; then its task fails, once for each marker that is not there."""

    files: FileMaker
    marker: str

    def write(self, rows: Iterable[pa.RecordBatch]) -> WrittenFile:
        written = self.files.write(rows)
        if not Path(self.marker).exists():
            Path(self.marker).touch()
            raise RuntimeError("RuntimeError: this worker dies")
        return written


class DoomedDirectory(ParquetDirectory):
    def new_files(self, *args: Any) -> Any:
        return DoomedFiles(super().new_files(*args), str(self.path.parent / "marker"))


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_executors_write_each_event_into_one_file_that_counts(
    spark: Any, store: Any, new_stream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """In several tasks, the first of which fails after its file: only the output of the repetition counts."""
    stream = new_stream()
    monkeypatch.setattr("penstock.jobs.spark_writer.TASK_BYTES_MIN", 1000)
    events = [b'{"n":%d}' % number for number in range(2000)]
    with penstock.connect(store.uri) as client:
        with client.event_writer(stream) as writer:
            writer.write_many(events, routing_keys=[str(number) for number in range(len(events))])
        head, tail = client.head(stream), client.tail(stream)
    if kind == "parquet":
        # Its module is none that workers know.
        cloudpickle.register_pickle_by_value(__import__("sys").modules[__name__])  # type: ignore[no-untyped-call]
        target: Any = DoomedDirectory(tmp_path / "out", stream, SHAPE.schema)
    else:
        pytest.importorskip("pyiceberg", reason="needs the extra: penstock[iceberg]")
        catalog = open_catalog("spark", {}, tmp_path / "out")
        target = IcebergTable(catalog, "events.all", stream, SHAPE.schema)
    source = JobSource(StoreSettings(uri=store.uri), head.scope, head.stream)
    exporter = Exporter(source, target, SparkWriter(spark, source, SHAPE, task_count=2), head, batch_bytes=20_000)
    if kind == "parquet":
        with pytest.raises(ExportTargetError, match="this worker dies"):
            exporter.run_to(tail, lambda _: None)
    exporter.run_to(tail, lambda _: None)
    assert exporter.report.commit_count > 1
    if kind == "parquet":
        table = pyarrow.dataset.dataset(tmp_path / "out").to_table()
        assert len(list((tmp_path / "out").glob("*.parquet"))) > exporter.report.commit_count
    else:
        table = catalog.load_table("events.all").scan().to_arrow()
    assert Counter(table["n"].to_pylist()) == Counter(range(len(events)))
