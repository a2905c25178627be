"""Scopes and streams over REST, as Pravega's interface has them, and our additions.

Source: controller-api 13.
"""

from __future__ import annotations

import msgspec

from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.low_level import controller_of
from penstock.model.errors import NoSuchScopeError, NoSuchStreamError, PenstockError, StreamExistsError
from penstock.model.names import segment_epoch, segment_number, split_scoped_name
from penstock.model.stream_cuts import StreamCut
from penstock.runtime.bulk import for_each
from penstock.web import models, replies
from penstock.web.errors import BadRequestError
from penstock.web.listing import PAGED, names_page
from penstock.web.routes import NOTHING, Query, Reply, Request, Route

_CONFIGURATIONS_AT_ONCE = 32
_EPOCHS_MAX = 1000


class StreamState(msgspec.Struct):
    """The state to bring a stream to: SEALED."""

    streamState: str


class Truncation(msgspec.Struct, forbid_unknown_fields=True):
    """Where the stream begins afterwards: offsets by segment, or ``tail``, or a time in ISO 8601."""

    cut: dict[str, int] | None = None
    at: str | None = None
    dryRun: bool = False


class Scale(msgspec.Struct, forbid_unknown_fields=True):
    """Segments to seal, and the key ranges of those that follow them."""

    seal: list[int]
    ranges: list[tuple[float, float]]


async def list_scopes(request: Request) -> Reply:
    """List scopes."""
    controller = controller_of(request.client)
    names, headers = await names_page(request, lambda token: controller.scope_pages(token=token))
    return Reply(content=replies.ScopeList([replies.ScopeName(name) for name in names]), headers=headers)


async def create_scope(request: Request) -> Reply:
    """Create a scope."""
    name = request.json(replies.ScopeName).scopeName
    await request.client.create_scope(name)
    return Reply(201, replies.ScopeName(name))


async def get_scope(request: Request) -> Reply:
    """Return a scope."""
    scope = request.path["scope"]
    if not await controller_of(request.client).scope_exists(scope):
        raise NoSuchScopeError(f"scope {scope} does not exist")
    return Reply(content=replies.ScopeName(scope))


async def delete_scope(request: Request) -> Reply:
    """Delete an empty scope."""
    await request.client.delete_scope(request.path["scope"])
    return NOTHING


async def list_streams(request: Request) -> Reply:
    """List the streams of a scope with their configurations."""
    scope, kind = request.path["scope"], request.query.get("filter_type")
    tag = request.query.get("filter_value") if kind == "tag" else None
    is_internal = kind == "showInternalStreams"
    controller = controller_of(request.client)
    names, headers = await names_page(
        request,
        lambda token: controller.stream_pages(scope, tag=tag, token=token),
        lambda name: name.startswith("_") == is_internal,
    )

    async def property_of(name: str) -> models.StreamProperty:
        return models.property_of(scope, name, await request.client.stream_config(f"{scope}/{name}"))

    if request.query.get("fields") == "names":
        short = replies.StreamNames([replies.StreamName(name) for name in names])
        return Reply(content=short, headers=headers)
    found = await for_each(names, property_of, _CONFIGURATIONS_AT_ONCE)
    there: list[models.StreamProperty] = []
    for each in found:
        if isinstance(each, NoSuchStreamError):
            continue  # It was deleted after it was listed.
        if isinstance(each, PenstockError):
            raise each
        there.append(each)
    return Reply(content=replies.StreamList(there), headers=headers)


async def create_stream(request: Request) -> Reply:
    """Create a stream."""
    wanted = request.json(models.CreateStreamRequest)
    scope, config = request.path["scope"], models.config_of(wanted)
    if not await controller_of(request.client).create_stream(scope, wanted.streamName, config):
        raise StreamExistsError(f"stream {scope}/{wanted.streamName} exists")
    return Reply(201, models.property_of(scope, wanted.streamName, config))


async def get_stream(request: Request) -> Reply:
    """Return a stream."""
    config = await request.client.stream_config(request.stream)
    return Reply(content=models.property_of(request.path["scope"], request.path["stream"], config))


