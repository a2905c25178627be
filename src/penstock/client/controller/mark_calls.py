"""The controller's calls about times that writers note, a part of `ControllerClient`.

Source: controller-api 9.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from penstock.client.controller.unary_call import CallGroup, UnaryCall
from penstock.model.errors import InvalidArgumentError, NoSuchStreamError
from penstock.rpc import controller_pb2 as pb


class MarkStub(Protocol):
    """The RPCs that are used here."""

    noteTimestampFromWriter: UnaryCall[pb.TimestampFromWriter, pb.TimestampResponse]
    removeWriter: UnaryCall[pb.RemoveWriterRequest, pb.RemoveWriterResponse]


class MarkCalls(CallGroup):
    """See the module."""

    _stub: MarkStub

    async def note_time(self, scope: str, stream: str, writer: str, time: int, position: Mapping[int, int]) -> None:
        """Note that all events of a writer of `time` or before lie before `position` (segment -> offset).

        Raises `InvalidArgumentError` when time or position are before those noted last, `NoSuchStreamError`.
        """
        name = f"{scope}/{stream}"
        cut = pb.StreamCut(streamInfo=pb.StreamInfo(scope=scope, stream=stream), cut=position)
        request = pb.TimestampFromWriter(writer=writer, timestamp=time, position=cut)
        reply, _ = await self._change(self._stub.noteTimestampFromWriter, request, f"note a time on stream {name}")
        if reply.result == pb.TimestampResponse.INVALID_TIME:
            raise InvalidArgumentError(f"{name}: time {time} is before the one that this writer noted last")
        if reply.result == pb.TimestampResponse.INVALID_POSITION:
            raise InvalidArgumentError(f"{name}: the writer's position is before the one that it noted last")
        if reply.result != pb.TimestampResponse.SUCCESS:
            raise NoSuchStreamError(f"stream {name} does not accept times of writers, or does not exist")

    async def remove_writer(self, scope: str, stream: str, writer: str) -> None:
        """Note that a writer has left. No error if it has noted no time, or the stream was deleted."""
        info = pb.StreamInfo(scope=scope, stream=stream)
        request = pb.RemoveWriterRequest(writer=writer, stream=info)
        await self._change(self._stub.removeWriter, request, f"leave stream {scope}/{stream} as a writer")
