"""``penstock export``: the events of a stream as a table, exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.failure import Interrupted, exit_on_error, termination_interrupts
from penstock.cli.options import POSITION_HELP, URI, AsJson, Stream, Uri
from penstock.cli.outages import Outage, job_session, outage_s_of

if TYPE_CHECKING:
    from penstock.jobs.export import Exporter, ExportReport, ExportTarget
    from penstock.jobs.export_hold import ExportHold
    from penstock.jobs.rows import RowShape
    from penstock.model.stream_cuts import StreamCut


_Subscriber = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Have retention keep what is not exported, as reader group export-NAME."),
]


def export(
    stream: Stream,
    to: Annotated[
        Literal["parquet", "iceberg"],
        typer.Option(help="parquet: files in a directory. iceberg: a table, by PyIceberg.", show_default=False),
    ],
    directory: Annotated[
        Path | None,
        typer.Option(help="Directory for the Parquet files. With iceberg: for a SQLite catalogue and its tables."),
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="NAMESPACE.TABLE", help="The Iceberg table.")] = None,
    catalog: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the Iceberg catalogue in PyIceberg's configuration.")
    ] = "default",
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property", metavar="KEY=VALUE", help="Property of the catalogue. Keep secrets in PyIceberg's files."
        ),
    ] = None,
    value: Annotated[
        Literal["binary", "text", "json"],
        typer.Option(help="Type of the column 'event'. json: the columns of --schema replace it."),
    ] = "binary",
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="Fields of the JSON, as 'order long, offset long as event_offset' (as: the column's name). Types: "
            "string, int, long, double, boolean, date, timestamp, json.",
        ),
    ] = None,
    start: Annotated[str, typer.Option("--from", help=f"Start position of a new table: {POSITION_HELP}")] = "earliest",
    until: Annotated[
        str | None, typer.Option(help="End position, in the same forms. [default: follow the stream]")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop at the current end of the stream: --until latest.")
    ] = False,
    batch_size: Annotated[str, typer.Option(metavar="SIZE", help="Maximum size of one commit.")] = "256MiB",
    interval: Annotated[str, typer.Option(metavar="TIME", help="Commit interval while following the stream.")] = "1m",
    outage: Outage = None,
    subscriber: _Subscriber = None,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark", help="Read and write in Spark's executors: with spark-submit's session, or a local one."
        ),
    ] = False,
    as_json: AsJson = False,
    uri: Uri = URI,
) -> None:
    """Write the events of a stream into Parquet files or an Iceberg table, each exactly once, until stopped.

    Progress is kept in the table: the command may be stopped, killed, restarted, or run twice at once.
    """
    # Only now: the help of all commands should not load a client.
    from penstock.cli.positions import cut_at
    from penstock.cli.quantities import bytes_of, milliseconds_of
    from penstock.jobs.rows import RowShape, fields_of
    from penstock.model.errors import InvalidArgumentError

    with exit_on_error(as_json=as_json), termination_interrupts():
        if once and until is not None:
            raise InvalidArgumentError("give either --once or --until, not both")
        until = "latest" if once else until
        interval_s, outage_s = milliseconds_of(interval) / 1000, outage_s_of(outage)
        batch_bytes = bytes_of(batch_size)
        _need_arrow()
        shape = RowShape(value, () if schema is None else fields_of(schema))
        with job_session(uri, outage) as session:
            # Before the cuts: they belong to this stream, or the exporter finds another identity.
            identity = session.call(session.client.stream_identity(stream))
            first = session.call(cut_at(session.client, stream, start))
            last = None if until is None else session.call(cut_at(session.client, stream, until, is_end=True))
        # The option also applies if the table no longer has the information.
        confirmed = None if start == "earliest" else first
        target = _target(to, directory, table, catalog, properties or [], f"{first.scope}/{first.stream}", shape,
                         confirmed, outage_s, 0.0 if outage is None else outage_s)  # fmt: skip
        exporter = _exporter(uri, outage_s, target, shape, first, identity, batch_bytes, on_spark=spark)
        hold = None if subscriber is None else _hold(uri, outage_s, exporter, first.scope, subscriber)
        try:
            _run(exporter, hold, first, last, interval_s, is_shown=not as_json)
        except (KeyboardInterrupt, Interrupted):
            _tell_end(exporter.report, as_json=as_json)
            raise
        _tell_end(exporter.report, as_json=as_json)


def _hold(uri: str, outage_s: float, exporter: Exporter, scope: str, name: str) -> ExportHold:
    """Return the subscriber of an export, which holds from now on what the table lacks."""
    from penstock.jobs.export_hold import ExportHold
    from penstock.spark.options import StoreSettings

    hold = ExportHold(StoreSettings(uri=uri, outage_s_max=outage_s), scope, name)
    hold.begin(exporter.position())
    return hold


def _tell_end(report: ExportReport, *, as_json: bool) -> None:
    from penstock.cli.output import counted, in_bytes, tell

    cut = None if report.cut is None else report.cut.to_text()
    fields: dict[str, object] = {
        "event_count": report.row_count, "length_bytes": report.length_bytes, "commit_count": report.commit_count,
        "overtaken_count": report.overtaken_count, "cut": cut,
    }  # fmt: skip
    commits = counted(report.commit_count, "commit")
    line = f"events: {report.row_count}, {in_bytes(report.length_bytes)}, exported in {commits}"
    tell("exported", fields, [line, f"the table is at {cut or 'its start: it is empty'}"], as_json=as_json)


def _run(
    exporter: Exporter, hold: ExportHold | None, first: StreamCut, last: StreamCut | None, interval_s: float, *,
    is_shown: bool,
) -> None:  # fmt: skip
    from penstock.cli.progress import shown_progress

    total_bytes = None if last is None else exporter.left_bytes(last)
    what = f"exporting {first.scope}/{first.stream}"
    with shown_progress(what, total_bytes, is_wanted=is_shown) as progress:

        def note(report: ExportReport) -> None:
            progress.note(report.row_count, report.length_bytes)
            if hold is not None and report.cut is not None:
                hold.advance(report.cut)

        if last is None:
            exporter.follow(interval_s, note)
        else:
            exporter.run_to(last, note)


def _target(
    to: Literal["parquet", "iceberg"], directory: Path | None, table: str | None, catalog: str, properties: list[str],
    stream: str, shape: RowShape, confirmed: StreamCut | None, outage_s: float,
    first_contact_s: float,
) -> ExportTarget:  # fmt: skip
    from penstock.jobs.iceberg_table import IcebergTable, open_catalog
    from penstock.jobs.parquet_directory import ParquetDirectory
    from penstock.model.errors import InvalidArgumentError

    if to == "parquet":
        if directory is None or table is not None or properties:
            raise InvalidArgumentError("Parquet files need a --directory, and take neither --table nor --property")
        return ParquetDirectory(directory, stream, shape.schema)
    if table is None:
        raise InvalidArgumentError("--table is required, as NAMESPACE.TABLE")
    pairs = [each.partition("=") for each in properties]
    if any(not (key and sign) for key, sign, _ in pairs):
        raise InvalidArgumentError("write a --property as KEY=VALUE")
    opened = open_catalog(catalog, {key: text for key, _, text in pairs}, directory, first_contact_s)
    return IcebergTable(opened, table, stream, shape.schema, confirmed=confirmed, outage_s_max=outage_s)


def _exporter(
    uri: str, outage_s: float, target: ExportTarget, shape: RowShape, first: StreamCut, identity: str | None,
    batch_bytes: int, *, on_spark: bool,
) -> Exporter:  # fmt: skip
    from penstock.jobs.export import Exporter, HereWriter, RangeWriter
    from penstock.jobs.source import JobSource
    from penstock.spark.options import StoreSettings

    source = JobSource(StoreSettings(uri=uri, outage_s_max=outage_s), first.scope, first.stream)
    writer: RangeWriter = HereWriter(source, shape)
    if on_spark:
        from penstock.jobs.spark_writer import SparkWriter, open_session

        session = open_session()
        writer = SparkWriter(session, source, shape, task_count=session.sparkContext.defaultParallelism)
    return Exporter(source, target, writer, first, batch_bytes=batch_bytes, identity=identity)


def _need_arrow() -> None:
    from penstock.model.errors import InvalidArgumentError
    from penstock.runtime.extras import missing_extra

    try:
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise InvalidArgumentError(missing_extra("an export", "arrow", error)) from error
