"""``penstock log``: the containers' logs of a stopped server. What it is for: docs/operations.md."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.options import Tier2
from penstock.cli.output import tell, write_text
from penstock.cli.salvage_output import report_fields, report_lines, salvage_lines

if TYPE_CHECKING:
    from penstock.administration.log_administration import LogAdministration
    from penstock.administration.log_salvage import Salvaged
    from penstock.server.data_directory import DataDirectory

DataDir = Annotated[str | None, typer.Option(help="The server's data directory. [default: penstock-data]")]
Config = Annotated[Path | None, typer.Option(help="The server's settings file, TOML.", envvar="PENSTOCK_CONFIG")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Container = Annotated[int, typer.Argument(metavar="CONTAINER", min=0, help="Number of the log's container.")]

log: typer.Typer = typer.Typer(
    name="log",
    help="List, disable, enable or salvage the containers' logs.",
    pretty_exceptions_enable=False,
)


@contextmanager
def _logs(data_dir: str | None, config: Path | None, *, is_locked: bool) -> Iterator[LogAdministration]:
    """Find the logs; with `is_locked`, hold the lock of the data directory meanwhile."""
    # Only now: the help of all commands should not load a server.
    from penstock.administration.log_administration import LogAdministration
    from penstock.model.errors import DataDirectoryInUseError
    from penstock.runtime.runtime import real_runtime
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

    settings = load_settings(StandaloneSettings, file=config, environment=os.environ, flags={"data_dir": data_dir})
    runtime = real_runtime(1)
    directory = _data_directory(settings.data_dir, runtime)
    try:
        if is_locked:
            try:
                identity = directory.open_existing()
            except DataDirectoryInUseError as error:
                raise DataDirectoryInUseError(
                    f"nothing was changed: a server runs on {directory.root}; stop it, repeat this command, and start "
                    "it again"
                ) from error
        else:
            identity = directory.identity()
        yield LogAdministration(
            directory.tier1, runtime.disk, cluster_id=identity.cluster_id, made_logs_directory=directory.made_logs
        )
    finally:
        directory.close()


def _data_directory(root: str, runtime: object) -> DataDirectory:
    from penstock.runtime.runtime import Runtime
    from penstock.server.data_directory import DataDirectory

    assert isinstance(runtime, Runtime)
    return DataDirectory(root, runtime)


@log.command("list")
def list_logs(data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """Show the state and the size of each log. Changes nothing; the server may run."""
    with exit_on_error(as_json=as_json), _logs(data_dir, config, is_locked=False) as logs:
        reports = logs.reports()
    if as_json:
        typer.echo(json.dumps({"type": "logs", "logs": [asdict(report) for report in reports]}))
        return
    if not reports:
        typer.echo("there are no logs")
    for report in reports:
        typer.echo(
            f"container {report.container}: {report.state}, epoch {report.epoch}, {report.file_count} files, "
            f"{report.length_bytes} bytes, {report.path}"
        )
        if report.problem:
            typer.echo(f"  {report.problem}")


@log.command()
def enable(container: Container, data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """Enable a disabled log. The server must be stopped.

    The server disables a damaged log, so that nothing overwrites the evidence. This command reads its frames first:
    a damaged log stays disabled; `penstock log salvage` makes a new log from its intact frames.
    """
    _change(container, data_dir, config, "enabled", lambda logs: logs.enable(container), as_json=as_json)


@log.command()
def disable(container: Container, data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """Disable a log, so that it is not opened. The server must be stopped.

    Its container and the segments in it stay offline; other containers serve. No data is lost.
    """
    _change(container, data_dir, config, "disabled", lambda logs: logs.disable(container), as_json=as_json)


@log.command()
def salvage(
    container: Container,
    data_dir: DataDir = None,
    tier2: Tier2 = None,
    config: Config = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report what would be kept and what would be lost; change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the intact part of a damaged log into a new log, and report the losses. The server must be stopped.

    The damaged log is renamed and kept; the new name is printed. If long-term storage has an image of the container,
    losses before that image are restored from it. If the command is interrupted, run it again.
    """
    from penstock.administration.log_salvage import LogNotSalvageableError

    with exit_on_error(as_json=as_json):
        try:
            salvaged = _salvage(container, data_dir, tier2, config, is_dry_run=dry_run)
        except LogNotSalvageableError as error:
            if not as_json:
                write_text("".join(f"{line}\n" for line in report_lines(error.report)))
            raise
        lines = salvage_lines(container, salvaged, is_dry_run=dry_run)
        fields: dict[str, object] = {"container": container, "is_dry_run": dry_run, **asdict(salvaged)}
        if salvaged.report is not None:
            fields["report"] = report_fields(salvaged.report)
        tell("log_salvage", fields, lines, as_json=as_json)


def _salvage(
    container: int, data_dir: str | None, tier2: str | None, config: Path | None, *, is_dry_run: bool
) -> Salvaged:
    from penstock.administration.log_salvage import salvage_log
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

    settings = load_settings(
        StandaloneSettings, file=config, environment=os.environ, flags={"data_dir": data_dir, "tier2": tier2}
    )

    async def run() -> Salvaged:
        runtime = real_runtime(1)
        try:
            return await salvage_log(settings, runtime, container, is_dry_run=is_dry_run)
        finally:
            await runtime.work.close()

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(run())


def _change(
    container: int,
    data_dir: str | None,
    config: Path | None,
    what: str,
    change: Callable[[LogAdministration], None],
    *,
    as_json: bool,
) -> None:
    with exit_on_error(as_json=as_json), _logs(data_dir, config, is_locked=True) as logs:
        change(logs)
    if as_json:
        typer.echo(json.dumps({"type": what, "container": container}))
    else:
        typer.echo(f"the log of container {container} is {what}")
