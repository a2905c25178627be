"""``penstock backfill``: rows of Parquet files, written into a stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.copying import BatchSize, Name, copy_all, with_session
from penstock.cli.options import URI, AsJson, Stream, Uri
from penstock.cli.outages import Outage

if TYPE_CHECKING:
    from penstock.cli.session import Session


def backfill(
    stream: Stream,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Parquet files, or directories of an export.", show_default=False),
    ],
    event_column: Annotated[str, typer.Option(metavar="COLUMN", help="The events: bytes or texts.")] = "event",
    key_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Their routing keys. [default: none; for an export, the segment of each event]"
        ),
    ] = None,
    rate: Annotated[float, typer.Option(min=0, help="Maximum events per second. [default: no limit]")] = 0.0,
    name: Name = None,
    batch_size: BatchSize = "16MiB",
    outage: Outage = None,
    as_json: AsJson = False,
    uri: Uri = URI,
) -> None:
    """Write the rows of Parquet files into a stream, each exactly once.

    To resume a backfill that was stopped or killed, run the same command again. Running a finished backfill again does
    nothing.
    """

    # Only now: the help of all commands should not load a client.
    def run(session: Session, outage_s: float) -> None:
        from penstock.cli.quantities import bytes_of
        from penstock.jobs.backfill import BackfillSource
        from penstock.jobs.ledgered_copy import Pace, open_job
        from penstock.model.names import split_scoped_name

        job = name or f"backfill {' '.join(path.resolve().name for path in files)}"
        session.call(open_job(session.client, job, "/".join(split_scoped_name(stream))))
        source = BackfillSource(
            files, event_column=event_column, key_column=key_column, bytes_max=bytes_of(batch_size),
            rows_max=max(int(rate), 1) if rate else None,
        )  # fmt: skip
        copy_all(session, job, stream, source, Pace(rate), outage_s, None, as_json=as_json)

    with_session(uri, outage, run, as_json=as_json)
