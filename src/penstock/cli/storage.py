"""``penstock storage``: long-term storage of a stopped server. What it is for: docs/operations.md."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import EXIT_DAMAGED, EXIT_USAGE, fail, failures_told
from penstock.cli.log import AsJson, Config, DataDir
from penstock.cli.options import Tier2
from penstock.cli.output import in_bytes, tell
from penstock.cli.rolling import export, import_segments, survey

if TYPE_CHECKING:
    from penstock.segmentstore.tier2.storage_check import StorageReport
    from penstock.storage_probe import ProbeReport
    from penstock.storage_recovery import RecoveryReport

storage: typer.Typer = typer.Typer(
    name="storage",
    help="Check the long-term storage of a stopped server, back it up, recover from it, take an older Pravega's over.",
    pretty_exceptions_enable=False,
)


@storage.command()
def check(
    data_dir: DataDir = None,
    tier2: Tier2 = None,
    config: Config = None,
    lengths_only: Annotated[
        bool, typer.Option("--lengths-only", help="Do not read the chunks, only look whether they are long enough.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare metadata with chunks: are all there, as long as they should be, and with the bytes that were written.

    The server must be stopped; nothing is changed. It ends with 0 if all is well, with 3 if something is damaged or
    missing, with 1 if that could not be found out. Chunks without a record are no damage, the server deletes them.
    """
    with failures_told(as_json=as_json):
        report = _check(data_dir, tier2, config, is_read=not lengths_only, as_json=as_json)
        tell("storage_check", {"is_read": not lengths_only, **asdict(report)}, report_lines(report), as_json=as_json)
    if report.problem_count:
        raise typer.Exit(EXIT_DAMAGED)


def _check(
    data_dir: str | None, tier2: str | None, config: Path | None, *, is_read: bool, as_json: bool
) -> StorageReport:
    # Only now: the help of all commands should not load a server.
    from penstock.cli.progress import shown_progress
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime
    from penstock.runtime.settings import load_settings
    from penstock.settings import StandaloneSettings
    from penstock.storage_administration import check_storage

    # What is found is in the report.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    settings = load_settings(
        StandaloneSettings, file=config, environment=os.environ, flags={"data_dir": data_dir, "tier2": tier2}
    )

    async def run() -> StorageReport:
        runtime = real_runtime(1)
        try:
            shown = partial(shown_progress, "checking", is_wanted=not as_json, unit="chunks")
            return await check_storage(settings, runtime, shown, is_read=is_read)
        finally:
            await runtime.work.close()

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(run())


