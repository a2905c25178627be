"""The run itself: start the store, write the flights, run the query, kill store and driver during it, check the "
"results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.events import EVENT_HEADER_LENGTH
from penstock.quickstart import query
from penstock.quickstart.driver import Plan
from penstock.quickstart.driver_process import DriverProcess
from penstock.quickstart.errors import AccountingError
from penstock.quickstart.flights import END_CARRIER, Flights, end_of_year_event, load_flights, slices
from penstock.quickstart.kills import Checkpoint, Kill, Midst, QueryWatch
from penstock.quickstart.query import PassResult, latest_straggler
from penstock.quickstart.results import Results, check_accounts, parse_results
from penstock.server.standalone_process import StandaloneProcess

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock import Client

FLIGHTS_STREAM = "quickstart/flights"
DELAYS_STREAM = "quickstart/delays"
#: Segments of the two streams.
FLIGHTS_SEGMENT_COUNT = 4
DELAYS_SEGMENT_COUNT = 2
#: Flights handed to the writer at once.
WRITE_SLICE_COUNT = 10_000
#: Which share of the flights the query has read when the store is killed, and when its driver is.
STORE_KILL_SHARE, DRIVER_KILL_SHARE = 0.3, 0.5


class Watcher(Protocol):
    """Shows the progress of a run."""

    def phase(self, title: str, total: int | None = None) -> AbstractContextManager[Callable[[int], None]]:
        """Enter a phase; the context's value is called with how much of `total` is done."""

    def note(self, text: str) -> None:
        """Show a line."""


@dataclass(slots=True)
class Report:
    """What a run did, a pass for each driver of the query. Times are in seconds."""

    flight_count: int = 0
    payload_bytes: int = 0
    passes: list[PassResult] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
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


def run_quickstart(
    work_dir: Path, watcher: Watcher, limit: int | None = None, tier2: str | None = None, log: str | None = None
) -> Report:
    """Run the quickstart in `work_dir`, an empty or new directory, with the year's flights or the first `limit`.

    `tier2`, `log`: see ``penstock standalone``.

    Raises:
        AccountingError: a flight is not in exactly one result.
        InvalidArgumentError: the log in a bucket is not new.
        PenstockError: whatever else went wrong, by its type.
    """
    import penstock

    report = Report()
    clock = _Stopwatch(report)
    started = time.monotonic()
    work_dir.mkdir(parents=True, exist_ok=True)
    spark_log = work_dir / "spark.log"
    with ExitStack() as at_end:
        # Ctrl-C reaches this process alone, which then stops the store in order.
        where = [*(("--tier2", tier2) if tier2 else ()), *(("--log", log) if log else ())]
        store = StandaloneProcess(work_dir / "store", *where, has_own_session=True)
        at_end.callback(store.stop)
        # Spark takes its seconds on another core while flights are read and written.
        driver = at_end.enter_context(DriverProcess(spark_log))
        with watcher.phase("Starting the store"), clock("store start"):
            store.start()
            if log and not store.ready["is_new_store"]:
                raise InvalidArgumentError(
                    f"{log} holds the log of another store, or of an earlier quickstart: name a place in the bucket "
                    "that is not used, for --log and for --tier2"
                )
        with watcher.phase("Reading the flights"), clock("load"):
            flights = load_flights(limit)
        report.flight_count, report.payload_bytes = len(flights), flights.payload_bytes
        with penstock.connect(store.uri) as client:
            with watcher.phase("Writing flights, keyed by aircraft", len(flights)) as advance, clock("ingest"):
                create_streams(client)
                ingest(client, flights, advance)
            with watcher.phase("Starting Spark"), clock("spark start"):
                driver.wait_started()
            _QueryRun(client, store, flights, report, watcher, clock, work_dir).run(driver)
            with watcher.phase("Reading the results back"), clock("read back"):
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


