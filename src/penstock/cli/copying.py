"""What ``penstock replay`` and ``penstock backfill`` have in common: options, and how a copy runs and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import Interrupted, exit_on_error, termination_interrupts
from penstock.cli.outages import job_session, outage_s_of

if TYPE_CHECKING:
    from penstock.cli.session import Session
    from penstock.jobs.ledgered_copy import CopyReport, Pace, PortionSource

Name = Annotated[
    str | None,
    typer.Option(
        help="Name of the job: the same name resumes it, a new name starts a new job. [default: from its source]"
    ),
]
KeyField = Annotated[
    str | None,
    typer.Option(metavar="FIELD", help="Use this field of each event, a JSON object, as routing key."),
]
BatchSize = Annotated[str, typer.Option(metavar="SIZE", help="Maximum size of one transaction; it is held in memory.")]


def with_session(uri: str, outage: str | None, run: Callable[[Session, float], None], *, as_json: bool) -> None:
    """Run a job on a session, with the longest outage in seconds, and report its failures."""
    with exit_on_error(as_json=as_json), termination_interrupts(), job_session(uri, outage) as session:
        run(session, outage_s_of(outage))


def copy_all(
    session: Session, name: str, target: str, source: PortionSource, pace: Pace, outage_s: float,
    total_bytes: int | None, *, as_json: bool,
) -> None:  # fmt: skip
    """Copy the present events, and report the result, also after an interruption."""
    from penstock.cli.progress import shown_progress
    from penstock.jobs.ledgered_copy import LedgeredCopy
    from penstock.model.names import split_scoped_name

    target = "/".join(split_scoped_name(target))
    copy = LedgeredCopy(session.call, session.client, name, target, source, visible_s=outage_s)
    try:
        with shown_progress(f"writing {target}", total_bytes, is_wanted=not as_json) as progress:
            copy.run(pace, lambda report: progress.note(report.event_count, report.length_bytes))
    except (KeyboardInterrupt, Interrupted):
        _tell_end(copy.report, target, as_json=as_json, is_whole=False)
        raise
    _tell_end(copy.report, target, as_json=as_json, is_whole=True)


def _tell_end(report: CopyReport, target: str, *, as_json: bool, is_whole: bool) -> None:
    from penstock.cli.output import counted, in_bytes, tell

    commits = counted(report.commit_count, "transaction")
    line = f"events: {report.event_count}, {in_bytes(report.length_bytes)}, written into {target} in {commits}"
    fields: dict[str, object] = {
        "event_count": report.event_count, "length_bytes": report.length_bytes, "commit_count": report.commit_count,
        "is_whole": is_whole,
    }  # fmt: skip
    end = "the job is done" if is_whole else "the job is not done: run the same command again to resume it"
    tell("copied", fields, [line, end], as_json=as_json)
