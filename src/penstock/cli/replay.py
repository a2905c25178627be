"""``penstock replay``: a range of a stream, written into another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.copying import BatchSize, KeyField, Name, copy_all, with_session
from penstock.cli.names import complete_streams
from penstock.cli.options import POSITION_HELP, URI, AsJson, Uri
from penstock.cli.outages import Outage

if TYPE_CHECKING:
    from penstock.cli.session import Session
    from penstock.jobs.replay import ReplayPlan

#: With a rate, how much of a second one transaction holds.
_PORTION_S = 1.0


def replay(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="To read.", show_default=False, autocompletion=complete_streams)
    ],
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="To write.", show_default=False, autocompletion=complete_streams)
    ],
    start: Annotated[str, typer.Option("--from", help=f"Start position: {POSITION_HELP}")] = "earliest",
    until: Annotated[
        str, typer.Option(help="End position, in the same forms; fixed when the job first starts.")
    ] = "latest",
    rate: Annotated[float, typer.Option(min=0, help="Maximum events per second. [default: no limit]")] = 0.0,
    byte_rate: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Maximum bytes per second. [default: no limit]")
    ] = None,
    key_field: KeyField = None,
    name: Name = None,
    batch_size: BatchSize = "16MiB",
    outage: Outage = None,
    as_json: AsJson = False,
    uri: Uri = URI,
) -> None:
    """Write a range of a stream into another stream, each event exactly once, at a given rate.

    To resume a replay that was stopped or killed, run the same command again. Running a finished replay again does
    nothing.
    """
    # Only now: the help of all commands should not load a client.
    from penstock.cli.quantities import bytes_of
    from penstock.jobs.ledgered_copy import Pace
    from penstock.jobs.replay import ReplaySource
    from penstock.jobs.source import JobSource
    from penstock.spark.options import StoreSettings

    def run(session: Session, outage_s: float) -> None:
        bytes_max = bytes_of(batch_size)
        bytes_per_s = 0 if byte_rate is None else bytes_of(byte_rate)
        job = name or f"replay {source}"
        plan = _plan(session, job, source, target, start, until, key_field)
        reading = JobSource(StoreSettings(uri=uri, outage_s_max=outage_s), plan.end.scope, plan.end.stream)
        portions = ReplaySource(
            reading, plan, bytes_max=min(bytes_max, int(bytes_per_s * _PORTION_S) or bytes_max),
            events_max=max(int(rate * _PORTION_S), 1) if rate else None,
        )  # fmt: skip
        total_bytes = portions.left_bytes()
        copy_all(session, job, target, portions, Pace(rate, bytes_per_s), outage_s, total_bytes, as_json=as_json)

    with_session(uri, outage, run, as_json=as_json)


def _plan(
    session: Session, job: str, source: str, target: str, start: str, until: str, key_field: str | None
) -> ReplayPlan:
    """Return the plan that the job began with, or a new one. Raises `InvalidArgumentError`: its plan is another."""
    from penstock.cli.positions import cut_at
    from penstock.jobs.ledgered_copy import open_job
    from penstock.jobs.replay import ReplayPlan
    from penstock.model.errors import InvalidArgumentError
    from penstock.model.names import split_scoped_name

    wanted = f"{'/'.join(split_scoped_name(source))} from {start} until {until}"
    on_record = session.call(open_job(session.client, job, "/".join(split_scoped_name(target))))
    if on_record is None:
        # Before the cuts: they belong to this stream, or the replay finds another identity.
        identity = session.call(session.client.stream_identity(source))
        first = session.call(cut_at(session.client, source, start))
        last = session.call(cut_at(session.client, source, until, is_end=True))
        return ReplayPlan(wanted, first, last, key_field, identity)
    plan = ReplayPlan.from_text(on_record)
    if (plan.wanted, plan.key_field) != (wanted, key_field):
        raise InvalidArgumentError(f"job {job!r} into {target} replays {plan.wanted}: give this job another --name")
    return plan
