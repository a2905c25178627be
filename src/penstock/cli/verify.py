"""``penstock verify``: the chunks of streams against what the server knows of them, while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import EXIT_DAMAGED, EXIT_FAILED, Interrupted, exit_on_error, termination_interrupts
from penstock.cli.names import complete_streams
from penstock.cli.options import URI, AsJson, Uri
from penstock.cli.outages import Outage, job_session, outage_s_of

if TYPE_CHECKING:
    from penstock.jobs.verify import PartSums, Verifier, VerifyReport
    from penstock.spark.options import StoreSettings


def verify(
    streams: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STREAM]...", help="As SCOPE/STREAM.", show_default="all streams", autocompletion=complete_streams
        ),
    ] = None,
    tier2: Annotated[
        str | None,
        typer.Option(help="Long-term storage, as seen from the machine that reads it. [default: the server's]"),
    ] = None,
    outage: Outage = None,
    spark: Annotated[
        bool, typer.Option("--spark", help="Read in Spark's executors: with spark-submit's session, or a local one.")
    ] = False,
    as_json: AsJson = False,
    uri: Uri = URI,
) -> None:
    """Compare the chunks of streams in long-term storage with the server's checksums.

    The server must run; no data is read from it, and nothing is changed. Exits with 0 if no problem is found, with 3
    if data
    is damaged or missing, with 1 if the check could not be completed.
    """
    # Only now: the help of all commands should not load a client.
    from penstock.jobs.verify import StoredChunks, Verifier
    from penstock.model.errors import NoSuchStreamError, PenstockError
    from penstock.model.names import split_scoped_name
    from penstock.spark.options import StoreSettings

    with exit_on_error(as_json=as_json), termination_interrupts():
        outage_s = outage_s_of(outage)
        named = ["/".join(split_scoped_name(each)) for each in streams or ()]
        with job_session(uri, outage) as session:
            client = session.client
            for each in named:
                session.call(client.segments_of(each))
            found = named or [
                f"{scope}/{name}"
                for scope in session.iterate(client.scopes())
                for name in session.iterate(client.streams(scope))
            ]
        store = StoreSettings(uri=uri, outage_s_max=outage_s)
        verifier = Verifier(StoredChunks(store), _sums(store, tier2 or "", on_spark=spark))
        total_bytes = 0
        for each in dict.fromkeys(found):
            # A stream found by a pattern may be deleted meanwhile.
            with nullcontext() if named else suppress(NoSuchStreamError):
                total_bytes += verifier.add(each)
        try:
            _run(verifier, total_bytes, is_shown=not as_json)
        except (KeyboardInterrupt, Interrupted, PenstockError):
            _tell_end(verifier.report, as_json=as_json, is_whole=False)
            raise
        _tell_end(verifier.report, as_json=as_json, is_whole=True)
    if verifier.report.problem_count:
        raise typer.Exit(EXIT_DAMAGED)
    if verifier.report.unknown_count:
        raise typer.Exit(EXIT_FAILED)


def _sums(store: StoreSettings, place: str, *, on_spark: bool) -> PartSums:
    if on_spark:
        from penstock.jobs.spark_sums import SparkSums
        from penstock.jobs.spark_writer import open_session

        session = open_session()
        return SparkSums(session, store, place, task_count=session.sparkContext.defaultParallelism)
    from penstock.jobs.verify import HereSums

    return HereSums(store, place)


def _run(verifier: Verifier, total_bytes: int, *, is_shown: bool) -> None:
    from penstock.cli.progress import shown_progress

    with shown_progress("verifying", total_bytes, is_wanted=is_shown, unit="chunks") as progress:
        verifier.run(lambda report: progress.note(report.chunk_count, report.checked_bytes + report.unflushed_bytes))


def _tell_end(report: VerifyReport, *, as_json: bool, is_whole: bool) -> None:
    from penstock.cli.output import tell

    tell("verified", {**asdict(report), "is_whole": is_whole}, _lines(report, is_whole=is_whole), as_json=as_json)


def _lines(report: VerifyReport, *, is_whole: bool) -> Iterator[str]:
    from penstock.cli.output import in_bytes

    for problem in report.problems:
        yield f"{problem.kind}: {problem.chunk} at byte {problem.offset}: {problem.message}"
    if (more := report.problem_count - len(report.problems)) > 0:
        yield f"and {more} more problems"
    yield from (f"not known: {each}" for each in report.unknowns)
    yield (
        f"{report.segment_count} segments, {report.chunk_count} chunks, {in_bytes(report.checked_bytes)} were read and "
        "compared"
    )
    if report.unflushed_bytes:
        yield f"{in_bytes(report.unflushed_bytes)} are not in long-term storage yet"
    if report.problem_count:
        yield f"{report.problem_count} problem{'s' * (report.problem_count > 1)}"
    elif not is_whole:
        yield "the check was stopped before its end"
    elif report.unknown_count:
        yield "some checks could not be completed"
    else:
        yield "no problems found"
