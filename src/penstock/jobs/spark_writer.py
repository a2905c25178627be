"""`SparkWriter`: writes the files of a batch in Spark's executors. Planning and commits stay in the driver.

A task reads its ranges of the stream itself, and writes one file with a name that no other attempt has. The driver gets
its path and number of rows; no events pass through it or through the JVM. So a task that is repeated, or runs twice,
leaves only files that no commit names.
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

#: Minimum number of bytes for a separate task.
TASK_BYTES_MIN = 8 * 1024 * 1024

#: Spark's prefix of the last failure of a task.
_LOST = "most recent failure: "
#: Maximum length of a failure in an error message, in characters.
_TOLD_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True)
class _Task:
    """The common parameters of the tasks of one batch. Pickled once for each."""

    store: StoreSettings
    scope: str
    stream: str
    shape: RowShape
    files: FileMaker
    shares: Sequence[Sequence[ByteRange]]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files of the shares whose numbers are in the input; yield their paths."""
        import pyarrow as pa

        source = JobSource(self.store, self.scope, self.stream)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                written = self.files.write(rows_of(source, self.shape, self.shares[number]))
                yield pa.RecordBatch.from_pydict({"place": [written.place], "row_count": [written.row_count]})


class SparkWriter:
    """See the module. Implements `RangeWriter`.

    Args:
        task_count: number of files of a batch, if it is large enough: the number of available cores.
    """

    def __init__(self, session: SparkSession, source: JobSource, shape: RowShape, *, task_count: int) -> None:
        self._session = session
        self._source = source
        self._shape = shape
        self._task_count = task_count

    def write(self, ranges: Sequence[ByteRange], files: FileMaker) -> Sequence[WrittenFile]:
        """See `RangeWriter.write`. Raises `ExportTargetError`: a task has failed after all retries."""
        shares = self._shares(ranges)
        source = self._source
        task = _Task(source.settings, source.scope, source.stream, self._shape, files, shares)
        run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = task.run
        numbers = self._session.range(len(shares), numPartitions=len(shares))
        try:
            done = numbers.mapInArrow(run, "place string, row_count long").collect()
        except Exception as error:
            raise ExportTargetError(f"Spark did not write a batch of {source.name}: {told_by(error)}") from error
        if len(done) != len(shares):
            raise ExportTargetError(f"Spark returned {len(done)} results for {len(shares)} tasks of {source.name}")
        return [WrittenFile(row["place"], row["row_count"]) for row in done]

    def _shares(self, ranges: Sequence[ByteRange]) -> list[list[ByteRange]]:
        """Divide the ranges into one share of about equal length for each task."""
        total = sum(each.length for each in ranges)
        count = max(min(self._task_count, total // TASK_BYTES_MIN), 1)
        pieces = split_ranges(self._source, ranges, bytes_max=max(-(-total // count), 1), count_min=1)
        shares: list[list[ByteRange]] = [[] for _ in range(count)]
        for piece in sorted(pieces, key=lambda each: (-each.length, each.segment, each.start)):
            min(shares, key=lambda share: sum(each.length for each in share)).append(piece)
        return [sorted(share, key=lambda each: (each.segment, each.start)) for share in shares if share]


def told_by(error: Exception) -> str:
    """Return the line of a page-long Spark failure that names the error of a task, or how the task was lost."""
    lines = [line.strip() for line in str(error).splitlines()]
    raised = next((line for line in reversed(lines) if "Error: " in line and not line.startswith("at ")), "")
    # A task that could not raise an error: killed, out of memory, or lost with its machine.
    lost = next((line.partition(_LOST)[2] for line in lines if _LOST in line), "")
    thrown = next((line for line in lines if "Exception: " in line and not line.startswith("at ")), "")
    told = raised or lost or thrown or next(filter(None, lines), type(error).__name__)
    return told if len(told) <= _TOLD_LENGTH_MAX else f"{told[:_TOLD_LENGTH_MAX]}..."


def open_session() -> SparkSession:
    """Return the Spark session of this process, as configured by ``spark-submit`` and Spark's files, or a local one.

    Raises `InvalidArgumentError`: PySpark is not installed, or there is no Java.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise InvalidArgumentError(missing_extra("Spark", "spark", error)) from error
    from penstock.spark.compiled import ensure_compiled
    from penstock.spark.errors import JavaNotFoundError
    from penstock.spark.java import ensure_java, ensure_local_address

    try:
        ensure_java()
    except JavaNotFoundError as error:
        raise InvalidArgumentError(str(error)) from error
    ensure_local_address()
    ensure_compiled()
    # Otherwise workers would run any python3 on the path, which may not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName("penstock").getOrCreate()
