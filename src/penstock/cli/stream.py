"""``penstock stream``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.options import POSITION_HELP, URI, AsJson, ScopeToList, Stream, Uri, Yes
from penstock.cli.output import confirm, in_bytes, in_time, table, tell
from penstock.cli.quantities import bytes_of, milliseconds_of
from penstock.cli.stream_history import history
from penstock.cli.stream_scale import scale
from penstock.cli.stream_times import cut, watermark
from penstock.client.low_level import controller_of, segments_of

if TYPE_CHECKING:
    from penstock.cli.session import Session
    from penstock.model.policies import Retention, Scaling, StreamConfig

Segments = Annotated[
    int | None, typer.Option(min=1, help="Number of segments; with scaling, the initial number. [default: 1]")
]
SegmentsToUpdate = Annotated[
    int | None, typer.Option(min=1, help="Number of segments; with scaling, the minimum. [default: unchanged]")
]
EventRate = Annotated[int | None, typer.Option(min=1, help="Scale by events/s: target rate of one segment.")]
DataRate = Annotated[int | None, typer.Option(min=1, help="Scale by kB/s: target rate of one segment.")]
Factor = Annotated[int, typer.Option(min=2, help="Number of segments that a busy segment is split into.")]
KeepTime = Annotated[str | None, typer.Option(help="Keep the events of this last period, as 7d or 12h.")]
KeepBytes = Annotated[str | None, typer.Option(help="Keep the newest bytes, as 10GB.")]
KeepMax = Annotated[
    str | None,
    typer.Option(help="Upper limit, of the same kind, for groups that lag. [default: no limit]"),
]
Tag = Annotated[list[str] | None, typer.Option("--tag", help="A tag to find the stream by. Repeatable.")]

stream: typer.Typer = typer.Typer(name="stream")


def _scaling(segments: int | None, event_rate: int | None, data_rate: int | None, factor: int) -> Scaling | None:
    from penstock.model.errors import InvalidArgumentError
    from penstock.model.policies import Scaling

    if event_rate is not None and data_rate is not None:
        raise InvalidArgumentError("a stream scales by --event-rate or by --data-rate, not by both")
    if event_rate is not None:
        return Scaling.by_event_rate(event_rate, factor, segments or 1)
    if data_rate is not None:
        return Scaling.by_data_rate(data_rate, factor, segments or 1)
    return None if segments is None else Scaling.fixed(segments)


def _retention(keep_time: str | None, keep_bytes: str | None, keep_max: str | None) -> Retention | None:
    from penstock.model.errors import InvalidArgumentError
    from penstock.model.policies import Retention

    if keep_time is not None and keep_bytes is not None:
        raise InvalidArgumentError("a stream keeps events by --keep-time or by --keep-bytes, not by both")
    if keep_time is not None:
        most_ms = 0 if keep_max is None else milliseconds_of(keep_max)
        return Retention.by_time(seconds=milliseconds_of(keep_time) / 1000, max_seconds=most_ms / 1000)
    if keep_bytes is not None:
        return Retention.by_size(bytes_of(keep_bytes), 0 if keep_max is None else bytes_of(keep_max))
    if keep_max is not None:
        raise InvalidArgumentError("--keep-max needs --keep-time or --keep-bytes")
    return None


@stream.command("list")
def list_streams(
    scope: ScopeToList = None,
    tag: Annotated[str | None, typer.Option(help="Only streams with this tag.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Include the system's streams: watermarks, group state.")
    ] = False,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """List the streams."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        client = session.client
        # Scopes that Pravega keeps for itself begin with an underscore.
        scopes = [scope] if scope else [name for name in session.iterate(client.scopes()) if not name.startswith("_")]
        names = sorted(
            f"{each}/{name}"
            for each in scopes
            for name in session.iterate(client.streams(each, tag=tag, includes_internal=everything))
        )
    tell("streams", {"streams": names}, names, as_json=as_json)


