"""The run itself: store up, flights in, query, restart half-way, query again, results out and checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.model.errors import PenstockError
from penstock.model.events import EVENT_HEADER_LENGTH
from penstock.quickstart import query
from penstock.quickstart.flights import END_CARRIER, Flights, end_of_year_event, load_flights, slices
from penstock.quickstart.query import PassResult, latest_straggler
from penstock.quickstart.results import AccountingError, Results, check_accounts, parse_results
from penstock.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock import Client

FLIGHTS_STREAM = "quickstart/flights"
DELAYS_STREAM = "quickstart/delays"
#: Segments of the two streams.
FLIGHTS_SEGMENT_COUNT = 4
DELAYS_SEGMENT_COUNT = 2
#: Flights handed to the writer at once.
WRITE_SLICE_COUNT = 10_000


class Watcher(Protocol):
    """Shows how a run goes on."""

    def phase(self, title: str, total: int | None = None) -> AbstractContextManager[Callable[[int], None]]:
        """Enter a phase; the context's value is called with how much of `total` is done."""

    def note(self, text: str) -> None:
        """Show a line."""


@dataclass(slots=True)
class Report:
    """What a run did. Times are in seconds."""

    flight_count: int = 0
    payload_bytes: int = 0
    passes: list[PassResult] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    results: Results | None = None
    total_s: float = 0.0

    @property
    def dropped_count(self) -> int:
        """Rows that the query dropped as too late."""
        return sum(each.dropped_count for each in self.passes)

    @property
    def latest_straggler(self) -> timedelta:
        """How far the latest flight lay behind a flight of an earlier micro-batch, in scheduled time."""
        return latest_straggler(hours for each in self.passes for hours in each.hours_seen)

    @property
    def batch_count(self) -> int:
        """Micro-batches that read any flights."""
        return sum(each.batch_count for each in self.passes)


class _Stopwatch:
    def __init__(self, report: Report) -> None:
        self._report = report

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._report.seconds[name] = time.monotonic() - started


def run_quickstart(work_dir: Path, watcher: Watcher, limit: int | None = None, tier2: str | None = None) -> Report:
    """Run the quickstart in `work_dir`, an empty or new directory, with the year's flights or the first `limit`.

    `tier2`: see ``penstock standalone --tier2``.

    Raises:
        AccountingError: a flight is not in exactly one result.
        PenstockError: whatever else went wrong, by its type.
    """
    import penstock
    from penstock.spark import ensure_java

    report = Report()
    clock = _Stopwatch(report)
    started = time.monotonic()
    work_dir.mkdir(parents=True, exist_ok=True)
    spark_log = work_dir / "spark.log"
    with ExitStack() as at_end:
        # Ctrl-C reaches this process alone, which then stops the store in order.
        where = ("--tier2", tier2) if tier2 else ()
        store = StandaloneProcess(work_dir / "store", *where, has_own_session=True)
        at_end.callback(store.stop)
        with watcher.phase("Starting the store"), clock("store start"):
            store.start()
        with watcher.phase("Reading the flights"), clock("load"):
            flights = load_flights(limit)
        report.flight_count, report.payload_bytes = len(flights), flights.payload_bytes
        with (
            penstock.connect(store.uri) as client,
            watcher.phase("Writing flights, keyed by aircraft", len(flights)) as advance,
            clock("ingest"),
        ):
            create_streams(client)
            ingest(client, flights, advance)
        with watcher.phase("Starting Spark"), clock("spark start"):
            ensure_java()
            session = query.start_session(spark_log)
        try:
            _run_query(session, store, flights, report, watcher, clock, work_dir / "checkpoint")
        finally:
            session.stop()
        with penstock.connect(store.uri) as client, watcher.phase("Reading the results back"), clock("read back"):
            report.results = parse_results(read_stream(client, DELAYS_STREAM))
        with watcher.phase("Stopping the store"):
            store.stop()
    report.total_s = time.monotonic() - started
    if report.dropped_count:
        raise AccountingError(
            f"the query dropped {report.dropped_count} rows that came more than {query.WATERMARK_DELAY} late"
        )
    check_accounts(report.results, flights.carriers, flights.hours)
    return report


