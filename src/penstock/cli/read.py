"""``penstock read`` and ``penstock tail``: the events of a stream as lines of output."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.options import POSITION_HELP, URI, Stream, Uri

if TYPE_CHECKING:
    from penstock.cli.event_lines import Lines
    from penstock.cli.session import Session
    from penstock.client.client import Client
    from penstock.client.reading.event import EventBatch
    from penstock.model.stream_cuts import StreamCut

Form = Annotated[
    Literal["text", "json", "hex"],
    typer.Option("--format", help="text: the bytes of the event, unchanged. json: with segment and offset."),
]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json, and errors as JSON.")]
Count = Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many events. [default: all]")]
Key = Annotated[
    str | None,
    typer.Option(help="Read only the segments that hold this routing key; they hold other keys, too."),
]
Offsets = Annotated[bool, typer.Option("--offsets", help="Start each line with SEGMENT:OFFSET and a tab.")]


def read(
    stream: Stream,
    start: Annotated[str, typer.Option("--from", help=f"Start position: {POSITION_HELP}")] = "earliest",
    until: Annotated[str, typer.Option(help="End position, in the same forms.")] = "latest",
    count: Count = None,
    key: Key = None,
    form: Form = "text",
    offsets: Offsets = False,
    as_json: Json = False,
    uri: Uri = URI,
) -> None:
    """Print the events that a stream holds now, one per line.

    Events of one routing key are printed in the order written. No state is kept on the server; other readers are
    unaffected.
    """
    _print(stream, start, until, count, key, "json" if as_json else form, offsets, as_json=as_json, uri=uri)


def tail(
    stream: Stream,
    start: Annotated[str, typer.Option("--from", help=f"Start position: {POSITION_HELP}")] = "latest",
    count: Count = None,
    key: Key = None,
    form: Form = "text",
    offsets: Offsets = False,
    as_json: Json = False,
    uri: Uri = URI,
) -> None:
    """Print the events of a stream as they are written, until Ctrl-C.

    Exits when the stream is sealed and read to its end. No state is kept on the server.
    """
    _print(stream, start, None, count, key, "json" if as_json else form, offsets, as_json=as_json, uri=uri)


def _print(
    stream: str,
    start: str,
    until: str | None,
    count: int | None,
    key: str | None,
    form: Literal["text", "json", "hex"],
    offsets: bool,
    *,
    as_json: bool,
    uri: str,
) -> None:
    # Only now: the help of all commands should not load a client.
    from penstock.cli.event_lines import lines_of
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json):
        lines = lines_of(form, with_offsets=offsets, is_terminal=sys.stdout.isatty())
        with connected(uri) as session:
            first, last = session.call(_cuts(session.client, stream, start, until))
            _copy(session, first, last, count, key, lines)


async def _cuts(client: Client, stream: str, start: str, until: str | None) -> tuple[StreamCut, StreamCut | None]:
    from penstock.cli.positions import cut_at

    first = await cut_at(client, stream, start)
    return first, None if until is None else await cut_at(client, stream, until, is_end=True)


def _copy(
    session: Session, first: StreamCut, last: StreamCut | None, count: int | None, key: str | None, lines: Lines
) -> None:
    """Write the events between two cuts to standard output, a batch at a time."""
    from penstock.cli.output import write_all
    from penstock.cli.progress import shown_progress
    from penstock.client.stream_events import StreamEvents

    is_shown = last is not None and not sys.stdout.isatty()
    total_bytes = None if last is None else _length_between(first, last)
    with shown_progress(f"{first.scope}/{first.stream}", total_bytes, is_wanted=is_shown) as progress:
        events = StreamEvents(session.client, first, last, key=key, on_truncated=_tell_truncated)
        event_count = length_bytes = 0
        try:
            for batch in session.iterate(events.batches()):
                if count is not None and event_count + len(batch) > count:
                    batch = _first_of(batch, count - event_count)
                write_all(lines(batch))
                event_count += len(batch)
                length_bytes += batch.position - batch.offsets[0]
                progress.note(event_count, length_bytes)
                if event_count == count:
                    return
        finally:
            session.call(events.close())


def _length_between(first: StreamCut, last: StreamCut) -> int | None:
    """Return the bytes between two cuts; None if that takes more than the two, because the stream was scaled."""
    if set(first.positions) != set(last.positions):
        return None
    return sum(end - first.positions[segment] for segment, end in last.positions.items())


def _first_of(batch: EventBatch, count: int) -> EventBatch:
    from penstock.client.reading.event import EventBatch

    return EventBatch(batch.stream, batch.segment, batch.events[:count], batch.offsets[: count + 1])


def _tell_truncated(segment: str, offset: int, start_offset: int) -> None:
    sys.stderr.write(
        f"penstock: {start_offset - offset} bytes of {segment} were truncated before they were read; reading resumes "
        "after them\n"
    )
