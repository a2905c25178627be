"""Scopes and streams over REST, as Pravega's interface has them, and our additions.

Source: controller-api 13.
"""

from __future__ import annotations

import msgspec

from penstock.client.low_level import controller_of
from penstock.model.errors import NoSuchScopeError, NoSuchStreamError, PenstockError, StreamExistsError
from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import StreamCut
from penstock.runtime.bulk import for_each
from penstock.web import models, replies
from penstock.web.errors import BadRequestError
from penstock.web.listing import PAGED, names_page
from penstock.web.routes import NOTHING, Query, Reply, Request, Route
from penstock.web.scales import epoch_segments

_CONFIGURATIONS_AT_ONCE = 32
_EPOCH_MAX = (1 << 31) - 2


class StreamState(msgspec.Struct):
    """The state to bring a stream to: SEALED."""

    streamState: str


class Truncation(msgspec.Struct, forbid_unknown_fields=True):
    """Where the stream begins afterwards: offsets by segment, or ``tail``, or a time in ISO 8601."""

    cut: dict[str, int] | None = None
    at: str | None = None
    dryRun: bool = False


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


async def segments(request: Request) -> Reply:
    """Return the segments that take events now, or those of an epoch."""
    client = request.client
    if "epoch" in request.query:
        number = request.number("epoch", 0, most=_EPOCH_MAX)
        return Reply(content=replies.EpochSegments(number, await epoch_segments(request, number)))
    found = await client.segments_of(request.stream)
    head, tail = await client.head(request.stream), await client.tail(request.stream)
    shown = [
        replies.SegmentTail(each.segment_id, each.key_low, each.key_high, tail.positions.get(each.segment_id))
        for each in found
    ]
    return Reply(content=replies.SegmentTails(shown, _cut(head), _cut(tail), not found))


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
        _STREAM + "/segments",
        "Return the segments that take events now, or those of an epoch.",
        segments,
        queries=(Query("epoch", "Only the segments of this epoch, with their ranges of keys.", is_number=True),),
        reply=(replies.SegmentTails, replies.EpochSegments),
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
)
