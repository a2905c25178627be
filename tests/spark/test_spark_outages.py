"""The source and the sink through outages of a real server, in this process: no JVM is needed for what Spark calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")
pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'penstock[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: E402

import penstock  # noqa: E402
from penstock.model.errors import ControllerUnavailableError, OutcomeUnknownError  # noqa: E402
from penstock.spark.options import parse_sink_options, parse_source_options  # noqa: E402
from penstock.spark.sink import write_batches  # noqa: E402
from penstock.spark.source import PenstockStreamReader  # noqa: E402
from penstock.spark.store import close_clients  # noqa: E402
from penstock.standalone_process import StandaloneProcess  # noqa: E402

STREAM = "retail/orders"
EVENTS = [b"event %06d" % number for number in range(2000)]
#: No test waits so long; a limit that multiplies does.
GUARD_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path) as process:
        with penstock.connect(process.uri) as client:
            client.create_stream(STREAM, scaling=penstock.Scaling.fixed(2))
        yield process
        close_clients()


@pytest.fixture
def away(server: StandaloneProcess) -> Iterator[Callable[[float], None]]:
    """Return a function that kills the server and starts it again after so many seconds, in the background."""
    threads: list[threading.Thread] = []

    def take_away(outage_s: float) -> None:
        for thread in threads:
            thread.join()  # The last outage is over.

        def bring_back() -> None:
            time.sleep(outage_s)
            server.start()

        server.kill9()
        threads.append(threading.Thread(target=bring_back))
        threads[-1].start()

    yield take_away
    for thread in threads:
        thread.join()


def table() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"event": EVENTS, "routing_key": [f"key {at % 7}" for at in range(len(EVENTS))]})


def read(reader: PenstockStreamReader, start: object, end: object) -> list[bytes]:
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [event for batch in batches for event in batch.column("event").to_pylist()]


def test_a_streaming_query_and_its_sink_outlast_an_outage_of_five_seconds(
    server: StandaloneProcess, away: Callable[[float], None]
) -> None:
    """Each step that Spark takes meets a server that is away: planning, reading, writing; new processes, too."""
    reader = PenstockStreamReader(
        parse_source_options({"uri": server.uri, "stream": STREAM, "startingStreamCut": "earliest"})
    )
    start = reader.initialOffset()
    away(5.0)
    write_batches(parse_sink_options({"uri": server.uri, "stream": STREAM}), iter([table()]))
    away(5.0)
    end = reader.latestOffset(start, ReadAllAvailable())
    close_clients()  # As in a task's process, which has never had a connection.
    away(5.0)
    assert sorted(read(reader, start, end)) == EVENTS


def test_a_server_that_hangs_fails_a_read_once_at_its_time_limit_and_the_next_one_reads_all(
    server: StandaloneProcess,
) -> None:
    """The limit is three seconds: it was multiplied by every layer, to minutes."""
    options = {"uri": server.uri, "stream": STREAM, "startingStreamCut": "earliest", "readTimeout": "3s"}
    write_batches(parse_sink_options({"uri": server.uri, "stream": STREAM}), iter([table()]))
    reader = PenstockStreamReader(parse_source_options(options))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = reader.partitions(start, end)
    server.pause()
    try:
        began_s = time.monotonic()
        with pytest.raises(OutcomeUnknownError, match="readTimeout"):
            list(reader.read(parts[0]))
        with pytest.raises((OutcomeUnknownError, ControllerUnavailableError)):
            reader.latestOffset(start, ReadAllAvailable())
        assert time.monotonic() - began_s < GUARD_S
    finally:
        server.resume()
    assert sorted(read(reader, start, end)) == EVENTS
