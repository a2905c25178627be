"""The output of a run in a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from penstock.quickstart.query import WATERMARK_DELAY
from penstock.quickstart.run import Report

if TYPE_CHECKING:
    import pyarrow as pa

BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"


class TerminalWatcher:
    """Shows phases with spinners and bars."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def phase(self, title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """See `Watcher.phase`. Where the output is no terminal, a line at the beginning of each phase."""
        if not self._console.is_terminal:
            self._console.print(f"{title} ...")
            yield lambda done: None
            return
        columns = [SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}")]
        if total is not None:
            columns += [BarColumn(BAR_WIDTH), MofNCompleteColumn()]
        columns.append(TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(title, total=total)
            yield lambda done: progress.update(task, completed=done)
            # A phase with a total may end half-way on purpose: its bar stays where it is.
            if total is None:
                progress.update(task, total=1, completed=1)

    def note(self, text: str) -> None:
        """See `Watcher.note`."""
        self._console.print(f"  [dim]{text}[/dim]")


class SilentWatcher:
    """Shows nothing."""

    @contextmanager
    def phase(self, title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """See `Watcher.phase`."""
        yield lambda done: None

    def note(self, text: str) -> None:
        """See `Watcher.note`."""


def bar(value: float, largest: float, width: int = BAR_WIDTH) -> str:
    """Return a bar of block characters, `width` long at `largest`; nothing for values below or at 0."""
    if largest <= 0 or value <= 0:
        return ""
    eighths = round(value / largest * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def by_carrier(table: pa.Table) -> list[dict[str, float | str]]:
    """Return carrier, flights, cancelled, mean and worst delay of each carrier, the most delayed first."""
    rows = table.group_by("carrier").aggregate(
        [("flights", "sum"), ("departed", "sum"), ("delay_minutes", "sum"), ("delay_minutes_max", "max")]
    )
    result: list[dict[str, float | str]] = [
        {
            "carrier": row["carrier"],
            "flights": row["flights_sum"],
            "cancelled": row["flights_sum"] - row["departed_sum"],
            "delay_minutes_mean": (row["delay_minutes_sum"] or 0) / max(1, row["departed_sum"]),
            "delay_minutes_max": row["delay_minutes_max_max"] or 0,
        }
        for row in rows.to_pylist()
    ]
    return sorted(result, key=lambda row: (-float(row["delay_minutes_mean"]), str(row["carrier"])))


def by_local_hour(table: pa.Table) -> list[tuple[int, int, float | None]]:
    """Return hour of the day in New York, flights and mean delay in minutes (None if none left), by the hour."""
    rows = table.group_by("local_hour").aggregate([("flights", "sum"), ("departed", "sum"), ("delay_minutes", "sum")])
    return [
        (
            row["local_hour"],
            row["flights_sum"],
            row["delay_minutes_sum"] / row["departed_sum"] if row["departed_sum"] else None,
        )
        for row in sorted(rows.to_pylist(), key=lambda row: int(row["local_hour"]))
    ]


def show_report(console: Console, report: Report, names: Mapping[str, str]) -> None:
    """Print the table, the chart, the accounts and the rates of a finished run."""
    assert report.results is not None
    table = Table(title="Departure delays from New York City, 2013", title_justify="left")
    table.add_column("carrier")
    for column in ("flights", "cancelled", "mean, min", "worst, min"):
        table.add_column(column, justify="right")
    for row in by_carrier(report.results.table):
        table.add_row(
            f"{row['carrier']}  {names.get(str(row['carrier']), '')}",
            f"{row['flights']:,}",
            f"{row['cancelled']:,}",
            f"{row['delay_minutes_mean']:.1f}",
            f"{row['delay_minutes_max']:,}",
        )
    console.print(table)
    console.print("\nMean delay by scheduled hour of departure, minutes")
    hours = by_local_hour(report.results.table)
    largest = max((mean for _, _, mean in hours if mean is not None), default=0.0)
    for hour, _, mean in hours:
        shown = "    –" if mean is None else f"{mean:5.1f}"
        console.print(f"  {hour:02d}h {bar(mean or 0.0, largest):<{BAR_WIDTH}} {shown}", highlight=False)
    _show_accounts(console, report)


def _show_accounts(console: Console, report: Report) -> None:
    results = report.results
    assert results is not None
    seconds = report.seconds
    console.print(
        f"\n[green]✓[/green] every flight is in exactly one result: {results.table.num_rows:,} windows count "
        f"{results.flight_count:,} flights, {report.flight_count:,} were written"
    )
    for kill in report.kills:
        console.print(
            f"  although the {kill.victim} was killed during micro-batch {kill.batch}: "
            f"back after {kill.back_s:.1f} s, that micro-batch done after {kill.done_s:.1f} s"
        )
    late_hours = report.latest_straggler.total_seconds() / 3600
    console.print(
        f"  {report.dropped_count} rows dropped as late: the latest flight came {late_hours:.0f} h after later "
        f"flights had been processed, the watermark waits {WATERMARK_DELAY}; the sink, which writes exactly once, "
        "repeated "
        f"{results.repeated_count:,} results"
    )
    rates = Table(title="Rates", title_justify="left")
    for column in ("phase", "events", "seconds", "events/s", "MB/s"):
        rates.add_column(column, justify="left" if column == "phase" else "right")
    bytes_each = report.payload_bytes / max(1, report.flight_count)
    first, second = report.passes
    counted = {
        "ingest": report.flight_count,
        "query, first half": first.event_count,
        "query, second half": second.event_count,
    }
    for name, duration_s in seconds.items():
        count = counted.get(name)
        if count is None:
            rates.add_row(name, "", f"{duration_s:.1f}", "", "")
        else:
            rate = count / duration_s
            rates.add_row(name, f"{count:,}", f"{duration_s:.1f}", f"{rate:,.0f}", f"{rate * bytes_each / 1e6:.1f}")
    rates.add_row("all", "", f"{report.total_s:.1f}", "", "", style="bold")
    console.print(rates)
    console.print("  The rates of the query include Spark's start, both kills and the restarts after them.")
    console.print(
        "\nNext: `penstock quickstart --keep` keeps the store and the logs; `penstock standalone` starts a store "
        "of your own; docs/spark.md shows queries to run on it."
    )


def report_fields(report: Report) -> dict[str, object]:
    """Return the report as JSON values."""
    assert report.results is not None
    return {
        "flights": report.flight_count,
        "payload_bytes": report.payload_bytes,
        "results": report.results.table.num_rows,
        "flights_in_results": report.results.flight_count,
        "results_repeated": report.results.repeated_count,
        "rows_dropped_late": report.dropped_count,
        "latest_straggler_hours": report.latest_straggler.total_seconds() / 3600,
        "micro_batches": report.batch_count,
        "events_first_half": report.passes[0].event_count,
        "events_second_half": report.passes[1].event_count,
        "kills": [asdict(kill) for kill in report.kills],
        "seconds": {name: round(value, 3) for name, value in report.seconds.items()},
        "total_s": round(report.total_s, 3),
        "carriers": by_carrier(report.results.table),
    }