@stream.command()
def create(
    stream: Stream,
    segments: Segments = None,
    event_rate: EventRate = None,
    data_rate: DataRate = None,
    factor: Factor = 2,
    keep_time: KeepTime = None,
    keep_bytes: KeepBytes = None,
    keep_max: KeepMax = None,
    tag: Tag = None,
    rollover: Annotated[str | None, typer.Option(help="Maximum size of a file in long-term storage, as 64MiB.")] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Leave it unchanged if it exists.")] = False,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Create a stream, and its scope if missing. The default is one segment and no retention."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json):
        scaling = _scaling(segments, event_rate, data_rate, factor)
        retention = _retention(keep_time, keep_bytes, keep_max)
        rollover_bytes = 0 if rollover is None else bytes_of(rollover)
        with connected(uri) as session:
            session.call(
                session.client.create_stream(
                    stream,
                    scaling=scaling,
                    retention=retention,
                    tags=tag or (),
                    rollover_bytes=rollover_bytes,
                    exist_ok=exist_ok,
                )
            )
    tell("created", {"stream": stream}, [f"stream {stream} is created"], as_json=as_json)


@stream.command()
def update(
    stream: Stream,
    segments: SegmentsToUpdate = None,
    event_rate: EventRate = None,
    data_rate: DataRate = None,
    factor: Factor = 2,
    keep_time: KeepTime = None,
    keep_bytes: KeepBytes = None,
    keep_max: KeepMax = None,
    tag: Tag = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Remove its tags.")] = False,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Change a stream's scaling, retention or tags. Values not given are unchanged."""
    from penstock.cli.session import connected
    from penstock.model.errors import InvalidArgumentError

    with exit_on_error(as_json=as_json):
        scaling = _scaling(segments, event_rate, data_rate, factor)
        retention = _retention(keep_time, keep_bytes, keep_max)
        tags = tuple(tag) if tag else () if no_tags else None
        if tag and no_tags:
            raise InvalidArgumentError("--tag and --no-tags exclude each other")
        if scaling is None and retention is None and tags is None:
            raise InvalidArgumentError("no change was given: see penstock stream update --help")
        with connected(uri) as session:
            session.call(session.client.update_stream(stream, scaling=scaling, retention=retention, tags=tags))
    tell("updated", {"stream": stream}, [f"stream {stream} is updated"], as_json=as_json)


stream.command()(scale)
stream.command()(history)
stream.command()(watermark)
stream.command()(cut)


@stream.command()
def describe(
    stream: Stream,
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs to show, from the latest.")] = 20,
    svg: Annotated[
        Path | None, typer.Option(help="Draw its segments over time to this SVG file.", dir_okay=False)
    ] = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Show a stream's policies, size, segments now and over time, and the cuts at head and tail."""
    from penstock.cli.session import connected
    from penstock.cli.stream_map import map_fields, map_lines, map_svg
    from penstock.model.errors import InvalidArgumentError

    with exit_on_error(as_json=as_json), connected(uri) as session:
        fields, lines = session.call(_described(session, stream))
        found = session.call(session.client.history(stream, epoch_count_max=epochs))
        fields.update(map_fields(found))
        if found.epoch_count > 1:
            lines += ["", *(f"  {line}" for line in map_lines(found))]
        if svg is not None:
            try:
                svg.write_text(map_svg(found), encoding="utf-8")
            except OSError as error:
                raise InvalidArgumentError(f"cannot write {svg}: {error.strerror or error}") from error
            fields["svg"] = str(svg)
            lines += ["", f"the segments over time are drawn to {svg}"]
    tell("stream", fields, lines, as_json=as_json)


async def _described(session: Session, stream: str) -> tuple[dict[str, object], list[str]]:
    from penstock.model.names import segment_name, split_scoped_name
    from penstock.model.segments import SegmentInfo

    client = session.client
    scope, name = split_scoped_name(stream)
    config, identity = await client.stream_config(stream), await client.stream_identity(stream)
    head, tail = await client.head(stream), await client.tail(stream)
    current = await controller_of(client).current_segments(scope, name)
    # Those between the cuts, so that what a scaled stream still holds is counted.
    held = sorted(await controller_of(client).segments_between(head, tail))
    infos = await segments_of(client).segment_infos([segment_name(scope, name, segment) for segment in held])
    ranges = {segment.segment_id: (segment.key_low, segment.key_high) for segment in current}
    segments: list[dict[str, object]] = []
    total = 0
    for segment, info in zip(held, infos, strict=True):
        if not isinstance(info, SegmentInfo):
            continue  # Truncated away meanwhile.
        total += info.length - info.start_offset
        low, high = ranges.get(segment, (None, None))
        segments.append(
            {
                "segment": segment,
                "start_offset": info.start_offset,
                "length": info.length,
                "is_sealed": info.is_sealed,
                "key_low": low,
                "key_high": high,
            }
        )
    fields: dict[str, object] = {
        "stream": stream,
        "identity": identity,
        "is_sealed": not current,
        "bytes": total,
        **_policies(config),
        "segments": segments,
        "head": head.to_text(),
        "tail": tail.to_text(),
    }
    rows = [
        (each["segment"], each["start_offset"], each["length"], "sealed" if each["is_sealed"] else "open", _keys(each))
        for each in segments
    ]
    lines = [
        f"stream {stream}: {'sealed' if not current else 'open'}, {in_bytes(total)}",
        *([f"  identity   {identity}"] if identity is not None else []),
        f"  scaling    {_scaling_text(config)}",
        f"  retention  {_retention_text(config)}",
        *([f"  tags       {', '.join(config.tags)}"] if config.tags else []),
        f"  head       {head.to_text()}",
        f"  tail       {tail.to_text()}",
        *(f"  {line}" for line in table(("segment", "start", "end", "state", "keys"), rows)),
    ]
    return fields, lines


def _policies(config: StreamConfig) -> dict[str, object]:
    scaling, retention = config.scaling, config.retention
    return {
        "scaling": {
            "kind": scaling.kind.name.lower(),
            "target_rate": scaling.target_rate,
            "factor": scaling.factor,
            "min_segments": scaling.min_segments,
        },
        "retention": None
        if retention is None
        else {
            "kind": retention.kind.name.lower(),
            "min": retention.min_limit,
            "max": retention.max_limit if retention.has_max else None,
        },
        "tags": list(config.tags),
        "rollover_bytes": config.rollover_bytes,
    }


def _scaling_text(config: StreamConfig) -> str:
    from penstock.model.policies import ScalingKind

    scaling = config.scaling
    if scaling.kind is ScalingKind.FIXED:
        return f"fixed, segments: {scaling.min_segments}"
    unit = "events/s" if scaling.kind is ScalingKind.BY_EVENT_RATE else "kB/s"
    return f"{scaling.target_rate} {unit} a segment, splits into {scaling.factor}, at least {scaling.min_segments}"


def _retention_text(config: StreamConfig) -> str:
    from penstock.model.policies import RetentionKind

    retention = config.retention
    if retention is None:
        return "keeps everything"
    shown = in_time if retention.kind is RetentionKind.BY_TIME else in_bytes
    most = f", at most {shown(retention.max_limit)}" if retention.has_max else ""
    return f"keeps {shown(retention.min_limit)}{most}"


def _keys(segment: dict[str, object]) -> str:
    low, high = segment["key_low"], segment["key_high"]
    return "" if low is None else f"[{low:.4g}, {high:.4g})"


@stream.command()
def seal(stream: Stream, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Seal a stream permanently: it takes no more events; its events stay readable."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        session.call(session.client.seal_stream(stream))
    tell("sealed", {"stream": stream}, [f"stream {stream} is sealed"], as_json=as_json)


@stream.command()
def truncate(
    stream: Stream,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            help=POSITION_HELP,
        ),
    ],
    yes: Yes = False,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Delete the events of a stream before a cut. Asks for confirmation."""
    from penstock.cli.positions import cut_at
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        cut = session.call(cut_at(session.client, stream, at))
        question = f"Delete all events of {stream} before {cut.to_text()}?"
        confirm(question, f"events of {stream}", is_agreed=yes, as_json=as_json)
        session.call(session.client.truncate_stream(cut))
    tell("truncated", {"stream": stream, "head": cut.to_text()}, [f"stream {stream} is truncated"], as_json=as_json)


@stream.command()
def delete(stream: Stream, yes: Yes = False, uri: Uri = URI, as_json: AsJson = False) -> None:
    """Delete a stream and all its events; an open stream is sealed first. Asks for confirmation."""
    from penstock.cli.session import connected

    with exit_on_error(as_json=as_json), connected(uri) as session:
        found = session.call(_described(session, stream))[0]
        held = found["bytes"]
        assert isinstance(held, int)
        question = f"Delete stream {stream} with {in_bytes(held)} of events?"
        confirm(question, f"{stream} ({in_bytes(held)})", is_agreed=yes, as_json=as_json)
        session.call(session.client.seal_stream(stream))
        session.call(session.client.delete_stream(stream))
    tell("deleted", {"stream": stream, "bytes": held}, [f"stream {stream} is deleted"], as_json=as_json)
