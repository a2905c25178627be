"""The start, reset position or end of a reader group: checks arguments and converts them to positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from penstock.client.streams.times import cut_at_time
from penstock.client.transport.cluster import Cluster
from penstock.client.transport.segment_extents import segment_infos
from penstock.model.errors import InvalidArgumentError, NoSuchSegmentError, PenstockError, PositionBeyondEndError
from penstock.model.names import parse_segment_name, segment_name, split_scoped_name
from penstock.model.stream_cuts import EARLIEST, LATEST, OFFSET_FUTURE, StreamCut, is_cut_text
from penstock.model.times import Time, is_time, time_ms

#: "earliest" (also None, "head"), "latest" (also "tail"), a time (with its time zone, or as text in ISO 8601), one cut
#: for a group of one stream, or a cut for each stream. A cut may be given as text, see `StreamCut.to_text`.
Start: TypeAlias = "Time | StreamCut | Mapping[str, StreamCut | str] | None"

#: The same, checked: times are milliseconds since the epoch.
CheckedStart: TypeAlias = "Literal['earliest', 'latest'] | int | dict[str, StreamCut]"


def checked_start(start: Start, streams: Sequence[str], what: str = "start") -> CheckedStart:
    """Return `start` as "earliest", "latest", a time or a cut for each of `streams`. `what`: its name in messages.

    Raises `InvalidArgumentError` for anything else: an invalid start must not read everything again.
    """
    if start is None or (isinstance(start, str) and start in EARLIEST):
        return "earliest"
    if isinstance(start, str) and start in LATEST:
        return "latest"
    if not isinstance(start, StreamCut | Mapping) and is_time(start):
        return time_ms(start, what)
    if isinstance(start, str) and is_cut_text(start):
        start = StreamCut.from_text(start)
    if isinstance(start, StreamCut):
        start = {f"{start.scope}/{start.stream}": start}
    if not isinstance(start, Mapping):
        raise InvalidArgumentError(
            f"{what}={start!r}: use 'earliest', 'latest', a time, a stream cut, or a dict with a stream cut for each "
            "stream"
        )
    cuts: dict[str, StreamCut] = {}
    for name, cut in start.items():
        if isinstance(cut, str):
            cut = StreamCut.from_text(cut)
        if not isinstance(name, str) or not isinstance(cut, StreamCut):
            raise InvalidArgumentError(
                f"{what}: {name!r} is given {cut!r}: map each stream ('scope/stream') to its stream cut"
            )
        scoped = "/".join(split_scoped_name(name))
        if f"{cut.scope}/{cut.stream}" != scoped:
            raise InvalidArgumentError(f"the stream cut given for {scoped} belongs to {cut.scope}/{cut.stream}")
        cuts[scoped] = cut
    if set(cuts) != set(streams):
        raise InvalidArgumentError(
            f"{what} has a stream cut for {', '.join(sorted(cuts)) or 'no stream'}; the group reads "
            f"{', '.join(sorted(streams))}: give exactly one for each of these"
        )
    return cuts


def checked_cuts(cuts: StreamCut | str | Mapping[str, StreamCut | str], what: str) -> dict[str, StreamCut]:
    """Return the given cuts, one or one for each of some streams, by stream. Raises `InvalidArgumentError`."""
    if isinstance(cuts, str):
        cuts = StreamCut.from_text(cuts)
    if isinstance(cuts, StreamCut):
        cuts = {f"{cuts.scope}/{cuts.stream}": cuts}
    if not isinstance(cuts, Mapping) or not cuts:
        raise InvalidArgumentError(f"{what}={cuts!r}: give a stream cut, or a dict with a stream cut for each stream")
    found = checked_start(cuts, ["/".join(split_scoped_name(str(name))) for name in cuts], what)
    assert isinstance(found, dict)
    return found


async def start_cuts(cluster: Cluster, start: CheckedStart, streams: Sequence[str]) -> dict[str, StreamCut]:
    """Return the start cut in each stream. For a time, no event before the cut is of that time or later.

    Raises `NoSuchStreamError`; `InvalidArgumentError` for a cut that is not a cut of its stream, or lies beyond its
    end, and for a future time.
    """
    return {stream: await _cut(cluster, start, stream, is_end=False) for stream in streams}


async def end_cuts(cluster: Cluster, until: CheckedStart, starts: Mapping[str, StreamCut]) -> dict[str, StreamCut]:
    """Return the end cut in each of the streams that begin at `starts`; see `start_cuts`.

    For a time, no event after the cut is of an earlier time. Raises `InvalidArgumentError` also for an end before the
    start.
    """
    cuts = {}
    for stream, start in starts.items():
        cut = cuts[stream] = await _cut(cluster, until, stream, is_end=True)
        try:
            await cluster.controller.segments_between(start, cut)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"until: in {stream} the end {dict(cut.positions)} is before the start {dict(start.positions)}"
            ) from error
    return cuts


async def _cut(cluster: Cluster, wanted: CheckedStart, stream: str, *, is_end: bool) -> StreamCut:
    if wanted == "earliest":
        return await cluster.head(stream)
    if wanted == "latest":
        return await cluster.latest(stream)
    if isinstance(wanted, int):
        return await cut_at_time(cluster, stream, wanted, is_end=is_end)
    assert isinstance(wanted, dict)
    await _check_cut(cluster, stream, wanted[stream])
    return wanted[stream]


def positions_in(cuts: Mapping[str, StreamCut]) -> dict[str, int]:
    """Return the segments to read, by full name, with their positions."""
    return {
        segment_name(cut.scope, cut.stream, segment): offset
        for cut in cuts.values()
        for segment, offset in cut.positions.items()
        # A segment not reached yet is added when its predecessors, which are in the cut, are read.
        if offset != OFFSET_FUTURE
    }


def cuts_of(positions: Mapping[str, int]) -> dict[str, StreamCut]:
    """Return the cut of each stream (``scope/stream``) from the positions of its segments, by full name."""
    by_stream: dict[tuple[str, str], dict[int, int]] = {}
    for segment, offset in positions.items():
        scope, stream, number = parse_segment_name(segment)
        by_stream.setdefault((scope, stream), {})[number] = offset
    return {f"{scope}/{stream}": StreamCut(scope, stream, found) for (scope, stream), found in by_stream.items()}


async def _check_cut(cluster: Cluster, stream: str, cut: StreamCut) -> None:
    if not cut.positions or not await cluster.controller.is_valid_cut(cut):
        raise InvalidArgumentError(
            f"the stream cut {dict(cut.positions)} is not a valid cut of {stream}: its segments do not cover every "
            "key exactly once; use a cut from head, tail or a reader group of this stream"
        )
    positions = positions_in({stream: cut})
    infos = await segment_infos(cluster, list(positions))
    for (segment, offset), info in zip(positions.items(), infos, strict=True):
        if isinstance(info, NoSuchSegmentError):
            continue  # Truncated away: reading continues after it.
        if isinstance(info, PenstockError):
            raise info
        if offset > info.length:
            raise PositionBeyondEndError(
                segment,
                position=offset,
                end=info.length,
                message=f"the stream cut is after the end of {stream}: {segment} has {info.length} bytes, the cut "
                f"says {offset}. The data before it was lost, as after a restore from an older backup: take a new "
                "cut",
            )