def _run_query(
    session: SparkSession,
    store: StandaloneProcess,
    flights: Flights,
    report: Report,
    watcher: Watcher,
    clock: _Stopwatch,
    checkpoint: Path,
) -> None:
    """Run the query to about the middle, stop it and the store, start both again and run it to the end."""
    framed_bytes = flights.payload_bytes + EVENT_HEADER_LENGTH * len(flights)
    batch_bytes = max(1, -(-framed_bytes // query.BATCH_COUNT))
    results = query.delays(session, store.uri, FLIGHTS_STREAM, batch_bytes)

    def one_pass(title: str, done: int, stop_after: int | None) -> PassResult:
        with watcher.phase(title, len(flights)) as advance:
            outcome = query.run_pass(
                results,
                uri=store.uri,
                stream=DELAYS_STREAM,
                checkpoint=checkpoint,
                stop_after=stop_after,
                on_progress=lambda count: advance(min(done + count, len(flights))),
            )
        report.passes.append(outcome)
        return outcome

    with clock("query, first half"):
        first = one_pass("Spark: delays per carrier and hour", 0, len(flights) // 2)
    with watcher.phase("Stopping the query and the store, starting the store again"), clock("restart"):
        begin_s = time.monotonic()
        store.stop()
        stopped_s = time.monotonic()
        store.start()
        started_s = time.monotonic()
    watcher.note(
        f"stopped after {first.event_count:,} flights in {first.batch_count} micro-batches; "
        f"store stopped in {stopped_s - begin_s:.1f} s and was back in {started_s - stopped_s:.1f} s"
    )
    with clock("query, second half"):
        one_pass("Spark: on from the checkpoint", first.event_count, None)


def create_streams(client: Client) -> None:
    """Create the scope and the two streams."""
    import penstock

    client.create_stream(FLIGHTS_STREAM, scaling=penstock.Scaling.fixed(FLIGHTS_SEGMENT_COUNT), exist_ok=True)
    client.create_stream(DELAYS_STREAM, scaling=penstock.Scaling.fixed(DELAYS_SEGMENT_COUNT), exist_ok=True)


def ingest(client: Client, flights: Flights, advance: Callable[[int], None]) -> None:
    """Write all flights by routing key, then the event that ends the year; return once all are durable."""
    with client.event_writer(FLIGHTS_STREAM) as writer:
        for first, count in slices(len(flights), WRITE_SLICE_COUNT):
            writer.write_many(flights.events.slice(first, count), routing_keys=flights.routing_keys.slice(first, count))
            advance(first + count)
        writer.flush()
        # After everything else, so that no segment's flights come behind it in the last micro-batch.
        writer.write(end_of_year_event(), routing_key=END_CARRIER)
        writer.flush()


def read_stream(client: Client, stream: str) -> pa.ChunkedArray:
    """Return all events of a stream that was never scaled, segment by segment."""
    import pyarrow as pa

    from penstock.client.arrow import unframe
    from penstock.model.names import segment_name, split_scoped_name

    scope, name = split_scoped_name(stream)
    head, tail = client.head(stream).positions, client.tail(stream).positions
    chunks: list[pa.BinaryArray] = []
    for segment, end in tail.items():
        full_name = segment_name(scope, name, segment)
        data = b"".join(client.segment_reader(full_name, start_offset=head[segment], end_offset=end))
        events, _, consumed = unframe(data)
        if consumed != len(data):
            raise PenstockError(f"{full_name}: the last {len(data) - consumed} bytes are not a whole event")
        chunks.append(events)
    return pa.chunked_array(chunks, pa.binary())
