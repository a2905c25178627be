"""``penstock stream history``: when a stream's segments were split and merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.options import URI, AsJson, Stream, Uri
from penstock.cli.output import table, tell

if TYPE_CHECKING:
    from penstock.client.streams.stream_history import StreamHistory

#: Ids of segments shown in one cell of the table.
_SHOWN_MAX = 4


def history(
    stream: Stream,
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs to show, from the latest.")] = 20,
    before: Annotated[int | None, typer.Option(min=1, help="Only epochs before this one.")] = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Show when each epoch of a stream began, and which segments it split and merged, latest last."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        found = session.call(session.client.history(stream, epoch_count_max=epochs, before=before))
    fields: dict[str, object] = {"stream": stream, "epoch_count": found.epoch_count, "is_sealed": found.is_sealed}
    tell("stream_history", {**fields, "epochs": _records(found)}, _lines(found), as_json=as_json)


def _records(found: StreamHistory) -> list[dict[str, object]]:
    return [
        {
            "epoch": epoch.number,
            "began": _time(epoch.began_ms),
            "segment_count": len(epoch.segments),
            "splits": splits,
            "merges": merges,
            "sealed": [segment.segment_id for segment in sealed],
            "created": [segment.segment_id for segment in created],
        }
        for (epoch, sealed, created), (_, splits, merges) in zip(found.changes(), found.scales(), strict=True)
    ]


def _lines(found: StreamHistory) -> list[str]:
    rows = [
        (
            record["epoch"],
            record["began"] or "unknown",
            record["segment_count"],
            record["splits"],
            record["merges"],
            _ids(record["sealed"]),
            _ids(record["created"]),
        )
        for record in _records(found)
    ]
    headers = ("epoch", "began", "segments", "splits", "merges", "sealed", "created")
    lines = list(table(headers, rows))
    if len(found.epochs) < found.epoch_count:
        first, last = found.epochs[0].number, found.epochs[-1].number
        lines.append(f"epochs {first} to {last} of {found.epoch_count}: --epochs and --before show others")
    return lines


def _ids(segments: object) -> str:
    assert isinstance(segments, list)
    shown = ", ".join(map(str, segments[:_SHOWN_MAX]))
    return shown + (f" and {len(segments) - _SHOWN_MAX} more" if len(segments) > _SHOWN_MAX else "")


def _time(began_ms: int | None) -> str | None:
    import datetime

    if began_ms is None:
        return None
    at = datetime.datetime.fromtimestamp(began_ms / 1000, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
