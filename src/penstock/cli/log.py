"""``penstock log``: the containers' logs, in the data directory of a stopped server or in a bucket.

What it is for: docs/operations.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.command_audit import CommandAudit, audited
from penstock.cli.failure import exit_on_error
from penstock.cli.options import Tier2
from penstock.cli.output import counted, in_bytes, tell
from penstock.cli.salvage_output import refusal_reported, salvage_lines, tell_salvaged

if TYPE_CHECKING:
    from penstock.administration.log_administration import LogAdministration
    from penstock.administration.log_salvage import Salvaged
    from penstock.administration.object_log_administration import LogSweepReport, ObjectLogAdministration
    from penstock.server.data_directory import DataDirectory
    from penstock.server.settings import StandaloneSettings

T = TypeVar("T")

DataDir = Annotated[str | None, typer.Option(help="The server's data directory. [default: penstock-data]")]
Config = Annotated[Path | None, typer.Option(help="The server's settings file, TOML.", envvar="PENSTOCK_CONFIG")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
LogUrl = Annotated[
    str | None,
    typer.Option("--log", help="The log is in this bucket: s3://bucket/prefix (gs://, az://). [default: --data-dir]"),
]
Container = Annotated[int, typer.Argument(metavar="CONTAINER", min=0, help="Number of the log's container.")]

#: What follows a salvage.
_THEN = "start the server"

log: typer.Typer = typer.Typer(
    name="log",
    help="List, disable, enable, salvage or sweep the containers' logs.",
    pretty_exceptions_enable=False,
)


def _settings(data_dir: str | None, config: Path | None) -> StandaloneSettings:
    # Only now: the help of all commands should not load a server.
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

    return load_settings(StandaloneSettings, file=config, environment=os.environ, flags={"data_dir": data_dir})


def _bucket(log: str | None, data_dir: str | None, settings: StandaloneSettings) -> str:
    """Return the place of a log in a bucket; empty if the log is in the data directory."""
    from penstock.model.errors import InvalidArgumentError

    if log is not None and data_dir is not None:
        raise InvalidArgumentError(f"--log is {log} and --data-dir is {data_dir}: name the place of one log")
    return log or ("" if data_dir is not None else settings.log)


def _in_bucket(url: str, settings: StandaloneSettings, call: Callable[[ObjectLogAdministration], Awaitable[T]]) -> T:
    """Run `call` on the logs in the bucket `url`."""
    from penstock.administration.object_log_administration import object_logs
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime

    # Requests that are repeated end in a result or an error.
    logging.getLogger("penstock").addHandler(logging.NullHandler())

    async def run() -> T:
        runtime = real_runtime(1)
        try:
            async with object_logs(url, settings, runtime) as logs:
                return await call(logs)
        finally:
            await runtime.work.close()

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(run())


@contextmanager
def _logs(settings: StandaloneSettings, *, is_locked: bool) -> Iterator[LogAdministration]:
    """Find the logs; with `is_locked`, hold the lock of the data directory meanwhile."""
    from penstock.administration.log_administration import LogAdministration
    from penstock.model.errors import DataDirectoryInUseError
    from penstock.runtime.runtime import real_runtime

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
def list_logs(log: LogUrl = None, data_dir: DataDir = None, config: Config = None, as_json: AsJson = False) -> None:
    """Show the state and the size of each log. Changes nothing; the server may run."""
    with exit_on_error(as_json=as_json):
        settings = _settings(data_dir, config)
        if url := _bucket(log, data_dir, settings):
            reports = _in_bucket(url, settings, lambda logs: logs.reports())
        else:
            with _logs(settings, is_locked=False) as local_logs:
                reports = local_logs.reports()
    if as_json:
        typer.echo(json.dumps({"type": "logs", "logs": [asdict(report) for report in reports]}))
        return
    if not reports:
        typer.echo("there are no logs")
    kind = "object" if url else "file"
    for report in reports:
        typer.echo(
            f"container {report.container}: {report.state}, epoch {report.epoch}, {counted(report.file_count, kind)}, "
            f"{report.length_bytes} bytes, {report.path}"
        )
        if report.problem:
            typer.echo(f"  {report.problem}")


def _change(
    container: int, settings: StandaloneSettings, log: str | None, data_dir: str | None, *, is_enabling: bool
) -> None:
    """Enable or disable a log, wherever it is."""
    url = _bucket(log, data_dir, settings)
    with _audited(settings, "enable" if is_enabling else "disable", container, url):
        if url:
            _in_bucket(url, settings, lambda logs: logs.enable(container) if is_enabling else logs.disable(container))
            return
        with _logs(settings, is_locked=True) as local_logs:
            change = local_logs.enable if is_enabling else local_logs.disable
            change(container)


@log.command()
def enable(
    container: Container,
    log: LogUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Enable a disabled log. The server must be stopped, unless the log is in a bucket.

    The server disables a damaged log, so that nothing overwrites the evidence. This command reads its frames first:
    a damaged log stays disabled; `penstock log salvage` makes a new log from its intact frames.
    """
    with exit_on_error(as_json=as_json):
        _change(container, _settings(data_dir, config), log, data_dir, is_enabling=True)
        _tell_changed(container, "enabled", as_json=as_json)


