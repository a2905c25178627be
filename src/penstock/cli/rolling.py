"""``penstock storage survey``, ``import``, ``export``: the layout of an older Pravega. See docs/rolling-storage.md."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from penstock.cli.command_audit import audited
from penstock.cli.failure import EXIT_DAMAGED, exit_on_error
from penstock.cli.log import AsJson, Config, DataDir
from penstock.cli.options import Tier2
from penstock.cli.output import in_bytes, tell

if TYPE_CHECKING:
    from penstock.administration.rolling_export import ExportReport
    from penstock.administration.rolling_storage import ImportReport, RollingProblem, RollingReport, RollingSegment
    from penstock.administration.storage_administration import ShowProgress
    from penstock.runtime.runtime import Runtime
    from penstock.server.settings import StandaloneSettings

T = TypeVar("T")

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Segments, streams (scope/stream) or scopes. [default: all]"),
]


def survey(
    names: Names = None,
    tier2: Tier2 = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List the segments that an older Pravega left in long-term storage (RollingStorage); compare headers with chunks.

    Nothing is changed, and no chunk is read. Exits with 0 if all can be read, with 3 if something is damaged or
    missing, with 1 if the check could not be completed.
    """
    from penstock.administration.rolling_storage import check_rolling

    with exit_on_error(as_json=as_json):
        report = _run(data_dir, tier2, config, partial(check_rolling, names=names or ()))
        tell("storage_surveyed", asdict(report), _survey_lines(report), as_json=as_json)
    if report.problems:
        raise typer.Exit(EXIT_DAMAGED)


