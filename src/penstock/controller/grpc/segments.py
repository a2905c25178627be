"""The calls for segments and stream cuts. Source: controller-api 9.11 and 9.12."""

from __future__ import annotations

from penstock.controller.epochs import Successor
from penstock.controller.errors import EarlyArgumentError
from penstock.controller.grpc import convert
from penstock.controller.grpc.call import Front, need_stream
from penstock.controller.queries import SegmentPosition
from penstock.rpc import controller_pb2 as pb


async def get_current_segments(front: Front, request: pb.StreamInfo) -> pb.SegmentRanges:
    """Answer getCurrentSegments."""
    found = await front.service.current_segments(request.scope, request.stream)
    return await convert.segment_ranges(request.scope, request.stream, found)


async def get_epoch_segments(front: Front, request: pb.GetEpochSegmentsRequest) -> pb.SegmentRanges:
    """Answer getEpochSegments."""
    info = request.streamInfo
    found = await front.service.epoch_segments(info.scope, info.stream, request.epoch)
    return await convert.segment_ranges(info.scope, info.stream, found)


async def get_segments(front: Front, request: pb.GetSegmentsRequest) -> pb.SegmentsAtTime:
    """Answer getSegments: the head of the stream, regardless of the timestamp."""
    info = request.streamInfo
    found = await front.service.head(info.scope, info.stream)
    reply = pb.SegmentsAtTime()

    def location(position: SegmentPosition) -> pb.SegmentsAtTime.SegmentLocation:
        named = convert.segment_id(info.scope, info.stream, position.segment)
        return pb.SegmentsAtTime.SegmentLocation(segmentId=named, offset=position.offset)

    await convert.extend(reply.segments, found, location)
    return reply


async def get_segments_immediately_following(front: Front, request: pb.SegmentId) -> pb.SuccessorResponse:
    """Answer getSegmentsImmediatelyFollowing, and its misspelt alias."""
    info = request.streamInfo
    found = await front.service.successors(info.scope, info.stream, request.segmentId)
    reply = pb.SuccessorResponse()

    def entry(successor: Successor) -> pb.SuccessorResponse.SegmentEntry:
        found_range = convert.segment_range(info.scope, info.stream, successor.segment)
        return pb.SuccessorResponse.SegmentEntry(segment=found_range, value=successor.predecessors)

    await convert.extend(reply.segments, found, entry)
    return reply


async def get_segments_between(front: Front, request: pb.StreamCutRange) -> pb.StreamCutRangeResponse:
    """Answer getSegmentsBetween."""
    info = request.streamInfo
    need_stream(info)
    # `from` is a keyword of Python, so the field can only be read with `getattr`.
    start: dict[int, int] = dict(getattr(request, "from"))
    end = dict(request.to)
    if not start and not end:
        raise EarlyArgumentError("both stream cuts are empty")
    found = await front.service.segments_between(info.scope, info.stream, start, end)
    reply = pb.StreamCutRangeResponse()
    await convert.extend(reply.segments, found, lambda segment: convert.segment_id(info.scope, info.stream, segment.id))
    return reply


async def is_segment_valid(front: Front, request: pb.SegmentId) -> pb.SegmentValidityResponse:
    """Answer isSegmentValid."""
    info = request.streamInfo
    is_valid = await front.service.is_segment_valid(info.scope, info.stream, request.segmentId)
    return pb.SegmentValidityResponse(response=is_valid)


async def is_stream_cut_valid(front: Front, request: pb.StreamCut) -> pb.StreamCutValidityResponse:
    """Answer isStreamCutValid."""
    info = request.streamInfo
    is_valid = await front.service.is_stream_cut_valid(info.scope, info.stream, dict(request.cut))
    return pb.StreamCutValidityResponse(response=is_valid)


async def get_uri(front: Front, request: pb.SegmentId) -> pb.NodeUri:
    """Answer getURI."""
    info = request.streamInfo
    host, port = front.service.endpoint_of(info.scope, info.stream, request.segmentId, front.locator)
    return pb.NodeUri(endpoint=host, port=port)
