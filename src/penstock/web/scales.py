"""Epochs and scales of streams over REST: what was split and merged, and how to split and merge.

Source: controller-api 13 for scaling events; the other calls are additions.
"""

from __future__ import annotations

import asyncio

import msgspec

from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.low_level import controller_of
from penstock.model.errors import NoSuchStreamError
from penstock.model.names import SegmentId, segment_epoch, segment_number, split_scoped_name
from penstock.runtime.pacing import GrowingDelay
from penstock.web import replies
from penstock.web.errors import BadRequestError, NoSuchEpochError
from penstock.web.models import Int64
from penstock.web.routes import Query, Reply, Request, Route

_EPOCHS_MAX = 1000
#: A scale that takes longer is answered with its epoch, before the time of a request ends.
_SCALE_TIME_S = 10.0
_POLL_S, _POLL_S_MAX = 0.01, 0.5


class Scale(msgspec.Struct, forbid_unknown_fields=True):
    """Segments to seal, and the key ranges of those that follow them."""

    seal: list[Int64]
    ranges: list[tuple[float, float]]


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
        replies.Epoch(epoch.number, epoch.began_ms, splits, merges, [key_range(each) for each in epoch.segments])
        for epoch, splits, merges in found.scales()
    ]
    return Reply(content=replies.History(epochs, found.epoch_count, found.is_sealed))


async def epoch_segments(request: Request, number: int) -> list[replies.KeyRange]:
    """Return the segments of an epoch. Raises `NoSuchEpochError`."""
    found = await request.client.history(request.stream, epoch_count_max=1, before=number + 1)
    for epoch in found.epochs:
        if epoch.number == number:
            return [key_range(each) for each in epoch.segments]
    raise NoSuchEpochError(f"stream {request.stream} has no epoch {number}")


def key_range(segment: SegmentRange) -> replies.KeyRange:
    """Return a segment as it is shown."""
    return replies.KeyRange(segment.segment_id, segment.key_low, segment.key_high)


async def scale(request: Request) -> Reply:
    """Seal segments and create others in their place. A scale that continues after some time is answered with 202."""
    wanted = request.json(Scale)
    scope, stream = split_scoped_name(request.stream)
    controller = controller_of(request.client)
    seal = [SegmentId(each) for each in wanted.seal]
    epoch = await controller.start_scale(scope, stream, seal=seal, key_ranges=wanted.ranges)
    try:
        async with asyncio.timeout(_SCALE_TIME_S):
            interval = GrowingDelay(_POLL_S, _POLL_S_MAX)
            while epoch is not None and not await controller.is_scale_complete(scope, stream, epoch):
                await interval.sleep()
    except TimeoutError:
        return Reply(202, replies.Scaled(epoch, []))
    found = await request.client.segments_of(request.stream)
    return Reply(content=replies.Scaled(epoch, [key_range(each) for each in found]))


async def scale_state(request: Request) -> Reply:
    """Return whether the scale that began in an epoch is complete."""
    try:
        epoch = int(request.path["epoch"])
    except ValueError:
        raise BadRequestError(f"{request.path['epoch']!r} is not the number of an epoch") from None
    if not 0 <= epoch < 1 << 31:
        raise BadRequestError(f"epoch {epoch}: use 0 to {(1 << 31) - 1}")
    scope, stream = split_scoped_name(request.stream)
    controller = controller_of(request.client)
    if not await controller.stream_exists(scope, stream):
        raise NoSuchStreamError(f"stream {request.stream} does not exist")
    is_complete = await controller.is_scale_complete(scope, stream, epoch)
    if is_complete is None:
        raise NoSuchEpochError(f"stream {request.stream} has no epoch {epoch}")
    return Reply(content=replies.ScaleState(epoch, "SUCCESS" if is_complete else "IN_PROGRESS"))


_STREAM = "/v1/scopes/{scope}/streams/{stream}"
_READ, _UPDATE = "READ on the stream", "READ_UPDATE on the stream"
ROUTES: tuple[Route, ...] = (
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
        "POST",
        _STREAM + "/scale",
        "Seal segments and create others in their place.",
        scale,
        body=Scale,
        reply=(replies.Scaled,),
        later=202,
        needs=_UPDATE,
    ),
    Route(
        "GET",
        _STREAM + "/scale/{epoch}",
        "Return whether the scale that began in an epoch is complete.",
        scale_state,
        reply=(replies.ScaleState,),
        needs=_READ,
    ),
)