def import_segments(
    names: Names = None,
    stream: Annotated[
        str | None,
        typer.Option(
            "--as", help="SCOPE/STREAM: its segments, of one epoch, receive the imported segments of any epochs."
        ),
    ] = None,
    tier2: Tier2 = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Import segments that an older Pravega left in long-term storage, permanently. Chunks stay where they are.

    Both servers must be stopped. All bytes are read once, for checksums. It may be interrupted and repeated. Exits
    with 0 if all were imported, with 3 if some could not be imported, with 1 on any other failure.
    """
    from penstock.administration.rolling_storage import import_rolling

    with exit_on_error(as_json=as_json):
        report = _run(
            data_dir, tier2, config,
            lambda settings, runtime: import_rolling(
                settings, runtime, _shown("importing", as_json), names=names or (), stream=stream or ""
            ),
            changed="storage import", names=names or (),
        )  # fmt: skip
        tell("storage_imported", asdict(report), _import_lines(report), as_json=as_json)
    if report.problems:
        raise typer.Exit(EXIT_DAMAGED)


def export(
    names: Names = None,
    tier2: Tier2 = None,
    data_dir: DataDir = None,
    container: Annotated[
        int | None, typer.Option(min=0, help="Only segments of this container. [default: all]")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Write headers into long-term storage so that an older Pravega can read the segments (RollingStorage).

    The server must be stopped; its segments are flushed first. Chunks are not changed. It may be repeated. Exits
    with 0 if all were exported, with 3 if some could not be exported, with 1 on any other failure.
    """
    from penstock.administration.rolling_export import export_rolling

    with exit_on_error(as_json=as_json):
        report = _run(
            data_dir, tier2, config,
            lambda settings, runtime: export_rolling(
                settings, runtime, _shown("exporting", as_json), names=names or (), container_id=container
            ),
            changed="storage export", names=names or (),
        )  # fmt: skip
        tell("storage_exported", asdict(report), _export_lines(report), as_json=as_json)
    if report.problems:
        raise typer.Exit(EXIT_DAMAGED)


def _shown(what: str, as_json: bool) -> ShowProgress:
    from penstock.cli.progress import shown_progress

    return partial(shown_progress, what, is_wanted=not as_json, unit="chunks")


def _run(
    data_dir: str | None,
    tier2: str | None,
    config: Path | None,
    function: Callable[[StandaloneSettings, Runtime], Awaitable[T]],
    *,
    changed: str = "",
    names: Sequence[str] = (),
) -> T:
    """Run `function`. `changed`: the command, if it changes something; it is recorded in the audit log."""
    # Only now: the help of all commands should not load a server.
    from penstock.cli.serve import new_loop
    from penstock.runtime.runtime import real_runtime
    from penstock.runtime.settings import load_settings
    from penstock.server.settings import StandaloneSettings

    # What is found is in the report.
    logging.getLogger("penstock").addHandler(logging.NullHandler())
    settings = load_settings(
        StandaloneSettings, file=config, environment=os.environ, flags={"data_dir": data_dir, "tier2": tier2}
    )

    async def run() -> T:
        runtime = real_runtime(1)
        try:
            return await function(settings, runtime)
        finally:
            await runtime.work.close()

    with (
        audited(settings, changed, "long-term storage", is_dry_run=not changed, names=list(names)),
        asyncio.Runner(loop_factory=new_loop()) as runner,
    ):
        return runner.run(run())


def _survey_lines(report: RollingReport) -> Iterator[str]:
    for segment in report.segments:
        notes = [
            f"bytes {segment.start_offset} to {segment.length}",
            f"{segment.chunk_count} chunks",
            f"{segment.gone_count} truncated" if segment.gone_count else "",
            "" if segment.is_adoptable else "only the older store reads it",
        ]
        yield f"{segment.name}: {', '.join(filter(None, notes))}"
    yield from _problem_lines(report.problems)
    byte_count = sum(segment.length - segment.start_offset for segment in report.segments)
    yield f"{len(report.segments)} segments, {in_bytes(byte_count)} in {report.place}"
    if report.left_over_count:
        yield f"{report.left_over_count} headers of segments that no longer exist"


def _import_lines(report: ImportReport) -> Iterator[str]:
    yield from _problem_lines(report.problems)
    for segment in report.imported:
        source = f" from {segment.source}" if segment.source else ""
        yield f"imported {segment.name}{source}: bytes {segment.start_offset} to {segment.length}"
        if segment.start_offset:
            yield "  its first byte need not be the first of an event: truncate it to where one begins"
    if report.present:
        yield f"{len(report.present)} were present before"
    if report.deleted_count:
        yield f"{report.deleted_count} were imported before, and deleted since, or by another name"
    if report.skipped:
        yield f"{len(report.skipped)} can only be read by the older store (tables, indexes, transactions)"
    yield f"{len(report.imported)} segments imported, {in_bytes(report.read_bytes)} read"
    yield from _stream_lines([*report.imported, *report.present])


def _stream_lines(imported: Sequence[RollingSegment]) -> Iterator[str]:
    """Say how their streams are made, which the older store kept elsewhere."""
    streams: dict[str, list[str]] = {}
    for segment in imported:
        stream, _, number = segment.name.rpartition("/")
        streams.setdefault(stream, []).append(number)
    for stream, numbers in sorted(streams.items()):
        if sorted(numbers) == sorted(f"{number}.#epoch.0" for number in range(len(numbers))):
            yield f"to read them: penstock stream create {stream} --segments {len(numbers)}"
        else:
            yield f"{stream} was scaled, or not all of it was imported: see --as"


def _export_lines(report: ExportReport) -> Iterator[str]:
    yield from _problem_lines(report.problems)
    for segment in report.exported:
        sealed = ", sealed" if segment.is_sealed else ""
        yield f"exported {segment.name}: bytes {segment.start_offset} to {segment.length}{sealed}"
    if report.unchanged_count:
        yield f"{report.unchanged_count} have not changed since they were exported"
    if report.skipped_count:
        yield f"{report.skipped_count} an older store could not read (tables, indexes, transactions)"
    yield f"{len(report.exported)} segments exported to {report.place}"


def _problem_lines(problems: Sequence[RollingProblem]) -> Iterator[str]:
    for problem in problems:
        yield f"problem: {problem.segment}: {problem.message}"
    if problems:
        yield f"{len(problems)} problem{'s' * (len(problems) > 1)}"
