"""Workers that Spark uses again do not pay for what they have loaded with a full collection after each task."""

from __future__ import annotations

import gc
import weakref

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from penstock.spark import worker_memory
from penstock.spark.options import parse_sink_options, parse_source_options
from penstock.spark.sink import write_batches
from penstock.spark.source import PenstockBatchReader

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be a worker that Spark uses again."""
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setattr(worker_memory, "_frozen", set())


def test_a_process_that_is_no_worker_freezes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    count = gc.get_freeze_count()
    worker_memory.freeze_loaded("source")
    assert gc.get_freeze_count() == count


def test_each_role_freezes_once_and_no_garbage(reused: None) -> None:
    class Node:
        me: Node

    node = Node()
    node.me = node
    garbage = weakref.ref(node)
    del node
    count = gc.get_freeze_count()
    worker_memory.freeze_loaded("source")
    assert garbage() is None
    first = gc.get_freeze_count()
    assert first > count
    kept = [[number] for number in range(1000)]
    worker_memory.freeze_loaded("source")
    assert gc.get_freeze_count() == first
    worker_memory.freeze_loaded("sink")
    assert gc.get_freeze_count() >= first + len(kept)


def test_tasks_that_read_and_write_freeze_what_they_loaded(reused: None, store, new_stream, write) -> None:
    import pyarrow as pa

    stream = new_stream(1)
    write(stream, 3)
    reader = PenstockBatchReader(parse_source_options({"uri": store.uri, "stream": stream}))
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 3
    assert worker_memory._frozen == {"source"}
    write_batches(
        parse_sink_options({"uri": store.uri, "stream": stream}), iter([pa.RecordBatch.from_pydict({"event": [b"x"]})])
    )
    assert worker_memory._frozen == {"source", "sink"}


def test_workers_of_a_session_freeze_what_a_read_loaded(spark, store, new_stream, write) -> None:
    """Spark marks its workers as this package expects it: a source that reads as this one does tells of it."""
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Reader(DataSourceReader):
        def __init__(self, options: dict[str, str]) -> None:
            self._reader = PenstockBatchReader(parse_source_options(options))

        def partitions(self):
            return self._reader.partitions()

        def read(self, partition):
            row_count = sum(batch.num_rows for batch in self._reader.read(partition))
            yield (row_count, gc.get_freeze_count())

    class Frozen(DataSource):
        @classmethod
        def name(cls) -> str:
            return "frozen_objects"

        def schema(self) -> str:
            return "row_count long, frozen_count long"

        def reader(self, schema):
            return Reader(dict(self.options))

    stream = new_stream(2)
    write(stream, 20)
    spark.dataSource.register(Frozen)
    rows = spark.read.format("frozen_objects").options(uri=store.uri, stream=stream).load().collect()
    assert sum(row.row_count for row in rows) == 20
    assert min(row.frozen_count for row in rows) > 1000, rows
