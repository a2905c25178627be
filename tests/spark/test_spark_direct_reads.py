"""Direct reads in a real Spark session: the chunks are read by the tasks, the store has the rest, and each says so."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.server.standalone_process import StandaloneProcess

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from penstock.spark.options import StoreSettings
from penstock.spark.planner import ByteRange
from penstock.spark.store import StoredStream, close_clients
from support.spark_queries import events_of, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

_LOGGING = "spark.sql.pyspark.worker.logging.enabled"


@pytest.fixture
def worker_logs(spark: SparkSession) -> Iterator[object]:
    """Return a function that waits until tasks have said so much of their reads of a stream; it returns the latest."""
    before = spark.conf.get(_LOGGING, "false")
    spark.conf.set(_LOGGING, "true")

    def said(stream: str, line_count: int) -> str:
        deadline_s = time.monotonic() + 120
        while True:
            rows = spark.tvf.python_worker_logs().where("logger = 'penstock.spark.reads'").collect()
            lines = [row.msg for row in sorted(rows, key=lambda row: row.ts) if f" {stream}/" in row.msg]
            if len(lines) >= line_count:
                return lines[-1]  # type: ignore[no-any-return]
            assert time.monotonic() < deadline_s, lines
            time.sleep(0.5)

    yield said
    spark.conf.set(_LOGGING, before or "false")


def flushed(store: StandaloneProcess, stream: str, tail: int, wanted_bytes: int) -> int:
    """Wait until long-term storage has so much of the only segment; return how much it has."""
    seen = StoredStream(StoreSettings(store.uri), *stream.split("/"))
    deadline_s = time.monotonic() + 120
    while True:
        (layout,) = seen.layouts([ByteRange(0, 0, tail)], 0.0)
        end = getattr(layout, "end", 0)
        if end >= wanted_bytes:
            close_clients()
            return end
        assert time.monotonic() < deadline_s, layout
        time.sleep(0.2)


def test_tasks_report_whether_they_read_chunks_directly(
    spark: SparkSession,
    store: StandaloneProcess,
    client: Client,
    new_stream: Callable[..., str],
    write: Callable[..., list[bytes]],
    worker_logs: Callable[[str, int], str],
) -> None:
    """The proof: a chunk that was damaged without the store's knowledge fails a query that reads chunks only.

    The store still has those bytes in memory, so a query that may use it continues from that very byte, and reports
    why.
    """
    stream = new_stream(1)
    events = Counter(write(stream, 90_000, size=100))
    tail = client.tail(stream).positions[0]
    stored = flushed(store, stream, tail, 4 * 1024 * 1024)
    chunks = spark.read.format("penstock").options(uri=store.uri, stream=stream, metadata="Chunks").load()
    rows = chunks.orderBy("start_offset").collect()
    assert [row.start_offset for row in rows] == [0, *(row.start_offset + row.length for row in rows[:-1])]
    assert stored <= sum(row.length for row in rows) <= tail
    assert all(Path(row.storage, row.name).stat().st_size >= row.length for row in rows)

    by_chunks = {"directReads": "always", "columns": "event"}
    assert events_of(read(spark, store, stream, **by_chunks)) == events
    line = worker_logs(stream, 1)
    assert line.startswith(f"bytes [0, {tail}) of segment {stream}/0.#epoch.0: ")
    direct, through_store = (int(part.split()[0]) for part in line.split(": ", 1)[1].split(", "))
    assert direct >= stored
    assert direct + through_store == tail
    assert str(store.data_dir) in line

    (chunk, *_) = sorted(Path(store.data_dir, "tier2", stream).glob("0.#epoch.0.E-*-O-0.*"))
    with chunk.open("r+b") as file:
        file.seek(600_000)
        byte = file.read(1)
        file.seek(600_000)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(Exception, match=r"CorruptionError.*0\.#epoch\.0\.E-"):
        read(spark, store, stream, **by_chunks).collect()
    assert events_of(read(spark, store, stream, columns="event")) == events
    line = worker_logs(stream, 2)
    assert ": 0 read directly" in line
    assert "CorruptionError" in line
