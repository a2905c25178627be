"""``penstock stream scale``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.failure import exit_on_error
from penstock.cli.options import URI, AsJson, Stream, Uri
from penstock.cli.output import tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.client.client import Client
    from penstock.client.controller.stream_segments import SegmentRange

Split = Annotated[int | None, typer.Option("--split", help="Id of a segment to split.")]
Into = Annotated[int, typer.Option("--into", min=2, help="Number of segments that a split creates.")]
Merge = Annotated[list[int] | None, typer.Option("--merge", help="Id of a segment to merge; give two or more.")]


def scale(
    stream: Stream,
    split: Split = None,
    into: Into = 2,
    merge: Merge = None,
    uri: Uri = URI,
    as_json: AsJson = False,
) -> None:
    """Split a segment of a stream, or merge neighbours. For a number of equal ones: penstock stream update --segments.

    Writers and readers follow by themselves; events of one key stay in order. Ids are those that describe prints.
    """
    from penstock.cli.session import connected
    from penstock.model.errors import InvalidArgumentError

    with exit_on_error(as_json=as_json):
        if (split is None) == (not merge):
            raise InvalidArgumentError("give --split SEGMENT, or --merge SEGMENT at least twice")
        with connected(uri) as session:
            new = session.call(_scaled(session.client, stream, [split] if split is not None else merge or [], into))
    tell(
        "scaled",
        {
            "stream": stream,
            "segments": [
                {"segment": each.segment_id, "key_low": each.key_low, "key_high": each.key_high} for each in new
            ],
        },
        [
            f"stream {stream} has {len(new)} segments",
            *(f"  {each.segment_id}  [{each.key_low:.4g}, {each.key_high:.4g})" for each in new),
        ],
        as_json=as_json,
    )


async def _scaled(client: Client, stream: str, segments: Sequence[int], into: int) -> Sequence[SegmentRange]:
    """Split the one segment, or merge several; return the segments of the stream then, by key."""
    from penstock.model.errors import InvalidArgumentError

    current: dict[int, SegmentRange] = {each.segment_id: each for each in await client.segments_of(stream)}
    missing = [segment for segment in segments if segment not in current]
    if missing:
        known = ", ".join(map(str, current))
        raise InvalidArgumentError(
            f"{missing[0]} is not a current segment of {stream}; current segments: {known or 'none'}"
        )
    chosen = sorted((current[segment] for segment in set(segments)), key=lambda each: each.key_low)
    low, high = chosen[0].key_low, chosen[-1].key_high
    if len(chosen) == 1:
        bounds = [low + (high - low) * step / into for step in range(into)]
        ranges = list(zip(bounds, [*bounds[1:], high], strict=True))
    else:
        ranges = [(low, high)]
    await client.scale_stream(stream, seal=[each.segment_id for each in chosen], key_ranges=ranges)
    return sorted(await client.segments_of(stream), key=lambda each: each.key_low)
