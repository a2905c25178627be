"""``penstock storage backup`` and ``restore``: a store's metadata to files, and back. See docs/recovery.md."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.command_audit import audited
from penstock.cli.failure import EXIT_DAMAGED, EXIT_USAGE, exit_on_error, fail
from penstock.cli.log import AsJson, Config, DataDir
from penstock.cli.options import Tier2
from penstock.cli.output import in_bytes, tell
from penstock.cli.storage import report_lines, storage

if TYPE_CHECKING:
    from penstock.administration.storage_backup import Backup
    from penstock.administration.storage_restoration import RestorationReport
    from penstock.runtime.runtime import Runtime

T = TypeVar("T")


@storage.command()
def backup(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Backup to create: a new or empty directory.")],
    admin: Annotated[
        list[str] | None,
        typer.Option(
            help="HOST:PORT of a running segment store's administration port; once for each store. [default: "
            "none, the server is stopped]"
        ),
    ] = None,
    data_dir: DataDir = None,
    tier2: Tier2 = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Back up the state of a store that is not in long-term storage.

    The server is stopped, or runs and is named with --admin; then its containers are flushed. The backup is complete
    if this exits with 0. `penstock storage restore` can use it as long as long-term storage keeps the chunks it refers
    to.
    """
    with exit_on_error(as_json=as_json):
        made = _back_up(str(directory), admin or [], data_dir, tier2, config, as_json=as_json)
        tell("storage_backed_up", asdict(made), _backup_lines(made, directory, config), as_json=as_json)


def _back_up(
    target: str, admin: list[str], data_dir: str | None, tier2: str | None, config: Path | None, *, as_json: bool
) -> Backup:
    # Only now: the help of all commands should not load a server.
    from penstock.administration.admin_client import AdminClient, parse_endpoints
    from penstock.administration.storage_backup import back_up_running, back_up_stopped
    from penstock.cli.progress import shown_progress
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

    settings = load_settings(
        StandaloneSettings, file=config, environment=os.environ, flags={"data_dir": data_dir, "tier2": tier2}
    )
    shown = partial(shown_progress, "backing up", is_wanted=not as_json, unit="containers")

    async def run(runtime: Runtime) -> Backup:
        if not admin:
            return await back_up_stopped(settings, target, runtime, shown)
        async with AsyncExitStack() as held:
            ports: list[AdminClient] = []
            for host, port in parse_endpoints(admin):
                ports.append(await AdminClient.open(host, port))
                held.push_async_callback(ports[-1].close)
            return await back_up_running(ports, target, runtime, shown, tier2=settings.tier2)

    with audited(settings, "storage backup", "data directory", backup=os.path.abspath(target), admin=admin):
        return _run(run)


@storage.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="The directory that `backup` created.")],
    directory: Annotated[
        str | None, typer.Option("--directory", "--data-dir", help="Data directory to create: new or empty.")
    ] = None,
    tier2: Annotated[
        str | None,
        typer.Option(help="Long-term storage. [default: its place when the backup was made]"),
    ] = None,
    config: Config = None,
    accept_missing: Annotated[
        bool, typer.Option("--accept-missing", help="Create the directory even if chunks are missing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild a data directory from a backup and its long-term storage.

    Data written after the backup is not restored; the server that is started next deletes its chunks.
    This command only reads long-term storage. The server that was backed up must not return to service. Exits with 0
    if all
    chunks exist, with 3 if chunks are missing. It lists those, and creates nothing unless --accept-missing is given.
    """
    from penstock.administration.errors import BackupUnfitError

    with exit_on_error(as_json=as_json):
        if directory is None:
            raise fail(
                "--directory is required: the data directory to create",
                kind="InvalidArgumentError",
                as_json=as_json,
                code=EXIT_USAGE,
            )
        try:
            report = _restore(str(source), directory, tier2, config, accepts_missing=accept_missing, as_json=as_json)
        except BackupUnfitError as error:
            problems = [asdict(problem) for problem in error.problems]
            if not as_json:
                for problem in error.problems:
                    typer.echo(f"{problem.kind}: container {problem.container} {problem.chunk}: {problem.message}")
            raise fail(
                str(error), kind="BackupUnfitError", as_json=as_json, code=EXIT_DAMAGED,
                details={"problem_count": error.problem_count, "problems": problems},
            ) from error  # fmt: skip
        tell("storage_restored", asdict(report), _restoration_lines(report), as_json=as_json)
    if report.check.problem_count:
        raise typer.Exit(EXIT_DAMAGED)


def _restore(
    source: str, directory: str, tier2: str | None, config: Path | None, *, accepts_missing: bool, as_json: bool
) -> RestorationReport:
    from penstock.administration.storage_restoration import restore_store
    from penstock.cli.progress import shown_progress
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

    settings = load_settings(
        StandaloneSettings, file=config, environment=os.environ, flags={"data_dir": directory, "tier2": tier2}
    )
    shown = partial(shown_progress, "checking", is_wanted=not as_json, unit="chunks")

    async def run(runtime: Runtime) -> RestorationReport:
        return await restore_store(source, settings, runtime, shown, accepts_missing=accepts_missing)

    place = os.path.abspath(directory)
    with audited(settings, "storage restore", "data directory", data_dir=place, backup=os.path.abspath(source)):
        return _run(run)


def _run(work: Callable[[Runtime], Awaitable[T]]) -> T:
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime

    # What is found is in the report.
    logging.getLogger("penstock").addHandler(logging.NullHandler())

    async def run() -> T:
        runtime = real_runtime(1)
        try:
            return await work(runtime)
        finally:
            await runtime.work.close()

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(run())


def _backup_lines(made: Backup, directory: Path, config: Path | None) -> Iterator[str]:
    for container in made.containers:
        yield f"container {container.id}: as of {_time(container.created_ms)}, {in_bytes(container.length_bytes)}"
    yield f"backed up cluster {made.cluster_id} in {directory}; to restore it into a new data directory:"
    yield shlex.join(_restore_command(directory, config))


def _restore_command(directory: Path, config: Path | None) -> list[str]:
    """Return a command that works from any working directory; it names a data directory that does not exist yet."""
    source = directory.resolve()
    target, number = source.with_name(f"{source.name}-restored"), 1
    while target.exists():
        number += 1
        target = source.with_name(f"{source.name}-restored-{number}")
    command = ["penstock", "storage", "restore", str(source), "--directory", str(target)]
    return command if config is None else [*command, "--config", str(config.resolve())]


def _restoration_lines(report: RestorationReport) -> Iterator[str]:
    for container in report.backup.containers:
        yield f"container {container.id}: as of {_time(container.created_ms)}"
    for name in report.later_images:
        yield f"{name} may be newer: penstock storage recover would lose less"
    yield from report_lines(report.check)
    yield f"restored: start a server with --data-dir {report.data_dir} and the same --tier2"


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
