"""``penstock stream watermark`` and ``penstock stream cut``: where a stream is, or was, in time."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.moments import FORMS
from penstock.cli.options import TIME_ROUNDING, URI, AsJson, Stream, Uri
from penstock.cli.output import tell
from penstock.client.low_level import cluster_of


def watermark(stream: Stream, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Show the latest watermark of a stream: how far its writers are in the times that they note, and where that is."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json):
        from penstock.client.streams.time_windows import latest_watermark
        from penstock.model.names import split_scoped_name
        from penstock.model.stream_cuts import StreamCut

        with connected(uri) as session:
            found = session.call(latest_watermark(cluster_of(session.client), stream))
            if found is None:
                session.call(session.client.stream_config(stream))  # Is there such a stream at all?
    fields: dict[str, object] = {"stream": stream, "watermark": None}
    lines = [f"stream {stream} has no watermark: no writer has noted a time, or the first watermark is not written yet"]
    if found is not None:
        text = StreamCut(*split_scoped_name(stream), found.positions).to_text()
        fields["watermark"] = {"lower_bound": found.lower_bound, "upper_bound": found.upper_bound, "cut": text}
        lines = [
            f"stream {stream}: events noted at {found.lower_bound} or before are before the cut",
            f"  lower bound  {found.lower_bound}",
            f"  upper bound  {found.upper_bound}",
            f"  cut          {text}",
        ]
    tell("watermark", fields, lines, as_json=as_json)


def cut(
    stream: Stream,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            help=f"'earliest', 'latest', a time at which events were stored ({FORMS}), or noted:TIME for a time that "
            f"their writers noted. {TIME_ROUNDING}",
        ),
    ],
    is_end: Annotated[
        bool, typer.Option("--end", help="For a time: round up, so that no event after the cut is older.")
    ] = False,
    is_pravegas: Annotated[
        bool, typer.Option("--pravega", help="Print the cut in the form that Pravega's clients exchange.")
    ] = False,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Print the cut of a stream at a time, for --from, --until and --at, of Penstock's commands and clients.

    At a time: nothing before the cut was stored then or later. At a noted time: nothing after it was noted as of then
    or before.
    """
    from penstock.cli.positions import cut_at
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        found = session.call(cut_at(session.client, stream, at, is_end=is_end))
    text = found.to_pravega_text() if is_pravegas else found.to_text()
    tell("cut", {"stream": stream, "at": at, "cut": text}, [text], as_json=as_json)