class _QueryRun:
    """The query from its start to its end, through the death of its store and of its driver."""

    def __init__(
        self, client: Client, store: StandaloneProcess, flights: Flights, report: Report, watcher: Watcher,
        clock: _Stopwatch, work_dir: Path,
    ) -> None:  # fmt: skip
        self._store = store
        self._count = len(flights)
        self._report = report
        self._watcher = watcher
        self._clock = clock
        self._spark_log = work_dir / "spark.log"
        framed_bytes = flights.payload_bytes + EVENT_HEADER_LENGTH * len(flights)
        batch_bytes = max(1, -(-framed_bytes // query.BATCH_COUNT))
        checkpoint = work_dir / "checkpoint"
        self._plan = Plan(store.uri, FLIGHTS_STREAM, DELAYS_STREAM, str(checkpoint), batch_bytes)
        self._done_before = 0
        self._advance: Callable[[int], None] = lambda done: None
        self._watch = QueryWatch(client, DELAYS_STREAM, Checkpoint(checkpoint), self._on_progress)

    def run(self, driver: DriverProcess) -> None:
        """Run it with this driver until that is killed, and then with another one. With few flights none may be."""
        with (
            self._clock("query, first half"),
            self._watcher.phase("Spark: delays per carrier and hour", self._count) as self._advance,
        ):
            driver.go(self._plan)
            midst = self._watch.until_midst(driver, int(self._count * STORE_KILL_SHARE))
            if midst is not None:
                self._kill_store(driver, midst)
                midst = self._watch.until_midst(driver, int(self._count * DRIVER_KILL_SHARE))
            killed_s = time.monotonic()
            process_count = driver.kill9()
        first = driver.progress
        self._report.passes.append(first)
        self._done_before = first.event_count
        if midst is None:
            self._report.passes.append(PassResult())
            self._watcher.note("the query finished before both processes were killed: use more flights")
            return
        kill = Kill("driver", process_count, midst.batch, midst.open_count, first.event_count)
        self._report.kills.append(kill)
        self._watcher.note(
            f"killed the driver of the query with its JVM and workers, {process_count} processes (SIGKILL), "
            f"{_midst(kill)}"
        )
        with DriverProcess(self._spark_log) as other:
            with self._watcher.phase("Starting another driver"), self._clock("restart"):
                other.wait_started()
            kill.back_s = time.monotonic() - killed_s
            with (
                self._clock("query, second half"),
                self._watcher.phase("Spark: resumed from the checkpoint", self._count) as self._advance,
            ):
                other.go(self._plan)
                self._await_batch(other, kill, killed_s)
                self._watcher.note(
                    f"another driver was ready {kill.back_s:.1f} s after the kill, resumed the micro-batch from the "
                    f"checkpoint, and finished it after {kill.done_s:.1f} s"
                )
                self._watch.until_done(other)
        self._report.passes.append(other.progress)

    def _kill_store(self, driver: DriverProcess, midst: Midst) -> None:
        """Kill the store under the driver, which is stopped; continue the driver, and start the store again."""
        kill = Kill("store", 1, midst.batch, midst.open_count, driver.progress.event_count)
        killed_s = time.monotonic()
        self._store.kill9()
        driver.resume()
        self._store.start()
        kill.back_s = time.monotonic() - killed_s
        self._report.kills.append(kill)
        self._await_batch(driver, kill, killed_s)
        self._watcher.note(
            f"killed the store (SIGKILL), {_midst(kill)}: it was ready again after {kill.back_s:.1f} s, the query "
            f"continued, and the micro-batch was finished after {kill.done_s:.1f} s"
        )

    def _await_batch(self, driver: DriverProcess, kill: Kill, killed_s: float) -> None:
        self._watch.until_batch_done(driver, kill.batch)
        kill.done_s = time.monotonic() - killed_s

    def _on_progress(self, progress: PassResult) -> None:
        self._advance(min(self._done_before + progress.event_count, self._count))


def _midst(kill: Kill) -> str:
    return (
        f"during micro-batch {kill.batch}, after {kill.event_count:,} flights, with {kill.open_count} transactions open"
    )


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
        # After everything else, so that no segment's flights come after it in the last micro-batch.
        writer.write(end_of_year_event(), routing_key=END_CARRIER)
        writer.flush()


def read_stream(client: Client, stream: str) -> pa.ChunkedArray:
    """Return all events of a stream that was never scaled, segment by segment."""
    import pyarrow as pa

    from penstock.client.common.arrow import unframe
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
