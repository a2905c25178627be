"""The controller's calls about the segments of streams, a part of `ControllerClient`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.client.controller.controller_messages import (
    cut_from_locations,
    cut_to_message,
    range_from_message,
)
from penstock.client.controller.stream_segments import SegmentRange, Successor
from penstock.client.controller.unary_call import CallGroup, UnaryCall
from penstock.model.errors import (
    InvalidArgumentError,
)
from penstock.model.names import SegmentId, parent_segment_name, parse_segment_name
from penstock.model.stream_cuts import StreamCut
from penstock.rpc import controller_pb2 as pb


class SegmentStub(Protocol):
    """The RPCs that are used here."""

    getDelegationToken: UnaryCall[pb.StreamInfo, pb.DelegationToken]
    getCurrentSegments: UnaryCall[pb.StreamInfo, pb.SegmentRanges]
    getEpochSegments: UnaryCall[pb.GetEpochSegmentsRequest, pb.SegmentRanges]
    getSegments: UnaryCall[pb.GetSegmentsRequest, pb.SegmentsAtTime]
    getSegmentsImmediatelyFollowing: UnaryCall[pb.SegmentId, pb.SuccessorResponse]
    getSegmentsBetween: UnaryCall[pb.StreamCutRange, pb.StreamCutRangeResponse]
    getURI: UnaryCall[pb.SegmentId, pb.NodeUri]


class SegmentCalls(CallGroup):
    """See the module."""

    _stub: SegmentStub

    async def current_segments(self, scope: str, stream: str) -> Sequence[SegmentRange]:
        """Return the segments that take events now, none if the stream is sealed. Raises `NoSuchStreamError`."""
        what = f"read the segments of stream {scope}/{stream}"
        reply = await self._ask(self._stub.getCurrentSegments, _to_read(scope, stream), what)
        return [range_from_message(segment) for segment in reply.segmentRanges]

    async def epoch_segments(self, scope: str, stream: str, epoch: int) -> Sequence[SegmentRange]:
        """Return the segments of one epoch. Raises `NoSuchStreamError` for a missing stream or epoch."""
        request = pb.GetEpochSegmentsRequest(streamInfo=_stream(scope, stream), epoch=epoch)
        what = f"read the segments of stream {scope}/{stream} in epoch {epoch}"
        reply = await self._ask(self._stub.getEpochSegments, request, what)
        return [range_from_message(segment) for segment in reply.segmentRanges]

    async def head(self, scope: str, stream: str) -> StreamCut:
        """Return the stream cut of the first events that still exist. Raises `NoSuchStreamError`."""
        request = pb.GetSegmentsRequest(streamInfo=_to_read(scope, stream), timestamp=0)
        reply = await self._ask(self._stub.getSegments, request, f"read the head of stream {scope}/{stream}")
        return cut_from_locations(scope, stream, reply)

    async def successors(self, scope: str, stream: str, segment: SegmentId) -> Sequence[Successor]:
        """Return the segments that follow a sealed one; none means that the stream ends here."""
        request = pb.SegmentId(streamInfo=_stream(scope, stream), segmentId=segment)
        what = f"read the successors of segment {segment} of stream {scope}/{stream}"
        reply = await self._ask(self._stub.getSegmentsImmediatelyFollowing, request, what)
        return [
            Successor(range_from_message(entry.segment), tuple(SegmentId(value) for value in entry.value))
            for entry in reply.segments
        ]

    async def segments_between(self, start: StreamCut, end: StreamCut) -> Sequence[SegmentId]:
        """Return the ids of the segments that hold events from `start` to `end`, the cuts' own included.

        Raises `InvalidArgumentError` if a part of `end` lies before `start`, or one of them is not a cut of the stream.
        """
        first, last = cut_to_message(start), cut_to_message(end)
        request = pb.StreamCutRange(streamInfo=first.streamInfo, to=last.cut)
        getattr(request, "from").update(first.cut)
        what = f"read the segments between two cuts of stream {_name(first.streamInfo)}"
        # For cuts that form no range, a controller returns only UNKNOWN, with its own text.
        reply, _ = await self._attempt(
            self._stub.getSegmentsBetween, request, what, is_change=False, unknown_means=InvalidArgumentError
        )
        return [SegmentId(segment.segmentId) for segment in reply.segments]

    async def delegation_token(self, scope: str, stream: str, to_write: bool) -> str:
        """Return a token for requests to segment stores about the segments of a stream.

        Raises `AccessDeniedError` if the account may not read, or write, the stream.
        """
        operation = pb.StreamInfo.READ_WRITE if to_write else pb.StreamInfo.READ
        request = pb.StreamInfo(scope=scope, stream=stream, accessOperation=operation)
        what = f"get a token to {'write' if to_write else 'read'} stream {scope}/{stream}"
        return (await self._ask(self._stub.getDelegationToken, request, what)).delegationToken

    async def endpoint_of(self, segment: str) -> tuple[str, int]:
        """Return host and port of the segment store that serves `segment` (a full name)."""
        scope, stream, number = parse_segment_name(parent_segment_name(segment))
        request = pb.SegmentId(streamInfo=_stream(scope, stream), segmentId=number)
        reply = await self._ask(self._stub.getURI, request, f"find the host of segment {segment}")
        return reply.endpoint, reply.port


def _stream(scope: str, stream: str) -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


def _to_read(scope: str, stream: str) -> pb.StreamInfo:
    """Return a stream for calls whose reply has a token: no token is wanted, so permission to read suffices."""
    return pb.StreamInfo(scope=scope, stream=stream, accessOperation=pb.StreamInfo.NONE)


def _name(info: pb.StreamInfo) -> str:
    return f"{info.scope}/{info.stream}"