@storage.command()
def recover(
    tier2: Annotated[
        str | None,
        typer.Option(
            help="Where the long-term storage is: s3://bucket/prefix (gs://, az://), hdfs://host:port/path, or a "
            "directory."
        ),
    ] = None,
    directory: Annotated[
        str | None, typer.Option("--directory", "--data-dir", help="The data directory to be made, new or empty.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Build the data directory of a store whose machine is gone, from its long-term storage alone.

    The store must have written images: so it does in a bucket and in HDFS, and in a directory if it is asked for
    (segment_store.container.images.interval_s). It is as it was at the newest ones; what a flush has acknowledged is in
    there. Long-term storage is only read; the lost machine must not come back.
    It ends with 0 if all is there, with 3 if the directory was made and chunks are missing, with 1 if it was not.
    """
    with failures_told(as_json=as_json):
        if directory is None:
            raise fail(
                "say with --directory where the data directory is to be made",
                kind="InvalidArgumentError",
                as_json=as_json,
                code=EXIT_USAGE,
            )
        report = _recover(directory, tier2, config, as_json=as_json)
        tell("storage_recovered", asdict(report), _recovery_lines(report), as_json=as_json)
    if report.check.problem_count:
        raise typer.Exit(EXIT_DAMAGED)


def _recover(directory: str, tier2: str | None, config: Path | None, *, as_json: bool) -> RecoveryReport:
    # Only now: the help of all commands should not load a server.
    from penstock.cli.progress import shown_progress
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime
    from penstock.runtime.settings import load_settings
    from penstock.settings import StandaloneSettings
    from penstock.storage_recovery import recover_store

    logging.getLogger("penstock").addHandler(logging.NullHandler())
    settings = load_settings(
        StandaloneSettings, file=config, environment=os.environ, flags={"data_dir": directory, "tier2": tier2}
    )

    async def run() -> RecoveryReport:
        runtime = real_runtime(1)
        try:
            shown = partial(shown_progress, "checking", is_wanted=not as_json, unit="chunks")
            return await recover_store(settings, runtime, shown)
        finally:
            await runtime.work.close()

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(run())


@storage.command()
def probe(
    tier2: Tier2 = None,
    data_dir: DataDir = None,
    config: Config = None,
    chunk_bytes: Annotated[
        int, typer.Option("--bytes", min=1, max=64 << 20, help="How much is written at a time.")
    ] = 1 << 20,
    as_json: AsJson = False,
) -> None:
    """Try whether long-term storage does what a server needs: create, read, append, join, list and delete.

    With chunks of its own, which are deleted; a server may run there, or never have. It ends with 0 if all works.
    """
    with failures_told(as_json=as_json):
        report = _probe(tier2, data_dir, config, chunk_bytes)
        tell("storage_probe", asdict(report), _probe_lines(report), as_json=as_json)


def _probe(tier2: str | None, data_dir: str | None, config: Path | None, chunk_bytes: int) -> ProbeReport:
    # Only now: the help of all commands should not load a server.
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime
    from penstock.runtime.settings import load_settings
    from penstock.settings import StandaloneSettings
    from penstock.storage_probe import probe_storage

    logging.getLogger("penstock").addHandler(logging.NullHandler())
    settings = load_settings(
        StandaloneSettings, file=config, environment=os.environ, flags={"data_dir": data_dir, "tier2": tier2}
    )

    async def run() -> ProbeReport:
        runtime = real_runtime(1)
        try:
            return await probe_storage(settings, runtime, chunk_bytes=chunk_bytes)
        finally:
            await runtime.work.close()

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(run())


def _probe_lines(report: ProbeReport) -> Iterator[str]:
    yield report.place + ("" if report.has_identity else ", where no server has kept anything yet")
    for step in report.steps:
        yield f"  {step.name}: {step.duration_s * 1000:.1f} ms"
    grows = "chunks grow" if report.supports_append else "each write makes a chunk"
    joins = "chunks are joined there" if report.supports_concat else "chunks are joined by reading them"
    yield f"all of it works with {in_bytes(report.chunk_bytes)} at a time; {grows}, {joins}"


def _recovery_lines(report: RecoveryReport) -> Iterator[str]:
    for container in report.containers:
        created = datetime.fromtimestamp(container.created_ms / 1000, UTC).isoformat(timespec="seconds")
        yield f"container {container.id}: as of {created}, epoch {container.epoch}, {in_bytes(container.length_bytes)}"
        for name in container.passed_over:
            yield f"  {name} is not whole and was passed over"
    yield from report_lines(report.check)
    yield f"recovered: start a server with --data-dir {report.data_dir} and the same --tier2"


def report_lines(report: StorageReport) -> Iterator[str]:
    for problem in report.problems:
        subject = problem.chunk or problem.segment
        where = f" {subject} at byte {problem.offset}" if subject else ""
        yield f"{problem.kind}: container {problem.container}{where}: {problem.message}"
    if (more := report.problem_count - len(report.problems)) > 0:
        yield f"and {more} more problems"
    yield (
        f"{report.segment_count} segments, {report.checked_chunk_count} chunks, {in_bytes(report.chunk_bytes)}; "
        f"{in_bytes(report.checked_bytes)} were read and compared"
    )
    if report.surplus_bytes:
        yield f"{in_bytes(report.surplus_bytes)} behind the ends of chunks, left by writes that failed; never read"
    if report.unused_record_count:
        yield f"{report.unused_record_count} records of chunks that no segment leads to"
    for name in report.orphans:
        yield f"no record leads to {name}"
    if report.orphan_count:
        yield f"{report.orphan_count} chunks without a record, which the server will delete"
    if report.stranger_count:
        yield f"{report.stranger_count} chunks of other make, which are left alone"
    if report.problem_count:
        yield f"{report.problem_count} problem{'s' * (report.problem_count > 1)}"
    else:
        yield "all is as it should be"


storage.command()(survey)
storage.command("import")(import_segments)
storage.command()(export)
