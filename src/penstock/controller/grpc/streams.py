"""The calls for streams. Source: controller-api 9.4 to 9.10, 9.13 and 9.18."""

from __future__ import annotations

from penstock.controller.errors import EarlyArgumentError, StreamWithoutSegmentsError
from penstock.controller.grpc import convert
from penstock.controller.grpc.call import Front, need_stream
from penstock.controller.metadata.catalog import NamePage
from penstock.controller.workflows.scale_stream import ScaleStatus
from penstock.model.names import check_new_stream_name
from penstock.model.policies import StreamConfig
from penstock.rpc import controller_pb2 as pb

_SCALE_STATUS = {
    ScaleStatus.IN_PROGRESS: pb.ScaleStatusResponse.IN_PROGRESS,
    ScaleStatus.SUCCESS: pb.ScaleStatusResponse.SUCCESS,
    ScaleStatus.UNKNOWN_EPOCH: pb.ScaleStatusResponse.INVALID_INPUT,
}


def _configuration(request: pb.StreamConfig) -> StreamConfig:
    name = f"{request.streamInfo.scope}/{request.streamInfo.stream}"
    if request.HasField("scalingPolicy") and request.scalingPolicy.minNumSegments < 1:
        raise StreamWithoutSegmentsError(f"{name}: no stream has {request.scalingPolicy.minNumSegments} segments")
    return convert.stream_config(request)


def _done() -> pb.UpdateStreamStatus:
    return pb.UpdateStreamStatus(status=pb.UpdateStreamStatus.SUCCESS)


async def create_stream(front: Front, request: pb.StreamConfig) -> pb.CreateStreamStatus:
    """Answer createStream."""
    scope, stream = request.streamInfo.scope, request.streamInfo.stream
    need_stream(request.streamInfo)
    if request.rolloverSizeBytes < 0:
        raise EarlyArgumentError(f"rollover size of {request.rolloverSizeBytes} bytes: use 0 (default) or more")
    check_new_stream_name(stream)
    await front.service.create_stream(scope, stream, _configuration(request))
    return pb.CreateStreamStatus(status=pb.CreateStreamStatus.SUCCESS)


async def update_stream(front: Front, request: pb.StreamConfig) -> pb.UpdateStreamStatus:
    """Answer updateStream."""
    scope, stream = request.streamInfo.scope, request.streamInfo.stream
    need_stream(request.streamInfo)
    await front.service.update_stream(scope, stream, _configuration(request))
    return _done()


async def seal_stream(front: Front, request: pb.StreamInfo) -> pb.UpdateStreamStatus:
    """Answer sealStream."""
    await front.service.seal_stream(request.scope, request.stream)
    return _done()


async def truncate_stream(front: Front, request: pb.StreamCut) -> pb.UpdateStreamStatus:
    """Answer truncateStream."""
    info = request.streamInfo
    need_stream(info)
    await front.service.truncate_stream(info.scope, info.stream, dict(request.cut))
    return _done()


async def delete_stream(front: Front, request: pb.StreamInfo) -> pb.DeleteStreamStatus:
    """Answer deleteStream."""
    await front.service.delete_stream(request.scope, request.stream)
    return pb.DeleteStreamStatus(status=pb.DeleteStreamStatus.SUCCESS)


async def scale(front: Front, request: pb.ScaleRequest) -> pb.ScaleResponse:
    """Answer scale."""
    info = request.streamInfo
    need_stream(info)
    # Of several ranges with the same start the last one counts, as in Pravega.
    ranges = list({entry.start: entry.end for entry in request.newKeyRanges}.items())
    begun = await front.service.scale_stream(info.scope, info.stream, list(request.sealedSegments), ranges)
    reply = pb.ScaleResponse(status=pb.ScaleResponse.STARTED, epoch=begun.active_epoch)
    await convert.extend(
        reply.segments, begun.created, lambda segment: convert.segment_range(info.scope, info.stream, segment)
    )
    return reply


async def check_scale(front: Front, request: pb.ScaleStatusRequest) -> pb.ScaleStatusResponse:
    """Answer checkScale."""
    info = request.streamInfo
    need_stream(info)
    status = await front.service.scale_status(info.scope, info.stream, request.epoch)
    return pb.ScaleStatusResponse(status=_SCALE_STATUS[status])


async def check_stream_exists(front: Front, request: pb.StreamInfo) -> pb.ExistsResponse:
    """Answer checkStreamExists."""
    return pb.ExistsResponse(exists=await front.service.stream_exists(request.scope, request.stream))


async def get_stream_configuration(front: Front, request: pb.StreamInfo) -> pb.StreamConfig:
    """Answer getStreamConfiguration."""
    found = await front.service.stream_configuration(request.scope, request.stream)
    return convert.stream_config_message(request.scope, request.stream, found)


async def list_streams_in_scope(front: Front, request: pb.StreamsInScopeRequest) -> pb.StreamsInScopeResponse:
    """Answer listStreamsInScope."""
    scope = request.scope.scope
    return _page(scope, await front.service.list_streams_and_marks(scope, request.continuationToken.token))


async def list_streams_in_scope_for_tag(
    front: Front, request: pb.StreamsInScopeWithTagRequest
) -> pb.StreamsInScopeResponse:
    """Answer listStreamsInScopeForTag."""
    scope = request.scope.scope
    return _page(scope, await front.service.list_streams_by_tag(scope, request.tag, request.continuationToken.token))


def _page(scope: str, page: NamePage) -> pb.StreamsInScopeResponse:
    return pb.StreamsInScopeResponse(
        streams=[convert.stream_info(scope, stream) for stream in page.names],
        # The token message must be set on every page: without it the Rust client ignores the page.
        continuationToken=pb.ContinuationToken(token=page.token),
        status=pb.StreamsInScopeResponse.SUCCESS,
    )


def no_page(
    request: pb.StreamsInScopeRequest | pb.StreamsInScopeWithTagRequest,
    status: pb.StreamsInScopeResponse.Status,
) -> pb.StreamsInScopeResponse:
    """Return the error reply of a listing."""
    return pb.StreamsInScopeResponse(
        continuationToken=pb.ContinuationToken(token=request.continuationToken.token),
        status=status,
    )