async def update_stream(request: Request) -> Reply:
    """Replace the configuration of a stream."""
    config = models.config_of(request.json(models.UpdateStreamRequest))
    scope, stream = split_scoped_name(request.stream)
    await controller_of(request.client).update_stream(scope, stream, config)
    return Reply(content=models.property_of(scope, stream, config))


async def delete_stream(request: Request) -> Reply:
    """Delete a sealed stream."""
    await request.client.delete_stream(request.stream)
    return NOTHING


async def set_state(request: Request) -> Reply:
    """Seal a stream."""
    wanted = request.json(StreamState)
    if wanted.streamState != "SEALED":
        raise BadRequestError(f"streamState is {wanted.streamState!r}: a stream can only be brought to SEALED")
    await request.client.seal_stream(request.stream)
    return Reply(content=StreamState("SEALED"))


async def scaling_events(request: Request) -> Reply:
    """Return the scales of a stream in a period; the first one may be the last before it."""
    if "from" not in request.query or "to" not in request.query:
        raise BadRequestError("from and to are needed: times in milliseconds since 1970")
    begin_ms = request.number("from", 0)
    end_ms = request.number("to", 0, least=begin_ms)
    history = await request.client.history(request.stream, epoch_count_max=_EPOCHS_MAX)
    events: list[replies.ScalingEvent] = []
    for epoch, splits, merges in history.scales():
        time_ms = epoch.began_ms or 0
        if time_ms > end_ms:
            break
        if time_ms <= begin_ms:
            events.clear()
        segments = [
            replies.ScaledSegment(
                segment_number(each.segment_id), segment_epoch(each.segment_id), time_ms, each.key_low, each.key_high
            )
            for each in epoch.segments
        ]
        events.append(replies.ScalingEvent(time_ms, segments, splits, merges))
    return Reply(content=events)


async def history(request: Request) -> Reply:
    """Return epochs of a stream, oldest first: when each began, and what it split and merged."""
    limit = request.number("limit", 100, least=1, most=_EPOCHS_MAX)
    before = request.number("before", 0, least=0) or None
    found = await request.client.history(request.stream, epoch_count_max=limit, before=before)
    epochs = [
        replies.Epoch(epoch.number, epoch.began_ms, splits, merges, [_range(each) for each in epoch.segments])
        for epoch, splits, merges in found.scales()
    ]
    return Reply(content=replies.History(epochs, found.epoch_count, found.is_sealed))


async def segments(request: Request) -> Reply:
    """Return the segments that take events now."""
    client = request.client
    found = await client.segments_of(request.stream)
    head, tail = await client.head(request.stream), await client.tail(request.stream)
    shown = [
        replies.SegmentTail(each.segment_id, each.key_low, each.key_high, tail.positions.get(each.segment_id))
        for each in found
    ]
    return Reply(content=replies.SegmentTails(shown, _cut(head), _cut(tail), not found))


def _range(segment: SegmentRange) -> replies.KeyRange:
    return replies.KeyRange(segment.segment_id, segment.key_low, segment.key_high)


def _cut(cut: StreamCut) -> dict[str, int]:
    return {str(segment): offset for segment, offset in sorted(cut.positions.items())}


async def truncate(request: Request) -> Reply:
    """Truncate a stream."""
    wanted = request.json(Truncation)
    scope, stream = split_scoped_name(request.stream)
    if (wanted.cut is None) == (wanted.at is None):
        raise BadRequestError("give either cut or at")
    if wanted.cut is not None:
        try:
            cut = StreamCut(scope, stream, {int(segment): offset for segment, offset in wanted.cut.items()})
        except ValueError as error:
            raise BadRequestError(f"the cut is not understood: {error}") from error
    elif wanted.at == "tail":
        cut = await request.client.tail(request.stream)
    else:
        cut = await request.client.cut_at_time(request.stream, wanted.at or "")
    if not cut.positions or not await controller_of(request.client).is_valid_cut(cut):
        raise BadRequestError("the cut is not valid: its segments do not cover every key exactly once")
    if not wanted.dryRun:
        await request.client.truncate_stream(cut)
    return Reply(content=replies.Truncated(_cut(cut), wanted.dryRun))


