"""The source and the sink through outages of a real server, in this process: no JVM is needed for what Spark calls.

A producer writes throughout each test, and outlasts the outages too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")
pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'penstock[spark]'")

from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: E402

import penstock  # noqa: E402
from penstock.model.errors import ControllerUnavailableError, OutcomeUnknownError  # noqa: E402
from penstock.server.standalone_process import StandaloneProcess  # noqa: E402
from penstock.spark.options import parse_sink_options, parse_source_options  # noqa: E402
from penstock.spark.sink import write_batches  # noqa: E402
from penstock.spark.source import PenstockStreamReader  # noqa: E402
from penstock.spark.store import close_clients  # noqa: E402
from support.live_writer import LiveWriter  # noqa: E402

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
def writer(server: StandaloneProcess) -> Iterator[LiveWriter]:
    """A producer, beside those events that tests write."""
    with penstock.connect(server.uri) as client, LiveWriter(client, STREAM, 0.02) as live:
        yield live


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


def read_parts(reader: PenstockStreamReader, parts: Sequence[object]) -> list[bytes]:
    batches = [batch for part in parts for batch in reader.read(part)]
    return sorted(event for batch in batches for event in batch.column("event").to_pylist())


def read(reader: PenstockStreamReader, start: object, end: object) -> list[bytes]:
    return read_parts(reader, reader.partitions(start, end))


def check_all(found: Sequence[bytes], writer: LiveWriter) -> None:
    """Check that `found`, sorted, are all of `EVENTS`, and the first ones of the writer, each once."""
    assert [event for event in found if event.startswith(b"event")] == EVENTS
    live = [event for event in found if not event.startswith(b"event")]
    assert live == writer.events[: len(live)]
    assert live


def test_a_streaming_query_and_its_sink_outlast_an_outage_of_five_seconds(
    server: StandaloneProcess, away: Callable[[float], None], writer: LiveWriter
) -> None:
    """Each step that Spark takes meets a server that is away: planning, reading, writing; new processes, too."""
    reader = PenstockStreamReader(
        parse_source_options({"uri": server.uri, "stream": STREAM, "startingStreamCut": "earliest"})
    )
    start = reader.initialOffset()
    away(5.0)
    write_batches(parse_sink_options({"uri": server.uri, "stream": STREAM}), iter([table()]))
    away(2.0)
    end = reader.latestOffset(start, ReadAllAvailable())
    close_clients()  # As in a task's process, which has never had a connection.
    away(2.0)
    found = read(reader, start, end)
    writer.wait_for(1, timeout_s=GUARD_S)
    check_all(found, writer)


def test_calls_that_are_under_way_when_the_server_dies_outlast_it(
    server: StandaloneProcess, away: Callable[[float], None], writer: LiveWriter
) -> None:
    """A driver that plans for several streams and a task that reads, each in a loop through an outage: none fails."""
    write_batches(parse_sink_options({"uri": server.uri, "stream": STREAM}), iter([table()]))
    options = parse_source_options({"uri": server.uri, "stream": "retail/*", "streamRefreshInterval": "0s"})
    rounds = {"driver": 0, "task": 0}
    failures: list[BaseException] = []
    is_over = threading.Event()

    def repeat(who: str, step: Callable[[], None]) -> None:
        while not is_over.is_set():
            try:
                step()
            except BaseException as error:  # noqa: BLE001  # shown by the test
                failures.append(error)
                return
            rounds[who] += 1

    driver, task = PenstockStreamReader(options), PenstockStreamReader(options)
    start = {"streams": {}, "v": 2}
    end = driver.latestOffset(start, ReadAllAvailable())
    parts = task.partitions(start, end)
    wanted = read_parts(task, parts)

    def length(offset: dict[str, object]) -> int:
        return sum(offset["streams"][STREAM]["positions"].values())

    def plan() -> None:
        assert length(driver.latestOffset(start, ReadAllAvailable())) >= length(end)
        assert driver.partitions(start, end)

    def read_all() -> None:
        assert read_parts(task, parts) == wanted

    def wait_for_rounds(count: int) -> None:
        wanted, until_s = {who: done + count for who, done in rounds.items()}, time.monotonic() + GUARD_S
        while any(rounds[who] < wanted[who] for who in rounds) and not failures and time.monotonic() < until_s:
            time.sleep(0.05)
        assert not failures
        assert all(rounds[who] >= wanted[who] for who in rounds)

    threads = [threading.Thread(target=repeat, args=each) for each in (("driver", plan), ("task", read_all))]
    for thread in threads:
        thread.start()
    try:
        wait_for_rounds(2)
        away(3.0)
        wait_for_rounds(3)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not failures
    writer.wait_for(1, timeout_s=GUARD_S)
    check_all(wanted, writer)


def test_a_server_that_hangs_fails_a_read_once_at_its_time_limit_and_the_next_one_reads_all(
    server: StandaloneProcess, writer: LiveWriter
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
    found = read(reader, start, end)
    writer.wait_for(1, timeout_s=GUARD_S)
    check_all(found, writer)
