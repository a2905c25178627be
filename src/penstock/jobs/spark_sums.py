"""`SparkSums`: reads and sums chunks in Spark's executors. The driver plans the reads and classifies the results.

A task reads long-term storage itself and returns a row for each of its parts, but no data. It changes nothing, so it
may fail, be repeated, or run twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.jobs.chunk_sums import Finding, PartResult, sum_parts
from penstock.jobs.errors import SparkTaskError
from penstock.jobs.spark_writer import told_by
from penstock.spark.options import StoreSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.client.transport.chunk_layouts import SegmentLayout

_log = logging.getLogger(__name__)

#: Attempts of a round of parts. A cluster repeats tasks itself; a local session only if configured to.
TRY_COUNT_MAX = 3

_COLUMNS = "share int, finding string, offset long, read_bytes long, message string"


@dataclass(frozen=True, slots=True)
class _Task:
    """The common parameters of the tasks of one round. Pickled once for each."""

    store: StoreSettings
    place: str
    shares: Sequence[Sequence[SegmentLayout]]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Sum the shares whose numbers are in the input; yield a row for each of their parts, in order."""
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                results = sum_parts(self.store, self.place, self.shares[number])
                yield pa.RecordBatch.from_pydict(
                    {
                        "share": pa.array([number] * len(results), pa.int32()),
                        "finding": [result.finding.value for result in results],
                        "offset": [result.offset for result in results],
                        "read_bytes": [result.read_bytes for result in results],
                        "message": [result.message for result in results],
                    }
                )


class SparkSums:
    """See the module. Implements `PartSums`."""

    def __init__(self, session: SparkSession, store: StoreSettings, place: str = "", *, task_count: int) -> None:
        self._session = session
        self._store = store
        self._place = place
        self.task_count: int = task_count

    def run(self, parts: Sequence[SegmentLayout]) -> Sequence[PartResult]:
        """See `PartSums.run`. Raises `SparkTaskError`: tasks have failed after all retries."""
        numbers = _shared([part.end - part.start for part in parts], self.task_count)
        task = _Task(self._store, self._place, [[parts[at] for at in share] for share in numbers])
        results: list[PartResult | None] = [None] * len(parts)
        for number, rows in self._rows(task).items():
            for at, row in zip(numbers[number], rows, strict=True):
                results[at] = row
        found = [result for result in results if result is not None]
        if len(found) != len(parts):
            raise SparkTaskError(f"Spark returned {len(found)} results for {len(parts)} parts of chunks")
        return found

    def _rows(self, task: _Task) -> dict[int, list[PartResult]]:
        """Return the results of each share."""
        run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = task.run
        shares = self._session.range(len(task.shares), numPartitions=len(task.shares))
        for left in reversed(range(TRY_COUNT_MAX)):
            try:
                told = shares.mapInArrow(run, _COLUMNS).collect()
                break
            except Exception as error:
                if not left:
                    raise SparkTaskError(f"Spark did not compute the checksums of chunks: {told_by(error)}") from error
                _log.warning("tasks that compute checksums of chunks failed and are run again: %s", told_by(error))
        rows: dict[int, list[PartResult]] = {}
        for row in told:
            result = PartResult(Finding(row["finding"]), row["offset"], row["read_bytes"], row["message"])
            rows.setdefault(row["share"], []).append(result)
        return rows


def _shared(lengths: Sequence[int], count_max: int) -> list[list[int]]:
    """Divide the numbers of the parts into this many shares of about equal length."""
    shares: list[list[int]] = [[] for _ in range(min(count_max, len(lengths)))]
    totals = [0] * len(shares)
    for number in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        least = totals.index(min(totals))
        shares[least].append(number)
        totals[least] += lengths[number]
    return shares
