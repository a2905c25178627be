"""`SparkWriter`: has Spark's executors write the files of a batch. What is planned and committed stays in the driver.

A task reads its ranges of the stream by itself, and writes one file of a name that no other attempt has; the driver is
told its place and number of rows, and nothing of the events passes through it or through the JVM. So what a task that
is repeated, or runs twice, has left behind is a file that no commit names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.jobs.errors import ExportTargetError
from penstock.jobs.export import FileMaker, WrittenFile, rows_of
from penstock.jobs.rows import RowShape
from penstock.jobs.source import JobSource
from penstock.model.errors import InvalidArgumentError
from penstock.runtime.extras import missing_extra
from penstock.spark.options import StoreSettings
from penstock.spark.planner import ByteRange, split_ranges

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: Less than this is no work for a task of its own.
TASK_BYTES_MIN = 8 * 1024 * 1024

#: What Spark puts before the last end of a task.
_LOST = "most recent failure: "
#: Characters of a failure that are told.
_TOLD_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True)
class _Task:
    """What the tasks of one batch have in common. Pickled once for each."""

    store: StoreSettings
    scope: str
    stream: str
    shape: RowShape
    files: FileMaker
    shares: Sequence[Sequence[ByteRange]]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the file of each share whose number comes in; yield where it is."""
        import pyarrow as pa

        source = JobSource(self.store, self.scope, self.stream)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                written = self.files.write(rows_of(source, self.shape, self.shares[number]))
                yield pa.RecordBatch.from_pydict({"place": [written.place], "row_count": [written.row_count]})


class SparkWriter:
    """See the module. Implements `RangeWriter`.

    Args:
        task_count: into how many files a batch goes, if it is large enough: the cores that there are.
    """

    def __init__(self, session: SparkSession, source: JobSource, shape: RowShape, *, task_count: int) -> None:
        self._session = session
        self._source = source
        self._shape = shape
        self._task_count = task_count

    def write(self, ranges: Sequence[ByteRange], files: FileMaker) -> Sequence[WrittenFile]:
        """See `RangeWriter.write`. Raises `ExportTargetError`: a task has failed for the last time."""
        shares = self._shares(ranges)
        source = self._source
        task = _Task(source.settings, source.scope, source.stream, self._shape, files, shares)
        run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = task.run
        numbers = self._session.range(len(shares), numPartitions=len(shares))
        try:
            done = numbers.mapInArrow(run, "place string, row_count long").collect()
        except Exception as error:
            raise ExportTargetError(f"Spark has not written a batch of {source.name}: {told_by(error)}") from error
        if len(done) != len(shares):
            raise ExportTargetError(f"Spark gave {len(done)} results of {len(shares)} tasks of {source.name}")
        return [WrittenFile(row["place"], row["row_count"]) for row in done]

    def _shares(self, ranges: Sequence[ByteRange]) -> list[list[ByteRange]]:
        """Return the ranges in as many shares as there are to be tasks, each about as long as the others."""
        total = sum(each.length for each in ranges)
        count = max(min(self._task_count, total // TASK_BYTES_MIN), 1)
        pieces = split_ranges(self._source, ranges, bytes_max=max(-(-total // count), 1), count_min=1)
        shares: list[list[ByteRange]] = [[] for _ in range(count)]
        for piece in sorted(pieces, key=lambda each: (-each.length, each.segment, each.start)):
            min(shares, key=lambda share: sum(each.length for each in share)).append(piece)
        return [sorted(share, key=lambda each: (each.segment, each.start)) for share in shares if share]


def told_by(error: Exception) -> str:
    """Return of a failure of Spark's, which is a page, the line that says what a task raised, or what became of it."""
    lines = [line.strip() for line in str(error).splitlines()]
    raised = next((line for line in reversed(lines) if "Error: " in line and not line.startswith("at ")), "")
    # Of a task that could not raise anything any more: killed, out of memory, with its machine.
    lost = next((line.partition(_LOST)[2] for line in lines if _LOST in line), "")
    thrown = next((line for line in lines if "Exception: " in line and not line.startswith("at ")), "")
    told = raised or lost or thrown or next(filter(None, lines), type(error).__name__)
    return told if len(told) <= _TOLD_LENGTH_MAX else f"{told[:_TOLD_LENGTH_MAX]}..."


def open_session() -> SparkSession:
    """Return the Spark session of this process, as ``spark-submit`` and Spark's files have it, or else a local one.

    Raises `InvalidArgumentError`: PySpark is not installed, or no Java is there.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidArgumentError(missing_extra("Spark", "spark", error)) from error
    from penstock.spark.java import JavaNotFoundError, ensure_java

    try:
        ensure_java()
    except JavaNotFoundError as error:
        raise InvalidArgumentError(str(error)) from error
    # Workers would run whatever is called python3, which may not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName("penstock").getOrCreate()