@log.command()
def disable(
    container: Container,
    log: LogUrl = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Disable a log, so that it is not opened. The server must be stopped, unless the log is in a bucket.

    Its container and the segments in it stay offline; other containers serve. No data is lost. A running server whose
    log is in a bucket ends the container.
    """
    with exit_on_error(as_json=as_json):
        _change(container, _settings(data_dir, config), log, data_dir, is_enabling=False)
        _tell_changed(container, "disabled", as_json=as_json)


@log.command()
def salvage(
    container: Container,
    log: LogUrl = None,
    data_dir: DataDir = None,
    tier2: Tier2 = None,
    config: Config = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report what would be kept and what would be lost; change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the intact part of a damaged log into a new log, and report the losses.

    The server must be stopped, unless the log is in a bucket. The damaged log is kept under another name, which is
    printed. If long-term storage has an image of the container, losses before that image are restored from it. If the
    command is interrupted, run it again.
    """
    with exit_on_error(as_json=as_json):
        with refusal_reported(as_json=as_json):
            salvaged = _salvage(container, log, data_dir, tier2, config, is_dry_run=dry_run)
        tell_salvaged(container, salvaged, then=_THEN, is_dry_run=dry_run, as_json=as_json)


def _salvage(
    container: int, log: str | None, data_dir: str | None, tier2: str | None, config: Path | None, *, is_dry_run: bool
) -> Salvaged:
    from penstock.administration.log_salvage import salvage_log
    from penstock.administration.object_log_administration import object_logs
    from penstock.administration.object_log_salvage import salvage_object_log
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

    settings = load_settings(
        StandaloneSettings, file=config, environment=os.environ, flags={"data_dir": data_dir, "tier2": tier2}
    )

    url = _bucket(log, data_dir, settings)
    if url:
        # Requests that are repeated end in a result or an error.
        logging.getLogger("penstock").addHandler(logging.NullHandler())

    async def run() -> Salvaged:
        runtime = real_runtime(1)
        try:
            if not url:
                return await salvage_log(settings, runtime, container, is_dry_run=is_dry_run)
            async with object_logs(url, settings, runtime) as logs:
                enable_command = f"penstock log enable {container} --log {url}"
                return await salvage_object_log(
                    logs, settings, runtime, container, enable_command=enable_command, is_dry_run=is_dry_run
                )
        finally:
            await runtime.work.close()

    with (
        _audited(settings, "salvage", container, url, is_dry_run=is_dry_run) as audit,
        asyncio.Runner(loop_factory=new_loop()) as runner,
    ):
        salvaged = runner.run(run())
        audit.changes["losses"] = list(salvage_lines(container, salvaged, then=_THEN, is_dry_run=False))
    return salvaged


def _audited(
    settings: StandaloneSettings, command: str, container: int | None, url: str, *, is_dry_run: bool = False
) -> AbstractContextManager[CommandAudit]:
    """Record a command in the audit log. `container` None: it is about all logs; `url`: they are in this bucket."""
    resource = "logs" if container is None else f"log:{container}"
    changes = {"log": url} if url else {"data_dir": os.path.abspath(settings.data_dir)}
    return audited(settings, f"log {command}", resource, is_dry_run=is_dry_run, **changes)


@log.command()
def sweep(
    log: LogUrl = None,
    config: Config = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report what would be deleted; change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete objects of a log in a bucket that no container needs, such as those of killed servers.

    Servers delete what they do not need any more; this deletes the rest. The server may run. Seals are never deleted,
    64 bytes for each server that was started.
    """
    from penstock.model.errors import InvalidArgumentError

    with exit_on_error(as_json=as_json):
        settings = _settings(None, config)
        url = _bucket(log, None, settings)
        if not url:
            raise InvalidArgumentError(
                "--log is required: the bucket of the log. A log in a data directory needs no sweep: its server "
                "deletes old files"
            )
        with _audited(settings, "sweep", None, url, is_dry_run=dry_run) as audit:
            report = _in_bucket(url, settings, lambda logs: logs.sweep(is_dry_run=dry_run))
            audit.changes["deleted_count"] = report.object_count
        tell("log_sweep", asdict(report), _sweep_lines(report), as_json=as_json)


def _sweep_lines(report: LogSweepReport) -> Iterator[str]:
    for each in report.unnamed:
        yield f"journal {each.journal}: {each.object_count} objects, {in_bytes(each.length_bytes)}"
    for key in report.foreign:
        yield f"{key} is not part of a log; it stays"
    done = "would be deleted" if report.is_dry_run else "deleted"
    yield (
        f"{report.object_count} objects with {in_bytes(report.length_bytes)} {done}; {report.kept_count} objects are "
        f"needed, {report.seal_count} seals and {report.foreign_count} other objects stay"
    )


def _tell_changed(container: int, what: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"type": what, "container": container}))
    else:
        typer.echo(f"the log of container {container} is {what}")
