"""The controller's calls about streams, a part of `ControllerClient`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from penstock.client.controller.controller_messages import (
    config_from_message,
    config_to_message,
    cut_to_message,
)
from penstock.client.controller.transaction_endings import TransactionInfo
from penstock.client.controller.unary_call import CallGroup, UnaryCall, reason_of_refusal
from penstock.model.errors import (
    InvalidNameError,
    MetadataConflictError,
    NoSuchScopeError,
    NoSuchStreamError,
    OutcomeUnknownError,
    StreamError,
    StreamNotSealedError,
    StreamSealedError,
    TransactionPreparedError,
    UnsupportedOperationError,
)
from penstock.model.policies import StreamConfig
from penstock.model.stream_cuts import StreamCut
from penstock.rpc import controller_pb2 as pb


class StreamStub(Protocol):
    """The RPCs that are used here."""

    createStream: UnaryCall[pb.StreamConfig, pb.CreateStreamStatus]
    updateStream: UnaryCall[pb.StreamConfig, pb.UpdateStreamStatus]
    truncateStream: UnaryCall[pb.StreamCut, pb.UpdateStreamStatus]
    sealStream: UnaryCall[pb.StreamInfo, pb.UpdateStreamStatus]
    deleteStream: UnaryCall[pb.StreamInfo, pb.DeleteStreamStatus]
    checkStreamExists: UnaryCall[pb.StreamInfo, pb.ExistsResponse]
    getStreamConfiguration: UnaryCall[pb.StreamInfo, pb.StreamConfig]
    listStreamsInScope: UnaryCall[pb.StreamsInScopeRequest, pb.StreamsInScopeResponse]
    listStreamsInScopeForTag: UnaryCall[pb.StreamsInScopeWithTagRequest, pb.StreamsInScopeResponse]


class StreamChangeCalls(CallGroup):
    """See the module."""

    _stub: StreamStub

    @abstractmethod
    def open_transactions(self, scope: str, stream: str) -> AsyncIterator[TransactionInfo]:
        """Iterate over the open transactions of a stream."""

    async def create_stream(self, scope: str, stream: str, config: StreamConfig) -> bool:
        """Create a stream and return True, or False if it exists. Raises `NoSuchScopeError`."""
        message = config_to_message(scope, stream, config)
        refusals: list[str] = []
        reply, unsure = await self._attempt(
            self._stub.createStream,
            message,
            f"create stream {scope}/{stream}",
            is_change=True,
            on_refused=refusals.append,
        )
        status = reply.status
        if status == pb.CreateStreamStatus.STREAM_EXISTS and refusals and await self._is_as_asked(message):
            # A full disk interrupted the creation; the controller has completed it since.
            return True
        if status == pb.CreateStreamStatus.SCOPE_NOT_FOUND:
            raise NoSuchScopeError(f"scope {scope} does not exist")
        if status == pb.CreateStreamStatus.INVALID_STREAM_NAME:
            raise InvalidNameError(f"the controller refuses {stream!r} as the name of a stream: {reason_of_refusal()}")
        if status == pb.CreateStreamStatus.FAILURE:
            raise StreamError(f"the controller could not create stream {scope}/{stream}; {reason_of_refusal()}")
        if status == pb.CreateStreamStatus.STREAM_EXISTS and unsure:
            raise OutcomeUnknownError(
                f"stream {scope}/{stream} exists now, but an earlier attempt to create it got no answer: this call or "
                "another one created it; check its configuration"
            )
        return bool(status == pb.CreateStreamStatus.SUCCESS)

    async def _is_as_asked(self, wanted: pb.StreamConfig) -> bool:
        """Return whether an existing stream has the configuration that its creation requested."""
        found = await self._ask(
            self._stub.getStreamConfiguration,
            wanted.streamInfo,
            f"read the configuration of stream {_name(wanted.streamInfo)}",
        )
        return config_from_message(found) == config_from_message(wanted)

    async def update_stream(self, scope: str, stream: str, config: StreamConfig) -> None:
        """Replace a stream's policies and tags. Raises `NoSuchStreamError`, `StreamSealedError`."""
        message = config_to_message(scope, stream, config)
        reply, _ = await self._change(self._stub.updateStream, message, f"update stream {_name(message.streamInfo)}")
        _check_update(reply, "update", _name(message.streamInfo))

    async def truncate_stream(self, cut: StreamCut) -> None:
        """Delete the events before `cut`. Raises `NoSuchStreamError`, `MetadataConflictError`."""
        message = cut_to_message(cut)
        reply, _ = await self._change(self._stub.truncateStream, message, f"truncate {_name(message.streamInfo)}")
        _check_update(reply, "truncate", _name(message.streamInfo))

    async def seal_stream(self, scope: str, stream: str) -> None:
        """Seal a stream: it takes no more events. Sealing a sealed stream is no error.

        Raises `NoSuchStreamError`, `MetadataConflictError`; `TransactionPreparedError` while one waits for its
        decision.
        """
        reply, _ = await self._change(self._stub.sealStream, _stream(scope, stream), f"seal stream {scope}/{stream}")
        if reply.status == pb.UpdateStreamStatus.FAILURE:
            await self._check_nothing_prepared(scope, stream)
        if reply.status != pb.UpdateStreamStatus.STREAM_SEALED:
            _check_update(reply, "seal", f"{scope}/{stream}")

    async def _check_nothing_prepared(self, scope: str, stream: str) -> None:
        try:
            async for found in self.open_transactions(scope, stream):
                if found.state == "PREPARED":
                    raise TransactionPreparedError(
                        f"stream {scope}/{stream} is not sealed: its transaction {found.id} is prepared: commit or "
                        "abort it by its id, then seal the stream",
                        stream=f"{scope}/{stream}", transaction=found.id,
                    )  # fmt: skip
        except UnsupportedOperationError:
            return  # Controllers other than Penstock's have none.

    async def delete_stream(self, scope: str, stream: str) -> None:
        """Delete a sealed stream. Raises `NoSuchStreamError`, `StreamNotSealedError`."""
        what = f"delete stream {scope}/{stream}"
        reply, unsure = await self._change(self._stub.deleteStream, _stream(scope, stream), what)
        status = reply.status
        if status == pb.DeleteStreamStatus.STREAM_NOT_FOUND and not unsure:
            raise NoSuchStreamError(f"stream {scope}/{stream} does not exist")
        if status == pb.DeleteStreamStatus.STREAM_NOT_SEALED:
            raise StreamNotSealedError(f"stream {scope}/{stream} must be sealed before it is deleted")
        if status == pb.DeleteStreamStatus.FAILURE:
            raise StreamError(f"the controller could not delete stream {scope}/{stream}; {reason_of_refusal()}")

    async def stream_exists(self, scope: str, stream: str) -> bool:
        """Return whether a stream exists."""
        what = f"check for stream {scope}/{stream}"
        return (await self._ask(self._stub.checkStreamExists, _stream(scope, stream), what)).exists

    async def stream_config(self, scope: str, stream: str) -> StreamConfig:
        """Return a stream's policies and tags. Raises `NoSuchStreamError`."""
        what = f"read the configuration of stream {scope}/{stream}"
        return config_from_message(await self._ask(self._stub.getStreamConfiguration, _stream(scope, stream), what))

    async def streams(self, scope: str, *, tag: str | None = None) -> AsyncIterator[str]:
        """Iterate over the streams of `scope`, all or those with `tag`. Raises `NoSuchScopeError`."""
        async for _, names in self.stream_pages(scope, tag=tag):
            for name in names:
                yield name

    async def stream_pages(
        self, scope: str, *, tag: str | None = None, token: str = ""
    ) -> AsyncIterator[tuple[str, Sequence[str]]]:
        """Iterate over the streams of `scope` page by page, each with the token that leads to it; from `token` on.

        Raises `NoSuchScopeError`.
        """
        for _ in range(self._settings.list_page_count_max):
            where, after = pb.ScopeInfo(scope=scope), pb.ContinuationToken(token=token)
            if tag is None:
                request = pb.StreamsInScopeRequest(scope=where, continuationToken=after)
                reply = await self._ask(self._stub.listStreamsInScope, request, f"list streams of {scope}")
            else:
                tagged = pb.StreamsInScopeWithTagRequest(scope=where, tag=tag, continuationToken=after)
                reply = await self._ask(self._stub.listStreamsInScopeForTag, tagged, f"list streams of {scope}")
            if reply.status == pb.StreamsInScopeResponse.SCOPE_NOT_FOUND:
                raise NoSuchScopeError(f"scope {scope} does not exist")
            if not reply.streams:
                return
            yield token, [info.stream for info in reply.streams]
            token = reply.continuationToken.token
        raise StreamError(f"listing {scope} did not end within {self._settings.list_page_count_max} pages")


def _stream(scope: str, stream: str) -> pb.StreamInfo:
    return pb.StreamInfo(scope=scope, stream=stream)


def _name(info: pb.StreamInfo) -> str:
    return f"{info.scope}/{info.stream}"


def _check_update(reply: pb.UpdateStreamStatus, verb: str, name: str) -> None:
    if reply.status in (pb.UpdateStreamStatus.STREAM_NOT_FOUND, pb.UpdateStreamStatus.SCOPE_NOT_FOUND):
        raise NoSuchStreamError(f"stream {name} does not exist")
    if reply.status == pb.UpdateStreamStatus.STREAM_SEALED:
        raise StreamSealedError(f"{verb} {name}: the stream is sealed")
    if reply.status != pb.UpdateStreamStatus.SUCCESS:
        raise MetadataConflictError(f"{verb} {name}: refused: {reason_of_refusal()}")
