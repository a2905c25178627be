"""The controller's calls about reader groups, a part of `ControllerClient`.

Source: controller-api 9.16.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from penstock.client.controller.controller_messages import cut_to_message
from penstock.client.controller.unary_call import CallGroup, UnaryCall, reason_of_refusal
from penstock.model.errors import InvalidNameError, NoSuchReaderGroupError, NoSuchScopeError, StreamError
from penstock.model.names import STATE_STREAM_PREFIX
from penstock.model.policies import GroupRetention
from penstock.model.stream_cuts import StreamCut
from penstock.rpc import controller_pb2 as pb


@dataclass(frozen=True, slots=True)
class RegisteredGroup:
    """A reader group as registered at the controller.

    Attributes:
        id: a UUID, unique for each life of the name.
        generation: number of changes of its configuration.
        starts: its start in each of its streams (``scope/stream`` -> segment id -> offset); empty: at the head. Without
            a stream it waits for one; for how that is registered see ``docs/reader-groups.md``.
        retention: whether it subscribes to its streams, so that their retention policies keep unacknowledged data. For
            a group without a stream, it is stored only in the record.
        ends: its end in each of them, likewise; a stream without one has no end.
        checkpoint_interval_ms: of automatic checkpoints; not above 0: there are none.
        checkpoints_open_max, refresh_ms: used by Pravega's readers; preserved.
    """

    id: str
    generation: int
    starts: Mapping[str, Mapping[int, int]]
    retention: GroupRetention
    ends: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    checkpoint_interval_ms: int = 30_000
    checkpoints_open_max: int = 3
    refresh_ms: int = 3000


_RETENTION_TYPES = {
    GroupRetention.NONE: pb.ReaderGroupConfiguration.RetentionType.NONE,
    GroupRetention.MANUAL: pb.ReaderGroupConfiguration.RetentionType.MANUAL,
    GroupRetention.AUTOMATIC: pb.ReaderGroupConfiguration.RetentionType.AUTOMATIC,
}


class Publication(Enum):
    """The outcome of publishing a group's cut.

    Attributes:
        TAKEN: it was accepted.
        REFUSED: it lies before the one published last, or does not cover the keys of the stream exactly once.
        OVERTAKEN: the group's configuration has another generation by now.
        NO_SUBSCRIBER: this life of the group does not subscribe to the stream.
        NO_STREAM: there is none of this name.
    """

    TAKEN = "taken"
    REFUSED = "refused"
    OVERTAKEN = "overtaken"
    NO_SUBSCRIBER = "no subscriber"
    NO_STREAM = "no stream"


_PUBLICATIONS: Mapping[int, Publication] = {
    pb.UpdateSubscriberStatus.SUCCESS: Publication.TAKEN,
    pb.UpdateSubscriberStatus.STREAM_CUT_NOT_VALID: Publication.REFUSED,
    pb.UpdateSubscriberStatus.GENERATION_MISMATCH: Publication.OVERTAKEN,
    pb.UpdateSubscriberStatus.SUBSCRIBER_NOT_FOUND: Publication.NO_SUBSCRIBER,
    pb.UpdateSubscriberStatus.STREAM_NOT_FOUND: Publication.NO_STREAM,
}


class ReaderGroupStub(Protocol):
    """The RPCs that are used here."""

    createReaderGroup: UnaryCall[pb.ReaderGroupConfiguration, pb.CreateReaderGroupResponse]
    getReaderGroupConfig: UnaryCall[pb.ReaderGroupInfo, pb.ReaderGroupConfigResponse]
    updateReaderGroup: UnaryCall[pb.ReaderGroupConfiguration, pb.UpdateReaderGroupResponse]
    deleteReaderGroup: UnaryCall[pb.ReaderGroupInfo, pb.DeleteReaderGroupStatus]
    updateSubscriberStreamCut: UnaryCall[pb.SubscriberStreamCut, pb.UpdateSubscriberStatus]
    isStreamCutValid: UnaryCall[pb.StreamCut, pb.StreamCutValidityResponse]


class ReaderGroupCalls(CallGroup):
    """See the module."""

    _stub: ReaderGroupStub

    @abstractmethod
    def reader_group_pages(self, scope: str, *, token: str = "") -> AsyncIterator[tuple[str, Sequence[str]]]:
        """Iterate over the names of the groups of a scope page by page."""

    async def reader_group(self, scope: str, group: str) -> RegisteredGroup | None:
        """Return a group, or None if there is none of this name."""
        request = pb.ReaderGroupInfo(scope=scope, readerGroup=group)
        reply = await self._ask(self._stub.getReaderGroupConfig, request, f"read reader group {scope}/{group}")
        if reply.status == pb.ReaderGroupConfigResponse.RG_NOT_FOUND:
            return None
        if reply.status != pb.ReaderGroupConfigResponse.SUCCESS:
            raise StreamError(f"the controller could not read reader group {scope}/{group}; {reason_of_refusal()}")
        return _registered(reply.config)

    async def create_reader_group(self, scope: str, group: str, wanted: RegisteredGroup) -> RegisteredGroup:
        """Create a group, or return the existing one of that name. Raises `NoSuchScopeError`, `InvalidNameError`."""
        message = _config(scope, group, wanted)
        reply, _ = await self._change(self._stub.createReaderGroup, message, f"create reader group {scope}/{group}")
        if reply.status == pb.CreateReaderGroupResponse.SCOPE_NOT_FOUND:
            raise NoSuchScopeError(f"scope {scope} does not exist: create it before the reader group {group}")
        if reply.status == pb.CreateReaderGroupResponse.INVALID_RG_NAME:
            raise InvalidNameError(f"the controller refuses {group!r} as the name of a reader group")
        if reply.status != pb.CreateReaderGroupResponse.SUCCESS:
            raise StreamError(f"the controller could not create reader group {scope}/{group}; {reason_of_refusal()}")
        return _registered(reply.config)

    async def update_reader_group(self, scope: str, group: str, wanted: RegisteredGroup) -> bool:
        """Replace the configuration of generation `wanted.generation` by `wanted`, which gets the next one.

        False: the group no longer has that generation, perhaps because of an earlier attempt whose reply was lost.
        Raises `NoSuchReaderGroupError`, also for another life of the name.
        """
        reply, _ = await self._change(
            self._stub.updateReaderGroup, _config(scope, group, wanted), f"update reader group {scope}/{group}"
        )
        if reply.status == pb.UpdateReaderGroupResponse.RG_NOT_FOUND:
            raise NoSuchReaderGroupError(f"reader group {scope}/{group} does not exist")
        if reply.status == pb.UpdateReaderGroupResponse.FAILURE:
            raise StreamError(f"the controller could not update reader group {scope}/{group}; {reason_of_refusal()}")
        return bool(reply.status == pb.UpdateReaderGroupResponse.SUCCESS)

    async def delete_reader_group(self, scope: str, group: str, group_id: str) -> None:
        """Delete a group in the life with this id. Raises `NoSuchReaderGroupError`."""
        request = pb.ReaderGroupInfo(scope=scope, readerGroup=group, readerGroupId=group_id)
        reply, is_unsure = await self._change(
            self._stub.deleteReaderGroup, request, f"delete reader group {scope}/{group}"
        )
        if reply.status == pb.DeleteReaderGroupStatus.RG_NOT_FOUND and not is_unsure:
            raise NoSuchReaderGroupError(f"reader group {scope}/{group} does not exist")
        if reply.status == pb.DeleteReaderGroupStatus.FAILURE:
            raise StreamError(f"the controller could not delete reader group {scope}/{group}; {reason_of_refusal()}")

    async def publish_cut(self, group: str, group_id: str, generation: int, cut: StreamCut) -> Publication:
        """Publish that a group (``scope/group``) that subscribes to a stream needs no data of it before `cut`.

        `generation`: of the configuration with that subscription. Safe to repeat.
        """
        request = pb.SubscriberStreamCut(
            subscriber=group, generation=generation, readerGroupId=group_id, streamCut=cut_to_message(cut)
        )
        what = f"publish the position of reader group {group} in {cut.scope}/{cut.stream}"
        reply, _ = await self._change(self._stub.updateSubscriberStreamCut, request, what)
        found = _PUBLICATIONS.get(reply.status)
        if found is None:
            raise StreamError(f"{what}: the controller failed; {reason_of_refusal()}")
        return found

    async def reader_groups(self, scope: str) -> AsyncIterator[str]:
        """Iterate over the names of the groups of a scope, of all clients. Raises `NoSuchScopeError`."""
        async for _, names in self.reader_group_pages(scope):
            for name in names:
                yield name

    async def is_valid_cut(self, cut: StreamCut) -> bool:
        """Return whether a cut covers the keys of its stream once. Raises `NoSuchStreamError`."""
        what = f"check a stream cut of {cut.scope}/{cut.stream}"
        return (await self._ask(self._stub.isStreamCutValid, cut_to_message(cut), what)).response


def _config(scope: str, group: str, wanted: RegisteredGroup) -> pb.ReaderGroupConfiguration:
    # No controller accepts a group without a stream. A group that waits for one is registered with its own state
    # stream, which is never written to. Subscribing to that is impossible before the group exists.
    starts = wanted.starts or {f"{scope}/{STATE_STREAM_PREFIX}{group}": {}}
    return pb.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=group,
        groupRefreshTimeMillis=wanted.refresh_ms,
        automaticCheckpointIntervalMillis=wanted.checkpoint_interval_ms,
        maxOutstandingCheckpointRequest=wanted.checkpoints_open_max,
        retentionType=_RETENTION_TYPES[wanted.retention if wanted.starts else GroupRetention.NONE],
        generation=wanted.generation,
        readerGroupId=wanted.id,
        startingStreamCuts=_cut_messages(starts),
        endingStreamCuts=_cut_messages(wanted.ends),
    )


def _cut_messages(cuts: Mapping[str, Mapping[int, int]]) -> list[pb.StreamCut]:
    messages = []
    for name, positions in cuts.items():
        scope, _, stream = name.partition("/")
        messages.append(cut_to_message(StreamCut(scope, stream, positions)))
    return messages


def _registered(config: pb.ReaderGroupConfiguration) -> RegisteredGroup:
    own_stream = f"{STATE_STREAM_PREFIX}{config.readerGroupName}"
    return RegisteredGroup(
        config.readerGroupId,
        config.generation,
        _cuts(cut for cut in config.startingStreamCuts if cut.streamInfo.stream != own_stream),
        GroupRetention(config.retentionType),
        # A cut without positions is not an end.
        _cuts(cut for cut in config.endingStreamCuts if cut.cut),
        config.automaticCheckpointIntervalMillis,
        config.maxOutstandingCheckpointRequest,
        config.groupRefreshTimeMillis,
    )


def _cuts(messages: Iterable[pb.StreamCut]) -> dict[str, dict[int, int]]:
    return {f"{each.streamInfo.scope}/{each.streamInfo.stream}": dict(each.cut) for each in messages}
