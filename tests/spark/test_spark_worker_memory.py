"""Workers that Spark uses again do not pay for what they have loaded with a full collection after each task."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from penstock.server.standalone_process import StandaloneProcess

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from penstock.spark import worker_memory
from penstock.spark.options import parse_sink_options, parse_source_options
from penstock.spark.sink import write_batches
from penstock.spark.source import PenstockBatchReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def reused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process be a worker that Spark uses again."""
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    monkeypatch.setattr(worker_memory, "_frozen", set())
    yield
    gc.unfreeze()


#: Says what of its own objects a process has frozen. A process of its own: in that of the tests, threads of py4j and of
#: fixtures create and drop objects, frozen ones as well.
PROCESS = """
import gc, json, weakref
from penstock.spark.worker_memory import freeze_loaded

class Node:
    pass

def is_frozen(kept):
    return all(known is not kept for known in gc.get_objects())

node = Node()
node.me = node
garbage = weakref.ref(node)
del node
first = [1]
freeze_loaded("source")
second = [2]
freeze_loaded("source")
is_second_frozen_as_source = is_frozen(second)
freeze_loaded("sink")
print(json.dumps({
    "garbage_is_collected": garbage() is None,
    "first": is_frozen(first),
    "second_as_source": is_second_frozen_as_source,
    "second_as_sink": is_frozen(second),
    "count": gc.get_freeze_count(),
}))
"""


def frozen_in_a_process(environment: dict[str, str]) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_a_process_other_than_a_worker_freezes_no_objects() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    found = frozen_in_a_process(environment)
    assert (found["first"], found["second_as_source"], found["second_as_sink"]) == (False, False, False)
    assert found["count"] == 0


def test_each_role_freezes_once_and_no_garbage() -> None:
    found = frozen_in_a_process({**os.environ, "SPARK_REUSE_WORKER": "1"})
    assert found["garbage_is_collected"], found
    assert (found["first"], found["second_as_source"], found["second_as_sink"]) == (True, False, True)


def test_tasks_that_read_and_write_freeze_what_they_loaded(
    reused: None, store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
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


def test_workers_of_a_session_freeze_what_a_read_loaded(
    spark: SparkSession, store: StandaloneProcess, new_stream: Callable[..., str], write: Callable[..., list[bytes]]
) -> None:
    """Spark marks its workers as this package expects it: a source that reads as this one does reports it."""
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Reader(DataSourceReader):
        def __init__(self, options: dict[str, str]) -> None:
            self._reader = PenstockBatchReader(parse_source_options(options))

        def partitions(self) -> Sequence[InputPartition]:
            return self._reader.partitions()

        def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
            row_count = sum(batch.num_rows for batch in self._reader.read(partition))
            yield (row_count, gc.get_freeze_count())

    class Frozen(DataSource):
        @classmethod
        def name(cls) -> str:
            return "frozen_objects"

        def schema(self) -> str:
            return "row_count long, frozen_count long"

        def reader(self, schema: StructType) -> Reader:
            return Reader(dict(self.options))

    stream = new_stream(2)
    write(stream, 20)
    spark.dataSource.register(Frozen)
    rows = spark.read.format("frozen_objects").options(uri=store.uri, stream=stream).load().collect()
    assert sum(row.row_count for row in rows) == 20
    assert min(row.frozen_count for row in rows) > 1000, rows
