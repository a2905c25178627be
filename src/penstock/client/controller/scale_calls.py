"""The controller's calls about scaling, a part of `ControllerClient`.

Source: controller-api 9.13.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from penstock.client.controller.stream_segments import Successor
from penstock.client.controller.unary_call import CallGroup, UnaryCall
from penstock.model.errors import InvalidArgumentError, MetadataConflictError, OutcomeUnknownError, StreamError
from penstock.model.names import SegmentId
from penstock.rpc import controller_pb2 as pb
from penstock.runtime.pacing import GrowingDelay


class ScaleStub(Protocol):
    """The RPCs that are used here."""

    scale: UnaryCall[pb.ScaleRequest, pb.ScaleResponse]
    checkScale: UnaryCall[pb.ScaleStatusRequest, pb.ScaleStatusResponse]


class ScaleCalls(CallGroup):
    """See the module."""

    _stub: ScaleStub

    @abstractmethod
    async def successors(self, scope: str, stream: str, segment: SegmentId) -> Sequence[Successor]:
        """Return the segments that follow a sealed one."""

    async def scale_stream(
        self,
        scope: str,
        stream: str,
        *,
        seal: Sequence[SegmentId],
        key_ranges: Sequence[tuple[float, float]],
        timeout_s: float = 60.0,
        poll_interval_s: float = 0.01,
        poll_interval_s_max: float = 0.5,
    ) -> None:
        """Replace the segments `seal` by one new segment per range, and wait until that is complete.

        Completion is polled after `poll_interval_s`, and then after twice as long each time, up to
        `poll_interval_s_max`.

        Raises `InvalidArgumentError` if the ranges do not cover exactly those of `seal`, `MetadataConflictError` while
        another scale is in progress, `OutcomeUnknownError` if it is not complete within `timeout_s`.
        """
        name = f"{scope}/{stream}"
        epoch = await self.start_scale(scope, stream, seal=seal, key_ranges=key_ranges)
        if epoch is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                interval = GrowingDelay(poll_interval_s, poll_interval_s_max)
                while True:
                    await interval.sleep()
                    is_complete = await self.is_scale_complete(scope, stream, epoch)
                    if is_complete is None:
                        raise StreamError(f"scale {name}: the controller has no epoch {epoch}")
                    if is_complete:
                        return
        except TimeoutError as error:
            raise OutcomeUnknownError(f"scale {name}: accepted, but not complete after {timeout_s:g} s") from error

    async def start_scale(
        self, scope: str, stream: str, *, seal: Sequence[SegmentId], key_ranges: Sequence[tuple[float, float]]
    ) -> int | None:
        """Begin to replace segments as `scale_stream` does; return the epoch in which the scale began.

        None: an earlier attempt, whose reply was lost, was carried out.

        Raises `InvalidArgumentError`, `MetadataConflictError` as `scale_stream`.
        """
        name = f"{scope}/{stream}"
        info = pb.StreamInfo(scope=scope, stream=stream)
        ranges = [pb.ScaleRequest.KeyRangeEntry(start=start, end=end) for start, end in key_ranges]
        request = pb.ScaleRequest(streamInfo=info, sealedSegments=seal, newKeyRanges=ranges)
        reply, is_repeated = await self._change(self._stub.scale, request, f"scale stream {name}")
        if reply.status != pb.ScaleResponse.STARTED and is_repeated:
            # Rejected, perhaps because an earlier attempt, whose reply was lost, was carried out.
            following = [each.segment for segment in seal for each in await self.successors(scope, stream, segment)]
            if {(each.key_low, each.key_high) for each in following} == set(key_ranges):
                return None
        if reply.status == pb.ScaleResponse.PRECONDITION_FAILED:
            raise InvalidArgumentError(
                f"scale {name}: a segment to seal is not current, or too few segments would remain"
            )
        if reply.status == pb.ScaleResponse.FAILURE:
            raise MetadataConflictError(
                f"scale {name}: refused; ranges do not match, or another scaling is in progress"
            )
        epoch: int = reply.epoch
        return epoch

    async def is_scale_complete(self, scope: str, stream: str, epoch: int) -> bool | None:
        """Return whether the scale that began in `epoch` is complete; None: the stream has not reached that epoch.

        Without a later epoch it is not complete. Raises `StreamError` for a stream that does not exist.
        """
        status = pb.ScaleStatusRequest(streamInfo=pb.StreamInfo(scope=scope, stream=stream), epoch=epoch)
        reply = await self._ask(self._stub.checkScale, status, f"check the scale of stream {scope}/{stream}")
        if reply.status not in (pb.ScaleStatusResponse.SUCCESS, pb.ScaleStatusResponse.IN_PROGRESS):
            return None
        return bool(reply.status == pb.ScaleStatusResponse.SUCCESS)
