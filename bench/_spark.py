"""What the commands about Spark share: a session, the CPU of all its processes, and measured turns."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from _common import CLOCK_TICKS_PER_S, cpu_s

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: How long is waited until long-term storage has it all.
FLUSH_S_MAX = 300.0

#: What one batch of the source that reads nothing has of events.
READY_BATCH_BYTES = 2 * 1024 * 1024


def start_session(core_count: int, directory: Path, *, is_compiled: bool = True) -> SparkSession:
    """Start a local session with so many cores; what it writes for itself goes below `directory`.

    `is_compiled`: its Python processes load PySpark compiled (`penstock.spark.ensure_compiled`).
    """
    from penstock.spark import ensure_compiled, ensure_java

    ensure_java()
    if is_compiled:
        ensure_compiled()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master(f"local[{core_count}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(directory / "spark"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "20000")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def ready_batches(
    session: SparkSession,
    columns: Sequence[str],
    row_count: int,
    event_bytes: int,
    task_count: int,
    *,
    is_streaming: bool = False,
) -> DataFrame:
    """Return a frame of a source in Python that gives out one ready batch over and over: no such source is faster."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

    batch_row_count = min(READY_BATCH_BYTES // event_bytes, 20_000)
    types = {"event": "binary", "scope": "string", "stream": "string", "segment_id": "bigint", "offset": "bigint"}

    # Within the function, so that they are sent to the workers, which do not find this module.
    class Ready:
        def read(self, partition: InputPartition) -> Iterator[object]:
            import pyarrow

            made: dict[str, object] = {
                "event": [b"x" * event_bytes] * batch_row_count,
                "scope": ["bench"] * batch_row_count,
                "stream": ["spark"] * batch_row_count,
                "segment_id": [1 << 32] * batch_row_count,
                "offset": [at * (event_bytes + 8) for at in range(batch_row_count)],
            }
            arrays = [pyarrow.array(made[name], pyarrow.binary() if name == "event" else None) for name in columns]
            batch = pyarrow.RecordBatch.from_arrays(arrays, names=list(columns))
            left = row_count // task_count
            while left:
                yield batch.slice(0, min(left, batch_row_count))
                left -= min(left, batch_row_count)

    class Reader(Ready, DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(number) for number in range(task_count)]

    class StreamReader(Ready, DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
            return {"at": 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
            return [InputPartition(number) for number in range(task_count)] if start != end else []

    class ReadyBatches(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready_batches"

        def schema(self) -> str:
            return ", ".join(f"{name} {types[name]}" for name in columns)

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

        def streamReader(self, schema: object) -> DataSourceStreamReader:
            return StreamReader()

    session.dataSource.register(ReadyBatches)
    return (session.readStream if is_streaming else session.read).format("ready_batches").load()


def session_cpu_s(session: SparkSession) -> float:
    """Return the CPU seconds of the session's Java and of all processes below it, ended ones included."""
    root = session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(path.parent.name)] = int(fields[1])
        used[int(path.parent.name)] = sum(map(int, fields[11:15]))
    total = 0
    for pid, ticks in used.items():
        above = pid
        while above not in (root, 0):
            above = parents.get(above, 0)
        total += ticks if above == root else 0
    return total / CLOCK_TICKS_PER_S


def measured(
    work: Callable[[], object], row_count: int, *, session: SparkSession, core_count: int, server_pid: int
) -> dict[str, float]:
    """Return how fast something was done with so many rows: by the clock, and by the CPU of Spark and the store."""
    before_s, before_server_s = session_cpu_s(session), cpu_s(server_pid)
    begin_s = time.perf_counter()
    work()
    elapsed_s = time.perf_counter() - begin_s
    server_s = cpu_s(server_pid) - before_server_s
    used_s = session_cpu_s(session) - before_s + server_s
    return {
        "elapsed_s": round(elapsed_s, 3),
        "rows_per_s_per_core": round(row_count / elapsed_s / core_count),
        "rows_per_cpu_s": round(row_count / max(used_s, 0.01)),
        "server_cpu_s": round(server_s, 2),
    }


def in_turns(
    works: Mapping[str, Callable[[], dict[str, float]]], round_count: int
) -> dict[str, list[dict[str, float]]]:
    """Do each, in turns, after a round that does not count."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in works}
    for number in range(round_count + 1):
        for name, work in works.items():
            found = work()
            if number:
                runs[name].append(found)
    return runs


def medians(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the median of each figure over the runs of each."""
    return {
        name: {figure: statistics.median(run[figure] for run in each) for figure in each[0]}
        for name, each in runs.items()
    }


def ratios(found: Mapping[str, Mapping[str, float]], pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, float]]:
    """Return for each pair how many times as fast the first one is, by the clock and by CPU."""
    return {
        f"{one}_to_{other}": {
            figure: round(found[one][figure] / found[other][figure], 2)
            for figure in ("rows_per_s_per_core", "rows_per_cpu_s")
        }
        for one, other in pairs
    }


def wait_until_flushed(uri: str, stream_name: str) -> float:
    """Return the share of the stream that long-term storage has, once that is all or the time is over."""
    from penstock.spark.options import StoreSettings
    from penstock.spark.planner import ByteRange
    from penstock.spark.store import StoredStream, close_clients

    stream = StoredStream(StoreSettings(uri), *stream_name.split("/"))
    ranges = [ByteRange(segment, 0, end) for segment, end in stream.tail().items() if end]
    deadline_s = time.monotonic() + FLUSH_S_MAX
    while True:
        stored = sum(getattr(layout, "end", 0) for layout in stream.layouts(ranges, 0.0))
        share = stored / sum(each.length for each in ranges)
        if share == 1.0 or time.monotonic() > deadline_s:
            close_clients()
            return share
        time.sleep(0.5)
