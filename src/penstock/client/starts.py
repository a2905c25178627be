"""Where a reader group starts, or is set back to: what callers give, checked and turned into positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.client.cluster import Cluster
from penstock.model.errors import InvalidArgumentError, NoSuchSegmentError, PenstockError
from penstock.model.names import segment_name, split_scoped_name
from penstock.model.stream_cuts import OFFSET_FUTURE, StreamCut

#: "earliest" (also None, "head"), "latest" (also "tail"), one cut for a group of one stream, or a cut for each stream.
#: A cut may be given as text, see `StreamCut.to_text`.
Start = None | str | StreamCut | Mapping[str, StreamCut | str]

_EARLIEST = ("earliest", "head")
_LATEST = ("latest", "tail")


def checked_start(start: Start, streams: Sequence[str]) -> Start:
    """Return `start` as "earliest", "latest" or a cut for each of `streams`.

    Raises `InvalidArgumentError` for anything else: a start that is not understood must not read everything again.
    """
    if start is None or start in _EARLIEST:
        return "earliest"
    if isinstance(start, str) and start in _LATEST:
        return "latest"
    if isinstance(start, str) and start.lstrip().startswith("{"):
        start = StreamCut.from_text(start)
    if isinstance(start, StreamCut):
        start = {f"{start.scope}/{start.stream}": start}
    if not isinstance(start, Mapping):
        raise InvalidArgumentError(
            f"start={start!r}: use 'earliest', 'latest', a stream cut, or a dict with a stream cut for each stream"
        )
    cuts: dict[str, StreamCut] = {}
    for name, cut in start.items():
        if isinstance(cut, str):
            cut = StreamCut.from_text(cut)
        if not isinstance(name, str) or not isinstance(cut, StreamCut):
            raise InvalidArgumentError(
                f"start: {name!r} is given {cut!r}: map each stream ('scope/stream') to its stream cut"
            )
        scoped = "/".join(split_scoped_name(name))
        if f"{cut.scope}/{cut.stream}" != scoped:
            raise InvalidArgumentError(f"the stream cut given for {scoped} is one of {cut.scope}/{cut.stream}")
        cuts[scoped] = cut
    if set(cuts) != set(streams):
        raise InvalidArgumentError(
            f"start has a stream cut for {', '.join(sorted(cuts)) or 'no stream'}; the group reads "
            f"{', '.join(sorted(streams))}: give one for each of these, and for no other"
        )
    return cuts


async def start_cuts(cluster: Cluster, start: Start, streams: Sequence[str]) -> dict[str, StreamCut]:
    """Return the cut to start at in each stream, for what `checked_start` returned.

    Raises `NoSuchStreamError`; `InvalidArgumentError` for a cut that is none of its stream, or lies beyond its end.
    """
    cuts: dict[str, StreamCut] = {}
    for stream in streams:
        if start == "latest":
            cuts[stream] = await cluster.tail(stream)
        elif isinstance(start, Mapping):
            cut = start[stream]
            assert isinstance(cut, StreamCut)
            await _check_cut(cluster, stream, cut)
            cuts[stream] = cut
        else:
            cuts[stream] = await cluster.head(stream)
    return cuts


def positions_in(cuts: Mapping[str, StreamCut]) -> dict[str, int]:
    """Return the segments to read, by full name, and where to go on in them."""
    return {
        segment_name(cut.scope, cut.stream, segment): offset
        for cut in cuts.values()
        for segment, offset in cut.positions.items()
        # A segment not reached yet comes in when its predecessors, which are in the cut, are read.
        if offset != OFFSET_FUTURE
    }


async def _check_cut(cluster: Cluster, stream: str, cut: StreamCut) -> None:
    if not cut.positions or not await cluster.controller.is_valid_cut(cut):
        raise InvalidArgumentError(
            f"the stream cut {dict(cut.positions)} is none of {stream}: its segments do not cover the keys once; take "
            "one from head, tail or a reader group of this stream"
        )
    positions = positions_in({stream: cut})
    infos = await cluster.segments.segment_infos(list(positions))
    for (segment, offset), info in zip(positions.items(), infos, strict=True):
        if isinstance(info, NoSuchSegmentError):
            continue  # Truncated away: reading goes on after it.
        if isinstance(info, PenstockError):
            raise info
        if offset > info.length:
            raise InvalidArgumentError(
                f"the stream cut lies beyond the end of {stream}: {segment} has {info.length} bytes, the cut says "
                f"{offset}; nothing could ever be read from there on"
            )