async def scale(request: Request) -> Reply:
    """Seal segments and create others in their place."""
    wanted = request.json(Scale)
    await request.client.scale_stream(request.stream, seal=wanted.seal, key_ranges=wanted.ranges)
    found = await request.client.segments_of(request.stream)
    return Reply(content=replies.Scaled([_range(each) for each in found]))


_STREAM = "/v1/scopes/{scope}/streams/{stream}"
_READ, _UPDATE = "READ on the stream", "READ_UPDATE on the stream"
ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/v1/scopes",
        "List scopes.",
        list_scopes,
        queries=PAGED,
        reply=(replies.ScopeList,),
        needs="READ on prn::/",
        is_pravega=True,
    ),
    Route(
        "POST",
        "/v1/scopes",
        "Create a scope.",
        create_scope,
        201,
        body=replies.ScopeName,
        reply=(replies.ScopeName,),
        needs="READ_UPDATE on prn::/",
        is_pravega=True,
    ),
    Route(
        "GET",
        "/v1/scopes/{scope}",
        "Return a scope.",
        get_scope,
        reply=(replies.ScopeName,),
        needs="READ on the scope",
        is_pravega=True,
    ),
    Route(
        "DELETE",
        "/v1/scopes/{scope}",
        "Delete an empty scope.",
        delete_scope,
        204,
        needs="READ_UPDATE on prn::/",
        is_pravega=True,
    ),
    Route(
        "GET",
        "/v1/scopes/{scope}/streams",
        "List the streams of a scope.",
        list_streams,
        queries=(
            Query("filter_type", "tag, or showInternalStreams for internal streams only."),
            Query("filter_value", "The tag."),
            Query("fields", "names: without configurations."),
            *PAGED,
        ),
        reply=(replies.StreamList, replies.StreamNames),
        needs="READ on the scope",
        is_pravega=True,
    ),
    Route(
        "POST",
        "/v1/scopes/{scope}/streams",
        "Create a stream.",
        create_stream,
        201,
        body=models.CreateStreamRequest,
        reply=(models.StreamProperty,),
        needs="READ_UPDATE on the scope",
        is_pravega=True,
    ),
    Route("GET", _STREAM, "Return a stream.", get_stream, reply=(models.StreamProperty,), needs=_READ, is_pravega=True),
    Route(
        "PUT",
        _STREAM,
        "Replace the configuration of a stream.",
        update_stream,
        body=models.UpdateStreamRequest,
        reply=(models.StreamProperty,),
        needs=_UPDATE,
        is_pravega=True,
    ),
    Route("DELETE", _STREAM, "Delete a sealed stream.", delete_stream, 204, needs=_UPDATE, is_pravega=True),
    Route(
        "PUT",
        _STREAM + "/state",
        "Seal a stream.",
        set_state,
        body=StreamState,
        reply=(StreamState,),
        needs=_UPDATE,
        is_pravega=True,
    ),
    Route(
        "GET",
        _STREAM + "/scaling-events",
        "Return the scales of a stream in a period.",
        scaling_events,
        queries=(
            Query("from", "Milliseconds since 1970.", is_number=True),
            Query("to", "Milliseconds since 1970.", is_number=True),
        ),
        reply=(list[replies.ScalingEvent],),
        needs=_READ,
        is_pravega=True,
    ),
    Route(
        "GET",
        _STREAM + "/history",
        "Return when segments were split and merged.",
        history,
        queries=(
            Query("limit", "Number of epochs, at most 1000.", is_number=True),
            Query("before", "Only epochs before this one.", is_number=True),
        ),
        reply=(replies.History,),
        needs=_READ,
    ),
    Route(
        "GET",
        _STREAM + "/segments",
        "Return the segments that take events now.",
        segments,
        reply=(replies.SegmentTails,),
        needs=_READ,
    ),
    Route(
        "POST",
        _STREAM + "/truncation",
        "Truncate a stream.",
        truncate,
        body=Truncation,
        reply=(replies.Truncated,),
        needs=_UPDATE,
    ),
    Route(
        "POST",
        _STREAM + "/scale",
        "Seal segments and create others in their place.",
        scale,
        body=Scale,
        reply=(replies.Scaled,),
        needs=_UPDATE,
    ),
)
