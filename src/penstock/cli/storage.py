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

from penstock.cli.command_audit import audited
from penstock.cli.failure import EXIT_DAMAGED, EXIT_USAGE, exit_on_error, fail
from penstock.cli.log import AsJson, Config, DataDir
from penstock.cli.options import Tier2
from penstock.cli.output import in_bytes, tell
from penstock.cli.rolling import export, import_segments, survey

if TYPE_CHECKING:
    from penstock.administration.storage_probe import ProbeReport
    from penstock.administration.storage_recovery import RecoveryReport
    from penstock.segmentstore.tier2.storage_check import StorageReport
    from penstock.server.log_probe import LogProbeReport

storage: typer.Typer = typer.Typer(
    name="storage",
    help="Check, back up, recover or import the long-term storage of a stopped server.",
    pretty_exceptions_enable=False,
)


@storage.command()
def check(
    data_dir: DataDir = None,
    tier2: Tier2 = None,
    config: Config = None,
    lengths_only: Annotated[
        bool, typer.Option("--lengths-only", help="Check only the lengths of the chunks; do not read them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the metadata with the chunks: existence, lengths and checksums.

    The server must be stopped; nothing is changed. Exits with 0 if no problem is found, with 3 if something is damaged
    or
    missing, with 1 if the check could not be completed. Chunks without a record are not damage; the server deletes
    them.
    """
    with exit_on_error(as_json=as_json):
        report = _check(data_dir, tier2, config, is_read=not lengths_only, as_json=as_json)
        tell("storage_check", {"is_read": not lengths_only, **asdict(report)}, report_lines(report), as_json=as_json)
    if report.problem_count:
        raise typer.Exit(EXIT_DAMAGED)


def _check(
    data_dir: str | None, tier2: str | None, config: Path | None, *, is_read: bool, as_json: bool
) -> StorageReport:
    # Only now: the help of all commands should not load a server.
    from penstock.administration.storage_administration import check_storage
    from penstock.cli.progress import shown_progress
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

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
            help="Long-term storage: s3://bucket/prefix (gs://, az://), hdfs://host:port/path, or a directory."
        ),
    ] = None,
    directory: Annotated[
        str | None, typer.Option("--directory", "--data-dir", help="Data directory to create: new or empty.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild the data directory of a lost machine from its long-term storage alone.

    The store must have written images. It does so in a bucket and in HDFS, and in a directory if configured
    (segment_store.container.images.interval_s). The result has the state of the newest images, including all that a
    flush
    acknowledged. Long-term storage is only read; the lost machine must not return to service.
    Exits with 0 if everything was recovered, with 3 if the directory was created but chunks are missing, otherwise
    with 1.
    """
    with exit_on_error(as_json=as_json):
        if directory is None:
            raise fail(
                "--directory is required: the data directory to create",
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
    from penstock.administration.storage_recovery import recover_store
    from penstock.cli.progress import shown_progress
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

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

    with (
        audited(settings, "storage recover", "data directory", data_dir=os.path.abspath(directory)),
        asyncio.Runner(loop_factory=new_loop()) as runner,
    ):
        return runner.run(run())


@storage.command()
def probe(
    tier2: Tier2 = None,
    data_dir: DataDir = None,
    config: Config = None,
    chunk_bytes: Annotated[int, typer.Option("--bytes", min=1, max=64 << 20, help="Size of one write.")] = 1 << 20,
    log: Annotated[
        str | None,
        typer.Option("--log", help="Test this bucket as a place for the log instead: s3://, gs:// or az://."),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1000, help="With --log: races of each kind.")] = 30,
    as_json: AsJson = False,
) -> None:
    """Test the operations that a server needs of long-term storage: create, read, append, join, list and delete.

    With --log, test whether a bucket can hold the log: twenty callers race to create and to replace objects, and the
    lifecycle rules of the bucket are read. Uses temporary chunks or objects and deletes them; safe beside a running
    server. Exits with 0 if every operation works.
    """
    with exit_on_error(as_json=as_json):
        if log is not None:
            found = _probe_log(log, config, rounds)
            tell("log_probe", asdict(found), _log_probe_lines(found), as_json=as_json)
            return
        report = _probe(tier2, data_dir, config, chunk_bytes)
        tell("storage_probe", asdict(report), _probe_lines(report), as_json=as_json)


def _probe(tier2: str | None, data_dir: str | None, config: Path | None, chunk_bytes: int) -> ProbeReport:
    # Only now: the help of all commands should not load a server.
    from penstock.administration.storage_probe import probe_storage
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

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


def _probe_log(log: str, config: Path | None, rounds: int) -> LogProbeReport:
    # Only now: the help of all commands should not load a server.
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime
    from penstock.runtime.settings import load_settings
    from penstock.server.log_probe import probe_log
    from penstock.server.settings import StandaloneSettings

    logging.getLogger("penstock").addHandler(logging.NullHandler())
    settings = load_settings(StandaloneSettings, file=config, environment=os.environ, flags={})

    async def run() -> LogProbeReport:
        runtime = real_runtime(1)
        try:
            return await probe_log(log, settings.object_storage.store, runtime, rounds=rounds)
        finally:
            await runtime.work.close()

    with asyncio.Runner(loop_factory=new_loop()) as runner:
        return runner.run(run())


def _log_probe_lines(report: LogProbeReport) -> Iterator[str]:
    yield report.place
    for step in report.steps:
        yield f"  {step.name}: {step.duration_s * 1000:.1f} ms"
    for each in report.unknown:
        yield f"not checked: {each}"
    if report.versioning == "Enabled":
        yield "versioning is enabled: deleted objects stay as old versions and are paid for until a rule removes those"
    if report.unclear_rounds:
        yield f"{report.unclear_rounds} races ended without a clear answer"
    yield f"this bucket can hold a log: each race of {report.racers} callers had one winner"


def _probe_lines(report: ProbeReport) -> Iterator[str]:
    yield report.place + ("" if report.has_identity else ", which holds no server's data yet")
    for step in report.steps:
        yield f"  {step.name}: {step.duration_s * 1000:.1f} ms"
    grows = "chunks grow" if report.supports_append else "each write creates a chunk"
    joins = "chunks are joined by the storage" if report.supports_concat else "chunks are joined by copying them"
    yield f"every operation works with {in_bytes(report.chunk_bytes)} at a time; {grows}, {joins}"


def _recovery_lines(report: RecoveryReport) -> Iterator[str]:
    for container in report.containers:
        created = datetime.fromtimestamp(container.created_ms / 1000, UTC).isoformat(timespec="seconds")
        yield f"container {container.id}: as of {created}, epoch {container.epoch}, {in_bytes(container.length_bytes)}"
        for name in container.passed_over:
            yield f"  {name} is incomplete and was skipped"
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
        yield f"{in_bytes(report.surplus_bytes)} after the ends of chunks, left by failed writes; never read"
    if report.unused_record_count:
        yield f"{report.unused_record_count} records of chunks that no segment refers to"
    for name in report.orphans:
        yield f"no record refers to {name}"
    if report.orphan_count:
        yield f"{report.orphan_count} chunks without a record; the server will delete them"
    if report.stranger_count:
        yield f"{report.stranger_count} files that are not Penstock's; they are left alone"
    if report.problem_count:
        yield f"{report.problem_count} problem{'s' * (report.problem_count > 1)}"
    else:
        yield "no problems found"


storage.command()(survey)
storage.command("import")(import_segments)
storage.command()(export)
